"""One simulated file: what readers see, what the device holds, and where the two may differ.

Rule 1: only `sync` makes bytes durable; `write_back` is the kernel doing some of it on its own.
Rule 2: pages whose sync failed are called clean. So the kernel may drop them from memory at any
        time, and from then on readers see the bytes that the device has had all along.
"""

import random
from collections.abc import Iterable, Iterator
from typing import Final, TypeAlias

from tidelog.host import Bytes

_MERGE_RANGES_MIN: Final = 1000

_Range: TypeAlias = tuple[int, int]


class Inode:
    """One file: what readers see, what the device holds, and where the two may differ.

    Invariant: `cached` and `durable` are equal outside of `dirty`, unless a sync failed.
    Invariant: `size_low` is the smallest size since the last sync, None if it never changed.
    Invariant: `lost` is in memory alone, though nothing of it is `dirty`.
    """

    __slots__ = ("cached", "dirty", "durable", "linked", "locked_in", "lost", "merge_at", "size_low")

    def __init__(self) -> None:
        self.cached = bytearray()
        self.durable = bytearray()
        self.dirty: list[_Range] = []
        self.lost: list[_Range] = []  # a sync of it failed
        self.size_low: int | None = None
        self.merge_at = _MERGE_RANGES_MIN
        self.linked = True  # readers find a name for it
        self.locked_in: int | None = None  # the incarnation that holds its lock

    def resize(self, size: int) -> None:
        """Cut, or grow with zeros. Whatever was or comes beyond the smaller size is unsynced."""
        before = len(self.cached)
        if size == before:
            return
        low = len(self.durable) if self.size_low is None else self.size_low
        self.size_low = min(low, size)
        _resize(self.cached, size)
        self._mark(min(before, size), max(before, size))

    def put(self, position: int, data: Bytes) -> None:
        end = position + len(data)
        assert end <= len(self.cached), "the disk resizes first, and counts the bytes"
        self.cached[position:end] = data
        self._mark(position, end)

    def sync(self) -> None:
        if self.size_low is not None:
            _resize(self.durable, len(self.cached))
        for start, end in self.dirty:
            if start > len(self.durable):  # a failed sync lost what lies between
                _resize(self.durable, start)
            self.durable[start:end] = self.cached[start:end]
        self.call_clean()

    def call_clean(self) -> None:
        """Forget what is unsynced. After a failed sync that is a lie, and Linux tells it."""
        self.dirty.clear()
        self.size_low = None

    def lose(self) -> None:
        """Fail to sync: what is dirty will be in memory alone, and only for as long as it stays."""
        self.lost += _merged(self.dirty)
        self.call_clean()

    def drop_lost(
        self, generator: random.Random, sector_bytes: int, start: int = 0, end: int | None = None
    ) -> None:
        """Let a random part of what is lost leave memory: all of what lies in a range, if one is
        given. The size stays, as file systems keep it apart from the bytes."""
        chance = 1.0 if end is not None else generator.choice((0.0, 0.5, 1.0))
        kept: list[_Range] = []
        for low, high in _merged(self.lost):
            high = min(high, len(self.cached))
            while low < high:
                stop = min(high, (low // sector_bytes + 1) * sector_bytes)
                if stop <= start or (end is not None and low >= end) or generator.random() >= chance:
                    kept.append((low, stop))
                else:
                    self.cached[low:stop] = self.durable[low:stop].ljust(stop - low, b"\0")
                low = stop
        self.lost = _merged(kept)

    def write_back(self, generator: random.Random, sector_bytes: int) -> None:
        """Let a random part of what is unsynced reach the device; it stays unsynced.

        A torn sector is new up to some byte and old from there. Only where the device held nothing
        before can there be zeros: it does not blank what it overwrites.
        """
        new_chance = generator.choice((0.0, 0.5, 1.0, generator.random()))
        torn_chance = generator.choice((0.0, 0.1))
        image = self.durable
        held = len(image)
        if self.size_low is not None:
            low, high = self.size_low, max(len(self.durable), len(self.cached))
            between = generator.randint(low, high)
            _resize(image, generator.choice((low, high, len(self.cached), between)))
        for start, end in _merged(self.dirty):
            end = min(end, len(image))
            while start < end:
                stop = min(end, (start // sector_bytes + 1) * sector_bytes)
                new = self.cached[start:stop].ljust(stop - start, b"\0")
                if generator.random() < torn_chance:
                    cut = generator.randint(0, stop - start)
                    old = image[start + cut : stop]
                    blank = bytes(stop - start - cut) if stop > held else old
                    rest = generator.choice((old, blank))
                    image[start:stop] = new[:cut] + rest
                elif generator.random() < new_chance:
                    image[start:stop] = new
                start = stop

    def _mark(self, start: int, end: int) -> None:
        if self.lost:
            self.lost = [*_without(self.lost, start, end)]
        if self.dirty and self.dirty[-1][0] <= start <= self.dirty[-1][1]:  # the usual append
            self.dirty[-1] = (self.dirty[-1][0], max(end, self.dirty[-1][1]))
            return
        if len(self.dirty) >= self.merge_at:  # a file that is never synced is rewritten for ever
            self.dirty = _merged(self.dirty)
            self.merge_at = max(_MERGE_RANGES_MIN, 2 * len(self.dirty))
        self.dirty.append((start, end))


def _resize(content: bytearray, size: int) -> None:
    if size < len(content):
        del content[size:]
    else:
        content.extend(bytes(size - len(content)))


def _without(ranges: Iterable[_Range], start: int, end: int) -> Iterator[_Range]:
    """The bytes of the ranges that are not in [start, end)."""
    for low, high in ranges:
        if low < min(high, start):
            yield low, min(high, start)
        if max(low, end) < high:
            yield max(low, end), high


def _merged(ranges: Iterable[_Range]) -> list[_Range]:
    """The same bytes as sorted ranges that do not touch."""
    merged: list[_Range] = []
    for start, end in sorted(ranges):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged
