"""Our commands as clients of a Spark Connect server."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from tests.spark.topics import Topics, values
from tests.spark.way import Way
from tests.support.cluster import wait_until
from tests.support.node import TIDELOG
from tidelog.records import Record
from tidelog.spark.archive.catalog import load_topic, open_catalog
from tidelog.spark.archive.tables import NotArchived
from tidelog.spark.connect import ConnectFailed
from tidelog.spark.pipelines.iceberg import Catalog
from tidelog.spark.pipelines.spec import load
from tidelog.spark.session import spark_session

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SECONDS_MAX = 450.0

STEP = """
from pyspark.sql.functions import udf
from beside import shout

def transform(spark, tables):
    return tables["orders"].withColumn("loud", udf(shout, "string")("region"))
"""


def run(*arguments: str) -> str:
    """A command of its own, whose process has no Spark but the server's."""
    ended = subprocess.run(
        [sys.executable, "-c", TIDELOG, *arguments], capture_output=True, text=True, check=False, timeout=120
    )
    assert ended.returncode == 0, ended.stderr + ended.stdout
    return ended.stdout


def order(region: str, total: float) -> Record:
    text = json.dumps({"region": region, "total": total})
    return Record(key=region.encode(), value=text.encode(), timestamp_ms=1000)


def test_a_pipeline_runs_on_a_server_of_others(
    connect_url: str, topics: Topics, topic: str, tmp_path: Path
) -> None:
    topics.make(topic, 2)
    topics.put(topic, [order("north", 1.5), order("south", 2.0), order("north", 3.0)])
    folder = tmp_path / "sales"
    folder.mkdir()
    (folder / "loudly.py").write_text(STEP)
    (folder / "beside.py").write_text("def shout(text):\n    return text.upper()\n")
    document: dict[str, Any] = {
        "bootstrap": topics.bootstrap,
        "shared": True,
        "sources": {"orders": {"topic": topic, "json": "region string, total double"}},
        "steps": [{"python": "loudly.py"}],
        "sinks": {
            "copies": {"from": "loudly", "topic": f"{topic}-copies", "value": "loud"},
            "rows": {"from": "loudly", "iceberg": "sales.rows"},
        },
        "spark": {"spark.driver.memory": "1g"},
    }
    (folder / "pipeline.yaml").write_text(yaml.safe_dump(document))
    where = ["--master", connect_url]

    run("pipeline", "run", str(folder), "--once", *where)

    copies = sorted(value or b"" for value in topics.values(f"{topic}-copies"))
    assert copies == [b"NORTH", b"NORTH", b"SOUTH"]
    assert Catalog.of(load(folder), {}).table("sales.rows").scan().to_arrow().num_rows == 3


def test_an_archive_and_an_audit_run_on_a_server_of_others(
    connect_url: str, topics: Topics, topic: str, tmp_path: Path
) -> None:
    topics.make(topic, 2)
    topics.put(topic, values(*"abc"))
    at = ["--bootstrap", topics.bootstrap]
    where = ["--master", connect_url]
    run("archive", "run", topic, "--warehouse", str(tmp_path / "archive"), *at, *where)
    with open_catalog(str(tmp_path / "archive")) as catalog:
        assert load_topic(catalog, topic).table.scan().to_arrow().num_rows == 3
    audited = json.loads(run("audit", "--topic", topic, *at, *where, "--json"))
    assert '"records": 3' in json.dumps(audited), audited


def test_what_a_server_of_others_cannot_be_asked_is_told_with_why(connect_url: str) -> None:
    with (
        pytest.raises(ConnectFailed, match=r"--environment .* Install Tidelog"),
        spark_session("x", master=connect_url, environment="environment.tar.gz"),
    ):
        pass
    with (
        pytest.raises(ConnectFailed, match="no Spark Connect server answers there"),
        spark_session("x", master="sc://127.0.0.1:1"),
    ):
        pass


@pytest.mark.parametrize(
    ("go", "number"), [(Way.refuse, signal.SIGTERM), (Way.fall_silent, signal.SIGINT)], ids=["gone", "silent"]
)
def test_a_pipeline_is_ended_by_a_signal_though_its_server_is_away(
    connect_url: str,
    topics: Topics,
    topic: str,
    tmp_path: Path,
    go: Callable[[Way], None],
    number: signal.Signals,
) -> None:
    topics.make(topic, 1)
    topics.make(f"{topic}-copies", 1)
    topics.put(topic, values("a"))
    folder = tmp_path / "copies"
    folder.mkdir()
    document: dict[str, Any] = {
        "bootstrap": topics.bootstrap,
        "shared": True,
        "trigger": "1 hour",
        "sources": {"rows": {"topic": topic}},
        "sinks": {"copies": {"from": "rows", "topic": f"{topic}-copies", "value": "value"}},
    }
    (folder / "pipeline.yaml").write_text(yaml.safe_dump(document))

    def copied() -> bool:
        return len(topics.values(f"{topic}-copies")) == 1

    with Way(urlsplit(connect_url).port or 0) as way:
        running = start("pipeline", "run", str(folder), "--master", f"sc://127.0.0.1:{way.port}")
        try:
            wait_until(lambda: bool(running.poll() or copied()), "nothing is copied", SECONDS_MAX)
            go(way)
            running.send_signal(number)
            _, told = running.communicate(timeout=SECONDS_MAX)
        finally:
            running.kill()
            running.communicate()
    assert running.returncode == 1, told
    assert "does not answer any more" in told
    assert "Traceback" not in told


def test_an_archive_is_ended_by_a_signal_though_its_server_is_away(
    connect_url: str, topics: Topics, topic: str, tmp_path: Path
) -> None:
    topics.make(topic, 1)
    topics.put(topic, values("a"))
    warehouse = str(tmp_path / "archive")
    with Way(urlsplit(connect_url).port or 0) as way:
        at = ["--bootstrap", topics.bootstrap, "--master", f"sc://127.0.0.1:{way.port}"]
        running = start("archive", "run", topic, "--warehouse", warehouse, "--continuous", *at)
        try:
            wait_until(lambda: archived(warehouse, topic) == 1, "nothing is archived", SECONDS_MAX)
            way.fall_silent()
            running.terminate()
            _, told = running.communicate(timeout=SECONDS_MAX)
        finally:
            running.kill()
            running.communicate()
    assert running.returncode in (0, 1), told  # it may have had nothing to ask the server any more
    assert "Traceback" not in told


def start(*arguments: str) -> "subprocess.Popen[str]":
    """A command that goes on."""
    words = [sys.executable, "-c", TIDELOG, *arguments]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def archived(warehouse: str, topic: str) -> int:
    """How many rows are archived of a topic, if it has a table yet."""
    try:
        with open_catalog(warehouse) as catalog:
            return load_topic(catalog, topic).table.scan().to_arrow().num_rows
    except NotArchived:
        return 0
