"""`python -m tidelog.spark.pipelines.beside FOLDER ARGUMENTS...`: a cluster with a pipeline.

`make run` is this: `tidelog ARGUMENTS`, which starts a cluster, as a child, and once that serves,
`tidelog pipeline run FOLDER` as another. The folder is made of the sample if there is none.

Rule 1: the cluster comes first. Without Spark or a Java, or if the pipeline fails, a line says so
        and the cluster goes on.
Rule 2: the pipeline ends before the cluster does, so that it can end in order. Children have
        process groups of their own: Ctrl-C reaches this process alone.
Rule 3: however this process ends, its children do, too.
"""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final

from tidelog.errors import TidelogError
from tidelog.faces.cli.common import complain, note
from tidelog.faces.local import layout
from tidelog.spark.client_loop import ask
from tidelog.spark.java import find_java
from tidelog.spark.pipelines import folders, state
from tidelog.spark.pipelines.running import NEEDED, listening
from tidelog.spark.pipelines.spec import FILE_NAME
from tidelog.spark.session import check_installed

LOOK_SECONDS: Final = 0.2
REACH_SECONDS_MAX: Final = 1.0
STOP_SECONDS_MAX: Final = 20.0
LOG_NAME: Final = "run.log"


class Child:
    """A `tidelog` that ends when this process does."""

    def __init__(self, arguments: Sequence[str], log: Path | None = None) -> None:
        output = None if log is None else log.open("ab")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tidelog.faces.local.child", str(os.getpid()), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            process_group=0,
        )
        if output is not None:
            output.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def code(self) -> int | None:
        """How it ended; None while it runs."""
        return self._process.poll()

    def end(self, seconds_max: float | None) -> int:
        """Ask it to end, and wait; kill it if that takes longer, or if we are asked again."""
        if self.code is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            return self._process.wait(seconds_max)
        except (subprocess.TimeoutExpired, KeyboardInterrupt):
            self._process.kill()
            return self._process.wait()


def address(arguments: Sequence[str], pid: int) -> str | None:
    """Where the cluster that these arguments start is reached; None while nobody can know."""
    told = dict(pairwise(arguments))
    if arguments[:1] == ["start"]:
        return told.get("--kafka")
    content = layout.read(Path(told["--data"]).absolute())
    if content is None or content.pid != pid:
        return None
    return ",".join(entry.kafka for entry in content.nodes)


def is_reachable(bootstrap: str) -> bool:
    try:
        ask(bootstrap, lambda client: client.cluster(), timeout_seconds=REACH_SECONDS_MAX)
    except (TidelogError, TimeoutError):
        return False
    return True


def run(folder: Path, arguments: Sequence[str]) -> int:
    """Run both until the cluster ends or somebody asks; the cluster's exit code."""
    cluster = Child(arguments)
    pipeline: Child | None = None
    stop = threading.Event()
    try:
        with listening(stop):
            is_due = True
            while cluster.code is None and not stop.wait(LOOK_SECONDS):
                if is_due and (bootstrap := address(arguments, cluster.pid)) is not None:
                    if is_reachable(bootstrap):
                        pipeline, is_due = start_pipeline(folder, bootstrap), False
                elif pipeline is not None and pipeline.code is not None:
                    tell_end(folder, pipeline.code)
                    pipeline = None
    finally:
        if pipeline is not None:
            pipeline.end(STOP_SECONDS_MAX)
        code = cluster.end(None)
    return code


def start_pipeline(folder: Path, bootstrap: str) -> Child | None:
    """The pipeline, as a child; None, with a line that says why, if it cannot run here."""
    try:
        check_installed(NEEDED)
        java = find_java()
        if not (folder / FILE_NAME).exists():
            folders.create(folder, bootstrap=bootstrap)
    except TidelogError as error:
        note(f"pipeline: not started: {error}")
        return None
    log = state.path(folder, LOG_NAME)
    log.parent.mkdir(parents=True, exist_ok=True)
    child = Child(["pipeline", "run", str(folder), "--bootstrap", bootstrap], log)
    first = bootstrap.split(",")[0]
    where = "" if first == "127.0.0.1:9092" else f" --bootstrap {first}"
    note("")
    note(f"pipeline: {folder} starts on {java}; its log is {log}. See what it does:")
    note(f"  tidelog pipeline describe {folder}")
    note(f"  tidelog consume revenue --from-beginning --show-key{where}")
    return child


def tell_end(folder: Path, code: int) -> None:
    noted = state.look(folder)
    problem = f": {noted.problem}" if noted.problem else f" with exit code {code}"
    again = f"run it again: tidelog pipeline run {folder}"
    note(f"pipeline: {folder} is {noted.phase}{problem}; {again}")


def main(arguments: Sequence[str]) -> int:
    try:
        return run(Path(arguments[0]).absolute(), list(arguments[1:]))
    except TidelogError as error:
        complain(str(error))
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
