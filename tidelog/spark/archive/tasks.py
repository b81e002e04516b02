"""Work that Spark shares out: a task for each item, and what became of them."""

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

from tidelog.spark.archive.tables import ArchiveError
from tidelog.spark.connect import is_connect
from tidelog.spark.progress import why_failed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")
R = TypeVar("R")


class SparkGaveUp(ArchiveError):
    """Spark could not do its part; the message has its reason. What was committed stays."""


@contextmanager
def blaming_spark(what: str) -> Iterator[None]:
    """Say an error of Spark's as one of ours, in a line."""
    try:
        yield
    except (PySparkException, Py4JError) as error:
        # The first line of an error of the JVM only says who called it.
        text = str(error).partition("\n: ")[2] or str(error)
        raise SparkGaveUp(f"{what}: {why_failed(Exception(text))}") from error


def run_tasks(
    spark: "SparkSession", items: Sequence[T], work: Callable[[Iterable[T]], Iterable[R]], what: str
) -> list[R]:
    """The results of all tasks."""
    if not items:
        return []
    with blaming_spark(what):
        if is_connect(spark):
            return _run_in_arrow(spark, items, work)
        tasks = spark.sparkContext.parallelize(items, len(items))
        return tasks.mapPartitions(work).collect()


def _run_in_arrow(
    spark: "SparkSession", items: Sequence[T], work: Callable[[Iterable[T]], Iterable[R]]
) -> list[R]:
    """The same where there are no RDDs: a row of a frame is an item, and of its results."""

    def rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                done = [pickle.dumps(one) for one in work([items[number]])]
                yield pa.RecordBatch.from_pydict({"result": pa.array(done, pa.binary())})

    tasks = spark.range(0, len(items), 1, len(items)).mapInArrow(rows, "result binary")
    return [pickle.loads(row.result) for row in tasks.collect()]
