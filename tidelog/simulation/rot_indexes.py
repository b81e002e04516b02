"""Rot in the indexes of sealed segments: no checksum covers them, and nobody may notice.

Rule: a node whose indexes rot is judged as any other. An index only narrows a search, so whatever
it says, readers get every record, and offsets by time are right.
"""

import random
from collections.abc import Collection
from itertools import pairwise
from typing import Final

from tidelog.simulation.plan import Fault, Plan, moments, with_faults
from tidelog.simulation.world import World

ROT_INDEXES: Final = "rot_indexes"


def rotting_indexes(plan: Plan, choose: random.Random, enabled: Collection[str]) -> Plan:
    """Bits of indexes flip on any node."""
    times = moments(choose, choose.choice((0.3, 1.0)), plan.chaos_seconds)
    return with_faults(
        plan,
        [
            Fault(
                at,
                ROT_INDEXES,
                {"node": choose.randint(1, plan.nodes), "suffix": choose.choice((".index", ".timeindex"))},
            )
            for at in times
        ],
    )


def rot_indexes(world: World, node: int, suffix: str) -> None:
    """Flip a bit in an index of one of a node's sealed segments."""
    machine = world.machines[node]
    logs = [path for path in machine.files() if path.name.endswith(".log")]
    sealed = [
        path.with_suffix(suffix)
        for path, following in pairwise(logs)
        if path.parent == following.parent  # only the last one of a directory grows
    ]
    for path in machine.random.sample(sealed, len(sealed)):
        if machine.flip_bits(1, suffix, inside=str(path)):
            machine.is_rotten = True  # its scrubber makes the index again, and tells
            world.count(ROT_INDEXES)
            world.trace.note("world", f"{ROT_INDEXES} {machine.name} {path.name}")
            return
