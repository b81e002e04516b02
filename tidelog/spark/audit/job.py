"""The whole audit: plan, read, compare, judge.

Rule 1: every replica is read once. What was read is kept until all questions have been answered,
        since a replica that was mended meanwhile would say another thing.
Rule 2: what an audit cannot do is told as CannotAudit; a finding is never an exception.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from tidelog.client.admin import AdminClient
from tidelog.model import NodeId
from tidelog.spark.audit.compare import Comparison, read_all
from tidelog.spark.audit.found import Found
from tidelog.spark.audit.judging import Verdict, judge
from tidelog.spark.audit.plan import AuditPlan, CannotAudit, Replica, later_stretches, make_plan, still_there
from tidelog.spark.audit.replica import Asking
from tidelog.spark.client_loop import ask
from tidelog.spark.connect import parallelism
from tidelog.spark.progress import OnProgress, as_records, watched, why_failed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """What was audited, and what came of it."""

    plan: AuditPlan
    verdict: Verdict
    began: datetime
    seconds: float

    @property
    def batches(self) -> int:
        return sum(one.batches for one in self.verdict.seen.values())

    @property
    def records(self) -> int:
        return sum(one.records for one in self.verdict.seen.values())

    @property
    def bytes(self) -> int:
        return sum(one.bytes for one in self.verdict.seen.values())

    def as_json(self) -> dict[str, Any]:
        verdict = self.verdict
        return {
            "cluster": self.plan.cluster_id,
            "outcome": verdict.outcome.value,
            "began": self.began.isoformat(timespec="seconds"),
            "seconds": round(self.seconds, 3),
            "batches": self.batches,
            "records": self.records,
            "bytes": self.bytes,
            "findings": [
                {
                    "topic": one.topic,
                    "partition": one.partition,
                    "node": one.node,
                    "fault": one.fault.value,
                    "first": one.first,
                    "last": one.last,
                    "detail": one.detail,
                    "total": one.total,
                }
                for one in verdict.findings
            ],
            "unread": [
                {
                    "topic": one.topic,
                    "partition": one.partition,
                    "node": one.node,
                    "why": one.why,
                    "is_gone": one.is_gone,
                }
                for one in verdict.unread
            ],
            "replicas": [self._replica(one) for one in self.plan.replicas],
        }

    def _replica(self, one: Replica) -> dict[str, Any]:
        seen = self.verdict.seen.get((one.topic, one.partition, one.node))
        return {
            "topic": one.topic,
            "partition": one.partition,
            "node": one.node,
            "is_leader": one.is_leader,
            "is_in_sync": one.is_in_sync,
            "start": one.start,
            "end": one.end,
            "batches": seen.batches if seen else 0,
            "records": seen.records if seen else 0,
            "bytes": seen.bytes if seen else 0,
        }


def audit(
    spark: "SparkSession",
    bootstrap: str,
    topics: Sequence[str] = (),
    *,
    table: str = "",
    on_progress: OnProgress | None = None,
) -> Audit:
    """Audit these topics, or all; CannotAudit if that is not possible.

    `table` is a new directory for all that was read, as Parquet: a row for each batch.
    """
    from pyspark.errors import PySparkException

    began, started = datetime.now(UTC), time.monotonic()
    plan = ask(bootstrap, lambda client: make_plan(client, topics))
    try:
        found = _compare(spark, bootstrap, plan, table, on_progress)
    except PySparkException as error:
        raise CannotAudit(why_failed(error)) from error
    still = ask(bootstrap, lambda client: still_there(client, plan))
    return Audit(
        plan=plan, verdict=judge(plan, found, still), began=began, seconds=time.monotonic() - started
    )


def _compare(
    spark: "SparkSession", bootstrap: str, plan: AuditPlan, table: str, on_progress: OnProgress | None
) -> Found:
    asking = Asking(bootstrap=bootstrap)
    rows = read_all(spark, asking, plan.stretches(parallelism(spark))).persist()
    try:
        comparison = Comparison(spark, rows, plan)
        reading = as_records(on_progress, before=0, here=plan.offsets, total=plan.offsets)
        with watched(spark, "reading replicas", reading):
            seen = comparison.seen()
        if table:
            with watched(spark, f"writing {table}", on_progress):
                rows.drop("contents").write.parquet(table)
        with watched(spark, "comparing", on_progress):
            found = comparison.all(seen)
            if found.lost:
                later = _later(spark, asking, plan, found)
                found = found._replace(lost=comparison.lost(later))
        return found
    finally:
        rows.unpersist()


def _later(spark: "SparkSession", asking: Asking, plan: AuditPlan, found: Found) -> "DataFrame":
    """What those replicas got since the plan was made, that lack the newest record of a key."""
    wanted: set[tuple[str, int, NodeId]] = {(one.topic, one.partition, one.replica) for one in found.lost}
    stretches = ask(asking.bootstrap, lambda client: later_stretches(client, plan, wanted))
    return read_all(spark, asking, stretches)


def check_reachable(bootstrap: str, topics: Sequence[str]) -> None:
    """Fail now, not once Spark has started, if there is no cluster or no such topic."""

    async def look(client: AdminClient) -> None:
        await client.cluster()
        for name in topics:
            client.forget(name)
            await client.topic(name)

    ask(bootstrap, look)
