"""Rows on their way into partitions: placed, gathered into batches, encoded, sent.

Rule 1: rows of one partition keep their order.
Rule 2: a batch is as large as it may be, or the last: costs are by the batch. What waits for more
        rows is bounded over all partitions.
Rule 3: rows are encoded here while batches before them are on their way.
"""

from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import StructType

from tidelog.errors import TidelogError
from tidelog.model import TopicPartition
from tidelog.spark import client_loop
from tidelog.spark.columns import ARROW
from tidelog.spark.content import NOTHING, content_of
from tidelog.spark.encode import cut, encode
from tidelog.spark.entering import Entered, partition_count
from tidelog.spark.json_times import zone
from tidelog.spark.json_writing import json_objects
from tidelog.spark.options import WriteOptions
from tidelog.spark.partitioning import group_rows, partitions_of
from tidelog.spark.registered import Parts, written_value
from tidelog.spark.rows import TOMBSTONE, json_columns

WAITING_BYTES_MAX: Final = 64 * 1024 * 1024
"""What may wait for more rows, over all partitions: then the fullest one is sent as it is."""


class CannotWrite(TidelogError):
    """A row that has no place to go; the message says which column is at fault."""


@dataclass(slots=True)
class _Waiting:
    """The rows of one partition that do not fill a batch yet."""

    rows: list[pa.RecordBatch] = field(default_factory=list)
    bytes: int = 0


class Counted:
    """The rows of one task, as the records that they become, and what these are."""

    def __init__(self, options: WriteOptions, schema: StructType, parts: Parts | None = None) -> None:
        self._options = options
        self._parts = parts or {}
        self._fields = json_columns(schema)
        self._json = json_columns(schema) if options.value_is_json else None
        self.content = NOTHING

    def count(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The columns that records are made of."""
        records = self._records(batch)
        if self._options.is_exactly_once:
            self.content += content_of(records.column("key"), records.column("value"))
        return records

    def _records(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        names = batch.schema.names
        columns = {
            "key": self._keys(batch) if "key" in names else pa.nulls(batch.num_rows, pa.binary()),
            "value": self._values(batch),
        }
        if "headers" in names:
            columns["headers"] = batch.column("headers").cast(ARROW["headers"])
        if self._options.keeps_timestamps and "timestamp" in names:
            columns["timestamp"] = batch.column("timestamp")
        return pa.RecordBatch.from_pydict(columns)

    def _keys(self, batch: pa.RecordBatch) -> pa.Array:
        keys = batch.column("key")
        return self._parts["key"].write(keys) if "key" in self._parts else _binary(keys)

    def _values(self, batch: pa.RecordBatch) -> pa.Array:
        if (writer := self._parts.get("value")) is not None:
            return writer.write(written_value(batch, self._fields))
        if self._json is None:
            return _binary(batch.column("value"))
        made = json_objects(batch, self._json, zone(self._options.time_zone))
        if TOMBSTONE not in batch.schema.names:
            return made
        deletes = batch.column(TOMBSTONE).fill_null(False)
        return pc.if_else(deletes, pa.scalar(None, made.type), made)


class Output(Counted):
    """The rows of one task. Its sender runs on this process's loop, the rest in the caller."""

    def __init__(
        self,
        options: WriteOptions,
        schema: StructType,
        entered: Entered,
        *,
        slot: int,
        parts: Parts | None = None,
    ) -> None:
        super().__init__(options, schema, parts)
        self._sender = entered.sender
        self._identity = entered.identity
        self._sticky = slot
        """Where rows without a key go, until that partition's batch is full."""
        self._counts = dict(entered.counts)
        self._waiting: dict[TopicPartition, _Waiting] = {}
        self._waiting_bytes = 0
        self._putting: Future[None] | None = None
        """The batch that was handed over last: there may be no room for another yet."""
        self.rows = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Take rows; returns when there is room for more."""
        self.rows += batch.num_rows
        records = self.count(batch)
        for place, some in self._placed(batch, records):
            if self._wait(place, some) >= self._options.batch_bytes:
                self._sticky += 1
                self._send(place)
        while self._waiting_bytes > WAITING_BYTES_MAX:
            fullest = max(self._waiting, key=lambda place: self._waiting[place].bytes)
            self._send(fullest, all_of_it=True)

    def _wait(self, place: TopicPartition, rows: pa.RecordBatch) -> int:
        """Let rows wait for more; how many bytes wait there now."""
        waiting = self._waiting.setdefault(place, _Waiting())
        size = rows.nbytes
        waiting.rows.append(rows)
        waiting.bytes += size
        self._waiting_bytes += size
        return waiting.bytes

    def finish(self) -> None:
        """Send what is left; returns when everything was acknowledged."""
        for place in list(self._waiting):
            self._send(place, all_of_it=True)
        flushing = client_loop.start(self._sender.flush())  # behind the last batch, in the loop's order
        self._until_put()
        client_loop.wait(flushing)

    def _placed(
        self, batch: pa.RecordBatch, records: pa.RecordBatch
    ) -> Iterator[tuple[TopicPartition, pa.RecordBatch]]:
        numbers = batch.column("partition") if "partition" in batch.schema.names else None
        for topic, rows in self._topics(batch):
            some = records if rows is None else records.take(rows)
            asked = numbers if rows is None or numbers is None else numbers.take(rows)
            count = self._count(topic)
            places = self._partitions(topic, count, some.column("key"), asked)
            for partition, chosen in group_rows(places, count):
                whole = len(chosen) == some.num_rows
                yield (TopicPartition(topic, int(partition)), some if whole else some.take(pa.array(chosen)))

    def _topics(self, batch: pa.RecordBatch) -> Iterator[tuple[str, pa.Array | None]]:
        """Each topic, with its rows; None for all of them. The option wins over the column."""
        if self._options.topic is not None:
            yield self._options.topic, None
            return
        column = batch.column("topic")
        if column.null_count:
            raise CannotWrite('a row has no topic: column `topic` is null; or set option "topic"')
        coded = column.dictionary_encode()
        codes = coded.indices.to_numpy()
        for number, topic in enumerate(coded.dictionary.to_pylist()):
            rows = np.flatnonzero(codes == number)
            yield topic, None if len(rows) == len(codes) else pa.array(rows)

    def _partitions(
        self, topic: str, count: int, keys: pa.Array, asked: pa.Array | None
    ) -> npt.NDArray[np.int32]:
        """Where rows go: as they ask, else by their keys, else where the sticky ones go."""
        if asked is None:
            return partitions_of(keys, count, first=self._sticky)
        least, most = pc.min_max(asked).as_py().values()
        if least is not None and (least < 0 or most >= count):
            raise CannotWrite(
                f"column `partition` has {least if least < 0 else most}, but {topic!r} has "
                f"partitions 0 to {count - 1}"
            )
        named: npt.NDArray[np.int32] = asked.fill_null(-1).to_numpy().astype(np.int32)
        if not asked.null_count:
            return named
        return np.where(named >= 0, named, partitions_of(keys, count, first=self._sticky))

    def _count(self, topic: str) -> int:
        count = self._counts.get(topic)
        if count is None:
            options = self._options
            count = self._counts[topic] = client_loop.ask(
                options.bootstrap,
                lambda client: partition_count(client, topic),
                timeout_seconds=options.timeout_seconds,
            )
        return count

    def _send(self, place: TopicPartition, *, all_of_it: bool = False) -> None:
        """Send what waits; a last batch that is not full waits for more, unless all has to go."""
        waiting = self._waiting.pop(place)
        self._waiting_bytes -= waiting.bytes
        rows = pa.Table.from_batches(waiting.rows).combine_chunks().to_batches()[0]
        headers = rows.column("headers") if "headers" in rows.schema.names else None
        parts = cut(rows.column("key"), rows.column("value"), headers, bytes_max=self._options.batch_bytes)
        if len(parts) > 1 and not all_of_it:
            last = parts.pop()
            kept = pa.array(np.arange(last.start, last.stop))
            self._wait(place, rows.take(kept))  # a slice would hold all that was sent
        for part in parts:
            self._put(place, rows.slice(part.start, part.stop - part.start))

    def _put(self, place: TopicPartition, rows: pa.RecordBatch) -> None:
        """Send rows as one batch."""
        options, identity, names = self._options, self._identity, rows.schema.names
        content = encode(
            rows.column("key"),
            rows.column("value"),
            headers=rows.column("headers") if "headers" in names else None,
            timestamps=rows.column("timestamp") if "timestamp" in names else None,
            codec=options.codec,
            producer_id=identity.producer_id,
            producer_epoch=identity.epoch,
            base_sequence=self._sender.take_sequence(place, rows.num_rows),
            is_transactional=identity.transactional_id is not None,
        )
        self._until_put()
        self._putting = client_loop.start(self._sender.put(place, content, rows.num_rows))

    def _until_put(self) -> None:
        """Return when there is room for another batch."""
        if self._putting is not None:
            client_loop.wait(self._putting)
            self._putting = None


def _binary(column: pa.Array) -> pa.Array:
    return column if pa.types.is_binary(column.type) else column.cast(pa.binary())
