"""One node's hardware: what outlives the processes that run on it."""

import random
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final, Protocol

from tidelog.errors import StorageError
from tidelog.host import Host, Path, read_file
from tidelog.log.log import Log
from tidelog.model import Offset
from tidelog.records import BatchHeader, crc_matches, iterate_batches
from tidelog.simulation.disk import SimulatedDisk
from tidelog.simulation.loop import START_WALL_MS, MachineClock, Process, VirtualLoop
from tidelog.simulation.network import SimulatedNetwork
from tidelog.simulation.offload import DiskPace, VirtualOffload

ROOT: Final = Path("/")
_READ_BYTES: Final = 1 << 20


class SimulatedNode(Protocol):
    """What a world runs on its machines.

    If it has a future `failure`, the process ends at once when that is done.
    """

    async def start(self) -> None:
        """Return when it serves. OSError and TidelogError end the process; others are bugs."""
        ...

    async def stop(self) -> None: ...


class Machine:
    """A disk, two clocks, a place on the network, and the process that runs now, if any."""

    def __init__(self, number: int, loop: VirtualLoop, generator: random.Random, disk: SimulatedDisk) -> None:
        self.number = number
        self.name = f"node-{number}"
        self.disk = disk
        self.random = generator
        self.pace = DiskPace(random.Random(f"{generator.random()} pace"))
        self.clock = self._boot_clock(loop)
        self.process: Process | None = None
        self.node: Any = None
        """What the factory made for the process that runs; None while there is none."""
        self.lives = 0
        self.has_power = True
        self.is_up = False
        """Whether the node serves: its `start` has returned."""
        self.is_damaged = False
        self.is_rotten = False
        """Whether bits of its sealed segments have flipped; they may be healed since."""
        """Whether the disk has lost or changed what it had promised to keep."""
        self.restarts_soon = False

    def __repr__(self) -> str:
        state = "up" if self.is_up else "starting" if self.process else "down"
        return f"<{self.name} {state}{'' if self.has_power else ', no power'}, life {self.lives}>"

    @property
    def is_running(self) -> bool:
        return self.process is not None

    @property
    def is_paused(self) -> bool:
        return self.process is not None and self.process.is_paused

    def host(self, loop: VirtualLoop, network: SimulatedNetwork, process: Process) -> Host:
        """For one life of the node."""
        return Host(
            clock=self.clock,
            disk=self.disk,
            offload=VirtualOffload(loop, process, self.pace),
            network=network.of(process, self.name),
            random=random.Random(f"{self.random.random()} host"),
        )

    def reboot(self, loop: VirtualLoop) -> None:
        """Have power again. The monotonic clock begins anew, and the wall clock's battery held."""
        self.has_power = True
        before = self.clock
        self.clock = self._boot_clock(loop, before.wall_ms())
        self.clock.follow(before)

    def _boot_clock(self, loop: VirtualLoop, wall_ms: float = START_WALL_MS) -> MachineClock:
        # No two machines count from the same moment, so that nobody compares their counts.
        return MachineClock(loop, seconds=self.random.uniform(1, 100_000), wall_ms=wall_ms)

    def files(self, path: Path = ROOT) -> list[Path]:
        """Every file on the disk, sorted."""
        found: list[Path] = []
        with self.disk.spared():
            for name in self.disk.list(path):
                below = path / name
                found += self.files(below) if self.disk.is_directory(below) else [below]
        return found

    def content(self, path: Path) -> bytes:
        """What a file holds now, whatever befalls the disk."""
        with self.disk.spared():
            return read_file(self.disk, path)

    def batches(self, log: Log, offset: Offset, end: Offset) -> Iterator[tuple[BatchHeader, memoryview]]:
        """Every batch of a log from `offset` to `end`, as it lies in memory or in the files."""
        while offset < end:
            found = log.read(max(offset, log.start), _READ_BYTES, end)
            with self.disk.spared():
                data = found.load_unchecked(self.disk)
            if not data:
                return
            for header, batch in iterate_batches(data):
                if header.next_offset > offset:
                    yield header, memoryview(batch)
                    offset = header.next_offset

    def sound_batches(
        self, log: Log, offset: Offset, end: Offset
    ) -> Iterator[tuple[BatchHeader, memoryview]]:
        """The same, for those who take it for the truth; StorageError at one that has rotted."""
        for header, batch in self.batches(log, offset, end):
            if not crc_matches(batch, header):
                raise StorageError(f"{log!r} has rotted at {header.base_offset}")
            yield header, batch

    def flip_bits(self, count: int, suffix: str, inside: str = "") -> Counter[str]:
        """Rot `count` bits of files whose names end in `suffix`; how many in which file."""
        files = [path for path in self.files() if path.name.endswith(suffix)]
        sizes = {path: len(self.content(path)) for path in files if inside in str(path)}
        rotten = [path for path, size in sizes.items() if size]
        flipped: Counter[str] = Counter()
        for _ in range(count if rotten else 0):
            path = self.random.choice(rotten)
            self.disk.flip_bit(path, self.random.randrange(sizes[path]), self.random.randrange(8))
            flipped[str(path)] += 1
        return flipped
