"""Rot: bits of sealed segments flip on a minority of the nodes, and scrubbers heal them.

| invariant                   | meaning                                                            |
|-----------------------------|--------------------------------------------------------------------|
| rot is found and healed     | once nothing else is broken, and a cycle of every scrubber later,  |
|                             | every sealed byte of every replica is what it was                  |
| nobody is rotten by mistake | a scrubber finds nothing on a disk that neither rotted nor failed  |

Rule 1: a replica that rots is judged as any other, for it is healed where it is: no watermark of it
        falls, and no log of it is cut. But where its leader has it cut within a rotten segment, it
        is damaged, leaves the in-sync sets and reads again from the rot on.
Rule 2: no batch rots on two nodes, and none where fewer than three nodes shall hold it: the others
        have what is committed.
Rule 3: a replica that cannot be healed in place begins anew, out of sync: one of a compacted topic
        whose batch no other replica has as it was, or one where nobody can tell any more where
        batches lie. Only then its watermark falls (`replica_watch`).
Rule 4: compacted logs rot on one node in a seed: two replicas may have no batch in common to heal
        each other with (docs/decisions/015-scrubbing.md).
"""

import random
from collections.abc import Collection, Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Final

from tidelog.host import Path
from tidelog.log.scrub import SegmentScrub
from tidelog.model import TopicPartition
from tidelog.partition.driver import Partition
from tidelog.records import iterate_batches
from tidelog.simulation.machine import Machine
from tidelog.simulation.plan import Fault, Plan, moments, with_faults
from tidelog.simulation.world import World

HEALED: Final = "rot is found and healed"
MISTAKEN: Final = "nobody is rotten by mistake"
ROT: Final = "rot_sealed"
TOPICS: Final = "tide-"
"""What the names of the partitions that rot begin with."""
STORIES: Final = ("replicated", "transactions", "kv")
_MISREAD: Final = ("fail_looks", "fail_reads", "flip_bits", "misdirect_write")
"""What makes a scrubber find something beside rot."""


def rotting(plan: Plan, choose: random.Random, enabled: Collection[str]) -> Plan:
    """Every node scrubs, and some nodes rot."""
    defaults = replace(plan.node["topic_defaults"], segment_bytes=choose.choice((1000, 5000)))
    node = {
        **plan.node,
        "topic_defaults": defaults,
        "scrub_bytes_per_second": choose.choice((1 << 20, 16 << 20)),
        "scrub_interval_ms": choose.choice((500, 1000, 5000)),
    }
    pace = replace(plan.pace, replication=min(3, plan.nodes))
    kept = tuple(fault for fault in plan.faults if not _leaves_few(fault))
    plan = replace(plan, node=node, pace=pace, faults=kept)
    rotten_count = choose.choice((0, 1, 1, (plan.nodes - 1) // 2))
    if plan.story == "kv":
        rotten_count = min(rotten_count, 1)
    rotten = choose.sample(range(1, plan.nodes + 1), rotten_count)
    times = moments(choose, choose.choice((0.3, 1.0, 3.0)), plan.chaos_seconds)
    faults = []
    for at in times if rotten else ():
        share = choose.randrange(len(rotten))
        arguments = {
            "node": rotten[share],
            "count": choose.choice((1, 1, 3, 20)),
            "share": share,
            "shares": len(rotten),
        }
        faults.append(Fault(at, ROT, arguments))
    return with_faults(plan, faults)


def _leaves_few(fault: Fault) -> bool:
    """Whether an operator lets fewer than three nodes hold a partition."""
    target = fault.arguments.get("target") if fault.kind == "move" else None
    return target is not None and len(target) < 3


def rot_sealed(world: World, node: int, count: int, share: int, shares: int) -> None:
    """Flip bits in sealed segments of a node, in its share of the batches."""
    machine = world.machines[node]
    files = list(_sealed_files(machine))
    flipped = 0
    for _ in range(count if files else 0):
        path = machine.random.choice(files)
        position = _position(machine, path, share, shares)
        if position is not None:
            machine.disk.flip_bit(path, position, machine.random.randrange(8))
            flipped += 1
    if flipped:
        machine.is_rotten = True
        world.count(ROT)
        world.trace.note("world", f"{ROT} {machine.name} {flipped}")


def _sealed_files(machine: Machine) -> Iterator[Path]:
    logs = [path for path in machine.files() if path.name.endswith(".log")]
    for path, following in pairwise(logs):
        if path.parent == following.parent and path.parent.name.startswith(TOPICS):
            yield path  # only the last one of a directory grows


def _position(machine: Machine, path: Path, share: int, shares: int) -> int | None:
    """A byte of one of the batches that may rot here."""
    at, mine = 0, []
    for header, batch in iterate_batches(machine.content(path)):
        if header.base_offset % shares == share:
            mine.append((at, len(batch)))
        at += len(batch)
    if not mine:
        return None
    start, size = machine.random.choice(mine)
    return int(start + machine.random.randrange(size))


# After healing.


def check_healed(world: World, seconds_max: float) -> None:
    """Nothing else is broken any more: scrubbers heal what rotted, and find nothing else."""
    machines = [machine for machine in world.machines.values() if not machine.is_damaged]
    cycles: dict[int, tuple[int, int]] = {}
    world.run_while(lambda: _not_scrubbed(world, machines, cycles), seconds_max, name=HEALED)
    for machine in machines:
        for partition in machine.node.broker.partitions():
            if problem := _rot_in(machine, partition):
                world.fail(HEALED, f"{machine.name} {partition.name}: {problem}")
    _check_mistaken(world, machines)


def _not_scrubbed(world: World, machines: list[Machine], cycles: dict[int, tuple[int, int]]) -> str | None:
    """Who has not scrubbed everything since it is up, or knows of rot."""
    waiting = None
    for machine in machines:
        if not machine.is_up:
            waiting = f"{machine.name} is not up"
            continue
        broker = machine.node.broker
        state = broker.replication.scrubber.state
        if not state.cycle:
            waiting = f"{machine.name} has not read which cycle it is in"
            continue
        life, cycle = cycles.get(machine.number, (0, 0))
        if life != machine.lives and (early := _not_scrubbable(machine)):
            waiting = f"{machine.name} has sealed what is not committed or not synced in {early}"
            continue
        if life != machine.lives:
            cycle = state.cycle + 2  # the one that is under way may have passed what rotted since
            cycles[machine.number] = (machine.lives, cycle)
        if state.cycle < cycle:
            waiting = f"{machine.name} is in cycle {state.cycle} of {cycle}"
        elif state.open:
            waiting = f"{machine.name} has {state.open}"
        elif damaged := [p.name for p in broker.partitions() if p.log.damaged_at is not None]:
            waiting = f"{machine.name} is damaged in {damaged}"
        elif busy := [p.name for p in broker.partitions() if p.files.locked()]:
            waiting = f"{machine.name} changes files of {busy}"  # a swap may be half done
    return waiting


def _not_scrubbable(machine: Machine) -> list[TopicPartition]:
    """Where segments are sealed above what a node knows to be committed, and has synced: nobody
    scrubs those."""
    return [
        partition.name
        for partition in machine.node.broker.partitions()
        if partition.name.topic.startswith(TOPICS)
        and (partition.leader is not None or partition.follower is not None)
        and partition.log.segments[-1].base > min(partition.high_watermark, partition.log.synced_end)
    ]


def _rot_in(machine: Machine, partition: Partition) -> str | None:
    """The first problem of a partition's sealed segments, as they are on the disk."""
    log = partition.log
    for segment, following in pairwise(log.segments):
        if following.base > min(partition.high_watermark, log.synced_end):
            break
        scrub = SegmentScrub(
            segment, following.base, start=log.start, epochs=log.epochs, has_gaps=partition.has_gaps
        )
        with machine.disk.spared():
            scrub.seek(machine.disk)
        if not scrub.is_done:
            return f"{scrub!r}"
    return None


def _check_mistaken(world: World, machines: list[Machine]) -> None:
    if any(world.faults[kind] for kind in _MISREAD):
        return
    for machine in machines:
        state = machine.node.broker.replication.scrubber.state
        if state.found and not machine.is_rotten:
            world.fail(MISTAKEN, f"{machine.name}: {state.open or state.recent}")
