"""`tidelog audit`: every replica of every partition, read where it lies and compared, on Spark."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidelog.errors import TidelogError
from tidelog.faces.cli.common import (
    DEFAULT_BOOTSTRAP,
    AsJson,
    Bootstrap,
    UserError,
    complain,
    note,
    number,
    print_json,
    print_table,
)
from tidelog.faces.cli.spark import Conf, Environment, Master, Report, check_report, spark_job

if TYPE_CHECKING:
    from tidelog.spark.audit.job import Audit

COULD_NOT = 2
"""The exit code if not everything could be audited."""

Topics = Annotated[
    list[str] | None, typer.Option("--topic", metavar="T", help="Audit only this topic; repeatable.")
]
Table = Annotated[
    Path | None,
    typer.Option("--table", metavar="DIR", help="Also write a Parquet table with a row for each batch."),
]


def audit(
    topic: Topics = None,
    report: Report = None,
    table: Table = None,
    master: Master = "local[*]",
    conf: Conf = None,
    environment: Environment = "",
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Compare every replica of every partition, batch by batch, on Spark.

    Each replica is read from the broker that holds it, up to the high watermark
    that this broker reported when the audit began. So clients may write,
    replicas catch up and leaders change meanwhile.

    \b
    Findings are
      corrupt      a batch whose bytes are not those that were written
      unreadable   the node says that its disk is damaged there
      missing      committed offsets that the replica does not hold
      disorder     a batch that cannot follow the one before it
      different    a batch or record that differs between replicas
      lost         the newest record of a key, in a compacted topic
    A node heals a damaged batch when it is read; the finding is reported
    all the same. Exits with 0 if everything is clean, 1 with findings, 2 if
    something could not be audited.

    \b
    Examples:
      tidelog audit
      tidelog audit --topic orders --report audit.html
      tidelog audit --json | jq .findings
      tidelog audit --master spark://host:7077 --table /shared/audit
    """
    try:
        check_report(report)
        if table is not None and table.exists():
            raise UserError(f"--table {table} exists already; name a new directory")
        done = _run(topic or [], table, master, conf, environment, bootstrap, as_json)
    except TidelogError as error:
        complain(str(error))
        raise typer.Exit(COULD_NOT) from None
    if report is not None:
        from tidelog.spark.audit.page import audit_page

        report.write_text(audit_page(done), encoding="utf-8")
    if as_json:
        print_json(done.as_json())
    else:
        _show(done, report, table)
    raise typer.Exit(done.verdict.outcome.exit_code)


def _run(
    topics: list[str],
    table: Path | None,
    master: str,
    conf: list[str] | None,
    environment: str,
    bootstrap: str,
    as_json: bool,
) -> "Audit":
    from tidelog.spark.session import check_installed

    check_installed()
    from tidelog.spark.audit.job import audit as run_audit
    from tidelog.spark.audit.job import check_reachable

    check_reachable(bootstrap, topics)
    with spark_job("tidelog audit", master=master, conf=conf, environment=environment, as_json=as_json) as (
        session,
        on_progress,
    ):
        target = "" if table is None else table.absolute().as_uri()
        return run_audit(session, bootstrap, topics, table=target, on_progress=on_progress)


def _show(done: "Audit", report: Path | None, table: Path | None) -> None:
    verdict, replicas = done.verdict, done.plan.replicas
    if verdict.findings:
        print_table(
            ["Topic", "Partition#", "Node#", "Offsets#", "Fault", "What"],
            [
                (one.topic, one.partition, one.node, one.offsets, one.fault, one.detail)
                for one in verdict.findings
            ],
        )
    for kind in sorted({(one.copy, one.fault, one.total) for one in verdict.findings}):
        (topic, partition, node), fault, total = kind
        listed = sum((f.copy, f.fault) == (kind[0], fault) for f in verdict.findings)
        if total > listed:
            note(f"{topic}-{partition} on node {node}: {number(total - listed)} more {fault}")
    for one in verdict.unread:
        gone = "; it is gone by now" if one.is_gone else ""
        note(f"not read: {one.topic}-{one.partition} on node {one.node}: {one.why}{gone}")
    print(
        f"{verdict.outcome}: {_count(len(verdict.findings), 'finding')} in "
        f"{_count(len(replicas), 'replica')} of "
        f"{_count(len({one.place for one in replicas}), 'partition')}; "
        f"{number(done.batches)} batches, {number(done.records)} records, "
        f"{number(done.bytes)} bytes in {done.seconds:.1f} s"
    )
    for what, where in (("report", report), ("table", table)):
        if where is not None:
            note(f"{what}: {where}")


def _count(things: int, name: str) -> str:
    return f"{number(things)} {name}{'' if things == 1 else 's'}"
