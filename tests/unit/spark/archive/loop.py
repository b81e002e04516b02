"""A cluster that is made up, and a Spark that is a loop."""

import uuid
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pyarrow as pa

from tests.unit.spark.archive.rows import batch_of
from tidelog.errors import TidelogError
from tidelog.spark.archive.logs import Log
from tidelog.spark.archive.spans import Span
from tidelog.spark.ranges import OffsetRange


class LoopSpark:
    """Runs tasks one after the other, here."""

    def __init__(self) -> None:
        self.rounds: list[list[Any]] = []
        self.between: Callable[[], None] = lambda: None
        self.defaultParallelism = 2
        self.sparkContext = self

    def parallelize(self, items: Iterable[Any], slices: int) -> "LoopSpark":
        self.rounds.append(list(items))
        assert slices == len(self.rounds[-1])
        return self

    def mapPartitions(self, function: Callable[[Any], Iterator[Any]]) -> "LoopSpark":  # noqa: N802
        self._results = [one for item in self.rounds[-1] for one in function(iter([item]))]
        return self

    def collect(self) -> list[Any]:
        self.between()
        return self._results


class Cluster:
    """Topics as spans of offsets, each with a record."""

    def __init__(self, **topics: dict[int, Span]) -> None:
        self.topics = topics
        self.broken: Callable[[OffsetRange], bool] = lambda wanted: False

    def look_at(self, bootstrap: str, topic: str) -> Log:
        return Log(topic=topic, id=uuid.UUID(int=len(topic)), spans=dict(self.topics[topic]))

    def read_range(self, reading: Any, wanted: OffsetRange) -> Iterator[pa.RecordBatch]:
        if self.broken(wanted):
            raise TidelogError("the disk is on fire")
        for start in range(wanted.start, wanted.end, 100):
            offsets = range(start, min(start + 100, wanted.end))
            yield batch_of(offsets, topic=wanted.topic, partition=wanted.partition)
