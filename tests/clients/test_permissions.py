"""ACLs, as librdkafka's admin client changes them and its clients meet them."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._acl import AclBinding, AclBindingFilter, AclOperation, AclPermissionType
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType
from confluent_kafka.cimpl import NewTopic

from tests.support.node import NodeProcess

pytestmark = pytest.mark.slow

SECONDS_MAX = 30.0
ANYBODY = "User:ANONYMOUS"


def allowed(kind: ResourceType, name: str, operation: AclOperation) -> AclBinding:
    return AclBinding(
        kind, name, ResourcePatternType.LITERAL, ANYBODY, "*", operation, AclPermissionType.ALLOW
    )


def anything() -> AclBindingFilter:
    nobody: Any = None  # its stubs know no filter without names
    kind, pattern = ResourceType.ANY, ResourcePatternType.ANY
    return AclBindingFilter(kind, nobody, pattern, nobody, nobody, AclOperation.ANY, AclPermissionType.ANY)


def done(futures: dict[Any, Any]) -> list[Any]:
    return [future.result(SECONDS_MAX) for future in futures.values()]


def admin_of(node: NodeProcess) -> AdminClient:
    return AdminClient({"bootstrap.servers": node.bootstrap})


@pytest.fixture
def judged(tmp_path: Path) -> Iterator[NodeProcess]:
    """A node on which everybody may read `orders`, write `inbox`, and alter nothing."""
    with NodeProcess(tmp_path / "data") as node:
        admin = admin_of(node)
        done(admin.create_topics([NewTopic(name, 1) for name in ("orders", "inbox", "secret")]))
        done(
            admin.create_acls(
                [
                    allowed(ResourceType.TOPIC, "orders", AclOperation.READ),
                    allowed(ResourceType.TOPIC, "inbox", AclOperation.WRITE),
                    allowed(ResourceType.GROUP, "readers", AclOperation.READ),
                ]
            )
        )
        found = admin.describe_acls(anything()).result(SECONDS_MAX)
        assert {(one.name, one.operation) for one in found} == {
            ("orders", AclOperation.READ),
            ("inbox", AclOperation.WRITE),
            ("readers", AclOperation.READ),
        }
        assert node.stop() == 0
        node._settings["authorizer.enabled"] = "true"
        node.start()
        yield node


def test_clients_do_what_they_are_allowed_and_hear_why_not(judged):
    def send(topic: str) -> int | None:
        errors: list[KafkaError | None] = []
        producer = Producer({"bootstrap.servers": judged.bootstrap, "enable.idempotence": True})
        producer.produce(topic, b"value", on_delivery=lambda error, _: errors.append(error))
        producer.flush(SECONDS_MAX)
        (error,) = errors
        return None if error is None else error.code()

    def read(topic: str, group: str) -> Any:
        consumer = Consumer(
            {
                "bootstrap.servers": judged.bootstrap,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.partition.eof": True,
            }
        )
        with contextlib.closing(consumer):
            consumer.subscribe([topic])
            message = consumer.poll(SECONDS_MAX)
            assert message is not None
            error = message.error()
            assert error is not None
            return error.code()

    refused = KafkaError.TOPIC_AUTHORIZATION_FAILED
    assert send("inbox") is None
    assert send("orders") == refused
    assert send("secret") == refused
    assert read("orders", "readers") == KafkaError._PARTITION_EOF
    assert read("orders", "others") == KafkaError.GROUP_AUTHORIZATION_FAILED
    assert read("inbox", "readers") == refused
    assert set(admin_of(judged).list_topics(timeout=SECONDS_MAX).topics) == {"orders", "inbox"}
    admin = admin_of(judged)
    with pytest.raises(KafkaException) as error:
        done(admin.create_acls([allowed(ResourceType.TOPIC, "secret", AclOperation.READ)]))
    assert error.value.args[0].code() == KafkaError.CLUSTER_AUTHORIZATION_FAILED
