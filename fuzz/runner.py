"""Makes cases and checks them, until the time or the count is up or one fails."""

import logging
import resource
import signal
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Protocol

MEMORY_BYTES_MAX = 4 * 1024 * 1024 * 1024
"""Address space of a fuzzer: a length that is believed blindly asks for more than this."""

CASE_SECONDS_MAX = 10.0
"""A case takes milliseconds; one that takes this long is an endless loop."""


class Broken(AssertionError):
    """A promise does not hold for this case."""


class Fuzzer(Protocol):
    """One kind of input, and what must hold for it."""

    name: str

    def make(self, random: Random) -> bytes:
        """A case."""
        ...

    def check(self, case: bytes) -> int:
        """Feed the case; how many inputs were in it. Any exception is a failure."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a run came to."""

    inputs: int
    cases: int
    seconds: float
    failure: str | None = None
    """Where the failing case is, and what went wrong."""


def watch() -> None:
    """Make the process's alarm interrupt a case."""
    signal.signal(signal.SIGALRM, _hangs)


def _hangs(*_: object) -> None:
    raise Broken(f"the case takes over {CASE_SECONDS_MAX} s")


def limit_memory() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES_MAX, hard))


def run(
    fuzzer: Fuzzer,
    *,
    seed: int,
    seconds: float | None = None,
    cases: int | None = None,
    directory: Path,
    now: Callable[[], float] = time.monotonic,
    watched: bool = False,
) -> Outcome:
    """Check case after case; `seconds` or `cases`, whichever is reached first, ends the run.

    With `watched`, which needs `watch`, a case that never ends fails.
    """
    assert seconds is not None or cases is not None, "a run is bounded"
    current = directory / f"fuzz-{fuzzer.name}-{seed}-current.case"
    began = now()
    inputs = number = 0
    logging.getLogger("tidelog").addHandler(logging.NullHandler())
    while (cases is None or number < cases) and (seconds is None or now() - began < seconds):
        case = fuzzer.make(Random(f"{fuzzer.name}/{seed}/{number}"))
        current.write_bytes(case)
        if watched:
            signal.setitimer(signal.ITIMER_REAL, CASE_SECONDS_MAX)
        try:
            inputs += fuzzer.check(case)
        except Exception:
            kept = current.rename(directory / f"fuzz-{fuzzer.name}-{seed}-{number}.case")
            failure = (
                f"case {number} of seed {seed} fails; the bytes are in {kept}\n"
                f"replay it with: python -m fuzz {fuzzer.name} --replay {kept}\n"
                f"{traceback.format_exc()}"
            )
            return Outcome(inputs=inputs, cases=number + 1, seconds=now() - began, failure=failure)
        number += 1
    current.unlink(missing_ok=True)
    return Outcome(inputs=inputs, cases=number, seconds=now() - began)
