from dataclasses import replace

import pytest

from tests.unit.controller.histories import (
    CLUSTER_ID,
    cluster,
    elect_all,
    electorate,
    image_after,
    partition_in,
    reported,
    restore_preferred,
    states,
    the_place,
)
from tidelog.config import TopicConfig, topic_config
from tidelog.config.topic import BY_REPLICAS
from tidelog.controller import elections
from tidelog.controller.elections import Electorate
from tidelog.controller.records import BrokerFenced, BrokerShutdownWanted
from tidelog.controller.reports import ReplicaReport, ReplicaReports
from tidelog.errors import (
    ElectionNotNeeded,
    EligibleLeadersNotAvailable,
    InvalidReplicaAssignment,
    PreferredLeaderNotAvailable,
)
from tidelog.model import NO_NODE
from tidelog.raft.voters import ReplicaKey


def image_with(partition, *nodes, fenced=()):
    image = image_after(*cluster(*(nodes or (1, 2, 3))), partition)
    for node in fenced:
        image.apply(BrokerFenced(node=node, broker_epoch=image.brokers[node].broker_epoch))
    return image


def chosen(partition, *, fenced=(), reports=None):
    image = image_with(partition, fenced=fenced)
    return elections.choose(the_place(image).partition, electorate(image, reports=reports))


# Choosing.


def test_the_longest_known_log_in_sync_is_chosen_then_the_first_replica():
    partition = partition_in([2, 1, 3], [1, 2, 3], NO_NODE)

    assert chosen(partition) == 2
    assert chosen(partition, reports=reported(n1=(3, 10), n3=(3, 11), n2=(3, 10))) == 3
    assert chosen(partition, reports=reported(n1=(4, 1), n3=(3, 11))) == 1
    assert chosen(partition, reports=reported(n1=(3, 10), n2=(3, 10))) == 2


def test_only_those_who_are_there_and_in_sync_are_chosen():
    partition = partition_in([1, 2, 3], [1, 2], NO_NODE)

    assert chosen(partition, fenced=[1], reports=reported(n3=(9, 99))) == 2
    assert chosen(partition, fenced=[1, 2], reports=reported(n3=(9, 99))) is None


def test_the_eligible_come_after_those_in_sync():
    partition = partition_in([1, 2, 3], [1], NO_NODE, eligible=[2, 3])

    assert chosen(partition, reports=reported(n2=(9, 99))) == 1
    assert chosen(partition, fenced=[1], reports=reported(n3=(9, 99))) == 3


def test_a_broker_that_is_about_to_stop_is_not_chosen():
    image = image_with(partition_in([1, 2], [1, 2], NO_NODE))
    image.apply(BrokerShutdownWanted(node=1, broker_epoch=1))

    assert elections.choose(the_place(image).partition, electorate(image)) == 2


def test_a_node_whose_number_is_zero_can_lead():
    image = image_with(partition_in([0], [0], 0), 0, 1)

    left = list(elections.leave(image, [0], electorate(image).without_nodes([0])))
    assert states(left) == [(NO_NODE, (0,), (), 4, 5)]


# Brokers that go.


def after_leaving(partition, *gone, minimum=1, reports=None, fenced=()):
    image = image_with(partition, fenced=fenced)
    able = electorate(image, minimum=minimum, reports=reports).without_nodes(gone)
    return states(elections.leave(image, gone, able))


def test_another_in_sync_replica_leads_when_the_leader_goes():
    partition = partition_in([1, 2, 3], [1, 2, 3], 1)

    assert after_leaving(partition, 1) == [(2, (2, 3), (), 4, 5)]
    assert after_leaving(partition, 1, reports=reported(n3=(3, 5))) == [(3, (2, 3), (), 4, 5)]


def test_a_follower_that_goes_leaves_the_set_and_the_leader_epoch_stays():
    assert after_leaving(partition_in([1, 2, 3], [1, 2, 3], 1), 2) == [(1, (1, 3), (), 3, 5)]


def test_a_follower_that_was_not_in_sync_changes_nothing():
    assert after_leaving(partition_in([1, 2, 3], [1], 1), 2) == []
    assert after_leaving(partition_in([1, 2, 3], [1], 1, eligible=[2]), 2, minimum=2) == []


def test_the_last_in_sync_stays_so_and_nobody_leads():
    assert after_leaving(partition_in([1, 2, 3], [1], 1), 1) == [(NO_NODE, (1,), (), 4, 5)]


def test_of_several_that_go_at_once_the_leader_stays_in_sync():
    partition = partition_in([1, 2, 3], [2, 3], 3)

    assert after_leaving(partition, 1, 2, 3) == [(NO_NODE, (3,), (2,), 4, 5)]


def test_leadership_never_moves_to_one_who_goes_too():
    assert after_leaving(partition_in([1, 2, 3], [1, 2, 3], 1), 1, 2) == [(3, (3,), (), 4, 5)]


def test_who_leaves_below_the_minimum_stays_eligible():
    partition = partition_in([1, 2, 3], [1, 2], 1)

    assert after_leaving(partition, 2, minimum=2) == [(1, (1,), (2,), 3, 5)]
    assert after_leaving(partition, 1, minimum=2) == [(2, (2,), (1,), 4, 5)]
    assert after_leaving(partition_in([1, 2, 3], [1, 2, 3], 1), 2, minimum=2) == [(1, (1, 3), (), 3, 5)]


def test_an_eligible_replica_leads_when_the_last_in_sync_goes_and_they_change_places():
    partition = partition_in([1, 2, 3], [1], 1, eligible=[2])

    assert after_leaving(partition, 1, minimum=2) == [(2, (2,), (1,), 4, 5)]


def test_a_topic_may_have_a_minimum_of_its_own_but_not_above_its_replicas():
    own = partition_in([1, 2, 3], [1, 2], 1, config={"min.insync.replicas": "2"})
    assert after_leaving(own, 2, minimum=1) == [(1, (1,), (2,), 3, 5)]

    two = partition_in([1, 2], [1, 2], 1, config={"min.insync.replicas": "3"})
    assert after_leaving(two, 2) == [(1, (1,), (2,), 3, 5)]
    one = partition_in([1], [1], 1, config={"min.insync.replicas": "3"})
    assert after_leaving(one, 2) == []


def test_who_leaves_while_nobody_leads_stays_eligible_for_nothing_is_committed():
    both = after_leaving(partition_in([1, 2, 3], [1, 2], 1), 1, 2)
    assert both == [(NO_NODE, (1,), (2,), 4, 5)]

    unled = partition_in([1, 2, 3], [1, 2], NO_NODE)
    assert after_leaving(unled, 1) == [(NO_NODE, (2,), (1,), 3, 5)]


def test_nobody_stays_eligible_once_somebody_leads_who_commits_alone():
    image = image_with(partition_in([1, 2, 3], [1], NO_NODE, eligible=[2, 3]), fenced=[1, 3])

    assert states(elections.come(image, [2], electorate(image))) == [(2, (2,), (), 4, 5)]
    few = electorate(image, minimum=2)
    assert states(elections.come(image, [2], few)) == [(2, (2,), (1, 3), 4, 5)]


def test_two_of_three_must_be_in_sync_where_nobody_says_otherwise():
    three, two = partition_in([1, 2, 3], [1, 2], 1), partition_in([1, 2], [1, 2], 1)

    assert after_leaving(three, 2, minimum=BY_REPLICAS) == [(1, (1,), (2,), 3, 5)]
    assert after_leaving(two, 2, minimum=BY_REPLICAS) == [(1, (1,), (), 3, 5)]


# Unclean, because the topic says so.

UNCLEAN = {"unclean.leader.election.enable": "true"}


def test_somebody_leads_uncleanly_only_if_the_topic_allows_it_and_nobody_clean_is_there():
    reports = reported(n2=(3, 5), n3=(3, 6))
    strict, lax = (partition_in([1, 2, 3], [1], 1, config=c) for c in ({}, UNCLEAN))

    assert after_leaving(strict, 1, reports=reports) == [(NO_NODE, (1,), (), 4, 5)]
    assert after_leaving(lax, 1, reports=reports) == [(3, (3,), (), 4, 5)]
    assert after_leaving(lax, 1, reports=reports, fenced=[3]) == [(2, (2,), (), 4, 5)]
    assert after_leaving(lax, 1, fenced=[2, 3]) == [(NO_NODE, (1,), (), 4, 5)]
    clean = partition_in([1, 2, 3], [1, 2], 1, config=UNCLEAN)
    assert after_leaving(clean, 1, reports=reports) == [(2, (2,), (), 4, 5)]
    eligible = partition_in([1, 2, 3], [1], 1, eligible=[2], config=UNCLEAN)
    assert after_leaving(eligible, 1, reports=reports, minimum=2) == [(2, (2,), (1,), 4, 5)]


def test_a_replica_that_comes_leads_uncleanly_what_nobody_led_if_the_topic_allows_it():
    for config, after in (({}, []), (UNCLEAN, [(2, (2,), (), 4, 5)])):
        image = image_with(partition_in([1, 2], [1], NO_NODE, config=config), fenced=[1])

        assert states(elections.come(image, [2], electorate(image))) == after
        assert states(elect_all(image, electorate(image))) == after


def test_the_default_of_the_cluster_allows_unclean_elections_too():
    image = image_with(partition_in([1, 2], [1], NO_NODE), fenced=[1])
    lax = TopicConfig(unclean_leader_election_enable=True)
    able = Electorate.of(
        image, reported(), elections.min_in_sync(), lambda topic: topic_config(topic.config, lax)
    )

    assert states(elect_all(image, able)) == [(2, (2,), (), 4, 5)]


# By hand alone, because the topic says so.

MANUAL = {"failover.mode": "manual"}


def test_with_manual_failover_a_partition_waits_and_nobody_who_could_lead_is_forgotten():
    partition = partition_in([1, 2, 3], [1, 2, 3], 1, config=MANUAL)

    assert after_leaving(partition, 1) == [(NO_NODE, (2, 3), (1,), 4, 5)]
    assert after_leaving(partition, 2) == [(1, (1, 3), (), 3, 5)]
    both = partition_in([1, 2, 3], [1], 1, config=MANUAL | UNCLEAN)
    assert after_leaving(both, 1) == [(NO_NODE, (1,), (), 4, 5)]


def test_with_manual_failover_nobody_leads_by_coming_back():
    image = image_with(partition_in([1, 2], [2], NO_NODE, eligible=[1], config=MANUAL))

    assert states(elections.come(image, [1, 2], electorate(image))) == []
    assert states(elect_all(image, electorate(image))) == []
    assert restore_preferred(image, electorate(image), count_max=9) == []


@pytest.mark.parametrize("leader", [1, 2])
def test_with_manual_failover_an_operator_lets_any_clean_replica_lead(leader):
    image = image_with(partition_in([1, 2], [2], NO_NODE, eligible=[1], config=MANUAL))

    assert promoted(image, leader) == [(leader, (leader,), (), 4, 5)]


def test_with_manual_failover_kafkas_elections_are_an_operators_too():
    image = image_with(partition_in([1, 2], [2], NO_NODE, eligible=[1], config=MANUAL))

    preferred = elections.elect_preferred(the_place(image), electorate(image))
    assert states([preferred]) == [(1, (1,), (), 4, 5)]
    unclean = elections.elect_unclean(the_place(image), electorate(image))
    assert states([unclean]) == [(2, (2,), (), 4, 5)], "which is clean, as it can be"


def test_with_manual_failover_a_sole_replica_leads_when_it_is_back():
    image = image_with(partition_in([1], [1], NO_NODE, config=MANUAL))

    assert states(elections.come(image, [1], electorate(image))) == [(1, (1,), (), 4, 5)]


def test_with_manual_failover_leadership_does_not_return_to_the_first_replica_by_itself():
    image = image_with(partition_in([1, 2], [1, 2], 2, config=MANUAL))

    assert restore_preferred(image, electorate(image), count_max=10) == []


# Damage.


def settled(partition, *, news=(CLUSTER_ID,), fenced=(), minimum=1, **ends):
    image = image_with(partition, fenced=fenced)
    able = electorate(image, reports=reported(**ends), minimum=minimum)
    return states(elections.settle_damage(image, able, dict.fromkeys(news)))


DAMAGED, SOUND = (3, 9, True), (3, 5)


def test_a_damaged_replica_is_not_chosen_however_much_it_has():
    partition = partition_in([1, 2, 3], [1, 2], NO_NODE, eligible=[3])

    assert chosen(partition, reports=reported(n1=DAMAGED, n2=SOUND)) == 2
    assert chosen(partition, reports=reported(n1=DAMAGED, n2=DAMAGED)) == 3
    assert chosen(partition, reports=reported(n1=DAMAGED, n2=DAMAGED, n3=DAMAGED)) is None


def test_a_damaged_leader_loses_the_lead_to_one_that_is_in_sync_and_leaves_the_set():
    partition = partition_in([1, 2, 3], [1, 2, 3], 1)

    assert settled(partition, n1=DAMAGED, n3=SOUND) == [(3, (2, 3), (), 4, 5)]
    assert settled(partition, n1=DAMAGED, news=()) == [(2, (2, 3), (), 4, 5)]
    assert settled(partition, n1=SOUND) == []


def test_a_damaged_leader_is_followed_by_an_eligible_one_and_is_not_eligible_itself():
    partition = partition_in([1, 2, 3], [1], 1, eligible=[2])

    assert settled(partition, n1=DAMAGED, minimum=2) == [(2, (2,), (), 4, 5)]


def test_a_damaged_follower_leaves_the_set_and_is_not_eligible():
    partition = partition_in([1, 2, 3], [1, 2], 1)

    assert settled(partition, n2=DAMAGED, minimum=2) == [(1, (1,), (), 3, 5)]


def test_a_damaged_leader_whom_nobody_can_replace_steps_down_and_stays_the_last_in_sync():
    partition = partition_in([1, 2, 3], [1], 1)

    assert settled(partition, n1=DAMAGED) == [(NO_NODE, (1,), (), 4, 5)]
    away = partition_in([1, 2, 3], [1], 1, eligible=[2])
    assert settled(away, n1=DAMAGED, fenced=[2], minimum=2) == [(NO_NODE, (1,), (2,), 4, 5)]


def test_a_damaged_leader_that_an_operator_forced_keeps_the_lead_until_there_is_another():
    forced = partition_in([1, 2, 3], [1], 1)
    assert settled(forced, n1=DAMAGED, news=()) == []

    joined = partition_in([1, 2, 3], [1, 3], 1)
    assert settled(joined, n1=DAMAGED, news=()) == [(3, (3,), (), 4, 5)]


def test_a_sole_replica_leads_though_it_is_damaged():
    assert settled(partition_in([1], [1], 1), n1=DAMAGED) == []
    assert settled(partition_in([1], [1], NO_NODE), n1=DAMAGED) == [(1, (1,), (), 4, 5)]


def test_what_waited_for_a_damaged_replica_is_led_once_it_is_sound():
    waits = partition_in([1, 2, 3], [1], NO_NODE)

    assert settled(waits, n1=DAMAGED) == []
    assert settled(waits, n1=SOUND) == [(1, (1,), (), 4, 5)]


def test_a_damaged_leader_with_manual_failover_steps_down_and_the_partition_waits():
    partition = partition_in([1, 2, 3], [1, 2], 1, config=MANUAL)

    assert settled(partition, n1=DAMAGED) == [(NO_NODE, (2,), (), 4, 5)]


def test_what_is_allowed_uncleanly_is_not_allowed_to_the_damaged():
    lax = partition_in([1, 2, 3], [1], 1, config=UNCLEAN)

    assert after_leaving(lax, 1, reports=reported(n3=DAMAGED)) == [(2, (2,), (), 4, 5)]
    both = reported(n2=DAMAGED, n3=DAMAGED)
    assert after_leaving(lax, 1, reports=both) == [(NO_NODE, (1,), (), 4, 5)]


def test_damage_in_a_topic_that_is_deleted_changes_nothing():
    assert settled(partition_in([1, 2], [1, 2], 1), news=[99]) == []


def test_leadership_is_not_given_back_to_a_damaged_first_replica():
    image = image_with(partition_in([1, 2], [1, 2], 2))
    able = electorate(image, reports=reported(n1=DAMAGED))

    assert restore_preferred(image, able, count_max=10) == []
    with pytest.raises(PreferredLeaderNotAvailable, match="is damaged"):
        elections.elect_preferred(the_place(image), able)


def test_an_operator_may_force_a_damaged_replica_to_lead_if_nobody_else_is_there():
    image = image_with(partition_in([1, 2, 3], [1], NO_NODE), fenced=[3])
    able = electorate(image, reports=reported(n1=DAMAGED, n2=(1, 1)))
    assert states([elections.elect_unclean(the_place(image), able)]) == [(2, (2,), (), 4, 5)]

    reports = reported(n1=DAMAGED, n2=(1, 1, True))
    able = electorate(image, reports=reports)
    assert states([elections.elect_unclean(the_place(image), able)]) == [(1, (1,), (), 4, 5)]
    with pytest.raises(EligibleLeadersNotAvailable, match="1 is damaged in t-0"):
        promoted(image, 1, reports=reports)
    assert promoted(image, 1, reports=reports, force=True) == [(1, (1,), (), 4, 5)]
    assert promoted(image, None, reports=reports, force=True) == [(1, (1,), (), 4, 5)]


# Brokers that come.


def test_what_nobody_led_is_led_again_when_its_last_in_sync_comes():
    image = image_with(partition_in([1, 2, 3], [2], NO_NODE), fenced=[2])
    able = electorate(image)

    assert states(elections.come(image, [1], able)) == []
    assert states(elections.come(image, [2], able.with_nodes([2]))) == [(2, (2,), (), 4, 5)]


def test_an_eligible_replica_that_comes_leads_what_nobody_led():
    image = image_with(partition_in([1, 2, 3], [2], NO_NODE, eligible=[3]), fenced=[2, 3])

    able = electorate(image, minimum=2).with_nodes([3])

    assert states(elections.come(image, [3], able)) == [(3, (3,), (2,), 4, 5)]


def test_what_has_a_leader_keeps_it_when_others_come():
    image = image_with(partition_in([1, 2, 3], [2], 2), fenced=[1])

    assert states(elections.come(image, [1], electorate(image).with_nodes([1]))) == []


def test_whatever_can_be_led_is_found():
    image = image_with(partition_in([1, 2, 3], [2], NO_NODE))

    assert states(elect_all(image, electorate(image))) == [(2, (2,), (), 4, 5)]


# First replicas.


def test_leadership_returns_to_the_first_replica_once_it_is_in_sync():
    image = image_with(partition_in([1, 2, 3], [1, 2], 2))

    restored = restore_preferred(image, electorate(image), count_max=10)

    assert states(restored) == [(1, (1, 2), (), 4, 5)]
    assert restore_preferred(image, electorate(image), count_max=0) == []


@pytest.mark.parametrize(
    ("partition", "fenced"),
    [
        (partition_in([1, 2], [1, 2], 1), []),
        (partition_in([1, 2], [2], 2), []),
        (partition_in([1, 2], [1, 2], 2), [1]),
        (partition_in([1, 2], [2], NO_NODE), [2]),
    ],
)
def test_leadership_stays_where_the_first_replica_cannot_lead(partition, fenced):
    image = image_with(partition, fenced=fenced)

    assert restore_preferred(image, electorate(image), count_max=10) == []


# Full disks.


def full(*nodes, **known):
    reports = reported(**known)
    for node in nodes:
        reports.take(node, 1, (), 0.0, disk_full=True)
    return reports


def test_a_replica_on_a_full_disk_is_chosen_only_if_nobody_else_in_sync_is_there():
    partition = partition_in([1, 2, 3], [1, 2], NO_NODE, eligible=[3])

    assert chosen(partition, reports=full(1)) == 2
    assert chosen(partition, reports=full(2)) == 1
    assert chosen(partition, reports=full(1, 2)) == 1
    assert chosen(partition, reports=full(1), fenced=[2]) == 1


def test_leadership_is_not_given_back_to_a_first_replica_on_a_full_disk():
    image = image_with(partition_in([1, 2], [1, 2], 2))

    able = electorate(image, reports=full(1))

    assert restore_preferred(image, able, count_max=10) == []
    with pytest.raises(PreferredLeaderNotAvailable, match="full"):
        elections.elect_preferred(the_place(image), able)


@pytest.mark.parametrize(("lacks_files", "said"), [(False, "free some space"), (True, "open no more files")])
def test_an_operator_is_told_what_the_node_that_shall_lead_is_short_of(lacks_files, said):
    image = image_with(partition_in([1, 2], [1, 2], 2))
    reports = ReplicaReports()
    reports.take(1, 1, (), 0.0, disk_full=True, lacks_files=lacks_files)

    with pytest.raises(EligibleLeadersNotAvailable, match=said):
        elections.promote(the_place(image), 1, electorate(image, reports=reports), force=False)


def relieved(partition, reports, config=None, count_max=10, fenced=()):
    image = image_with(partition, fenced=fenced)
    able = electorate(image, reports=reports)
    if config is not None:
        able = replace(able, config_of=lambda topic: topic_config(config, TopicConfig()))
    return states(elections.relieve_full(image, able, count_max=count_max))


def test_an_in_sync_replica_with_room_takes_over_from_a_leader_on_a_full_disk():
    partition = partition_in([1, 2, 3], [1, 2, 3], 1)

    assert relieved(partition, full(1)) == [(2, (2, 3), (), 4, 5)]
    assert relieved(partition, full(1), fenced=[2]) == [(3, (2, 3), (), 4, 5)]
    assert relieved(partition, full(1), count_max=0) == []


def test_a_full_leader_stays_in_sync_where_too_few_others_have_room():
    partition = partition_in([1, 2, 3], [1, 2, 3], 1)

    assert relieved(partition, full(1, 2)) == [(3, (1, 2, 3), (), 4, 5)]


def test_a_leader_on_a_full_disk_keeps_the_lead_where_nobody_in_sync_has_room():
    assert relieved(partition_in([1, 2, 3], [1, 2, 3], 1), full(1, 2, 3)) == []
    assert relieved(partition_in([1, 2, 3], [1], 1, eligible=[2]), full(1)) == []
    assert relieved(partition_in([1], [1], 1), full(1)) == []


def test_with_manual_failover_a_full_disk_moves_no_leadership():
    partition = partition_in([1, 2], [1, 2], 1)

    assert relieved(partition, full(1), config={"failover.mode": "manual"}) == []


def test_an_operator_promotes_a_replica_on_a_full_disk_only_by_force():
    image = image_with(partition_in([1, 2], [1, 2], 2))
    able = electorate(image, reports=full(1))

    with pytest.raises(EligibleLeadersNotAvailable, match="full"):
        elections.promote(the_place(image), 1, able, force=False)
    assert states([elections.promote(the_place(image), 1, able, force=True)])[0][0] == 1


# What operators ask for.


def test_an_operator_may_ask_for_the_first_replica():
    image = image_with(partition_in([1, 2], [1, 2], 2))
    record = elections.elect_preferred(the_place(image), electorate(image))
    assert states([record]) == [(1, (1, 2), (), 4, 5)]

    image = image_with(partition_in([1, 2], [1, 2], 1))
    with pytest.raises(ElectionNotNeeded):
        elections.elect_preferred(the_place(image), electorate(image))
    image = image_with(partition_in([1, 2], [2], 2))
    with pytest.raises(PreferredLeaderNotAvailable, match="not in sync"):
        elections.elect_preferred(the_place(image), electorate(image))
    image = image_with(partition_in([1, 2], [1, 2], 2), fenced=[1])
    with pytest.raises(PreferredLeaderNotAvailable, match="not there"):
        elections.elect_preferred(the_place(image), electorate(image))


def test_an_unclean_election_takes_the_longest_log_and_makes_it_the_truth():
    lost = [ReplicaKey(1, "gone")]
    image = image_with(partition_in([1, 2, 3], [], NO_NODE, lost=lost), fenced=[1])
    reports = reported(n2=(3, 5), n3=(3, 6))

    record = elections.elect_unclean(the_place(image), electorate(image, reports=reports))

    assert states([record]) == [(3, (3,), (), 4, 5)]
    assert record.state.lost == ()


def test_an_unclean_election_is_clean_if_it_can_be_and_nothing_if_somebody_leads():
    image = image_with(partition_in([1, 2, 3], [2], NO_NODE))
    reports = reported(n3=(9, 99))
    record = elections.elect_unclean(the_place(image), electorate(image, reports=reports))
    assert states([record]) == [(2, (2,), (), 4, 5)]

    image = image_with(partition_in([1, 2, 3], [2], 2))
    with pytest.raises(ElectionNotNeeded):
        elections.elect_unclean(the_place(image), electorate(image))
    image = image_with(partition_in([1], [1], NO_NODE), fenced=[1])
    with pytest.raises(EligibleLeadersNotAvailable, match=r"\[1\]"):
        elections.elect_unclean(the_place(image), electorate(image))


def promoted(image, target, *, force=False, reports=None):
    able = electorate(image, reports=reports)
    return states([elections.promote(the_place(image), target, able, force=force)])


def test_a_replica_in_sync_is_promoted_without_loss():
    image = image_with(partition_in([1, 2, 3], [1, 2], 1))

    assert promoted(image, 2) == [(2, (1, 2), (), 4, 5)]
    assert promoted(image, None, reports=reported(n2=(3, 9))) == [(2, (1, 2), (), 4, 5)]


def test_a_replica_out_of_sync_is_promoted_only_by_force():
    image = image_with(partition_in([1, 2, 3], [1, 2], 1))

    with pytest.raises(EligibleLeadersNotAvailable, match="--force"):
        promoted(image, 3)
    assert promoted(image, 3, force=True) == [(3, (3,), (), 4, 5)]


def test_who_is_named_becomes_the_first_replica_and_so_keeps_the_lead():
    def order(target, leader=1, **moving):
        image = image_with(partition_in([1, 2, 3], [1, 2, 3], leader, **moving))
        record = elections.promote(the_place(image), target, electorate(image), force=False)
        return (record.state.leader, record.state.replicas)

    assert order(3) == (3, (3, 1, 2))
    assert order(None, leader=NO_NODE) == (1, (1, 2, 3))
    assert order(2, leader=2) == (2, (2, 1, 3))  # it leads, as long as the first is not back


def test_while_replicas_move_their_order_is_the_plans():
    image = image_with(partition_in([1, 2, 3], [1, 2, 3], 1))
    moving = the_place(image).partition.edited(removing=(3,), original=(1, 3))

    assert elections.preferring(moving, 2).replicas == (1, 2, 3)


def test_who_had_to_discard_bytes_is_not_promoted_without_force_while_others_may_have_them():
    image = image_with(partition_in([1, 2], [1, 2], NO_NODE), fenced=[2])
    reports = ReplicaReports()
    reports.take(1, 1, [ReplicaReport(CLUSTER_ID, 3, 9, 9, cut=True)], 0.0)

    with pytest.raises(EligibleLeadersNotAvailable, match="discard bytes"):
        promoted(image, 1, reports=reports)
    assert promoted(image, 1, reports=reports, force=True) == [(1, (1,), (), 4, 5)]


def test_who_cannot_be_promoted_is_refused_with_the_reason():
    image = image_with(partition_in([1, 2], [1, 2], 1), fenced=[2])

    with pytest.raises(ElectionNotNeeded):
        promoted(image, 1)
    with pytest.raises(InvalidReplicaAssignment, match="holds no replica"):
        promoted(image, 3, force=True)
    with pytest.raises(EligibleLeadersNotAvailable, match="not there"):
        promoted(image, 2, force=True)
    image = image_with(partition_in([1], [1], NO_NODE), fenced=[1])
    with pytest.raises(EligibleLeadersNotAvailable, match="no replica"):
        promoted(image, None)


# Replicas whose start discarded bytes.


def test_a_replica_that_discarded_bytes_leads_only_when_all_who_could_are_so_and_there():
    known = partition_in([1, 2, 3, 4], [3], NO_NODE, eligible=[1, 2])
    image = image_after(*cluster(1, 2, 3, 4), known)
    partition = the_place(image).partition

    def chosen(reports, nodes):
        told = ReplicaReports()
        for node, end, is_cut in reports:
            watermark = end if node == 4 else 0
            report = ReplicaReport(partition.cluster_id, 1, end, watermark, False, is_cut)
            told.take(node, image.brokers[node].broker_epoch, [report], now=1.0)
        voters = electorate(image, minimum=2)
        voters = replace(voters, active=frozenset(nodes), reports=told)
        return elections.choose(partition, voters)

    assert chosen([(3, 9, False)], [3]) == 3
    assert chosen([(3, 9, True)], [3]) is None, "1 and 2 may have what it lacks"
    assert chosen([(3, 9, True), (1, 5, False)], [1, 3]) == 1
    assert chosen([(3, 9, True), (1, 12, True)], [1, 3]) is None
    all_cut = [(3, 9, True), (1, 12, True), (2, 7, True)]
    assert chosen(all_cut, [1, 2, 3]) == 1
    assert chosen([*all_cut, (4, 12, False)], [1, 2, 3]) == 1
    assert chosen([*all_cut, (4, 13, False)], [1, 2, 3]) is None, "13 was committed"


@pytest.mark.parametrize("eligible", [[2, 3], []])
def test_the_first_replica_of_what_nobody_leads_is_given_nothing_back(eligible):
    """Leadership is given back by another leader; what nobody leads is elected, by all rules."""
    image = image_with(partition_in([1, 2, 3], [1], NO_NODE, eligible=eligible), fenced=[2, 3])
    reports = ReplicaReports()
    reports.take(1, 1, [ReplicaReport(CLUSTER_ID, 1, 9, 0, False, True)], now=0.0)
    able = electorate(image, reports=reports, minimum=2)

    assert elections.given_back(the_place(image), able) is None


def test_an_operator_who_asks_for_the_first_replica_loses_nothing_that_it_discarded():
    image = image_with(partition_in([1, 2, 3], [1], NO_NODE, eligible=[2, 3]), fenced=[2, 3])
    reports = ReplicaReports()
    reports.take(1, 1, [ReplicaReport(CLUSTER_ID, 1, 9, 0, False, True)], now=0.0)
    able = electorate(image, reports=reports, minimum=2)
    assert elections.choose(the_place(image).partition, able) is None

    with pytest.raises(PreferredLeaderNotAvailable, match="discard"):
        elections.elect_preferred(the_place(image), able)


def test_the_first_replica_that_discarded_bytes_leads_if_it_is_the_best_of_all_who_did():
    image = image_with(partition_in([1, 2], [1], NO_NODE, eligible=[2]))
    reports = ReplicaReports()
    for node, end in ((1, 9), (2, 5)):
        reports.take(node, node, [ReplicaReport(CLUSTER_ID, 1, end, 0, False, True)], now=0.0)
    able = electorate(image, reports=reports, minimum=2)

    record = elections.elect_preferred(the_place(image), able)

    assert record.state.leader == 1
