"""`tidelog pipeline`, as far as it goes without a Spark."""

import json
from pathlib import Path

import pytest

from tidelog.faces.cli.pipeline_view import Lines, Log, clock, line, row
from tidelog.spark.pipelines import state
from tidelog.spark.pipelines.progress import QueryState
from tidelog.spark.pipelines.state import Phase, Run

DONE = QueryState(
    batch=3,
    rows=1234,
    rows_per_second=99.6,
    lag=7,
    late_rows=2,
    ends={"orders": {"0": 40}},
    at="2026-01-01T00:00:05.000Z",
    watermark="2026-01-01T00:00:00.000Z",
)


@pytest.fixture
def folder(tmp_path: Path, tidelog) -> Path:
    assert tidelog("pipeline", "new", tmp_path / "sales", "--bootstrap", "127.0.0.1:1").code == 0
    return tmp_path / "sales"


def ran(folder: Path, **changes: object) -> None:
    """Leave behind what a run does."""
    (folder / "state").mkdir()
    run = Run(phase=Phase.DONE, pid=7, host="here", master="local[2]", queries={"final": DONE})
    for name, value in changes.items():
        setattr(run, name, value)
    state.write(folder, run)


def test_a_new_pipeline_is_a_folder_of_three_files_and_a_test(tmp_path, tidelog):
    result = tidelog("pipeline", "new", tmp_path / "sales")

    assert result.code == 0
    names = [Path(text).name for text in result.out.split()]
    assert names[:3] == ["pipeline.yaml", "revenue.sql", "valid.py"]
    assert all("tests/windows" in text for text in result.out.split()[3:])
    assert "run it: tidelog pipeline run" in result.err


def test_a_folder_is_not_made_twice(folder, tidelog):
    result = tidelog("pipeline", "new", folder)

    assert (result.code, result.out) == (1, "")
    assert "exists already" in result.err


def test_a_pipeline_that_never_ran_is_described(folder, tidelog):
    result = tidelog("pipeline", "describe", folder)

    assert result.code == 0
    assert "source  orders: topic orders, broken ones to orders-broken" in result.out
    assert "step    revenue: revenue.sql" in result.out
    assert "sink    final: revenue to iceberg sales.revenue" in result.out
    assert "state   new" in result.out


def test_how_far_it_was_is_told_though_the_cluster_is_away(folder, tidelog):
    ran(folder, bootstrap="127.0.0.1:1")

    result = tidelog("pipeline", "describe", folder)
    document = json.loads(tidelog("pipeline", "describe", folder, "--json").out)

    assert result.code == 0
    assert "state   done, process 7 on here, local[2]" in result.out
    assert "1,234" in result.out
    assert "the lag is the one noted last" in result.err
    assert document["phase"] == "done"
    assert document["queries"]["final"]["lag"] == 7
    assert document["queries"]["final"]["lag_now"] is None


def test_pipelines_are_listed_with_their_states(folder, tidelog):
    ran(folder, phase=Phase.RUNNING)

    result = tidelog("pipeline", "list", folder.parent)
    document = json.loads(tidelog("pipeline", "list", folder.parent, "--json").out)
    (one,) = document["pipelines"]

    assert (result.code, "died" in result.out) == (0, True)
    assert (one["folder"], one["phase"]) == (str(folder), "died")


def test_where_there_is_none_the_list_says_how_to_make_one(tmp_path, tidelog):
    result = tidelog("pipeline", "list", tmp_path)

    assert result.code == 0
    assert "make one: tidelog pipeline new" in result.err


def test_one_that_does_not_run_cannot_be_stopped(folder, tidelog):
    result = tidelog("pipeline", "stop", folder)

    assert result.code == 1
    assert "does not run on this machine" in result.err


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--once", "--every", "5 seconds"], "--once and --every contradict each other"),
        (["--every", "often"], "trigger is 'often'; it must be `once` or an interval"),
        (["--conf", "nonsense"], "--conf 'nonsense' is not KEY=VALUE"),
    ],
)
def test_a_run_that_contradicts_itself_is_refused_at_once(folder, tidelog, options, complaint):
    result = tidelog("pipeline", "run", folder, *options)

    assert result.code in (1, 2)
    assert complaint in result.err


def test_a_folder_without_a_pipeline_is_refused(tmp_path, tidelog):
    result = tidelog("pipeline", "run", tmp_path)

    assert result.code == 1
    assert "pipeline.yaml does not exist" in result.err


def test_cells_of_a_query():
    assert row("final", DONE) == ("final", "3", "1,234", "100", "7", "0", "2", "2026-01-01 00:00:00")
    assert row("new", QueryState())[1:5] == ("-", "0", "0", "-")
    assert line("final", DONE) == "final: batch 3, 1,234 rows, 100 rows/s, lag 7, 2 late"
    assert clock("1970-01-01T00:00:00.000Z") == "-"


def test_programs_get_a_line_for_each_batch_and_each_change(capsys):
    view = Lines()
    run = Run(phase=Phase.RUNNING, queries={"final": QueryState()})

    view(run)
    run.queries["final"] = DONE
    view(run)
    view(run)
    run.phase, run.problem = Phase.FAILED, "why"
    view(run)

    lines = [json.loads(text) for text in capsys.readouterr().out.splitlines()]
    assert [one["event"] for one in lines] == ["phase", "batch", "phase"]
    assert (lines[1]["query"], lines[1]["rows"]) == ("final", 1234)
    assert lines[2]["problem"] == "why"


def test_a_log_gets_a_line_now_and_then(capsys, monkeypatch):
    now = [0.0]
    monkeypatch.setattr("tidelog.faces.cli.pipeline_view.time.monotonic", lambda: now[0])
    view = Log("sales")
    run = Run(phase=Phase.RUNNING, queries={"final": DONE, "idle": QueryState()})

    for now[0] in (1.0, 9.0, 11.0, 12.0, 30.0):
        view(run)

    told = capsys.readouterr().err.splitlines()
    assert told == ["sales: running", f"sales: {line('final', DONE)}"]
