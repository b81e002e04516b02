"""An operator who deletes records, and retention that does, while everything else happens.

Each order is given once, to whoever leads. If it is acknowledged, no leader may show those records
again, nor any other log start that is earlier than one that was shown (`replica_watch`). Starts lie
anywhere: inside of batches and of transactions, at the ends of segments, at the watermark.

Compacted topics (`kv`) delete nothing but what is superseded: there DeleteRecords must be refused,
and what changes under load is how they are compacted (`alter_compaction`).
"""

import random
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any, Final

from tidelog.client.admin import AdminClient, ConfigChange, Resource
from tidelog.client.kafka import EARLIEST, LATEST
from tidelog.errors import TidelogError
from tidelog.model import TopicPartition
from tidelog.simulation.nodes import bootstrap
from tidelog.simulation.plan import Fault, Plan, moments, with_faults
from tidelog.simulation.world import World

_TIMEOUT_SECONDS: Final = 3.0
_RETENTION: Final = (
    ("retention.bytes", ("-1", "3000", "20000")),
    ("retention.ms", ("-1", "1000", "10000")),
    ("retention.records", ("-1", "20", "200")),
)
_COMPACTION: Final = (
    ("delete.retention.ms", ("0", "1000", "60000")),
    ("min.cleanable.dirty.ratio", ("0.01", "0.5", "1")),
    ("min.compaction.lag.ms", ("0", "500", "60000")),
    ("max.compaction.lag.ms", ("1000", "9223372036854775807")),
    ("segment.bytes", ("500", "2000", "20000")),
    ("segment.ms", ("500", "60000")),
)
REFUSED: Final = "a compacted topic deletes nothing"


def situate_deletions(plan: Plan, choose: random.Random, enabled: Collection[str]) -> Plan:
    """Records are deleted, by hand and by retention that changes; segments are small."""
    rate = choose.choice((0.5, 2.0, 5.0))  # per simulated second
    faults = [
        Fault(at, "delete_records", _draw_place(plan, choose) | {"part": choose.random()})
        for at in moments(choose, rate, plan.chaos_seconds)
    ]
    node = {**plan.node, "retention_check_ms": choose.choice((100, 1000, 5000))}
    if plan.story == "kv":
        faults += [
            Fault(at, "alter_compaction", _draw_change(plan, choose, _COMPACTION))
            for at in moments(choose, choose.choice((0.3, 1.0)), plan.chaos_seconds)
        ]
        return with_faults(plan, faults)
    if choose.random() < 0.5:
        faults += [
            Fault(at, "alter_retention", _draw_change(plan, choose, _RETENTION))
            for at in moments(choose, 0.3, plan.chaos_seconds)
        ]
    if choose.random() < 0.5:
        defaults = plan.node["topic_defaults"]
        node["topic_defaults"] = replace(defaults, segment_bytes=choose.choice((500, 2000)))
    return with_faults(replace(plan, node=node), faults)


def _draw_place(plan: Plan, choose: random.Random) -> dict[str, Any]:
    topic = f"tide-{choose.randrange(plan.pace.topics)}"
    return {"topic": topic, "partition": choose.randrange(plan.pace.partitions)}


def _draw_change(
    plan: Plan, choose: random.Random, settings: Sequence[tuple[str, Sequence[str]]]
) -> dict[str, Any]:
    name, values = choose.choice(settings)
    topic = f"tide-{choose.randrange(plan.pace.topics)}"
    return {"topic": topic, "name": name, "value": choose.choice(values)}


def delete_records(world: World, topic: str, partition: int, part: float) -> None:
    """Delete about this part of what a partition has."""
    world.count("delete_records")
    world.client("operator").spawn(_delete(world, TopicPartition(topic, partition), part))


async def _delete(world: World, place: TopicPartition, part: float) -> None:
    host = world.client("operator")
    client = _client(world)
    try:
        topic, number = place.topic, place.partition
        start = (await client.list_offsets(topic, {number: EARLIEST}))[number].offset
        end = (await client.list_offsets(topic, {number: LATEST}))[number].offset
        wanted = start + round((end - start) * part)
        (deleted,) = (await client.delete_records(place.topic, {place.partition: wanted})).values()
        world.trace.note(host.name, f"{place} begins at {deleted}, {wanted} was asked for")
        if _is_compacted(world, topic):
            world.fail(REFUSED, f"{place} begins at {deleted}")
        if not world.forced[place]:  # else who was deposed by force may have deleted it
            world.delete_before(place, wanted)
    except TidelogError as error:
        world.trace.note(host.name, f"{place}: {type(error).__name__}: {error}")
    finally:
        client.close()


def _is_compacted(world: World, topic: str) -> bool:
    images = [machine.node.broker.image for machine in world.machines.values() if machine.is_up]
    known = [image.topics[topic] for image in images if topic in image.topics]
    return any(found.config.get("cleanup.policy") == "compact" for found in known)


def alter_retention(world: World, topic: str, name: str, value: str) -> None:
    """Let retention keep more or less of a topic."""
    world.count("alter_retention")
    world.client("operator").spawn(_alter(world, topic, ConfigChange(name=name, value=value)))


def alter_compaction(world: World, topic: str, name: str, value: str) -> None:
    """Let a topic be compacted in another way."""
    world.count("alter_compaction")
    world.client("operator").spawn(_alter(world, topic, ConfigChange(name=name, value=value)))


async def _alter(world: World, topic: str, change: ConfigChange) -> None:
    host = world.client("operator")
    client = _client(world)
    try:
        await client.alter_configs(Resource.TOPIC, topic, [change])
        world.trace.note(host.name, f"{topic}: {change.name}={change.value}")
    except TidelogError as error:
        world.trace.note(host.name, f"{topic}: {type(error).__name__}: {error}")
    finally:
        client.close()


def _client(world: World) -> AdminClient:
    return AdminClient(
        ",".join(map(bootstrap, world.machines)),
        network=world.client("operator").network,
        timeout_seconds=_TIMEOUT_SECONDS,
    )
