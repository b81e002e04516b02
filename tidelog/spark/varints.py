"""Zigzag varints by the column: a whole array of them in a few calls of numpy.

Rule 1: work goes by the width of a number, not by the number: one turn of a loop for each byte that
        the longest of them has.
Rule 2: reading never raises and never leaves `data`: a position beyond its end gives the last byte.
        Whoever asks compares the positions that come back with the ends that he knows.
Rule 3: a varint that is written is the low bytes of a word, and a width: words are shifted together
        much faster than bytes are put side by side.
Rule 4: a number that does not fit 64 bits ends `NOWHERE`, which lies behind any end.
"""

from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

Octets: TypeAlias = npt.NDArray[np.uint8]
Numbers: TypeAlias = npt.NDArray[np.int64]
Words: TypeAlias = npt.NDArray[np.uint64]

NOWHERE: Final = 2**62
_LAST_SHIFT: Final = 63
"""Of the tenth byte, one bit is left to be filled."""
_LOW_BITS: Final = np.uint64(0x7F)


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """One number that begins at `at`, and the position behind it.

    IndexError if it does not end inside of `data`, or in ten bytes. For the few that are not worth
    a call of numpy.
    """
    raw = shift = 0
    while shift <= _LAST_SHIFT:
        byte = data[at]
        at += 1
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (raw >> 1) ^ -(raw & 1), at
        shift += 7
    raise IndexError("a number of over ten bytes")


def read_varints(data: Octets, at: Numbers) -> tuple[Numbers, Numbers]:
    """The numbers that begin at the positions `at`, and the positions behind them."""
    byte = data.take(at, mode="clip")
    raw = (byte & 0x7F).astype(np.int64)
    after = at + 1
    longer = np.flatnonzero(byte & 0x80)
    shift = 7
    if 4 * len(longer) > len(at):  # to read a second byte of all is faster than to pick some
        more = byte >> 7
        byte = data.take(after, mode="clip")
        raw += (byte & 0x7F).astype(np.int64) * more << shift
        after += more
        longer = np.flatnonzero(byte & more << 7)
        shift = 14
    while len(longer):
        byte = data.take(after[longer], mode="clip")
        raw[longer] |= (byte & 0x7F).astype(np.int64) << shift
        after[longer] += 1
        if shift == _LAST_SHIFT:
            after[longer[byte > 1]] = NOWHERE
            break
        longer = longer[byte >= 0x80]
        shift += 7
    return (raw.view(np.uint64) >> np.uint64(1)).view(np.int64) ^ -(raw & 1), after


def write_varints(values: Numbers) -> tuple[Words, Numbers]:
    """The varints of numbers below 2**54, each in the low bytes of a word; and their widths."""
    zigzag = ((values << 1) ^ (values >> 63)).view(np.uint64)
    largest = int(zigzag.max(initial=0))
    assert largest < 2**56, "eight bytes of seven bits"
    words = zigzag & _LOW_BITS
    widths = np.ones(len(values), np.int64)
    shift = 7
    while largest >> shift:
        more = zigzag >> np.uint64(shift)
        goes_on = more != 0
        byte = np.uint64(8 * (shift // 7))
        words |= goes_on.astype(np.uint64) << (byte - np.uint64(1))
        words |= (more & _LOW_BITS) << byte
        widths += goes_on
        shift += 7
    return words, widths
