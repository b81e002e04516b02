"""Situations of disks without room: for long, on one node or on all; and one that must not matter.

| kind          | what happens                                                                     |
|---------------|----------------------------------------------------------------------------------|
| fill_disks    | one node, or all of them, have no room for up to a minute, among other faults    |
| refuse_names  | a disk without room does not take new or changed names either, until healed      |
| fail_looks    | a node's disk fails to open a file, to tell its size, or to list a directory     |
| fill_one_disk | one node has no room, and nothing else is wrong: writes go on (see `during`)     |
"""

import random
from collections.abc import Collection
from dataclasses import replace
from functools import partial
from typing import Final

from tidelog.simulation.during import writes_go_on
from tidelog.simulation.plan import Fault, Plan, moments, with_faults
from tidelog.simulation.world import World

_MINUTE_SECONDS: Final = 60.0
_WATCHED_SECONDS: Final = 20.0
_ALLOWED_SECONDS: Final = 8.0
"""A write that a full disk met is acknowledged by another leader within so long."""


def draw_full_disks(plan: Plan, choose: random.Random, enabled: Collection[str]) -> Plan:
    """Disks are full for long while other faults strike; a reserve of some size is kept."""
    everyone = range(1, plan.nodes + 1)
    nodes = tuple(everyone) if choose.random() < 0.5 else (choose.choice(everyone),)
    at = round(choose.uniform(0.0, plan.chaos_seconds), 6)
    seconds = choose.choice((5.0, 5.0, 10.0, 10.0, 10.0, 20.0, 20.0, _MINUTE_SECONDS))
    fault = Fault(
        at, "fill_disks", {"nodes": nodes, "left_bytes": choose.choice((0, 100, 5000)), "seconds": seconds}
    )
    node = {**plan.node, "disk_reserve_bytes": choose.choice((0, 20_000, 200_000))}
    faults = [fault]
    if choose.random() < 0.5:
        faults += [Fault(at, "refuse_names", {"nodes": nodes})]
    longer = replace(plan, node=node, chaos_seconds=max(plan.chaos_seconds, at + seconds))
    return with_faults(longer, faults)


def draw_failed_looks(plan: Plan, choose: random.Random, enabled: Collection[str]) -> Plan:
    """Disks fail now and then in what is asked of them before a byte is read."""
    times = moments(choose, choose.choice((0.1, 0.3)), plan.chaos_seconds)
    return with_faults(
        plan,
        [
            Fault(at, "fail_looks", {"node": choose.randint(1, plan.nodes), "times": choose.randint(1, 3)})
            for at in times
        ],
    )


def draw_one_full_disk(plan: Plan, choose: random.Random, enabled: Collection[str]) -> Plan:
    """One disk is full, and nothing else happens."""
    if plan.nodes < 3:
        return plan
    arguments = {"node": choose.randint(1, plan.nodes), "seconds": _WATCHED_SECONDS}
    node = {**plan.node, "disk_reserve_bytes": choose.choice((0, 20_000, 200_000))}
    fault = Fault(round(choose.uniform(0.0, 1.0), 6), "fill_one_disk", arguments)
    return replace(
        plan, node=node, faults=(fault,), chaos_seconds=max(plan.chaos_seconds, 1.5 * _WATCHED_SECONDS)
    )


def fill_disks(world: World, nodes: Collection[int], left_bytes: int, seconds: float) -> None:
    for node in nodes:
        world.fill_disk(node, left_bytes, seconds)


def refuse_names(world: World, nodes: Collection[int]) -> None:
    world.count("refuse_names")
    for node in nodes:
        world.machines[node].disk.names_need_room = True


def fail_looks(world: World, node: int, times: int) -> None:
    world.count("fail_looks")
    world.machines[node].disk.fail_looks(times=times)


def fill_one_disk(world: World, node: int, seconds: float) -> None:
    """Fill a disk once the cluster works, and demand that writes go on."""
    writes_go_on(
        world,
        partial(world.fill_disk, node, 0, seconds),
        what=f"the disk of node {node} is full",
        seconds=seconds,
        allowed_seconds=_ALLOWED_SECONDS,
    )
