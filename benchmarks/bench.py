"""The frame around a benchmark: how long, how often, where, and a node to measure.

Rule 1: everything is written below one temporary directory, which is gone at the end, as is every
        process; also after Ctrl-C, SIGTERM and a failure.
Rule 2: before anything is measured, the disk has finished what was deleted or written before it.
"""

import asyncio
import shutil
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar

import uvloop
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tests.support.node import NodeProcess
from tidelog.client.kafka import KafkaClient
from tidelog.host import Path as HostPath
from tidelog.host import SystemDisk

MIB: Final = 1024 * 1024
GIGABYTE: Final = 1_000_000_000
ASK_SECONDS_MAX: Final = 300.0
"""Making 5,000 partitions on a slow disk takes a while."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """How much to do, and where."""

    directory: Path
    quick: bool = False
    full: bool = False

    @property
    def rounds(self) -> int:
        return 2 if self.quick else 5

    @property
    def subject_seconds(self) -> float:
        """How long one measurement of the node takes."""
        return 0.5 if self.quick else 3.0

    @property
    def limit_seconds(self) -> float:
        """How long one measurement of a limit takes."""
        return 0.3 if self.quick else 1.5

    @contextmanager
    def node(self, settings: Mapping[str, Any] | None = None) -> Iterator[NodeProcess]:
        """A node with an empty directory; both are gone afterwards."""
        data = self.fresh("node")
        try:
            with running(NodeProcess(data, dict(settings or {}))) as node:
                yield node
        finally:
            self.remove(data)

    def fresh(self, name: str) -> Path:
        """A path that is not in use, to be made by whoever gets it."""
        return self.directory / f"{name}-{time.monotonic_ns()}"

    def remove(self, path: Path) -> None:
        """Delete a file or a directory, and let the disk finish that before anything is timed."""
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
        path.with_name(path.name + ".log").unlink(missing_ok=True)
        self.settle()

    def settle(self) -> None:
        SystemDisk().sync_everything(HostPath(self.directory))


@contextmanager
def running(node: NodeProcess) -> Iterator[NodeProcess]:
    """Start the node; whatever happens from then on, it does not outlive the `with`."""
    try:
        node.start()
        yield node
    finally:
        if node.is_running:
            node.kill()


class Steps:
    """Tells a person how far a benchmark is: a bar on a terminal, else a line per step."""

    def __init__(self, name: str, total: int) -> None:
        self._name = name
        self._total = total
        self._done = 0
        self._progress = Progress(
            TextColumn("{task.fields[name]}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.description}", markup=False),
            console=Console(stderr=True),
            transient=True,
            disable=not sys.stderr.isatty(),
        )
        self._task = self._progress.add_task("", total=total, name=name)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._progress.stop()

    def begin(self, what: str) -> None:
        """The next step begins; those before it are done."""
        self._progress.update(self._task, completed=self._done, description=what)
        self._done += 1
        if self._progress.disable:
            print(f"{self._name} {self._done}/{self._total}: {what}", file=sys.stderr, flush=True)


def ask_node(node: NodeProcess, work: Callable[[KafkaClient], Awaitable[T]]) -> T:
    """Do some work with a client of the node, on the same event loop as the node's."""

    async def run() -> T:
        async with KafkaClient(node.bootstrap, timeout_seconds=ASK_SECONDS_MAX) as client:
            return await work(client)

    return run_fast(run())


def run_fast(work: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work)
