"""Rot in what stands beside the logs: notes of them, and views of them. Any node may have it.

| kind      | what rots                                                                           |
|-----------|-------------------------------------------------------------------------------------|
| rot_notes | producer snapshots, epoch checkpoints, and the checkpoints of the data directory    |
| rot_views | the SQLite files of key-value views                                                 |

Rule 1: a node whose notes or views rot is judged as any other. What rots is found by its checksum,
        and made again: from the log, from a copy of the note, or by asking other replicas.
Rule 2: of a note that is kept twice, one copy rots at a time; and where batches rot, nothing does
        that is made again from them.
"""

import random
from collections.abc import Collection
from typing import Final

from tidelog.host import Path, read_file
from tidelog.log.checkpoints import COPY_SUFFIX, CheckpointDamaged, decode
from tidelog.log.epochs import FILE_NAME as EPOCHS
from tidelog.model import METADATA_TOPIC
from tidelog.simulation.machine import Machine
from tidelog.simulation.plan import Fault, Plan, moments, with_faults
from tidelog.simulation.world import World

ROT_NOTES: Final = "rot_notes"
ROT_VIEWS: Final = "rot_views"
_SNAPSHOTS: Final = ".snapshot"
_CHECKPOINTS: Final = "-checkpoint"


def rotting_notes(plan: Plan, choose: random.Random, enabled: Collection[str]) -> Plan:
    """Bits of notes flip on any node."""
    kinds = (_CHECKPOINTS,) if "rot" in plan.situations else (_SNAPSHOTS, _CHECKPOINTS, EPOCHS)
    faults = [
        Fault(at, ROT_NOTES, {"node": choose.randint(1, plan.nodes), "what": choose.choice(kinds)})
        for at in moments(choose, choose.choice((0.3, 1.0, 3.0)), plan.chaos_seconds)
    ]
    return with_faults(plan, faults)


def rotting_views(plan: Plan, choose: random.Random, enabled: Collection[str]) -> Plan:
    """Bits of views flip on any node."""
    faults = [
        Fault(at, ROT_VIEWS, {"node": choose.randint(1, plan.nodes), "count": choose.choice((1, 3, 50))})
        for at in moments(choose, choose.choice((0.3, 1.0)), plan.chaos_seconds)
    ]
    return with_faults(plan, faults)


def rot_notes(world: World, node: int, what: str) -> None:
    """Flip a bit of one of a node's notes."""
    machine = world.machines[node]
    found = [path for path in machine.files() if _is_note(path, what) and _may_rot(machine, path)]
    _rot(world, machine, ROT_NOTES, found, 1)


def rot_views(world: World, node: int, count: int) -> None:
    """Flip bits of the views of a node, which it has open, or will open."""
    machine = world.machines[node]
    found = [path for path in machine.files() if path.name.endswith(".db")]
    _rot(world, machine, ROT_VIEWS, found, count)


def _rot(world: World, machine: Machine, kind: str, paths: list[Path], count: int) -> None:
    sizes = {path: size for path in paths if (size := len(_content(machine, path)))}
    if not sizes:
        return
    path = machine.random.choice(list(sizes))
    for _ in range(count):
        position = machine.random.randrange(sizes[path])
        machine.disk.flip_bit(path, position, machine.random.randrange(8))
    machine.is_rotten = True
    world.count(kind)
    world.trace.note("world", f"{kind} {machine.name} {path}")


def _is_note(path: Path, what: str) -> bool:
    if what == _CHECKPOINTS:
        return path.name.removesuffix(COPY_SUFFIX).endswith(what) and path.name != EPOCHS
    return path.name.endswith(what) and not path.parent.name.startswith(METADATA_TOPIC)


def _may_rot(machine: Machine, path: Path) -> bool:
    """Whether the other copy of a note, if it has one, is sound."""
    name = path.name.removesuffix(COPY_SUFFIX)
    other = path.with_name(name + COPY_SUFFIX if name == path.name else name)
    if not machine.disk.exists(other):
        return name == path.name
    try:
        decode(_content(machine, other))
    except CheckpointDamaged:
        return False
    return True


def _content(machine: Machine, path: Path) -> bytes:
    with machine.disk.spared():
        return read_file(machine.disk, path)
