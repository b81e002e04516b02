from dataclasses import replace
from uuid import UUID

import pytest

from tests.unit.controller.histories import (
    TOPIC_ID,
    cluster,
    electorate,
    image_after,
    partition_in,
    registered,
    reported,
    states,
)
from tidelog.controller.in_sync import WantedInSync, change_in_sync, change_many
from tidelog.controller.records import BrokerFenced, BrokerShutdownWanted, BrokerUnfenced
from tidelog.errors import (
    FencedLeaderEpoch,
    IneligibleReplica,
    InvalidUpdateVersion,
    NotLeader,
    StaleBrokerEpoch,
    UnknownTopicId,
    UnknownTopicOrPartition,
)

WANTED = WantedInSync(
    topic_id=TOPIC_ID, partition=0, leader=1, broker_epoch=1, epoch=3, partition_epoch=4, in_sync={1: 1, 2: 2}
)


WHOLE = reported(n1=(3, 5), n2=(3, 5), n3=(3, 5))


def decide(partition, wanted, *more, minimum=1, reports=WHOLE):
    image = image_after(*cluster(1, 2, 3), partition, *more)
    able = electorate(image, minimum=minimum, reports=reports)
    return states([change_in_sync(image, wanted, able)])


def test_a_leader_may_take_in_who_is_there():
    assert decide(partition_in([1, 2, 3], [1], 1), WANTED) == [(1, (1, 2), (), 3, 5)]


def test_who_leaves_below_the_minimum_is_eligible_until_enough_are_in_sync_again():
    alone = replace(WANTED, in_sync={1: 1})
    partition = partition_in([1, 2, 3], [1, 2], 1)
    assert decide(partition, alone, minimum=2) == [(1, (1,), (2,), 3, 5)]

    partition = partition_in([1, 2, 3], [1], 1, eligible=[2, 3])
    assert decide(partition, WANTED, minimum=3) == [(1, (1, 2), (3,), 3, 5)]
    assert decide(partition, WANTED, minimum=2) == [(1, (1, 2), (), 3, 5)]


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"topic_id": UUID(int=99)}, UnknownTopicId),
        ({"partition": 1}, UnknownTopicOrPartition),
        ({"broker_epoch": 0}, StaleBrokerEpoch),
        ({"leader": 9}, StaleBrokerEpoch),
        ({"leader": 2, "broker_epoch": 2}, NotLeader),
        ({"epoch": 2}, FencedLeaderEpoch),
        ({"epoch": 4}, NotLeader),
        ({"partition_epoch": 3}, InvalidUpdateVersion),
        ({"in_sync": {2: 2}}, IneligibleReplica),
        ({"in_sync": {1: 1, 2: 1}}, IneligibleReplica),
        ({"in_sync": {1: 1, 4: 4}}, IneligibleReplica),
    ],
)
def test_what_was_decided_on_something_else_is_refused(changes, error):
    with pytest.raises(error):
        decide(partition_in([1, 2, 3], [1], 1), replace(WANTED, **changes))


@pytest.mark.parametrize(
    "fate",
    [
        [BrokerFenced(node=2, broker_epoch=2)],
        [BrokerShutdownWanted(node=2, broker_epoch=2)],
        [registered(2, epoch=9), BrokerUnfenced(node=2, broker_epoch=9)],
    ],
)
def test_who_is_away_or_leaving_or_in_another_life_cannot_join(fate):
    with pytest.raises(IneligibleReplica):
        decide(partition_in([1, 2, 3], [1], 1), WANTED, *fate)


def test_of_many_proposals_each_has_its_own_fate():
    image = image_after(*cluster(1, 2, 3), partition_in([1, 2, 3], [1], 1))
    missing = replace(WANTED, partition=1)

    changed, refused = change_many(image, [missing, WANTED], electorate(image, reports=WHOLE))

    assert states(changed) == [(1, (1, 2), (), 3, 5)]
    assert list(refused) == [(TOPIC_ID, 1)]
    assert isinstance(refused[TOPIC_ID, 1], UnknownTopicOrPartition)


def test_of_two_proposals_for_one_partition_the_first_counts():
    image = image_after(*cluster(1, 2, 3), partition_in([1, 2, 3], [1], 1))
    other = replace(WANTED, in_sync={1: 1, 3: 3})

    changed, refused = change_many(image, [WANTED, other], electorate(image, reports=WHOLE))

    assert states(changed) == [(1, (1, 2), (), 3, 5)]
    assert refused == {}


def test_who_is_damaged_cannot_join_but_does_not_keep_others_from_joining():
    reports = reported(n2=(3, 5, True), n3=(3, 5))

    with pytest.raises(IneligibleReplica, match="damaged"):
        decide(partition_in([1, 2, 3], [1], 1), WANTED, reports=reports)
    three = replace(WANTED, in_sync={1: 1, 2: 2, 3: 3})
    assert decide(partition_in([1, 2, 3], [1, 2], 1), three, reports=reports) == [(1, (1, 2, 3), (), 3, 5)]


def test_who_has_not_told_the_controller_of_its_replica_cannot_join():
    with pytest.raises(IneligibleReplica, match="not told"):
        decide(partition_in([1, 2, 3], [1], 1), WANTED, reports=reported(n3=(3, 5)))


def test_what_an_earlier_life_told_the_controller_lets_nobody_join():
    reports = reported(n2=(3, 5))
    later = [registered(2, epoch=9), BrokerUnfenced(node=2, broker_epoch=9)]

    with pytest.raises(IneligibleReplica, match="not told"):
        decide(
            partition_in([1, 2, 3], [1], 1), replace(WANTED, in_sync={1: 1, 2: 9}), *later, reports=reports
        )


def test_who_is_in_sync_stays_though_the_controller_has_not_heard_of_its_replica():
    three = replace(WANTED, in_sync={1: 1, 2: 2, 3: 3})

    assert decide(partition_in([1, 2, 3], [1, 2], 1), three, reports=reported(n3=(3, 5))) == [
        (1, (1, 2, 3), (), 3, 5)
    ]
