"""A broker that was away comes back whole, with real processes and clients that go on."""

import asyncio
import io
import json
import urllib.request
from collections.abc import Iterator
from contextlib import redirect_stdout
from typing import Any

import pytest
from confluent_kafka import Producer

from tests.cluster.clients import create_topic
from tests.cluster.load import Load, check_account
from tests.support.nodes import Nodes
from tidelog.client.kafka import KafkaClient
from tidelog.client.load import Load as Bulk
from tidelog.client.load import LoadGenerator
from tidelog.faces.cli import main

pytestmark = pytest.mark.slow

TRIO = (101, 102, 103)
AWAY = 102
MILLION = 1_000_000
SEED = 20261116


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    settings = {"http": "127.0.0.1:0", "offsets.topic.num.partitions": 2}
    with Nodes(tmp_path_factory.mktemp("trio"), TRIO, settings) as nodes:
        nodes.until_active(*TRIO)
        yield nodes
        for node in TRIO:
            log = nodes[node].log.read_text()
            assert "Traceback" not in log, log


def make_topic(nodes: Nodes, topic: str) -> None:
    create_topic(nodes.bootstrap, topic, [TRIO])
    nodes.until_all_in_sync(topic)


def write_records(nodes: Nodes, topic: str, count: int) -> None:
    """As a client would: one after the other, all acknowledged."""
    failed: list[Any] = []
    producer = Producer({"bootstrap.servers": nodes.bootstrap, "enable.idempotence": True})
    for number in range(count):
        producer.produce(topic, b"record %d" % number, on_delivery=lambda error, _: failed.append(error))
        producer.poll(0)
    assert producer.flush(60) == 0
    assert [error for error in failed if error is not None] == []


async def write_bulk(bootstrap: str, topic: str, *, records: int = 0, seconds: float = 0) -> int:
    async with KafkaClient(bootstrap, timeout_seconds=60) as client:
        generator = LoadGenerator(client, Bulk(topic=topic, record_bytes=100, batch_bytes=100_000))
        written = 0
        while written < records or not written:
            written += (await generator.produce(seconds or 0.5)).records
        return written


def replication(nodes: Nodes, node: int) -> Any:
    url = f"http://{nodes[node].http}/v1/replication"
    with urllib.request.urlopen(url, timeout=10) as answer:
        return json.load(answer)


def status(nodes: Nodes, *options: str) -> Any:
    """`tidelog replication status --json`."""
    out = io.StringIO()
    with redirect_stdout(out):
        code = main(["replication", "status", "--bootstrap", nodes.bootstrap, "--json", *options])
    assert code == 0
    return json.loads(out.getvalue())


def assert_equal_copies(nodes: Nodes, topic: str) -> None:
    ends = {nodes.log_end(node, topic) for node in TRIO}
    assert len(ends) == 1
    assert len({nodes.log_bytes(node, topic) for node in TRIO}) == 1


def test_a_broker_that_missed_a_thousand_records_rejoins(nodes):
    make_topic(nodes, "thousand")
    write_records(nodes, "thousand", 1000)
    nodes.stop(AWAY)
    write_records(nodes, "thousand", 1000)
    away = status(nodes, "--topic", "thousand")
    assert [one["state"] for one in away["behind"]] == ["away"]

    nodes.start(AWAY)
    whole = status(nodes, "--topic", "thousand", "--wait", "--timeout", "60")

    assert whole["behind"] == []
    nodes.until_in_sync("thousand", TRIO)
    nodes.until(lambda: nodes.log_end(AWAY, "thousand") == 2000, "it does not end at 2000")
    assert_equal_copies(nodes, "thousand")
    (done,) = [one for one in replication(nodes, 101)["catch_up"]["ended"] if one["topic"] == "thousand"]
    assert (done["state"], done["node"], done["from"]) == ("done", AWAY, 1000)


def test_a_broker_that_missed_a_million_records_rejoins_while_producers_go_on(nodes):
    make_topic(nodes, "million")
    make_topic(nodes, "live")
    nodes.stop(AWAY)
    load = Load("load", nodes.bootstrap, "live", 1, SEED, per_second_max=500)
    load.start()
    try:
        written = asyncio.run(write_bulk(nodes.bootstrap, "million", records=MILLION))
        nodes.start(AWAY)
        written += asyncio.run(write_bulk(nodes.bootstrap, "million", seconds=2))
        load.wait_acknowledged(500)
        status(nodes, "--wait", "--timeout", "120")
        load.stop()
    finally:
        load.abandon()

    for topic in ("million", "live"):
        nodes.until_in_sync(topic, TRIO)
    ends = [nodes.log_end(node, "million") for node in TRIO]
    assert ends == [written] * 3
    assert_equal_copies(nodes, "million")
    assert check_account([load], nodes.bootstrap, "live", 1) >= 500
    catch_up = replication(nodes, 101)["catch_up"]
    (done,) = [one for one in catch_up["ended"] if one["topic"] == "million"]
    assert done["state"] == "done"
    # What is appended while it catches up is sent as well, once.
    assert done["bytes_sent"] <= 1.05 * len(nodes.log_bytes(101, "million"))
