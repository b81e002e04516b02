"""Which offsets are in the archive and which in the log, and what follows from it.

Rule 1: nothing here asks a cluster or a catalog; every function is pure.
Rule 2: a span tells which offsets were looked at. Fewer records may be there: markers of
        transactions, aborted records and compacted ones leave holes.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import Final, NamedTuple, TypeAlias

from tidelog.errors import TidelogError
from tidelog.model import Offset
from tidelog.spark.ranges import OffsetRange, split

FIRST_ROWS: Final = 100_000
"""Of a file, while nobody knows how large the rows of a topic are."""
ROWS_MIN: Final = 1_000
ROWS_MAX: Final = 20_000_000


class Span(NamedTuple):
    """[start, end) of one partition."""

    start: Offset
    end: Offset


Spans: TypeAlias = dict[int, Span]
"""By partition."""
NOTHING_LOST: Final[Mapping[int, Sequence[Span]]] = {}


class RecordsLost(TidelogError):
    """The log has deleted records that were never archived; the message says which."""


class ArchiveAhead(TidelogError):
    """The archive has records that the log has not, or no longer; nothing is taken or trimmed."""


# Into the archive.


def lacking(
    topic: str, log: Mapping[int, Span], archived: Mapping[int, Span], *, skip_lost: bool = False
) -> list[OffsetRange]:
    """What the log has and the archive has not; a partition that is new begins where the log does.

    `skip_lost` goes on after records that are gone from the log.
    """
    found = []
    for partition, held in sorted(log.items()):
        end = archived[partition].end if partition in archived else held.start
        check_reaches(topic, partition, held.end, end)
        if end < held.start and not skip_lost:
            raise RecordsLost(
                f"offsets {end} to {held.start - 1} of {topic}-{partition} were deleted from the "
                "log before they were archived. Add --skip-lost to go on without them"
            )
        found.append(OffsetRange(topic, partition, max(end, held.start), held.end))
    return [one for one in found if one.count]


def check_reaches(topic: str, partition: int, log_end: Offset, archived_end: Offset) -> None:
    """ArchiveAhead, unless the log goes as far as its archive."""
    if archived_end > log_end:
        raise ArchiveAhead(
            f"{topic}-{partition} is archived up to offset {archived_end}, but its log ends at "
            f"{log_end}: the log was cut. `tidelog archive run` with --new-table begins anew, and "
            "keeps this table under another name"
        )


def check_kept(topic: str, archived: Mapping[int, Span], epoch_ends: Mapping[int, Offset]) -> None:
    """ArchiveAhead, if a log was cut before the archived end, though it may have grown since.

    `epoch_ends` says where the epoch of the archived end has ended by now, if the log knows of it.
    """
    for partition, end in sorted(epoch_ends.items()):
        archived_end = archived[partition].end
        if end < archived_end:
            raise ArchiveAhead(
                f"{topic}-{partition} is archived up to offset {archived_end}, but its log was cut "
                f"at {end} since, by an unclean election, and has other records from there on. "
                "`tidelog archive run` with --new-table begins anew, and keeps this table under "
                "another name"
            )


def rows_for(bytes_wanted: int, *, rows: int, bytes_taken: int) -> int:
    """How many rows make a file of that size, by what the table has."""
    if not rows or not bytes_taken:
        return FIRST_ROWS
    return min(max(bytes_wanted * rows // bytes_taken, ROWS_MIN), ROWS_MAX)


def whole(ranges: Iterable[OffsetRange], rows: int) -> list[OffsetRange]:
    """Only as much of each range as makes whole files; the rest waits until it is older."""
    cut = (
        OffsetRange(one.topic, one.partition, one.start, one.start + one.count // rows * rows)
        for one in ranges
    )
    return [one for one in cut if one.count]


def next_round(ranges: Iterable[OffsetRange], *, rows: int, tasks_max: int) -> list[OffsetRange]:
    """The ranges to move now, one for each task; of every partition its oldest first."""
    lanes = [_chunks(one, rows) for one in ranges]
    turns = (chunk for turn in zip_longest(*lanes) for chunk in turn if chunk is not None)
    return sorted(chunk for chunk, _ in zip(turns, range(tasks_max), strict=False))


def _chunks(one: OffsetRange, rows: int) -> Iterable[OffsetRange]:
    """Pieces of about `rows`; a rest of less than half a piece is shared out, not a file."""
    pieces = max(1, round(one.count / rows))
    return split([one], rows_max=-(-one.count // pieces))


def extended(archived: Mapping[int, Span], moved: Iterable[OffsetRange]) -> Spans:
    """What is archived once the moved ranges are, too."""
    spans = dict(archived)
    for one in sorted(moved):
        known = spans.get(one.partition)
        assert known is None or known.end <= one.start, f"{one} is archived already"
        spans[one.partition] = Span(known.start if known else one.start, one.end)
    return spans


def skipped(archived: Mapping[int, Span], moved: Iterable[OffsetRange]) -> list[tuple[int, Span]]:
    """What lies between the archive and the ranges that were moved: the log had it no more."""
    ends = {partition: span.end for partition, span in archived.items()}
    found = []
    for one in sorted(moved):
        end = ends.get(one.partition, one.start)
        if end < one.start:
            found.append((one.partition, Span(end, one.start)))
        ends[one.partition] = one.end
    return found


# Out of the log.


def trimmable(
    topic: str, log: Mapping[int, Span], archived: Mapping[int, Span], wish: Mapping[int, Offset]
) -> dict[int, Offset]:
    """Where each log may begin: where it is wished, but never past what is archived."""
    starts = {}
    for partition, held in log.items():
        if partition in archived:
            check_reaches(topic, partition, held.end, archived[partition].end)
        if partition in archived and archived[partition].start <= held.start:
            start = min(archived[partition].end, wish[partition], held.end)
            if start > held.start:
                starts[partition] = start
    return starts


# Both as one.


class Parts(NamedTuple):
    """A read, cut where the archive ends."""

    archived: list[OffsetRange]
    live: list[OffsetRange]


def cut_history(
    wanted: Iterable[OffsetRange],
    archived: Mapping[int, Span],
    log: Mapping[int, Span],
    *,
    lost: Mapping[int, Sequence[Span]] = NOTHING_LOST,
    may_lose: bool = False,
    prefer_log: bool = False,
) -> Parts:
    """What to read from the archive, which goes first, and what from the log.

    RecordsLost, if some of it is in neither, unless it `may_lose` that; `lost` says what the
    archive lacks within its spans, for it was told to skip it. Who would `prefer_log`
    gets from the archive only ranges that the log has not in whole.
    """
    parts = Parts([], [])
    for one in wanted:
        kept = archived.get(one.partition, Span(one.start, one.start))
        held = log.get(one.partition, Span(kept.end, kept.end))
        if prefer_log and held.start <= one.start:
            kept = Span(one.start, one.start)
        first = kept.start if kept.end > kept.start else held.start
        gaps = (
            Span(one.start, first),
            *(Span(max(one.start, gap.start), gap.end) for gap in lost.get(one.partition, ())),
            Span(max(one.start, kept.end), held.start),
        )
        missing = [gap for gap in gaps if gap.start < min(gap.end, one.end)]
        if missing and not may_lose:
            gone = missing[0]
            where = f"{kept.start} to {kept.end - 1}"
            if kept.start <= gone.start < kept.end:
                where += " without them"
            raise RecordsLost(
                f"offsets {gone.start} to {min(gone.end, one.end) - 1} of "
                f"{one.topic}-{one.partition} are neither in the archive, which has {where}, nor "
                f"in the log, which begins at {held.start}. Start later, or set "
                "failOnDataLoss=false to read without them"
            )
        for part, span in ((parts.archived, kept), (parts.live, Span(max(kept.end, held.start), one.end))):
            start, end = max(one.start, span.start), min(one.end, span.end)
            if start < end:
                part.append(OffsetRange(one.topic, one.partition, start, end))
    return parts
