"""A log on a simulated disk that is compacted step by step, and what must hold for it.

Everything blocks and runs in the test's own thread: `CompactedLog.clean` is what the cleaner does,
without the event loop. So a disk may crash anywhere in it.
"""

import random
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from crc32c import crc32c

from tidelog.config import TopicConfig
from tidelog.host import Path
from tidelog.log.compaction import Cleaned, Compaction
from tidelog.log.log import Log
from tidelog.log.producers import ProducerStates
from tidelog.log.recovery import open_log
from tidelog.log.segment import Segment, walk
from tidelog.log.swap import commit_swap, complete_swaps, discard_cleaned, finish_swap
from tidelog.log.tail import TailBudget
from tidelog.log.transactions import Transactions
from tidelog.log.transactions import fold as fold_batch
from tidelog.model import Offset, ProducerId
from tidelog.records import (
    CRC_AT,
    CRC_FROM,
    HEADER_BYTES,
    TRANSACTIONAL,
    BatchHeader,
    Codec,
    Marker,
    Record,
    decode_batch,
    encode_batch,
    encode_marker,
    iterate_batches,
    read_header,
    stamp,
)
from tidelog.simulation.disk import SimulatedDisk

DAY_MS = 24 * 60 * 60 * 1000
NOW_MS = 1_700_000_000_000
DIRECTORY = Path("/data/topic-0")
EPOCH = 3


def compacted(**settings: Any) -> TopicConfig:
    """A compacted topic's config; its segments are small."""
    small: dict[str, Any] = {"segment_bytes": 2000, "index_interval_bytes": 200}
    return TopicConfig(cleanup_policy="compact", **{**small, **settings})


@dataclass(slots=True)
class CompactedLog:
    """A log, its disk and its clock. `written` holds every record ever appended, by offset."""

    disk: SimulatedDisk
    topic: TopicConfig = field(default_factory=compacted)
    now_ms: int = NOW_MS
    first_dirty: Offset = 0
    key_bytes_max: int = 10**9
    written: dict[Offset, Record] = field(default_factory=dict)
    log: Log = field(init=False)

    def __post_init__(self) -> None:
        self.disk.make_directory(DIRECTORY)
        self.disk.sync_everything(DIRECTORY)
        self.open()

    def open(self, durable_mark: Offset = 0) -> None:
        """Start from the files, as after a crash; nothing is in memory."""
        complete_swaps(self.disk, DIRECTORY)
        state = open_log(
            self.disk,
            DIRECTORY,
            clean=False,
            durable_mark=durable_mark,
            start=0,
            index_interval_bytes=self.topic.index_interval_bytes,
        )
        config = TopicConfig(index_interval_bytes=self.topic.index_interval_bytes)
        self.log = Log(DIRECTORY, config, TailBudget(1 << 20), state)

    # Writing.

    def append(
        self,
        *records: Record,
        codec: Codec = Codec.NONE,
        producer: int = -1,
        sequence: int = -1,
        attributes: int = 0,
    ) -> None:
        batch = encode_batch(
            records,
            codec=codec,
            producer_id=producer,
            producer_epoch=0 if producer >= 0 else -1,
            base_sequence=sequence,
            base_offset=self.log.end,
            leader_epoch=EPOCH,
            attributes=attributes,
        )
        self.append_raw(batch)
        for record in decode_batch(batch):
            self.written[record.offset] = record

    def append_raw(self, batch: bytes | bytearray) -> None:
        self.log.append(bytes(batch), read_header(batch), self.log.end, EPOCH)

    def roll(self) -> None:
        """Seal what was appended; everything is durable, and memory is forgotten."""
        self.log.roll()
        self.flush()
        self.open(self.log.end)

    def flush(self, *, sync: bool = True) -> None:
        """Write what was appended; without `sync`, only sealed segments are durable."""
        job = self.log.take_writes()
        if job is not None:
            self.log.wrote(job, job.perform(self.disk).end)
        if sync:
            self.disk.sync_everything(DIRECTORY)
            self.log.synced(self.log.written_end)

    # Cleaning.

    def compaction(self, count: int | None = None) -> Compaction:
        """A pass over all sealed segments, or the first `count` of them."""
        count = len(self.log.segments) - 1 if count is None else count
        limit = self.log.segments[count].base
        return Compaction(
            disk=self.disk,
            segments=self.log.segments[:count],
            first_dirty=self.first_dirty,
            limit=limit,
            producers=last_offsets(self.log.producers),
            now_ms=self.now_ms,
            delete_retention_ms=self.topic.delete_retention_ms,
            segment_bytes=self.topic.segment_bytes,
            index_interval_bytes=self.topic.index_interval_bytes,
            key_bytes_max=self.key_bytes_max,
            marked_epochs=self.log.producers.marked_epochs(),
            aborted=self.log.transactions.aborted.between(0, self.log.end),
            has_markers=self.log.transactions.has_markers,
        )

    def clean(self, count: int | None = None) -> Compaction:
        """One pass: map, write, swap; then start from the files."""
        work = self.compaction(count)
        for _ in work.map_keys():
            pass
        for group in work.groups():
            self.swap(self.write(work, group), group)
        self.first_dirty = work.end
        self.open(self.log.end)
        return work

    def write(self, work: Compaction, group: Sequence[Segment]) -> Cleaned | None:
        done: list[Cleaned] = []
        for _ in work.clean(group, done.append):
            pass
        return done[0] if done else None

    def swap(self, cleaned: Cleaned | None, group: Sequence[Segment]) -> None:
        if cleaned is None:
            discard_cleaned(self.disk, DIRECTORY, group[0].base)
            return
        commit_swap(self.disk, DIRECTORY, cleaned.segment.base)
        finish_swap(self.disk, DIRECTORY, cleaned.segment.base, cleaned.end)

    # Looking.

    def headers(self) -> list[BatchHeader]:
        return [
            header
            for segment in self.log.segments
            for header, _ in walk(segment.open(self.disk), 0, segment.open(self.disk).size())
        ]

    def batches(self) -> Iterator[tuple[BatchHeader, bytes]]:
        for segment in self.log.segments:
            file = segment.open(self.disk)
            for header, position in walk(file, 0, file.size(), check=False):
                yield header, file.read(position, header.size)

    def records(self) -> list[Record]:
        return [record for _, batch in self.batches() for record in decode_batch(batch)]

    def offsets(self) -> list[Offset]:
        return [record.offset for record in self.records()]

    def names(self) -> list[str]:
        return self.disk.list(DIRECTORY)

    def consume(self, offset: Offset = 0, bytes_max: int = 1) -> list[Record]:
        """What a consumer gets that reads on from `offset`, a batch at a time."""
        found: list[Record] = []
        while offset < self.log.end:
            answer = self.log.read(offset, bytes_max, self.log.end)
            data = answer.load_unchecked(self.disk)
            assert data, f"stuck at {offset}"
            for header, batch in iterate_batches(data):
                found += [record for record in decode_batch(batch) if record.offset >= offset]
                offset = header.next_offset
        return found


def new_log(**options: Any) -> CompactedLog:
    return CompactedLog(SimulatedDisk(random.Random(1)), **options)


def write(log: CompactedLog, producer: ProducerId, *records: Record, epoch: int = 0) -> None:
    """Append a batch in a producer's transaction."""
    batch = encode_batch(
        records,
        producer_id=producer,
        producer_epoch=epoch,
        base_sequence=0,
        attributes=TRANSACTIONAL,
        base_offset=log.log.end,
        leader_epoch=EPOCH,
    )
    log.append_raw(batch)


def end(log: CompactedLog, producer: ProducerId, *, commits: bool, epoch: int = 0) -> Offset:
    """Append a marker; its offset."""
    batch = encode_marker(
        Marker(commits=commits, coordinator_epoch=0),
        producer_id=producer,
        producer_epoch=epoch,
        now_ms=NOW_MS,
    )
    stamp(batch, log.log.end, EPOCH)
    log.append_raw(batch)
    return log.log.end - 1


def sealed(*sizes: int, first_ms: int = 0, max_ms: int = 0) -> list[Segment]:
    """Segments of ten offsets each, and an active one."""
    segments = []
    for at, size in enumerate((*sizes, 0)):
        segment = Segment(DIRECTORY, at * 10, size=size)
        segment.first_timestamp_ms, segment.max_timestamp_ms = first_ms, max_ms
        segments.append(segment)
    return segments


def record(key: str | None, value: str | None = "value", time_ms: int = NOW_MS - 1000) -> Record:
    return Record(
        key=None if key is None else key.encode(),
        value=None if value is None else value.encode(),
        timestamp_ms=time_ms,
    )


def broken(records: list[Record], damage: int) -> bytes:
    """A batch with a good checksum over bad records: what a careless client may send."""
    batch = encode_batch(records, leader_epoch=3)
    batch[HEADER_BYTES + damage] ^= 0x7F
    struct.pack_into(">I", batch, CRC_AT, crc32c(memoryview(batch)[CRC_FROM:]))
    return bytes(batch)


def latest(records: Iterable[Record]) -> dict[bytes, bytes]:
    """The value of every key that has one."""
    values = {r.key: r.value for r in records if r.key is not None}
    return {key: value for key, value in values.items() if value is not None}


def fold(log: CompactedLog) -> ProducerStates:
    """The producers' state as the batches alone tell it."""
    states, transactions = ProducerStates(), Transactions()
    for header, batch in log.batches():
        fold_batch(states, transactions, header, batch)
    return states


def last_offsets(states: ProducerStates) -> dict[int, Offset]:
    """Where the newest batch of each producer ends; the tests' producers have small ids."""
    known = {producer: states.get(producer) for producer in range(10)}
    return {p: state.batches[-1].last_offset for p, state in known.items() if state and state.batches}


def random_records(generator: random.Random, count: int, keys: int, now_ms: int) -> list[Record]:
    return [
        Record(
            key=b"key-%d" % generator.randrange(keys),
            value=generator.choice((None, b"", generator.randbytes(9), generator.randbytes(60))),
            headers=(("h", generator.randbytes(3)),) if generator.random() < 0.3 else (),
            timestamp_ms=now_ms - generator.randrange(100_000),
        )
        for _ in range(count)
    ]
