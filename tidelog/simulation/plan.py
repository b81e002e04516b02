"""What a seed decides before it is played: the faults and when each comes, the paces, the settings.

Rule 1: a plan is made from the seed alone. A fault is a value, so that a plan can be shown, and
        shrunk by leaving some faults out.
Rule 2: a fault that lasts carries its own end.
"""

import random
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from tidelog.simulation.groups import GroupPace
from tidelog.simulation.http_story import HttpPace
from tidelog.simulation.keyvalue import KvPace
from tidelog.simulation.queues import QueuePace
from tidelog.simulation.quorum import AdminPace
from tidelog.simulation.transactions import TransactionPace
from tidelog.simulation.workload import Pace

Arguments: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that befalls the world at `at` seconds after it has started."""

    at: float
    kind: str
    arguments: Arguments

    def __str__(self) -> str:
        arguments = ", ".join(f"{name}={_short(value)}" for name, value in self.arguments.items())
        return f"{self.at:8.3f} s  {self.kind}({arguments})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything that one seed decides before it is played."""

    seed: int
    nodes: int
    chaos_seconds: float
    faults: tuple[Fault, ...]
    network: Arguments = field(default_factory=dict)
    disk: Arguments = field(default_factory=dict)
    disk_seconds_max: float = 0.001
    node: Arguments = field(default_factory=dict)
    story: str = "alone"
    """`alone`: each node is a cluster of its own. `cluster`: all of them keep one metadata log.
    `replicated`: they also keep copies of each other's partitions. `groups`: consumers share out
    partitions, and commit how far they are. `transactions`: producers commit and abort, over many
    partitions, with offsets, and by decisions of groups. `kv`: clients put and get keys at any
    node. `queues`: they publish, receive and settle messages. `http`: they do all of that, and
    write records, by the project's own HTTP client."""
    pace: Pace = field(default_factory=Pace)
    group_pace: GroupPace = field(default_factory=GroupPace)
    transaction_pace: TransactionPace = field(default_factory=TransactionPace)
    kv_pace: KvPace = field(default_factory=KvPace)
    queue_pace: QueuePace = field(default_factory=QueuePace)
    http_pace: HttpPace = field(default_factory=HttpPace)
    admin_pace: AdminPace = field(default_factory=AdminPace)
    voters: int | None = None
    """How many of the nodes keep the metadata, the first ones; None if all do."""
    has_racks: bool = False
    """Whether every node stands in a rack of its own."""
    situations: tuple[str, ...] = ()
    """The names of those that it has."""


def without(plan: Plan, faults: Collection[int]) -> Plan:
    """The plan with only the faults at these indexes."""
    kept = tuple(fault for index, fault in enumerate(plan.faults) if index in faults)
    return replace(plan, faults=kept)


def with_faults(plan: Plan, faults: Iterable[Fault]) -> Plan:
    """The plan with more faults, in the order of their times."""
    together = sorted((*plan.faults, *faults), key=lambda fault: fault.at)
    return replace(plan, faults=tuple(together))


def moments(choose: random.Random, rate: float, seconds: float) -> Iterator[float]:
    """Random moments, `rate` of them in a simulated second, before `seconds`."""
    at = 0.0
    while (at := at + choose.expovariate(rate)) < seconds:
        yield round(at, 6)


def _short(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
