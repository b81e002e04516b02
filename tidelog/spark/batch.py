"""A topic as a table that is read once."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from tidelog.spark.filters import Wanted, take
from tidelog.spark.options import ReadOptions
from tidelog.spark.planning import Planner
from tidelog.spark.ranges import OffsetRange
from tidelog.spark.registered import RegisteredProjection
from tidelog.spark.rows import Projection
from tidelog.spark.streaming import read_rows


class BatchReader(DataSourceReader):
    """One read of the ranges that there are when it is planned."""

    def __init__(self, options: ReadOptions, projection: Projection | RegisteredProjection) -> None:
        self._options = options
        self._projection = projection
        self._wanted = Wanted()

    def partitions(self) -> list[InputPartition]:
        planner = Planner(self._options)
        ranges = self._wanted.narrow(planner.batch())
        if (time_ms := self._wanted.from_time_ms) is not None:
            ranges = _from_time(planner, ranges, time_ms)
        return [InputPartition(task) for task in planner.tasks(ranges, prefer_log=False)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        for batch in read_rows(self._options, self._projection, partition.value):
            yield self._wanted.rows(batch)


class FilteringReader(BatchReader):
    """Takes filters, too. Spark allows it only with `spark.sql.python.filterPushdown.enabled`."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        self._wanted, left = take(filters)
        return left


def _from_time(planner: Planner, ranges: list[OffsetRange], time_ms: int) -> list[OffsetRange]:
    firsts = planner.from_time([one.place for one in ranges], time_ms)
    return [replace(one, start=max(one.start, firsts[one.place])) for one in ranges]
