"""Many seeds, played by worker processes.

Rule 1: workers are started with a fixed PYTHONHASHSEED, so that a seed's history is the same in
        all of them, on every day.
Rule 2: results come in the order of their seeds, whoever was faster; so does the hash of all.
"""

import multiprocessing
import os
import signal
import time
from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from typing import Any, Final

from tidelog.simulation.met import Met

_HASH_SEED: Final = "PYTHONHASHSEED"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A violation, as one may send it about."""

    seed: int
    name: str
    problem: str
    at_seconds: float
    trace: list[str]
    replay: str
    faults: list[str]
    """The plan that led here, shrunk or not."""
    shrunk: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """What came of one seed."""

    seed: int
    events: int
    cpu_seconds: float
    simulated_seconds: float
    operations: int
    acknowledged: int
    faults: dict[str, int]
    trace_hash: str
    trace: list[str]
    finding: Finding | None
    met: Met


@dataclass(slots=True)
class Totals:
    """What came of all seeds so far."""

    seeds: int = 0
    events: int = 0
    cpu_seconds: float = 0.0
    simulated_seconds: float = 0.0
    operations: int = 0
    acknowledged: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)
    met: Met | None = None
    _hash: Any = field(default_factory=lambda: blake2b(digest_size=16))

    def add(self, played: Played) -> None:
        self.seeds += 1
        self.events += played.events
        self.cpu_seconds += played.cpu_seconds
        self.simulated_seconds += played.simulated_seconds
        self.operations += played.operations
        self.acknowledged += played.acknowledged
        self.faults.update(played.faults)
        self._hash.update(f"{played.seed} {played.trace_hash}\n".encode())
        if self.met is None:
            self.met = played.met
        else:
            self.met.add(played.met)
        if played.finding is not None:
            self.findings.append(played.finding)

    @property
    def events_per_second(self) -> float:
        """Of one core: by the time that the workers' processors were busy."""
        return self.events / self.cpu_seconds if self.cpu_seconds else 0.0

    @property
    def trace_hash(self) -> str:
        return str(self._hash.hexdigest())


def replay_command(seed: int, kinds: Collection[str] | None, story: str | None = None) -> str:
    options = "" if kinds is None else f" --faults {','.join(kinds) or 'none'}"
    options += "" if story is None else f" --story {story}"
    return f"tidelog simulate --start {seed} --seeds 1{options} --trace"


def play_seed(
    seed: int, *, kinds: Collection[str] | None = None, keep: bool = False, story: str | None = None
) -> Played:
    """Play one seed here and now."""
    from tidelog.simulation.swarm import make_plan, play

    began = time.process_time()
    plan = make_plan(seed, kinds=kinds, story=story)
    outcome = play(plan, keep_trace=keep, replay=replay_command(seed, kinds, story))
    finding = None
    if (violation := outcome.violation) is not None:
        finding = Finding(
            seed=seed,
            name=violation.name,
            problem=violation.problem,
            at_seconds=violation.at,
            trace=violation.trace[-20:],
            replay=violation.replay,
            faults=[str(fault) for fault in plan.faults],
        )
    return Played(
        seed=seed,
        events=outcome.events,
        cpu_seconds=time.process_time() - began,
        simulated_seconds=outcome.simulated_seconds,
        operations=outcome.operations,
        acknowledged=outcome.acknowledged,
        faults=dict(outcome.faults),
        trace_hash=outcome.trace_hash,
        trace=outcome.trace,
        finding=finding,
        met=outcome.met,
    )


def shrink_seed(seed: int, *, kinds: Collection[str] | None = None, story: str | None = None) -> Finding:
    """The fewest faults with which a seed that fails still fails."""
    from tidelog.simulation.shrink import shrink
    from tidelog.simulation.swarm import make_plan, play

    replay = replay_command(seed, kinds, story)
    whole = make_plan(seed, kinds=kinds, story=story)
    plan, outcome = shrink(whole, partial(play, replay=replay))
    violation = outcome.violation
    assert violation is not None
    return Finding(
        seed=seed,
        name=violation.name,
        problem=violation.problem,
        at_seconds=violation.at,
        trace=violation.trace[-20:],
        replay=replay,
        shrunk=True,
        faults=[str(fault) for fault in plan.faults],
    )


class Campaign:
    """Worker processes that play seeds. Close it, or they stay."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        with _fixed_hash_seed():
            self._pool = ProcessPoolExecutor(
                workers, multiprocessing.get_context("spawn"), initializer=_leave_ctrl_c_alone
            )
            self._pool.submit(os.getpid).result()  # the first is started now, with that seed

    def __enter__(self) -> "Campaign":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def play(
        self,
        seeds: Iterable[int],
        *,
        kinds: Collection[str] | None = None,
        keep: bool = False,
        story: str | None = None,
    ) -> Iterator[Played]:
        """What comes of each seed, in order. Who stops asking stops the campaign."""
        waiting: deque[Future[Played]] = deque()
        for seed in seeds:
            with _fixed_hash_seed():  # a further worker may be started now
                waiting.append(self._pool.submit(play_seed, seed, kinds=kinds, keep=keep, story=story))
            if len(waiting) > 2 * self._workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()

    def shrink(self, seed: int, *, kinds: Collection[str] | None = None, story: str | None = None) -> Finding:
        return self._pool.submit(shrink_seed, seed, kinds=kinds, story=story).result()

    def close(self) -> None:
        """End the workers at once, whatever they are at."""
        processes = list((self._pool._processes or {}).values())
        self._pool.shutdown(wait=False, cancel_futures=True)
        for process in processes:
            process.terminate()
        for process in processes:
            process.join()


def _leave_ctrl_c_alone() -> None:
    """The parent hears of it, and ends its workers."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


@contextmanager
def _fixed_hash_seed() -> Iterator[None]:
    before = os.environ.get(_HASH_SEED)
    os.environ[_HASH_SEED] = "0"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_HASH_SEED]
        else:
            os.environ[_HASH_SEED] = before
