"""What a snapshot says of the archive: which offsets it has, and how to tell whether it still does.

Rule 1: a claim grows with the files that are committed with it, and never by anything else. So
        rows that somebody else deletes are missed, whatever was archived after them.
Rule 2: what was skipped stays known as lost, though the span goes over it.
"""

# Of a snapshot, as JSON:
# tidelog.spans  := {"partition": [start, end], ...}
# tidelog.rows   := {"partition": rows, ...}, all that were ever archived
# tidelog.epochs := {"partition": epoch, ...}, the leader's when the end was archived
# tidelog.lost   := {"partition": [[start, end], ...], ...}, deleted from the log unarchived

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tidelog.model import Epoch
from tidelog.spark.archive.files import ArchivedFile, WrittenFile
from tidelog.spark.archive.spans import Span, Spans, extended, skipped
from tidelog.spark.ranges import OffsetRange

SPANS: Final = "tidelog.spans"
ROWS: Final = "tidelog.rows"
EPOCHS: Final = "tidelog.epochs"
LOST: Final = "tidelog.lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What is archived of each partition; without anything, that of an empty table."""

    spans: Spans = field(default_factory=dict)
    rows: Mapping[int, int] | None = field(default_factory=dict)
    """None, if the table is older than the counting."""
    epochs: Mapping[int, Epoch] = field(default_factory=dict)
    """Only of partitions whose brokers have told it."""
    lost: Mapping[int, Sequence[Span]] = field(default_factory=dict)

    def after(
        self, moved: Iterable[OffsetRange], files: Iterable[WrittenFile], epochs: Mapping[int, Epoch]
    ) -> "Claim":
        """The claim once these ranges are archived in these files."""
        ranges = list(moved)
        rows = None if self.rows is None else dict(self.rows)
        if rows is not None:
            for file in files:
                rows[file.partition] = rows.get(file.partition, 0) + file.rows
        lost = {partition: list(spans) for partition, spans in self.lost.items()}
        for partition, span in skipped(self.spans, ranges):
            lost.setdefault(partition, []).append(span)
        moved_to = {one.partition for one in ranges}
        known = {at: epoch for at, epoch in self.epochs.items() if at not in moved_to}
        told = {at: epochs[at] for at in moved_to if epochs.get(at, -1) >= 0}
        return Claim(spans=extended(self.spans, ranges), rows=rows, epochs=known | told, lost=lost)

    def miscounted(self, files: Iterable[ArchivedFile]) -> list[str]:
        """Which partitions have other rows than were archived, if all files are these."""
        if self.rows is None:
            return []
        there: dict[int, int] = {}
        for file in files:
            there[file.partition] = there.get(file.partition, 0) + file.rows
        return [
            f"partition {at} has {there.get(at, 0)} rows, but {self.rows.get(at, 0)} were archived:"
            " another engine has changed the table"
            for at in sorted(there.keys() | self.rows.keys())
            if there.get(at, 0) != self.rows.get(at, 0)
        ]

    def as_properties(self) -> dict[str, str]:
        """What the snapshot is given."""
        documents: dict[str, Mapping[int, Any] | None] = {
            SPANS: self.spans,
            ROWS: self.rows,
            EPOCHS: self.epochs,
            LOST: self.lost,
        }
        return {
            name: json.dumps(_by_text(document), separators=(",", ":"))
            for name, document in documents.items()
            if document is not None
        }


def read_claim(told: Callable[[str], str | None]) -> Claim | None:
    """The claim of a snapshot that tells its properties; None, if it makes none."""

    def read(name: str) -> dict[int, Any] | None:
        text = told(name)
        return None if text is None else {int(at): value for at, value in json.loads(text).items()}

    spans = read(SPANS)
    if spans is None:
        return None
    return Claim(
        spans={at: Span(*span) for at, span in spans.items()},
        rows=read(ROWS),
        epochs=read(EPOCHS) or {},
        lost={at: [Span(*span) for span in some] for at, some in (read(LOST) or {}).items()},
    )


def _by_text(document: Mapping[int, Any]) -> dict[str, Any]:
    return {str(partition): value for partition, value in sorted(document.items())}
