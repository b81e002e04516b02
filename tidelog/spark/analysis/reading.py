"""A task: asks leaders for its ranges, and measures what comes.

Rule 1: records of transactions that are open or were aborted went through the topic, too, so they
        count. Commits of groups count only if they hold.
Rule 2: what retention deletes meanwhile is missing in the sums, and stops nothing.
Rule 3: a batch that is damaged stops the analysis, which would be wrong without it: CorruptMessage.
"""

from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing

import pyarrow as pa

from tidelog.client.slices import Missing, Slice, SliceReader
from tidelog.records import iterate_batches
from tidelog.spark import client_loop
from tidelog.spark.analysis.commits import measure_commits
from tidelog.spark.analysis.measure import WANTED, Measure
from tidelog.spark.analysis.plan import Task
from tidelog.spark.decode import decode
from tidelog.spark.ranges import OffsetRange


def run_task(bootstrap: str, task: Task) -> Iterator[pa.RecordBatch]:
    """The measures of a task's ranges."""
    if not task.is_commits:
        first = task.ranges[0]
        measure = Measure(first.topic, first.partition)
        for wanted in task.ranges:
            for found in _slices(bootstrap, wanted):
                _take(measure, found, wanted)
        yield from measure.table().to_batches()
        return
    for wanted in task.ranges:
        for found in _slices(bootstrap, wanted, read_committed=True):
            for rows, _ in _decoded(found, wanted):
                yield from measure_commits(rows, wanted.topic, wanted.partition).to_batches()


def _take(measure: Measure, found: Slice, wanted: OffsetRange) -> None:
    headers = [header for header, _ in iterate_batches(found.fetched.records)]
    for rows, within in _decoded(found, wanted):
        shown = [one for one in headers if one.next_offset > within.start and not one.is_control]
        measure.add(rows, shown, within)


def _decoded(found: Slice, wanted: OffsetRange) -> Iterator[tuple[pa.RecordBatch, OffsetRange]]:
    """Rows, and the range that they are all of."""
    at = max(found.start, wanted.start)
    while at < min(found.next_offset, wanted.end):
        decoded = decode(
            found.fetched.records,
            topic=wanted.topic,
            partition=wanted.partition,
            start=at,
            end=wanted.end,
            aborted=found.fetched.aborted,
            wanted=WANTED,
        )
        assert decoded.next_offset > at, "a slice holds at least one whole batch"
        within = OffsetRange(wanted.topic, wanted.partition, at, decoded.next_offset)
        at = decoded.next_offset
        if decoded.batch.num_rows:
            yield decoded.batch, within


def _slices(bootstrap: str, wanted: OffsetRange, *, read_committed: bool = False) -> Iterator[Slice]:
    return client_loop.iterate(_fetch(bootstrap, wanted, read_committed=read_committed))


async def _fetch(bootstrap: str, wanted: OffsetRange, *, read_committed: bool) -> AsyncGenerator[Slice, None]:
    reader = SliceReader(
        client=client_loop.client(bootstrap),
        topic=wanted.topic,
        partition=wanted.partition,
        position=wanted.start,
        end=wanted.end,
        read_committed=read_committed,
    )
    while reader.position < wanted.end:
        try:
            async with aclosing(reader.slices()) as slices:
                async for found in slices:
                    yield found
        except Missing as missing:
            if missing.first <= missing.wanted:  # the topic was made anew, and is shorter
                return
            reader.position = min(missing.first, wanted.end)
