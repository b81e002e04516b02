"""What one node of a cluster has outside of itself, and keeps from one life to the next.

Rule 1: all of it is the system's own: sockets, files, clocks. What a test wants to go wrong is put
        in between.
Rule 2: troubles stay when the node is killed and started again; see `faults.py`.
"""

import asyncio
import random
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final, TypeAlias

from tidelog.config import NodeConfig, node_config
from tidelog.host import Host
from tidelog.model import NodeId
from tidelog.testing.disk import DiskTroubles, NodeDatabases, NodeDisk
from tidelog.testing.lives import Life
from tidelog.testing.ports import LOCALHOST, reserve
from tidelog.testing.wires import CLIENTS, Way, Ways, Wire

_BACKLOG: Final = 1024

Peers: TypeAlias = Mapping[tuple[str, int], "Machine"]
"""Which node listens to its peers where."""


class NodeClock:
    """The system's two clocks, of which one may drift and the other one jump.

    Invariant: `monotonic` never falls, whatever the rate becomes. Timers are not its business:
    these wait for seconds of the event loop.
    """

    def __init__(self) -> None:
        now = time.monotonic()
        self._course = (now, now, 1.0)  # since when, from which time on, at which rate
        self.ahead_ms = 0

    @property
    def rate(self) -> float:
        return self._course[2]

    def run_at(self, rate: float) -> None:
        """Run `rate` times as fast from now on."""
        self._course = (time.monotonic(), self.monotonic(), rate)

    def monotonic(self) -> float:
        since, seconds, rate = self._course
        return seconds + (time.monotonic() - since) * rate

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000 + self.ahead_ms


class NodeNetwork:
    """A `tidelog.host.Network` for one life: TCP, on wires that can be troubled."""

    def __init__(self, life: Life, machine: "Machine", ways: Ways, peers: Peers) -> None:
        self._life = life
        self._machine = machine
        self._ways = ways
        self._peers = peers

    async def serve(
        self,
        factory: Callable[[], asyncio.BaseProtocol],
        host: str,
        port: int,
        *,
        tls: ssl.SSLContext | None = None,
    ) -> asyncio.AbstractServer:
        ways = self._ways
        is_for_peers = self._peers.get((host, port)) is self._machine
        # What goes between nodes is held by who calls.
        out, back = (ways.clear, ways.clear) if is_for_peers else self._ways_to(CLIENTS)

        def accept() -> asyncio.BaseProtocol:
            return Wire(factory(), self._life, ways, out=out, back=back)

        assert tls is None, "nothing is encrypted here"

        server = await asyncio.get_running_loop().create_server(accept, host, port, backlog=_BACKLOG)
        self._life.listeners.append(server)
        if is_for_peers:
            self._machine.was_heard.set()
        return server

    async def connect(
        self, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int
    ) -> tuple[asyncio.BaseTransport, asyncio.BaseProtocol]:
        out = back = self._ways.clear
        if (peer := self._peers.get((host, port))) is not None:
            # At first all nodes start together: who is refused would ask again much later.
            await peer.was_heard.wait()
            out, back = self._ways_to(peer.node)
        await out.passable()
        await back.passable()
        _, wire = await asyncio.get_running_loop().create_connection(
            lambda: Wire(factory(), self._life, self._ways, out=out, back=back), host, port
        )
        return wire.transport, wire.inner

    def _ways_to(self, place: NodeId | str) -> tuple[Way, Way]:
        me = self._machine.node
        return self._ways.between(me, place), self._ways.between(place, me)


class Machine:
    """The ports, the directory, the clocks and the disk of one node."""

    def __init__(self, node: NodeId, data: Path, ways: Ways) -> None:
        self.node = node
        self.data = data
        self.kafka, self.http, self.peer = reserve(*[(LOCALHOST, 0)] * 3)
        self.clock = NodeClock()
        self.disk = DiskTroubles()
        self.was_heard = asyncio.Event()
        """Whether the node has ever listened to its peers."""
        self._ways = ways

    def config(self, quorum: str, settings: Mapping[str, object], secret: bytes) -> NodeConfig:
        own: dict[str, object] = {
            "data": str(self.data),
            "node.id": self.node,
            "kafka": str(self.kafka),
            "http": str(self.http),
        }
        if quorum:
            own |= {"quorum": quorum, "peer": str(self.peer)}
        return replace(node_config(settings, own), cluster_secret=secret)

    def host(self, life: Life, peers: Peers) -> Host:
        """For one life of the node."""
        return Host(
            clock=self.clock,
            disk=NodeDisk(life, self.disk),
            offload=life.offload,
            network=NodeNetwork(life, self, self._ways, peers),
            random=random.SystemRandom(),
            system_databases=NodeDatabases(life),
        )

    def release(self) -> None:
        for port in (self.kafka, self.http, self.peer):
            port.release()
