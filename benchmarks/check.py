"""`make bench-check BASE=COMMIT`: whether this tree costs more than an earlier commit, in turns.

Rule 1: both run the whole time, one node each, with the same dependencies, and only one of them is
        loaded; each case is measured of both before the next, and who comes first alternates.
Rule 2: what counts is the CPU time of the node per request, or per record: rates on a machine that is
        not quiet say more about others. They are printed beside it.
Rule 3: it fails on a loss beyond the noise: every round of this tree was dearer than every round of
        the other, and the medians are more than `LOSS_MAX` apart.
"""

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

from benchmarks.__main__ import _machine, _start_nodes_as_users_do
from benchmarks.bench import Bench, ask_node, running
from benchmarks.closed import http_request
from benchmarks.closed_load import HTTP, ClosedLoad, Program, spread
from benchmarks.http_requests import KEYS, Nodes
from benchmarks.process import cpu_seconds
from benchmarks.request_sides import FILL, GET, PUBLISH, PUT, TAKE, OurRequests
from tests.support.node import TIDELOG, NodeProcess
from tidelog.client.kafka import KafkaClient
from tidelog.client.load import Load, LoadGenerator

NAME: Final = "bench-check"
ROOT: Final = Path(__file__).parents[1]
LOSS_MAX: Final = 1.05
ROUNDS: Final = 5
FILL_CONNECTIONS: Final = 16
TOPIC: Final = "produced"
HEALTH: Final = "GET /health/live"
PRODUCE: Final = {size: f"produce, {size // 1000} KB batches" for size in (16_000, 1_000_000)}
RECORD_BYTES: Final = 100
QUEUES: Final = 6


@dataclass(frozen=True, slots=True)
class Cost:
    """What one run took."""

    cpu_us: float
    """Of the node, per request; of a produce, per record."""
    per_second: float


class Tree:
    """A node of one tree."""

    def __init__(self, node: NodeProcess, load: ClosedLoad, seconds: float) -> None:
        self._node = node
        self._load = load
        self._seconds = seconds
        port = int(node.http.rpartition(":")[2])
        nodes = Nodes(name="", bootstrap=node.bootstrap, http_ports=[port], pids=[node.pid])
        self._requests = OurRequests(nodes)
        self._health = Program([http_request("GET", "/health/live")])
        self._port = port
        talks = self._requests.talks(PUT, 1)
        assert talks is not None, "it has keys"
        load.ask(HTTP, talks, seconds=60.0, turns_max=KEYS)
        ask_node(node, lambda client: client.create_topic(TOPIC, partitions=1))

    def ask(self, kind: str, connections: int) -> Cost:
        talks = (
            spread([self._port], self._health, connections)
            if kind == HEALTH
            else self._requests.talks(kind, connections)
        )
        assert talks is not None, "every kind is known here"
        turns_max = 1 << 40
        if kind == TAKE:
            turns_max = int(500 * self._seconds)
            self._fill(turns_max + FILL_CONNECTIONS)
        began = cpu_seconds(self._node.pid)
        timed = self._load.ask(HTTP, talks, seconds=self._seconds, turns_max=turns_max)
        cpu = cpu_seconds(self._node.pid) - began
        return Cost(cpu / timed.requests * 1e6, timed.per_second)

    def _fill(self, each: int) -> None:
        """Every queue may be the one that all is taken from."""
        talks = self._requests.talks(FILL, FILL_CONNECTIONS)
        assert talks is not None, "it has queues"
        self._load.ask(HTTP, talks, seconds=120.0, turns_max=QUEUES * (each + FILL_CONNECTIONS))

    def produce(self, batch_bytes: int) -> Cost:
        async def work(client: KafkaClient) -> Cost:
            load = Load(topic=TOPIC, record_bytes=RECORD_BYTES, batch_bytes=batch_bytes)
            generator = LoadGenerator(client, load)
            began = cpu_seconds(self._node.pid)
            produced = await generator.produce(self._seconds)
            cpu = cpu_seconds(self._node.pid) - began
            return Cost(cpu / produced.records * 1e6, produced.records / produced.seconds)

        return ask_node(self._node, work)


def cases() -> dict[str, Callable[[Tree], Cost]]:
    found: dict[str, Callable[[Tree], Cost]] = {}
    for kind in (HEALTH, PUT, GET, PUBLISH, TAKE):
        for connections in (1, 16):
            found[f"{kind}, {connections}"] = lambda tree, kind=kind, count=connections: tree.ask(kind, count)  # type: ignore[misc]
    for size, name in PRODUCE.items():
        found[name] = lambda tree, size=size: tree.produce(size)  # type: ignore[misc]
    return found


def is_loss(ours: Sequence[float], theirs: Sequence[float]) -> bool:
    """Whether `ours` cost more, beyond the noise."""
    return min(ours) > max(theirs) and median(ours) > LOSS_MAX * median(theirs)


def main() -> int:
    arguments = _parse()
    with tempfile.TemporaryDirectory(prefix="tidelog-check-", ignore_cleanup_errors=True) as directory:
        bench = Bench(directory=Path(directory))
        _start_nodes_as_users_do(bench.directory)
        print(_machine(bench), end="\n\n", flush=True)
        load = ClosedLoad(bench.directory)
        with ExitStack() as stack:
            base = stack.enter_context(_checked_out(arguments.base, bench.directory / "base"))
            trees = {}
            for root in (ROOT, base):
                program = f"import sys; sys.path.insert(0, {str(root)!r}); {TIDELOG}"
                node = stack.enter_context(running(NodeProcess(bench.fresh("node"), program=program)))
                trees[root] = Tree(node, load, arguments.seconds)
            losses = _compare(trees[ROOT], trees[base], arguments.rounds)
    if losses:
        print(f"{NAME}: dearer than {arguments.base}: {', '.join(losses)}", file=sys.stderr)
    return 1 if losses else 0


def _compare(ours: Tree, theirs: Tree, rounds: int) -> list[str]:
    """Print every case; those that became dearer."""
    losses = []
    for name, measure in cases().items():
        found: Mapping[Tree, list[Cost]] = {ours: [], theirs: []}
        for number in range(rounds):
            for tree in (ours, theirs) if number % 2 == 0 else (theirs, ours):
                found[tree].append(measure(tree))
        here, there = ([one.cpu_us for one in found[tree]] for tree in (ours, theirs))
        rates = [median([one.per_second for one in found[tree]]) for tree in (ours, theirs)]
        verdict = "DEARER" if is_loss(here, there) else "cheaper" if is_loss(there, here) else ""
        print(
            f"{name:24} {median(here):8.2f} us ({min(here):.2f} .. {max(here):.2f})"
            f"  base {median(there):8.2f} us ({min(there):.2f} .. {max(there):.2f})"
            f"  {median(here) / median(there):5.2f}x  {rates[0]:,.0f}/s, base {rates[1]:,.0f}/s  {verdict}",
            flush=True,
        )
        if verdict == "DEARER":
            losses.append(name)
    return losses


@contextmanager
def _checked_out(commit: str, path: Path) -> Iterator[Path]:
    """That commit in a work tree of its own."""
    git = ["git", "-C", str(ROOT), "worktree"]
    subprocess.run([*git, "add", "--quiet", "--detach", str(path), commit], check=True)
    try:
        # As the other tree's are by now: the first start would take as long as that.
        subprocess.run([sys.executable, "-m", "compileall", "-q", str(path / "tidelog")], check=True)
        yield path
    finally:
        subprocess.run([*git, "remove", "--force", str(path)], check=True)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.check",
        description="Measure this tree and an earlier commit in turns; fail if it became dearer.",
    )
    parser.add_argument("base", metavar="COMMIT", help="what it is compared with")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="default: %(default)s")
    parser.add_argument("--seconds", type=float, default=2.0, help="of each run (default: %(default)s)")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
