"""Pipelines on a real Spark: what they write is right, and there once."""

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from tests.spark.topics import Topics
from tests.support.node import TIDELOG
from tidelog.records import Record
from tidelog.spark.client_loop import ask
from tidelog.spark.pipelines.folders import create
from tidelog.spark.pipelines.iceberg import Catalog
from tidelog.spark.pipelines.samples import cases
from tidelog.spark.pipelines.sinks import query_names, start_all
from tidelog.spark.pipelines.spec import Pipeline, SpecError, load
from tidelog.spark.pipelines.tables import build
from tidelog.spark.pipelines.topics import prepare
from tidelog.spark.pipelines.trying import attempt

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

BATCH_SECONDS_MAX = 300
MIDNIGHT = 1_767_225_600
"""2026-01-01, in seconds."""

REVENUE = """
SELECT date_format(window.start, 'HH:mm:ss') AS begins, region, sum(total) AS revenue
FROM kept GROUP BY window(at, '10 seconds'), region
"""
KEPT = """
from pyspark.sql.functions import udf
from rules import is_sold

def transform(spark, tables):
    return tables["orders"].where(udf(is_sold, "boolean")("total"))
"""
RULES = """
def is_sold(total):
    return total is not None and total > 0
"""


@pytest.fixture
def pipeline(tmp_path: Path, topics: Topics, topic: str) -> Pipeline:
    """Orders to revenue, with every kind of sink and dead letters; their topics are made."""
    folder = tmp_path / "sales"
    folder.mkdir()
    (folder / "revenue.sql").write_text(REVENUE)
    (folder / "kept.py").write_text(KEPT)
    (folder / "rules.py").write_text(RULES)  # which its functions need on executors, too
    orders = {
        "topic": topic,
        "json": "region string, total double, at timestamp",
        "dead_letter": f"{topic}-broken",
        "watermark": {"column": "at", "delay": "10 seconds"},
    }
    document = {
        "bootstrap": topics.bootstrap,
        "topics": {name: {"partitions": 1} for name in (topic, f"{topic}-latest")},
        "sources": {"orders": orders},
        "steps": [{"python": "kept.py"}, {"sql": "revenue.sql"}],
        "sinks": {
            "latest": {
                "from": "revenue",
                "bucket": f"{topic}-latest",
                "mode": "update",
                "key": "concat(region, ' ', begins)",
                "value": "revenue",
            },
            "final": {"from": "revenue", "iceberg": "sales.revenue"},
        },
    }
    (folder / "pipeline.yaml").write_text(yaml.safe_dump(document))
    made = load(folder)
    ask(topics.bootstrap, lambda client: prepare(client, made))
    return made


def order(region: str, total: Any, second: int) -> Record:
    minute, rest = divmod(second, 60)
    at = f"2026-01-01T00:{minute:02}:{rest:02}Z"
    text = json.dumps({"region": region, "total": total, "at": at})
    return Record(key=region.encode(), value=text.encode(), timestamp_ms=1000)


def run_once(spark: "SparkSession", pipeline: Pipeline) -> None:
    for query in start_all(spark, pipeline):
        assert query.awaitTermination(BATCH_SECONDS_MAX), f"{query.name} takes too long"


def forget_the_last_commit(pipeline: Pipeline) -> None:
    """What is left when a driver dies after a batch was written, and before it noted that."""
    for query in query_names(pipeline):
        commits = Path(pipeline.path(pipeline.checkpoint)) / query / "commits"
        last = max((file for file in commits.iterdir() if file.name.isdigit()), key=_number)
        last.unlink()
        last.with_name(f".{last.name}.crc").unlink(missing_ok=True)


def _number(file: Path) -> int:
    return int(file.name)


class Seen:
    """What a pipeline has written, as others read it."""

    def __init__(self, pipeline: Pipeline, topics: Topics, topic: str) -> None:
        def told(name: str) -> list[Record]:
            return [one for some in topics.records(f"{topic}-{name}").values() for one in some]

        self.bucket = [(text(one.key), text(one.value)) for one in told("latest")]
        self.broken = [(text(one.value), dict(one.headers)) for one in told("broken")]
        scan = Catalog.of(pipeline, {}).table("sales.revenue").scan().to_arrow()
        self.table = sorted((one["region"], one["begins"], one["revenue"]) for one in scan.to_pylist())


def text(data: bytes | None) -> str:
    return "" if data is None else data.decode()


def test_orders_become_revenue_and_are_counted_once_even_if_batches_are_repeated(
    spark: "SparkSession", pipeline: Pipeline, topics: Topics, topic: str
) -> None:
    topics.put(
        topic,
        [
            order("north", 1.5, 1),
            order("south", 2.0, 2),
            order("north", 3.0, 9),
            order("north", -1.0, 3),
            Record(value=b'{"region": "nor', timestamp_ms=1000),
            order("east", "much", 4),
            Record(key=b"east", value=None, timestamp_ms=1000),
        ],
    )
    run_once(spark, pipeline)
    forget_the_last_commit(pipeline)
    topics.put(topic, [order("west", 5.0, 300)])  # time goes on, and the first window closes
    run_once(spark, pipeline)
    forget_the_last_commit(pipeline)
    topics.put(topic, [order("south", 100.0, 2)])  # too late for its window
    run_once(spark, pipeline)

    seen = Seen(pipeline, topics, topic)
    assert seen.bucket == [("north 00:00:00", "4.5"), ("south 00:00:00", "2.0"), ("west 00:05:00", "5.0")]
    assert seen.table == [("north", "00:00:00", 4.5), ("south", "00:00:00", 2.0)]
    (cut, cut_headers), (wrong, _) = seen.broken
    assert cut == '{"region": "nor'
    assert json.loads(wrong)["total"] == "much"
    assert (cut_headers["topic"], cut_headers["offset"]) == (topic.encode(), b"4")
    assert b"no JSON with the fields region string" in (cut_headers["error"] or b"")
    assert topics.group("sales.latest") != {}


def test_a_broken_value_without_a_dead_letter_names_its_place_and_the_keys_to_set(
    spark: "SparkSession", pipeline: Pipeline, topics: Topics, topic: str
) -> None:
    topics.put(topic, [order("north", 1.0, 1), Record(value=b"[", timestamp_ms=1000)])
    document = yaml.safe_load((pipeline.folder / "pipeline.yaml").read_text())
    del document["sources"]["orders"]["dead_letter"]
    document["sinks"] = {"copy": {"from": "kept", "topic": f"{topic}-copy"}}
    (pipeline.folder / "pipeline.yaml").write_text(yaml.safe_dump(document))
    (query,) = start_all(spark, load(pipeline.folder))

    with pytest.raises(Exception, match=f"{topic}-0 has at offset 1 .* dead_letter: TOPIC"):
        query.awaitTermination(BATCH_SECONDS_MAX)


@pytest.mark.parametrize(
    ("file", "content", "complaint"),
    [
        ("revenue.sql", "SELECT nothing FROM orders", r"steps\[2\] \(revenue\.sql\): .*`nothing`"),
        ("kept.py", "x = 1", r"steps\[1\] \(kept\.py\): it has no function `transform"),
        ("kept.py", "def transform(spark, tables): return 1", r"returned int; it must be"),
        ("kept.py", "def transform(spark, tables): tables['x']", r"steps\[1\].*KeyError: 'x'"),
    ],
)
def test_a_step_that_is_wrong_is_named(
    spark: "SparkSession", pipeline: Pipeline, file: str, content: str, complaint: str
) -> None:
    (pipeline.folder / file).write_text(content)

    with pytest.raises(SpecError, match=complaint):
        build(spark.newSession(), pipeline, "copy")


def test_the_sample_s_own_test_passes_and_tells_what_differs(spark: "SparkSession", tmp_path: Path) -> None:
    create(tmp_path / "sales", bootstrap="nowhere:1")
    made = load(tmp_path / "sales")
    sums = tmp_path / "sales" / "tests" / "windows" / "revenue.jsonl"
    keys = sums.with_name("latest.sink.jsonl")
    keys.write_text('{"key": "north 2026-01-01T12:00:10", "value": {"revenue": 7.8}}')

    (case,) = cases(made)
    tried = attempt(spark, made, case)
    compared = {one.what: one for one in tried.compared}
    assert compared["revenue"].is_same
    assert compared["orders.dead_letter"].is_same
    assert [row["key"] for row in compared["latest.sink"].unexpected] == [
        "north 2026-01-01T12:00:00",
        "north 2026-01-01T12:00:10",
    ]
    assert not tried.passed

    before = sums.read_text()
    sums.write_text(before.replace("40.1", "50.1"))
    assert not attempt(spark, made, case).compared[-1].is_same
    assert attempt(spark, made, case, update=True).passed
    assert attempt(spark, made, case).passed

    (tmp_path / "sales" / "revenue.sql").write_text("SELECT nothing FROM valid")
    assert "steps[2] (revenue.sql)" in attempt(spark, made, case).problem


def test_a_pipeline_runs_until_it_is_stopped_from_elsewhere(
    tmp_path: Path, topics: Topics, topic: str
) -> None:
    """The whole command, with a Spark of its own and made-up orders."""
    command = [sys.executable, "-c", TIDELOG, "pipeline"]
    folder = str(tmp_path / "revenue")
    made = subprocess.run(
        [*command, "new", folder, "--bootstrap", topics.bootstrap, "--json"], capture_output=True
    )
    assert made.returncode == 0, made.stderr
    _hurry(tmp_path / "revenue" / "pipeline.yaml")
    options = ["--master", "local[2]", "--every", "1 second", "--metrics-port", "0", "--json"]
    with (tmp_path / "notes").open("w") as notes:
        running = subprocess.Popen(
            [*command, "run", folder, *options], stdout=subprocess.PIPE, stderr=notes, text=True
        )
    assert running.stdout is not None
    try:
        queries = set()
        for line in running.stdout:
            event = json.loads(line)
            if event["event"] == "batch" and event["rows"]:
                queries.add(event["query"])
            if len(queries) == 3:
                break
        listed = _asked(command, "list", str(tmp_path))
        described = _asked(command, "describe", folder)
        (page,) = re.findall(r"metrics: (http://\S+)", (tmp_path / "notes").read_text())
        with urllib.request.urlopen(page, timeout=10) as answer:
            metrics = answer.read().decode()
        stopped = _asked(command, "stop", folder)
        assert running.wait(60) == 0
    finally:
        if running.poll() is None:
            os.kill(running.pid, signal.SIGKILL)
            running.wait()
        running.stdout.close()

    assert queries == {"latest", "final", "orders.dead_letter"}
    assert [one["phase"] for one in listed["pipelines"]] == ["running"]
    assert described["queries"]["latest"]["lag_now"] is not None
    assert stopped["phase"] == "stopped"
    assert re.search(r'pipeline_rows_total\{pipeline="revenue",query="latest"\} [1-9]', metrics)
    assert 'query="latest",part="addBatch"}' in metrics
    assert topics.group("revenue.latest") != {}


def _hurry(spec: Path) -> None:
    """Close windows soon: what is final comes only then."""
    patient = spec.read_text()
    hasty = patient.replace("delay: 30 seconds", "delay: 1 second")
    assert hasty != patient
    spec.write_text(hasty)


def _asked(command: list[str], *arguments: str) -> Any:
    ended = subprocess.run([*command, *arguments, "--json"], capture_output=True, check=False)
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)
