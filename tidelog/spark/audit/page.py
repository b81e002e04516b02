"""An audit as a page."""

from collections import Counter, defaultdict
from typing import Final

from tidelog.spark.audit.job import Audit
from tidelog.spark.audit.judging import Copy, Finding, Outcome
from tidelog.spark.report import Page, short

REPLICAS_MAX: Final = 2000
"""Rows of one table that a reader, and a browser, can still take."""

SAID: Final = {
    Outcome.CLEAN: ("All replicas agree, and every batch is what was written.", "good"),
    Outcome.FINDINGS: ("Some replicas are not what they should be.", "bad"),
    Outcome.INCOMPLETE: ("What was read is sound, but not every replica could be read.", "warn"),
}


def audit_page(audit: Audit) -> str:
    """The whole page, as HTML."""
    verdict, replicas = audit.verdict, audit.plan.replicas
    page = Page("Audit of replicas")
    page.text(f"Cluster {audit.plan.cluster_id}, {audit.began:%Y-%m-%d %H:%M:%S} UTC", "faint")
    page.text(*SAID[verdict.outcome])
    page.figures(
        [
            ("topics", len({one.topic for one in replicas})),
            ("partitions", len({one.place for one in replicas})),
            ("replicas", len(replicas)),
            ("batches", f"{audit.batches:,}"),
            ("records", f"{audit.records:,}"),
            ("bytes", short(audit.bytes)),
            ("seconds", f"{audit.seconds:.1f}"),
            ("findings", len(verdict.findings)),
        ]
    )
    if verdict.findings:
        _findings(page, audit)
    if verdict.unread:
        page.heading("Not read")
        page.table(
            ["Topic", "Partition#", "Node#", "Why", "Matters"],
            [
                (one.topic, one.partition, one.node, one.why, "no: gone" if one.is_gone else "yes")
                for one in verdict.unread
            ],
        )
    _replicas(page, audit)
    return page.html()


def _findings(page: Page, audit: Audit) -> None:
    page.heading("Findings")
    by_copy: dict[Copy, list[Finding]] = defaultdict(list)
    for one in audit.verdict.findings:
        by_copy[one.copy].append(one)
    page.table(
        ["Topic", "Partition#", "Node#", "Offsets#", "Fault", "What", "Alike#"],
        [
            (one.topic, one.partition, one.node, one.offsets, one.fault, one.detail, one.total)
            for one in audit.verdict.findings
        ],
    )
    page.heading("Where they lie")
    for replica in audit.plan.replicas:
        found = by_copy.get((replica.topic, replica.partition, replica.node))
        if found:
            page.text(f"{replica.place} on node {replica.node}", "faint")
            marks = [(one.first, f"{one.fault} at {one.offsets}: {one.detail}") for one in found]
            page.strip(f"{replica.start}..{replica.end}", replica.start, replica.end, marks)


def _replicas(page: Page, audit: Audit) -> None:
    page.heading("Replicas")
    faults = Counter(one.copy for one in audit.verdict.findings)
    rows = []
    for one in audit.plan.replicas[:REPLICAS_MAX]:
        copy = one.topic, one.partition, one.node
        seen = audit.verdict.seen.get(copy)
        role = "leader" if one.is_leader else "in sync" if one.is_in_sync else "behind"
        rows.append(
            (
                one.topic,
                one.partition,
                one.node,
                role,
                f"{one.start:,}",
                f"{one.end:,}",
                f"{seen.batches if seen else 0:,}",
                f"{seen.records if seen else 0:,}",
                short(seen.bytes if seen else 0),
                faults[copy],
            )
        )
    columns = [
        "Topic",
        "Partition#",
        "Node#",
        "Role",
        "From#",
        "To#",
        "Batches#",
        "Records#",
        "Bytes#",
        "Findings#",
    ]
    page.table(columns, rows)
    if len(audit.plan.replicas) > REPLICAS_MAX:
        page.text(f"and {len(audit.plan.replicas) - REPLICAS_MAX:,} more replicas", "faint")
