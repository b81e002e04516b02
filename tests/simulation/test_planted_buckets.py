"""Bugs planted in watches, in copies and in buckets made anew, each found by its invariant.

Rule 1: a bug is planted by replacing a part of the product, never by a switch in it.
Rule 2: the same plan passes without the bug; so it is the bug that was found.
"""

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from tidelog.copies.embedded import changes as replica_changes
from tidelog.copies.embedded.plan import Following
from tidelog.errors import UnknownTopicOrPartition
from tidelog.faces.http import streams
from tidelog.faces.http.streams import RecordStream
from tidelog.model import ONCE_PRODUCER_MIN, Offset, TopicPartition
from tidelog.partition.driver import Partition
from tidelog.services.copies import Copies
from tidelog.services.kv import Kv
from tidelog.services.kv_work import KvGot
from tidelog.services.records import Batches, RecordService
from tidelog.simulation import keyvalue_anew as anew
from tidelog.simulation import keyvalue_copies as copies
from tidelog.simulation import keyvalue_hearing as hearing
from tidelog.simulation import registers
from tidelog.simulation.keyvalue import KvPace
from tidelog.simulation.plan import Fault, Plan
from tidelog.simulation.swarm import make_plan, play

# Watches.


def plant_a_cursor_that_is_one_ahead(patch: pytest.MonkeyPatch) -> None:
    """Who connects again goes on behind the next record."""
    read_cursor = streams.read_cursor

    def read(text: str) -> streams.Cursor:
        cursor = read_cursor(text)
        ahead = {number: at + 1 if at else at for number, at in cursor.positions.items()}
        return streams.Cursor(cursor.topic, ahead)

    patch.setattr(streams, "read_cursor", read)


def plant_a_cursor_that_is_one_behind(patch: pytest.MonkeyPatch) -> None:
    """Who connects again hears of the last record once more."""
    event = RecordStream._event

    def behind(self: RecordStream, number: int, data: bytes, after: int) -> Any:
        return event(self, number, data, after - 1)

    patch.setattr(RecordStream, "_event", behind)


def plant_a_watch_of_the_undecided(patch: pytest.MonkeyPatch) -> None:
    """A stream goes as far as the watermark, past transactions that are aborted later."""
    read = RecordService.read

    async def read_all(self: RecordService, *place: Any, **options: Any) -> Batches:
        return await read(self, *place, **{**options, "committed_only": False})

    patch.setattr(RecordService, "read", read_all)


def plant_deletions_that_are_passed_over(patch: pytest.MonkeyPatch) -> None:
    """A watch goes on though the deletions before its position are gone for good."""
    patch.setattr(streams, "check_purged", lambda *_: None)


# Copies.


def plant_a_copy_of_the_undecided(patch: pytest.MonkeyPatch) -> None:
    """The stream goes as far as the watermark, past transactions that are aborted later."""

    async def batches(
        self: Copies, place: TopicPartition, offset: Offset, **options: Any
    ) -> AsyncIterator[Batches]:
        while True:
            found = await self._records.read(
                place.topic, place.partition, offset=offset, committed_only=False, **options
            )
            yield found
            offset = max(offset, found.end)

    patch.setattr(Copies, "batches", batches)


def plant_a_copy_that_skips_a_batch(patch: pytest.MonkeyPatch) -> None:
    """A copy goes on from where the log ends when it comes back, and not from where it was."""
    sync = Following._sync

    def from_the_end(self: Following, ack: Any) -> Any:
        asked = sync(self, ack)
        if asked.from_offset is None:
            return asked
        self.copy.position = replace(self.copy.position, applied=ack.current_offset)
        return msgspec.structs.replace(asked, from_offset=ack.current_offset)

    patch.setattr(Following, "_sync", from_the_end)


def plant_a_copy_that_tells_of_new_keys_alone(patch: pytest.MonkeyPatch) -> None:
    """Who hears of changes is not told that a snapshot has another value of a key that it had."""
    asked = replica_changes._CHANGED
    of_keys = asked.replace("AND old.version = new.version AND old.value = new.value", "")
    assert of_keys != asked
    patch.setattr(replica_changes, "_CHANGED", of_keys)


# Buckets made anew.


def plant_keys_that_outlive_their_bucket(patch: pytest.MonkeyPatch) -> None:
    """What was done with an Idempotency-Key is remembered by the bucket's name."""
    known: dict[str, dict[int, Any]] = {}
    serve = Kv._serve_write

    async def remember(self: Kv, partition: Partition, work: Any, deadline: float) -> Any:
        done = known.setdefault(str(partition.name), {})
        if work.once >= ONCE_PRODUCER_MIN and work.once in done:
            return done[work.once]
        written = await serve(self, partition, work, deadline)
        if work.once >= ONCE_PRODUCER_MIN and written.offset >= 0:
            done[work.once] = written
        return written

    patch.setattr(Kv, "_serve_write", remember)


def plant_reads_of_the_former_bucket(patch: pytest.MonkeyPatch) -> None:
    """Who reads a key that is not there is shown what an earlier bucket of the name had."""
    known: dict[tuple[str, bytes], KvGot] = {}
    serve = Kv._serve_get

    async def remember(self: Kv, partition: Partition, work: Any, deadline: float) -> KvGot:
        got = await serve(self, partition, work, deadline)
        at = (str(partition.name), work.key)
        if got.entry is None:
            return known.get(at, got)
        known[at] = got
        return got

    patch.setattr(Kv, "_serve_get", remember)


def plant_buckets_that_are_denied(patch: pytest.MonkeyPatch) -> None:
    """A node that has not heard of a bucket says that there is none."""

    async def at_once(self: Kv, bucket: str) -> int:
        topic = self._broker.image.topics.get(bucket)
        if topic is None:
            raise UnknownTopicOrPartition(bucket)
        return len(topic.partitions)

    patch.setattr(Kv, "_partition_count", at_once)


# How they are found.


PLAIN = KvPace(clients=3, keys=2, think_seconds=0.05, patience_seconds=0.5, once_chance=0.3)
WATCHED = replace(PLAIN, watchers=2)
COPIED = replace(PLAIN, copies=2)
TRANSACTING: dict[str, Any] = {"transactions": 2, "abort_chance": 0.6}
REMADE = replace(PLAIN, clients=1, remakes=True)
COMPACTED = (("min.cleanable.dirty.ratio", "0.01"), ("delete.retention.ms", "0"), ("segment.bytes", "1000"))


CALM = ()
AWAY = tuple(Fault(0.5 + n, "isolate", {"node": n % 3 + 1, "seconds": 0.9}) for n in range(6))
"""One node after the other hears of nothing for a while."""


def a_plan(seed: int, pace: KvPace, faults: tuple[Fault, ...]) -> Plan:
    plan = make_plan(seed, story="kv", nodes=3, kinds=(), chaos_seconds=8)
    node = {**plan.node, "auto_create_topics_enable": False, "log_cleaner_backoff_ms": 100}
    configs = dict(plan.pace.topic_configs) | dict(COMPACTED)
    return replace(
        plan,
        kv_pace=pace,
        faults=faults,
        node=node,
        pace=replace(plan.pace, topics=1, partitions=1, replication=3, topic_configs=tuple(configs.items())),
    )


SEEDS = range(2, 12)
"""Tried one after the other: a history depends on every moment, and changes with the product."""
RARE = {plant_buckets_that_are_denied: range(6, 36)}
"""Seeds of a bug that earlier ones do not show."""


@pytest.mark.parametrize(
    ("plant", "pace", "names", "faults"),
    [
        (plant_a_cursor_that_is_one_ahead, WATCHED, {hearing.ORDER, hearing.MISSED}, CALM),
        (plant_a_cursor_that_is_one_behind, WATCHED, {hearing.ORDER}, CALM),
        (plant_a_watch_of_the_undecided, replace(WATCHED, **TRANSACTING), {hearing.TOLD}, CALM),
        (plant_deletions_that_are_passed_over, WATCHED, {hearing.MISSED}, CALM),
        (plant_a_copy_of_the_undecided, replace(COPIED, **TRANSACTING), {copies.FOLD}, CALM),
        (plant_a_copy_that_skips_a_batch, COPIED, {copies.FOLD}, CALM),
        (plant_a_copy_that_tells_of_new_keys_alone, REMADE, {copies.HEARD}, CALM),
        (plant_keys_that_outlive_their_bucket, REMADE, {anew.GONE, anew.WRITTEN}, CALM),
        (plant_reads_of_the_former_bucket, REMADE, {anew.GONE, registers.PHANTOM_READ}, CALM),
        (plant_buckets_that_are_denied, REMADE, {anew.FOUND, hearing.REASON}, AWAY),
    ],
)
def test_a_bug_is_found_by_its_invariant(plant, pace, names, faults):
    seed, violation = 0, None
    for seed in RARE.get(plant, SEEDS):
        with pytest.MonkeyPatch.context() as patch:
            plant(patch)
            violation = play(a_plan(seed, pace, faults)).violation
        if violation is not None:
            break

    assert violation is not None
    assert violation.name in names, violation
    assert play(a_plan(seed, pace, faults)).violation is None
