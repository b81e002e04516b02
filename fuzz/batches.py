"""Batches to begin with: good ones, and some whose checksum fits though nothing else does."""

import struct
from random import Random
from typing import Final

from crc32c import crc32c

from fuzz.mutate import NUMBERS, mutate, uvarint
from tidelog.records import CRC_AT, CRC_FROM, HEADER_BYTES, Codec, Record, encode_batch

PRODUCERS: Final = (-1, -1, -1, 7, 8, 2**40, -5)
NOW_MS: Final = 1_800_000_000_000
TIMES_MS: Final = (NOW_MS, NOW_MS + 1, NOW_MS - 10**9, 0, -1, 5)

_HEADER_FIELDS: Final = (
    ("h", 21),
    ("i", 23),
    ("q", 27),
    ("q", 35),
    ("q", 43),
    ("h", 51),
    ("i", 53),
    ("i", 57),
)
"""Formats and places of attributes, last delta, times, producer, epoch, sequence and count."""


def random_records(random: Random, *, count_max: int = 5) -> list[Record]:
    return [
        Record(
            key=random.choice((None, b"", b"key")),
            value=random.choice((None, b"", b"v" * random.choice((1, 9, 100, 700)))),
            headers=random.choice(((), (("h", b"1"),), (("", None), ("x" * 30, b"")))),
            timestamp_ms=random.choice(TIMES_MS),
        )
        for _ in range(random.randint(1, count_max))
    ]


def random_batch(random: Random, *, base_offset: int = 0, leader_epoch: int = -1) -> bytearray:
    """A batch that is as it should be."""
    producer = random.choice(PRODUCERS)
    return encode_batch(
        random_records(random),
        codec=random.choice((Codec.NONE, Codec.NONE, *Codec)),
        producer_id=producer,
        producer_epoch=-1 if producer == -1 else random.choice((0, 0, 0, 1)),
        base_sequence=-1 if producer == -1 else random.choice((0, 0, 1, 2, 2**31 - 2)),
        base_offset=base_offset,
        leader_epoch=leader_epoch,
    )


def reseal(batch: bytearray) -> bytearray:
    """Give the batch the length and the checksum that fit its bytes, whatever they are."""
    if len(batch) >= HEADER_BYTES:
        struct.pack_into(">i", batch, 8, len(batch) - 12)
        struct.pack_into(">I", batch, CRC_AT, crc32c(memoryview(batch)[CRC_FROM:]))
    return batch


def lying_batch(random: Random) -> bytearray:
    """A batch whose checksum is right and whose fields or records are not."""
    if random.random() < 0.2:
        return far_batch(random)
    batch = random_batch(random)
    if random.random() < 0.5:
        letter, at = random.choice(_HEADER_FIELDS)
        bits = 8 * struct.calcsize(">" + letter)
        value = random.choice(NUMBERS) & ((1 << bits) - 1)
        batch[at : at + bits // 8] = value.to_bytes(bits // 8, "big")
    else:
        batch[HEADER_BYTES:] = mutate(random, bytes(batch[HEADER_BYTES:]))
    return reseal(batch)


def far_batch(random: Random) -> bytearray:
    """A batch with one record, whose time or offset is further off than a number can say."""
    far = random.choice((2**31, 2**62, 2**63 - 1, 2**63, 2**68))
    time_delta, offset_delta = random.choice(((far, 0), (0, far), (far, far)))
    record = b"\0" + uvarint(2 * time_delta) + uvarint(2 * offset_delta) + b"\1\1\0"
    batch = encode_batch([Record(timestamp_ms=random.choice(TIMES_MS))])
    batch[HEADER_BYTES:] = uvarint(2 * len(record)) + record
    return reseal(batch)


def any_batch(random: Random) -> bytes:
    """What a producer, an old one, a broken one or an attacker may send."""
    match random.randrange(10):
        case 0:
            return mutate(random, bytes(random_batch(random)))
        case 1 | 2:
            return bytes(lying_batch(random))
        case 3:
            return bytes(random_batch(random) + random_batch(random))
        case 4:
            return random.choice((b"", b"\0" * 17, random.randbytes(30), _old_message(random)))
        case _:
            return bytes(random_batch(random))


def _old_message(random: Random) -> bytes:
    """A message set of format 0 or 1: offset, size, crc, magic, attributes, key, value."""
    body = struct.pack(">Ibbiis", 0, random.choice((0, 1)), 0, -1, 1, b"v")
    return struct.pack(">qi", 0, len(body)) + body
