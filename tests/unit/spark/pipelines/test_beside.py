"""A cluster with a pipeline beside it."""

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tidelog.faces.local import layout
from tidelog.faces.local.layout import ClusterFile, NodeEntry
from tidelog.spark.java import Java, JavaMissing
from tidelog.spark.pipelines import beside, state
from tidelog.spark.pipelines.spec import load
from tidelog.spark.pipelines.state import Phase, Run


def test_a_cluster_is_found_once_it_has_said_where_it_is(tmp_path: Path) -> None:
    arguments = ["cluster", "up", "--nodes", "2", "--data", str(tmp_path)]
    assert beside.address(arguments, 7) is None
    entries = [NodeEntry(id=n, kafka=f"127.0.0.1:{n}", http="", peer="") for n in (1, 2)]
    layout.write(tmp_path, ClusterFile(pid=6, quorum="", nodes=entries))
    assert beside.address(arguments, 7) is None, "that was the one before"
    layout.write(tmp_path, ClusterFile(pid=7, quorum="", nodes=entries))

    assert beside.address(arguments, 7) == "127.0.0.1:1,127.0.0.1:2"


def test_one_node_is_where_it_was_told_to_be() -> None:
    assert beside.address(["start", "--data", "d", "--kafka", "127.0.0.1:9"], 7) == "127.0.0.1:9"


def test_without_a_java_the_cluster_goes_on_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing() -> Java:
        raise JavaMissing("Spark needs Java 17")

    monkeypatch.setattr(beside, "find_java", missing)

    assert beside.start_pipeline(tmp_path / "revenue", "a:1") is None
    assert capsys.readouterr().err == "pipeline: not started: Spark needs Java 17\n"


def test_the_sample_is_made_once_and_then_it_is_the_user_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    started: list[Any] = []
    java = Java(home=tmp_path, where="PATH", major=17)
    monkeypatch.setattr(beside, "find_java", lambda: java)
    monkeypatch.setattr(beside, "Child", lambda *arguments: started.append(arguments))
    folder = tmp_path / "revenue"

    beside.start_pipeline(folder, "127.0.0.1:9092,127.0.0.1:9093")
    (folder / "revenue.sql").write_text("SELECT * FROM valid")
    beside.start_pipeline(folder, "127.0.0.1:9092")

    assert load(folder).bootstrap == "127.0.0.1:9092,127.0.0.1:9093"
    assert (folder / "revenue.sql").read_text() == "SELECT * FROM valid"
    log = folder / "state" / "run.log"
    (first, _), (second, where) = started
    assert first[:3] == second[:3] == ["pipeline", "run", str(folder)]
    assert (second[4], where) == ("127.0.0.1:9092", log)
    assert f"starts on Java 17 at {tmp_path}" in capsys.readouterr().err


def test_a_pipeline_that_ended_says_why_and_how_to_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "state").mkdir()
    state.write(tmp_path, Run(phase=Phase.FAILED, problem="latest: no such column"))

    beside.tell_end(tmp_path, 1)

    told = capsys.readouterr().err
    assert "is failed: latest: no such column; run it again: tidelog pipeline run" in told


def test_a_signal_ends_the_cluster_in_order(tmp_path: Path) -> None:
    arguments = ["start", "--data", str(tmp_path / "data"), "--kafka", "127.0.0.1:0"]
    process = subprocess.Popen(
        [sys.executable, "-m", "tidelog.spark.pipelines.beside", str(tmp_path / "p"), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline().startswith("ready ")

    process.send_signal(signal.SIGTERM)

    _, complaints = process.communicate(timeout=60)
    assert process.returncode == 0, complaints


def test_a_cluster_that_cannot_start_ends_it_all(tmp_path: Path) -> None:
    ended = subprocess.run(
        [
            sys.executable,
            "-m",
            "tidelog.spark.pipelines.beside",
            str(tmp_path / "p"),
            "start",
            "--data",
            str(tmp_path / "data"),
            "--kafka",
            "nonsense:x",
        ],
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert ended.returncode != 0
    assert "nonsense" in ended.stderr
