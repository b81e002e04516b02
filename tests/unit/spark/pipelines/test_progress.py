"""Reports of Spark, in our words."""

from typing import Any

import pytest

from tidelog.spark.pipelines.progress import Behind, QueryState, behind, fold


def report(batch: int = 0, second: int = 0, **changes: Any) -> dict[str, Any]:
    source = {
        "startOffset": {"orders": {"0": 0}},
        "endOffset": {"orders": {"0": 30, "1": 5}, "@": {"query": "q", "topics": {}}},
        "latestOffset": {"orders": {"0": 40, "1": 5}},
    }
    return {
        "batchId": batch,
        "timestamp": f"2026-01-01T00:00:{second:02}.000Z",
        "batchDuration": 210,
        "numInputRows": 35,
        "processedRowsPerSecond": 166.6,
        "sources": [source],
        "eventTime": {"watermark": "2026-01-01T00:00:00.000Z"},
        "durationMs": {"addBatch": 150, "triggerExecution": 210},
        "stateOperators": [{"numRowsTotal": 4, "numRowsDroppedByWatermark": 2}],
        **changes,
    }


def test_a_report_tells_how_far_a_query_is() -> None:
    state = fold(QueryState(), report())

    assert state == QueryState(
        batch=0,
        rows=35,
        rows_per_second=166.6,
        batch_ms=210,
        lag=10,
        state_rows=4,
        late_rows=2,
        behind=Behind(least=0, most=10, average=5.0),
        durations_ms={"addBatch": 150, "triggerExecution": 210},
        watermark="2026-01-01T00:00:00.000Z",
        ends={"orders": {"0": 30, "1": 5}},
        at="2026-01-01T00:00:00.000Z",
    )


def test_rows_are_counted_once_however_often_a_report_is_seen() -> None:
    first, second = report(0, 0), report(1, 5)

    state = QueryState()
    for one in (first, first, second, first, second):
        state = fold(state, one)

    assert (state.batch, state.rows, state.late_rows) == (1, 70, 4)


def test_a_report_of_an_idle_query_keeps_its_pace_and_its_place() -> None:
    idle = report(1, 10, numInputRows=0, processedRowsPerSecond=0.0, sources=[], eventTime={})

    state = fold(fold(QueryState(), report()), idle)

    assert (state.batch, state.rows, state.rows_per_second) == (1, 35, 166.6)
    assert state.ends == {"orders": {"0": 30, "1": 5}}
    assert state.watermark == "2026-01-01T00:00:00.000Z"


def test_offsets_of_other_sources_are_no_lag() -> None:
    files = {"endOffset": {"logOffset": 3}, "latestOffset": None}

    state = fold(QueryState(), report(sources=[files]))

    assert (state.lag, state.ends) == (None, {})


def test_of_a_topic_that_is_read_twice_the_place_behind_counts() -> None:
    twice = [{"endOffset": {"a": {"0": end}}, "latestOffset": {"a": {"0": 9}}} for end in (7, 4)]

    state = fold(QueryState(), report(sources=twice))

    assert (state.ends, state.lag) == ({"a": {"0": 4}}, 7)


@pytest.mark.parametrize(
    ("ends", "latest", "lag"),
    [
        ({}, {"a": {"0": 3}}, 3),
        ({"a": {"0": 1}}, {"a": {"0": 3, "1": 2}}, 4),
        ({"a": {"0": 5}}, {"a": {"0": 3}}, 0),
    ],
)
def test_what_lies_between_two_places(
    ends: dict[str, dict[str, int]], latest: dict[str, dict[str, int]], lag: int
) -> None:
    assert behind(ends, latest) == lag
