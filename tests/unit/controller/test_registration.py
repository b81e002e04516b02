from dataclasses import replace
from uuid import UUID

import pytest

from tests.unit.controller.histories import (
    cluster,
    elect_all,
    electorate,
    image_after,
    partition_in,
    states,
    the_place,
)
from tidelog.controller import elections, membership
from tidelog.controller.records import (
    BrokerFenced,
    BrokerRegistered,
    BrokerUnfenced,
    BrokerUnregistered,
    NodeRegistered,
    PartitionChanged,
    TopicCreated,
)
from tidelog.controller.registration import Registration, register
from tidelog.errors import (
    DuplicateBrokerRegistration,
    InconsistentClusterId,
    InvalidRequest,
    StaleBrokerEpoch,
)
from tidelog.model import NO_NODE, Endpoint
from tidelog.raft.voters import ReplicaKey


def registration(node, *, directory=None, incarnation="new", **more):
    return Registration(
        cluster_id=more.pop("cluster_id", "c"),
        node=node,
        incarnation=incarnation,
        directory=directory or f"d{node}",
        kafka=Endpoint(host="k", port=1),
        peer=Endpoint(host="p", port=2),
        **more,
    )


def decide(image, wanted, *, end=50, minimum=1):
    return register(image, wanted, electorate(image, minimum=minimum), cluster_id="c", end=end)


def apply_all(image, records):
    for record in records:
        image.apply(record)
    return records


def fenced(*nodes):
    return [BrokerFenced(node=node, broker_epoch=epoch) for node, epoch in nodes]


# New lives.


def test_a_new_broker_is_registered_under_the_offset_of_its_registration():
    image = image_after()

    (record,) = apply_all(image, decide(image, registration(4, rack="r"), end=50))

    assert isinstance(record, BrokerRegistered)
    assert (record.node, record.broker_epoch, record.rack) == (4, 50, "r")
    assert image.brokers[4].fenced


def test_broker_epochs_only_rise():
    image = image_after(*cluster(1, 2), BrokerUnregistered(node=2, broker_epoch=2))

    (record,) = decide(image, registration(3), end=0)

    assert isinstance(record, BrokerRegistered)
    assert record.broker_epoch == 3


def test_a_new_life_ends_the_lead_of_the_one_before():
    image = image_after(*cluster(1, 2, 3), partition_in([1, 2, 3], [1, 2, 3], 1))

    records = apply_all(image, decide(image, registration(1)))

    assert image.brokers[1].fenced
    assert states(records) == [(2, (2, 3), (), 4, 5)]


def test_a_sole_replica_gets_a_new_epoch_with_every_life():
    image = image_after(*cluster(1), partition_in([1], [1], 1))

    ended = apply_all(image, decide(image, registration(1)))
    begun = apply_all(image, membership.unfence(image, [1], electorate(image)))

    assert states(ended) == [(NO_NODE, (1,), (), 4, 5)]
    assert states(begun) == [(1, (1,), (), 5, 6)]


def test_a_node_that_was_alone_joins_with_what_it_has():
    image = image_after(
        NodeRegistered(node=1, incarnation="old"), TopicCreated(name="t", id=str(UUID(int=5)), replicas=[[1]])
    )

    ended = apply_all(image, decide(image, registration(1)))
    begun = apply_all(image, membership.unfence(image, [1], electorate(image)))

    assert states(ended) == [(NO_NODE, (1,), (), 1, 1)]
    assert states(begun) == [(1, (1,), (), 2, 2)]


def test_a_registration_that_is_asked_for_again_changes_nothing():
    image = image_after(*cluster(1))
    apply_all(image, decide(image, registration(1)))

    assert decide(image, registration(1)) == []


def test_a_restart_within_the_lease_is_no_second_node():
    image = image_after(*cluster(1))

    assert decide(image, registration(1)) != []


UNSYNCED = {"durability": "replicated"}


def test_an_unclean_restart_leaves_the_eligible_where_nothing_is_synced():
    def restarted(config, *, clean=False):
        partition = partition_in([1, 2, 3], [1], 1, eligible=[2], config=config)
        image = image_after(*cluster(1, 2, 3), partition, *fenced((2, 2)))
        return states(decide(image, registration(2, clean=clean), minimum=2))

    assert restarted(UNSYNCED) == [(1, (1,), (), 3, 5)]
    assert restarted(UNSYNCED, clean=True) == []
    assert restarted({}) == [], "what it told of was on its disk"


def test_an_unclean_restart_stays_the_last_in_sync():
    alone = image_after(*cluster(1), partition_in([1], [1], 1))

    assert states(decide(alone, registration(1), minimum=2)) == [(NO_NODE, (1,), (), 4, 5)]


def test_an_unclean_restart_below_the_minimum_becomes_eligible_only_where_all_is_synced():
    def restarted(config, *, clean=False):
        partition = partition_in([1, 2, 3], [1, 2], 1, config=config)
        image = image_after(*cluster(1, 2, 3), partition)
        return states(decide(image, registration(2, clean=clean), minimum=2))

    assert restarted(UNSYNCED) == [(1, (1,), (), 3, 5)]
    assert restarted(UNSYNCED, clean=True) == [(1, (1,), (2,), 3, 5)]
    assert restarted({}) == [(1, (1,), (2,), 3, 5)]


def test_where_nothing_is_synced_an_unclean_restart_leaves_the_last_place_to_the_eligible():
    def restarted(*, clean=False, **config):
        partition = partition_in([1, 2, 3], [1], 1, eligible=[2, 3], config=config)
        image = image_after(*cluster(1, 2, 3), partition, *fenced((2, 2), (3, 3)))
        return states(decide(image, registration(1, clean=clean), minimum=2))

    assert restarted(durability="replicated") == [(NO_NODE, (2,), (3,), 4, 5)]
    assert restarted(durability="replicated", clean=True) == [(NO_NODE, (1,), (2, 3), 4, 5)]
    assert restarted(durability="fsync") == [(NO_NODE, (1,), (2, 3), 4, 5)]
    alone = partition_in([1, 2], [1], 1, config={"durability": "replicated"})
    image = image_after(*cluster(1, 2), alone)
    assert states(decide(image, registration(1), minimum=2)) == [(NO_NODE, (1,), (), 4, 5)]


def test_a_new_life_of_a_leader_waits_for_an_operator_where_failover_is_manual():
    partition = partition_in([1, 2, 3], [1, 2], 1, config={"failover.mode": "manual"})
    image = image_after(*cluster(1, 2, 3), partition)

    clean = registration(1, clean=True)
    assert states(decide(image, clean)) == [(NO_NODE, (2,), (1,), 4, 5)]


# Refusals.


def test_two_nodes_with_one_id_are_told_what_to_do():
    image = image_after(*cluster(1))

    with pytest.raises(DuplicateBrokerRegistration, match=r"p1:9192 .*d1.*--node-id.*stop that"):
        decide(image, registration(1, directory="other"))


def test_a_node_of_another_cluster_is_refused():
    with pytest.raises(InconsistentClusterId, match="the cluster x, this is c"):
        decide(image_after(), registration(1, cluster_id="x"))


def test_a_registration_that_was_held_up_is_refused_and_who_lives_asks_again():
    image = image_after(*cluster(1))

    with pytest.raises(StaleBrokerEpoch) as caught:
        decide(image, registration(1, known_epoch=0))

    assert decide(image, registration(1, known_epoch=caught.value.current)) != []


# Disks that are gone.


def wiped(image, *, minimum=1, directory="empty"):
    image.apply(BrokerFenced(node=1, broker_epoch=1))
    wanted = registration(1, directory=directory, clean=True)
    return apply_all(image, decide(image, wanted, minimum=minimum))


def test_a_wiped_disk_leaves_every_in_sync_set():
    image = image_after(*cluster(1, 2, 3), partition_in([1, 2, 3], [1, 2], 1))

    assert states(wiped(image)) == [(2, (2,), (), 4, 5)]
    assert the_place(image).partition.lost == ()


def test_a_wiped_disk_is_not_eligible_either():
    image = image_after(*cluster(1, 2, 3), partition_in([1, 2, 3], [2], 2, eligible=[1]))

    assert states(wiped(image, minimum=2)) == [(2, (2,), (), 3, 5)]


def test_the_last_in_sync_disk_is_remembered_and_the_partition_waits_for_an_operator():
    image = image_after(*cluster(1, 2), partition_in([1, 2], [1], 1))

    records = wiped(image)
    assert states(records) == [(NO_NODE, (), (), 4, 5)]
    assert the_place(image).partition.lost == (ReplicaKey(1, "d1"),)

    image.apply(BrokerUnfenced(node=1, broker_epoch=image.brokers[1].broker_epoch))
    assert states(elect_all(image, electorate(image))) == []
    apply_all(image, decide(image, registration(1, directory="empty", incarnation="again")))
    assert the_place(image).partition.lost == (ReplicaKey(1, "d1"),)

    record = elections.elect_unclean(the_place(image), electorate(image))
    assert states([record]) == [(2, (2,), (), 5, 6)]
    assert record.state.lost == ()


def test_the_remembered_disk_may_come_back_and_lead_with_nothing_lost():
    image = image_after(*cluster(1, 2), partition_in([1, 2], [1], 1))
    wiped(image)

    back = apply_all(image, decide(image, registration(1, directory="d1", incarnation="back")))
    begun = apply_all(image, membership.unfence(image, [1], electorate(image)))

    assert states(back) == [(NO_NODE, (1,), (), 4, 6)]
    assert states(begun) == [(1, (1,), (), 5, 7)]
    assert the_place(image).partition.lost == ()


def test_a_second_wiped_disk_does_not_stand_in_for_the_first():
    image = image_after(*cluster(1, 2), partition_in([1, 2], [1], 1))
    wiped(image)

    apply_all(image, decide(image, registration(1, directory="empty2", incarnation="again")))

    assert the_place(image).partition.lost == (ReplicaKey(1, "d1"),)


def test_who_leads_instead_of_a_wiped_disk_and_commits_alone_needs_nobody_eligible():
    image = image_after(*cluster(1, 2, 3), partition_in([1, 2, 3], [1], NO_NODE, eligible=[2, 3]))

    assert states(wiped(image, minimum=1)) == [(2, (2,), (), 4, 5)]


def test_an_eligible_replica_leads_instead_of_the_lost_disk():
    image = image_after(*cluster(1, 2, 3), partition_in([1, 2, 3], [1], 1, eligible=[3]))
    assert states(wiped(image, minimum=2)) == [(3, (3,), (), 4, 5)]
    assert the_place(image).partition.lost == ()

    image = image_after(*cluster(1, 2, 3), partition_in([1, 2, 3], [1], 1, eligible=[3]), *fenced((3, 3)))
    assert states(wiped(image, minimum=2)) == [(NO_NODE, (), (3,), 4, 5)]
    records = membership.unfence(image, [3], electorate(image, minimum=2))
    assert states(records) == [(3, (3,), (), 5, 6)]
    changed = [record for record in records if isinstance(record, PartitionChanged)]
    assert changed[0].state.lost == ()


@pytest.mark.parametrize(
    "changes",
    [
        {"node": -1},
        {"node": 2**31},
        {"kafka": Endpoint(host="x" * 300, port=1)},
        {"peer": Endpoint(host="here", port=70_000)},
        {"http": Endpoint(host="two\nlines", port=1)},
        {"rack": "x" * 300},
        {"incarnation": "x" * 300},
        {"directory": "\0"},
        {"listeners": {str(number): Endpoint(host="here", port=1) for number in range(30)}},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_what_no_process_can_say_of_itself_is_refused(changes):
    image = image_after(*cluster(1, 2))
    said = registration(7)

    assert decide(image, said)
    with pytest.raises(InvalidRequest):
        decide(image, replace(said, **changes))
