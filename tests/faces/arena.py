"""A node under attack, and everything that must be as before when the attack is over."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from tests.faces.raw import TOPIC, Bystander, RawClient
from tests.support.node import NodeProcess
from tidelog.faces.cli.segments import Verifier, partition_directories

MIB: Final = 1024 * 1024
FRAME_BYTES_MAX: Final = 8 * MIB
QUEUED_BYTES_MAX: Final = 16 * MIB
FETCH_BYTES_MAX: Final = 4 * MIB
SETTINGS: Final = {
    "socket.request.max.bytes": FRAME_BYTES_MAX,
    "queued.max.bytes": QUEUED_BYTES_MAX,
    "fetch.max.bytes": FETCH_BYTES_MAX,
    "tail.max.bytes": 4 * MIB,
    "auto.create.topics.enable": "false",
}
"""Limits so small that passing one is seen in the memory of the process."""

PEAK_BYTES_MAX: Final = QUEUED_BYTES_MAX + 4 * FRAME_BYTES_MAX
SLOWEST_SECONDS_MAX: Final = 5.0
"""No request may keep the others waiting for longer, on a machine that does other things, too."""


class Arena:
    """The node, its bystander, and the attackers' connections."""

    def __init__(self, node: NodeProcess) -> None:
        self.node = node
        self.bystander = Bystander(node.port)
        self.bystander.start()
        self._clients: list[RawClient] = []

    def connect(self) -> RawClient:
        client = RawClient(self.node.port)
        self._clients.append(client)
        return client

    def close_clients(self) -> None:
        for client in self._clients:
            client.close()
        self._clients.clear()

    def memory_bytes(self, name: str = "VmRSS") -> int:
        status = Path(f"/proc/{self.node.pid}/status").read_text()
        found = re.search(rf"{name}:\s+(\d+) kB", status)
        assert found is not None
        return int(found[1]) * 1024

    def cpu_seconds(self) -> float:
        """What the node has computed so far; unlike time, it does not depend on others' work."""
        fields = Path(f"/proc/{self.node.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def forget_peak(self) -> None:
        """Let the greatest memory so far (VmHWM) begin again at what it is now."""
        Path(f"/proc/{self.node.pid}/clear_refs").write_text("5")

    @contextmanager
    def unharmed(self, peak_bytes_max: int = PEAK_BYTES_MAX) -> Iterator[None]:
        """Whatever happens inside: others are served, memory is bounded, nothing breaks."""
        log_bytes = self.node.log.stat().st_size
        self.bystander.wait_served(1)
        self.bystander.slowest_seconds = 0.0
        self.forget_peak()
        before = self.memory_bytes()
        try:
            yield
            self.bystander.wait_served()
        finally:
            self.close_clients()
        peak = self.memory_bytes("VmHWM") - before
        assert peak < peak_bytes_max, f"memory grew by {peak >> 20} MiB"
        slowest = self.bystander.slowest_seconds
        assert slowest < SLOWEST_SECONDS_MAX, f"the bystander waited {slowest:.1f} s"
        assert self.node.is_running
        with self.node.log.open("rb") as log:
            log.seek(log_bytes)
            written = log.read().decode()
        assert not re.search(r" (ERROR|CRITICAL) |Traceback|internal error", written), written


@contextmanager
def arena_on(data: Path, **settings: Any) -> Iterator[Arena]:
    """A node with small limits; at the end its directory is whole and says what it should."""
    chosen = {**SETTINGS, **{key.replace("_", "."): value for key, value in settings.items()}}
    with NodeProcess(data, chosen) as node:
        arena = Arena(node)
        yield arena
        arena.bystander.stop()
        assert node.stop() == 0, node.log.read_text()[-4000:]
        _check_directory(data)
        node.start()
        with RawClient(node.port) as client:
            assert client.values(TOPIC) == arena.bystander.acknowledged


def _check_directory(data: Path) -> None:
    """What `tidelog log verify` checks."""
    verifier = Verifier(data)
    for partition in partition_directories(data):
        report = verifier.verify(partition)
        assert report.problems == [], report
