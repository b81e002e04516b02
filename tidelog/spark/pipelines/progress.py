"""What Spark reports of a query, in our words.

Rule 1: every function is pure; a report is the JSON that Spark gives.
Rule 2: lag is what the topics have and the query has not read, counted in offsets when the batch
        was planned; None if no source has offsets of topics.
"""

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

Ends: TypeAlias = dict[str, dict[str, int]]
"""By topic and partition: the offset that comes next."""


class QueryState(Struct, frozen=True, kw_only=True):
    """How far one query is, and how fast."""

    batch: int = -1
    rows: int = 0
    """Taken in since this run began. A topic that feeds a query twice counts twice."""
    rows_per_second: float = 0.0
    batch_ms: int = 0
    lag: int | None = None
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
        lag=_lag(sources) if ends else state.lag,
        watermark=(report.get("eventTime") or {}).get("watermark", state.watermark),
        state_rows=sum(int(one.get("numRowsTotal") or 0) for one in operators),
        late_rows=state.late_rows
        + sum(int(one.get("numRowsDroppedByWatermark") or 0) for one in operators),
        ends=ends or state.ends,
    )


def behind(ends: Ends, latest: Ends) -> int:
    """How many offsets lie between two places."""
    return sum(
        max(0, end - ends.get(topic, {}).get(partition, 0))
        for topic, partitions in latest.items()
        for partition, end in partitions.items()
    )


def _lag(sources: Iterable[Mapping[str, Any]]) -> int:
    return sum(
        behind(_offsets(source.get("endOffset")), _offsets(source.get("latestOffset")))
        for source in sources
    )


def _offsets(document: Any) -> Ends:
    """Offsets of topics; {} for those of any other source."""
    if not isinstance(document, dict):
        return {}
    found = {
        topic: partitions for topic, partitions in document.items() if isinstance(partitions, dict)
    }
    return found if len(found) == len(document) else {}


def _merged(several: Iterable[Ends]) -> Ends:
    """Where all of them are: of a topic that is read twice, the place that is behind."""
    merged: Ends = {}
    for ends in several:
        for topic, partitions in ends.items():
            known = merged.setdefault(topic, {})
            for partition, end in partitions.items():
                known[partition] = min(end, known.get(partition, end))
    return merged
