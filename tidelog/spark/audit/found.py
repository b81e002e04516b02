"""What Spark tells of the batches of all replicas, as values that need no Spark.

Rule: of many alike only the first are told; `total` counts all.
"""

from typing import NamedTuple

from tidelog.model import NodeId, Offset


class Seen(NamedTuple):
    """How much of a replica was read."""

    topic: str
    partition: int
    replica: NodeId
    batches: int
    records: int
    bytes: int


class Bad(NamedTuple):
    """Offsets of a replica that could not be read as they should be; `total` of that kind."""

    topic: str
    partition: int
    replica: NodeId
    kind: str
    first: Offset
    last: Offset
    problem: str | None
    is_mended: bool
    """Whether the replica had a good batch there when it was asked again."""
    total: int


class Gap(NamedTuple):
    """Offsets that a replica has no batch for; `held_*` is what others have there, if anything."""

    topic: str
    partition: int
    replica: NodeId
    first: Offset
    last: Offset
    held_first: Offset | None
    held_last: Offset | None
    held_by: list[NodeId]
    total: int


class Disorder(NamedTuple):
    """A good batch that cannot follow the one before it."""

    topic: str
    partition: int
    replica: NodeId
    first: Offset
    last: Offset
    epoch: int
    last_before: Offset
    epoch_before: int
    total: int


class Dispute(NamedTuple):
    """An offset where replicas hold different things; `held` says which, by replica."""

    topic: str
    partition: int
    first: Offset
    last: Offset
    held: dict[NodeId, str]
    total: int


class Lost(NamedTuple):
    """The newest record of a key in `held_by`; `replica` has none of that key from there on."""

    topic: str
    partition: int
    replica: NodeId
    offset: Offset
    held_by: list[NodeId]
    total: int


class Found(NamedTuple):
    """All that was told."""

    seen: list[Seen]
    bad: list[Bad]
    gaps: list[Gap]
    disorders: list[Disorder]
    disputes: list[Dispute]
    lost: list[Lost]
