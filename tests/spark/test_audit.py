"""Audits of a cluster of real processes, on a real Spark."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.cluster.clients import ALL, create_topic, write
from tests.support.nodes import Nodes
from tidelog.faces.cli import audit as command
from tidelog.faces.cli import main
from tidelog.faces.cli.segments import segment_files
from tidelog.model import NodeId
from tidelog.records import Record, encode_batch, iterate_batches
from tidelog.spark.audit.job import audit
from tidelog.spark.audit.judging import Outcome
from tidelog.spark.client_loop import SparkClient, ask

pytestmark = pytest.mark.slow

TRIO = (1, 2, 3)
BATCHES = 40
RECORDS = 50
SEGMENT_BYTES = 64 * 1024


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    # A scrubber would heal what the audit is to find.
    settings = {"offsets.topic.num.partitions": 2, "scrub.bytes.per.second": 0}
    with Nodes(tmp_path_factory.mktemp("audited"), TRIO, settings) as started:
        started.until_active(*TRIO)
        yield started


def make_topic(nodes: Nodes, topic: str, **config: str) -> None:
    create_topic(nodes.bootstrap, topic, [TRIO], segment_bytes=str(SEGMENT_BYTES), **config)
    nodes.until_all_in_sync(topic)


def fill(nodes: Nodes, topic: str) -> None:
    """Some segments of batches, each of many records."""
    batch = encode_batch([Record(key=b"%d" % n, value=b"v" * 100) for n in range(RECORDS)])

    async def work(client: SparkClient) -> None:
        client.forget(topic)
        for _ in range(BATCHES):
            await client.produce(topic, 0, batch)

    ask(nodes.bootstrap, work)


def flip(nodes: Nodes, node: NodeId, topic: str) -> int:
    """Flip a byte inside the third batch of a segment that is not the last; its base offset."""
    file = segment_files(nodes[node].data / f"{topic}-0")[0]
    data = bytearray(file.read_bytes())
    header, batch = list(iterate_batches(bytes(data)))[2]
    at = bytes(data).index(bytes(batch)) + len(batch) - 10
    data[at] ^= 0x40
    file.write_bytes(data)
    return header.base_offset


@contextmanager
def writing(nodes: Nodes, topic: str) -> Iterator[None]:
    """Somebody writes, to whoever leads, until this is left."""
    stopping = threading.Event()

    def work() -> None:
        while not stopping.is_set():
            try:
                write(nodes[nodes.partition(topic).leader].port, topic, b"living", acks=ALL)
            except (OSError, AssertionError, KeyError):
                stopping.wait(0.05)

    thread = threading.Thread(target=work, name="writer")
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join()


def test_a_flipped_byte_in_a_follower_is_found_and_named(nodes, spark, topic, tmp_path, monkeypatch, capsys):
    make_topic(nodes, topic)
    fill(nodes, topic)
    victim = next(node for node in TRIO if node != nodes.partition(topic).leader)
    nodes.kill(victim)
    offset = flip(nodes, victim, topic)
    nodes.start(victim)
    nodes.until_all_in_sync(topic)

    @contextmanager
    def shared(*_: object, **__: object) -> Iterator[object]:
        yield spark, lambda *_: None

    monkeypatch.setattr(command, "spark_job", shared)
    report, table = tmp_path / "audit.html", tmp_path / "rows"
    code = main(
        [
            "audit",
            "--bootstrap",
            nodes.bootstrap,
            "--topic",
            topic,
            "--json",
            "--report",
            str(report),
            "--table",
            str(table),
        ]
    )

    out = json.loads(capsys.readouterr().out)
    assert code == 1
    assert out["outcome"] == "findings"
    (found,) = out["findings"]
    assert (found["topic"], found["partition"], found["node"]) == (topic, 0, victim)
    assert (found["first"], found["last"]) == (offset, offset + RECORDS - 1)
    assert found["fault"] == "corrupt"
    assert {one["end"] for one in out["replicas"]} == {BATCHES * RECORDS}
    assert f"{topic}-0 on node {victim}" in report.read_text()
    rows = spark.read.parquet(str(table))
    assert rows.where("kind = 'batch'").count() == len(TRIO) * BATCHES
    assert rows.where("kind = 'bad'").count() == 1
    # Asked for it again, the node has fetched it from the leader.
    nodes.until_all_in_sync(topic)
    leader = nodes.partition(topic).leader
    assert nodes.log_bytes(victim, topic) == nodes.log_bytes(leader, topic)


def test_living_traffic_a_catch_up_and_another_leader_are_no_findings(nodes, spark, topic):
    make_topic(nodes, topic)
    fill(nodes, topic)
    leader = nodes.partition(topic).leader
    nodes.kill(leader)
    nodes.until(lambda: nodes.partition(topic).leader in set(TRIO) - {leader}, "nobody leads")
    fill(nodes, topic)
    nodes.start(leader)
    nodes.until_active(*TRIO)

    with writing(nodes, topic):
        done = audit(spark, nodes.bootstrap, [topic])

    assert done.verdict.findings == ()
    assert done.verdict.outcome is Outcome.CLEAN, done.verdict.unread
    assert len(done.verdict.seen) == len(TRIO)


def test_who_is_away_is_named_and_nothing_is_called_clean(nodes, spark, topic):
    make_topic(nodes, topic, cleanup_policy="compact")
    fill(nodes, topic)
    away = next(node for node in TRIO if node != nodes.partition(topic).leader)
    nodes.kill(away)
    nodes.until_active(*(node for node in TRIO if node != away))
    try:
        done = audit(spark, nodes.bootstrap, [topic])
    finally:
        nodes.start(away)

    assert done.verdict.outcome is Outcome.INCOMPLETE
    assert [one.node for one in done.verdict.unread] == [away]
    assert topic in done.plan.compacted
    assert done.records > 0
    assert done.verdict.findings == ()
