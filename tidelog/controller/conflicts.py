"""Which proposals stand though something was committed since they were decided.

A proposal was decided on an image, and the log has grown since. It is as good as before if nothing
that the decision looked at was touched: the records would be the same on the newest image.

Rule 1: what a decision looked at follows from its records, by the table below. A record that the
        table does not know looked at everything, and so did a decision without records.
Rule 2: the table names more than a decision reads rather than less. A needless conflict costs
        another try; a missed one would commit what was never decided.
"""

from collections.abc import Iterable, Sequence
from typing import Final, TypeAlias

from tidelog.controller.records import (
    AclAdded,
    AclRemoved,
    BrokerFenced,
    BrokerRegistered,
    BrokerShutdownWanted,
    BrokerUnfenced,
    BrokerUnregistered,
    LeaderChanged,
    MetadataRecord,
    NodeConfigChanged,
    PartitionChanged,
    PartitionsAdded,
    ProducerIdsGranted,
    SaltsChosen,
    TokenGranted,
    TokenRevoked,
    TopicConfigChanged,
    TopicCreated,
    TopicDeleted,
    UserChanged,
)
from tidelog.model import Offset

Thing: TypeAlias = str | tuple[str, int]
"""Something that decisions look at and records touch; a partition is (topic's id, number)."""

ACLS: Final = "permissions and denials"
BROKERS: Final = "brokers"
CONFIGS: Final = "configs"
CREATED: Final = "created topics and partitions"
DELETED: Final = "deleted topics"
ELIGIBLE: Final = "those who are eligible though they left an in-sync set"
PRODUCER_IDS: Final = "producer ids"
USERS: Final = "users"

REMEMBERED_MAX: Final = 1000
"""So many commits back a proposal may have been decided."""
_TOUCHED_MAX: Final = 1000


def touched(record: MetadataRecord) -> frozenset[Thing] | None:
    """What the record changes; None: everything."""
    match record:
        case PartitionChanged():
            partition: Thing = (record.topic, record.partition)
            return frozenset({partition, ELIGIBLE} if record.state.eligible else {partition})
        case TopicCreated() | PartitionsAdded():
            return frozenset({CREATED})
        case TopicDeleted():
            return frozenset({DELETED})
        case TopicConfigChanged() | NodeConfigChanged():
            return frozenset({CONFIGS})
        case AclAdded() | AclRemoved():
            return frozenset({ACLS})
        case ProducerIdsGranted():
            return frozenset({PRODUCER_IDS})
        case UserChanged() | SaltsChosen() | TokenGranted() | TokenRevoked():
            return frozenset({USERS})
        case BrokerRegistered() | BrokerFenced() | BrokerUnfenced():
            return frozenset({BROKERS})
        case BrokerShutdownWanted() | BrokerUnregistered():
            return frozenset({BROKERS})
        case LeaderChanged():
            return frozenset()
        case _:  # NodeRegistered among them: it opens epochs of all that the node leads
            return None


def looked_at(records: Sequence[MetadataRecord]) -> frozenset[Thing] | None:
    """What a decision that came to `records` depends on; None: everything."""
    things: set[Thing] = set()
    for record in records:
        match record:
            case PartitionChanged():
                things |= {(record.topic, record.partition), BROKERS, CONFIGS, DELETED}
            case TopicCreated() | PartitionsAdded():
                things |= {CREATED, DELETED, BROKERS, CONFIGS}
            case TopicDeleted():
                things |= {CREATED, DELETED, CONFIGS}
            case TopicConfigChanged() | NodeConfigChanged():
                # Where fewer suffice nobody stays eligible; no record says that nobody was.
                things |= {CREATED, DELETED, BROKERS, CONFIGS, ELIGIBLE}
            case AclAdded() | AclRemoved():
                things.add(ACLS)
            case ProducerIdsGranted():
                things.add(PRODUCER_IDS)
            case UserChanged() | SaltsChosen() | TokenGranted() | TokenRevoked():
                things.add(USERS)
            case _:
                return None
    return frozenset(things) if records else None


class RecentCommits:
    """What the newest commits have touched, up to `REMEMBERED_MAX` of them."""

    def __init__(self, applied: Offset = 0) -> None:
        self._begins = applied
        self._commits: dict[Offset, frozenset[Thing] | None] = {}
        """What each touched, by where the log ended after it; in the order of the log."""

    def add(self, records: Iterable[MetadataRecord], end: Offset) -> None:
        things: set[Thing] = set()
        is_everything = False
        for record in records:
            more = touched(record)
            if more is None or len(things) >= _TOUCHED_MAX:
                is_everything = True
                break
            things |= more
        self._commits[end] = None if is_everything else frozenset(things)
        if len(self._commits) > REMEMBERED_MAX:
            self._begins = next(iter(self._commits))
            del self._commits[self._begins]

    def stands(self, records: Sequence[MetadataRecord], based_on: Offset) -> bool:
        """Whether a decision made on the image of `based_on` would be the same now."""
        if based_on < self._begins:
            return False
        things = looked_at(records)
        for end, commit in reversed(self._commits.items()):
            if end <= based_on:
                break
            if things is None or commit is None or not commit.isdisjoint(things):
                return False
        return True
