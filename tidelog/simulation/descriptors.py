"""Situations of processes that get no descriptor, and of system calls that are interrupted.

| kind                | what happens                                                               |
|---------------------|----------------------------------------------------------------------------|
| exhaust_descriptors | a node may open few files more, or none, for a while (EMFILE); what it has |
|                     | open it may use, and what it closes gives a descriptor back                |
| interrupt_disk      | opening, reading, writing and syncing say EINTR a few times, and do nothing|

| invariant                            | meaning                                                   |
|--------------------------------------|-----------------------------------------------------------|
| want of descriptors ends no node     | one that serves refuses what it cannot open, and does it  |
|                                      | when it can; only a start may give up (`world.py`)        |

Python repeats system calls that a signal interrupts, `host/` those that it makes by itself. So
no node meets EINTR but for a file system of its own mind; then it may end, and must lose nothing.
"""

import random
from collections.abc import Collection

from tidelog.simulation.disk import SimulatedDisk
from tidelog.simulation.plan import Fault, Plan, moments, with_faults
from tidelog.simulation.world import World


def draw_few_descriptors(plan: Plan, choose: random.Random, enabled: Collection[str]) -> Plan:
    """Nodes have no descriptor left now and then."""
    times = moments(choose, choose.choice((0.1, 0.3)), plan.chaos_seconds)
    return with_faults(
        plan,
        [
            Fault(
                at,
                "exhaust_descriptors",
                {
                    "node": choose.randint(1, plan.nodes),
                    "left": choose.choice((0, 0, 0, 1, 3, -5)),
                    "seconds": round(0.2 + 8 * choose.random() ** 2, 3),
                },
            )
            for at in times
        ],
    )


def draw_interrupts(plan: Plan, choose: random.Random, enabled: Collection[str]) -> Plan:
    """System calls of disks are interrupted now and then."""
    times = moments(choose, choose.choice((0.1, 0.3)), plan.chaos_seconds)
    return with_faults(
        plan,
        [
            Fault(
                at, "interrupt_disk", {"node": choose.randint(1, plan.nodes), "times": choose.randint(1, 3)}
            )
            for at in times
        ],
    )


def exhaust_descriptors(world: World, node: int, left: int, seconds: float) -> None:
    disk = world.machines[node].disk
    disk.descriptors_max = max(0, disk.open_files + left)
    world.count("exhaust_descriptors")
    world.trace.note("world", f"exhaust_descriptors node-{node} {disk.descriptors_max}")
    world.after(seconds, _give_back, disk)


def _give_back(disk: SimulatedDisk) -> None:
    disk.descriptors_max = None


def interrupt_disk(world: World, node: int, times: int) -> None:
    world.count("interrupt_disk")
    world.trace.note("world", f"interrupt_disk node-{node} {times}")
    world.machines[node].disk.interrupt(times=times)
