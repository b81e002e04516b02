"""Which record of a transactional id may follow which."""

from dataclasses import replace

import pytest

from tidelog.model import TopicPartition
from tidelog.simulation.transaction_watch import illegal
from tidelog.simulation.transactional import Value
from tidelog.txn.records import State, TransactionRecord

ONE, TWO = TopicPartition("tide", 0), TopicPartition("tide", 1)
EMPTY = TransactionRecord(producer_id=7, epoch=3, timeout_ms=1, state=State.EMPTY, updated_ms=0)
ONGOING = replace(EMPTY, state=State.ONGOING, places=frozenset({ONE}))
COMMITTING = replace(ONGOING, state=State.PREPARE_COMMIT)
COMMITTED = replace(EMPTY, state=State.COMPLETE_COMMIT)


@pytest.mark.parametrize(
    ("before", "after", "problem"),
    [
        (None, EMPTY, None),
        (EMPTY, replace(EMPTY, epoch=4), None),
        (EMPTY, replace(EMPTY, producer_id=8, epoch=0), None),
        (EMPTY, ONGOING, None),
        (ONGOING, replace(ONGOING, places=frozenset({ONE, TWO})), None),
        (ONGOING, COMMITTING, None),
        (ONGOING, replace(COMMITTING, epoch=4), None),
        (COMMITTING, COMMITTED, None),
        (COMMITTED, ONGOING, None),
        (COMMITTED, None, None),
        (None, ONGOING, "no such transition"),
        (EMPTY, COMMITTING, "no such transition"),
        (ONGOING, EMPTY, "no such transition"),
        (ONGOING, COMMITTED, "no such transition"),
        (ONGOING, None, "no such transition"),
        (COMMITTING, replace(COMMITTING, state=State.PREPARE_ABORT), "no such transition"),
        (COMMITTING, replace(COMMITTED, state=State.COMPLETE_ABORT), "no such transition"),
        (EMPTY, replace(EMPTY, epoch=2), "the epoch falls"),
        (EMPTY, replace(ONGOING, epoch=4), "the epoch changes when partitions are added"),
        (ONGOING, replace(COMMITTING, producer_id=8), "another producer"),
        (ONGOING, replace(COMMITTING, places=frozenset({TWO})), "a partition is forgotten"),
    ],
)
def test_only_some_records_follow_others(before, after, problem):
    assert illegal(before, after) == problem


def test_a_record_of_the_story_can_be_taken_apart():
    value = Value("d", "mover-0a/3", 2, "writer-1b/7/0")

    assert Value.decode(value.encode(padding=5)) == value
    assert value.id == "mover-0a/3/2"
