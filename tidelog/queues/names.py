"""Many names in order, of which any may come or go at any time.

Rule: names stand in blocks, each sorted and behind the one before. One that comes or goes moves
      others of its block alone, however many there are.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import Generic, TypeVar

T = TypeVar("T", str, int)

_BLOCK = 512
"""Names of a block when it is made; one of twice as many is cut in two."""


class Names(Generic[T]):
    """Names, each once, in order.

    Invariant: no block is empty, and `_lasts` are the last names of the blocks.
    """

    __slots__ = ("_blocks", "_lasts")

    def __init__(self, names: Iterable[T] = ()) -> None:
        """These names in any order, each once; takes long for many, so do it in a thread."""
        ordered: list[T] = sorted(names)
        self._blocks: list[list[T]] = [ordered[at : at + _BLOCK] for at in range(0, len(ordered), _BLOCK)]
        self._lasts: list[T] = [block[-1] for block in self._blocks]

    def __iter__(self) -> Iterator[T]:
        return chain.from_iterable(self._blocks)

    def add(self, name: T) -> None:
        """A name that is not there."""
        if not self._blocks:
            self._blocks.append([name])
            self._lasts.append(name)
            return
        number = min(bisect_left(self._lasts, name), len(self._blocks) - 1)
        block = self._blocks[number]
        insort(block, name)
        if len(block) > 2 * _BLOCK:
            self._blocks[number : number + 1] = block[:_BLOCK], block[_BLOCK:]
            self._lasts.insert(number, block[_BLOCK - 1])
            number += 1
        self._lasts[number] = self._blocks[number][-1]

    def remove(self, name: T) -> None:
        """A name that is there."""
        number = bisect_left(self._lasts, name)
        block = self._blocks[number]
        at = bisect_left(block, name)
        assert block[at] == name, "only what was added goes"
        del block[at]
        if block:
            self._lasts[number] = block[-1]
        else:
            del self._blocks[number], self._lasts[number]

    def beyond(self, after: T) -> Iterator[T]:
        """The names beyond one, in order."""
        number = bisect_right(self._lasts, after)
        if number == len(self._blocks):
            return iter(())
        block = self._blocks[number]
        first = islice(block, bisect_right(block, after), None)
        return chain(first, chain.from_iterable(islice(self._blocks, number + 1, None)))
