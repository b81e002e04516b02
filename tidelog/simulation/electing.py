"""What befalls the voters of a quorum: operators who change them, new disks, rot, small snapshots.

| kind           | what happens                                                                  |
|----------------|-------------------------------------------------------------------------------|
| `change_voter` | a voter is removed, or a node that does not vote becomes a voter               |
| `new_disk`     | a node comes back with an empty disk; later an operator replaces the old voter |
| `rot_metadata` | bits of a node's metadata flip: its log, snapshots, notes and promises         |
| `misdirect`    | a write of a node lands elsewhere, whichever comes next                        |

Rule 1: a quorum bears the loss of a minority of its disks, and no more. So a plan has rot, or a new
        disk, or an operator who changes the voters, and only a minority has such disks.
Rule 2: an operator removes a voter if all nodes vote, and otherwise lets one vote that does not.
"""

import asyncio
import random
from collections.abc import Collection
from dataclasses import replace
from typing import Final

from tidelog.client.members import MembersClient
from tidelog.errors import TidelogError
from tidelog.model import NodeId
from tidelog.simulation.nodes import bootstrap
from tidelog.simulation.plan import Fault, Plan, moments, with_faults
from tidelog.simulation.world import World

METADATA: Final = "__cluster_metadata"
_HEALED: Final = (".log", ".log", ".checkpoint", "quorum-acknowledged")
"""What a node that starts fetches from others, or learns again, if it is rotten."""
_PROMISES: Final = "quorum-state"
_TIMEOUT_SECONDS: Final = 3.0
_TRIES: Final = 20
EXCLUSIVE: Final = frozenset(("voters", "new_disk", "metadata rot", "rot"))
"""Situations of which a plan has one at most."""


def _voters(plan: Plan) -> int:
    return plan.nodes if plan.voters is None else plan.voters


def snapshots(plan: Plan, choose: random.Random, enabled: Collection[str]) -> Plan:
    """The metadata is trimmed, and sent as snapshots, all the while."""
    node = {
        **plan.node,
        "metadata_snapshot_records": choose.choice((10, 30, 100)),
        "metadata_log_segment_bytes": choose.choice((1000, 10_000, 1 << 20)),
    }
    return replace(plan, node=node)


def reserve(plan: Plan, choose: random.Random, enabled: Collection[str]) -> Plan:
    """Disks keep a little room for small writes."""
    node = {**plan.node, "disk_reserve_bytes": choose.choice((1000, 4000, 20_000))}
    return replace(plan, node=node)


# Operators.


def voters(plan: Plan, choose: random.Random, enabled: Collection[str]) -> Plan:
    """An operator removes voters and adds them again."""
    if _voters(plan) < 3 or not EXCLUSIVE.isdisjoint(plan.situations):
        return plan
    rate = choose.choice((0.2, 0.5, 1.0))  # per simulated second
    times = moments(choose, rate, plan.chaos_seconds)
    faults = [Fault(at, "change_voter", {"node": choose.randint(1, plan.nodes)}) for at in times]
    return with_faults(plan, faults)


def change_voter(world: World, node: NodeId) -> None:
    """Remove the voter if all nodes vote; otherwise let who does not vote be a voter."""
    world.count("change_voter")
    world.client("operator").spawn(_change_voter(world, node))


async def _change_voter(world: World, node: NodeId) -> None:
    client = _admin(world)
    try:
        voting = {replica.node for replica in (await client.quorum()).voters}
        missing = [other for other in world.machines if other not in voting]
        if missing:
            await client.add_voter(missing[0])
        else:
            await client.remove_voter(node)
        done = f"add {missing[0]}" if missing else f"remove {node}"
        world.trace.note("operator", f"voters {sorted(voting)}: {done}")
    except TidelogError as error:
        world.trace.note("operator", f"voters: {type(error).__name__}: {error}")
    finally:
        client.close()


def _admin(world: World) -> MembersClient:
    return MembersClient(
        ",".join(map(bootstrap, world.machines)),
        network=world.client("operator").network,
        timeout_seconds=_TIMEOUT_SECONDS,
    )


# Disks.


def new_disk(plan: Plan, choose: random.Random, enabled: Collection[str]) -> Plan:
    """One node's disk is replaced by an empty one."""
    if _voters(plan) < 3 or not EXCLUSIVE.isdisjoint(plan.situations):
        return plan
    at = round(choose.uniform(0.1, 0.7) * plan.chaos_seconds, 6)
    arguments = {
        "node": choose.randint(1, plan.nodes),
        "down_seconds": round(choose.uniform(0, 4), 3),
        "is_replaced": choose.random() < 0.7,
    }
    return with_faults(plan, [Fault(at, "new_disk", arguments)])


def befall_new_disk(world: World, node: NodeId, down_seconds: float, is_replaced: bool) -> None:
    """End the node's process, empty its disk, and start it again; an operator may follow."""
    world.crash(node)
    world.replace_disk(node)
    world.after(down_seconds, world.restart, node)
    if is_replaced:
        world.client("operator").spawn(_replace_voter(world, node))


async def _replace_voter(world: World, node: NodeId) -> None:
    """Let the new disk vote in the place of the old one; as an operator would, until it works."""
    for _ in range(_TRIES):
        await asyncio.sleep(_TIMEOUT_SECONDS)
        client = _admin(world)
        try:
            await _replace_once(client, world, node)
            return
        except TidelogError as error:
            world.trace.note("operator", f"voter {node}: {type(error).__name__}: {error}")
        finally:
            client.close()


async def _replace_once(client: MembersClient, world: World, node: NodeId) -> None:
    machine = world.machines[node]
    if not machine.is_up:
        raise TidelogError("it is not up")
    member = machine.node.broker.member
    if member.me.key in member.quorum.raft.voters:
        return
    if node in {replica.node for replica in (await client.quorum()).voters}:
        await client.remove_voter(node)
    await client.add_voter(node)


def rot(plan: Plan, choose: random.Random, enabled: Collection[str]) -> Plan:
    """The metadata of a minority of the voters rots."""
    if _voters(plan) < 3 or not EXCLUSIVE.isdisjoint(plan.situations):
        return plan
    minority = choose.sample(range(1, _voters(plan) + 1), (_voters(plan) - 1) // 2)
    rate = choose.choice((0.1, 0.3, 1.0))  # per simulated second
    faults = []
    for at in moments(choose, rate, plan.chaos_seconds):
        node = choose.choice(minority)
        if plan.story == "cluster" and choose.random() < 0.5:
            faults.append(Fault(at, "misdirect", {"node": node}))
        else:
            arguments = {
                "node": node,
                "count": choose.choice((1, 1, 5, 50)),
                "suffix": choose.choice((*_HEALED, _PROMISES) if plan.story == "cluster" else _HEALED),
            }
            faults.append(Fault(at, "rot_metadata", arguments))
    return with_faults(plan, faults)


def rot_metadata(world: World, node: NodeId, count: int, suffix: str) -> None:
    """Flip bits of the metadata. Only a node that lost its promises is excused from serving."""
    machine = world.machines[node]
    was_damaged = machine.is_damaged
    world.flip_bits(node, count=count, suffix=suffix, inside=METADATA)
    if suffix != _PROMISES:
        machine.is_damaged = was_damaged
