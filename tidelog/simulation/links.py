"""What goes wrong between nodes beyond cuts at random: half-open connections, partial partitions,
and the faults of one node or one link that a cluster must get over while they last.

| kind            | what happens                                                                 |
|-----------------|------------------------------------------------------------------------------|
| `reset_one_end` | one end of a connection is gone; the other hears of it when it sends         |
| `forget`        | all that is sent on a connection is lost from now on, and nobody is told     |
| `part`          | some nodes hear what others do not: one way, one link, a bridge, a ring      |
| `pause_one`     | one node is paused; writes go on meanwhile (`during`)                        |
| `part_one_link` | two nodes do not hear each other, or one not the other; writes go on as well |
"""

import random
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import Final, TypeAlias

from tidelog.config import NodeConfig
from tidelog.simulation.during import writes_go_on
from tidelog.simulation.plan import Fault, Plan, moments, with_faults
from tidelog.simulation.world import World

Ways: TypeAlias = tuple[tuple[int, int], ...]
"""From which node nothing gets through to which."""

_SETTLE_SECONDS: Final = 10.0
"""For a cluster that is at work to make a topic, and to lead it."""
_MARGIN_SECONDS: Final = 6.0
_BEYOND_SECONDS: Final = 5.0


# Half-open connections.


def reset_one_end(plan: Plan, choose: random.Random, enabled: Collection[str]) -> Plan:
    """Connections lose one of their ends."""
    return _strike(plan, choose, "reset_one_end")


def forget(plan: Plan, choose: random.Random, enabled: Collection[str]) -> Plan:
    """Connections are forgotten on the way."""
    return _strike(plan, choose, "forget")


def _strike(plan: Plan, choose: random.Random, kind: str) -> Plan:
    rate = choose.choice((0.1, 0.3, 1.0))  # per simulated second
    faults = []
    for at in moments(choose, rate, plan.chaos_seconds):
        node, chance = choose.randint(1, plan.nodes), round(choose.uniform(0.1, 1), 2)
        faults.append(Fault(at, kind, {"node": node, "chance": chance}))
    return with_faults(plan, faults)


# Partial partitions.


def part(plan: Plan, choose: random.Random, enabled: Collection[str]) -> Plan:
    """Some nodes hear what others do not."""
    if plan.nodes < 2:
        return plan
    rate = choose.choice((0.05, 0.2, 0.5))  # per simulated second
    faults = []
    for at in moments(choose, rate, plan.chaos_seconds):
        seconds = round(0.5 + 14.5 * choose.random() ** 2, 3)
        ways = draw_ways(choose, range(1, plan.nodes + 1))
        faults.append(Fault(at, "part", {"ways": ways, "seconds": seconds}))
    return with_faults(plan, faults)


def draw_ways(choose: random.Random, nodes: Sequence[int]) -> Ways:
    """One of the ways in which nodes can be parted without two sides that see themselves alike."""
    order = choose.sample(nodes, len(nodes))
    first, second, *_ = order
    match choose.choice(("one way", "link", "deaf", "mute", "bridge", "ring")):
        case "one way":
            return ((first, second),)
        case "link":
            return ((first, second), (second, first))
        case "deaf":
            return tuple((other, first) for other in order[1:])
        case "mute":
            return tuple((first, other) for other in order[1:])
        case "bridge":  # the first hears all; the others are two camps
            middle = 1 + len(order) // 2
            return _both_ways((a, b) for a in order[1:middle] for b in order[middle:])
        case _:  # each hears its two neighbours alone: each is in another majority
            size = len(order)
            far = ((i, j) for i in range(size) for j in range(i + 2, size) if j - i < size - 1)
            return _both_ways((order[i], order[j]) for i, j in far)


def _both_ways(pairs: Iterable[tuple[int, int]]) -> Ways:
    return tuple(way for a, b in pairs for way in ((a, b), (b, a)))


# Faults that are got over while they last.


def cover(plan: Plan, choose: random.Random, enabled: Collection[str]) -> Plan:
    """One node is paused or one link is cut, and nothing else; so writes must go on."""
    if plan.voters == 1:
        return plan  # no design covers the loss of the only voter
    allowed_seconds = seconds_to_get_over(plan)
    arguments = {"seconds": allowed_seconds + _BEYOND_SECONDS, "allowed_seconds": allowed_seconds}
    one, other = choose.sample(range(1, plan.nodes + 1), 2)
    match choose.choice(("pause", "link", "one way")):
        case "pause":
            fault = Fault(1.0, "pause_one", {"node": one, **arguments})
        case "link":
            fault = Fault(1.0, "part_one_link", {"ways": _both_ways([(one, other)]), **arguments})
        case _:
            fault = Fault(1.0, "part_one_link", {"ways": ((one, other),), **arguments})
    chaos_seconds = fault.at + _SETTLE_SECONDS + arguments["seconds"]
    return replace(plan, faults=(fault,), chaos_seconds=chaos_seconds)


def seconds_to_get_over(plan: Plan) -> float:
    """Within which a cluster gets over the loss of one node or one link, as it is set.

    It may be the controller: that is missed, another is elected, and lets the leases run out that
    it knows nothing of; a follower that lags is out of sync last.
    """
    default = NodeConfig(data="")
    session_ms, fetch_ms, election_ms, lag_ms = (
        plan.node.get(name, getattr(default, name))
        for name in (
            "broker_session_timeout_ms",
            "quorum_fetch_timeout_ms",
            "quorum_election_timeout_ms",
            "replica_lag_time_max_ms",
        )
    )
    milliseconds: int = 2 * session_ms + fetch_ms + 4 * election_ms + lag_ms
    return milliseconds / 1000 + _MARGIN_SECONDS


def pause_one(world: World, node: int, seconds: float, allowed_seconds: float) -> None:
    def begin() -> None:
        world.count("pause_one")
        world.pause(node, seconds)

    what = f"node {node} is paused"
    writes_go_on(world, begin, what=what, seconds=seconds, allowed_seconds=allowed_seconds)


def part_one_link(world: World, ways: Ways, seconds: float, allowed_seconds: float) -> None:
    def begin() -> None:
        world.count("part_one_link")
        world.part(ways, seconds)

    what = "nothing gets through from node " + ", ".join(f"{a} to {b}" for a, b in ways)
    writes_go_on(world, begin, what=what, seconds=seconds, allowed_seconds=allowed_seconds)
