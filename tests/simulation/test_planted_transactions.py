"""Bugs planted in transactions (`RELIABILITY.md`, by their numbers), each found by its invariant.

Rule 1: a bug is planted by replacing a part of the product, never by a switch in it.
Rule 2: the same plan passes without the bug; so it is the bug that was found.
"""

from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from tidelog.coordinators.markers import Ending, MarkerSender
from tidelog.coordinators.shard_drivers import ShardDriver
from tidelog.coordinators.transactions import TransactionsDriver
from tidelog.coordinators.verification import Verification
from tidelog.log.producers import ProducerStates
from tidelog.log.transactions import Transactions
from tidelog.model import NO_OFFSET, Offset, TopicPartition
from tidelog.shards.effects import Moment, Writer
from tidelog.simulation import transaction_watch as watch
from tidelog.simulation.plan import Plan
from tidelog.simulation.swarm import make_plan, play
from tidelog.simulation.transactions import TransactionPace
from tidelog.txn import transitions
from tidelog.txn.events import CommitGroup, GroupMember
from tidelog.txn.records import State, TransactionRecord
from tidelog.txn.shard import Shard
from tidelog.txn.transaction import Transaction

# The bugs.


def plant_one_epoch_for_all(patch: pytest.MonkeyPatch) -> None:
    """13: a transaction ends in the epoch that the next one is written in (before KIP-890)."""

    def ended(record: TransactionRecord, at: Moment, *, commits: bool, writer: Writer) -> TransactionRecord:
        return transitions.ended(record, at, commits=commits)

    patch.setattr(transitions, "ended_as", ended)


def plant_no_verification(patch: pytest.MonkeyPatch) -> None:
    """13: a batch is taken though no coordinator has its partition in a transaction."""
    patch.setattr(Verification, "needs", lambda *_: False)


def plant_a_forgotten_transaction(patch: pytest.MonkeyPatch) -> None:
    """12: who starts from a snapshot of its producers does not know which transactions are open."""
    decode = ProducerStates.decode.__func__  # type: ignore[attr-defined]

    def forget(cls: type[ProducerStates], data: bytes) -> ProducerStates:
        states: ProducerStates = decode(cls, data)
        states._open.clear()
        for state in dict(states.items()).values():
            state.transaction_start = NO_OFFSET
        return states

    patch.setattr(ProducerStates, "decode", classmethod(forget))


def plant_markers_for_some(patch: pytest.MonkeyPatch) -> None:
    """The coordinator takes all partitions for marked when the first one is."""
    send = MarkerSender.send

    def send_one(self: MarkerSender, ending: Ending, places: tuple[TopicPartition, ...]) -> None:
        send(self, ending, places[:1])
        if places[1:]:
            ending.marked(places[1:])

    patch.setattr(MarkerSender, "send", send_one)


def plant_a_coordinator_that_reads_nothing(patch: pytest.MonkeyPatch) -> None:
    """A coordinator serves at once, and not after it has read its log."""

    async def load(self: ShardDriver[Any]) -> None:
        if not self.shard.is_loaded:
            self.perform(self.shard.loaded(self.now()))

    patch.setattr(TransactionsDriver, "load", load)


def plant_ends_that_count_at_once(patch: pytest.MonkeyPatch) -> None:
    """A transaction counts as decided when its marker is in the leader's log alone."""

    def last_stable(self: Transactions, producers: ProducerStates, watermark: Offset) -> Offset:
        opened = producers.first_open()
        return opened if 0 <= opened < watermark else watermark

    patch.setattr(Transactions, "last_stable", last_stable)


def plant_a_decision_over_anybody(patch: pytest.MonkeyPatch) -> None:
    """A decision takes its members for who has their ids now, as a zombie's would."""
    member_commit = Transaction.member_commit

    def commit(self: Transaction, member: GroupMember, at: Moment) -> Any:
        record = self.stored
        if record is not None and record.state is State.ONGOING:
            member = GroupMember(member.transactional_id, *record.writer)
        return member_commit(self, member, at)

    patch.setattr(Transaction, "member_commit", commit)


def plant_batches_decided_again(patch: pytest.MonkeyPatch) -> None:
    """A decision that was made before is made once more."""
    commit_group = Shard.commit_group

    def commit(self: Shard, event: CommitGroup, at: Moment) -> Any:
        self._decisions.pop(event.group, None)
        return commit_group(self, event, at)

    patch.setattr(Shard, "commit_group", commit)


# How they are found.

CALM: tuple[str, ...] = ()
RESTARTS = ("crash", "stop")


def a_plan(seed: int, pace: TransactionPace, kinds: tuple[str, ...]) -> Plan:
    plan = make_plan(seed, story="transactions", nodes=3, kinds=kinds, chaos_seconds=5)
    return replace(
        plan, pace=replace(plan.pace, topics=1, partitions=2, think_seconds=0.05), transaction_pace=pace
    )


LATE = TransactionPace(ids=2, movers=0, queries=0, late_chance=0.5, new_protocol_chance=1.0, sends_max=2)
OLD = replace(LATE, new_protocol_chance=0.0)
PLAIN = TransactionPace(ids=2, rivals=2, queries=0, late_chance=0.0)
DECISIONS = TransactionPace(
    ids=0, movers=0, queries=2, drivers=3, nap_chance=0.1, timeout_ms=250, late_chance=0.0
)


@cache
def passes(seed: int, pace: TransactionPace, kinds: tuple[str, ...]) -> bool:
    return play(a_plan(seed, pace, kinds)).violation is None


@pytest.mark.parametrize(
    ("plant", "seed", "pace", "kinds", "name"),
    [
        (plant_one_epoch_for_all, 3, LATE, CALM, watch.ONE_END),
        (plant_no_verification, 1, OLD, CALM, watch.ONE_WRITER),
        (plant_a_forgotten_transaction, 6, PLAIN, RESTARTS, watch.STABLE),
        (plant_markers_for_some, 1, PLAIN, RESTARTS, watch.COMPLETED),
        (plant_a_coordinator_that_reads_nothing, 1, PLAIN, RESTARTS, watch.TRANSITIONS),
        (plant_ends_that_count_at_once, 1, PLAIN, RESTARTS, watch.STABLE),
        (plant_a_decision_over_anybody, 1, DECISIONS, CALM, watch.BATCH),
        (plant_batches_decided_again, 1, DECISIONS, CALM, watch.TRANSITIONS),
    ],
)
def test_a_bug_is_found_by_its_invariant(plant, seed, pace, kinds, name):
    names = []
    for tried in range(seed, seed + 8):  # a history depends on every moment, and changes with the product
        with pytest.MonkeyPatch.context() as patch:
            plant(patch)
            violation = play(a_plan(tried, pace, kinds)).violation
        names.append(None if violation is None else violation.name)
        if names[-1] == name:
            break
    assert names[-1] == name, names
    assert passes(seed + len(names) - 1, pace, kinds)
