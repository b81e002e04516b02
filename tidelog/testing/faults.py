"""What can happen to the nodes of a cluster, from a seed.

    with cluster.faults.cut(1, 2):
        ...                                  # nodes 1 and 2 do not hear each other
    with cluster.faults.storm():
        ...                                  # one thing after the other, all drawn from the seed

| fault                  | what happens                                                        |
|------------------------|---------------------------------------------------------------------|
| cut, isolate           | silence: nothing passes, nothing is refused; held until it is healed|
| delay                  | everything arrives, later                                           |
| drop                   | now and then a piece of data breaks the connection that carries it  |
| reset                  | the connections that there are break, once                          |
| slow_disk              | work on the disk takes longer                                       |
| fail_disk, fill_disk   | it fails: EIO ends the node, as it would; a full disk is waited for |
| skew_clock, jump_clock | the monotonic clock drifts; the wall clock is wrong                 |

Rule 1: a fault lasts until it is healed: by `heal`, or by leaving its `with`, or with the cluster.
        Faults add up.
Rule 2: what is drawn comes from the seed, so a storm has one plan per seed. When its faults meet
        what the nodes do is a matter of real time: the same seed makes a failure likely again, not
        certain. The simulator is for certainty.
Rule 3: what was done is written down in `history`, to be shown when a test fails.
"""

import errno
import math
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Self, TypeAlias

from tidelog.model import NodeId
from tidelog.testing.disk import DiskTrouble, kinds_of
from tidelog.testing.wires import CLIENTS, Place, Way, WayTrouble

if TYPE_CHECKING:
    from tidelog.testing.cluster import Cluster
    from tidelog.testing.machine import Machine
    from tidelog.testing.node import InProcessNode

Seconds: TypeAlias = float | tuple[float, float]
"""So many, or drawn evenly from least to most."""

STORM: Final = ("cut", "isolate", "delay", "drop", "slow_disk", "skew_clock", "kill")
_JOIN_SECONDS_MAX: Final = 90.0


class Fault:
    """Something that is wrong, until it is healed."""

    def __init__(self, faults: "Faults", what: str, undo: Sequence[Callable[[], object]]) -> None:
        self._faults = faults
        self.what = what
        self.undo = undo

    def __repr__(self) -> str:
        return f"<Fault: {self.what}{'' if self.is_active else ', healed'}>"

    @property
    def is_active(self) -> bool:
        return self in self._faults.active

    def heal(self) -> None:
        """Make it right again; nothing happens if it is."""
        self._faults.heal(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.heal()


class Faults:
    """The faults of one cluster. Its methods are for threads of tests."""

    def __init__(self, cluster: "Cluster", seed: object = None) -> None:
        self._cluster = cluster
        self.active: dict[Fault, None] = {}
        self._rates: dict[NodeId, list[float]] = {}
        self.begin(random.SystemRandom().getrandbits(32) if seed is None else seed)

    def begin(self, seed: object) -> None:
        """Draw from another seed from now on, and begin another history."""
        self.seed = seed
        self.random = random.Random(f"{seed} test")
        """For what the test itself draws."""
        self.history: list[str] = []
        """What was done, with the seconds since the beginning."""
        self._storms = 0
        self._began_at = time.monotonic()
        self._cluster.reseed(seed)

    def __repr__(self) -> str:
        return f"<Faults from seed {self.seed}: {[fault.what for fault in self.active]}>"

    # The network.

    def cut(
        self, source: "Place | InProcessNode", target: "Place | InProcessNode", *, both_ways: bool = True
    ) -> Fault:
        """Let nothing pass from `source` to `target`, nor the other way round."""
        ways = self._ways(source, target, both_ways)
        return self._trouble(f"cut {_between(source, target, both_ways)}", ways, is_cut=True)

    def isolate(self, node: "NodeId | InProcessNode", *, clients: bool = True) -> Fault:
        """Cut a node off from all others, and from its clients."""
        me = _place(node)
        others: list[Place] = [other for other in self._cluster.ids if other != me]
        others += [CLIENTS] if clients else []
        ways = [way for other in others for way in self._ways(me, other, True)]
        what = f"isolate node {me}" + ("" if clients else ", not from its clients")
        return self._trouble(what, ways, is_cut=True)

    def delay(
        self,
        source: "Place | InProcessNode",
        target: "Place | InProcessNode",
        seconds: Seconds,
        *,
        both_ways: bool = True,
    ) -> Fault:
        """Let everything from `source` to `target` take so much longer, and the other way, too."""
        least, most = seconds if isinstance(seconds, tuple) else (seconds, seconds)
        what = f"delay of {least:.3g} to {most:.3g} s {_between(source, target, both_ways)}"
        return self._trouble(what, self._ways(source, target, both_ways), seconds=(least, most))

    def drop(
        self,
        source: "Place | InProcessNode",
        target: "Place | InProcessNode",
        chance: float,
        *,
        both_ways: bool = True,
    ) -> Fault:
        """Let a piece of data break its connection, by this chance."""
        what = f"drop by a chance of {chance:.3g} {_between(source, target, both_ways)}"
        return self._trouble(what, self._ways(source, target, both_ways), break_chance=chance)

    def reset(self, source: "Place | InProcessNode", target: "Place | InProcessNode") -> int:
        """Break the connections that there are between both, once; how many."""
        ways = self._cluster.ways
        found = self._ways(source, target, True)
        count = self._cluster.loop.call(lambda: ways.break_all(way for way in found))
        self._note(f"reset {count} connections {_between(source, target, True)}")
        return count

    def _ways(
        self, source: "Place | InProcessNode", target: "Place | InProcessNode", both_ways: bool
    ) -> list[Way]:
        one, other = self._known(source), self._known(target)
        between = self._cluster.ways.between
        ways = [between(one, other)]
        return [*ways, between(other, one)] if both_ways else ways

    def _known(self, place: "Place | InProcessNode") -> Place:
        found = _place(place)
        if found != CLIENTS and found not in self._cluster.ids:
            raise ValueError(
                f"there is no {found!r}: it may be one of the nodes {self._cluster.ids}, or CLIENTS"
            )
        return found

    def _trouble(
        self,
        what: str,
        ways: Iterable[Way],
        *,
        is_cut: bool = False,
        seconds: tuple[float, float] = (0.0, 0.0),
        break_chance: float = 0.0,
    ) -> Fault:
        trouble = WayTrouble(is_cut=is_cut, seconds=seconds, break_chance=break_chance)
        found = list(ways)
        return self._begin(
            what,
            [lambda way=way: way.add(trouble) for way in found],  # type: ignore[misc]
            [lambda way=way: way.remove(trouble) for way in found],  # type: ignore[misc]
        )

    # Disks.

    def slow_disk(
        self, node: "NodeId | InProcessNode", seconds: float, *, kinds: Iterable[str] = ("write", "sync")
    ) -> Fault:
        """Let every piece of work of these kinds (read, write, sync) take so much longer."""
        trouble = DiskTrouble(kinds=kinds_of(kinds), seconds=seconds)
        return self._trouble_disk(f"slow disk of node {_place(node)}, {seconds:.3g} s", node, trouble)

    def fail_disk(
        self, node: "NodeId | InProcessNode", *, kinds: Iterable[str] = ("sync",), code: int = errno.EIO
    ) -> Fault:
        """Let the disk fail. A node ends with its disk: start it again once this is healed."""
        trouble = DiskTrouble(kinds=kinds_of(kinds), code=code)
        name = errno.errorcode.get(code, str(code))
        return self._trouble_disk(f"disk of node {_place(node)} fails, {name}", node, trouble)

    def fill_disk(self, node: "NodeId | InProcessNode") -> Fault:
        """Let the disk be full: nothing can be written. The node goes on when there is room."""
        trouble = DiskTrouble(kinds=kinds_of(["write"]), code=errno.ENOSPC)
        return self._trouble_disk(f"disk of node {_place(node)} is full", node, trouble)

    def _trouble_disk(self, what: str, node: "NodeId | InProcessNode", trouble: DiskTrouble) -> Fault:
        disk = self._machine(node).disk
        return self._begin(what, [lambda: disk.add(trouble)], [lambda: disk.remove(trouble)])

    # Clocks.

    def skew_clock(self, node: "NodeId | InProcessNode", rate: float) -> Fault:
        """Let the monotonic clock run `rate` times as fast: leases end early, or late."""
        if rate <= 0:
            raise ValueError(f"a clock at {rate:g} times its speed; it cannot stand or go back")
        clock = self._machine(node).clock
        rates = self._rates.setdefault(self._machine(node).node, [])

        def run() -> None:
            rates.append(rate)
            clock.run_at(math.prod(rates))

        def undo() -> None:
            rates.remove(rate)
            clock.run_at(math.prod(rates))

        return self._begin(f"clock of node {_place(node)} at {rate:.3g} times", [run], [undo])

    def jump_clock(self, node: "NodeId | InProcessNode", seconds: float) -> Fault:
        """Set the wall clock forward, or back with negative seconds."""
        clock, ms = self._machine(node).clock, round(seconds * 1000)

        def set_by(ms: int) -> None:
            clock.ahead_ms += ms

        what = f"clock of node {_place(node)} jumps by {seconds:g} s"
        return self._begin(what, [lambda: set_by(ms)], [lambda: set_by(-ms)])

    def _machine(self, node: "NodeId | InProcessNode") -> "Machine":
        place = self._known(node)
        if place == CLIENTS:
            raise ValueError("clients have disks and clocks of their own")
        return self._cluster.machine(int(place))

    # All of them.

    def heal(self, fault: Fault | None = None) -> None:
        """Make it right again, or everything."""
        faults = [*self.active] if fault is None else [fault]
        for one in faults:
            if one in self.active:
                self._cluster.loop.call(self._undo, one)
                self._note(f"healed: {one.what}")

    def forget(self) -> None:
        """The cluster ends; called where its nodes run."""
        for fault in list(self.active):
            self._undo(fault)

    def _undo(self, fault: Fault) -> None:
        if fault in self.active:
            del self.active[fault]
            for undo in fault.undo:
                undo()

    def _begin(
        self, what: str, do: Sequence[Callable[[], object]], undo: Sequence[Callable[[], object]]
    ) -> Fault:
        fault = Fault(self, what, undo)

        def begin() -> None:
            self.active[fault] = None
            for one in do:
                one()

        self._cluster.loop.call(begin)
        self._note(what)
        return fault

    def _note(self, what: str) -> None:
        self.history.append(f"{time.monotonic() - self._began_at:8.3f} s  {what}")

    # A storm.

    @contextmanager
    def storm(
        self,
        kinds: Sequence[str] = STORM,
        *,
        calm_seconds: tuple[float, float] = (0.05, 0.3),
        fault_seconds: tuple[float, float] = (0.1, 0.8),
    ) -> Iterator[None]:
        """While this lasts let one thing after the other happen, each healed before the next.

        Most of the nodes are well at any moment, so acknowledged writes go on, with pauses.
        """
        if unknown := set(kinds) - set(STORM):
            raise ValueError(f"no storm has {', '.join(sorted(unknown))}; only {', '.join(STORM)}")
        self._storms += 1
        storm = _Storm(
            self,
            self._cluster,
            random.Random(f"{self.seed} storm {self._storms}"),
            kinds,
            calm_seconds,
            fault_seconds,
        )
        storm.start()
        try:
            yield
        finally:
            storm.end()


class _Storm:
    """Draws faults, and lets them happen, in a thread."""

    def __init__(
        self,
        faults: Faults,
        cluster: "Cluster",
        generator: random.Random,
        kinds: Sequence[str],
        calm_seconds: tuple[float, float],
        fault_seconds: tuple[float, float],
    ) -> None:
        self._faults = faults
        self._cluster = cluster
        self._random = generator
        self._kinds = kinds
        self._calm_seconds = calm_seconds
        self._fault_seconds = fault_seconds
        self._over = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="tidelog-storm", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def end(self) -> None:
        """Let it calm down; what went wrong in it is raised here."""
        self._over.set()
        self._thread.join(_JOIN_SECONDS_MAX)
        assert not self._thread.is_alive(), "a fault is not healed"
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            while not self._over.wait(self._random.uniform(*self._calm_seconds)):
                self._strike()
        except BaseException as error:
            self._error = error

    def _strike(self) -> None:
        """Draw always as much, whatever comes of it, so that the plan stays the same."""
        kind = self._random.choice(self._kinds)
        nodes = self._random.sample(self._cluster.ids, len(self._cluster))
        seconds = self._random.uniform(*self._fault_seconds)
        strength = self._random.random()
        node, other = nodes[0], nodes[-1]
        if kind == "kill":
            self._kill(node, seconds)
            return
        faults = self._faults
        makes: dict[str, Callable[[], Fault]] = {
            "cut": lambda: faults.cut(node, other),
            "isolate": lambda: faults.isolate(node),
            "delay": lambda: faults.delay(node, other, (0.0, 0.1 * strength)),
            "drop": lambda: faults.drop(node, other, 0.2 * strength),
            "slow_disk": lambda: faults.slow_disk(node, 0.05 * strength),
            "skew_clock": lambda: faults.skew_clock(node, 0.5 + strength),
        }
        with makes[kind]():
            self._over.wait(seconds)

    def _kill(self, node: NodeId, seconds: float) -> None:
        victim = self._cluster[node]
        if not victim.is_running:
            return
        self._faults._note(f"kill node {node}")
        victim.kill()
        self._over.wait(seconds)
        victim.start()
        self._faults._note(f"started node {node}")


def _place(place: "Place | InProcessNode") -> Place:
    return place if isinstance(place, int | str) else place.id


def _between(source: "Place | InProcessNode", target: "Place | InProcessNode", both_ways: bool) -> str:
    if both_ways:
        return f"between {_place(source)} and {_place(target)}"
    return f"from {_place(source)} to {_place(target)}"
