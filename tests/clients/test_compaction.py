"""Compacted topics as their producers and consumers see them."""

import itertools
import time
from collections.abc import Callable, Iterator

import pytest

from tests.clients.adapters import EARLIEST, SECONDS_MAX, Client, Consumer, Message, Refused
from tests.clients.adapters.aio import AioKafkaClient
from tests.clients.nodes import no_complaints
from tests.support.node import NodeProcess

INVALID_RECORD = 87
HOUR_MS = 60 * 60 * 1000

# Everything but the newest second or so is compacted, as often as there is something to gain.
EAGER = {
    "cleanup.policy": "compact",
    "max.compaction.lag.ms": "300",
    "min.cleanable.dirty.ratio": "0",
    "segment.bytes": "4000",
}


@pytest.fixture(scope="session")
def eager_shared_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """A node that looks for old records all the time."""
    settings = {"log.cleaner.backoff.ms": "50", "retention.check.ms": "100"}
    with NodeProcess(tmp_path_factory.mktemp("eager") / "data", settings) as node:
        yield node
        assert node.stop() == 0, node.log.read_text()


@pytest.fixture
def eager(library: type[Client], eager_shared_node: NodeProcess) -> Iterator[Client]:
    """Each library at such a node."""
    with no_complaints(eager_shared_node), library(eager_shared_node.bootstrap) as client:
        yield client


def everything(consumer: Consumer, topic: str) -> list[Message]:
    """What a consumer gets that reads from the start to the last record, which is never gone."""
    end = consumer.latest(topic)
    consumer.assign(topic, {0: EARLIEST})
    messages: list[Message] = []
    deadline = time.monotonic() + SECONDS_MAX
    while not messages or messages[-1].offset < end - 1:
        assert time.monotonic() < deadline, f"{messages[-1:]} is all before {end}"
        messages += consumer.poll(1)
    return messages


def until_gone(client: Client, topic: str, offset: int) -> None:
    """Wait until the log begins at `offset`."""
    consumer = client.consumer()
    deadline = time.monotonic() + SECONDS_MAX
    while (earliest := consumer.earliest(topic)) < offset:
        assert time.monotonic() < deadline, f"the log still begins at {earliest}"
        time.sleep(0.05)


def eventually(
    client: Client, topic: str, is_so: Callable[[list[Message]], bool], *, poke: bool = False
) -> list[Message]:
    """Read the topic again and again until `is_so`; with `poke`, write to it between."""
    consumer, producer = client.consumer(), client.producer()
    deadline = time.monotonic() + SECONDS_MAX
    while not is_so(messages := everything(consumer, topic)):
        assert time.monotonic() < deadline, [(m.offset, m.key, m.value) for m in messages]
        time.sleep(0.2)
        if poke:
            producer.send(topic, b"poke", key=b"poke").result()
    return messages


def pairs(messages: list[Message]) -> dict[bytes | None, bytes | None]:
    return {m.key: m.value for m in messages if m.key != b"poke"}


def test_a_consumer_finds_the_latest_value_of_every_key_and_no_other(eager, topic):
    eager.admin().create(topic, config=EAGER)
    producer = eager.producer(linger_ms=5)
    written = [(b"key-%d" % (n * n % 37 % 10), b"value-%d" % n) for n in range(500)]
    for key, value in written:
        producer.send(topic, value, key=key)
    producer.flush()

    messages = eventually(eager, topic, lambda found: len(found) == len(dict(written)))

    assert pairs(messages) == dict(written)
    assert [m.offset for m in messages] == sorted(m.offset for m in messages)
    assert all(written[m.offset] == (m.key, m.value) for m in messages), "offsets never change"
    consumer = eager.consumer()
    assert (consumer.earliest(topic), consumer.latest(topic)) == (0, 500)
    # To begin at an offset that is gone is to begin at the next that is there.
    (gone, following) = next(
        (b.offset - 1, b.offset) for a, b in itertools.pairwise(messages) if b.offset - a.offset > 1
    )
    first = consumer.assign(topic, {0: gone}).poll(SECONDS_MAX)[0]
    assert first.offset == following


@pytest.mark.parametrize("codec", ["gzip", "zstd"])
def test_compressed_batches_are_compacted_too(eager, topic, codec):
    eager.admin().create(topic, config=EAGER)
    producer = eager.producer(linger_ms=5, codec=codec)
    for n in range(300):
        producer.send(topic, b"value-%d" % n, key=b"key-%d" % (n % 3))
    producer.flush()

    messages = eventually(eager, topic, lambda found: len(found) == 3)

    assert pairs(messages) == {b"key-%d" % (n % 3): b"value-%d" % n for n in (297, 298, 299)}


def test_a_tombstone_hides_its_key_and_is_kept_for_those_who_lag(eager, topic):
    eager.admin().create(topic, config={**EAGER, "delete.retention.ms": str(HOUR_MS)})
    producer = eager.producer()
    for key, value in ((b"a", b"1"), (b"b", b"1"), (b"a", None), (b"c", b"1")):
        producer.send(topic, value, key=key).result()

    messages = eventually(eager, topic, lambda found: len(found) == 3)

    assert [(m.key, m.value) for m in messages] == [(b"b", b"1"), (b"a", None), (b"c", b"1")]


def test_a_tombstone_goes_after_its_time(eager, topic):
    eager.admin().create(topic, config={**EAGER, "delete.retention.ms": "100"})
    producer = eager.producer()
    for key, value in ((b"a", b"1"), (b"b", b"1"), (b"a", None), (b"c", b"1")):
        producer.send(topic, value, key=key).result()

    messages = eventually(eager, topic, lambda found: b"a" not in pairs(found), poke=True)

    assert pairs(messages) == {b"b": b"1", b"c": b"1"}


def test_a_record_without_a_key_is_refused_and_the_next_is_taken(eager, topic):
    eager.admin().create(topic, config=EAGER)
    producer = eager.producer()

    with pytest.raises(Refused) as refused:
        producer.send(topic, b"value").result()

    knows_the_code = not isinstance(eager, AioKafkaClient)
    assert refused.value.code == (INVALID_RECORD if knows_the_code else -1)
    assert producer.send(topic, b"value", key=b"key").result().offset == 0


@pytest.mark.parametrize("policy", ["compact,delete", "delete, compact"])
def test_with_both_policies_old_segments_go_and_the_rest_is_compacted(eager, topic, policy):
    config = {**EAGER, "cleanup.policy": policy, "retention.ms": str(HOUR_MS)}
    eager.admin().create(topic, config=config)
    producer = eager.producer()
    now_ms = int(time.time() * 1000)
    for n in range(20):  # each key once: compaction alone would keep all
        producer.send(topic, b"x" * 400, key=b"old-%d" % n, timestamp_ms=now_ms - 2 * HOUR_MS)
    producer.flush()
    until_gone(eager, topic, 20)  # a segment that also holds something new would stay
    for n in range(20):
        producer.send(topic, b"%d" % n, key=b"new-%d" % (n % 2))
    producer.flush()

    messages = eventually(
        eager, topic, lambda found: set(pairs(found)) == {b"new-0", b"new-1"} and len(found) == 2
    )

    assert pairs(messages) == {b"new-0": b"18", b"new-1": b"19"}
    assert 0 < eager.consumer().earliest(topic) <= 38


def test_with_both_policies_a_log_keeps_to_its_bytes(eager, topic):
    config = {**EAGER, "cleanup.policy": "compact,delete", "retention.bytes": "8000"}
    eager.admin().create(topic, config=config)
    producer = eager.producer()
    for n in range(100):  # batches of about 500 bytes, in segments of 4000
        producer.send(topic, b"x" * 400, key=b"key-%d" % n).result()

    messages = eventually(eager, topic, lambda found: len(found) <= 40)

    assert [m.offset for m in messages] == list(range(messages[0].offset, 100))
    assert len(messages) >= 10
    assert eager.consumer().earliest(topic) >= messages[0].offset
