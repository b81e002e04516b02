"""`tidelog analyze` on a real Spark: figures that can be worked out by hand."""

import json
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tidelog.faces.cli import analyze as command
from tidelog.faces.cli import main
from tidelog.model import TopicPartition
from tidelog.records import Codec, Record, encode_batch
from tidelog.spark.client_loop import SparkClient, ask

pytestmark = pytest.mark.slow

BEGAN_MS = 1_700_000_000_000
BATCH = 100
BATCHES = 6


def records(batch: int) -> list[Record]:
    """A batch per second; every other record has the key `hot`."""
    return [
        Record(key=b"hot" if n % 2 else b"key-%d" % n, value=b"v" * 50, timestamp_ms=BEGAN_MS + batch * 1000)
        for n in range(BATCH)
    ]


async def fill(client: SparkClient, topic: str) -> None:
    """Three times as much in partition 0, compressed; a group that has read a part of it."""
    await client.create_topic(topic, partitions=2, configs={"retention.ms": "-1"})
    for number in range(BATCHES):
        batch = encode_batch(records(number), codec=Codec.ZSTD)
        await client.produce(topic, 0, batch)
        if number % 3 == 0:
            await client.produce(topic, 1, encode_batch(records(number)))
    await client.commit_offsets(f"readers-{topic}", {TopicPartition(topic, 0): 250})


def test_figures_are_those_of_the_records(node, spark, topic, tmp_path, monkeypatch, capsys):
    ask(node.bootstrap, lambda client: fill(client, topic))

    @contextmanager
    def shared(*_: object, **__: object) -> Iterator[object]:
        yield spark, lambda *_: None

    monkeypatch.setattr(command, "spark_job", shared)
    report = tmp_path / "analysis.html"
    asked = ["analyze", "--bootstrap", node.bootstrap, "--topic", topic]
    assert main([*asked, "--json", "--report", str(report)]) == 0

    out = json.loads(capsys.readouterr().out)
    (found,) = out["topics"]
    assert not out["is_estimate"]
    assert (found["records"], found["batches"]) == (800, 8)
    assert found["payload"] == 8 * sum(len(r.key or b"") + len(r.value or b"") for r in records(0))
    assert [one["records"] for one in found["partitions"]] == [600, 200]
    assert found["skew"] == 1.5
    per_second = {at: count for at, count, _ in found["points"]}
    assert per_second == {BEGAN_MS // 1000 + n: BATCH * (2 if n % 3 == 0 else 1) for n in range(BATCHES)}
    heaviest = found["keys"]["heaviest"][0]
    assert (heaviest["key"], heaviest["records"], heaviest["share"]) == ("hot", 400, 0.5)
    assert (found["keys"]["count"], found["keys"]["is_all"]) == (51, True)
    assert {one["codec"]: one["records"] for one in found["codecs"]} == {"none": 200, "zstd": 600}
    sizes = {one["what"]: one for one in found["sizes"]}
    assert sizes["records in a batch"]["mean"] == BATCH
    assert sizes["value bytes"]["median_below"] == 64
    (lag,) = out["lags"]
    assert (lag["group"], lag["last"]) == (f"readers-{topic}", 350)
    page = report.read_text()
    assert "<svg" in page and "hot" in page and "http" not in page.replace("http-equiv", "")

    monkeypatch.setattr("tidelog.spark.analysis.plan.STRETCH_OFFSETS", 100)
    assert main([*asked, "--json", "--sample", "0.2", "--from", str(BEGAN_MS + 1000)]) == 0
    out = json.loads(capsys.readouterr().out)
    (found,) = out["topics"]
    assert out["is_estimate"]
    assert [one["records"] for one in found["partitions"]] == [500, 100]
