"""The offsets of one group: what the log holds, and what is on its way there.

Rule 1: an offset counts once it is in the log; one that was written in a transaction, once the
        marker that commits it is there too.
Rule 2: of two offsets that count, the one that was written later stands, whichever counted first.
        So it is also once the log is compacted, which keeps the later record.
Rule 3: while an offset is in flight or undecided, nobody decides by its present value that it may
        go.
Rule 4: a deletion ends what was written before it, decided or not.
Rule 5: an offset belongs to the topic with its `topic_id`. What is written later is never of an
        earlier topic of the name: coordinators learn of topics in the order of the metadata.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from tidelog.errors import (
    BrokerError,
    GroupSubscribedToTopic,
    InvalidTopic,
    OffsetMetadataTooLarge,
    UnstableOffsetCommit,
)
from tidelog.groups.events import Commit, TransactionalCommit
from tidelog.groups.limits import Limits
from tidelog.groups.records import CommittedOffset, fits
from tidelog.groups.state import GroupState
from tidelog.model import Offset, ProducerId, TopicPartition
from tidelog.shards.believed import BelievedTime
from tidelog.shards.effects import Moment


class Noted(NamedTuple):
    """An offset of a group, and where in the log it is written."""

    value: CommittedOffset
    log_offset: Offset


class Offsets:
    """How far a group has come in each partition.

    Invariants:
      1. `committed` and `pending` equal the fold over the stored records and markers.
      2. `in_flight` counts the writes of an offset that are neither stored nor failed.
      3. `undecided` counts the transactions in which an offset is pending.
    """

    __slots__ = ("committed", "in_flight", "pending", "undecided")

    def __init__(self) -> None:
        self.committed: dict[TopicPartition, Noted] = {}
        self.pending: dict[ProducerId, dict[TopicPartition, Noted]] = {}
        """What open transactions have written, by their producer."""
        self.in_flight: Counter[TopicPartition] = Counter()
        self.undecided: Counter[TopicPartition] = Counter()

    def __bool__(self) -> bool:
        return bool(self.committed or self.in_flight or self.undecided)

    def begin(self, places: Iterable[TopicPartition]) -> None:
        """A write of these offsets goes to the log."""
        for place in places:
            self.in_flight[place] += 1

    def end(self, places: Iterable[TopicPartition]) -> None:
        """The write is stored or has failed."""
        for place in places:
            _count_down(self.in_flight, place)

    def apply(self, place: TopicPartition, value: CommittedOffset | None, log_offset: Offset) -> None:
        """The log says so, outside of any transaction."""
        if value is not None:
            self.committed[place] = Noted(value, log_offset)
            return
        self.committed.pop(place, None)
        if place in self.undecided:
            for producer_id in list(self.pending):
                self._take_pending(producer_id, place)

    def hold(
        self, producer_id: ProducerId, place: TopicPartition, value: CommittedOffset, log_offset: Offset
    ) -> None:
        """The log says so, if the producer's transaction commits."""
        held = self.pending.setdefault(producer_id, {})
        if place not in held:
            self.undecided[place] += 1
        held[place] = Noted(value, log_offset)

    def complete(self, producer_id: ProducerId, *, commits: bool, before: Offset | None = None) -> None:
        """The producer's transaction is decided, of which all is written `before` its marker."""
        for place, noted in [*self.pending.get(producer_id, {}).items()]:
            if before is not None and noted.log_offset >= before:
                continue
            self._take_pending(producer_id, place)
            there = self.committed.get(place)
            if commits and (there is None or there.log_offset < noted.log_offset):
                self.committed[place] = noted

    def _take_pending(self, producer_id: ProducerId, place: TopicPartition) -> None:
        held = self.pending[producer_id]
        if held.pop(place, None) is not None:
            _count_down(self.undecided, place)
        if not held:
            del self.pending[producer_id]

    def known(self) -> set[TopicPartition]:
        """Every partition with an offset, or with one that may come."""
        return {*self.committed, *self.in_flight, *self.undecided}

    def newest(self) -> dict[TopicPartition, CommittedOffset]:
        """For each partition what was written last of all that counts or may yet count."""
        newest = dict(self.committed)
        for held in self.pending.values():
            for place, noted in held.items():
                there = newest.get(place)
                if there is None or there.log_offset < noted.log_offset:
                    newest[place] = noted
        return {place: noted.value for place, noted in newest.items()}

    def is_settled(self, place: TopicPartition) -> bool:
        """Whether no other offset of the partition is on its way."""
        return place not in self.in_flight and place not in self.undecided

    def fetch(
        self, places: Iterable[TopicPartition] | None, *, require_stable: bool
    ) -> dict[TopicPartition, CommittedOffset | BrokerError | None]:
        """The offsets asked for, or all; None where there is none.

        Who asks for stable ones is sent back while a commit is in flight or undecided: a consumer
        that takes over a partition would otherwise start before what its predecessor has just
        committed (KIP-447).
        """
        asked = [*self.committed] if places is None else places
        found: dict[TopicPartition, CommittedOffset | BrokerError | None] = {}
        for place in asked:
            if require_stable and not self.is_settled(place):
                found[place] = UnstableOffsetCommit(f"a commit for {place} is under way")
            else:
                noted = self.committed.get(place)
                found[place] = None if noted is None else noted.value
        return found

    def expired(self, group: GroupState, time: BelievedTime, retention_ms: int) -> list[TopicPartition]:
        """The offsets that are too old to be kept, by a clock that has not just jumped."""
        found = []
        for place, noted in self.committed.items():
            expires_ms = group.expires_at_ms(place.topic, noted.value, retention_ms)
            if expires_ms is None or not self.is_settled(place):
                continue
            if time.is_past(expires_ms, expires_ms - noted.value.committed_ms):
                found.append(place)
        return found

    def assert_invariants(self) -> None:
        """Check everything at length; for tests and simulations."""
        assert all(self.pending.values()), "who has nothing pending is not named"
        assert self.undecided == Counter(place for held in self.pending.values() for place in held)
        assert all(self.undecided.values())


def _count_down(counts: Counter[TopicPartition], place: TopicPartition) -> None:
    counts[place] -= 1
    if not counts[place]:
        del counts[place]


def check_commit(
    event: Commit | TransactionalCommit, at: Moment, limits: Limits
) -> tuple[dict[TopicPartition, CommittedOffset], dict[TopicPartition, BrokerError]]:
    """What of a commit can be stored, and what is refused. Each partition is judged alone."""
    accepted: dict[TopicPartition, CommittedOffset] = {}
    refused: dict[TopicPartition, BrokerError] = {}
    retention_ms = event.retention_ms if isinstance(event, Commit) else None
    expires_ms = None if retention_ms is None else at.wall_ms + retention_ms
    for place, wanted in event.offsets.items():
        size = len(wanted.metadata)
        if size > limits.offset_metadata_max or not fits(wanted.metadata):
            refused[place] = OffsetMetadataTooLarge(size=size, size_max=limits.offset_metadata_max)
        elif not fits(place.topic):
            refused[place] = InvalidTopic("a topic's name has at most 249 characters")
        else:
            accepted[place] = CommittedOffset(
                offset=wanted.offset,
                leader_epoch=wanted.leader_epoch,
                metadata=wanted.metadata,
                committed_ms=at.wall_ms,
                expires_ms=expires_ms,
                topic_id=wanted.topic_id,
            )
    return accepted, refused


def check_delete(group: GroupState, places: Iterable[TopicPartition]) -> Mapping[TopicPartition, BrokerError]:
    """Those offsets that must stay, because members consume their topics."""
    return {place: GroupSubscribedToTopic(place.topic) for place in places if group.consumes(place.topic)}
