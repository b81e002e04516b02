"""The replication stream, without a connection that carries it."""

import asyncio
import gzip
import json
from typing import Any

import pytest

from tests.unit.broker.node import on_a_node
from tests.unit.copies.node.test_views import SMALL, compact, partition_of, unreadable
from tests.unit.faces.http.test_app import Answer, ask
from tests.unit.faces.http.test_records import serving
from tests.unit.services.test_kv import Bucket, Undecided
from tidelog.broker.topics import delete_topic
from tidelog.copies.stream import protocol
from tidelog.records import Record, decode_batch, iterate_batches
from tidelog.simulation.http_door import SWITCHING, Closed, Door, Message, Piece, Said, Started

SECONDS_MAX = 300.0
"""For how long an answer is awaited; these are not real ones."""
BUCKET = {"bucket": "b"}


def compact_json(document: Any) -> bytes:
    """As a node writes it: checksums are over its very bytes."""
    return json.dumps(document, separators=(",", ":")).encode()


class Replica:
    """A replica at its end of a socket."""

    def __init__(self, app: Any) -> None:
        self._heard: asyncio.Queue[Message] = asyncio.Queue()
        self._door = Door(app, "WS", "/v1/replicate", self._heard.put)
        self._served = asyncio.create_task(self._door.run())

    def say(self, **message: Any) -> None:
        self.say_text(json.dumps(message))

    def say_text(self, text: str) -> None:
        self._door.say(text)

    def say_bytes(self, data: bytes) -> None:
        self._door.say(data)

    async def hear(self) -> Any:
        """The next message: a document, or bytes."""
        while True:
            async with asyncio.timeout(SECONDS_MAX):
                message = await self._heard.get()
            match message:
                case Said(str(text)):
                    return json.loads(text)
                case Said(bytes(data)):
                    if data[:1] == protocol.GZIP:
                        return json.loads(gzip.decompress(data[1:]))
                    return data
                case Closed(code):
                    return {"type": "closed", "code": code}
                case _:
                    assert isinstance(message, Started) and message.status == SWITCHING

    async def greet(self, source: dict[str, Any] = BUCKET, **more: Any) -> Any:
        self.say(type="hello", replica_id="replica-1", source=source, **more)
        return await self.hear()

    async def sync(self, offset: int | None, source: dict[str, Any] = BUCKET, **more: Any) -> Any:
        """Ask from an offset on; what the node says to that."""
        of_hello = {key: more.pop(key) for key in ("format", "snapshots") if key in more}
        assert (await self.greet(source, **of_hello))["type"] == "hello_ack"
        self.say(type="sync", from_offset=offset, **more)
        return await self.hear()

    async def entries(self, count: int) -> list[Any]:
        """So many entries; heartbeats are passed over."""
        found: list[Any] = []
        while len(found) < count:
            message = await self.hear()
            assert message["type"] in ("batch", "heartbeat"), message
            found += message.get("entries", [])
        return found

    async def leave(self) -> None:
        self._door.hang_up(1000)
        async with asyncio.timeout(SECONDS_MAX):
            await self._served


def in_a_bucket(story: Any, *, config: dict[str, str] | None = None, **settings: Any) -> None:
    async def on(node: Any) -> None:
        bucket = await Bucket(node).make(**(config or {}))
        await story(bucket, serving(node))

    on_a_node(on, **settings)


def test_a_replica_is_greeted_and_gets_what_it_lacks_with_checksums():
    async def story(bucket, app):
        for number in range(3):
            await bucket.put(b"k%d" % number, b'{"n":%d}' % number)
        replica = Replica(app)

        ack = await replica.greet()
        replica.say(type="sync", from_offset=1)
        start = await replica.hear()
        entries = await replica.entries(2)
        await replica.leave()

        assert (ack["type"], ack["current_offset"], ack["log_oldest_offset"]) == ("hello_ack", 3, 0)
        assert (ack["master_id"], ack["topic"], ack["partitions"]) == ("node-1", "b", 1)
        assert start == {"type": "sync_start", "mode": "incremental", "from_offset": 1}
        assert [entry["offset"] for entry in entries] == [1, 2]
        assert entries[0]["operation"] == {"type": "kv_set", "key": "k1", "value": {"n": 1}}
        for entry in entries:
            operation = compact_json(entry["operation"])
            expected = protocol.checksum_of(entry["offset"], entry["timestamp"], operation)
            assert entry["checksum"] == expected

    in_a_bucket(story)


def test_a_deletion_is_an_operation_too_and_comes_as_it_happens():
    async def story(bucket, app):
        await bucket.put(b"k", b"1")
        replica = Replica(app)
        await replica.sync(1)
        await bucket.put(b"k", None)

        (entry,) = await replica.entries(1)
        await replica.leave()

        assert entry["operation"] == {"type": "kv_del", "keys": ["k"]}

    in_a_bucket(story)


def test_batches_come_as_the_log_has_them_for_who_wants_bytes():
    async def story(bucket, app):
        await bucket.put(b"k", b"1")
        replica = Replica(app)
        await replica.sync(0, format="binary")

        data = await replica.hear()
        await replica.leave()

        assert data[:1] == protocol.BATCHES
        following, current, epoch = protocol.BATCHES_HEAD.unpack_from(data, 1)
        ((header, batch),) = iterate_batches(data[1 + protocol.BATCHES_HEAD.size :])
        assert (following, current, epoch) == (1, 1, header.leader_epoch)
        assert [record.key for record in decode_batch(batch)] == [b"k"]

    in_a_bucket(story)


def test_who_has_everything_hears_a_heartbeat_that_says_how_far_the_log_goes():
    async def story(bucket, app):
        await bucket.put(b"k", b"1")
        replica = Replica(app)
        await replica.sync(1)

        heard = await replica.hear()
        await replica.leave()

        assert heard == {"type": "heartbeat", "current_offset": 1}

    in_a_bucket(story)


def test_batches_that_are_full_do_not_wait_for_more():
    async def story(bucket, app):
        for number in range(30):
            await bucket.put(b"k%d" % number, b"1")
        replica = Replica(app)
        await replica.sync(0)
        began = bucket.node.clock.monotonic()

        await replica.entries(30)
        took = bucket.node.clock.monotonic() - began
        await replica.leave()

        # Every pause would be a second; the last ones are told at once, too.
        assert took < 1

    in_a_bucket(story, replication_stream_batch_size=2, replication_stream_batch_timeout_ms=1000)


def test_who_copies_is_listed_with_how_far_it_has_got():
    async def story(bucket, app):
        await bucket.put(b"k", b"1")
        replica = Replica(app)
        await replica.sync(0)
        await replica.entries(1)
        replica.say(type="ack", offset=1)
        await replica.hear()

        (found,) = (await ask(app, "/v1/replicate/replicas")).json["replicas"]
        await replica.leave()
        (gone,) = (await ask(app, "/v1/replicate/replicas")).json["replicas"]

        assert (found["replica_id"], found["source"]) == ("replica-1", BUCKET)
        assert (found["status"], found["offset"], found["sent"]) == ("in_sync", 1, 1)
        assert gone["status"] == "disconnected"

    in_a_bucket(story)


def test_nobody_has_acknowledged_more_than_it_was_sent():
    async def story(bucket, app):
        await bucket.put(b"k", b"1")
        replica = Replica(app)
        await replica.sync(0)
        await replica.entries(1)
        replica.say(type="ack", offset=10**30)
        await replica.hear()

        (found,) = (await ask(app, "/v1/replicate/replicas")).json["replicas"]
        await replica.leave()

        assert (found["status"], found["offset"]) == ("in_sync", 1)

    in_a_bucket(story)


def test_a_copy_that_has_everything_is_in_sync_though_nothing_was_sent_to_it():
    async def story(bucket, app):
        await bucket.put(b"k", b"1")
        replica = Replica(app)
        await replica.sync(1)
        replica.say(type="ack", offset=1)
        await replica.hear()

        (found,) = (await ask(app, "/v1/replicate/replicas")).json["replicas"]
        await replica.leave()

        assert (found["status"], found["offset"], found["sent"]) == ("in_sync", 1, 1)

    in_a_bucket(story)


def test_an_entry_is_one_line_though_its_value_was_written_in_several():
    value = b'{\n  "a": [\r\n1]}'
    record = Record(key=b"k", value=value, offset=7, timestamp_ms=1)
    entry = protocol.entry_of(record, protocol.Source(bucket="b"))
    assert entry is not None

    line = protocol.encode(entry)

    assert not set(b"\r\n").intersection(line)
    again = protocol.record_of(protocol.decode_from_node(line))
    assert again is not None and json.loads(again.value or b"") == {"a": [1]}


@pytest.mark.parametrize(
    ("header", "expires"), [(b"99", 99), (b"9" * 5000, None), (b"soon", None), (None, None)]
)
def test_a_time_that_is_none_keeps_nobody_from_copying(header, expires):
    record = Record(key=b"k", value=b"1", offset=7, timestamp_ms=1, headers=(("tidelog-expires-at", header),))

    entry = protocol.entry_of(record, protocol.Source(bucket="b"))

    assert entry is not None
    assert json.loads(bytes(entry.operation)).get("expires_at_ms") == expires


def test_who_acknowledges_nothing_for_too_long_is_let_go_and_then_forgotten():
    async def story(bucket, app):
        replica = Replica(app)
        await replica.sync(0)

        heard = await replica.hear()
        async with asyncio.timeout(SECONDS_MAX):
            while heard["type"] == "heartbeat":
                heard = await replica.hear()
        await asyncio.sleep(6)

        assert (heard["type"], heard["code"]) == ("error", "ConnectionFailed")
        assert "acknowledged" in heard["detail"]
        copies = app.node.services.copies
        assert [one.replica_id for one in copies.known.values()] == ["replica-1"]
        copies.arrived("another", "{}")
        assert [one.replica_id for one in copies.known.values()] == ["another"]

    in_a_bucket(story, replication_stream_replica_timeout_secs=5)


async def lines(app: Any, heard: list[Any], **wanted: Any) -> None:
    """Read one long answer to its end; gather what it says."""
    body = json.dumps({"replica_id": "lines", "source": BUCKET, **wanted}).encode()

    async def tell(message: Message) -> None:
        if isinstance(message, Piece):
            heard.extend(map(json.loads, message.body.splitlines()))

    headers = {"content-type": "application/json"}
    door = Door(app, "POST", "/v1/replicate", tell, headers=headers, body=[body])
    async with asyncio.timeout(SECONDS_MAX):
        await door.run()


async def acknowledge(app: Any, **said: Any) -> Answer:
    return await ask(
        app,
        "/v1/replicate/ack",
        method="POST",
        headers={"content-type": "application/json"},
        chunks=(json.dumps({"replica_id": "lines", **said}).encode(),),
    )


def test_who_reads_lines_and_acknowledges_nothing_is_let_go_too():
    async def story(bucket, app):
        await bucket.put(b"k", b"1")
        heard: list[Any] = []
        reading = asyncio.create_task(lines(app, heard, from_offset=0))
        for _ in range(4):
            await asyncio.sleep(4)
            acked = await acknowledge(app, offset=1)
            assert (acked.status, acked.json["offset"]) == (200, 1)
        assert not reading.done()
        await reading

        assert (heard[-1]["type"], heard[-1]["code"]) == ("error", "ConnectionFailed")
        assert "acknowledged" in heard[-1]["detail"]

    in_a_bucket(story, replication_stream_replica_timeout_secs=5)


def test_a_replica_that_reads_lines_of_several_sources_acknowledges_each():
    async def story(bucket, app):
        await bucket.node.create("t")
        await bucket.put(b"k", b"1")
        sources = [BUCKET, {"topic": "t"}]
        reading = [asyncio.create_task(lines(app, [], from_offset=0, source=one)) for one in sources]
        for _ in range(4):
            await asyncio.sleep(4)
            acked = [await acknowledge(app, offset=1, source=one) for one in sources]
            assert [(one.status, one.json) for one in acked] == [
                (200, {"replica_id": "lines", "offset": 1}),
                (200, {"replica_id": "lines", "offset": 0}),
            ]
        assert not any(task.done() for task in reading)
        await asyncio.gather(*reading)

    in_a_bucket(story, replication_stream_replica_timeout_secs=5)


def test_only_a_replica_that_copies_several_sources_must_name_the_one_that_it_acknowledges():
    async def story(bucket, app):
        await bucket.node.create("t")
        reading = [asyncio.create_task(lines(app, [], from_offset=0, source={"topic": "t"}))]
        await asyncio.sleep(1)
        assert (await acknowledge(app, offset=0)).status == 200
        reading.append(asyncio.create_task(lines(app, [], from_offset=0)))
        await asyncio.sleep(1)

        refused = await acknowledge(app, offset=0)
        unknown = await acknowledge(app, offset=0, source={"topic": "u"})

        assert refused.status == 400 and "name one as source" in refused.json["detail"]
        assert unknown.status == 404 and '"u"' in unknown.json["detail"]
        reading[0].cancel()
        await asyncio.wait(reading[:1])
        assert (await acknowledge(app, offset=0)).status == 200  # the other one has left
        await reading[1]

    in_a_bucket(story, replication_stream_replica_timeout_secs=5)


def test_a_node_that_is_cut_off_from_its_cluster_sends_its_copies_elsewhere():
    async def story(bucket, app):
        replica = Replica(app)
        await replica.sync(0)
        assert (await replica.hear())["type"] == "heartbeat"

        bucket.node.broker.membership.lease_until = float("-inf")
        heard = await replica.hear()

        assert (heard["type"], heard["code"]) == ("error", "ConnectionFailed")
        assert "ask another" in heard["detail"]

    in_a_bucket(story, broker_heartbeat_interval_ms=60_000, broker_session_timeout_ms=600_000)


def test_a_node_that_is_cut_off_does_not_tell_a_copy_what_there_is():
    """It may have been made anew: a copy of the new one would take the old one for it."""

    async def story(bucket, app):
        bucket.node.broker.membership.lease_until = float("-inf")

        heard = await Replica(app).greet()

        assert (heard["type"], heard["code"]) == ("error", "ConnectionFailed")

    in_a_bucket(story, broker_heartbeat_interval_ms=60_000, broker_session_timeout_ms=600_000)


def test_what_cannot_be_is_said_with_its_code():
    async def story(bucket, app):
        async def told(*texts: str) -> tuple[str, str]:
            replica = Replica(app)
            for text in texts:
                replica.say_text(text)
            heard = await replica.hear()
            while heard["type"] == "hello_ack":
                heard = await replica.hear()
            assert (await replica.hear())["type"] == "closed"
            return heard["code"], heard["detail"]

        hello = '{"type":"hello","replica_id":"r","source":{"bucket":"%s"}}'
        assert (await told("nonsense"))[0] == "ProtocolError"
        assert (await told('{"type":"sync","from_offset":1}'))[0] == "ProtocolError"
        assert await told(hello % "none") == ("OffsetNotFound", "there is no topic or partition none")
        assert (await told(hello % "b", '{"type":"sync","from_offset":9}'))[0] == "OffsetNotFound"

    in_a_bucket(story)


@pytest.mark.parametrize(
    ("source", "code"),
    [
        ({}, "ProtocolError"),
        ({"bucket": "b", "topic": "b"}, "ProtocolError"),
        ({"bucket": "b", "pubsub": "b"}, "ProtocolError"),
        ({"pubsub": ""}, "ProtocolError"),
        ({"pubsub": "a..b"}, "ProtocolError"),
        ({"bucket": "b", "partition": 1}, "OffsetNotFound"),
        ({"bucket": "b", "partition": -1}, "OffsetNotFound"),
        ({"topic": "b", "partition": -1}, "OffsetNotFound"),
        ({"room": "none"}, "OffsetNotFound"),
    ],
)
def test_a_source_that_cannot_be_copied_is_said_with_its_code(source, code):
    async def story(bucket, app):
        heard = await Replica(app).greet(source)

        assert (heard["type"], heard["code"]) == ("error", code), heard

    in_a_bucket(story)


def test_who_says_bytes_among_its_acknowledgements_is_told_to_send_text():
    async def story(bucket, app):
        replica = Replica(app)
        await replica.sync(0)
        replica.say_bytes(b"ack")

        heard = await replica.hear()

        assert (heard["type"], heard["code"]) == ("error", "ProtocolError")

    in_a_bucket(story)


def test_a_bucket_that_is_deleted_while_a_copy_is_greeted_is_not_found(monkeypatch):
    async def story(bucket, app):
        copies = app.node.services.copies
        bounds = copies.bounds

        async def bounds_and_then_none(place):
            found = await bounds(place)
            await delete_topic(bucket.node.broker, "b", None)
            return found

        monkeypatch.setattr(copies, "bounds", bounds_and_then_none)

        heard = await Replica(app).greet()

        assert (heard["type"], heard["code"]) == ("error", "OffsetNotFound")

    in_a_bucket(story)


# What a copy must not lack.


@pytest.mark.parametrize("before", [0, 1])
def test_what_nobody_can_read_is_passed_over_and_nothing_that_follows_it(before):
    async def story(bucket, app):
        for _ in range(before):
            await bucket.put(b"first", b"1")
        assert (await bucket.node.produce("b", unreadable())).error_code == 0
        await bucket.put(b"last", b"1")
        replica = Replica(app)
        await replica.sync(0)

        entries = await replica.entries(before + 1)
        await replica.leave()

        keys = [entry["operation"]["key"] for entry in entries]
        assert keys == ["first"] * before + ["last"]

    in_a_bucket(story)


def test_who_may_lack_a_deletion_that_was_compacted_is_told_to_ask_for_all():
    async def story(bucket, app):
        await bucket.put(b"k", b"1")
        await bucket.put(b"k", None)
        await compact(bucket)
        end = partition_of(bucket).log.end
        replica, log_reader = Replica(app), Replica(app)

        await replica.sync(1)
        heard = await replica.hear()
        await log_reader.sync(0, snapshots=False)
        entries = await log_reader.entries(1)
        await log_reader.leave()

        assert (heard["type"], heard["code"]) == ("error", "LogTruncated")
        assert "compacted" in heard["detail"]
        assert entries[0]["offset"] < end  # who reads a log, and keeps no copy, may have gaps

    in_a_bucket(story, config=SMALL, log_cleaner_backoff_ms=10**9)


def test_a_copy_of_another_history_is_worth_nothing():
    async def story(bucket, app):
        await bucket.put(b"k", b"1")
        epoch = next(iterate_batches(await all_bytes(bucket)))[0].leader_epoch
        same, other = Replica(app), Replica(app)

        start = await same.sync(1, epoch=epoch, snapshots=False)
        await same.leave()
        heard = await other.sync(1, epoch=epoch + 1, snapshots=False)

        assert start["mode"] == "incremental"
        assert (heard["code"], "history" in heard["detail"]) == ("LogTruncated", True)

    async def all_bytes(bucket):
        return partition_of(bucket).read(0, 10_000, 1).joined

    in_a_bucket(story)


def test_a_copy_of_another_history_is_known_where_that_ends_in_a_marker():
    async def story(bucket, app):
        await bucket.put(b"k", b"1")
        Undecided(bucket, b"k", b"2").commit()
        partition = partition_of(bucket)
        while partition.last_stable_offset < 3:
            await asyncio.sleep(0.01)
        epoch = partition.log.epochs.epoch_at(2)
        same, other = Replica(app), Replica(app)

        start = await same.sync(3, epoch=epoch, snapshots=False)
        await same.leave()
        heard = await other.sync(3, epoch=epoch + 1, snapshots=False)

        assert start["mode"] == "incremental"
        assert heard.get("code") == "LogTruncated", heard

    in_a_bucket(story)


def test_a_copy_is_told_the_epoch_of_a_marker_that_it_is_not_shown():
    async def story(bucket, app):
        await bucket.put(b"k", b"1")
        transaction = Undecided(bucket, b"k", b"2")
        partition = partition_of(bucket)
        while partition.high_watermark < 2:
            await asyncio.sleep(0.01)
        replica = Replica(app)
        await replica.sync(2, format="binary")
        transaction.commit()

        data = await replica.hear()
        while isinstance(data, dict):
            data = await replica.hear()
        await replica.leave()

        following, _, epoch = protocol.BATCHES_HEAD.unpack_from(data, 1)
        assert (following, epoch) == (3, partition.log.epochs.epoch_at(2))
        assert len(data) == 1 + protocol.BATCHES_HEAD.size

    in_a_bucket(story)


def test_what_a_queue_s_copy_hears_can_be_folded_as_its_log_is():
    async def on(node):
        app = serving(node)
        headers = {"content-type": "application/json"}

        async def post(method: str, path: str, body: Any) -> Any:
            data = compact_json(body)
            return await ask(app, path, method=method, headers=headers, chunks=(data,))

        assert (await post("PUT", "/v1/queues/q", {})).status == 201
        message = {"value": {"a": 1}, "attributes": {"x": "y"}, "key": "k"}
        await post("POST", "/v1/queues/q/messages", {"messages": [message]})
        given = (await post("POST", "/v1/queues/q/receive", {})).json["messages"][0]
        await post("POST", "/v1/queues/q/ack", {"receipts": [given["receipt"]]})
        replica = Replica(app)
        await replica.sync(0, {"queue": "q"}, snapshots=False)

        entries = await replica.entries(4)
        await replica.leave()

        made, published, delivered, acknowledged = (
            protocol.record_of(protocol.decode_from_node(compact_json(entry))) for entry in entries
        )
        assert made is not None and delivered is not None
        assert published is not None and acknowledged is not None
        assert [entry["operation"]["type"] for entry in entries] == [
            "queue_declare",
            "queue_publish",
            "queue_delivery",
            "queue_ack",
        ]
        assert entries[2]["operation"]["count"] == 1
        assert (published.offset, published.value) == (given["id"], b'{"a":1}')
        assert (acknowledged.key, acknowledged.value) == (published.key, None)

    on_a_node(on)


# Pub/sub.


async def following(app: Any, pattern: str) -> Replica:
    replica = Replica(app)
    assert (await replica.sync(None, {"pubsub": pattern}))["mode"] == "live"
    return replica


def test_who_is_told_that_it_listens_misses_nothing_from_then_on():
    async def on(node):
        app = serving(node)
        replica = await following(app, "news.*")

        assert app.node.services.pubsub._tell("news.sport", b'{"n":1}') == 1
        (entry,) = await replica.entries(1)
        await replica.leave()

        operation = {"type": "pubsub_publish", "topic": "news.sport", "message": {"n": 1}}
        assert entry["operation"] == operation
        assert app.node.services.pubsub.counts() == {}

    on_a_node(on)


@pytest.mark.parametrize(("name", "size"), [("WAITING_MAX", 3), ("BYTES_MAX", 30)])
def test_who_does_not_keep_up_with_messages_is_told_that_some_are_lost(monkeypatch, name, size):
    monkeypatch.setattr(f"tidelog.faces.http.replicate_live.{name}", size)

    async def on(node):
        app = serving(node)
        replica = await following(app, "news")
        heard = [app.node.services.pubsub._tell("news", b'"12345678"') for _ in range(9)]

        entries = await replica.entries(3)
        end = await replica.hear()

        assert heard == [1, 1, 1] + 6 * [0]
        assert [entry["offset"] for entry in entries] == [0, 1, 2]
        assert (end["type"], end["code"]) == ("error", "SyncFailed")
        assert "lost" in end["detail"]

    on_a_node(on)
