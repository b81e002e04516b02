"""Archive and log read as one: what the archive has comes from it, the rest from the log.

Rule 1: every offset comes from one of the two, told by where the archive ended when the read was
        planned; so no row comes twice, and none is left out between them.
Rule 2: what is in neither is data lost, and said so, unless the reader lets it be.
Rule 3: a plan names files. They are read as they were then, whatever is archived meanwhile.
"""

import uuid
from collections.abc import Iterable, Mapping
from typing import TypeAlias

from tidelog.model import Offset
from tidelog.spark.archive.catalog import load_topic, open_catalog
from tidelog.spark.archive.claims import Claim
from tidelog.spark.archive.files import ArchivedRange, read_archived
from tidelog.spark.archive.spans import Span, Spans, cut_history
from tidelog.spark.archive.tables import NotArchived, TopicTable
from tidelog.spark.ranges import OffsetRange, split

__all__ = ["History", "Part", "open_history", "read_archived"]

Part: TypeAlias = ArchivedRange | OffsetRange
"""What one task reads: a part of a file, or of the log."""


class History:
    """The archive of one topic, for those who plan reads. A topic without one has no spans."""

    def __init__(self, topic: str, table: TopicTable | None) -> None:
        self.topic = topic
        self._table = table
        claim = Claim() if table is None else table.claim
        self.spans: Spans = claim.spans
        self.lost = claim.lost

    def start(self, partition: int, log_start: Offset) -> Offset:
        """The first offset that can be read."""
        span = self.spans.get(partition)
        return log_start if span is None or span.end <= span.start else min(span.start, log_start)

    def first_at(self, partition: int, time_ms: int) -> Offset | None:
        """The first archived offset of that time or later; None, if there is none: ask the log."""
        span = self.spans.get(partition)
        if self._table is None or span is None:
            return None
        wanted = OffsetRange(self.topic, partition, span.start, span.end)
        return self._table.first_at(wanted, time_ms * 1000)

    def parts(
        self,
        wanted: Iterable[OffsetRange],
        log: Mapping[int, Span],
        *,
        may_lose: bool = False,
        prefer_log: bool = False,
        tasks_min: int | None = None,
        rows_max: int | None = None,
    ) -> list[Part]:
        """What to read for some ranges, in order of partition and offset.

        `log` says what the log has of each partition. RecordsLost, if some of it is in neither.
        Streams `prefer_log`, for which the archive is only the way to get there.
        """
        cut = cut_history(wanted, self.spans, log, lost=self.lost, may_lose=may_lose, prefer_log=prefer_log)
        parts: list[Part] = list(split(cut.live, tasks_min=tasks_min, rows_max=rows_max))
        if cut.archived and self._table is not None:
            parts += self._table.ranges(split(cut.archived, tasks_min=tasks_min, rows_max=rows_max))
        return sorted(parts, key=lambda part: (part.partition, part.start))


def open_history(
    warehouse: str, catalog: str | None, topic: str, topic_id: uuid.UUID | None = None
) -> History:
    """The archive of a topic. OtherTopic, if it is of a deleted one of the same name."""
    with open_catalog(warehouse, catalog) as opened:
        try:
            table = load_topic(opened, topic)
        except NotArchived:
            return History(topic, None)
        table.check_topic(topic_id)
        return History(topic, table)
