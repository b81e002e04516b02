"""Batches, damaged and lying and far too large when unpacked, into everything that decodes them.

What must hold: only errors that a client can be told of; no more memory than the limit allows;
both ways of reading a batch agree.
"""

# case := the bytes of what should be one batch

import struct
import tracemalloc
from random import Random
from typing import Final

from fuzz.batches import any_batch, lying_batch, reseal
from fuzz.mutate import mutate
from fuzz.runner import Broken
from tidelog.errors import BrokerError
from tidelog.records import (
    HEADER_BYTES,
    Codec,
    Record,
    check_batch,
    compress,
    decode_batch,
    decompress,
    encode_batch,
    iterate_batches,
    iterate_times,
)

SIZE_MAX: Final = 64 * 1024
MEMORY_TIMES_MAX: Final = 100
"""A record of seven bytes becomes an object of some two hundred."""

TINY_RECORD: Final = b"\x0c\0\0\0\1\1\0"  # six bytes: no key, no value, no headers
SNAPPY_JAVA: Final = b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1)


class RecordsFuzzer:
    name = "records"

    def __init__(self) -> None:
        self._bombs = [*map(bytes, _bombs())]
        tracemalloc.start(1)

    def make(self, random: Random) -> bytes:
        if random.random() < 0.03:
            bomb = random.choice(self._bombs)
            return random.choice((bomb, mutate(random, bomb)))
        match random.randrange(16):
            case 0 | 1 | 2:
                return any_batch(random)
            case 3:
                return mutate(random, any_batch(random))
            case 4:
                return bytes(reseal(bytearray(mutate(random, any_batch(random)))))
            case _:
                return bytes(lying_batch(random))

    def check(self, case: bytes) -> int:
        tracemalloc.reset_peak()
        before, _ = tracemalloc.get_traced_memory()
        _check_reading(case)
        _, peak = tracemalloc.get_traced_memory()
        if peak - before > MEMORY_TIMES_MAX * SIZE_MAX + 8 * len(case):
            raise Broken(f"a batch of {len(case)} bytes took {peak - before} bytes of memory")
        return 1


def _check_reading(case: bytes) -> None:
    try:
        check_batch(case)
    except BrokerError:
        pass
    for _, batch in iterate_batches(case):
        if not HEADER_BYTES <= len(batch) <= len(case):
            raise Broken(f"a batch of {len(batch)} bytes in {len(case)}")
    for codec in Codec:
        try:
            size = len(decompress(codec, case[HEADER_BYTES:], size_max=SIZE_MAX))
        except BrokerError:
            continue
        if codec is not Codec.NONE and size > SIZE_MAX:
            raise Broken(f"{codec.name} gave {size} bytes, over the limit of {SIZE_MAX}")
    try:
        records = decode_batch(case, size_max=SIZE_MAX)
    except BrokerError:
        try:
            for _ in iterate_times(case, size_max=SIZE_MAX):
                pass
        except BrokerError:
            pass
        return
    times = list(iterate_times(case, size_max=SIZE_MAX))
    if times != [(record.offset, record.timestamp_ms) for record in records]:
        raise Broken(f"two ways to read a batch differ: {times} and {records}")


def _bombs() -> list[bytearray]:
    """Batches of a few kilobytes that hold megabytes, of nothing or of tiny records."""
    made = []
    for codec in Codec:
        if codec is Codec.NONE:
            continue
        for plain, count in (
            (bytes(8 * 1024 * 1024), 1),
            (TINY_RECORD * 300_000, 300_000),
            (TINY_RECORD * (SIZE_MAX // len(TINY_RECORD)), SIZE_MAX // len(TINY_RECORD)),
        ):
            made.append(_bomb(codec, compress(codec, plain), count))
    block = compress(Codec.SNAPPY, bytes(200_000))
    framed = SNAPPY_JAVA + 50 * (struct.pack(">i", len(block)) + block)
    made.append(_bomb(Codec.SNAPPY, framed, 1))
    made.append(_bomb(Codec.SNAPPY, b"\xff\xff\xff\xff\x0f" + bytes(20), 1))  # says 4 GiB
    made.append(_bomb(Codec.SNAPPY, SNAPPY_JAVA + b"\x7f\xff\xff\xff", 1))
    return made


def _bomb(codec: Codec, payload: bytes, count: int) -> bytearray:
    batch = encode_batch([Record(value=b"")], codec=codec)
    batch[HEADER_BYTES:] = payload
    struct.pack_into(">i", batch, 23, count - 1)
    struct.pack_into(">i", batch, 57, count)
    return reseal(batch)
