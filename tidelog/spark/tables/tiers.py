"""Which small files become one.

Rule 1: files are put together with others of about their size, at least `FAN` at a time: each byte
        is written again once for each time that its file grows `FAN`-fold, and not more often.
Rule 2: what one round writes is bounded; the rest waits for the next.
"""

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Final, Generic, NamedTuple, TypeVar

FAN: Final = 8
SMALLEST_BYTES: Final = 64 * 1024
"""Below this all files are of one size."""
ROUND_BYTES: Final = 256 * 1024 * 1024

F = TypeVar("F")


class Sized(NamedTuple, Generic[F]):
    """A file, which may be put together with others of its group only."""

    file: F
    group: Hashable
    bytes: int


def tier(size: int) -> int:
    """Which size a file is of: each is `FAN` times the one before."""
    found, bound = 0, SMALLEST_BYTES
    while size >= bound:
        found, bound = found + 1, bound * FAN
    return found


def to_merge(files: Iterable[Sized[F]], *, file_bytes: int, round_bytes: int = ROUND_BYTES) -> list[list[F]]:
    """The files to put together now, those that become one in a list, in their order."""
    by_group: dict[tuple[Hashable, int], list[Sized[F]]] = defaultdict(list)
    for one in files:
        if one.bytes < file_bytes // 2:
            by_group[one.group, tier(one.bytes)].append(one)
    return _bounded(
        (some for several in by_group.values() for some in _cut(several, file_bytes)), round_bytes
    )


def adjacent_to_merge(
    files: Iterable[Sized[F]], *, file_bytes: int, round_bytes: int = ROUND_BYTES
) -> list[list[F]]:
    """The same, of files in a row: none that lies between two is left out."""
    runs: list[list[Sized[F]]] = []
    for one in files:
        if one.bytes >= file_bytes // 2:
            runs.append([])
            continue
        last = runs[-1][-1] if runs and runs[-1] else None
        if last is None or (last.group, tier(last.bytes)) != (one.group, tier(one.bytes)):
            runs.append([])
        runs[-1].append(one)
    return _bounded((some for run in runs for some in _cut(run, file_bytes)), round_bytes)


def _cut(files: Sequence[Sized[F]], file_bytes: int) -> Iterator[list[Sized[F]]]:
    """Lists of at least `FAN`, or of a whole file's worth."""
    some: list[Sized[F]] = []
    size = 0
    for one in files:
        if some and size + one.bytes > file_bytes:
            yield some
            some, size = [], 0
        some.append(one)
        size += one.bytes
    if len(some) >= FAN:
        yield some


def _bounded(merges: Iterable[list[Sized[F]]], round_bytes: int) -> list[list[F]]:
    chosen: list[list[F]] = []
    size = 0
    for some in merges:
        size += sum(one.bytes for one in some)
        if chosen and size > round_bytes:
            break
        if len(some) > 1:
            chosen.append([one.file for one in some])
    return chosen
