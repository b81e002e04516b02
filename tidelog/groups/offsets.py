"""The offsets of one group: what the log holds, and what is on its way there.

Rule 1: an offset counts once it is in the log, and not before.
Rule 2: while a write of an offset is in flight, nobody decides by its present value that it may go.
"""

from collections import Counter
from collections.abc import Iterable, Mapping

from tidelog.errors import (
    BrokerError,
    GroupSubscribedToTopic,
    InvalidTopic,
    OffsetMetadataTooLarge,
    UnstableOffsetCommit,
)
from tidelog.groups.events import Commit
from tidelog.groups.limits import Limits
from tidelog.groups.records import CommittedOffset, fits
from tidelog.groups.state import GroupState
from tidelog.model import TopicPartition
from tidelog.shards.effects import Moment


class Offsets:
    """How far a group has come in each partition.

    Invariants:
      1. `committed` equals the fold over the stored records.
      2. `in_flight` counts the writes of an offset that are neither stored nor failed.
    """

    __slots__ = ("committed", "in_flight")

    def __init__(self) -> None:
        self.committed: dict[TopicPartition, CommittedOffset] = {}
        self.in_flight: Counter[TopicPartition] = Counter()

    def __bool__(self) -> bool:
        return bool(self.committed or self.in_flight)

    def begin(self, places: Iterable[TopicPartition]) -> None:
        """A write of these offsets goes to the log."""
        for place in places:
            self.in_flight[place] += 1

    def end(self, places: Iterable[TopicPartition]) -> None:
        """The write is stored or has failed."""
        for place in places:
            self.in_flight[place] -= 1
            if not self.in_flight[place]:
                del self.in_flight[place]

    def apply(self, place: TopicPartition, value: CommittedOffset | None) -> None:
        """The log says so."""
        if value is not None:
            self.committed[place] = value
        else:
            self.committed.pop(place, None)

    def known(self) -> set[TopicPartition]:
        """Every partition with an offset, or with one that may come."""
        return {*self.committed, *self.in_flight}

    def fetch(
        self, places: Iterable[TopicPartition] | None, *, require_stable: bool
    ) -> dict[TopicPartition, CommittedOffset | BrokerError | None]:
        """The offsets asked for, or all; None where there is none.

        Who asks for stable ones is sent back while a commit is in flight: a consumer that takes
        over a partition would otherwise start before what its predecessor has just committed.
        """
        asked = [*self.committed] if places is None else places
        found: dict[TopicPartition, CommittedOffset | BrokerError | None] = {}
        for place in asked:
            if require_stable and place in self.in_flight:
                found[place] = UnstableOffsetCommit(f"a commit for {place} is under way")
            else:
                found[place] = self.committed.get(place)
        return found

    def expired(self, group: GroupState, at: Moment, retention_ms: int) -> list[TopicPartition]:
        """The offsets that are too old to be kept."""
        found = []
        for place, offset in self.committed.items():
            expires_ms = group.expires_at_ms(place.topic, offset, retention_ms)
            if expires_ms is not None and expires_ms <= at.wall_ms and place not in self.in_flight:
                found.append(place)
        return found


def check_commit(
    event: Commit, at: Moment, limits: Limits
) -> tuple[dict[TopicPartition, CommittedOffset], dict[TopicPartition, BrokerError]]:
    """What of a commit can be stored, and what is refused. Each partition is judged alone."""
    accepted: dict[TopicPartition, CommittedOffset] = {}
    refused: dict[TopicPartition, BrokerError] = {}
    expires_ms = None if event.retention_ms is None else at.wall_ms + event.retention_ms
    for place, wanted in event.offsets.items():
        size = len(wanted.metadata)
        if size > limits.offset_metadata_max or not fits(wanted.metadata):
            refused[place] = OffsetMetadataTooLarge(size=size, size_max=limits.offset_metadata_max)
        elif not fits(place.topic):
            refused[place] = InvalidTopic("a topic's name has at most 249 characters")
        else:
            accepted[place] = CommittedOffset(
                offset=wanted.offset, leader_epoch=wanted.leader_epoch, metadata=wanted.metadata,
                committed_ms=at.wall_ms, expires_ms=expires_ms,
            )  # fmt: skip
    return accepted, refused


def check_delete(
    group: GroupState, places: Iterable[TopicPartition]
) -> Mapping[TopicPartition, BrokerError]:
    """Those offsets that must stay, because members consume their topics."""
    return {
        place: GroupSubscribedToTopic(place.topic)
        for place in places
        if group.consumes(place.topic)
    }
