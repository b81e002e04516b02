"""`python -m benchmarks [NAME...]`: measure this checkout on this machine."""

import argparse
import os
import platform
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Final

from benchmarks.bench import GIGABYTE, Bench
from benchmarks.report import Report, Result, print_json, print_report

BENCHMARKS: Final = (
    "limits",
    "throughput",
    "requests",
    "latency",
    "startup",
    "partitions",
    "large_topic",
    "turns",
    "recovery",
    "rebalance",
    "compaction",
    "scrub",
    "failover",
    "failover_clients",
    "replication",
    "catchup",
    "storms",
    "transactions",
    "http",
    "queues",
    "spark",
)
DISK_BYTES: Final = 6 * GIGABYTE
DISK_BYTES_FULL: Final = 12 * GIGABYTE


def main() -> int:
    arguments = _parse()
    problem = _problem(arguments.dir, DISK_BYTES_FULL if arguments.full else DISK_BYTES)
    if problem is not None:
        print(f"benchmarks: {problem}", file=sys.stderr)
        return 2
    # As after Ctrl-C: every `with` ends its processes and removes its files.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    failed = []
    results: list[Result] = []
    try:
        with tempfile.TemporaryDirectory(
            prefix="tidelog-bench-", dir=arguments.dir, ignore_cleanup_errors=True
        ) as directory:
            bench = Bench(directory=Path(directory), quick=arguments.quick, full=arguments.full)
            _start_nodes_as_users_do(bench.directory)
            if not arguments.json:
                print(_machine(bench), end="\n\n")
            for name in arguments.names or BENCHMARKS:
                found = _run(name, bench, as_json=arguments.json)
                if found is None:
                    failed.append(name)
                else:
                    results += found
    except KeyboardInterrupt:
        print("benchmarks: interrupted", file=sys.stderr)
        return 130
    if arguments.json:
        print_json(results)
    if failed:
        print(f"benchmarks: failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def _run(name: str, bench: Bench, *, as_json: bool) -> Sequence[Result] | None:
    module = import_module(f"benchmarks.{name}")
    started = time.monotonic()
    try:
        report: Report = module.run(bench)
    except Exception:
        traceback.print_exc()  # the others may still work
        return None
    if not as_json:
        print_report(name, report, seconds=time.monotonic() - started)
    return report.results


def _start_nodes_as_users_do(directory: Path) -> None:
    """Let child processes find what an installation has, not what a developer's has besides.

    kio imports hypothesis where it finds it: 10 MB, and more than half of the imports' time. And
    without compiled modules, which some containers forbid to keep, each start compiles its own.
    """
    hiding = directory / "hiding"
    hiding.mkdir()
    (hiding / "hypothesis.py").write_text("raise ImportError('a node has no test libraries')\n")
    paths = [str(hiding), *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    if os.environ.pop("PYTHONDONTWRITEBYTECODE", None):
        os.environ["PYTHONPYCACHEPREFIX"] = str(directory / "compiled")


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Measure a node beside what this machine can do. See benchmarks/README.md.",
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(BENCHMARKS)}")
    parser.add_argument("--quick", action="store_true", help="short and rough: does it still run?")
    parser.add_argument("--full", action="store_true", help="recover 10 GB, not 2; 500 members")
    parser.add_argument("--json", action="store_true", help="one JSON document, no tables")
    parser.add_argument(
        "--dir",
        metavar="DIR",
        default=tempfile.gettempdir(),
        help="where to write; it decides which disk is measured (default: %(default)s)",
    )
    arguments = parser.parse_args()
    for name in arguments.names:
        if name not in BENCHMARKS:
            parser.error(f"there is no benchmark {name!r}; choose from {', '.join(BENCHMARKS)}")
    if arguments.quick and arguments.full:
        parser.error("--quick and --full exclude each other")
    return arguments


def _problem(directory: str, bytes_needed: int) -> str | None:
    """Why nothing can be measured there, if so."""
    if not os.path.isdir(directory):
        return f"--dir {directory}: there is no such directory"
    free = shutil.disk_usage(directory).free
    if free < bytes_needed:
        return (
            f"{directory} has {free / 1e9:.1f} GB free, and up to {bytes_needed / 1e9:.0f} GB are "
            "written; choose another with --dir"
        )
    return None


def _machine(bench: Bench) -> str:
    """What the figures are worth: the machine, and how busy it is."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e9
    lines = [
        f"{os.cpu_count()} cores, {memory:.0f} GB, Linux {platform.release()}, "
        f"Python {platform.python_version()}; {_file_system(bench.directory)} at {bench.directory}"
    ]
    load = os.getloadavg()[0]
    if load > 0.5:
        lines.append(f"the load is {load:.1f} before we begin: expect noise")
    if _file_system(bench.directory) in ("tmpfs", "ramfs"):
        lines.append("this file system is memory: syncs cost nothing, --dir chooses a disk")
    if bench.quick:
        lines.append("--quick: the figures are rough")
    return "\n".join(lines)


def _file_system(path: Path) -> str:
    """The type of the mount that holds `path`."""
    found, name = -1, "?"
    with open("/proc/mounts", encoding="utf-8", errors="replace") as file:
        mounts: Sequence[list[str]] = [line.split() for line in file]
    for _, point, kind, *_ in mounts:
        if path.is_relative_to(point) and len(point) > found:
            found, name = len(point), kind
    return name


if __name__ == "__main__":
    sys.exit(main())
