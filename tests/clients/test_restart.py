"""A node ends, politely or not, and comes back: clients go on as if nothing had been."""

import gc
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from tests.clients.adapters import EARLIEST, Client, ClusterDescription, Message, TopicDescription
from tests.clients.libraries import CLIENTS
from tests.clients.nodes import stored_batches
from tests.support.node import NodeProcess

# Clients that find nobody listening leave their sockets to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")

ENDS = ["stop", "kill"]


def restart(node: NodeProcess, end: str) -> None:
    end_node(node, end)
    node.start()


def end_node(node: NodeProcess, end: str) -> None:
    if end == "stop":
        assert node.stop() == 0, node.log.read_text()
    else:
        node.kill()


# Over a restart.


@pytest.fixture(scope="module")
def restarting_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    with NodeProcess(tmp_path_factory.mktemp("restarting") / "data") as node:
        yield node


@pytest.fixture
def client(library: type[Client], restarting_node: NodeProcess) -> Iterator[Client]:
    with library(restarting_node.bootstrap) as client:
        yield client
    gc.collect()  # here, where its warnings are expected


@pytest.mark.parametrize("end", ENDS)
def test_an_idempotent_producer_and_a_consumer_go_on_over_a_restart(client, restarting_node, topic, end):
    producer = client.producer(idempotent=True)
    producer.send(topic, b"0").result()
    consumer = client.consumer().assign(topic, {0: EARLIEST})
    read = consumer.take(1)

    # Some are on their way when the node ends, some are sent while it is away.
    pending = [producer.send(topic, b"%d" % number) for number in range(1, 100)]
    end_node(restarting_node, end)
    pending += [producer.send(topic, b"%d" % number) for number in range(100, 200)]
    restarting_node.start()
    pending += [producer.send(topic, b"%d" % number) for number in range(200, 300)]

    assert [each.result().offset for each in pending] == list(range(1, 300))
    read += consumer.take(299)
    assert [m.value for m in read] == [b"%d" % number for number in range(300)]
    assert [m.offset for m in read] == list(range(300))


# After a restart.


@dataclass
class Before:
    """What clients had written and seen before the node was started again."""

    node: NodeProcess
    cluster: ClusterDescription
    messages: dict[str, list[list[Message]]] = field(default_factory=dict)
    """By topic and partition."""
    described: dict[str, TopicDescription] = field(default_factory=dict)


def topic_of(name: str) -> str:
    return f"written-by-{name}"


@pytest.fixture(scope="module", params=ENDS)
def before(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Before]:
    """A node that was written to by all clients and started again since."""
    with NodeProcess(tmp_path_factory.mktemp("restarted") / "data") as node:
        with CLIENTS["kafka-python"](node.bootstrap) as client:
            before = Before(node, client.admin().describe_cluster())
        for name, library in CLIENTS.items():
            with library(node.bootstrap) as client:
                _write(client, before, topic_of(name), idempotent=name == "aiokafka")
        with CLIENTS["kafka-python"](node.bootstrap) as client:
            _delete_some(client)

        restart(node, request.param)

        yield before
    gc.collect()


def _write(client: Client, before: Before, topic: str, *, idempotent: bool) -> None:
    admin, consumer = client.admin(), client.consumer()
    admin.create(topic, partitions=2, config={"message.timestamp.type": "LogAppendTime"})
    before.described[topic] = admin.describe(topic)
    producer = client.producer(codec="gzip", linger_ms=5, idempotent=idempotent)
    pending = [
        producer.send(topic, b"%d" % n, key=b"key", partition=n % 2, headers=[("n", b"")]) for n in range(100)
    ]
    producer.flush()
    assert [each.result().offset for each in pending] == [n // 2 for n in range(100)]
    before.messages[topic] = [consumer.read_all(topic, partition) for partition in (0, 1)]


def _delete_some(client: Client) -> None:
    admin = client.admin()
    admin.create("deleted")
    admin.delete("deleted")
    client.producer().send_all("shortened", [b"%d" % number for number in range(10)])
    assert admin.delete_records("shortened", {0: 6}) == {0: 6}


@pytest.fixture
def client_after(library: type[Client], before: Before) -> Iterator[Client]:
    with library(before.node.bootstrap) as client:
        yield client


def test_everything_acknowledged_is_there_after_a_restart(client_after, before):
    consumer = client_after.consumer()

    messages = {
        topic: [consumer.read_all(topic, partition)[:50] for partition in (0, 1)] for topic in before.messages
    }

    assert messages == before.messages
    assert all(len(each) == 50 for partitions in messages.values() for each in partitions)


def test_cluster_and_topics_are_the_same_after_a_restart(client_after, before):
    admin = client_after.admin()

    assert admin.describe_cluster() == before.cluster
    for topic, described in before.described.items():
        again = admin.describe(topic)
        assert (again.leaders, again.in_sync) == (described.leaders, described.in_sync)
        assert again.id == described.id or None in (again.id, described.id)


def test_what_was_deleted_stays_deleted_after_a_restart(client_after):
    assert "deleted" not in client_after.admin().names()
    consumer = client_after.consumer()
    assert (consumer.earliest("shortened"), consumer.latest("shortened")) == (6, 10)
    messages = consumer.assign("shortened", {0: EARLIEST}).take(4)
    assert [m.value for m in messages] == [b"6", b"7", b"8", b"9"]


def test_a_new_producer_goes_on_after_the_last_offset_with_an_id_of_its_own(before, library):
    topic = topic_of("aiokafka")
    with library(before.node.bootstrap) as client:
        last = client.consumer().latest(topic)

        sent = client.producer(idempotent=True).send(topic, b"next", partition=0).result()

    assert last >= 50
    assert sent.offset == last
    *earlier, newest = stored_batches(before.node.data, topic)
    assert all(batch.producer_id >= 0 for batch in [*earlier, newest])
    assert newest.producer_id not in {batch.producer_id for batch in earlier}
