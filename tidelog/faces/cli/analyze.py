"""`tidelog analyze`: what goes through the topics, measured on Spark."""

from typing import TYPE_CHECKING, Annotated

import typer

from tidelog.faces.cli.common import (
    DEFAULT_BOOTSTRAP,
    AsJson,
    Bootstrap,
    UserError,
    note,
    number,
    print_json,
    print_table,
)
from tidelog.faces.cli.consume import parse_time
from tidelog.faces.cli.replication import size
from tidelog.faces.cli.spark import Conf, Environment, Master, Report, check_report, spark_job

if TYPE_CHECKING:
    from tidelog.spark.analysis.job import Analysis
    from tidelog.spark.analysis.plan import Wanted
    from tidelog.spark.analysis.summary import TopicSummary

SHOWN_KEYS = 5

Topics = Annotated[
    list[str] | None, typer.Option("--topic", metavar="T", help="Analyze only this topic; repeatable.")
]
From = Annotated[str | None, typer.Option("--from", metavar="MS|ISO", help="Only records from this time on.")]
To = Annotated[str | None, typer.Option("--to", metavar="MS|ISO", help="Only records before this time.")]
Sample = Annotated[
    float, typer.Option("--sample", metavar="F", help="Read about this fraction of all records, as 0.01.")
]


def analyze(
    topic: Topics = None,
    from_: From = None,
    to: To = None,
    sample: Sample = 1.0,
    report: Report = None,
    master: Master = "local[*]",
    conf: Conf = None,
    environment: Environment = "",
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Measure the traffic of topics: rates, sizes, keys, compression, lag.

    Reports throughput over time, sizes of batches and records, the most frequent
    keys, the balance of partitions, what compression saves, and the lag of
    groups as far back as their commits are kept. --report has everything, with
    plots; the terminal shows the main figures.

    \b
    Examples:
      tidelog analyze --report analysis.html
      tidelog analyze --topic orders --from 2026-01-31T12:00 --to 2026-01-31T13:00
      tidelog analyze --sample 0.05 --json
      tidelog analyze --master spark://host:7077
    """
    check_report(report)
    wanted = _wanted(topic or [], from_, to, sample)
    done = _run(wanted, master, conf, environment, bootstrap, as_json)
    if report is not None:
        from tidelog.spark.analysis.page import analysis_page

        report.write_text(analysis_page(done), encoding="utf-8")
    if as_json:
        print_json(done.as_json())
        return
    _show(done)
    if report is not None:
        note(f"report: {report}")


def _wanted(topics: list[str], from_: str | None, to: str | None, sample: float) -> "Wanted":
    from tidelog.spark.session import check_installed

    if not 0 < sample <= 1:
        raise UserError(f"--sample {sample:g} is not a part of 1, such as 0.1")
    from_ms = None if from_ is None else parse_time(from_, "--from")
    to_ms = None if to is None else parse_time(to, "--to")
    if from_ms is not None and to_ms is not None and from_ms >= to_ms:
        raise UserError(f"--from {from_} is not before --to {to}; exchange them")
    check_installed()
    from tidelog.spark.analysis.plan import Wanted

    return Wanted(topics=tuple(topics), from_ms=from_ms, to_ms=to_ms, sample=sample)


def _run(
    wanted: "Wanted", master: str, conf: list[str] | None, environment: str, bootstrap: str, as_json: bool
) -> "Analysis":
    from tidelog.spark.analysis.job import analyze as run_analysis
    from tidelog.spark.analysis.job import plan_of

    plan = plan_of(bootstrap, wanted)
    with spark_job("tidelog analyze", master=master, conf=conf, environment=environment, as_json=as_json) as (
        session,
        on_progress,
    ):
        return run_analysis(session, bootstrap, plan, on_progress=on_progress)


def _show(done: "Analysis") -> None:
    summary = done.summary
    print_table(
        [
            "Topic",
            "Records#",
            "Batches#",
            "Stored#",
            "Ratio#",
            "Record#",
            "Batch#",
            "Peak/s#",
            "Skew#",
            "Keys#",
            "Heaviest keys",
        ],
        [_row(one, summary.seconds) for one in summary.topics],
    )
    if summary.lags:
        print_table(
            ["Group", "Topic", "Lag#", "Most#"],
            [
                (one.group, one.topic, number(one.last), number(one.most))
                for one in sorted(summary.lags, key=lambda one: -one.last)
            ],
        )
    if done.is_estimate:
        note(f"estimated from a sample of about {done.plan.wanted.sample:.2%} of all offsets")


def _row(one: "TopicSummary", seconds: int) -> tuple[object, ...]:
    means = {sizes.what: sizes.mean for sizes in one.histograms}
    peak = max((point.records for point in one.points), default=0.0) / seconds
    heaviest = ", ".join(f"{key.key} {key.share:.1%}" for key in one.heaviest[:SHOWN_KEYS])
    return (
        one.topic,
        number(one.records),
        number(one.batches),
        size(one.stored),
        f"{one.payload / one.stored:.2f}" if one.stored else "-",
        size(means.get("record bytes", 0)),
        size(means.get("batch bytes", 0)),
        number(peak),
        f"{one.skew:.2f}",
        number(one.keys) if one.keys_are_all else f"≥{number(one.keys)}",
        heaviest,
    )
