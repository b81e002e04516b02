import asyncio
from collections import defaultdict

import pyarrow as pa
import pytest
from pyspark.sql.types import StringType, StructField, StructType

from tidelog.client.partitioner import partition_for
from tidelog.client.sender import Identity
from tidelog.records import decode_batch, read_header
from tidelog.spark import placing
from tidelog.spark.entering import Entered
from tidelog.spark.options import write_options
from tidelog.spark.placing import CannotWrite, Output

SCHEMA = StructType([StructField("value", StringType())])
ME = Identity(producer_id=7, epoch=3, transactional_id="me")
BATCH_BYTES = 4096


class Sender:
    """Keeps what it is given; whether that is in order, a broker would tell by the sequences."""

    def __init__(self):
        self.batches = defaultdict(list)
        self.sequences = defaultdict(int)
        self.is_flushed = False

    def take_sequence(self, place, records):
        self.sequences[place] += records
        return self.sequences[place] - records

    async def put(self, place, content, records):
        header = read_header(bytes(content))
        assert header.record_count == records
        assert (header.producer_id, header.producer_epoch, header.is_transactional) == (7, 3, True)
        at = place.topic, place.partition
        assert header.base_sequence == sum(len(batch) for batch in self.batches[at])
        assert len(content) <= BATCH_BYTES
        self.batches[at].append(decode_batch(bytes(content)))

    async def flush(self):
        self.is_flushed = True

    def records(self, place):
        return [record for batch in self.batches[place] for record in batch]


def output(sender, monkeypatch, *, partitions=3, **options):
    given = {"kafka.bootstrap.servers": "x:1", "kafka.max.request.size": str(BATCH_BYTES)}
    asked = write_options(given | options, streaming=True)
    entered = Entered(member=None, identity=ME, sender=sender, counts={})
    made = Output(asked, SCHEMA, entered, slot=1)
    monkeypatch.setattr(made, "_count", lambda topic: partitions)
    return made


def rows(numbers, **columns):
    made = {"value": pa.array([b"v%06d" % n for n in numbers])}
    return pa.RecordBatch.from_pydict(made | columns)


def keyed(numbers):
    return rows(numbers, key=pa.array([b"k%d" % (n % 50) for n in numbers]))


def test_keys_decide_where_rows_go_and_each_partition_keeps_its_order(monkeypatch):
    sender = Sender()
    out = output(sender, monkeypatch, topic="t")
    for at in range(0, 3000, 100):
        out.add(keyed(range(at, at + 100)))
    out.finish()

    assert out.rows == sum(len(sender.records(("t", p))) for p in range(3)) == 3000
    assert sender.is_flushed
    for partition in range(3):
        records = sender.records(("t", partition))
        assert all(partition_for(record.key, 3) == partition for record in records)
        assert [r.value for r in records] == sorted(r.value for r in records)


def test_batches_are_full_but_for_the_last(monkeypatch):
    sender = Sender()
    out = output(sender, monkeypatch, partitions=1, topic="t")
    for at in range(0, 3000, 100):
        out.add(rows(range(at, at + 100)))
    out.finish()

    *full, _ = [len(batch) for batch in sender.batches["t", 0]]
    assert min(full) > 0.8 * max(full)


def test_rows_without_a_key_fill_one_partition_after_the_other(monkeypatch):
    sender = Sender()
    out = output(sender, monkeypatch, topic="t")
    for at in range(0, 3000, 100):
        out.add(rows(range(at, at + 100)))
    out.finish()

    counts = [len(sender.records(("t", partition))) for partition in range(3)]
    assert sum(counts) == 3000
    assert min(counts) > 500


def test_a_row_may_name_its_topic_and_its_partition(monkeypatch):
    sender = Sender()
    out = output(sender, monkeypatch)
    out.add(
        rows(
            range(4),
            topic=pa.array(["a", "b", "a", "b"]),
            partition=pa.array([2, 0, None, 1], pa.int32()),
            key=pa.array([None, None, b"k", None], pa.binary()),
        )
    )
    out.finish()

    places = {one.value: at for at in list(sender.batches) for one in sender.records(at)}
    assert places == {
        b"v000000": ("a", 2),
        b"v000001": ("b", 0),
        b"v000002": ("a", partition_for(b"k", 3)),
        b"v000003": ("b", 1),
    }


def test_headers_and_times_go_along_if_they_are_wanted(monkeypatch):
    header = pa.struct([("key", pa.string()), ("value", pa.binary())])
    columns = {
        "headers": pa.array([[("h", b"1")], None], pa.list_(header)),
        "timestamp": pa.array([5_000, 6_000], pa.timestamp("us", "UTC")),
    }
    for keeps in ("true", "false"):
        sender = Sender()
        out = output(sender, monkeypatch, partitions=1, topic="t", includeTimestamp=keeps)
        out.add(rows(range(2), **columns))
        out.finish()
        first, second = sender.records(("t", 0))
        assert (list(first.headers), list(second.headers)) == ([("h", b"1")], [])
        assert ([first.timestamp_ms, second.timestamp_ms] == [5, 6]) == (keeps == "true")


def test_what_waits_is_bounded_over_all_partitions(monkeypatch):
    monkeypatch.setattr(placing, "WAITING_BYTES_MAX", 20_000)
    sender = Sender()
    out = output(sender, monkeypatch, partitions=1000, topic="t")
    for at in range(0, 20_000, 1000):
        numbers = range(at, at + 1000)
        out.add(rows(numbers, key=pa.array([b"%d" % n for n in numbers])))
        assert out._waiting_bytes <= 20_000
    out.finish()
    assert sum(sender.sequences.values()) == 20_000


def test_a_row_that_has_no_place_is_refused(monkeypatch):
    out = output(Sender(), monkeypatch)
    with pytest.raises(CannotWrite, match="column `topic` is null"):
        out.add(rows(range(2), topic=pa.array(["a", None])))
    for number in (-1, 3):
        wrong = pa.array([0, number], pa.int32())
        with pytest.raises(CannotWrite, match=rf"has {number}, but 'a' has partitions 0 to 2"):
            out.add(rows(range(2), topic=pa.array(["a", "a"]), partition=wrong))


def test_a_batch_is_handed_over_when_there_is_room_for_it(monkeypatch):
    class Full(Sender):
        is_taking = False

        async def put(self, place, content, records):
            assert not self.is_taking, "the batch before has no room yet"
            self.is_taking = True
            await asyncio.sleep(0.05)
            self.is_taking = False
            await super().put(place, content, records)

    sender = Full()
    out = output(sender, monkeypatch, partitions=1, topic="t")
    out.add(rows(range(1000)))
    out.finish()

    assert len(sender.batches["t", 0]) > 2
    assert len(sender.records(("t", 0))) == 1000
