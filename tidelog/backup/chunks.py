"""Files of batches, as the log had them: compressed ones stay compressed.

Rule 1: a chunk is cut between batches, once it has reached its size.
Rule 2: what is read is what was written: size and checksum are compared before anything is used.
Rule 3: a batch without records says no more than a gap, and is left out; but for one that
        compaction has left so that a request with an Idempotency-Key is known when it comes again.
"""

# chunk := batch*                       (format 2, at the offsets that they had in the log)
# name  := chunks/TOPIC_ID/PARTITION/START.RUN.batches     (START: 20 digits, RUN: of the backup)

import hashlib
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, Final

from tidelog.backup.manifest import Chunk
from tidelog.backup.problems import Damaged
from tidelog.backup.storage import Output, Storage
from tidelog.errors import CorruptMessage
from tidelog.log.committed import committed_batches
from tidelog.model import ONCE_PRODUCER_MIN, Offset, ProducerId
from tidelog.records import MAGIC, BatchHeader, crc_matches, decode_batch, iterate_batches

FOLDER: Final = "chunks"
SUFFIX: Final = ".batches"
BYTES_MAX: Final = 64 * 1024 * 1024
"""A chunk is closed by the batch that brings it to this size."""


def chunk_name(topic_id: str, partition: int, start: Offset, run: str) -> str:
    return f"{FOLDER}/{topic_id}/{partition}/{start:020d}.{run}{SUFFIX}"


def run_of(name: str) -> str | None:
    """The backup that a file was written for; None for a file that is none of ours."""
    parts = name.rpartition("/")[2].split(".")
    return parts[1] if len(parts) >= 3 else None


class ChunkWriter:
    """The new chunks of one partition, from `start` on. Owned by one task; its calls block."""

    def __init__(
        self,
        storage: Storage,
        topic_id: str,
        partition: int,
        start: Offset,
        run: str,
        *,
        bytes_max: int = BYTES_MAX,
    ) -> None:
        self._storage = storage
        self._topic_id = topic_id
        self._partition = partition
        self._run = run
        self._bytes_max = bytes_max
        self._start = self._end = start
        self._output: Output | None = None
        self._name = ""
        self._hash: Any = None
        self._bytes = self._batches = self._records = 0
        self.chunks: list[Chunk] = []

    @property
    def size(self) -> int:
        return self._bytes + sum(chunk.bytes for chunk in self.chunks)

    @property
    def records(self) -> int:
        return self._records + sum(chunk.records for chunk in self.chunks)

    def take(self, data: bytes, aborted: Sequence[tuple[ProducerId, Offset]], *, end: Offset) -> None:
        """Write what is committed of fetched batches, up to the offset `end`."""
        for header, batch in committed_batches(data, aborted):
            if header.base_offset >= end:
                break
            if header.last_offset >= self._end:
                if header.record_count or header.producer_id >= ONCE_PRODUCER_MIN:
                    self._write(header, batch)
                self._end = header.next_offset
        for header, _ in iterate_batches(data):  # markers, too, are behind us
            if header.next_offset <= end:
                self._end = max(self._end, header.next_offset)

    def _write(self, header: BatchHeader, batch: memoryview) -> None:
        if self._bytes >= self._bytes_max:
            self._close()
        if self._output is None:
            self._name = chunk_name(self._topic_id, self._partition, self._start, self._run)
            self._output = self._storage.create(self._name)
            self._hash = hashlib.sha256()
        self._output.write(batch)
        self._hash.update(batch)
        self._bytes += header.size
        self._batches += 1
        self._records += header.record_count

    def _close(self) -> None:
        if self._output is not None:
            self._output.finish()
            self.chunks.append(
                Chunk(
                    start=self._start,
                    end=self._end,
                    file=self._name,
                    bytes=self._bytes,
                    sha256=self._hash.hexdigest(),
                    batches=self._batches,
                    records=self._records,
                )
            )
        elif self._end > self._start:
            self.chunks.append(Chunk(start=self._start, end=self._end))
        self._output, self._start = None, self._end
        self._bytes = self._batches = self._records = 0

    def finish(self, end: Offset) -> tuple[Chunk, ...]:
        """Close what is open; all chunks, which end at `end`."""
        assert end >= self._end, "nothing is taken beyond the end"
        self._end = end
        self._close()
        return tuple(self.chunks)

    def abandon(self) -> None:
        """Remove what was written."""
        if self._output is not None:
            self._output.abandon()
            self._output = None
        for chunk in self.chunks:
            if chunk.file is not None:
                self._storage.remove(chunk.file)
        self.chunks.clear()


def read_chunk(storage: Storage, chunk: Chunk) -> bytes:
    """The bytes of a chunk; Damaged if they are not those that were written."""
    if chunk.file is None:
        return b""
    data = storage.read(chunk.file)
    if len(data) != chunk.bytes:
        raise Damaged(f"{chunk.file} has {len(data)} bytes; {chunk.bytes} were written")
    if hashlib.sha256(data).hexdigest() != chunk.sha256:
        raise Damaged(f"{chunk.file}: its checksum does not match")
    return data


def batches_of(data: bytes, chunk: Chunk) -> Iterator[tuple[BatchHeader, memoryview]]:
    """The batches of a chunk; Damaged unless they fill it, in the order of their offsets."""
    size = count = records = 0
    at: Offset = -1
    for header, batch in iterate_batches(data):
        is_inside = header.last_offset >= chunk.start and header.next_offset <= chunk.end
        if header.magic != MAGIC or header.base_offset < at or not is_inside:
            raise Damaged(f"{chunk.file}: a batch at {header.base_offset} does not belong there")
        yield header, batch
        at = header.next_offset
        size, count, records = size + header.size, count + 1, records + header.record_count
    if (size, count, records) != (len(data), chunk.batches, chunk.records):
        raise Damaged(f"{chunk.file}: {count} batches of {records} records are not all there were")


def check_chunk(storage: Storage, chunk: Chunk, *, deep: bool) -> None:
    """Read a chunk to its last byte, with `deep` to its last record; Damaged says what is wrong."""
    data = read_chunk(storage, chunk)
    for header, batch in batches_of(data, chunk):
        if not crc_matches(batch, header):
            raise Damaged(f"{chunk.file}: the batch at {header.base_offset} does not check out")
        if deep:
            _decode(chunk, header, batch)


def _decode(chunk: Chunk, header: BatchHeader, batch: memoryview) -> None:
    try:
        records = decode_batch(batch)
    except CorruptMessage as error:
        raise Damaged(f"{chunk.file}: the batch at {header.base_offset}: {error}") from None
    offsets = [record.offset for record in records]
    if any(after <= before for before, after in pairwise(offsets)):
        raise Damaged(f"{chunk.file}: offsets of the batch at {header.base_offset} do not rise")
