"""The whole analysis: plan, measure, add up, summarize."""

import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from tidelog.spark.analysis.plan import AnalysisPlan, CannotAnalyze, Wanted, make_plan
from tidelog.spark.analysis.summary import Summary, as_json, summarize
from tidelog.spark.analysis.totals import Totals, add_all_up, read_all, span_of
from tidelog.spark.client_loop import ask
from tidelog.spark.progress import OnProgress, watched, why_failed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysis:
    """What was looked at, and what it comes to."""

    plan: AnalysisPlan
    summary: Summary
    began: datetime
    seconds: float

    @property
    def is_estimate(self) -> bool:
        return any(factor > 1 for factor in self.plan.factors().values())

    def as_json(self) -> dict[str, Any]:
        return {
            "cluster": self.plan.cluster_id,
            "began": self.began.isoformat(timespec="seconds"),
            "took_seconds": round(self.seconds, 3),
            "sample": self.plan.wanted.sample,
            "is_estimate": self.is_estimate,
            "from_ms": self.plan.wanted.from_ms,
            "to_ms": self.plan.wanted.to_ms,
            **as_json(self.summary),
        }


def plan_of(bootstrap: str, wanted: Wanted) -> AnalysisPlan:
    """What will be read; fails before Spark is started if there is nothing."""
    return ask(bootstrap, lambda client: make_plan(client, wanted))


def analyze(
    spark: "SparkSession", bootstrap: str, plan: AnalysisPlan, *, on_progress: OnProgress | None = None
) -> Analysis:
    """Look at what was planned; CannotAnalyze if that fails."""
    from pyspark.errors import PySparkException

    began, started = datetime.now(UTC), time.monotonic()
    try:
        totals = _add_up(spark, bootstrap, plan, on_progress)
    except PySparkException as error:
        raise CannotAnalyze(why_failed(error)) from error
    return Analysis(
        plan=plan, summary=summarize(plan, totals), began=began, seconds=time.monotonic() - started
    )


def _add_up(
    spark: "SparkSession", bootstrap: str, plan: AnalysisPlan, on_progress: OnProgress | None
) -> Totals:
    measures = read_all(spark, bootstrap, plan.tasks()).persist()
    try:
        with watched(spark, "reading topics", on_progress):
            span = span_of(measures)
        with watched(spark, "adding up", on_progress):
            return add_all_up(measures, span)
    finally:
        measures.unpersist()
