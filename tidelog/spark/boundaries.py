"""Where each record of many batches begins, without a loop over the records.

Only the chain of lengths tells: each record's leads to the next record. But the chains of several
batches can be followed side by side, a record of each in one step of numpy; and a large batch is
cut into more chains, at places that look as if a record began there.

Rule 1: no guess is believed. The chain before it must end exactly there, or the batch is followed
        once more from its beginning, record by record.
Rule 2: nothing inside of a batch is trusted. The starts that are returned lie in it, ascend, are
        as many as its header says, and the last record ends where the batch does.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from tidelog.spark.varints import Numbers, Octets, read_varint, read_varints

RECORD_BYTES_MIN: Final = 7
"""Length, attributes, time, offset, key, value and headers: a byte each."""

_CHAIN_RECORDS: Final = 64
"""Records between two guesses: fewer cost more guesses, more of them cost more steps."""
_CHAINS_MIN: Final = 24
"""With fewer chains, Python follows them sooner than a step of numpy takes."""
_GUESSED_BYTES_MAX: Final = 1024
"""Records above this are few for their bytes, so that guessing would gain nothing."""
_HOPS: Final = 2
"""How many records a guess must lead to: payloads hold much that looks like one."""
_SIZE_MAX: Final = 2**31


class BrokenBatch(Exception):
    """The records of a batch, the one of number `index`, do not fill it."""

    def __init__(self, index: int, reason: str) -> None:
        super().__init__(reason)
        self.index = index


def record_starts(
    data: bytes, begins: Sequence[int], ends: Sequence[int], counts: Sequence[int]
) -> Numbers:
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
    if len(at) < _CHAINS_MIN:
        return np.array(
            [
                at
                for index in range(len(begins))
                for at in _scan(data, index, begins[index], ends[index], counts[index])
            ],
            np.int64,
        )
    starts, open_ends = _follow(view, at, stop)
    broken = np.unique(np.searchsorted(end, open_ends))
    if len(broken):
        kept = np.isin(np.searchsorted(end, starts, "right"), broken, invert=True)
        again = [_scan(data, int(i), begins[i], ends[i], counts[i]) for i in broken]
        starts = np.concatenate([starts[kept], *again])
    starts.sort()
    found = np.searchsorted(starts, end) - np.searchsorted(starts, begin)
    for index in np.flatnonzero(found != count):
        raise BrokenBatch(int(index), f"it says {count[index]} records and holds {found[index]}")
    return starts


def _scan(data: bytes, index: int, begin: int, end: int, count: int) -> list[int]:
    """The starts of one batch, record by record."""
    starts: list[int] = []
    at = begin
    try:
        for _ in range(count):
            starts.append(at)
            if (raw := data[at]) < 0x80:
                at += 1 + (raw >> 1)
            elif (high := data[at + 1]) < 0x80:
                at += 2 + ((raw + ((high - 1) << 7)) >> 1)
            else:
                size, at = read_varint(data, at)
                at += max(size, 0)
    except IndexError:
        at = -1
    if at != end:
        raise BrokenBatch(index, f"{count} records do not fill its {end - begin} bytes exactly")
    return starts


def _follow(view: Octets, at: Numbers, stop: Numbers) -> tuple[Numbers, Numbers]:
    """All starts from each `at` to its `stop`, in any order, and the stops that were not met."""
    starts, missed = [], []
    while len(at) >= _CHAINS_MIN:
        starts.append(at)
        size, after = read_varints(view, at)
        at = after + np.clip(size, 0, _SIZE_MAX)
        if not (goes_on := at < stop).all():
            missed.append(stop[at > stop])
            at, stop = at[goes_on], stop[goes_on]
    return np.concatenate(starts), np.concatenate([*missed, stop])


def _cut(view: Octets, begin: Numbers, end: Numbers, count: Numbers) -> tuple[Numbers, Numbers]:
    """Chains: where each begins and where it has to end, by position."""
    room = end - begin
    more = np.where(room <= _GUESSED_BYTES_MAX * count, (count - 1) // _CHAIN_RECORDS, 0)
    if not more.any():
        return begin, end
    batch = np.repeat(np.arange(len(begin)), more)
    number = np.arange(1, len(batch) + 1) - np.repeat(np.cumsum(more) - more, more)
    near = begin[batch] + room[batch] * number // (more[batch] + 1)
    width = int((2 * room[more > 0] // count[more > 0]).max()) + 16
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
