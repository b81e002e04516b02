"""Who runs a pipeline, and how far it is: FOLDER/state.

    state/run.lock       held by whoever runs it; the kernel lets go, however that ends
    state/run.json       what it is about, replaced whole every second or so
    state/spark.log      what Spark says
    state/checkpoints    how far each query is, kept by Spark

Rule 1: whether a pipeline runs is told by the lock, never by run.json: that one stays behind.
Rule 2: a signal goes only to the process that wrote run.json: its pid, and the time it was born,
        must be the same. Pids are used again.
"""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct, field

from tidelog.errors import TidelogError
from tidelog.host import File, SystemDisk, replace_file
from tidelog.host import Path as DiskPath
from tidelog.spark.pipelines.progress import QueryState

DIRECTORY: Final = "state"
LOCK_NAME: Final = "run.lock"
FILE_NAME: Final = "run.json"
LOG_NAME: Final = "spark.log"
LOOK_SECONDS: Final = 0.1
HOLD_SECONDS_MAX: Final = 0.5
"""Who only looks holds the lock, too, for a moment."""


class RunsAlready(TidelogError):
    """Another process runs this pipeline; the message says how to end it."""


class NotRunning(TidelogError):
    """Nobody runs this pipeline on this machine."""


class DidNotStop(TidelogError):
    """It was asked, and still runs."""


class Phase(StrEnum):
    NEW = "new"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    STOPPED = "stopped"
    DONE = "done"
    FAILED = "failed"
    DIED = "died"
    """Killed: it could not say how it ended."""


ENDED: Final = (Phase.NEW, Phase.STOPPED, Phase.DONE, Phase.FAILED)


class Run(Struct, kw_only=True):
    """run.json."""

    pid: int = 0
    born: str = ""
    """When the process with this pid began, as this system tells it."""
    host: str = ""
    master: str = ""
    trigger: str = ""
    bootstrap: str = ""
    phase: Phase = Phase.NEW
    problem: str = ""
    began: float = 0.0
    changed: float = 0.0
    queries: dict[str, QueryState] = field(default_factory=dict)


def path(folder: Path, name: str) -> Path:
    return folder / DIRECTORY / name


def log_path(folder: Path) -> Path:
    return path(folder, LOG_NAME)


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Be the only one who runs this pipeline; RunsAlready, if somebody does."""
    directory = folder / DIRECTORY
    directory.mkdir(parents=True, exist_ok=True)
    lock, deadline = _lock(folder), time.monotonic() + HOLD_SECONDS_MAX
    while lock is None and time.monotonic() < deadline:
        time.sleep(LOOK_SECONDS)
        lock = _lock(folder)
    if lock is None:
        pid = _read(folder).pid
        raise RunsAlready(
            f"pipeline {folder} runs already, as process {pid}; end it with `tidelog pipeline stop {folder}`"
        )
    try:
        yield
    finally:
        lock.close()


def this_run(*, master: str, trigger: str, bootstrap: str) -> Run:
    now = time.time()
    return Run(
        pid=os.getpid(),
        born=born(os.getpid()),
        host=socket.gethostname(),
        master=master,
        trigger=trigger,
        bootstrap=bootstrap,
        phase=Phase.STARTING,
        began=now,
        changed=now,
    )


def write(folder: Path, run: Run) -> None:
    """Replace run.json: whoever reads sees the old one or this one, whole."""
    run.changed = time.time()
    text = msgspec.json.format(msgspec.json.encode(run), indent=2)
    replace_file(SystemDisk(), DiskPath(path(folder, FILE_NAME)), text + b"\n", durably=False)


def look(folder: Path) -> Run:
    """How the pipeline is, or was when it ended."""
    run = _read(folder)
    if run.phase not in ENDED and not is_running(folder):
        again = _read(folder)  # it may have ended between the two looks
        run = again if again.phase in ENDED else msgspec.structs.replace(again, phase=Phase.DIED)
    return run


def is_running(folder: Path) -> bool:
    if not path(folder, LOCK_NAME).exists():
        return False
    lock = _lock(folder)
    if lock is not None:
        lock.close()
    return lock is None


def stop(
    folder: Path,
    *,
    seconds_max: float,
    send: Callable[[int, int], None] = os.kill,
    born_at: Callable[[int], str] | None = None,
) -> Run:
    """End whoever runs the pipeline on this machine, and wait for it; how it was at its end."""
    if not is_running(folder):
        raise NotRunning(f"pipeline {folder} does not run on this machine")
    run = _read(folder)
    if run.host != socket.gethostname():
        raise NotRunning(f"pipeline {folder} runs on {run.host}; stop it there")
    if not run.pid or (born_at or born)(run.pid) != run.born:
        raise NotRunning(
            f"pipeline {folder} is held by a process that did not write run.json; it may be about "
            "to start. Try again"
        )
    send(run.pid, signal.SIGTERM)
    deadline = time.monotonic() + seconds_max
    while is_running(folder):
        if time.monotonic() > deadline:
            raise DidNotStop(
                f"process {run.pid} still runs pipeline {folder} after {seconds_max:g} s; see "
                f"{log_path(folder)}"
            )
        time.sleep(LOOK_SECONDS)
    return look(folder)


def born(pid: int) -> str:
    """When a process began, in whatever form this system has; "" if there is none."""
    try:
        # The 22nd field; the 2nd is a name in parentheses, which may hold anything.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (FileNotFoundError, ProcessLookupError):
        if Path("/proc/self/stat").exists():
            return ""
    asked = subprocess.run(
        ["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    return asked.stdout.strip()


def _lock(folder: Path) -> File | None:
    try:
        return SystemDisk().lock(DiskPath(path(folder, LOCK_NAME)))
    except BlockingIOError:
        return None


def _read(folder: Path) -> Run:
    file = path(folder, FILE_NAME)
    try:
        return msgspec.json.decode(file.read_bytes(), type=Run)
    except FileNotFoundError:
        return Run()
    except msgspec.MsgspecError as error:
        raise TidelogError(f"{file} is damaged ({error}); remove it") from None
