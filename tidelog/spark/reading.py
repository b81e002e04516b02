"""A range of one partition, as Arrow batches. This is what a task runs.

Rule 1: rows come in the order of their offsets, each once, and none from outside of the range.
Rule 2: one answer of a broker is worked on while the next one comes; nothing else is held.
Rule 3: what is missing fails the task, unless the user said that it may be lost.
"""

import logging
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from tidelog.client.slices import FETCH_BYTES, Missing, Remade, Slice, SliceReader
from tidelog.errors import TidelogError
from tidelog.spark import client_loop
from tidelog.spark.decode import decode
from tidelog.spark.ranges import OffsetRange

logger = logging.getLogger(__name__)

BATCH_BYTES_MAX: Final = 16 * 1024 * 1024
"""Of one Arrow batch, about: Spark's side holds a few of them for every task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What a task must know to read, beyond its range."""

    bootstrap: str
    columns: tuple[str, ...]
    read_committed: bool = True
    fail_on_data_loss: bool = True
    rack: str = ""
    fetch_bytes: int = FETCH_BYTES
    idle_seconds_max: float = 120.0
    timeout_seconds: float = client_loop.TIMEOUT_SECONDS


class DataLost(TidelogError):
    """Records that should be read are gone from the log; the message says what to do."""


def read_range(reading: Reading, wanted: OffsetRange) -> Iterator[pa.RecordBatch]:
    """The rows of a range."""
    for found in _slices(reading, wanted):
        at = found.start
        while at < min(found.next_offset, wanted.end):
            decoded = decode(
                found.fetched.records,
                topic=wanted.topic,
                partition=wanted.partition,
                start=at,
                end=wanted.end,
                aborted=found.fetched.aborted,
                wanted=reading.columns,
            )
            assert decoded.next_offset > at, "a slice holds at least one whole batch"
            at = decoded.next_offset
            yield from _pieces(decoded.batch)


def _pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The batch in pieces of a size that is good to pass on; nothing for an empty one."""
    if not batch.num_rows:
        return
    pieces = min(batch.num_rows, max(1, -(-batch.nbytes // BATCH_BYTES_MAX)))
    rows = -(-batch.num_rows // pieces)
    for at in range(0, batch.num_rows, rows):
        yield batch.slice(at, rows)


def _slices(reading: Reading, wanted: OffsetRange) -> Iterator[Slice]:
    """Slices, fetched on this process's loop; the next one comes while the caller has this one."""
    slices = _fetch(reading, wanted)

    async def following() -> Slice | None:
        return await anext(slices, None)

    reached = wanted.start
    try:
        while reached < wanted.end and (found := client_loop.wait(client_loop.start(following()))):
            reached = found.next_offset
            yield found
    finally:
        closing = client_loop.start(slices.aclose())
        if reached < wanted.end:  # otherwise there is nothing left to end
            client_loop.wait(closing)


async def _fetch(reading: Reading, wanted: OffsetRange) -> AsyncGenerator[Slice, None]:
    reader = SliceReader(
        client=client_loop.client(reading.bootstrap, timeout_seconds=reading.timeout_seconds),
        topic=wanted.topic,
        partition=wanted.partition,
        position=wanted.start,
        end=wanted.end,
        read_committed=reading.read_committed,
        rack=reading.rack,
        fetch_bytes=reading.fetch_bytes,
        idle_seconds_max=reading.idle_seconds_max,
        topic_id=wanted.topic_id,
    )
    while True:
        try:
            async with aclosing(reader.slices()) as slices:
                async for found in slices:
                    yield found
            return
        except Missing as missing:
            reader.position = _after_loss(reading, wanted, missing)
        except Remade as remade:
            if reading.fail_on_data_loss:
                raise DataLost(
                    f"{remade}, after {wanted} was planned. Start with a new checkpoint to read "
                    "what it holds now, or set failOnDataLoss=false to go on with that"
                ) from remade
            logger.warning("%s: what is left of %s is lost", remade, wanted)
            return


def _after_loss(reading: Reading, wanted: OffsetRange, missing: Missing) -> int:
    """Where reading goes on if records may be lost; raises if not."""
    lost_to = min(missing.first, wanted.end) if missing.wanted < missing.first else wanted.end
    if reading.fail_on_data_loss:
        raise DataLost(
            f"{missing}. Offsets {missing.wanted} to {lost_to - 1} of {wanted} cannot be read: "
            "retention deleted them, or the topic was made anew. Set failOnDataLoss=false to go on "
            "without them, or start a new query where the log begins"
        ) from missing
    logger.warning("%s: offsets %s to %s are lost", wanted, missing.wanted, lost_to - 1)
    return lost_to
