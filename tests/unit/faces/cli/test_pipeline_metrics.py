"""The page for Prometheus of a running pipeline."""

import urllib.error
import urllib.request

import pytest

from tidelog.faces.cli.common import UserError
from tidelog.faces.cli.pipeline_metrics import metrics_text, served
from tidelog.spark.pipelines.progress import Behind, QueryState
from tidelog.spark.pipelines.state import Phase, Run

QUERY = QueryState(
    batch=3,
    rows=1234,
    rows_per_second=99.5,
    lag=7,
    late_rows=2,
    state_rows=11,
    behind=Behind(least=0, most=5, average=3.5),
    at="2026-01-01T00:00:05.000Z",
    durations_ms={"addBatch": 150, "triggerExecution": 210},
    watermark="1970-01-01T00:00:00.000Z",
)


def lines(run: Run, before: Run | None = None) -> list[str]:
    text = metrics_text("sales", run, before or Run())
    assert text.endswith("\n")
    return text.splitlines()


def test_every_number_of_a_query_has_a_line():
    run = Run(phase=Phase.RUNNING, master="local[2]", trigger="once", queries={"final": QUERY})
    found = lines(run)
    labels = '{pipeline="sales",query="final"}'
    whole = '{pipeline="sales",phase="running",master="local[2]",trigger="once"}'
    for line in (
        f"tidelog_pipeline_info{whole} 1",
        f"tidelog_pipeline_rows_total{labels} 1234",
        f"tidelog_pipeline_rows_per_second{labels} 99.5",
        f"tidelog_pipeline_lag_offsets{labels} 7",
        f"tidelog_pipeline_lag_offsets_max{labels} 5",
        f"tidelog_pipeline_state_rows{labels} 11",
        f"tidelog_pipeline_late_rows_total{labels} 2",
        f"tidelog_pipeline_batch_at_seconds{labels} 1767225605.0",
        'tidelog_pipeline_batch_seconds{pipeline="sales",query="final",part="addBatch"} 0.15',
    ):
        assert line in found
    # Every line with a number belongs to a family that is said to be something.
    families = {line.split()[2] for line in found if line.startswith("# TYPE")}
    assert {line.partition("{")[0] for line in found if not line.startswith("#")} <= families
    # What is not known has no line.
    assert not any(line.startswith("tidelog_pipeline_watermark_seconds{") for line in found)


def test_a_query_that_has_not_begun_has_no_lag():
    found = lines(Run(queries={"final": QueryState()}))
    assert 'tidelog_pipeline_rows_total{pipeline="sales",query="final"} 0' in found
    assert not any(line.startswith("tidelog_pipeline_lag_offsets{") for line in found)


def test_the_last_error_stays_until_there_is_another_one():
    before = Run(problem='final: "x" is\nbroken', changed=5.0)
    told = r'tidelog_pipeline_last_error_seconds{pipeline="sales",error="final: \"x\" is\nbroken"} 5.0'
    assert told in lines(Run(), before)
    (line,) = [
        line
        for line in lines(Run(problem="worse", changed=9.0), before)
        if line.startswith("tidelog_pipeline_last_error_seconds{")
    ]
    assert 'error="worse"' in line


def test_the_page_is_served_while_the_pipeline_runs():
    with served("127.0.0.1", 0, lambda: "numbers\n") as port:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
            assert answer.headers["Content-Type"] == "text/plain; version=0.0.4"
            assert answer.read() == b"numbers\n"
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/other", timeout=5)
        with pytest.raises(UserError, match="--metrics-port"), served("127.0.0.1", port, lambda: ""):
            pass
