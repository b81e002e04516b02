"""A topic as a stream of micro-batches.

Rule 1: a range that was planned once is read again after a crash, to the same offset.
Rule 2: Spark asks where the log ends, with the end of what it has done: so a question tells that
        everything before it is done, and the group's offsets say so to whoever watches.
Rule 3: partitions and topics that vanish in mid-query are data lost, and are reported as that. So
        are topics that were made anew: their ids are kept with the offsets, and every batch and
        every fetch is about the topic with that id.
Rule 4: a query has a group of its own, by a name that its checkpoint keeps. It writes to a group
        that the user names only if it is told to: that one may be somebody else's.
"""

import logging
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from tidelog.spark.options import ReadOptions
from tidelog.spark.planning import Planner, Seen
from tidelog.spark.positions import Position
from tidelog.spark.ranges import OffsetRange, Offsets, limit, limit_bytes, to_json
from tidelog.spark.reading import DataLost, Reading, read_range
from tidelog.spark.registered import RegisteredProjection
from tidelog.spark.rows import Projection
from tidelog.spark.showing import Shown
from tidelog.spark.workers import called

if TYPE_CHECKING:
    from tidelog.spark.archive.bridge import Part

logger = logging.getLogger(__name__)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One stream. On the driver it lives as long as the query does; tasks get a copy to `read`."""

    def __init__(self, options: ReadOptions, projection: Projection | RegisteredProjection) -> None:
        self._options = options
        self._projection = projection
        self._planner = Planner(options)
        self._watermarks: Offsets = {}
        self._final: Offsets | None = None
        """Where a query that takes what is there now ends."""
        self._query = ""
        """What the checkpoint calls the query, once it is known."""
        self._initial: Position | None = None
        self._shown = Shown(options.bootstrap)
        self._waits_since: float | None = None

    # On the driver.

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        seen = self._planner.starts()
        self._initial = Position(offsets=seen.offsets, topics=seen.topics, query=self._named())
        return self._initial.to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Spark takes one limit alone. Whichever it is given back, all of ours hold."""
        if (rows := self._options.rows_max) is not None:
            return ReadMaxRows(rows)
        size = self._options.bytes_max
        return ReadAllAvailable() if size is None else ReadMaxBytes(size)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._final = self._planner.ends().offsets

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        end = self._latest(start, limit)
        if end == start:
            self._shown.wait()  # there is nothing to do: whoever looks now should see it
        return end

    def _latest(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        known = Position.from_json(start)
        self._query = known.query or self._query
        seen = self._planner.ends()
        self._watermarks = seen.watermarks
        begin = self._without_remade(known, seen)
        self._publish(begin.offsets)
        ends = self._bounded(begin, seen.offsets)
        if not self._is_enough(begin.offsets, ends):
            return start
        if not isinstance(limit, ReadAllAvailable):
            ends = self._limited(begin.offsets, ends)
        ids = {**begin.topics, **seen.topics}
        topics = {topic: ids[topic] for topic in _topics(ends) if topic in ids}
        is_first = known == self._initial
        if known.query and not is_first and (ends, topics) == (known.offsets, known.topics):
            return start  # also if it says where the query began: that is no news
        began = begin.offsets if is_first else None
        end = Position(offsets=ends, topics=topics, query=self._named(), began=began)
        return end.to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        return to_json(self._watermarks) if self._watermarks else None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        known, planned = Position.from_json(start), Position.from_json(end)
        begins, ends = dict(known.without(known.remade(planned.topics)).offsets), planned.offsets
        if planned.began is not None and known.began is None:  # the first batch, perhaps again
            begins = dict(planned.began)
        new = self._planner.earliest(ends.keys() - begins.keys())
        late = sorted(place for place, first in new.items() if first > 0)
        if late and self._options.fail_on_data_loss:
            raise DataLost(
                f"{', '.join(map(str, late))}: new to this query, but the first records are gone. "
                "Set failOnDataLoss=false to begin with what is there"
            )
        begins |= new
        ranges = [
            OffsetRange(
                place.topic,
                place.partition,
                begins[place],
                ends[place],
                topic_id=planned.topics.get(place.topic),
            )
            for place in sorted(ends)
        ]
        return [InputPartition(task) for task in self._planner.tasks(ranges, prefer_log=True)]

    def commit(self, end: dict[str, Any]) -> None:
        done = Position.from_json(end)
        self._query = done.query or self._query
        self._publish(done.offsets)

    def stop(self) -> None:
        """Connections are the process's, and end with it."""
        self._shown.wait()

    def _named(self) -> str:
        """The name of the query, which is new if its checkpoint has none."""
        self._query = self._query or uuid4().hex
        return self._query

    def _without_remade(self, known: Position, seen: Seen) -> Position:
        """What the query has read of topics that are still the same; those that are not begin anew,
        if records may be lost."""
        remade = known.remade(seen.topics)
        if remade and self._options.fail_on_data_loss:
            names = [f"{topic} (id {old}, now {new})" for topic, (old, new) in remade.items()]
            raise DataLost(
                f"{', '.join(names)}: deleted and made anew since the query has read it; what the "
                "query had not read of the former topic is gone, and its offsets mean nothing in "
                "the new one. Start with a new checkpoint, or set failOnDataLoss=false to read the "
                "new topic from its beginning"
            )
        for topic, (old, new) in remade.items():
            logger.warning(
                "%s was deleted and made anew (id %s, now %s); it is read from its beginning", topic, old, new
            )
        return known.without(remade)

    def _bounded(self, known: Position, latest: Offsets) -> Offsets:
        """Ends for this batch: not behind what was read, nor beyond what was there at the start.

        What is gone keeps its place, if its topic has an id: it may have been missing in one answer
        only, and is not read twice when it is there again. With another id it begins anew.
        """
        begin, ends = known.offsets, dict(latest)
        if self._final is not None:
            ends = {place: min(ends.get(place, 0), at) for place, at in self._final.items()}
        gone = [place for place in begin if place not in ends]
        if gone and self._options.fail_on_data_loss:
            names = ", ".join(map(str, sorted(gone)))
            raise DataLost(
                f"{names}: gone while the query ran; was the topic deleted? Set "
                "failOnDataLoss=false to go on without it"
            )
        ends |= {place: begin[place] for place in gone if place.topic in known.topics}
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

    def _limited(self, begin: Offsets, end: Offsets) -> Offsets:
        options = self._options
        if options.rows_max is None and options.bytes_max is None:
            return end
        starts = begin | self._planner.earliest(end.keys() - begin.keys())
        if options.rows_max is not None:
            end = limit(starts, end, options.rows_max)
        if options.bytes_max is not None:
            waiting = {place: starts[place] for place, at in end.items() if starts[place] < at}
            end = limit_bytes(starts, end, self._planner.sizes(waiting), options.bytes_max)
        return end

    def _publish(self, done: Offsets) -> None:
        """Let the group show how far the query is."""
        options = self._options
        if there := self._watermarks:  # the cluster refuses offsets of what is gone
            done = {place: at for place, at in done.items() if place in there}
        if options.commit_offsets and done:
            self._shown.tell(options.group or f"{options.group_prefix}-{self._named()}", done)

    # In a task.

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_rows(self._options, self._projection, partition.value)


def _topics(offsets: Offsets) -> set[str]:
    return {place.topic for place in offsets}


def read_rows(
    options: ReadOptions, projection: Projection | RegisteredProjection, wanted: "Part | None"
) -> Iterator[pa.RecordBatch]:
    """The rows of a range, as Spark wants them. Spark makes a task of nothing, too."""
    called()
    if wanted is None:
        return
    if not isinstance(wanted, OffsetRange):
        from tidelog.spark.archive.files import read_archived  # archives cost time to load

        yield from map(projection.rows, read_archived(wanted, projection.columns))
        return
    reading = Reading(
        bootstrap=options.bootstrap,
        columns=projection.columns,
        read_committed=options.read_committed,
        fail_on_data_loss=options.fail_on_data_loss,
        rack=options.rack,
        fetch_bytes=options.fetch_bytes,
        idle_seconds_max=options.idle_seconds_max,
        timeout_seconds=options.timeout_seconds,
    )
    for batch in read_range(reading, wanted):
        yield projection.rows(batch)
