"""A topic as a stream of micro-batches.

Rule 1: a range that was planned once is read again after a crash, to the same offset.
Rule 2: Spark asks where the log ends, with the end of what it has done: so a question tells that
        everything before it is done, and the group's offsets say so to whoever watches.
Rule 3: partitions and topics that vanish in mid-query are data lost, and are reported as that.
"""

import logging
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)  # fmt: skip

from tidelog.errors import TidelogError
from tidelog.spark.asking import ask
from tidelog.spark.options import ReadOptions
from tidelog.spark.planning import Planner
from tidelog.spark.ranges import OffsetRange, Offsets, from_json, limit, to_json
from tidelog.spark.reading import DataLost, Reading, read_range
from tidelog.spark.rows import Projection

if TYPE_CHECKING:
    from tidelog.spark.archive.bridge import Part

logger = logging.getLogger(__name__)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One stream. On the driver it lives as long as the query does; tasks get a copy to `read`."""

    def __init__(self, options: ReadOptions, projection: Projection) -> None:
        self._options = options
        self._projection = projection
        self._planner = Planner(options)
        self._latest: Offsets = {}
        self._final: Offsets | None = None
        """Where a query that takes what is there now ends."""
        self._published: Offsets = {}
        self._waits_since: float | None = None

    # On the driver.

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return to_json(self._planner.starts())

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        rows = self._options.rows_max
        return ReadAllAvailable() if rows is None else ReadMaxRows(rows)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._final = self._planner.ends()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        begin = from_json(start, "the checkpoint's offset")
        self._publish(begin)
        self._latest = self._planner.ends()
        end = self._bounded(begin)
        if not self._is_enough(begin, end):
            return start
        if isinstance(limit, ReadMaxRows):
            end = self._limited(begin, end, limit.max_rows)
        return to_json(end)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        return to_json(self._latest) if self._latest else None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        begins = from_json(start, "the checkpoint's offset")
        ends = from_json(end, "the checkpoint's offset")
        new = self._planner.earliest(ends.keys() - begins.keys())
        late = sorted(place for place, first in new.items() if first > 0)
        if late and self._options.fail_on_data_loss:
            raise DataLost(
                f"{', '.join(map(str, late))}: new to this query, but the first records are gone. "
                "Set failOnDataLoss=false to begin with what is there"
            )
        begins |= new
        ranges = [
            OffsetRange(place.topic, place.partition, begins[place], ends[place])
            for place in sorted(ends)
        ]
        return [InputPartition(task) for task in self._planner.tasks(ranges, prefer_log=True)]

    def commit(self, end: dict[str, Any]) -> None:
        self._publish(from_json(end, "the checkpoint's offset"))

    def stop(self) -> None:
        """Connections are the process's, and end with it."""

    def _bounded(self, begin: Offsets) -> Offsets:
        """Ends for this batch: not behind what was read, nor beyond what was there at the start."""
        ends = dict(self._latest)
        if self._final is not None:
            ends = {place: min(ends.get(place, 0), at) for place, at in self._final.items()}
        gone = [place for place in begin if place not in ends]
        if gone and self._options.fail_on_data_loss:
            names = ", ".join(map(str, sorted(gone)))
            raise DataLost(
                f"{names}: gone while the query ran; was the topic deleted? Set "
                "failOnDataLoss=false to go on without it"
            )
        for place, at in begin.items():
            if place in ends and ends[place] < at:
                if self._options.fail_on_data_loss:
                    raise DataLost(
                        f"{place} ends at {ends[place]}, but the query has read to {at}: the topic "
                        "was made anew, or records were lost. Start with a new checkpoint, or set "
                        "failOnDataLoss=false to wait until it is as long again"
                    )
                ends[place] = at
        return ends

    def _is_enough(self, begin: Offsets, end: Offsets) -> bool:
        """Whether minOffsetsPerTrigger is met, or was waited for as long as one may."""
        least = self._options.rows_min
        if least is None or self._final is not None:
            return True
        now = time.monotonic()
        waiting = sum(max(0, at - begin.get(place, 0)) for place, at in end.items())
        if not waiting:
            return False
        self._waits_since = now if self._waits_since is None else self._waits_since
        waited_ms = (now - self._waits_since) * 1000
        if waiting >= least or waited_ms >= self._options.trigger_delay_ms_max:
            self._waits_since = None
            return True
        return False

    def _limited(self, begin: Offsets, end: Offsets, rows_max: int) -> Offsets:
        starts = begin | self._planner.earliest(end.keys() - begin.keys())
        return limit(starts, end, rows_max)

    def _publish(self, done: Offsets) -> None:
        """Let the group show how far the query is. It is for people: no failure stops a query."""
        options = self._options
        if not options.commit_offsets or done == self._published:
            return
        try:
            ask(
                options.bootstrap,
                lambda client: client.commit_offsets(options.group, done),
                timeout_seconds=5.0,
            )
        except (TidelogError, TimeoutError) as error:
            logger.warning("the offsets of group %r are not shown: %s", options.group, error)
        self._published = done

    # In a task.

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_rows(self._options, self._projection, partition.value)


def read_rows(
    options: ReadOptions, projection: Projection, wanted: "Part | None"
) -> Iterator[pa.RecordBatch]:
    """The rows of a range, as Spark wants them. Spark makes a task of nothing, too."""
    if wanted is None:
        return
    if not isinstance(wanted, OffsetRange):
        from tidelog.spark.archive.files import read_archived  # archives cost time to load

        yield from map(projection.rows, read_archived(wanted, projection.columns))
        return
    reading = Reading(
        bootstrap=options.bootstrap, columns=projection.columns,
        read_committed=options.read_committed, fail_on_data_loss=options.fail_on_data_loss,
        rack=options.rack, fetch_bytes=options.fetch_bytes,
        idle_seconds_max=options.idle_seconds_max, timeout_seconds=options.timeout_seconds,
    )  # fmt: skip
    for batch in read_range(reading, wanted):
        yield projection.rows(batch)
