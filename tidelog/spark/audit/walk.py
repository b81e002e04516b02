"""One replica's batches, one after the other: what is there, and what is wrong with it.

Rule 1: nothing here asks a broker; answers come in, rows go out.
Rule 2: every offset of the stretch ends up in a row, or is missing in that replica. Where nothing
        can be read the row says so, and why.
Rule 3: a bad batch is a row, and then asked for once more: the node looks at its disk, and perhaps
        mends it. What comes then is a row, too.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

import pyarrow as pa
from kio.schema.errors import ErrorCode

from tidelog.client.cluster import ADVICE
from tidelog.errors import CorruptMessage
from tidelog.model import NO_EPOCH, NO_OFFSET, NO_PRODUCER, NO_SEQUENCE, NO_TIMESTAMP, NodeId, Offset
from tidelog.records import MAGIC, BatchHeader, batch_size_at, crc_matches, read_header
from tidelog.spark.audit.contents import contents_of


class Kind(StrEnum):
    """What a row tells of its offsets."""

    BATCH = "batch"
    BAD = "bad"
    """A batch that is not what was written; of its fields only the first offset can be trusted."""
    UNREADABLE = "unreadable"
    """The node says that its disk is damaged here."""
    DELETED = "deleted"
    """Retention came before the audit."""
    UNREACHABLE = "unreachable"
    """The node did not answer, or not with this."""


class Row(NamedTuple):
    """A batch of a replica, or a stretch of offsets of which no batch can be shown."""

    topic: str
    partition: int
    replica: NodeId
    kind: str
    base_offset: Offset
    last_offset: Offset
    leader_epoch: int = NO_EPOCH
    crc: int = 0
    records: int = 0
    bytes: int = 0
    attributes: int = 0
    producer_id: int = NO_PRODUCER
    producer_epoch: int = NO_EPOCH
    base_sequence: int = NO_SEQUENCE
    max_timestamp_ms: int = NO_TIMESTAMP
    problem: str | None = None
    contents: pa.StructArray | None = None
    """The records, of a compacted topic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """[start, end) of one replica: what one task reads."""

    topic: str
    partition: int
    replica: NodeId
    start: Offset
    end: Offset
    is_first: bool
    """The batch that holds `start` may begin before it; otherwise it is another task's."""
    is_compacted: bool
    """Batches may have been rewritten, so their records are told, too."""
    is_alone: bool = False
    """There is no other replica, from which damage could be mended."""

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} on {self.replica} [{self.start}, {self.end})"


class Answer(NamedTuple):
    """What the replica's broker answered to a fetch at the position."""

    error: int = ErrorCode.none.value
    high_watermark: Offset = NO_OFFSET
    log_start: Offset = NO_OFFSET
    records: bytes = b""


@dataclass(slots=True)
class Walk:
    """A stretch and how far it was read. Owned by one task.

    Invariant: `waits_for` is empty after an answer that brought the walk on.
    """

    stretch: Stretch
    position: Offset = field(init=False)
    """The next offset to be asked for."""
    waits_for: str = ""
    """Why it is worth to ask again, or why not."""
    _suspect: Offset = NO_OFFSET
    """Where a bad batch was told of; it has been asked for again since."""
    _after_suspect: Offset = NO_OFFSET
    """Where that batch says that it ends."""
    _has_skipped: bool = False
    """Whether nothing good has come since a bad batch was passed over."""

    def __post_init__(self) -> None:
        self.position = self.stretch.start

    @property
    def is_done(self) -> bool:
        return self.position >= self.stretch.end

    @property
    def may_mend(self) -> bool:
        """Whether waiting may help."""
        return not (self.stretch.is_alone and self._suspect == self.position)

    def take(self, answer: Answer) -> list[Row]:
        """Take what the broker answered to a fetch at `position`."""
        self.waits_for = ""
        match answer.error:
            case ErrorCode.none:
                return self._take_records(answer)
            case ErrorCode.offset_out_of_range if answer.log_start > self.position:
                return [self._pass(Kind.DELETED, min(answer.log_start, self.stretch.end))]
            case ErrorCode.offset_out_of_range:
                self.waits_for = f"its log ends before {self.position}"
            case ErrorCode.kafka_storage_error:
                return self._take_damage()
            case code:
                self.waits_for = ADVICE.get(code) or ErrorCode(code).name.replace("_", " ")
        return []

    def give_up(self, why: str) -> list[Row]:
        """Nothing has come for long enough: go on behind what is damaged, or not at all."""
        if self._suspect == self.position:
            if self._after_suspect > self.position and not self._has_skipped:
                self._has_skipped = True
                self.position = self._after_suspect
                return []
            return [self._pass(Kind.UNREADABLE, self.stretch.end, why)]
        return [self._pass(Kind.UNREACHABLE, self.stretch.end, why)]

    # Damage.

    def _take_damage(self) -> list[Row]:
        self.waits_for = "its disk is damaged there"
        if self._has_skipped:  # so is all that follows: it was waited for long enough
            return [self._pass(Kind.UNREADABLE, self.stretch.end, self.waits_for)]
        if self._suspect == self.position:
            return []
        self._suspect, self._after_suspect = self.position, NO_OFFSET
        return [self._row(Kind.UNREADABLE, self.position, self.position, self.waits_for)]

    def _pass(self, kind: Kind, end: Offset, why: str | None = None) -> Row:
        row = self._row(kind, self.position, end - 1, why)
        self.position = end
        return row

    def _row(self, kind: Kind, first: Offset, last: Offset, problem: str | None) -> Row:
        at = self.stretch
        return Row(at.topic, at.partition, at.replica, kind, first, last, problem=problem)

    # Batches.

    def _take_records(self, answer: Answer) -> list[Row]:
        if answer.records:
            return list(self._walk(memoryview(answer.records), answer.high_watermark))
        if answer.high_watermark < self.stretch.end:
            self.waits_for = "it does not know yet what is committed"
            return []
        self.position = self.stretch.end  # compaction left nothing more
        return []

    def _walk(self, buffer: memoryview, watermark: Offset) -> Iterator[Row]:
        at, end, asked_for = 0, len(buffer), self.position
        while not self.is_done and (size := batch_size_at(buffer, at, end)) and at + size <= end:
            header, batch = read_header(buffer, at), buffer[at : at + size]
            is_first = self.position == asked_for
            problem = self._problem(header, batch, watermark, is_first=is_first)
            contents: pa.StructArray | None = None
            if problem is None and self.stretch.is_compacted:
                try:
                    contents = contents_of(header, batch)
                except CorruptMessage as error:
                    problem = str(error)
            if problem is not None:
                was_told = self._suspect == self.position
                if not was_told:
                    yield self._suspected(header, problem)
                    return
                self.position = max(self._after_suspect, self.position + 1)
            else:
                if self._is_ours(header):
                    yield self._batch(header, contents)
                self.position = header.next_offset
                self._has_skipped = False
            at += size
        if at == 0:
            yield from self._take_damage()

    def _is_ours(self, header: BatchHeader) -> bool:
        at = self.stretch
        return header.base_offset < at.end and (header.base_offset >= at.start or at.is_first)

    def _problem(
        self, header: BatchHeader, batch: memoryview, watermark: Offset, *, is_first: bool
    ) -> str | None:
        if header.magic != MAGIC:
            return f"format {header.magic} is not {MAGIC}"
        if not crc_matches(batch, header):
            return f"the checksum {header.crc:#010x} does not match the bytes"
        if not 0 <= header.record_count <= header.last_offset_delta + 1:
            return f"{header.record_count} records over {header.last_offset_delta + 1} offsets"
        # Where a batch begins is not under its checksum.
        if (header.last_offset if is_first else header.base_offset) < self.position:
            return f"it says {header.base_offset}, where {self.position} follows"
        if header.next_offset > watermark:
            return f"it says {header.base_offset}, which is behind the watermark {watermark}"
        return None

    def _suspected(self, header: BatchHeader, problem: str) -> Row:
        """The row of a bad batch, which is asked for again."""
        self._suspect = self._after_suspect = self.position
        if header.base_offset == self.position and 0 <= header.last_offset_delta < 2**20:
            self._after_suspect = header.next_offset
        last = max(self._after_suspect - 1, self.position)
        return self._row(Kind.BAD, self.position, last, problem)

    def _batch(self, header: BatchHeader, contents: pa.StructArray | None) -> Row:
        at = self.stretch
        return Row(
            at.topic,
            at.partition,
            at.replica,
            Kind.BATCH,
            header.base_offset,
            header.last_offset,
            leader_epoch=header.leader_epoch,
            crc=header.crc,
            records=header.record_count,
            bytes=header.size,
            attributes=header.attributes,
            producer_id=header.producer_id,
            producer_epoch=header.producer_epoch,
            base_sequence=header.base_sequence,
            max_timestamp_ms=header.max_timestamp,
            contents=contents,
        )
