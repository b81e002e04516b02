"""Clients that take more than they give: memory, time, names, other clients' turns."""

import itertools
import struct
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from crc32c import crc32c

from tests.faces.arena import FETCH_BYTES_MAX, FRAME_BYTES_MAX, MIB, QUEUED_BYTES_MAX, Arena, arena_on
from tests.faces.raw import RawClient, fetch_fields, framed, header, produce_fields, request
from tidelog.records import CRC_AT, CRC_FROM, HEADER_BYTES, Codec, Record, compress, encode_batch
from tidelog.wire.apis import Api

UNKNOWN_TOPIC, INVALID_TOPIC = 3, 17
NOW_MS = time.time_ns() // 1_000_000
TINY_RECORD = b"\x0c\0\0\0\1\1\0"  # no key, no value, no headers
SNAPPY_JAVA = b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1)

_names = itertools.count()


def fill(client: RawClient, topic: str, mebibytes: int) -> None:
    """Write so much that most of it is no longer in the node's memory."""
    batch = bytes(encode_batch([Record(value=bytes(MIB - 1000))]))
    for _ in range(mebibytes):
        assert client.produce(batch, topic).error_code == 0


def wait_for_log(arena: Arena, words: str, seconds_max: float = 20.0) -> None:
    """Wait until the node has written `words`: a client that does not read sees no end."""
    deadline = time.monotonic() + seconds_max
    while words not in arena.node.log.read_text():
        assert time.monotonic() < deadline, arena.node.log.read_text()
        time.sleep(0.02)


# Those who do not read.


def test_a_client_that_never_reads_is_answered_no_further(arena: Arena) -> None:
    topic = f"unread-{next(_names)}"
    with arena.connect() as writer:
        writer.create_topic(topic)
        fill(writer, topic, 12)
    one = request(Api.FETCH, 11, fetch_fields(topic, max_bytes=2**31 - 1))

    with arena.unharmed(peak_bytes_max=4 * FETCH_BYTES_MAX):
        client = arena.connect()
        client.send(one * 500)  # two gigabytes of answers
        arena.bystander.wait_served(20)


def test_many_clients_that_never_read_take_one_answer_each(arena: Arena) -> None:
    count = 8
    topic = f"unread-{next(_names)}"
    with arena.connect() as writer:
        writer.create_topic(topic)
        fill(writer, topic, 12)
    one = request(Api.FETCH, 11, fetch_fields(topic, max_bytes=2**31 - 1))

    with arena.unharmed(peak_bytes_max=count * (FETCH_BYTES_MAX + 2 * MIB) + 8 * MIB):
        for client in [arena.connect() for _ in range(count)]:
            client.send(one * 50)
        arena.bystander.wait_served(20)


def test_a_client_that_does_not_read_is_closed_after_a_while(tmp_path: Path) -> None:
    with arena_on(tmp_path / "data", connections_max_idle_ms=1000) as arena, arena.unharmed():
        writer, client = arena.connect(), arena.connect()
        writer.create_topic("unread")
        fill(writer, "unread", 12)

        client.send(request(Api.FETCH, 11, fetch_fields("unread", max_bytes=2**31 - 1)) * 20)

        wait_for_log(arena, "it does not read its answers")


def test_a_client_that_only_writes_is_not_read_from_for_ever(arena: Arena) -> None:
    """Answers that nobody takes fill the pipe; then the node must stop reading, too."""
    topic = f"deaf-{next(_names)}"
    client = arena.connect()
    client.create_topic(topic)
    client.socket.settimeout(0.5)
    one = request(Api.METADATA, 1, {"topics": [{"name": "x" * 200}] * 50})
    sent = 0
    try:
        while sent < 400 * MIB:
            sent += client.socket.send(one * 100)
    except TimeoutError:
        pass

    assert sent < 400 * MIB


# Those who send too much.


def test_large_requests_of_many_clients_share_one_budget(arena: Arena) -> None:
    """Each waits for an answer that comes late; together they would fill the memory."""
    topic = f"budget-{next(_names)}"
    with arena.connect() as writer:
        writer.create_topic(topic)
    wait = request(Api.FETCH, 11, fetch_fields(topic, max_wait=3000, min_bytes=1))
    large = framed(header(Api.METADATA, 1) + struct.pack(">i", -1) + bytes(MIB))
    sent = [0]

    def attack(client: RawClient) -> None:
        client.socket.settimeout(1.5)
        try:
            client.socket.sendall(wait + large * 60)
            sent[0] += 1
        except OSError:
            pass

    threads = [threading.Thread(target=attack, args=(arena.connect(),)) for _ in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sent[0] == 0  # 600 MiB in all: nobody could leave everything with the node


def send_what_is_taken(client: RawClient, data: bytes, seconds_max: float = 1.5) -> None:
    client.socket.settimeout(seconds_max)
    try:
        client.socket.sendall(data)
    except OSError:
        pass  # the node does not read on


def test_half_requests_of_many_clients_share_a_budget_too(shared_arena: Arena) -> None:
    almost = struct.pack(">i", FRAME_BYTES_MAX) + bytes(FRAME_BYTES_MAX - 1)

    with shared_arena.unharmed(peak_bytes_max=2 * QUEUED_BYTES_MAX + 3 * FRAME_BYTES_MAX):
        threads = [
            threading.Thread(target=send_what_is_taken, args=(shared_arena.connect(), almost))
            for _ in range(30)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def test_large_requests_get_their_turn_when_half_ones_have_timed_out(tmp_path: Path) -> None:
    """Who sends half a request, and has another one waiting, holds no place for ever."""
    with arena_on(tmp_path / "data", frame_timeout_ms=500) as arena, arena.unharmed(96 * MIB):
        writer = arena.connect()
        writer.create_topic("orders")
        wait = request(Api.FETCH, 11, fetch_fields("orders", max_wait=2**31 - 1, min_bytes=1))
        half = struct.pack(">i", FRAME_BYTES_MAX) + bytes(FRAME_BYTES_MAX - 1)
        for _ in range(6):
            send_what_is_taken(arena.connect(), wait + half, 0.3)

        for number in range(3):
            answer = writer.produce(bytes(encode_batch([Record(value=bytes(MIB // 2))])), "orders")
            assert answer.base_offset == number


def test_thousands_of_pipelined_batches_are_stored_in_order(arena: Arena) -> None:
    count = 3000
    topic = f"pipelined-{next(_names)}"
    client = arena.connect()
    client.create_topic(topic)
    stream = b"".join(
        request(Api.PRODUCE, 9, produce_fields(bytes(encode_batch([Record(value=b"%d" % n)])), topic), n)
        for n in range(count)
    )
    sender = threading.Thread(target=client.send, args=(stream,))
    sender.start()

    for number in range(count):
        correlation_id, answer = client.read_answer(Api.PRODUCE, 9)
        stored = answer.responses[0].partition_responses[0]
        assert (correlation_id, stored.error_code, stored.base_offset) == (number, 0, number)
    sender.join()
    assert client.values(topic) == [b"%d" % n for n in range(count)]


# Those who ask for too many things.


def test_thousands_of_topics_in_one_metadata_request_are_answered(arena: Arena) -> None:
    client = arena.connect()
    names = [f"missing-{n}" for n in range(5000)] + ["a/b"] * 5000

    answer = client.ask(Api.METADATA, 9, {"topics": [{"name": name} for name in names]})

    errors = [topic.error_code for topic in answer.topics]
    assert errors == [UNKNOWN_TOPIC] * 5000 + [INVALID_TOPIC] * 5000


def test_more_names_than_a_request_may_hold_close_the_connection(arena: Arena) -> None:
    client = arena.connect()

    client.send(request(Api.METADATA, 9, {"topics": [{"name": "a/b"}] * 100_001}))

    assert client.is_closed()


def test_topics_made_by_naming_them_do_not_stop_the_others(tmp_path: Path) -> None:
    with arena_on(tmp_path / "data", auto_create_topics_enable="true") as arena, arena.unharmed():
        client = arena.connect()

        answer = client.ask(
            Api.METADATA,
            9,
            {"topics": [{"name": f"made-{n}"} for n in range(100)], "allow_auto_topic_creation": True},
        )

        assert {topic.error_code for topic in answer.topics} == {0}
        assert all(topic.partitions for topic in answer.topics)


def test_the_same_topic_thousands_of_times_is_refused_as_fast(arena: Arena) -> None:
    client = arena.connect()
    one = {"name": "twice", "num_partitions": 1, "replication_factor": 1}

    answer = client.ask(Api.CREATE_TOPICS, 5, {"topics": [one] * 20_000})

    assert {topic.error_code for topic in answer.topics} == {42}


def test_starts_moved_by_many_clients_at_once_all_move(arena: Arena) -> None:
    topic = f"deleted-{next(_names)}"
    partitions = 8
    client = arena.connect()
    client.create_topic(topic, partitions=partitions)
    for partition in range(partitions):
        for _ in range(20):
            client.produce(bytes(encode_batch([Record(value=b"x")])), topic, partition)
    failures: list[Any] = []

    def delete(own: RawClient, partition: int) -> None:
        for offset in range(1, 21):
            answer = (
                own.ask(
                    Api.DELETE_RECORDS,
                    1,
                    {
                        "topics": [
                            {"name": topic, "partitions": [{"partition_index": partition, "offset": offset}]}
                        ],
                        "timeout": 30_000,
                    },
                )
                .topics[0]
                .partitions[0]
            )
            if (answer.error_code, answer.low_watermark) != (0, offset):
                failures.append(answer)

    threads = [threading.Thread(target=delete, args=(arena.connect(), n)) for n in range(partitions)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert failures == []


# Those who send little that holds much.


def bomb(codec: Codec, payload: bytes, count: int) -> bytes:
    """A batch of `count` records, which are what `payload` unpacks to."""
    batch = encode_batch([Record(timestamp_ms=NOW_MS)], codec=codec)
    batch[HEADER_BYTES:] = payload
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    struct.pack_into(">i", batch, 23, count - 1)
    struct.pack_into(">i", batch, 57, count)
    struct.pack_into(">q", batch, 27, 1)  # old records, and a header that says that one is new
    struct.pack_into(">I", batch, CRC_AT, crc32c(memoryview(batch)[CRC_FROM:]))
    return bytes(batch)


def snappy_bomb() -> bytes:
    block = compress(Codec.SNAPPY, bytes(60_000))
    return SNAPPY_JAVA + (struct.pack(">i", len(block)) + block) * 300


TINY_COUNT = 2_000_000
BOMBS = {
    "gzip zeros": lambda: bomb(Codec.GZIP, compress(Codec.GZIP, bytes(500 * MIB)), 1),
    "zstd zeros": lambda: bomb(Codec.ZSTD, compress(Codec.ZSTD, bytes(1000 * MIB)), 1),
    "lz4 zeros": lambda: bomb(Codec.LZ4, compress(Codec.LZ4, bytes(200 * MIB)), 1),
    "snappy blocks": lambda: bomb(Codec.SNAPPY, snappy_bomb(), 1),
    "snappy lie": lambda: bomb(Codec.SNAPPY, b"\xff\xff\xff\xff\x0f" + bytes(50), 1),
    "zstd tiny records": lambda: bomb(Codec.ZSTD, compress(Codec.ZSTD, TINY_RECORD * TINY_COUNT), TINY_COUNT),
    "gzip tiny records": lambda: bomb(Codec.GZIP, compress(Codec.GZIP, TINY_RECORD * 30_000_000), 30_000_000),
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_batch_that_unpacks_to_far_more_is_looked_into_within_bounds(
    shared_arena: Arena, name: str
) -> None:
    batch = BOMBS[name]()
    assert len(batch) < MIB
    topic = f"bomb-{next(_names)}"
    with shared_arena.unharmed(peak_bytes_max=96 * MIB):
        client = shared_arena.connect()
        client.create_topic(topic)
        assert client.produce(batch, topic).error_code == 0  # opaque, as all batches

        for timestamp in (NOW_MS, -3):
            partition = {"partition_index": 0, "timestamp": timestamp, "current_leader_epoch": -1}
            fields = {"replica_id": -1, "topics": [{"name": topic, "partitions": [partition]}]}
            found = client.ask(Api.LIST_OFFSETS, 7, fields).topics[0].partitions[0]
            assert (found.error_code, found.offset) in ((0, 0), (0, -1))  # as its header says, or not
