"""`docs/compatibility.md`: the parts that are made from the code and from a run."""

import re
from collections.abc import Sequence
from typing import Final

from tests.suites.report import SuiteReport
from tests.suites.tools import ROOT
from tidelog.wire.apis import APIS, NEVER, Api

DOCUMENT: Final = ROOT / "docs" / "compatibility.md"


def api_table() -> str:
    """Every API that is served, as Markdown, from the table that the broker itself follows."""
    lines = ["| key | API | versions | flexible from |", "|---:|---|---|---|"]
    for api in sorted(APIS):
        versions = APIS[api]
        span = f"{versions.least}-{versions.most}"
        if versions.least == versions.most:
            span = str(versions.least)
        if versions.taken_from > versions.least:
            span += f" (below {versions.taken_from} refused)"
        flexible = "-" if versions.flexible_from == NEVER else str(versions.flexible_from)
        lines.append(f"| {int(api)} | {Api(api).title} | {span} | {flexible} |")
    return "\n".join(lines)


def results_table(reports: Sequence[SuiteReport]) -> str:
    lines = ["| suite | version | passed | failed | skipped | seconds |", "|---|---|---:|---:|---:|---:|"]
    lines += [
        f"| {report.suite} | {report.version} | {report.count('passed')} |"
        f" {report.count('failed')} | {report.count('skipped')} | {report.seconds:.0f} |"
        for report in reports
    ]
    return "\n".join(lines)


def write(reports: Sequence[SuiteReport]) -> None:
    """Put both tables into the document, between their marks."""
    text = DOCUMENT.read_text()
    text = _between(text, "apis", api_table())
    text = _between(text, "results", results_table(reports))
    DOCUMENT.write_text(text)


def _between(text: str, mark: str, table: str) -> str:
    pattern = re.compile(rf"(<!-- {mark} -->\n).*?(<!-- /{mark} -->)", re.DOTALL)
    assert pattern.search(text), f"{DOCUMENT} has no <!-- {mark} -->"
    return pattern.sub(lambda found: f"{found[1]}\n{table}\n\n{found[2]}", text)
