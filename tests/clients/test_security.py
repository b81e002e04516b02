"""Three libraries prove who they are: by SCRAM and PLAIN over TLS, and by certificates."""

import asyncio
import ssl
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import confluent_kafka
import httpx
import kafka
import pytest
from aiokafka import AIOKafkaProducer
from confluent_kafka import admin as confluent_admin

from tests.support.node import NodeProcess
from tidelog.client import Client, TidelogHTTPError
from tidelog.client.kafka import KafkaClient
from tidelog.client.security import CLIENT_CONFIG, Security, Servers
from tidelog.client.wire import ConnectionFailed
from tidelog.faces.cli.certificates import make_authority, make_client, make_node

TOPIC = "secret"
PASSWORD = "correct horse, battery=staple"


@dataclass
class Guarded:
    """A node whose every listener wants a proof, and what clients need."""

    node: NodeProcess
    authority: Path
    certified: str
    """HOST:PORT of the listener that wants certificates."""

    @property
    def ca(self) -> str:
        return str(self.authority / "ca.pem")

    @property
    def certificate(self) -> tuple[str, str]:
        return str(self.authority / "carol.pem"), str(self.authority / "carol-key.pem")


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    authority = tmp_path_factory.mktemp("authority")
    make_authority(authority, 2)
    make_node(authority, 1, ["localhost", "127.0.0.1"], 2)
    make_client(authority, "carol", 2)
    settings = {
        "kafka.security.protocol": "SASL_SSL",
        "kafka.listeners": "certified=SSL://127.0.0.1:0",
        "sasl.enabled.mechanisms": "SCRAM-SHA-256,SCRAM-SHA-512,PLAIN",
        "ssl.keystore.location": authority / "node-1.pem",
        "ssl.keystore.key": authority / "node-1-key.pem",
        "ssl.truststore.location": authority / "ca.pem",
        "ssl.client.auth": "requested",
    }
    with NodeProcess(tmp_path_factory.mktemp("guarded") / "data", settings) as node:
        answer = httpx.put(f"http://{node.http}/v1/users/alice", json={"password": PASSWORD})
        assert answer.status_code == 200, answer.text
        brokers = httpx.get(f"http://{node.http}/v1/brokers").json()["brokers"]
        yield Guarded(node, authority, brokers[0]["listeners"]["certified"])
        assert node.stop() == 0, node.log.read_text()


Send = Callable[[Guarded, str, str], int]
"""Sends a record by a mechanism and a password; the offset that it got."""


def by_confluent(guarded: Guarded, mechanism: str, password: str) -> int:
    settings = {
        "bootstrap.servers": guarded.node.bootstrap,
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": guarded.ca,
        "sasl.mechanism": mechanism,
        "sasl.username": "alice",
        "sasl.password": password,
        "log_level": 0,
        "message.timeout.ms": 10_000,
    }
    return _confluent(settings)


def _confluent(settings: dict[str, Any]) -> int:
    found: list[Any] = []
    failed: list[Any] = []
    producer = confluent_kafka.Producer(settings | {"error_cb": failed.append})
    producer.produce(TOPIC, b"value", on_delivery=lambda error, message: found.append((error, message)))
    while not found:
        producer.poll(0.1)
        if any(error.code() == confluent_kafka.KafkaError._AUTHENTICATION for error in failed):
            producer.purge()
            raise PermissionError(failed)
    error, message = found[0]
    assert error is None
    offset: int = message.offset()
    return offset


def by_kafka_python(guarded: Guarded, mechanism: str, password: str) -> int:
    producer = kafka.KafkaProducer(
        bootstrap_servers=guarded.node.bootstrap,
        security_protocol="SASL_SSL",
        ssl_cafile=guarded.ca,
        sasl_mechanism=mechanism,
        sasl_plain_username="alice",
        sasl_plain_password=password,
        max_block_ms=4_000,
    )
    try:
        offset: int = producer.send(TOPIC, b"value").get(10).offset
        return offset
    finally:
        producer.close(0)


def by_aiokafka(guarded: Guarded, mechanism: str, password: str) -> int:
    async def send() -> int:
        producer = AIOKafkaProducer(
            bootstrap_servers=guarded.node.bootstrap,
            security_protocol="SASL_SSL",
            ssl_context=ssl.create_default_context(cafile=guarded.ca),
            sasl_mechanism=mechanism,
            sasl_plain_username="alice",
            sasl_plain_password=password,
        )
        try:
            await producer.start()
            offset: int = (await producer.send_and_wait(TOPIC, b"value")).offset
            return offset
        finally:
            await producer.stop()

    return asyncio.run(send())


LIBRARIES = {"confluent": by_confluent, "kafka_python": by_kafka_python, "aiokafka": by_aiokafka}


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN"])
@pytest.mark.parametrize("send", LIBRARIES.values(), ids=LIBRARIES)
def test_a_library_writes_once_it_has_proved_its_password_over_tls(
    guarded: Guarded, send: Send, mechanism: str
) -> None:
    assert send(guarded, mechanism, PASSWORD) >= 0


@pytest.mark.parametrize("send", [by_confluent, by_aiokafka])  # kafka-python tries for half a minute
def test_a_library_is_told_that_its_password_is_wrong(guarded: Guarded, send: Send) -> None:
    with pytest.raises(Exception, match=r"(?i)authentication|bootstrap|metadata"):
        send(guarded, "SCRAM-SHA-256", "wrong")


def test_a_certificate_proves_who_it_is_at_a_listener_of_its_own(guarded: Guarded) -> None:
    certificate, key = guarded.certificate
    settings: dict[str, Any] = {
        "bootstrap.servers": guarded.certified,
        "security.protocol": "SSL",
        "ssl.ca.location": guarded.ca,
        "ssl.certificate.location": certificate,
        "ssl.key.location": key,
    }

    assert _confluent(settings) >= 0
    brokers = confluent_admin.AdminClient(settings).list_topics(timeout=10).brokers.values()
    assert [f"{one.host}:{one.port}" for one in brokers] == [guarded.certified]


def test_users_are_managed_by_kafkas_admin_api(guarded: Guarded) -> None:
    known: Any = confluent_admin  # its types do not export all that it has
    admin = known.AdminClient(
        {
            "bootstrap.servers": guarded.node.bootstrap,
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": guarded.ca,
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": "alice",
            "sasl.password": PASSWORD,
        }
    )
    strong = known.ScramCredentialInfo(known.ScramMechanism.SCRAM_SHA_256, 16384)
    added = admin.alter_user_scram_credentials([known.UserScramCredentialUpsertion("bob", strong, b"bob's")])
    assert added["bob"].result(10) is None

    (bob,) = [future.result(10) for future in admin.describe_user_scram_credentials(["bob"]).values()]

    assert [(one.mechanism, one.iterations) for one in bob.scram_credential_infos] == [
        (known.ScramMechanism.SCRAM_SHA_256, 16384)
    ]


def test_our_own_clients_prove_who_they_are_and_go_on_when_their_session_ends(
    guarded: Guarded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(client: KafkaClient) -> None:
        first = await client.any_connection()
        first._renew_at = 0.0  # as if most of its session were over
        assert (await client.topic(TOPIC, create=True)).partitions
        assert await client.any_connection() is not first

    properties = tmp_path / "client.properties"
    properties.write_text(
        f"security.protocol=SASL_SSL\nsasl.mechanism=SCRAM-SHA-512\nssl.truststore.location={guarded.ca}\n"
        f'sasl.jaas.config=x.ScramLoginModule required username="alice" password="{PASSWORD}";\n'
    )
    monkeypatch.setenv(CLIENT_CONFIG, str(properties))

    async def kafka_first() -> None:
        async with KafkaClient(guarded.node.bootstrap) as client:
            await work(client)

    asyncio.run(kafka_first())
    with Client(guarded.node.http) as client:
        client.kv("bucket").put("key", 1)
    wrong = Security(username="alice", password="wrong")
    with Client(guarded.node.http, security=wrong, retries=0) as client:
        bucket = client.kv("bucket")
        with pytest.raises(TidelogHTTPError, match="password is wrong"):
            bucket.get("key")


def test_a_client_without_the_authority_does_not_speak(guarded: Guarded) -> None:
    async def work() -> None:
        secure = Servers(guarded.node.bootstrap, Security(protocol="SSL"))
        async with KafkaClient(secure) as client:
            await client.cluster()

    with pytest.raises(ConnectionFailed, match=r"certificate is not believed.*ssl\.truststore\.location"):
        asyncio.run(work())


def test_no_secret_is_logged(guarded: Guarded) -> None:
    assert not any(secret in guarded.node.log.read_text() for secret in (PASSWORD, "PRIVATE KEY"))
