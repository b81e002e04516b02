"""Rows of a topic as a task would read them."""

from collections.abc import Iterable

import pyarrow as pa

from tidelog.spark.archive.files import SCHEMA, WrittenFile, write_range
from tidelog.spark.archive.tables import TopicTable
from tidelog.spark.ranges import OffsetRange

TIME_US = 1_700_000_000_000_000


def batch_of(offsets: Iterable[int], *, topic: str = "orders", partition: int = 0) -> pa.RecordBatch:
    """A row for each offset; its value and time tell which."""
    numbers = list(offsets)
    rows = [
        {
            "key": None if number % 5 == 0 else b"k%d" % (number % 7),
            "value": None if number % 11 == 0 else b"value %d" % number,
            "topic": topic,
            "partition": partition,
            "offset": number,
            "timestamp": TIME_US + number * 1000,
            "timestampType": 0,
            "headers": [{"key": "n", "value": b"%d" % number}] if number % 2 else [],
        }
        for number in numbers
    ]
    return pa.RecordBatch.from_pylist(rows, SCHEMA)


def put(table: TopicTable, moved: OffsetRange, offsets: Iterable[int]) -> list[WrittenFile]:
    """Files of a table that no snapshot names."""
    batch = batch_of(offsets, partition=moved.partition)
    return write_range([batch], moved, table.destination(1_000_000))


def archive(table: TopicTable, partition: int, start: int, end: int, step: int = 1) -> TopicTable:
    """One round, of one range, in which every `step`th offset has a record."""
    moved = OffsetRange("orders", partition, start, end)
    return table.commit(put(table, moved, range(start, end, step)), [moved])
