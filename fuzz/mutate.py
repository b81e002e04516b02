"""Damage: what disks, networks and attackers do to bytes."""

import struct
from collections.abc import Callable, Sequence
from random import Random
from typing import Final

NUMBERS: Final = (
    0,
    1,
    -1,
    -2,
    2,
    4,
    0x7F,
    0x80,
    0xFF,
    0x7FFF,
    -0x8000,
    0xFFFF,
    2**20,
    2**24,
    2**30,
    2**31 - 1,
    -(2**31),
    2**32 - 1,
    2**40,
    2**63 - 1,
    -(2**63),
)
"""Where counting goes wrong."""


def flip(random: Random, data: bytearray) -> None:
    if data:
        data[random.randrange(len(data))] ^= 1 << random.randrange(8)


def overwrite(random: Random, data: bytearray) -> None:
    """Put a number from the edges somewhere, as one, two, four or eight bytes."""
    letter = random.choice("bhiq")
    size = struct.calcsize(">" + letter)
    if len(data) < size:
        return
    value = random.choice(NUMBERS) & ((1 << 8 * size) - 1)
    at = random.randrange(len(data) - size + 1)
    data[at : at + size] = value.to_bytes(size, "big")


def lie(random: Random, data: bytearray) -> None:
    """Replace a byte, which may be a length, by a varint that says something else."""
    if data:
        at = random.randrange(len(data))
        data[at : at + 1] = uvarint(random.choice(NUMBERS) & 0xFFFFFFFF)


def cut(random: Random, data: bytearray) -> None:
    if data:
        del data[random.randrange(len(data)) :]


def extend(random: Random, data: bytearray) -> None:
    data += random.choice((random.randbytes, bytes))(random.choice((1, 2, 7, 61, 400)))


def zero(random: Random, data: bytearray) -> None:
    start, end = _span(random, data)
    data[start:end] = bytes(end - start)


def scramble(random: Random, data: bytearray) -> None:
    start, end = _span(random, data)
    data[start:end] = random.randbytes(end - start)


def remove(random: Random, data: bytearray) -> None:
    start, end = _span(random, data)
    del data[start:end]


def duplicate(random: Random, data: bytearray) -> None:
    start, end = _span(random, data)
    at = random.choice((end, len(data), random.randint(0, len(data))))
    data[at:at] = data[start:end]


MUTATIONS: Final[Sequence[Callable[[Random, bytearray], None]]] = (
    flip,
    flip,
    overwrite,
    overwrite,
    lie,
    cut,
    extend,
    zero,
    scramble,
    remove,
    duplicate,
)


def mutate(random: Random, data: bytes, *, times_max: int = 3) -> bytes:
    """`data` with a few things done to it."""
    changed = bytearray(data)
    for _ in range(random.randint(1, times_max)):
        random.choice(MUTATIONS)(random, changed)
    return bytes(changed)


def uvarint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _span(random: Random, data: bytearray) -> tuple[int, int]:
    start = random.randint(0, len(data))
    size = random.choice((1, 4, 16, 61, 512, len(data)))
    return start, min(len(data), start + size)
