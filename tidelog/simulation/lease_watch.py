"""Looks at what brokers believe of their leases, while whole clusters run under faults.

| invariant                 | meaning                                                           |
|---------------------------|-------------------------------------------------------------------|
| a lease ends before fences| no process has a lease of a life that the metadata log has fenced |

Rule 1: it is judged when the first node applies that a broker is fenced, and every few events from
        then on: no late answer may renew a lease.
Rule 2: leases are kept by clocks. Where a fault makes clocks run fast or slow, nothing is judged.
Rule 3: of a machine that is damaged nobody believes that a broker is fenced. But it may lead, and
        be the first to apply that one is fenced no longer: such a broker is judged again once a
        sound machine has come as far.
"""

from collections.abc import Sequence
from typing import Final

from tidelog.controller.image import ClusterImage
from tidelog.controller.records import MetadataRecord
from tidelog.model import NodeId, Offset
from tidelog.simulation.machine import Machine
from tidelog.simulation.world import World

LEASED: Final = "a lease ends before fences"

_CHECK_EVERY_EVENTS: Final = 32


class LeaseWatch:
    """Compares every process's lease with the newest metadata that any node has."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._lives: dict[int, int] = {}
        self._applied: Offset = -1
        self._fenced: dict[NodeId, int] = {}
        """The fenced brokers by sound machines, each with its broker epoch."""
        self._claimed: Offset = -1
        self._unfenced: dict[NodeId, int] = {}
        """The brokers that are not fenced by the damaged machine that has applied the most."""
        self._problem: str | None = None
        world.invariant(LEASED, self._check, every=_CHECK_EVERY_EVENTS)

    def _check(self) -> str | None:
        for machine in self._world.machines.values():
            if self._lives.get(machine.number) != machine.lives:
                self._attach(machine)
        self._judge()
        return self._problem

    def _attach(self, machine: Machine) -> None:
        """Hear of all that a process learns of the metadata from now on."""
        metadata = getattr(getattr(machine.node, "broker", None), "metadata", None)
        if metadata is None:
            return
        self._lives[machine.number] = machine.lives

        def heard(records: Sequence[MetadataRecord]) -> None:
            if machine.is_damaged:
                if metadata.applied > self._claimed:
                    self._claimed = metadata.applied
                    self._unfenced = _lives(metadata.image, fenced=False)
            elif metadata.applied > self._applied:
                self._applied = metadata.applied
                self._fenced = _lives(metadata.image, fenced=True)
                self._judge()

        metadata.on_applied(heard)

    def _judge(self) -> None:
        if self._problem is not None or self._world.faults["skew_clock"]:
            return
        is_behind = self._applied < self._claimed
        for node, broker_epoch in self._fenced.items():
            if is_behind and self._unfenced.get(node) == broker_epoch:
                continue
            machine = self._world.machines[node]
            membership = getattr(getattr(machine.node, "broker", None), "membership", None)
            if membership is None or not machine.is_up or membership.broker_epoch != broker_epoch:
                continue
            left = membership.lease_until - machine.clock.monotonic()
            if left > 0:
                self._problem = f"{machine.name} is fenced, and has its lease for {left:.3f} s"


def _lives(image: ClusterImage, *, fenced: bool) -> dict[NodeId, int]:
    return {node: broker.broker_epoch for node, broker in image.brokers.items() if broker.fenced == fenced}
