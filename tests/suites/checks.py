"""How a suite runs: checks in Python, or a program of its own that prints one JSON line each."""

import json
import subprocess
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.suites.report import Check
from tests.support.node import NodeProcess

COMMAND_SECONDS_MAX: Final = 120.0
PROGRAM_SECONDS_MAX: Final = 600.0


@dataclass(frozen=True, slots=True)
class Context:
    """What a suite may use: a fresh node, and a directory that goes afterwards."""

    node: NodeProcess
    directory: Path

    @property
    def bootstrap(self) -> str:
        return self.node.bootstrap


class Skipped(Exception):
    """The check does not apply; the message says why."""


@dataclass(frozen=True, slots=True)
class Ran:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()


def command(
    words: Sequence[str],
    *,
    given: str | bytes = b"",
    code: int | None = 0,
    seconds_max: float = COMMAND_SECONDS_MAX,
    environment: Mapping[str, str] | None = None,
) -> Ran:
    """Run a command to its end; `code` is the exit code it must have, None for any."""
    given = given.encode() if isinstance(given, str) else given
    try:
        done = subprocess.run(words, input=given, capture_output=True, timeout=seconds_max, env=environment)
    except subprocess.TimeoutExpired as error:
        out, err = ((part or b"").decode(errors="replace") for part in (error.stdout, error.stderr))
        raise AssertionError(
            f"still running after {seconds_max:.0f} s\n{out[-1500:]}\n{err[-1500:]}"
        ) from None
    ran = Ran(done.returncode, done.stdout.decode(), done.stderr.decode(errors="replace"))
    if code is not None:
        assert ran.code == code, f"exit code {ran.code}, not {code}\n{ran.out[-1500:]}\n{ran.err[-1500:]}"
    return ran


def run_checks(checks: Sequence[Callable[..., None]], *arguments: Any) -> Iterator[Check]:
    """Run each check; its name is its function's, read aloud."""
    for check in checks:
        name = check.__name__.strip("_").replace("_", " ")
        started = time.monotonic()
        try:
            check(*arguments)
        except Skipped as skipped:
            yield Check(name=name, outcome="skipped", detail=str(skipped))
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)
            line = next((f.line for f in reversed(where) if f.name == check.__name__), "") or ""
            yield Check(
                name=name,
                outcome="failed",
                seconds=time.monotonic() - started,
                detail=f"{type(error).__name__}: {error}\nat: {line}",
            )
        else:
            yield Check(name=name, outcome="passed", seconds=time.monotonic() - started)


def run_program(words: Sequence[str], log: Path) -> Iterator[Check]:
    """Run a program that prints a JSON line for each check and `{"done": true}` at its end."""
    checks: list[Check] = []
    is_done = False
    with log.open("wb") as errors:
        try:
            done = subprocess.run(words, stdout=subprocess.PIPE, stderr=errors, timeout=PROGRAM_SECONDS_MAX)
            out, ending = done.stdout, f"exit code {done.returncode}"
        except subprocess.TimeoutExpired as error:
            out, ending = error.stdout or b"", f"still running after {PROGRAM_SECONDS_MAX:.0f} s"
    for line in out.decode(errors="replace").splitlines():
        if not line.startswith("{"):
            continue
        fields = json.loads(line)
        if fields.get("done"):
            is_done = True
        else:
            checks.append(Check(**fields))
    yield from checks
    if not is_done:
        last = log.read_text(errors="replace")[-3000:]
        yield Check(name="the program ends", outcome="failed", detail=f"{ending}\n{last}")
