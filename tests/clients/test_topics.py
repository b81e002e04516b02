"""Topics made, described, grown and deleted; by hand and by themselves."""

import time
from uuid import UUID

import pytest

from tests.clients.adapters import EARLIEST, SECONDS_MAX, Client, Message, Refused
from tests.clients.libraries import CLIENTS
from tests.support.node import NodeProcess

UNKNOWN_TOPIC_OR_PARTITION = 3
INVALID_TOPIC = 17
TOPIC_ALREADY_EXISTS = 36
INVALID_PARTITIONS = 37
INVALID_REPLICATION_FACTOR = 38
INVALID_CONFIG = 40


# Made by hand.


def test_a_created_topic_is_listed_and_described(client, topic):
    admin = client.admin()

    admin.create(topic, partitions=3)

    assert topic in admin.names()
    described = admin.describe(topic)
    assert described.name == topic
    assert described.leaders == {0: 1, 1: 1, 2: 1}
    assert described.replicas == described.in_sync == {0: [1], 1: [1], 2: [1]}


def test_a_created_topic_can_be_used_at_once(client, topic):
    client.admin().create(topic, partitions=2)

    assert client.producer().send(topic, b"value", partition=1).result().offset == 0


def test_a_deleted_topic_is_gone_with_its_records(client, topic):
    admin = client.admin()
    admin.create(topic)
    client.producer().send(topic, b"old").result()

    admin.delete(topic)

    assert topic not in admin.names()
    admin.create(topic)
    consumer = client.consumer()
    assert (consumer.earliest(topic), consumer.latest(topic)) == (0, 0)


@pytest.mark.parametrize("idempotent", [False, True])
def test_a_live_producer_goes_on_with_a_topic_made_anew(client, topic, idempotent):
    admin, producer = client.admin(), client.producer(idempotent=idempotent)
    admin.create(topic)
    assert [producer.send(topic, b"old").result().offset for _ in range(3)] == [0, 1, 2]

    admin.delete(topic)
    admin.create(topic)

    assert producer.send(topic, b"new").result().offset == 0
    (message,) = client.consumer().assign(topic, {0: EARLIEST}).take(1)
    assert message.value == b"new"


def test_a_live_consumer_goes_on_with_a_topic_made_anew(strict_client, topic):
    client = strict_client  # elsewhere its consumer might make the topic between the two
    admin = client.admin()
    admin.create(topic)
    client.producer().send(topic, b"old").result()
    consumer = client.consumer(reset="earliest").assign(topic, {0: EARLIEST})
    assert [m.value for m in consumer.take(1)] == [b"old"]

    admin.delete(topic)
    admin.create(topic)
    client.producer().send_all(topic, [b"new"] * 2)

    # Its offset, 1, exists in the new topic as well; only what lies before may be passed over.
    messages: list[Message] = []
    deadline = time.monotonic() + SECONDS_MAX
    while 1 not in [m.offset for m in messages] and time.monotonic() < deadline:
        messages += consumer.poll(0.5)
    assert messages[-1].offset == 1
    assert {m.value for m in messages} == {b"new"}


def test_added_partitions_can_be_used_and_the_old_keep_their_records(client, topic):
    admin = client.admin()
    admin.create(topic, partitions=1)
    client.producer().send(topic, b"old", partition=0).result()

    admin.grow(topic, 3)

    assert sorted(admin.describe(topic).leaders) == [0, 1, 2]
    assert client.producer().send(topic, b"new", partition=2).result().offset == 0
    messages = client.consumer().assign(topic, dict.fromkeys(range(3), EARLIEST)).take(2)
    assert sorted((m.partition, m.value) for m in messages) == [(0, b"old"), (2, b"new")]


def test_validating_a_topic_makes_none(client, topic):
    admin = client.admin()

    admin.create(topic, validate_only=True)

    assert topic not in admin.names()


def test_the_metadata_log_is_no_topic_of_the_clients(client):
    assert "__cluster_metadata" not in client.admin().names()


def test_the_cluster_is_described_as_the_one_node_it_is(client, node):
    described = client.admin().describe_cluster()

    assert described.nodes == [(1, "127.0.0.1", node.port)]
    assert described.controller == 1
    assert described.id


def test_all_clients_are_told_the_same_cluster(node):
    ids = set()
    for library in CLIENTS.values():
        with library(node.bootstrap) as client:
            ids.add(client.admin().describe_cluster().id)

    assert len(ids) == 1


# Refusals.


def refusal_of(call, *arguments, **options) -> int:
    with pytest.raises(Refused) as refused:
        call(*arguments, **options)
    return refused.value.code


def test_a_topic_that_exists_is_not_made_again(client, topic):
    admin = client.admin()
    admin.create(topic, partitions=2)

    assert refusal_of(admin.create, topic) == TOPIC_ALREADY_EXISTS
    assert len(admin.describe(topic).leaders) == 2


@pytest.mark.parametrize("name", ["..", "two words", "größe", "a/b", "x" * 250])
def test_a_name_that_no_topic_can_have_is_refused(client, name):
    assert refusal_of(client.admin().create, name) == INVALID_TOPIC


def test_a_name_of_249_characters_is_a_topics(client, topic):
    name = (topic + "-" + "x" * 249)[:249]

    client.admin().create(name)

    assert client.producer().send(name, b"value").result().offset == 0


def test_names_that_differ_only_in_dots_and_underscores_collide(client, topic):
    admin = client.admin()
    admin.create(f"{topic}.a")

    assert refusal_of(admin.create, f"{topic}_a") == INVALID_TOPIC


@pytest.mark.parametrize(
    "config",
    [
        pytest.param({"retention.ms": "soon"}, id="not-a-number"),
        pytest.param({"retention.ms": "-2"}, id="too-small"),
        pytest.param({"message.timestamp.type": "Yesterday"}, id="no-such-choice"),
        pytest.param({"retention.msec": "1000"}, id="no-such-config"),
    ],
)
def test_a_bad_config_is_refused_and_no_topic_made(client, topic, config):
    admin = client.admin()

    assert refusal_of(admin.create, topic, config=config) == INVALID_CONFIG
    assert topic not in admin.names()


def test_more_replicas_than_nodes_are_refused(client, topic):
    assert refusal_of(client.admin().create, topic, replication=3) == INVALID_REPLICATION_FACTOR


@pytest.mark.parametrize("library", ["kafka-python", "aiokafka"], indirect=True)
def test_a_topic_of_no_partitions_is_refused(client, topic):
    """librdkafka refuses it by itself."""
    assert refusal_of(client.admin().create, topic, partitions=0) == INVALID_PARTITIONS


def test_an_unknown_topic_cannot_be_deleted(client, topic):
    assert refusal_of(client.admin().delete, topic) == UNKNOWN_TOPIC_OR_PARTITION


def test_an_unknown_topic_cannot_grow(client, topic):
    assert refusal_of(client.admin().grow, topic, 3) == UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize("count", [1, 2])
def test_partitions_cannot_become_fewer(client, topic, count):
    admin = client.admin()
    admin.create(topic, partitions=2)

    assert refusal_of(admin.grow, topic, count) == INVALID_PARTITIONS
    assert len(admin.describe(topic).leaders) == 2


# Made by themselves.


def test_a_topic_is_made_when_a_producer_first_names_it(client, topic):
    assert client.producer().send(topic, b"value").result().offset == 0

    assert list(client.admin().describe(topic).leaders) == [0]


def test_a_topic_with_an_impossible_name_is_not_made_by_a_producer(client):
    producer = client.producer(patience_ms=400)

    # Each library has its own way to say so; some refuse before they ask.
    with pytest.raises((Refused, AssertionError, ValueError, TypeError)):
        producer.send("not a name", b"value").result()

    assert "not a name" not in client.admin().names()


def test_listing_and_describing_the_cluster_makes_no_topics(client):
    admin = client.admin()
    before = set(admin.names())

    admin.describe_cluster()

    assert set(admin.names()) == before


def test_no_topic_makes_itself_where_that_is_switched_off(strict_client, topic):
    producer = strict_client.producer(patience_ms=400)

    with pytest.raises(Refused):
        producer.send(topic, b"value").result()

    assert topic not in strict_client.admin().names()


def test_an_unknown_topic_is_an_error_where_topics_are_made_by_hand(strict_client, topic):
    assert refusal_of(strict_client.admin().describe, topic) == UNKNOWN_TOPIC_OR_PARTITION


def test_topics_made_by_hand_work_where_none_makes_itself(strict_client, topic):
    strict_client.admin().create(topic)

    assert strict_client.producer().send(topic, b"value").result().offset == 0
    (message,) = strict_client.consumer().assign(topic, {0: EARLIEST}).take(1)
    assert message.value == b"value"


def test_a_client_that_asks_without_making_topics_makes_none(confluent, topic):
    """As consumers of librdkafka do, unless `allow.auto.create.topics` is set."""
    metadata = confluent.consumer().inner.list_topics(topic, timeout=SECONDS_MAX)

    assert metadata.topics[topic].error.code() == UNKNOWN_TOPIC_OR_PARTITION
    assert topic not in confluent.admin().names()


# Topic ids.


def _ids(node: NodeProcess, topic: str) -> set[str | None]:
    """The topic's id as told by every client that tells one."""
    ids = set()
    for name in ("confluent", "kafka-python"):
        with CLIENTS[name](node.bootstrap) as client:
            ids.add(client.admin().describe(topic).id)
    return ids


def test_clients_agree_on_a_topics_id_and_a_topic_made_anew_has_another(kafka_python, node, topic):
    admin = kafka_python.admin()
    admin.create(topic)
    (first,) = _ids(node, topic)

    admin.delete(topic)
    admin.create(topic)
    (second,) = _ids(node, topic)

    assert first is not None and second is not None
    assert UUID(first).version == 4
    assert first != second


def test_a_topic_is_described_and_deleted_by_its_id(kafka_python, topic):
    admin = kafka_python.admin()
    admin.create(topic, partitions=2)
    topic_id = UUID(admin.describe(topic).id)

    (described,) = admin.inner.describe_topics([topic_id])
    admin.inner.delete_topics([topic_id])

    assert described["name"] == topic
    assert len(described["partitions"]) == 2
    assert topic not in admin.names()


def test_an_id_that_no_topic_has_is_unknown(kafka_python: Client):
    (described,) = kafka_python.admin().inner.describe_topics([UUID(int=2**127 + 12345)])

    assert described["error_code"] == 100  # UNKNOWN_TOPIC_ID


def test_creation_tells_the_topics_configs_with_their_sources(kafka_python: Client, topic: str):
    wanted = {topic: {"num_partitions": 2, "configs": {"retention.ms": "60000"}}}

    (created,) = kafka_python.admin().inner.create_topics(wanted)["topics"]

    assert (created["num_partitions"], created["replication_factor"]) == (2, 1)
    configs = created["configs"]
    assert configs["retention.ms"]["value"] == "60000"
    assert configs["retention.ms"]["config_source"] == "DYNAMIC_TOPIC_CONFIG"
    assert configs["max.message.bytes"]["value"] == "1048588"
    assert configs["max.message.bytes"]["config_source"] == "DEFAULT_CONFIG"
