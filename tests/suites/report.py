"""What a suite found, and how it is shown."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Literal

from rich.console import Console
from rich.table import Table

from tests.suites.known import KNOWN

Outcome = Literal["passed", "failed", "skipped"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing that a suite tried."""

    name: str
    outcome: Outcome
    detail: str = ""
    """Why it failed or was skipped."""
    seconds: float = 0.0


@dataclass(slots=True, kw_only=True)
class SuiteReport:
    """One suite's checks; or why there are none."""

    suite: str
    version: str
    checks: list[Check] = field(default_factory=list)
    missing: str = ""
    """What must be installed by hand before the suite can run; empty where it ran."""
    seconds: float = 0.0

    def count(self, outcome: Outcome) -> int:
        return sum(check.outcome == outcome for check in self.checks)

    @property
    def unexpected(self) -> list[Check]:
        """The failures that nobody has explained."""
        known = KNOWN.get(self.suite, {})
        return [c for c in self.checks if c.outcome == "failed" and c.name not in known]

    @property
    def explained(self) -> list[Check]:
        known = KNOWN.get(self.suite, {})
        return [c for c in self.checks if c.outcome == "failed" and c.name in known]

    @property
    def outdated(self) -> list[Check]:
        """Explained as failing, yet passed: the explanation must go."""
        known = KNOWN.get(self.suite, {})
        return [c for c in self.checks if c.outcome == "passed" and c.name in known]

    @property
    def is_good(self) -> bool:
        return not self.unexpected and not self.outdated and (bool(self.checks) or self.was_missing)

    @property
    def was_missing(self) -> bool:
        return bool(self.missing)


def print_reports(reports: Sequence[SuiteReport]) -> None:
    """The table, then each failure in its own words."""
    console = Console()
    table = Table("suite", "version", title="clients", title_justify="left")
    for column in ("passed", "failed", "skipped", "seconds"):
        table.add_column(column, justify="right")
    for report in reports:
        failed = str(report.count("failed"))
        if report.explained:
            failed += f" ({len(report.explained)} explained)"
        counts = [str(report.count("passed")), failed, str(report.count("skipped"))]
        if report.was_missing:
            counts = ["-", "-", "all"]
        table.add_row(report.suite, report.version, *counts, f"{report.seconds:.0f}")
    console.print(table)
    for report in reports:
        if report.was_missing:
            console.print(f"{report.suite}: skipped; first run: {report.missing}", markup=False)
        for check in report.unexpected:
            console.print(f"\nFAILED {report.suite}: {check.name}\n{check.detail}", markup=False)
        for check in report.outdated:
            console.print(
                f"\nPASSES NOW {report.suite}: {check.name}: take it out of "
                "tests/suites/known.py and docs/compatibility.md",
                markup=False,
            )


def print_json(reports: Sequence[SuiteReport]) -> None:
    known = {report.suite: [check.name for check in report.explained] for report in reports}
    print(
        json.dumps(
            [
                {**asdict(report), "explained": known[report.suite], "good": report.is_good}
                for report in reports
            ],
            indent=2,
        )
    )
