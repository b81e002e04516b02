"""`python -m tests.suites [SUITE...]`: other people's clients against nodes of this checkout."""

import argparse
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Final

from tests.suites import document
from tests.suites.checks import Context
from tests.suites.report import Check, SuiteReport, print_json, print_reports
from tests.suites.tools import CACHE, InstallFailed, Missing
from tests.support.node import NodeProcess

SUITES: Final = {
    "kcat": "kcat",
    "kafkajs": "kafkajs",
    "java": "java_client",
    "kafka-tools": "kafka_tools",
    "kafka-python": "kafka_python",
    "spark": "spark_kafka",
    "apicurio": "apicurio",
    "iceberg-rest": "iceberg_rest",
    "hive": "hive",
}
"""By name, the module; each has `version()`, `run(context)` and perhaps `SETTINGS` of its node."""


def main() -> int:
    arguments = _parse()
    if arguments.apis:
        print(document.api_table())
        return 0
    # As after Ctrl-C: every `with` ends its processes and removes its files.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    CACHE.mkdir(exist_ok=True)
    try:
        reports = [
            _run(name, keep=arguments.keep, quiet=arguments.json) for name in arguments.names or SUITES
        ]
    except KeyboardInterrupt:
        print("suites: interrupted", file=sys.stderr)
        return 130
    if arguments.json:
        print_json(reports)
    else:
        print_reports(reports)
    if arguments.write:
        document.write(reports)
    return 0 if all(report.is_good for report in reports) else 1


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.suites",
        description="Run Kafka's clients and tools against fresh nodes of this checkout.",
    )
    parser.add_argument("names", nargs="*", metavar="SUITE", help=", ".join(SUITES))
    parser.add_argument("--json", action="store_true", help="print every check as JSON")
    parser.add_argument("--keep", action="store_true", help="keep the nodes' files and logs")
    parser.add_argument("--apis", action="store_true", help="print the table of APIs; run nothing")
    parser.add_argument("--write", action="store_true", help="write both tables into docs/compatibility.md")
    arguments = parser.parse_args()
    unknown = sorted(set(arguments.names) - set(SUITES))
    if unknown:
        parser.error(f"no such suite: {', '.join(unknown)}; there are {', '.join(SUITES)}")
    if arguments.write and arguments.names:
        parser.error("--write takes the results of all suites")
    return arguments


def _run(name: str, *, keep: bool, quiet: bool) -> SuiteReport:
    module = import_module(f"tests.suites.{SUITES[name]}")
    report = SuiteReport(suite=name, version="")
    try:
        report.version = module.version()
    except (Missing, InstallFailed) as error:
        if isinstance(error, Missing):
            report.missing = str(error)
        else:
            report.checks.append(Check(name="install", outcome="failed", detail=str(error)))
        return report
    started = time.monotonic()
    with _directory(keep=keep) as directory:
        node = NodeProcess(directory / "data", getattr(module, "SETTINGS", None))
        with node:
            for check in module.run(Context(node, directory)):
                report.checks.append(check)
                if not quiet:
                    print(f"{name}: {check.outcome}: {check.name} ({check.seconds:.1f} s)")
            if not node.is_running:
                last = node.log.read_text(errors="replace")[-3000:]
                report.checks.append(Check(name="the node lives", outcome="failed", detail=last))
            else:
                code = node.stop()
                errors = [line for line in node.log.read_text().splitlines() if "Traceback" in line]
                report.checks.append(
                    Check(
                        name="the node lives",
                        outcome="failed" if code or errors else "passed",
                        detail=node.log.read_text(errors="replace")[-3000:] if errors else "",
                    )
                )
    report.seconds = time.monotonic() - started
    return report


@contextmanager
def _directory(*, keep: bool) -> Iterator[Path]:
    """A directory for one suite; kept where its files are wanted afterwards."""
    directory = Path(tempfile.mkdtemp(prefix="tidelog-suite-"))
    try:
        yield directory
    finally:
        if keep:
            print(f"kept: {directory}", file=sys.stderr)
        else:
            shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
