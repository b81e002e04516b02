"""Edges at which source and sink went wrong once."""

import asyncio
import datetime
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from kio.schema.errors import ErrorCode
from pyspark.sql.datasource import GreaterThanOrEqual
from pyspark.sql.streaming.datasource import ReadAllAvailable

from tests.simulation import virtual_time
from tests.unit.client.test_sender import A0, NOT_LEADER, OUT_OF_ORDER, Log, put, sending
from tests.unit.spark.test_placing import ME, SCHEMA, Sender, output
from tidelog.client.cluster import PartitionInfo, Refused, TopicInfo
from tidelog.client.kafka import Fetched, KafkaClient
from tidelog.client.sender import BatchSender
from tidelog.client.slices import SliceReader
from tidelog.client.transactional import Decision, Participant
from tidelog.client.wire import Connection, ConnectionFailed
from tidelog.errors import OutOfOrderSequence
from tidelog.log.producers import ProducerStates
from tidelog.model import Endpoint, TopicPartition
from tidelog.records import Record, decode_batch, encode_batch, read_header
from tidelog.simulation.host import SimulatedClock
from tidelog.spark import client_loop, writing
from tidelog.spark.content import Content
from tidelog.spark.entering import Batch, Entered
from tidelog.spark.filters import take
from tidelog.spark.options import read_options, write_options
from tidelog.spark.placing import Output
from tidelog.spark.planning import Seen
from tidelog.spark.reading import DataLost
from tidelog.spark.rows import projection, spark_schema
from tidelog.spark.source import TidelogSource, _remember
from tidelog.spark.streaming import StreamReader
from tidelog.spark.writing import BatchWriter, NotDecided, Written
from tidelog.wire.apis import Api
from tidelog.wire.batches_decided import Counting
from tidelog.wire.entities import request_entity

AT = {"kafka.bootstrap.servers": "x:1"}


# sender.py


def test_a_lane_that_died_of_anything_is_not_flushed_as_if_all_was_written():
    async def story(log, sender):
        log.fails = lambda: ValueError("666 is not a valid ErrorCode")  # of a newer broker
        await put(sender, A0, [b"a"])
        await asyncio.sleep(1)  # the task is busy with other partitions
        log.fails = lambda: None
        with pytest.raises(Exception, match="666"):
            await sender.flush()

    sending(story)


class AnyFirst(Log):
    """Keeps producers as a node does: one that it does not know may begin anywhere."""

    def __init__(self):
        super().__init__()
        self.producers = ProducerStates()

    def _append(self, partition, batch):
        if (failure := self.fails()) is not None:
            return failure
        header = read_header(batch)
        try:
            if self.producers.check(header) is None:
                self.producers.note(header, len(self.values[partition]))
                self.values[partition] += [record.value for record in decode_batch(batch)]
        except OutOfOrderSequence:
            return OUT_OF_ORDER
        return 0


def test_nothing_follows_a_producer_s_first_batch_before_that_is_stored():
    async def main():
        log = AnyFirst()
        sender = BatchSender(log, ME)
        failures = iter([NOT_LEADER])  # it learns a moment later that it leads
        log.fails = lambda: next(failures, None)
        for number in range(3):
            await put(sender, A0, [b"%d" % number])
        await sender.flush()
        assert log.values[0] == [b"0", b"1", b"2"]

    virtual_time.run(main(), SimulatedClock())


# wire.py, on which the sender depends


class Transport(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []

    def writelines(self, buffers):
        self.written += [bytes(buffer) for buffer in buffers]

    def abort(self):
        pass


def connection():
    made = Connection(Endpoint(host="x", port=1), client_id="me", timeout_seconds=0.05)
    made.frames.connection_made(Transport())
    return made


def metadata(name):
    fields = {
        "topics": [{"topic_id": None, "name": name}],
        "allow_auto_topic_creation": False,
        "include_cluster_authorized_operations": False,
        "include_topic_authorized_operations": False,
    }
    return request_entity(Api.METADATA, 12, fields)


def test_requests_go_out_in_the_order_in_which_they_were_made():
    async def main():
        at = connection()
        at.frames.pause_writing()
        first = asyncio.create_task(at.exchange(metadata("first")))
        await asyncio.sleep(0)
        second = asyncio.create_task(at.exchange(metadata("second")))  # a lane has grown
        at.frames.resume_writing()  # and in the same turn of the loop, there is room
        await asyncio.gather(first, second, return_exceptions=True)
        sent = at.frames.transport.written
        assert [b"first" in one for one in sent] == [True, False]

    asyncio.run(main())


def test_a_node_that_reads_nothing_is_given_up_too():
    async def main():
        at = connection()
        at.frames.pause_writing()  # whoever filled the buffer was cancelled
        async with asyncio.timeout(1):
            with pytest.raises(ConnectionFailed):
                await at.exchange(metadata("any"))

    asyncio.run(main())


# slices.py


class Two:
    """A leader, which sends readers of a rack away while it counts the follower as in sync."""

    async def retry(self, attempt):
        return await attempt()

    async def leader(self, topic, partition):
        return "leader"

    async def broker(self, node):
        return "follower"


def test_a_follower_that_gets_no_further_is_left_for_the_leader(monkeypatch):
    batch = bytes(encode_batch([Record(key=None, value=b"v", timestamp_ms=1)]))

    async def ask(self, connection, position, rack):
        asked.append(connection)
        assert len(asked) < 20, "it stays with a follower that has nothing, until it gives up"
        away = connection == "leader" and rack and len(asked) < 5
        records = batch if connection == "leader" and not away else b""
        fetched = Fetched(
            partition=0, high_watermark=1, last_stable=1, log_start=0, aborted=(), records=records
        )
        return fetched, 2 if away else -1

    async def main():
        client: Any = Two()
        reader = SliceReader(client=client, topic="t", partition=0, position=0, end=1, rack="r")
        return [found async for found in reader.slices()]

    asked = []
    monkeypatch.setattr(SliceReader, "_ask", ask)
    assert len(asyncio.run(main())) == 1


# placing.py


def test_what_waits_does_not_hold_what_was_sent(monkeypatch):
    made = output(Sender(), monkeypatch, partitions=8, topic="t")
    for _ in range(8):  # without keys: each of these goes to the next partition
        made.add(pa.RecordBatch.from_pydict({"value": pa.array([b"x" * 100] * 10_000)}))
    held = sum(rows.get_total_buffer_size() for waits in made._waiting.values() for rows in waits.rows)
    assert held < 4 * made._waiting_bytes, f"{held} bytes for {made._waiting_bytes}"


class Growing(KafkaClient):
    """A cluster in which partitions are added."""

    partitions = 2

    async def _ask_metadata(self, names, *, create):
        infos = [
            PartitionInfo(partition=n, leader=1, epoch=0, replicas=(1,), in_sync=(1,))
            for n in range(self.partitions)
        ]
        found = TopicInfo(name=names[0], id=None, internal=False, partitions=tuple(infos))
        self._topics[found.name] = found
        return [found]


def test_a_task_sees_partitions_that_were_added_since_the_last_task(monkeypatch):
    client = Growing("x:1")
    monkeypatch.setattr(
        client_loop, "ask", lambda _, question, **options: asyncio.run(_awaited(question(client)))
    )
    options = write_options(AT | {"topic": "t"}, streaming=True)
    sender: Any = Sender()
    entered = Entered(member=None, identity=ME, sender=sender, counts={})
    assert Output(options, SCHEMA, entered, slot=0)._count("t") == 2
    client.partitions = 6
    # The next task, in the same worker.
    assert Output(options, SCHEMA, entered, slot=0)._count("t") == 6


async def _awaited(work):
    return await work


# writing.py


MEMBER = Participant("spark.g.0", 7, 3)


def test_a_write_that_was_decided_does_not_fail_because_nobody_can_see_it_yet(monkeypatch):
    def ask(bootstrap, question, **options):
        if question.__name__ == "<lambda>":
            return Decision(batch_id=0, is_new=True)
        raise Refused(ErrorCode.transactional_id_not_found, "spark.g.0")

    monkeypatch.setattr(client_loop, "ask", ask)
    writer = BatchWriter(write_options(AT | {"topic": "t"}, streaming=False), SCHEMA)
    writer.commit([Written(Batch("spark.g", 0), Content(rows=1), MEMBER)])


def test_nobody_says_that_nothing_was_committed_who_does_not_know(monkeypatch):
    def ask(*_, **options):  # the coordinator moved while it wrote, again and again
        raise Refused(ErrorCode.not_coordinator, "batch 0 of 'spark.g'")

    monkeypatch.setattr(client_loop, "ask", ask)
    options = write_options(AT | {"topic": "t"}, streaming=True)
    with pytest.raises(Exception) as caught:
        writing.decide(options, [Written(Batch("spark.g", 0), Content(rows=1), MEMBER)], Counting.QUERY)
    assert not isinstance(caught.value, NotDecided)
    assert "nothing of it will be seen" not in str(caught.value)


# streaming.py


def test_a_new_partition_that_has_lost_its_beginning_is_data_lost(monkeypatch):
    schema = spark_schema(("value", "offset"))
    reader = StreamReader(
        read_options(AT | {"subscribe": "t"}, streaming=True), projection(schema, value_is_json=False)
    )
    monkeypatch.setattr(reader._planner, "earliest", lambda places: dict.fromkeys(places, 500))
    with pytest.raises(DataLost):
        reader.partitions({}, {"t": {"0": 900}})


@pytest.mark.parametrize(("came_back_as", "begins_at"), [(2, 7), (3, 0)])
def test_a_topic_that_was_missing_once_is_not_read_twice(monkeypatch, came_back_as, begins_at):
    told = {"subscribePattern": ".*", "failOnDataLoss": "false", "commitOffsets": "false"}
    reader = StreamReader(
        read_options(AT | told, streaming=True),
        projection(spark_schema(("value", "offset")), value_is_json=False),
    )
    a, b = TopicPartition("a", 0), TopicPartition("b", 0)
    monkeypatch.setattr(reader._planner, "earliest", lambda places: dict.fromkeys(places, 0))

    def batch(start, offsets, topics):
        seen = Seen(offsets=offsets, topics=topics, watermarks=offsets)
        monkeypatch.setattr(reader._planner, "ends", lambda: seen)
        end = reader.latestOffset(start, ReadAllAvailable())
        return end, [str(task.value) for task in reader.partitions(start, end)]

    ids = {"a": str(UUID(int=1)), "b": str(UUID(int=2))}
    start = {"a": {"0": 5}, "b": {"0": 7}, "@": {"query": "q", "topics": ids}}
    without, tasks = batch(start, {a: 6}, {"a": UUID(int=1)})
    assert tasks == ["a-0 [5, 6)"]
    _, tasks = batch(without, {a: 6, b: 9}, {"a": UUID(int=1), "b": UUID(int=came_back_as)})
    assert tasks == [f"b-0 [{begins_at}, 9)"]


# filters.py


def test_a_time_before_1970_does_not_hide_records_from_before_1970():
    long_ago = datetime.datetime(1960, 1, 1, tzinfo=datetime.UTC)
    wanted, _ = take([GreaterThanOrEqual(("timestamp",), long_ago)])
    assert wanted.from_time_ms is None  # 0 would pass over all that has no time: -1


# source.py


def test_an_insert_with_options_keeps_those_of_its_table():
    made = {"option.kafka.bootstrap.servers": "x:1", "option.subscribe": "orders"}
    schema = _remember(spark_schema(("value",)), made)
    source = TidelogSource({"kafka.compression.type": "zstd"})
    writer: Any = source.writer(schema=schema, overwrite=False)
    assert writer._options.topic == "orders"


def test_one_application_writes_each_topic_of_its_version():
    groups = {
        BatchWriter(
            write_options(AT | {"topic": topic, "txnAppId": "app", "txnVersion": "1"}, streaming=False),
            SCHEMA,
        )._group
        for topic in ("a", "b")
    }
    assert len(groups) == 2
