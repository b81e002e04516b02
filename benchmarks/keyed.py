"""Logs for compaction: records with keys, in batches as a producer's defaults make them.

Rule 1: the same case is the same bytes at every run.
Rule 2: values are like text that a program wrote: one half never changes, the other never repeats,
        so that a codec has something to do and something to gain.
"""

import random
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from time import time_ns
from typing import Final

from crc32c import crc32c

from tidelog.client.frames import uvarint
from tidelog.model import NO_EPOCH, NO_PRODUCER, NO_SEQUENCE
from tidelog.records import CRC_AT, CRC_FROM, HEADER, HEADER_BYTES, MAGIC, PREFIX_BYTES, Codec, compress

BATCH_BYTES: Final = 16 * 1024
"""The default `batch.size` of Kafka's producers, before compression."""
KEY_BYTES: Final = 16
UPDATES: Final = 10
"""How often a key comes in a log of updates, on average."""

UNIQUE: Final = "unique keys"
UPDATED: Final = f"each key {UPDATES} times"
CLEAN: Final = "half clean, half updates of it"


@dataclass(frozen=True, slots=True)
class Case:
    """A log to compact."""

    value_bytes: int
    keys: str
    codec: Codec = Codec.NONE

    def __str__(self) -> str:
        codec = "" if self.codec is Codec.NONE else f", {self.codec.name.lower()}"
        return f"{self.value_bytes:,} B values, {self.keys}{codec}"

    @property
    def record_bytes(self) -> int:
        """About what a record takes: attributes, lengths, time and offset are 8 or 9 bytes."""
        return self.value_bytes + KEY_BYTES + 9

    def keys_of(self, count: int) -> Sequence[int]:
        """The number of each record's key."""
        generator = random.Random(count)
        if self.keys == UNIQUE:
            return range(count)
        if self.keys == UPDATED:
            return array("q", (generator.randrange(count // UPDATES) for _ in range(count)))
        half = count // 2
        updates = (generator.randrange(half) for _ in range(count - half))
        return array("q", [*range(half), *updates])

    def batches(self, count: int) -> Iterator[bytearray]:
        """`count` records in batches, numbered from offset 0."""
        numbers = self.keys_of(count)
        per_batch = (BATCH_BYTES - HEADER_BYTES) // self.record_bytes
        fixed = (b'{"kind": "reading", "state": "good", "at": "' * 30)[: self.value_bytes // 2]
        drawn_bytes = self.value_bytes - len(fixed)
        drawn = random.Random(0).randbytes(1 << 20).hex().encode()
        heads = [self._head(delta) for delta in range(per_batch)]
        now_ms = time_ns() // 1_000_000
        at = 0
        for base in range(0, count, per_batch):
            parts: list[bytes] = []
            some = numbers[base : base + per_batch]
            for head, number in zip(heads, some, strict=False):
                at = (at + 7919) % (len(drawn) - drawn_bytes)
                parts += (head, b"%016d" % number, self._value_size(), fixed)
                parts += (drawn[at : at + drawn_bytes], b"\x00")
            yield _batch(base, len(some), b"".join(parts), self.codec, now_ms)

    def _head(self, delta: int) -> bytes:
        """A record up to its key; its time is the batch's."""
        inside = b"\x00\x00" + uvarint(2 * delta) + uvarint(2 * KEY_BYTES)
        size = len(inside) + KEY_BYTES + len(self._value_size()) + self.value_bytes + 1
        return uvarint(2 * size) + inside

    def _value_size(self) -> bytes:
        return uvarint(2 * self.value_bytes)


def _batch(base: int, count: int, body: bytes, codec: Codec, now_ms: int) -> bytearray:
    payload = compress(codec, body)
    batch = bytearray(
        HEADER.pack(
            base,
            HEADER_BYTES - PREFIX_BYTES + len(payload),
            0,
            MAGIC,
            0,
            codec,
            count - 1,
            now_ms,
            now_ms,
            NO_PRODUCER,
            NO_EPOCH,
            NO_SEQUENCE,
            count,
        )
    )
    batch += payload
    batch[CRC_AT:CRC_FROM] = crc32c(memoryview(batch)[CRC_FROM:]).to_bytes(4, "big")
    return batch
