from unittest.mock import patch
from uuid import UUID

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.controller.histories import (
    TOPIC_ID,
    cluster,
    histories,
    image_after,
    partition_in,
    registered,
    the_place,
    voters,
)
from tidelog.controller.difference import Closed, Difference, Differences, Role
from tidelog.controller.image import ClusterImage
from tidelog.controller.records import (
    BrokerFenced,
    NodeConfigChanged,
    NodeRegistered,
    PartitionChanged,
    PartitionsAdded,
    TopicConfigChanged,
    TopicCreated,
    TopicDeleted,
    VotersChanged,
)
from tidelog.controller.snapshot import decode_snapshot, encode_snapshot
from tidelog.model import NO_NODE, TopicPartition

OTHER_ID = UUID(int=6)


class Follower:
    """A broker that follows the log, batch by batch."""

    def __init__(self, node, *records):
        self.image = image_after(*records)
        self.differences = Differences(node)
        self.differences.whole(self.image)

    def apply(self, *records):
        for record in records:
            self.image.apply(record)
        return self.differences.after(self.image, records)

    def change(self, **changes):
        after = the_place(self.image).partition.changed(**changes)
        return self.apply(PartitionChanged(topic=str(TOPIC_ID), partition=0, state=after.state))


def roles(replicas):
    return [(str(r.name), r.role, r.partition.leader, r.partition.epoch) for r in replicas]


def test_new_partitions_are_opened_in_the_role_that_their_broker_has():
    created = TopicCreated(name="t", id=str(TOPIC_ID), replicas=[[1, 2], [2, 1], [2]])

    difference = Follower(1).apply(created)

    assert roles(difference.opened) == [("t-0", Role.LEAD, 1, 0), ("t-1", Role.FOLLOW, 2, 0)]
    assert difference == Difference(opened=difference.opened)
    added = PartitionsAdded(topic="t", replicas=[[1]])
    follower = Follower(1, created)
    assert roles(follower.apply(added).opened) == [("t-3", Role.LEAD, 1, 0)]


def test_another_leader_is_told_apart_from_another_in_sync_set():
    follower = Follower(1, partition_in([1, 2], [1, 2], 2))

    led = follower.change(leader=1)
    changed = follower.change(in_sync=frozenset({1}))
    waiting = follower.change(leader=NO_NODE)

    assert roles(led.led) == [("t-0", Role.LEAD, 1, 4)]
    assert (led.opened, led.changed) == ([], [])
    assert [r.partition.in_sync for r in changed.changed] == [{1}]
    assert (changed.opened, changed.led) == ([], [])
    assert roles(waiting.led) == [("t-0", Role.WAIT, NO_NODE, 5)]


def test_a_node_that_starts_again_alone_opens_its_epochs():
    follower = Follower(1, TopicCreated(name="t", id=str(TOPIC_ID), replicas=[[1], [2, 1]]))

    difference = follower.apply(NodeRegistered(node=1, incarnation="b"))

    assert roles(difference.led) == [("t-0", Role.LEAD, 1, 1)]
    assert difference.brokers == [1]


def test_a_replica_that_moves_away_is_closed_and_one_that_comes_is_opened():
    follower = Follower(1, partition_in([1, 2], [1, 2], 2))

    away = follower.change(replicas=(2, 3))
    back = follower.change(replicas=(2, 1))

    name = TopicPartition("t", 0)
    assert away.closed == [Closed(name=name, topic_id=TOPIC_ID, is_deleted=False)]
    assert roles(back.opened) == [("t-0", Role.FOLLOW, 2, 3)]


def test_a_topic_made_again_under_its_name_is_another_one():
    follower = Follower(1, partition_in([1], [1], 1))

    difference = follower.apply(
        TopicDeleted(name="t"), TopicCreated(name="t", id=str(OTHER_ID), replicas=[[1]])
    )

    name = TopicPartition("t", 0)
    assert difference.closed == [Closed(name=name, topic_id=TOPIC_ID, is_deleted=True)]
    assert [(r.name, r.topic_id) for r in difference.opened] == [(name, OTHER_ID)]
    gone = follower.apply(TopicDeleted(name="t"))
    assert [closed.topic_id for closed in gone.closed] == [OTHER_ID]


def test_what_came_and_went_at_once_is_not_opened():
    difference = Follower(1).apply(
        partition_in([1], [1], 1), PartitionsAdded(topic="t", replicas=[[1]]), TopicDeleted(name="t")
    )

    assert not difference


def test_settings_brokers_and_voters_that_change_are_named():
    follower = Follower(1, *cluster(1, 2), partition_in([2], [2], 2))

    assert follower.apply(TopicConfigChanged(topic="t", config={})).topics_configured == ["t"]
    assert follower.apply(NodeConfigChanged(node=None, config={})).node_configured
    assert follower.apply(NodeConfigChanged(node=1, config={})).node_configured
    assert not follower.apply(NodeConfigChanged(node=2, config={}))
    fates = (BrokerFenced(node=2, broker_epoch=2), registered(2, epoch=5), registered(3, epoch=6))
    assert follower.apply(*fates).brokers == [2, 3]
    assert follower.apply(VotersChanged(voters=voters(1))).quorum_changed


def test_a_topic_that_was_grown_deleted_and_made_anew_at_once_is_closed_wholly():
    """Growth is looked up in the image, where the name is the new topic's already."""
    follower = Follower(1, TopicCreated(name="t", id=str(TOPIC_ID), replicas=[[1], [1]]))

    difference = follower.apply(
        PartitionsAdded(topic="t", replicas=[[1]]),
        TopicDeleted(name="t"),
        TopicCreated(name="t", id=str(OTHER_ID), replicas=[[1]]),
    )

    assert [(one.topic_id, one.name.partition) for one in difference.closed] == [(TOPIC_ID, 0), (TOPIC_ID, 1)]
    assert [one.topic_id for one in difference.opened] == [OTHER_ID]


def test_nothing_is_no_difference():
    assert not Follower(1).apply()


def test_after_a_snapshot_everything_is_compared():
    follower = Follower(1, partition_in([1, 2], [1, 2], 1))
    newer = image_after(TopicCreated(name="u", id=str(OTHER_ID), replicas=[[2, 1]]))

    difference = follower.differences.whole(decode_snapshot(encode_snapshot(newer)))

    assert [closed.name for closed in difference.closed] == [TopicPartition("t", 0)]
    assert roles(difference.opened) == [("u-0", Role.FOLLOW, 2, 0)]


@settings(max_examples=60, deadline=None)
@given(records=histories(), data=st.data())
def test_differences_add_up_to_what_the_image_has_on_the_node(records, data):
    image, differences = ClusterImage(), Differences(1)
    mine: dict = {}
    while records:
        size = data.draw(st.integers(1, len(records)))
        batch, records = records[:size], records[size:]
        for record in batch:
            image.apply(record)

        if data.draw(st.booleans()):
            difference = differences.after(image, batch)
        else:
            difference = differences.whole(image)

        for closed in difference.closed:
            del mine[closed.topic_id, closed.name.partition]
        for opened in difference.opened:
            assert (opened.topic_id, opened.name.partition) not in mine
        for replica in (*difference.opened, *difference.led, *difference.changed):
            before = mine.get((replica.topic_id, replica.name.partition))
            assert before != replica.partition
            mine[replica.topic_id, replica.name.partition] = replica.partition
            assert (replica.role is Role.LEAD) == (replica.partition.leader == 1)
        assert mine == {
            (place.topic.id, place.number): place.partition for place in image.held.get(1, {}).values()
        }


@settings(max_examples=60, deadline=None)
@given(records=histories(), data=st.data())
def test_slices_add_up_though_the_image_changes_in_between(records, data):
    image, differences = ClusterImage(), Differences(1)
    mine: dict = {}
    pending: list = []

    def apply_some(least: int = 0) -> None:
        size = data.draw(st.integers(min(least, len(records)), min(3, len(records))))
        for record in records[:size]:
            image.apply(record)
        pending.extend(records[:size])
        del records[:size]

    with patch("tidelog.controller.difference.SLICE", 1):
        while records or pending:
            apply_some(least=1)
            batch, found = pending[:], Difference()
            pending.clear()
            if data.draw(st.booleans()):
                slices = differences.whole_in_slices(lambda: image, found)
            else:
                slices = differences.after_in_slices(lambda: image, batch, found)
            for _ in slices:
                if data.draw(st.booleans()):
                    apply_some()
            for closed in found.closed:
                del mine[closed.topic_id, closed.name.partition]
            for opened in found.opened:
                assert (opened.topic_id, opened.name.partition) not in mine
                mine[opened.topic_id, opened.name.partition] = opened.partition
            for replica in (*found.led, *found.changed):
                if (replica.topic_id, replica.name.partition) in mine:
                    mine[replica.topic_id, replica.name.partition] = replica.partition

    assert mine == {
        (topic.id, number): partition
        for topic in image.topics.values()
        for number, partition in enumerate(topic.partitions)
        if 1 in partition.replicas
    }
