"""An operator who lets other nodes hold partitions, while everything else happens.

Each order is given once, to whichever node answers; whether it was heard, the next one tells. What
must hold while replicas move is what must hold anyhow (`replica_watch`); in the end no partition
moves any more, and who holds none of it has no files of it.
"""

import random
from collections.abc import Sequence
from typing import Any, Final

from tidelog.client.admin import AdminClient
from tidelog.errors import TidelogError
from tidelog.model import NodeId, TopicPartition
from tidelog.simulation.nodes import bootstrap
from tidelog.simulation.world import World

_CANCEL_CHANCE: Final = 0.2
_TIMEOUT_SECONDS: Final = 3.0


def draw_move(
    choose: random.Random, *, nodes: int, topics: int, partitions: int, sizes: Sequence[int]
) -> dict[str, Any]:
    """Some partition, and who shall hold it; or its move shall be cancelled."""
    target = None
    if choose.random() >= _CANCEL_CHANCE:
        size = min(choose.choice(sizes), nodes)
        target = tuple(choose.sample(range(1, nodes + 1), size))
    return {
        "topic": f"tide-{choose.randrange(topics)}",
        "partition": choose.randrange(partitions),
        "target": target,
    }


def move(world: World, topic: str, partition: int, target: tuple[NodeId, ...] | None) -> None:
    """Let `target` hold the partition, or cancel what moves."""
    world.count("move")
    world.client("operator").spawn(_order(world, TopicPartition(topic, partition), target))


async def _order(world: World, place: TopicPartition, target: tuple[NodeId, ...] | None) -> None:
    host = world.client("operator")
    client = AdminClient(
        ",".join(map(bootstrap, world.machines)), network=host.network, timeout_seconds=_TIMEOUT_SECONDS
    )
    try:
        refused = await client.alter_reassignments({place: target})
        world.trace.note(host.name, f"{place} to {target}: {refused.get(place, 'begun')}")
    except TidelogError as error:
        world.trace.note(host.name, f"{place} to {target}: {type(error).__name__}: {error}")
    finally:
        client.close()
