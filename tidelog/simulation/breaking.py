"""What can be broken of a world: processes and machines, the network, disks and clocks.

Every fault is counted by its kind, and noted in the trace. `World` has the table of all of them.
"""

import errno
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias

from tidelog.simulation.disk import SimulatedDisk
from tidelog.simulation.loop import Process, VirtualLoop
from tidelog.simulation.machine import ROOT, Machine
from tidelog.simulation.network import SimulatedNetwork
from tidelog.simulation.trace import Trace

Place: TypeAlias = int | str
"""A node by its number, or any host by its name."""


def _host(place: Place) -> str:
    return f"node-{place}" if isinstance(place, int) else place


class Breakable(ABC):
    """Machines and a network that faults strike; how processes end and begin is the world's part."""

    def __init__(self, loop: VirtualLoop, network: SimulatedNetwork, trace: Trace) -> None:
        self.loop = loop
        self.network = network
        self.trace = trace
        self.machines: dict[int, Machine] = {}
        self.faults: Counter[str] = Counter()
        self.on_new_disk: list[Callable[[Machine], None]] = []
        """Called when a machine has lost all that was on its disk."""
        self._calm_spike_chance = network.spike_chance
        self._spikes = 0

    @abstractmethod
    def after(self, seconds: float, call: Callable[..., object], *args: Any) -> None: ...

    @abstractmethod
    def _end_process(self, machine: Machine, process: Process) -> None: ...

    @abstractmethod
    def _bury(self, machine: Machine, process: Process) -> None: ...

    @abstractmethod
    def _restart_later(self, machine: Machine) -> None: ...

    # Faults: processes and machines.

    def crash(self, node: int) -> None:
        """kill -9."""
        machine = self.machines[node]
        if machine.process is not None:
            self._fault("crash", machine.name)
            self._end_process(machine, machine.process)

    def lose_power(self, node: int) -> None:
        self._lose_power("lose_power", [self.machines[node]])

    def lose_power_everywhere(self) -> None:
        self._lose_power("lose_power_everywhere", list(self.machines.values()))

    def lose_power_in_write(self, node: int, changes: int = 1) -> None:
        """Lose power inside the n-th change to the disk from now."""
        machine = self.machines[node]
        if machine.process is not None:
            self._note(f"plan lose_power_in_write {machine.name} {changes}")
            machine.disk.crash_after(changes)

    def _lose_power_in_write(self, machine: Machine) -> None:
        if machine.process is not None:
            self._lose_power("lose_power_in_write", [machine])
            self._restart_later(machine)

    def _lose_power(self, kind: str, machines: list[Machine]) -> None:
        self._fault(kind, " ".join(machine.name for machine in machines))
        for machine in machines:
            if machine.has_power:
                machine.has_power = False
                process = machine.process
                self.network.on_power_lost(machine.name, [process] if process else [])
                if process is not None:
                    self._bury(machine, process)
                machine.disk.crash()

    def pause(self, node: int, seconds: float | None = None) -> None:
        """Stop the process as SIGSTOP does, for some seconds or until `resume`."""
        machine = self.machines[node]
        if machine.process is not None:
            self._fault("pause", machine.name)
            self.loop.pause(machine.process)
            if seconds is not None:
                self.after(seconds, self._resume, machine, machine.process)

    def resume(self, node: int) -> None:
        machine = self.machines[node]
        if machine.process is not None:
            self._resume(machine, machine.process)

    def _resume(self, machine: Machine, process: Process) -> None:
        if process.is_paused:
            self._note(f"resume {machine.name}")
            self.loop.resume(process)

    # Faults: network.

    def cut(self, source: Place, target: Place, seconds: float | None = None) -> None:
        """Let nothing through from `source` to `target`; the other way stays open."""
        self._fault("cut", f"{_host(source)} to {_host(target)}")
        self.network.cut(_host(source), _host(target))
        if seconds is not None:
            self.after(seconds, self.network.mend, _host(source), _host(target))

    def isolate(self, node: Place, seconds: float | None = None) -> None:
        """Cut a host off from everybody, both ways."""
        self._fault("isolate", _host(node))
        self.network.isolate(_host(node))
        if seconds is not None:
            self.after(seconds, self.network.rejoin, _host(node))

    def clog(
        self, source: Place, target: Place, delay_seconds: float = 2.0, seconds: float | None = None
    ) -> None:
        """Let everything from `source` to `target` take about `delay_seconds`."""
        ways = (_host(source), _host(target))
        self._fault("clog", f"{ways[0]} to {ways[1]} by {delay_seconds:.3f} s")
        self.network.clog(*ways, delay_seconds)
        if seconds is not None:
            self.after(seconds, self.network.clog, *ways, 0.0)

    def reset(self, node: int, chance: float = 1.0) -> None:
        """Reset connections of a node in mid-frame."""
        machine = self.machines[node]
        if machine.process is not None:
            self._fault("reset", machine.name)
            self.network.reset(machine.process, chance=chance)

    def part(self, ways: Sequence[tuple[int, int]], seconds: float) -> None:
        """Let nothing through from one node to another, for each of `ways`: some nodes hear what
        others do not."""
        self._fault("part", ", ".join(f"{source} to {target}" for source, target in ways))
        for source, target in ways:
            self.network.cut(_host(source), _host(target))
            self.after(seconds, self.network.mend, _host(source), _host(target))

    def reset_one_end(self, node: int, chance: float = 1.0) -> None:
        """Leave connections of a node half-open: one end is gone, the other does not know."""
        machine = self.machines[node]
        if machine.process is not None:
            self._fault("reset_one_end", machine.name)
            self.network.reset_one_end(machine.process, chance=chance)

    def forget(self, node: int, chance: float = 1.0) -> None:
        """Lose what is sent on connections of a node from now on, for ever and silently."""
        machine = self.machines[node]
        if machine.process is not None:
            self._fault("forget", machine.name)
            self.network.forget(machine.process, chance=chance)

    def spike(self, chance: float, seconds: float) -> None:
        """Let some of everything sent anywhere come late, for some seconds."""
        self._fault("spike", f"{chance:.2f} for {seconds:.3f} s")
        self._spikes += 1
        self.network.spike_chance = chance
        self.after(seconds, self._end_spike, self._spikes)

    def _end_spike(self, number: int) -> None:
        if number == self._spikes:  # no other began meanwhile
            self.network.spike_chance = self._calm_spike_chance

    # Faults: disks.

    def flip_bits(self, node: int, count: int = 1, suffix: str = ".log", inside: str = "") -> None:
        """Rot bits of files whose names end in `suffix` and whose paths have `inside` in them."""
        machine = self.machines[node]
        flipped = machine.flip_bits(count, suffix, inside)
        if flipped:
            machine.is_damaged = True
            self._fault("flip_bits", f"{machine.name} {dict(flipped)}")

    def misdirect_write(self, node: int) -> None:
        """Let the next write land elsewhere."""
        machine = self.machines[node]
        machine.is_damaged = True
        self._fault("misdirect_write", machine.name)
        machine.disk.misdirect_next_write()

    def fail_disk(self, node: int, what: Literal["reads", "writes", "syncs"], times: int | None = 1) -> None:
        """Answer the next `times` operations with EIO, or all until `heal`."""
        machine = self.machines[node]
        self._fault(f"fail_{what}", f"{machine.name} {times}")
        match what:
            case "reads":
                machine.disk.fail_reads(errno.EIO, times=times)
            case "writes":
                machine.disk.fail_writes(errno.EIO, times=times)
            case "syncs":
                machine.disk.fail_syncs(errno.EIO, times=times)

    def fill_disk(self, node: int, left_bytes: int = 0, seconds: float | None = None) -> None:
        """Leave room for `left_bytes`, for some seconds or until `heal`."""
        disk = self.machines[node].disk
        self._fault("fill_disk", f"{self.machines[node].name} but {left_bytes} bytes")
        disk.capacity_bytes = disk.used_bytes + left_bytes
        if seconds is not None:
            self.after(seconds, self._empty_disk, disk)

    def _empty_disk(self, disk: SimulatedDisk) -> None:
        disk.capacity_bytes = None

    def stall_disk(self, node: int, seconds: float) -> None:
        """Let the disk start nothing for some seconds."""
        pace = self.machines[node].pace
        self._fault("stall_disk", f"{self.machines[node].name} {seconds:.3f} s")
        pace.stalled_until = max(pace.stalled_until, self.loop.now + seconds)

    def slow_disk(self, node: int, factor: float, seconds: float) -> None:
        """Let the disk take longer for everything, for some seconds."""
        pace = self.machines[node].pace
        self._fault("slow_disk", f"{self.machines[node].name} {factor:g} times")
        pace.factor = factor
        self.after(seconds, setattr, pace, "factor", 1.0)

    def write_back(self, node: int) -> None:
        """Let the kernel flush some of what is unsynced, as it may at any time."""
        self._fault("write_back", self.machines[node].name)
        self.machines[node].disk.write_back()

    def replace_disk(self, node: int) -> None:
        """Give a machine that is down an empty disk."""
        machine = self.machines[node]
        assert machine.process is None, "disks are replaced while nobody uses them"
        self._fault("replace_disk", machine.name)
        disk = machine.disk
        with disk.spared():
            for path in [ROOT / name for name in disk.list(ROOT)]:
                (disk.remove_tree if disk.is_directory(path) else disk.remove)(path)
            disk.sync_everything(ROOT)
        for call in self.on_new_disk:
            call(machine)

    # Faults: clocks.

    def skew_clock(self, node: int, rate: float) -> None:
        """Let the monotonic clock, and with it timers, run `rate` times as fast."""
        self._fault("skew_clock", f"{self.machines[node].name} {rate:.4f}")
        self.machines[node].clock.skew(rate)

    def jump_clock(self, node: int, seconds: float) -> None:
        """Set the wall clock forward, or back."""
        self._fault("jump_clock", f"{self.machines[node].name} {seconds:.3f} s")
        self.machines[node].clock.jump_wall_ms(seconds * 1000)

    # Healing.

    def heal(self) -> None:
        """End every fault that lasts. Who is down stays down, and what was lost is lost."""
        self._note("heal")
        self.network.heal()
        self._end_spike(self._spikes)
        for machine in self.machines.values():
            machine.disk.heal()
            machine.disk.capacity_bytes = None
            machine.pace.stalled_until = 0.0
            machine.pace.factor = 1.0
            machine.clock.heal()
            if machine.process is not None:
                self._resume(machine, machine.process)

    def count(self, kind: str) -> None:
        """Count a fault that is made of others, or is none to the world."""
        self.faults[kind] += 1

    def _fault(self, kind: str, what: str) -> None:
        self.faults[kind] += 1
        self._note(f"{kind} {what}")

    def _note(self, what: str) -> None:
        self.trace.note("world", what)
