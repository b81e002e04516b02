"""Where each record of many batches begins, without a loop over the records.

Only the chain of lengths tells: each record's leads to the next record. But the chains of several
batches can be followed side by side, a record of each in one step of numpy; and a large batch is
cut into more chains, at places that look as if a record began there.

Rule 1: no guess is believed. The chain before it must end exactly there; else that chain goes on
        until it meets a guess that is right, and what began at those between is forgotten.
Rule 2: nothing inside of a batch is trusted. The starts that are returned lie in it, ascend, are
        as many as its header says, and the last record ends where the batch does.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

from tidelog.spark.varints import NOWHERE, Numbers, Octets, read_varint, read_varints

RECORD_BYTES_MIN: Final = 7
"""Length, attributes, time, offset, key, value and headers: a byte each."""

_CHAIN_RECORDS: Final = 64
"""Records between two guesses: fewer cost more guesses, more of them cost more steps."""
_CHAINS_MIN: Final = 32
"""Fewer chains than this are followed sooner by Python than by a step of numpy."""
_GUESSED_BYTES_MAX: Final = 1024
"""Records above this are few for their bytes, so that guessing would gain nothing."""
_HOPS: Final = 2
"""How many records a guess must lead to: payloads hold much that looks like one."""
_SIZE_MAX: Final = 2**31


def _strides() -> npt.NDArray[np.int32]:
    """How far it is to the next record, by the first two bytes of this one; 0 for a longer way."""
    low, high = np.arange(2**16) & 0xFF, np.arange(2**16) >> 8
    short = 1 + np.where(low & 1, 0, low >> 1)  # a negative size is as good as none: broken
    longer = 2 + np.where(low & 1, 0, (low & 0x7F | high << 7) >> 1)
    return np.where(low < 0x80, short, np.where(high < 0x80, longer, 0)).astype(np.int32)


_STRIDES: Final = _strides()


class BrokenBatch(Exception):
    """The records of a batch, the one of number `index`, do not fill it."""

    def __init__(self, index: int, reason: str) -> None:
        super().__init__(reason)
        self.index = index


def record_starts(data: bytes, begins: Sequence[int], ends: Sequence[int], counts: Sequence[int]) -> Numbers:
    """Where the records of all batches begin; the first byte of each is its length's.

    The records of batch i lie in data[begins[i]:ends[i]], and are counts[i] in number, at least
    one; batches follow each other. Raises BrokenBatch.
    """
    begin, end = np.array(begins, np.int64), np.array(ends, np.int64)
    count = np.array(counts, np.int64)
    for index in np.flatnonzero(count > (end - begin) // RECORD_BYTES_MIN):
        room = int(end[index] - begin[index])
        raise BrokenBatch(int(index), f"{count[index]} records cannot be in {room} bytes")
    view = np.frombuffer(data, np.uint8)
    at, stop = _cut(view, begin, end, count)
    starts, ended = _follow(data, view, at, stop)
    if len(missed := np.flatnonzero(ended != stop)):
        starts = _mend(data, starts, at, ended, missed, ends)
    starts.sort()
    found = np.searchsorted(starts, end) - np.searchsorted(starts, begin)
    for index in np.flatnonzero(found != count):
        raise BrokenBatch(int(index), f"it says {count[index]} records and holds {found[index]}")
    return starts


def _follow(data: bytes, view: Octets, at: Numbers, stop: Numbers) -> tuple[Numbers, Numbers]:
    """All starts from each `at` to its `stop`, in any order; and where each chain met or passed
    the stop."""
    chain = np.arange(len(at))
    ended = np.empty_like(at)
    starts: list[Numbers] = []
    last = stop - RECORD_BYTES_MIN
    while len(at) >= _CHAINS_MIN:
        starts.append(at)
        low, high = view[at], view[at + 1]
        stride = _STRIDES[low | high.astype(np.uint16) << 8]
        if not stride.all():
            size, after = read_varints(view, at)
            at = after + np.clip(size, 0, _SIZE_MAX)
        else:
            at = at + stride
        goes_on = at <= last
        if not goes_on.all():
            ended[chain[~goes_on]] = at[~goes_on]
            chain, at, last = chain[goes_on], at[goes_on], last[goes_on]
    rest: list[int] = []
    for number, place in zip(chain.tolist(), at.tolist(), strict=True):
        ended[number] = _hop(data, place, int(stop[number]), rest)
    return np.concatenate([*starts, np.array(rest, np.int64)]), ended


def _hop(data: bytes, at: int, stop: int, starts: list[int]) -> int:
    """Add the starts of records from `at` to below `stop`; where the last of them ends."""
    try:
        while at < stop:
            starts.append(at)
            if (raw := data[at]) < 0x80:
                at += 1 + (raw >> 1)
            elif (high := data[at + 1]) < 0x80:
                at += 2 + ((raw + ((high - 1) << 7)) >> 1)
            else:
                size, at = read_varint(data, at)
                at += max(size, 0)
    except IndexError:
        return NOWHERE
    return at


def _mend(
    data: bytes, starts: Numbers, at: Numbers, ended: Numbers, missed: Numbers, ends: Sequence[int]
) -> Numbers:
    """Go on where chains passed the guess that was to follow, until they meet one that is right."""
    guesses = frozenset(at.tolist())
    is_wrong = np.zeros(len(at), np.bool_)
    found: list[int] = []
    for chain in missed.tolist():
        if is_wrong[chain]:
            continue
        index = int(np.searchsorted(ends, at[chain], "right"))
        place = int(ended[chain])
        while place < ends[index] and place not in guesses:
            place = _hop(data, place, place + 1, found)
        if place > ends[index]:
            raise BrokenBatch(index, "its records do not fill it exactly")
        is_wrong[chain + 1 : int(np.searchsorted(at, place))] = True
    of = np.searchsorted(at, starts, "right") - 1
    return np.concatenate([starts[~is_wrong[of]], np.array(found, np.int64)])


def _cut(view: Octets, begin: Numbers, end: Numbers, count: Numbers) -> tuple[Numbers, Numbers]:
    """Chains: where each begins and where it has to end, by position."""
    room = end - begin
    more = np.where(room <= _GUESSED_BYTES_MAX * count, (count - 1) // _CHAIN_RECORDS, 0)
    if not more.any():
        return begin, end
    batch = np.repeat(np.arange(len(begin)), more)
    number = np.arange(1, len(batch) + 1) - np.repeat(np.cumsum(more) - more, more)
    near = begin[batch] + room[batch] * number // (more[batch] + 1)
    width = int(2 * room[more > 0].sum() // count[more > 0].sum()) + 16
    at = np.union1d(begin, _guess(view, near, end[batch], width))
    batch = np.searchsorted(begin, at, "right") - 1
    stop = end[batch]
    stop[:-1] = np.minimum(stop[:-1], at[1:])
    return at, stop


def _guess(view: Octets, near: Numbers, end: Numbers, width: int) -> Numbers:
    """Places within `width` bytes behind `near` where records may begin: one for each, at most.

    A record begins with a length of one or two bytes (three are rare) and a zero; and where it
    ends, another one begins.
    """
    whole = near <= len(view) - width
    near, end = near[whole], end[whole]
    if not len(near):
        return near
    window = sliding_window_view(view, width)[near]
    zero, short = window == 0, window < 0x80
    fits = short[:, :-2] & zero[:, 1:-1]
    fits |= ~short[:, :-2] & short[:, 1:-1] & zero[:, 2:]
    row, column = np.divmod(np.flatnonzero(fits), width - 2)
    guess, end = near[row] + column, end[row]
    likely = guess < end
    at = guess
    for _ in range(_HOPS):
        size, after = read_varints(view, at)
        leads_on = view.take(after, mode="clip") == 0
        leads_on &= (size >= RECORD_BYTES_MIN - 1) & (size <= end - after)
        likely &= leads_on | (at == end)
        at = np.where(leads_on, after + size, at)
    _, first = np.unique(row[likely], return_index=True)
    return guess[likely][first]
