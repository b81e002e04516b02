"""Who runs a pipeline: told by a lock, and by a file that may be out of date."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tidelog.errors import TidelogError
from tidelog.spark.pipelines import state
from tidelog.spark.pipelines.state import NotRunning, Phase, Run, RunsAlready

RUNNER = """
import signal, sys
from pathlib import Path
from tidelog.spark.pipelines import state
folder = Path(sys.argv[1])
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
with state.held(folder):
    run = state.this_run(master="local", trigger="once", bootstrap="a:1")
    run.phase = state.Phase.RUNNING
    state.write(folder, run)
    print("running", flush=True)
    signal.sigtimedwait({signal.SIGTERM}, 60)
    run.phase = state.Phase.STOPPED
    state.write(folder, run)
"""


@pytest.fixture
def runner(tmp_path: Path) -> Iterator["subprocess.Popen[str]"]:
    """Another process that runs the pipeline."""
    process = subprocess.Popen(
        [sys.executable, "-c", RUNNER, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "running\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def test_a_folder_that_never_ran_is_new(tmp_path: Path) -> None:
    assert state.look(tmp_path) == Run(phase=Phase.NEW)
    assert not (tmp_path / "state").exists()


def test_one_who_runs_is_seen_and_nobody_else_may(tmp_path: Path, runner: "subprocess.Popen[str]") -> None:
    seen = state.look(tmp_path)

    assert (seen.phase, seen.pid, seen.host) == (Phase.RUNNING, runner.pid, socket.gethostname())
    with pytest.raises(RunsAlready, match=f"as process {runner.pid}; end it with"):
        state.held(tmp_path).__enter__()


def test_stopping_ends_it_in_order(tmp_path: Path, runner: "subprocess.Popen[str]") -> None:
    ended = state.stop(tmp_path, seconds_max=20)

    assert ended.phase is Phase.STOPPED
    assert runner.wait(20) == 0


def test_one_that_was_killed_is_known_to_have_died(tmp_path: Path, runner: "subprocess.Popen[str]") -> None:
    runner.kill()
    runner.wait()

    assert state.look(tmp_path).phase is Phase.DIED
    with pytest.raises(NotRunning, match="does not run"):
        state.stop(tmp_path, seconds_max=1)
    with state.held(tmp_path):
        pass


def test_a_process_that_only_has_the_same_pid_gets_no_signal(
    tmp_path: Path, runner: "subprocess.Popen[str]"
) -> None:
    sent: list[int] = []

    with pytest.raises(NotRunning, match=r"did not write run\.json"):
        state.stop(tmp_path, seconds_max=1, send=lambda pid, _: sent.append(pid), born_at=lambda _: "later")
    assert sent == []


def test_one_that_does_not_hear_is_reported(tmp_path: Path, runner: "subprocess.Popen[str]") -> None:
    sent: list[tuple[int, int]] = []

    with pytest.raises(state.DidNotStop, match=f"process {runner.pid} still runs"):
        state.stop(tmp_path, seconds_max=0, send=lambda pid, what: sent.append((pid, what)))
    assert sent == [(runner.pid, signal.SIGTERM)]


def test_a_birth_is_a_process_s_own() -> None:
    assert state.born(os.getpid()) == state.born(os.getpid()) != state.born(1)
    assert state.born(2**22 + 1) == ""


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "run.json").write_text("{")

    with pytest.raises(TidelogError, match=r"run\.json is damaged .* remove it"):
        state.look(tmp_path)
