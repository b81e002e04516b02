"""A whole cluster in one seeded process, told as a story.

    world = World(seed=7, nodes=3)
    world.start()
    world.crash(1)
    world.run(seconds=5)
    world.restart(1)
    world.run_until(lambda: world.is_up(1), seconds_max=10)

Rule 1: the same seed and the same story give the same trace, byte for byte.
Rule 2: invariants are checked while it runs; the first that does not hold ends the run with a
        `Violation`, which says how to see it again.
Rule 3: a fault names a machine, never a process: who comes next on that machine inherits its disk
        and its clocks.

| fault                              | what happens                                             |
|------------------------------------|----------------------------------------------------------|
| crash                              | kill -9; the page cache and the machine live on          |
| lose_power, lose_power_everywhere  | unsynced bytes go, peers hear nothing                    |
| lose_power_in_write                | the same inside one of the next changes to the disk      |
| pause                              | nothing of the process runs; then everything at once     |
| cut, part, isolate, clog, reset,   | see `network.py`                                         |
| reset_one_end, forget              |                                                          |
| flip_bits, misdirect_write         | rot; the machine counts as damaged from then on          |
| replace_disk                       | an empty one, while the machine is down                  |
| fail_disk, fill_disk, stall_disk   | EIO, ENOSPC, and silence, for a while                    |
| skew_clock, jump_clock             | the monotonic clock drifts; the wall clock jumps         |
"""

import asyncio
import errno
import gc
import logging
import random
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from itertools import count
from typing import Any, Final, TypeAlias, TypeVar

from tidelog.errors import TidelogError
from tidelog.host import Host
from tidelog.model import Offset, TopicPartition
from tidelog.simulation.breaking import Breakable
from tidelog.simulation.disk import SimulatedDisk
from tidelog.simulation.loop import MachineClock, Process, VirtualLoop
from tidelog.simulation.machine import Machine, SimulatedNode
from tidelog.simulation.network import HostNetwork, SimulatedNetwork
from tidelog.simulation.trace import Trace

T = TypeVar("T")

NodeFactory: TypeAlias = Callable[[Host, int], SimulatedNode]
_NEVER: Final = 1 << 62
_WHOLE_SWEEP_EVERY: Final = 16
UNEXPECTED_ERROR: Final = "no unexpected error"
DESCRIPTORS: Final = "want of descriptors ends no node"


class Violation(AssertionError):
    """Something happened that must never happen; `replay` is the command that shows it again."""

    def __init__(
        self, name: str, problem: str, *, seed: object, at: float, trace: list[str], replay: str
    ) -> None:
        super().__init__(name, problem)
        self.name = name
        self.problem = problem
        self.seed = seed
        self.at = at
        self.trace = trace
        self.replay = replay

    def __str__(self) -> str:
        tail = "\n".join(f"    {line}" for line in self.trace[-20:])
        return (
            f"{self.name}: {self.problem}\n"
            f"  seed {self.seed} at {self.at:.6f} s; the last lines of the trace:\n{tail}\n"
            f"  to see it again: {self.replay}"
        )


class _Invariant:
    __slots__ = ("check", "due", "every", "name")

    def __init__(self, name: str, check: Callable[[], str | None], every: int) -> None:
        self.name = name
        self.check = check
        self.every = every
        self.due = 0  # at this count of events


class Client:
    """A host that is no node: it has a clock and a network, and nothing befalls it."""

    def __init__(self, name: str, loop: VirtualLoop, network: SimulatedNetwork) -> None:
        self.name = name
        self._loop = loop
        self.process = Process(name, MachineClock(loop), has_threads=True)
        self.network: HostNetwork = network.of(self.process, name)

    def spawn(self, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        """Run `work` as a task of this client; its errors are those of who awaits it."""
        return self._loop.create_task(work, context=self.process.context.copy())


class World(Breakable):
    """Machines, clients and the network between them, on one virtual loop.

    Owned by one thread; closed at the end, by `close` or by leaving its `with`.
    """

    def __init__(
        self,
        seed: object,
        *,
        nodes: int = 3,
        node_factory: NodeFactory | None = None,
        keep_trace: bool = False,
        restart_after_seconds: float | None = None,
        disk_factory: Callable[..., SimulatedDisk] = SimulatedDisk,
        replay: str | None = None,
        **network_options: Any,
    ) -> None:
        """`restart_after_seconds` is the patience of the supervisor of nodes that end themselves.

        `disk_factory` is the seam for a disk that breaks its promises.
        """
        _sweep()
        self.seed = seed
        loop = VirtualLoop()
        trace = Trace(loop, keep=keep_trace)
        self.random = self.fork("world")
        super().__init__(loop, SimulatedNetwork(loop, self.fork("network"), trace, **network_options), trace)
        self.deleted_before: dict[TopicPartition, Offset] = {}
        """What clients were told of deleted records: logs begin there, or later."""
        self.deletions = 0
        """How often that has changed."""
        self.may_lose: set[TopicPartition] = set()
        """Of which an operator has said that somebody may lead who lacks what is committed."""
        self.forced: Counter[TopicPartition] = Counter()
        """How often somebody began to lead because of that."""
        self.clients: dict[str, Client] = {}
        self.honours_stops = True
        """Whether a node that wants to stop is stopped, as by a supervisor."""
        self.on_end: list[Callable[[Machine], None]] = []
        """Called when a process is about to be gone, in whatever way, while it can be looked at."""
        self.on_close: list[Callable[[], None]] = []
        """Called once every process has ended, for what a story keeps outside of the world."""
        self._replay = replay or f"tidelog simulate --start {seed} --seeds 1 --trace"
        self._factory = node_factory or _real_node
        self._restart_after_seconds = restart_after_seconds
        self._keeps_running = False
        self._invariants: list[_Invariant] = []
        self._found: tuple[str, str] | None = None
        self._log = _LogToTrace(self)
        for number in range(1, nodes + 1):
            disk = disk_factory(self.fork(f"disk {number}"))
            machine = Machine(number, self.loop, self.fork(f"machine {number}"), disk)
            disk.on_crash = partial(self._in_world, self._lose_power_in_write, machine)
            self.network.link(machine.name, machine.name)
            self.network._hosts[machine.name] = True
            self.machines[number] = machine
        self.loop.after_event = self._check

    def __enter__(self) -> "World":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<World {self.seed} at {self.now:.6f} s: {list(self.machines.values())}>"

    def fork(self, subsystem: str) -> random.Random:
        """A generator of its own, so that one part's draws do not move another's."""
        return random.Random(f"{self.seed} {subsystem}")

    def close(self) -> None:
        """End every process, without a word."""
        if self.loop.is_closed():
            return
        self.trace.muted = True
        logger = logging.getLogger("tidelog")
        logger.addHandler(self._log)
        try:
            for machine in self.machines.values():
                if machine.process is not None:
                    self._end_process(machine, machine.process)
            for client in self.clients.values():
                self.network.on_killed(client.process)
                self.loop.kill(client.process)
        finally:
            logger.removeHandler(self._log)
        self.loop.close()
        for call in self.on_close:
            call()

    # Time.

    @property
    def now(self) -> float:
        """Seconds since the world began."""
        return self.loop.now

    def run(self, seconds: float) -> None:
        self._run(self.now + seconds)

    def run_until(
        self, condition: Callable[[], object], seconds_max: float, *, name: str = "liveness"
    ) -> None:
        """Run until `condition` holds; a Violation if it does not within `seconds_max`."""
        if not condition() and not self._run(self.now + seconds_max, lambda: bool(condition())):
            self.fail(name, f"not within {seconds_max} s")

    def run_while(
        self, problem: Callable[[], str | None], seconds_max: float, *, name: str = "liveness"
    ) -> None:
        """Run until there is no `problem`; a Violation that says it after `seconds_max`."""
        if problem() and not self._run(self.now + seconds_max, lambda: not problem()):
            self.fail(name, f"after {seconds_max} s: {problem()}")

    def _run(self, until: float, stop: Callable[[], bool] | None = None) -> bool:
        logger = logging.getLogger("tidelog")
        logger.addHandler(self._log)
        try:
            return self.loop.run_events(until, stop)
        finally:
            logger.removeHandler(self._log)

    def do(self, work: Coroutine[Any, Any, T], *, seconds_max: float = 60.0) -> T:
        """Run until `work`, as a task of a client of its own, is done; its result."""
        task = self.client("story").spawn(work)
        self.run_until(task.done, seconds_max)
        return task.result()

    def after(self, seconds: float, call: Callable[..., object], *args: Any) -> None:
        """Call back in the world, where nothing dies."""
        self.loop.at(self.now + seconds, self.loop.world.context, call, *args)

    def _in_world(self, call: Callable[..., object], *args: Any) -> None:
        self.loop.call_soon(call, *args, context=self.loop.world.context)

    # Invariants.

    def invariant(self, name: str, check: Callable[[], str | None], *, every: int = 1) -> None:
        """Call `check` after every `every` events; what it returns, if anything, is the problem.

        The cheap ones after each event, the dear ones less often.
        """
        self._invariants.append(_Invariant(name, check, every))
        self.loop.look_at = 0

    def find(self, name: str, problem: str) -> None:
        """Say what must never happen from inside of a node's event, which nothing must be raised
        in: the run ends after it. The first counts."""
        self._found = self._found or (name, problem)
        self.loop.look_at = 0

    def check_now(self) -> None:
        """Check every invariant, also those whose turn has not come."""
        self._check_found()
        for invariant in self._invariants:
            if (problem := invariant.check()) is not None:
                self.fail(invariant.name, problem)
            self._check_found()

    def _check(self) -> int:
        """Check what is due; the count of events at which something is due next."""
        self._check_found()
        events = self.loop.events
        next_due = events + _NEVER
        for invariant in self._invariants:
            if events >= invariant.due:
                invariant.due = events + invariant.every
                if (problem := invariant.check()) is not None:
                    self.fail(invariant.name, problem)
                self._check_found()
            if invariant.due < next_due:
                next_due = invariant.due
        return next_due

    def _check_found(self) -> None:
        """Errors of callbacks and tasks, and what was found inside of events."""
        if self.loop.errors:
            failure = self.loop.errors[0]
            if isinstance(failure.error, Violation):
                raise failure.error
            try:
                self.fail(
                    UNEXPECTED_ERROR,
                    f"{failure.process}: {type(failure.error).__name__}: {failure.error} ({failure.message})",
                )
            except Violation as violation:
                raise violation from failure.error
        if self._found is not None:
            self.fail(*self._found)

    def delete_before(self, place: TopicPartition, offset: Offset) -> None:
        """A client was told that all records before `offset` are deleted."""
        if offset > self.deleted_before.get(place, 0):
            self.deleted_before[place] = offset
            self.deletions += 1

    def fail(self, name: str, problem: str) -> None:
        """Say that something happened that must never happen."""
        raise Violation(
            name, problem, seed=self.seed, at=self.now, trace=self.trace.tail(), replay=self._replay
        )

    # Nodes.

    def start(self, seconds_max: float = 60.0) -> None:
        """Start every machine's node and wait until all serve."""
        self.restart_everyone()
        self.run_until(self.all_up, seconds_max)

    def is_up(self, node: int) -> bool:
        return self.machines[node].is_up

    def all_up(self, machines: Iterable[Machine] | None = None) -> bool:
        """Whether all nodes serve, or those of `machines`."""
        return all(m.is_up for m in (self.machines.values() if machines is None else machines))

    def node(self, node: int) -> Any:
        """What the factory made, for the life that runs now."""
        found = self.machines[node].node
        assert found is not None, f"node {node} is down"
        return found

    def restart(self, node: int) -> None:
        """Start the node if it is not running; it serves some time later."""
        machine = self.machines[node]
        if machine.process is not None:
            return
        if not machine.has_power:
            machine.reboot(self.loop)
            self.network.on_power_back(machine.name)
        machine.lives += 1
        process = machine.process = Process(machine.name, machine.clock)
        self._note(f"start {machine.name}, life {machine.lives}")
        host = machine.host(self.loop, self.network, process)
        self.loop.create_task(self._live(machine, process, host), context=process.context.copy())

    def restart_everyone(self) -> None:
        for number in self.machines:
            self.restart(number)

    def keep_everyone_running(self) -> None:
        """Start everyone, and from now on also those again who stop or are stopping."""
        self._keeps_running = True
        self.restart_everyone()

    def stop(self, node: int) -> None:
        """Ask a node that serves to stop cleanly; it is down some time later."""
        machine = self.machines[node]
        if machine.process is not None and machine.is_up:
            self._note(f"stop {machine.name}")
            work = self._stop(machine, machine.process)
            self.loop.create_task(work, context=machine.process.context.copy())

    async def _live(self, machine: Machine, process: Process, host: Host) -> None:
        try:
            node = machine.node = self._factory(host, machine.number)
            failure: asyncio.Future[Any] | None = getattr(node, "failure", None)
            if failure is not None:
                failure.add_done_callback(partial(self._failed, machine, process))
            wanted: asyncio.Future[None] | None = getattr(node, "stop_wanted", None)
            if wanted is not None and self.honours_stops:
                wanted.add_done_callback(lambda _: self._in_world(self.stop, machine.number))
            await node.start()
        except (OSError, TidelogError) as error:
            self._exit(machine, process, f"cannot start: {error}")
        except Exception as error:
            self._blame(f"{machine.name} does not start", error)
        else:
            self.trace.note(machine.name, "is up")
            machine.is_up = True

    def _failed(self, machine: Machine, process: Process, done: "asyncio.Future[Any]") -> None:
        error = done.result()
        if isinstance(error, OSError) and error.errno == errno.EMFILE and machine.is_up:
            self.find(DESCRIPTORS, f"{machine.name}: {error}")
        self._exit(machine, process, f"gives up: {error}")

    async def _stop(self, machine: Machine, process: Process) -> None:
        try:
            await machine.node.stop()
        except (OSError, TidelogError) as error:
            self._exit(machine, process, f"ends half-way through its stop: {error}")
        except Exception as error:
            self._blame(f"{machine.name} does not stop", error)
        else:
            wanted = getattr(machine.node, "stop_wanted", None)
            # A supervisor starts it again, unless it was the supervisor who stopped it.
            self._exit(machine, process, "has stopped", restart=wanted is not None and wanted.done())

    def _blame(self, message: str, error: Exception) -> None:
        self.loop.call_exception_handler({"message": message, "exception": error})

    def _exit(self, machine: Machine, process: Process, why: str, *, restart: bool = True) -> None:
        """The process ends itself."""
        self.trace.note(machine.name, why)
        machine.is_up = False
        self._in_world(self._exited, machine, process, restart)

    def _exited(self, machine: Machine, process: Process, restart: bool) -> None:
        if machine.process is process:
            self._end_process(machine, process)
            if restart:
                self._restart_later(machine)

    def _restart_later(self, machine: Machine) -> None:
        """The supervisor's part: one start for one end, however often somebody else helped."""
        if self._restart_after_seconds is not None and not machine.restarts_soon:
            machine.restarts_soon = True
            self.after(self._restart_after_seconds, self._restart_now, machine)

    def _restart_now(self, machine: Machine) -> None:
        machine.restarts_soon = False
        self.restart(machine.number)

    def _end_process(self, machine: Machine, process: Process) -> None:
        """The process is gone and the machine is not."""
        self.network.on_killed(process)
        self._bury(machine, process)
        machine.disk.kill()

    def _bury(self, machine: Machine, process: Process) -> None:
        for call in self.on_end:
            call(machine)
        machine.process = machine.node = None
        machine.is_up = False
        machine.disk.die()
        muted, self.trace.muted = self.trace.muted, True
        try:
            self.loop.kill(process)
        finally:
            self.trace.muted = muted
        if self._keeps_running:
            self._restart_later(machine)

    # Clients.

    def client(self, name: str) -> Client:
        """The client of that name, made when it is first asked for."""
        if name not in self.clients:
            self.clients[name] = Client(name, self.loop, self.network)
        return self.clients[name]


class _LogToTrace(logging.Handler):
    """What the nodes log belongs to the history; an error that they did not expect fails it."""

    def __init__(self, world: World) -> None:
        super().__init__(logging.WARNING)
        self._world = world
        self._thread = threading.get_ident()

    def emit(self, record: logging.LogRecord) -> None:
        if record.thread != self._thread:
            return  # of something real that runs beside the world
        message = record.getMessage()
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:
            message += f" ({type(error).__name__}: {error})"
        self._world.trace.note(self._world.loop.process.name, f"{record.levelname.lower()}: {message}")
        if isinstance(error, Exception) and not isinstance(error, OSError | TidelogError):
            self._world._blame(message, error)


_sweeps = count()


def _sweep() -> None:
    """Collect what earlier worlds left: it must not be finalised in the middle of this one.

    What stays then is no world's but the program's, and the collector leaves it out from now on.
    Every so often it is looked at, too, for what somebody kept, and kept no longer.
    """
    if next(_sweeps) % _WHOLE_SWEEP_EVERY == 0:
        gc.unfreeze()
    gc.collect()
    gc.freeze()


def _real_node(host: Host, number: int) -> SimulatedNode:
    from tidelog.simulation.nodes import real_node

    return real_node(host, number)
