"""A proposal stands if nothing that its decision looked at was touched since."""

import pytest

from tidelog.controller import conflicts
from tidelog.controller.conflicts import RecentCommits, looked_at, touched
from tidelog.controller.records import (
    BrokerFenced,
    BrokerUnregistered,
    NodeConfigChanged,
    NodeRegistered,
    PartitionChanged,
    PartitionsAdded,
    PartitionState,
    ProducerIdsGranted,
    TopicConfigChanged,
    TopicCreated,
    TopicDeleted,
)

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

PROPOSED = [A0, MADE, GROWN, GONE, GRANTED, SET, NODE_SET]


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
