"""What Spark reports of a query, in our words.

Rule 1: every function is pure; a report is the JSON that Spark gives.
Rule 2: lag is what the topics have and the query has not read, counted in offsets when the batch
        was planned, to the high watermarks: what open transactions hide is behind, too. None if no
        source has offsets of topics.
"""

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from tidelog.spark.ranges import RESERVED

Ends: TypeAlias = dict[str, dict[str, int]]
"""By topic and partition: the offset that comes next."""


class Behind(Struct, frozen=True, kw_only=True):
    """Of all partitions: how far the best, the worst and the average one is behind. Spark's Kafka
    source calls these min-, max- and avgOffsetsBehindLatest."""

    least: int
    most: int
    average: float


class QueryState(Struct, frozen=True, kw_only=True):
    """How far one query is, and how fast."""

    batch: int = -1
    rows: int = 0
    """Taken in since this run began. A topic that feeds a query twice counts twice."""
    rows_per_second: float = 0.0
    batch_ms: int = 0
    durations_ms: dict[str, int] = {}
    """Of the batch, by the parts that Spark tells apart; `triggerExecution` is the whole."""
    lag: int | None = None
    behind: Behind | None = None
    """How the lag is spread."""
    watermark: str | None = None
    state_rows: int = 0
    """Kept between batches: open windows, rows that wait for their match."""
    late_rows: int = 0
    """Dropped since this run began, because they came after their window had closed."""
    ends: Ends = {}
    at: str = ""
    """When Spark began this batch."""


def fold(state: QueryState, report: Mapping[str, Any]) -> QueryState:
    """The state after one more report; one that was seen before changes nothing."""
    batch, at = int(report["batchId"]), str(report["timestamp"])
    if (at, batch) <= (state.at, state.batch):
        return state
    sources = report.get("sources") or []
    ends = _merged(_offsets(source.get("endOffset")) for source in sources)
    lags = [lag for source in sources for lag in _lags(source)]
    operators = report.get("stateOperators") or []
    rows = int(report.get("numInputRows") or 0)
    return replace(
        state,
        batch=batch,
        at=at,
        rows=state.rows + rows,
        # Idle batches say nothing of how fast it is.
        rows_per_second=(
            float(report.get("processedRowsPerSecond") or 0.0) if rows else state.rows_per_second
        ),
        batch_ms=int(report.get("batchDuration") or 0),
        durations_ms={part: int(ms) for part, ms in (report.get("durationMs") or {}).items()},
        lag=sum(lags) if ends else state.lag,
        behind=(
            Behind(least=min(lags), most=max(lags), average=sum(lags) / len(lags)) if lags else state.behind
        ),
        watermark=(report.get("eventTime") or {}).get("watermark", state.watermark),
        state_rows=sum(int(one.get("numRowsTotal") or 0) for one in operators),
        late_rows=state.late_rows + sum(int(one.get("numRowsDroppedByWatermark") or 0) for one in operators),
        ends=ends or state.ends,
    )


def behind(ends: Ends, latest: Ends) -> int:
    """How many offsets lie between two places."""
    return sum(_each_behind(ends, latest))


def _each_behind(ends: Ends, latest: Ends) -> list[int]:
    return [
        max(0, end - ends.get(topic, {}).get(partition, 0))
        for topic, partitions in latest.items()
        for partition, end in partitions.items()
    ]


def _lags(source: Mapping[str, Any]) -> list[int]:
    return _each_behind(_offsets(source.get("endOffset")), _offsets(source.get("latestOffset")))


def _offsets(document: Any) -> Ends:
    """Offsets of topics; {} for those of any other source."""
    if not isinstance(document, dict):
        return {}
    told = {topic: partitions for topic, partitions in document.items() if topic != RESERVED}
    return told if all(isinstance(partitions, dict) for partitions in told.values()) else {}


def _merged(several: Iterable[Ends]) -> Ends:
    """Where all of them are: of a topic that is read twice, the place that is behind."""
    merged: Ends = {}
    for ends in several:
        for topic, partitions in ends.items():
            known = merged.setdefault(topic, {})
            for partition, end in partitions.items():
                known[partition] = min(end, known.get(partition, end))
    return merged
