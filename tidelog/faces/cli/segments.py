"""A data directory read offline: batches of segments, and everything that must hold for them.

Rule 1: nothing is written, and no more than a chunk is in memory, however large a batch claims to
        be: records are never unpacked here.
Rule 2: damage never stops the reading. After a bad batch the next good one is looked for, so that
        one flipped bit is one problem and not a lost segment.
Rule 3: a batch that was being written when the machine stopped is a torn tail, no damage: it lies
        at the end of the newest segment, no good batch follows, and nothing said it was durable.
"""

import dataclasses
import os
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO, Final

from crc32c import crc32c

from tidelog.errors import TidelogError
from tidelog.log.checkpoints import CheckpointDamaged, decode, decode_lines
from tidelog.log.directory import DURABLE_MARKS, PARTITION_METADATA, decode_id
from tidelog.log.epochs import FILE_NAME as EPOCHS
from tidelog.model import NO_OFFSET, Offset
from tidelog.records import (
    CODEC_MASK,
    CRC_FROM,
    HEADER_BYTES,
    MAGIC,
    MAGIC_AT,
    PREFIX,
    PREFIX_BYTES,
    BatchHeader,
    Codec,
    read_header,
)

CHUNK_BYTES: Final = 1024 * 1024
OFFSET_ENTRY: Final = struct.Struct(">II")
TIME_ENTRY: Final = struct.Struct(">qI")
SNAPSHOT_CRC: Final = struct.Struct(">hI")


class Kind(StrEnum):
    """What is wrong."""

    CORRUPTION = "corruption"
    TORN_TAIL = "torn tail"
    INDEX = "index"
    CHECKPOINT = "checkpoint"

    @property
    def is_damage(self) -> bool:
        return self is not Kind.TORN_TAIL


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing that is wrong, and where."""

    kind: Kind
    file: str
    position: int
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """A good batch's header, and where it lies."""

    header: BatchHeader
    position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Bad:
    """Bytes where a good batch should be; the header, if that much of one is left."""

    position: int
    message: str
    header: BatchHeader | None = None
    is_last: bool = False
    """No good batch follows in this segment."""


@dataclass(slots=True, kw_only=True)
class Report:
    """What verifying one partition found."""

    partition: str
    topic_id: str | None = None
    segments: int = 0
    batches: int = 0
    records: int = 0
    bytes: int = 0
    first_offset: Offset = NO_OFFSET
    next_offset: Offset = 0
    problems: list[Problem] = field(default_factory=list)

    @property
    def is_damaged(self) -> bool:
        return any(problem.kind.is_damage for problem in self.problems)


def partition_directories(root: Path, only: str | None = None) -> list[Path]:
    """The partitions in a data directory, or `root` itself if it is one; by name and number."""
    if not root.is_dir():
        raise TidelogError(f"{root} is no directory; give the one passed to `tidelog start --data`")
    if any(root.glob("*.log")) and is_partition(root.resolve()):
        found = [root.resolve()]
    else:
        found = [path for path in root.iterdir() if path.is_dir() and is_partition(path)]
    if only is not None:
        found = [path for path in found if path.name == only]
        if not found:
            raise TidelogError(f"{root} holds no partition {only!r}; it is written TOPIC-NUMBER")
    return sorted(found, key=_topic_and_number)


def is_partition(path: Path) -> bool:
    topic, _, number = path.name.rpartition("-")
    return bool(topic) and number.isdigit()


def _topic_and_number(path: Path) -> tuple[str, int]:
    topic, _, number = path.name.rpartition("-")
    return topic, int(number)


def segment_files(partition: Path) -> list[Path]:
    """The segments of a partition, oldest first."""
    return sorted(path for path in partition.glob("*.log") if path.stem.isdigit())


def topic_id(partition: Path) -> str | None:
    """The id in `partition.metadata`; None without that file, TidelogError if it is unreadable."""
    path = partition / PARTITION_METADATA
    try:
        text = path.read_text("ascii")
        values = dict(line.split(": ", 1) for line in text.splitlines())
        decode_id(values["topic_id"])
        return values["topic_id"]
    except FileNotFoundError:
        return None
    except (ValueError, KeyError) as error:
        raise TidelogError(f"{PARTITION_METADATA} is damaged: {error}") from None


def batches(file: Path) -> Iterator[Batch | Bad]:
    """Every batch of a segment in order."""
    size = file.stat().st_size
    with file.open("rb", buffering=CHUNK_BYTES) as stream:
        position = 0
        while position < size:
            found = read_batch(stream, position, size)
            if isinstance(found, Batch):
                yield found
                position += found.header.size
                continue
            after = find_batch(stream, position + 1, size)
            yield dataclasses.replace(found, is_last=after is None)
            if after is None:
                return
            position = after


def read_batch(stream: BinaryIO, position: int, size: int) -> Batch | Bad:
    """The batch at `position` of a segment of `size` bytes, or why there is none."""
    stream.seek(position)
    head = stream.read(HEADER_BYTES)
    if len(head) < HEADER_BYTES:
        return Bad(position=position, message=f"{len(head)} bytes are fewer than a batch's header")
    header = read_header(head)
    if header.magic != MAGIC:
        return Bad(position=position, message=f"format {header.magic} is not {MAGIC}")
    if header.size < HEADER_BYTES or header.base_offset < 0 or header.last_offset_delta < 0:
        return Bad(position=position, message="the batch's header makes no sense")
    if position + header.size > size:
        message = f"the batch has {header.size} bytes, {size - position} are left"
        return Bad(position=position, message=message)
    crc = crc32c(head[CRC_FROM:])
    left = header.size - HEADER_BYTES
    while left and (chunk := stream.read(min(left, CHUNK_BYTES))):
        crc = crc32c(chunk, crc)
        left -= len(chunk)
    if crc != header.crc:
        message = f"the checksum of the batch at offset {header.base_offset} is wrong"
        return Bad(position=position, message=message, header=header)
    return Batch(header=header, position=position)


def find_batch(stream: BinaryIO, position: int, size: int) -> int | None:
    """Where the next good batch begins at or after `position`; None if there is none.

    Only places where a format number and a possible length stand are tried, so zeros, which a
    file system may leave behind, are passed over in one step.
    """
    while position + HEADER_BYTES <= size:
        stream.seek(position)
        chunk = stream.read(CHUNK_BYTES + MAGIC_AT)
        at = chunk.find(MAGIC, MAGIC_AT)
        while at >= 0:
            start = at - MAGIC_AT
            offset, length = PREFIX.unpack_from(chunk, start)
            fits = 0 < length <= size - position - start - PREFIX_BYTES
            if fits and offset >= 0:
                found = read_batch(stream, position + start, size)
                if isinstance(found, Batch):
                    return position + start
            at = chunk.find(MAGIC, at + 1)
        position += max(1, len(chunk) - MAGIC_AT)
    return None


class Verifier:
    """Checks partitions against all that must hold; `on_bytes` hears of its progress."""

    def __init__(self, root: Path, on_bytes: Callable[[int], None] = lambda size: None) -> None:
        self._on_bytes = on_bytes
        self._durable = _durable_marks(root)

    def verify(self, partition: Path) -> Report:
        report = Report(partition=partition.name)
        try:
            report.topic_id = topic_id(partition)
        except TidelogError as error:
            report.problems.append(
                Problem(kind=Kind.CHECKPOINT, file=PARTITION_METADATA, position=0, message=str(error))
            )
        segments = segment_files(partition)
        for segment in segments:
            self._verify_segment(report, segment, is_newest=segment == segments[-1])
        report.problems += _verify_epochs(partition / EPOCHS, report.next_offset)
        for snapshot in sorted(partition.glob("*.snapshot")):
            report.problems += _verify_snapshot(snapshot)
        return report

    def _verify_segment(self, report: Report, segment: Path, *, is_newest: bool) -> None:
        base = int(segment.stem)
        report.segments += 1
        if base < report.next_offset and report.batches:
            report.problems.append(
                _corrupt(segment, 0, f"it begins before {report.next_offset}, where the last ended")
            )
        index = _IndexCheck(segment.with_suffix(".index"), base)
        epoch = -1
        told = 0
        for found in batches(segment):
            if isinstance(found, Bad):
                report.problems.append(self._judge(report, segment, found, is_newest=is_newest))
                index.pass_over(found.position)
                continue
            header, position = found.header, found.position
            report.problems += _verify_batch(segment, found, max(base, report.next_offset), epoch)
            epoch = max(epoch, header.leader_epoch)
            index.batch(position, header.base_offset, header.last_offset)
            if report.batches == 0:
                report.first_offset = header.base_offset
            report.batches += 1
            report.records += header.record_count
            report.bytes += header.size
            report.next_offset = max(report.next_offset, header.next_offset)
            if position - told >= CHUNK_BYTES:
                self._on_bytes(position - told)
                told = position
        self._on_bytes(segment.stat().st_size - told)
        report.problems += index.finish(is_newest=is_newest)
        report.problems += _verify_time_index(segment.with_suffix(".timeindex"), base, report.next_offset)

    def _judge(self, report: Report, segment: Path, bad: Bad, *, is_newest: bool) -> Problem:
        """Torn, if it ends the newest segment and nothing says that it was ever whole."""
        durable = self._durable.get(report.partition, 0)
        is_torn = bad.is_last and is_newest and report.next_offset >= durable
        message = bad.message
        if bad.is_last and is_newest and not is_torn:
            message += f"; everything below offset {durable} was on disk once"
        return Problem(
            kind=Kind.TORN_TAIL if is_torn else Kind.CORRUPTION,
            file=segment.name,
            position=bad.position,
            message=message,
        )


class _IndexCheck:
    """Compares an offset index with the batches as they go by, one entry in memory."""

    def __init__(self, file: Path, base: Offset) -> None:
        self._file = file
        self._base = base
        self._entries = _entries(file, OFFSET_ENTRY)
        self._next = next(self._entries, None)
        self._last = (-1, -1)
        self._problems: list[Problem] = []
        self._passed_over: int | None = None

    def batch(self, position: int, first: Offset, last: Offset) -> None:
        while self._next is not None and self._next[1] <= position:
            offset = self._base + self._next[0]
            if self._next[1] < position:
                if self._passed_over is None or self._next[1] < self._passed_over:
                    self._add(f"position {self._next[1]} is not where a batch begins")
            elif not first <= offset <= last:
                self._add(f"offset {offset} is not in the batch of {first} to {last}")
            self._advance()
        self._passed_over = None

    def pass_over(self, position: int) -> None:
        """Damage begins at `position`; entries into it are no second problem."""
        if self._passed_over is None:
            self._passed_over = position

    def finish(self, *, is_newest: bool) -> list[Problem]:
        """The problems, entries past the last batch among them unless a tail was torn off."""
        while self._next is not None:
            is_padding = self._next == (0, 0)  # Kafka sets space aside in its newest index
            torn = self._passed_over is not None and self._next[1] >= self._passed_over
            if not is_padding and not torn:
                self._add(f"position {self._next[1]} lies behind the last batch")
            self._advance()
        if self._file.exists() and self._file.stat().st_size % OFFSET_ENTRY.size and not is_newest:
            self._add("it does not end with a whole entry")
        return self._problems

    def _advance(self) -> None:
        assert self._next is not None
        if self._next != (0, 0) and not (self._next[0] > self._last[0] and self._next[1] > self._last[1]):
            self._add("the entries do not rise")
        self._last = max(self._last, self._next)
        self._next = next(self._entries, None)

    def _add(self, message: str) -> None:
        self._problems.append(Problem(kind=Kind.INDEX, file=self._file.name, position=0, message=message))


def _verify_batch(segment: Path, batch: Batch, expected: Offset, epoch: int) -> Iterator[Problem]:
    header = batch.header
    if header.base_offset < expected:
        yield _corrupt(
            segment, batch.position, f"offset {header.base_offset} overlaps; {expected} comes next"
        )
    if not 0 <= header.record_count <= header.last_offset_delta + 1:
        yield _corrupt(
            segment,
            batch.position,
            f"{header.record_count} records do not fit {header.last_offset_delta + 1} offsets",
        )
    if header.leader_epoch < epoch:
        yield _corrupt(segment, batch.position, f"epoch {header.leader_epoch} comes after epoch {epoch}")
    if header.attributes & CODEC_MASK > Codec.ZSTD:
        yield _corrupt(segment, batch.position, f"codec {header.attributes & CODEC_MASK} is unknown")


def _verify_time_index(file: Path, base: Offset, end: Offset) -> list[Problem]:
    problems = []
    last_time, last_offset = -(2**63), -1
    for timestamp, relative in _entries(file, TIME_ENTRY):
        if (timestamp, relative) == (0, 0) and last_offset >= 0:
            break  # the rest is space that Kafka set aside
        if timestamp < last_time or relative < last_offset:
            problems.append("the entries do not rise")
        elif base + relative >= end:
            problems.append(f"offset {base + relative} lies behind the last batch")
        last_time, last_offset = timestamp, relative
    return [
        Problem(kind=Kind.INDEX, file=file.name, position=0, message=message)
        for message in dict.fromkeys(problems)
    ]


def _verify_epochs(file: Path, end: Offset) -> list[Problem]:
    """leader-epoch-checkpoint: see `tidelog.log.checkpoints`."""
    message = None
    try:
        pairs = [tuple(map(int, line.split())) for line in decode_lines(file.read_bytes())]
        if any(len(pair) != 2 for pair in pairs) or any(
            a[0] >= b[0] or a[1] > b[1] for a, b in pairwise(pairs)
        ):
            message = "the epochs do not rise"
        elif pairs and pairs[-1][1] > end:
            message = f"epoch {pairs[-1][0]} begins at {pairs[-1][1]}, behind the log's end {end}"
    except FileNotFoundError:
        return []
    except (ValueError, CheckpointDamaged) as error:
        message = f"it is no checkpoint: {error}"
    if message is None:
        return []
    return [Problem(kind=Kind.CHECKPOINT, file=file.name, position=0, message=message)]


def _verify_snapshot(file: Path) -> list[Problem]:
    """snapshot := version: int16, crc: uint32 of the rest, producers."""
    data = file.read_bytes()
    message = None
    if len(data) < SNAPSHOT_CRC.size:
        message = "it is cut off"
    elif crc32c(data[SNAPSHOT_CRC.size :]) != SNAPSHOT_CRC.unpack_from(data)[1]:
        message = "the checksum is wrong"
    if message is None:
        return []
    return [Problem(kind=Kind.CHECKPOINT, file=file.name, position=0, message=message)]


def _entries(file: Path, entry: struct.Struct) -> Iterator[tuple[int, int]]:
    """The whole entries of an index file, none if there is no file."""
    try:
        stream = file.open("rb", buffering=CHUNK_BYTES)
    except FileNotFoundError:
        return
    with stream:
        while len(data := stream.read(entry.size)) == entry.size:
            first, second = entry.unpack(data)
            yield first, second


def _durable_marks(root: Path) -> dict[str, Offset]:
    """How far each partition is known to be on disk: {} if nobody noted it."""
    try:
        found = decode((root / DURABLE_MARKS).read_bytes())
    except (OSError, CheckpointDamaged):
        return {}
    return {str(partition): offset for partition, offset in found.items()}


def _corrupt(segment: Path, position: int, message: str) -> Problem:
    return Problem(kind=Kind.CORRUPTION, file=segment.name, position=position, message=message)


def total_bytes(partitions: list[Path]) -> int:
    return sum(os.stat(file).st_size for one in partitions for file in segment_files(one))
