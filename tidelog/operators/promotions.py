"""An operator says who leads a partition: planned, or by force.

Rule: the active controller decides; a dry run tells what it would, and what may be lost.
"""

from typing import TYPE_CHECKING, Final

import msgspec

from tidelog.model import NO_NODE, TopicPartition
from tidelog.operators.values import PartitionNumber
from tidelog.operators.verbs import ALTER_CLUSTER, Http, Verb, at_controller
from tidelog.services.promotion import Promotion, promote

if TYPE_CHECKING:
    from tidelog.operators.desk import Desk


class PromoteWanted(msgspec.Struct, frozen=True, kw_only=True):
    """The body of a promotion."""

    topic: str
    partition: PartitionNumber
    node: int | None = None
    """Who shall lead; null for whoever has the longest log."""
    force: bool = False
    dry_run: bool = False


class Longest(msgspec.Struct, frozen=True, kw_only=True):
    """Of the replicas that are known, the one with the longest log."""

    node: int
    end: int
    last_epoch: int


class Promoted(msgspec.Struct, frozen=True, kw_only=True):
    """Who leads now, or would."""

    topic: str
    partition: int
    leader: int
    previous_leader: int | None
    epoch: int
    replicas: tuple[int, ...]
    in_sync: list[int]
    changed: bool
    clean: bool
    """It holds all that was committed."""
    end: int | None
    last_epoch: int | None
    longest: Longest | None
    high_watermark: int | None
    records_lost_max: int | None
    unknown: list[int]
    """Replicas of which nothing is known."""
    dry_run: bool


async def promote_partition(desk: "Desk", asked: PromoteWanted) -> Promoted:
    name = TopicPartition(asked.topic, asked.partition)
    found = await promote(desk.broker, name, asked.node, force=asked.force, dry_run=asked.dry_run)
    return describe_promotion(found, dry_run=asked.dry_run)


def describe_promotion(found: Promotion, *, dry_run: bool) -> Promoted:
    longest = found.longest
    mine = found.known.get(found.leader)
    before, after = found.before, found.after
    return Promoted(
        topic=found.name.topic,
        partition=found.name.partition,
        leader=found.leader,
        previous_leader=None if before.leader == NO_NODE else before.leader,
        epoch=after.epoch,
        replicas=after.replicas,
        in_sync=sorted(after.in_sync),
        changed=found.has_changed,
        clean=found.is_clean,
        end=None if mine is None else mine.end,
        last_epoch=None if mine is None else mine.last_epoch,
        longest=None
        if longest is None
        else Longest(node=longest, end=found.known[longest].end, last_epoch=found.known[longest].last_epoch),
        high_watermark=max((one.watermark for one in found.known.values()), default=None),
        records_lost_max=found.records_lost_max,
        unknown=[node for node in after.replicas if node not in found.known],
        dry_run=dry_run,
    )


VERBS: Final = (
    Verb(
        name="partitions.promote",
        do=promote_partition,
        where=at_controller,
        permission=ALTER_CLUSTER,
        is_dangerous=True,
        summary="Make another replica the leader of a partition.",
        http=Http(
            "POST",
            "/v1/topics/{topic}/partitions/{partition:int}/promote",
            id="operations_promote_partition",
            errors={
                404: "There is no such partition.",
                409: "The node is not in sync, damaged or not there.",
            },
        ),
    ),
)
