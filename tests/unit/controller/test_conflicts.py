"""A proposal stands if nothing that its decision looked at was touched since."""

import pytest

from tests.unit.controller.histories import cluster, image_after, partition_in, the_place
from tidelog.config import TopicConfig
from tidelog.controller import conflicts, membership
from tidelog.controller.acls import added
from tidelog.controller.conflicts import RecentCommits, looked_at, touched
from tidelog.controller.decisions import change_topic_config, eligible_after
from tidelog.controller.elections import Electorate, min_in_sync
from tidelog.controller.in_sync import WantedInSync, change_in_sync
from tidelog.controller.records import (
    BrokerFenced,
    BrokerUnregistered,
    MetadataRecord,
    NodeConfigChanged,
    NodeRegistered,
    PartitionChanged,
    PartitionsAdded,
    PartitionState,
    ProducerIdsGranted,
    TopicConfigChanged,
    TopicCreated,
    TopicDeleted,
    UserChanged,
)
from tidelog.controller.reports import ReplicaReports
from tidelog.security.acls import Binding, Effect
from tidelog.security.permissions import Kind, Operation
from tidelog.security.principals import ANONYMOUS

A, B = "6a7bf8e2-0000-4000-8000-00000000000a", "6a7bf8e2-0000-4000-8000-00000000000b"


def state(cluster_id: int) -> PartitionState:
    return PartitionState(cluster_id, (1, 2), (1, 2), 1, 3)


A0 = PartitionChanged(topic=A, partition=0, state=state(1))
A1 = PartitionChanged(topic=A, partition=1, state=state(2))
MADE = TopicCreated(name="b", id=B, replicas=[[1]])
GROWN = PartitionsAdded(topic="b", replicas=[[1]])
GONE = TopicDeleted(name="b")
FENCED = BrokerFenced(node=1, broker_epoch=1)
GRANTED = ProducerIdsGranted(node=1, end=1000)
SET = TopicConfigChanged(topic="b", config={})
NODE_SET = NodeConfigChanged(node=None, config={})
ALLOWED = added(
    Binding(principal=ANONYMOUS, operation=Operation.READ, kind=Kind.TOPIC, name="t", effect=Effect.ALLOW)
)

USER = UserChanged(name="u", verifiers={})

PROPOSED = [A0, MADE, GROWN, GONE, GRANTED, SET, NODE_SET, USER, ALLOWED]


def stands(proposed, *committed) -> bool:
    recent = RecentCommits()
    for end, record in enumerate(committed, 1):
        recent.add([record], end)
    return recent.stands([proposed] if proposed else [], based_on=0)


@pytest.mark.parametrize("committed", [A1, MADE, GROWN, GRANTED], ids=lambda r: type(r).__name__)
def test_an_in_sync_set_stands_whatever_becomes_of_other_partitions(committed):
    assert stands(A0, committed)


@pytest.mark.parametrize("committed", [A0, GONE, FENCED, SET, NODE_SET])
def test_an_in_sync_set_falls_with_its_partition_brokers_settings_and_deletions(committed):
    assert not stands(A0, committed)


@pytest.mark.parametrize("proposed", PROPOSED, ids=lambda r: type(r).__name__)
def test_what_is_proposed_twice_is_taken_once(proposed):
    """A proposal whose answer was lost is decided again, while the first may still arrive."""
    seen, changed = looked_at([proposed]), touched(proposed)

    assert seen is not None and changed is not None
    assert seen & changed
    assert not stands(proposed, proposed)


@pytest.mark.parametrize("proposed", PROPOSED, ids=lambda r: type(r).__name__)
def test_everything_stands_if_nothing_was_committed(proposed):
    assert stands(proposed)
    assert stands(None)


def test_a_decision_that_changes_nothing_falls_with_any_commit():
    assert not stands(None, GRANTED)


def test_what_the_table_does_not_know_looks_at_everything_and_touches_everything():
    assert not stands(BrokerUnregistered(node=1, broker_epoch=1), GRANTED)
    assert not stands(A0, NodeRegistered(node=1, incarnation="x"))


def test_a_proposal_falls_with_any_part_of_a_commit_that_concerns_it():
    recent = RecentCommits()
    recent.add([A1, GRANTED, A0], 3)

    assert not recent.stands([A0], based_on=0)
    assert recent.stands([A0], based_on=3)


def test_a_proposal_from_before_what_is_remembered_falls(monkeypatch):
    monkeypatch.setattr(conflicts, "REMEMBERED_MAX", 2)
    recent = RecentCommits(applied=10)
    assert not recent.stands([A0], based_on=9)
    for end in (11, 12, 13):
        recent.add([GRANTED], end)

    assert not recent.stands([A0], based_on=10)
    assert recent.stands([A0], based_on=11)


def test_a_commit_of_very_many_partitions_touches_everything(monkeypatch):
    monkeypatch.setattr(conflicts, "_TOUCHED_MAX", 3)
    recent = RecentCommits()
    recent.add([PartitionChanged(topic=B, partition=n, state=state(n)) for n in range(9)], 9)

    assert not recent.stands([A0], based_on=0)


@pytest.mark.parametrize("settings", [SET, NODE_SET], ids=lambda r: type(r).__name__)
def test_settings_stand_when_an_in_sync_set_changes_unless_that_makes_somebody_eligible(settings):
    left = PartitionChanged(topic=A, partition=0, state=PartitionState(1, (1, 2), (1,), 1, 3, eligible=(2,)))

    assert stands(settings, A0)
    assert not stands(settings, left)


def test_fewer_suffice_for_no_set_that_somebody_has_just_left_and_could_still_lead():
    """Whoever was eligible by an older setting would be elected, and lack what was committed."""
    image = image_after(*cluster(1, 2, 3), partition_in([1, 2], [1, 2], 1))
    image.apply(TopicConfigChanged(topic="t", config={"min.insync.replicas": "2"}))
    electorate = Electorate.of(image, ReplicaReports(), min_in_sync())

    # Decided at a distant node: one shall suffice. Nobody is eligible, as far as it knows.
    changed = change_topic_config(
        image, name="t", config={"min.insync.replicas": "1"}, defaults=TopicConfig()
    )
    proposed: list[MetadataRecord] = [changed, *eligible_after(image, changed, TopicConfig())]
    # Meanwhile the leader drops its follower, which stays eligible: two are needed.
    place = the_place(image)
    dropped = change_in_sync(
        image,
        WantedInSync(
            topic_id=place.topic.id,
            partition=0,
            leader=1,
            broker_epoch=1,
            epoch=place.partition.epoch,
            partition_epoch=place.partition.partition_epoch,
            in_sync={1: 1},
        ),
        electorate,
    )
    assert dropped.state.eligible == (2,)
    recent = RecentCommits()
    recent.add([dropped], 1)
    image.apply(dropped)
    if recent.stands(proposed, based_on=0):
        for record in proposed:
            image.apply(record)

    # The leader goes. What it committed by itself, once one sufficed, is nowhere else.
    electorate = Electorate.of(image, ReplicaReports(), min_in_sync())
    alone_suffices = electorate.minimum(the_place(image).topic, the_place(image).partition) == 1
    for record in membership.fence(image, [1], electorate):
        image.apply(record)
    assert not (alone_suffices and the_place(image).partition.leader == 2)
