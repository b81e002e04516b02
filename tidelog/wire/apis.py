"""Which APIs and versions this broker speaks: the one table that everything else follows.

Rule 1: an API is listed only when it works; clients switch to what they see by themselves.
Rule 2: minima stay at or below what kafkajs sends, which ignores them.

Deviations from what is implemented are in the table itself: Produce is advertised from version 0,
because older librdkafka gives up compression otherwise, and refused below 3. SaslHandshake 0, whose
messages have no headers, is refused for the same reason. ListTransactions is
taken up to version 1: the next brings patterns of its sender, and Python's own can take for ever.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from tidelog.wire.own import (
    COMMIT_GROUP,
    FORGET_DECISION,
    LIST_DECISIONS,
    PERFORM,
    READ_DECISION,
    RESTORE_BATCHES,
)


class Api(IntEnum):
    """Kafka's API keys, and those of our own (`own.py`)."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    WRITE_TXN_MARKERS = 27
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_ACLS = 29
    CREATE_ACLS = 30
    DELETE_ACLS = 31
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    DESCRIBE_LOG_DIRS = 35
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    DELETE_GROUPS = 42
    ELECT_LEADERS = 43
    INCREMENTAL_ALTER_CONFIGS = 44
    ALTER_PARTITION_REASSIGNMENTS = 45
    LIST_PARTITION_REASSIGNMENTS = 46
    OFFSET_DELETE = 47
    DESCRIBE_USER_SCRAM_CREDENTIALS = 50
    ALTER_USER_SCRAM_CREDENTIALS = 51
    DESCRIBE_QUORUM = 55
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    UNREGISTER_BROKER = 64
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66
    DESCRIBE_TOPIC_PARTITIONS = 75
    ADD_RAFT_VOTER = 80
    REMOVE_RAFT_VOTER = 81
    COMMIT_GROUP = COMMIT_GROUP
    READ_DECISION = READ_DECISION
    FORGET_DECISION = FORGET_DECISION
    RESTORE_BATCHES = RESTORE_BATCHES
    LIST_DECISIONS = LIST_DECISIONS
    PERFORM = PERFORM

    @property
    def title(self) -> str:
        """Kafka's own name, such as `ListOffsets`."""
        return "".join(word.title() for word in self.name.split("_"))


@dataclass(frozen=True, slots=True)
class Versions:
    """The versions of an API that are advertised, and the least that is really taken."""

    least: int
    most: int
    taken_from: int
    flexible_from: int
    """From here on strings and arrays are compact and headers carry tags."""

    def takes(self, version: int) -> bool:
        return self.taken_from <= version <= self.most


def _speak(least: int, most: int, *, flexible_from: int, taken_from: int | None = None) -> Versions:
    return Versions(least, most, least if taken_from is None else taken_from, flexible_from)


NEVER: Final = 1 << 15
"""No version of the API is flexible."""

APIS: Final[dict[Api, Versions]] = {
    Api.PRODUCE: _speak(0, 13, taken_from=3, flexible_from=9),
    Api.FETCH: _speak(4, 17, flexible_from=12),
    Api.LIST_OFFSETS: _speak(1, 10, flexible_from=6),
    Api.METADATA: _speak(0, 13, flexible_from=9),
    Api.OFFSET_COMMIT: _speak(2, 10, flexible_from=8),
    Api.OFFSET_FETCH: _speak(1, 10, flexible_from=6),
    Api.FIND_COORDINATOR: _speak(0, 6, flexible_from=3),
    Api.JOIN_GROUP: _speak(0, 9, flexible_from=6),
    Api.HEARTBEAT: _speak(0, 4, flexible_from=4),
    Api.LEAVE_GROUP: _speak(0, 5, flexible_from=4),
    Api.SYNC_GROUP: _speak(0, 5, flexible_from=4),
    Api.DESCRIBE_GROUPS: _speak(0, 6, flexible_from=5),
    Api.LIST_GROUPS: _speak(0, 5, flexible_from=3),
    Api.SASL_HANDSHAKE: _speak(0, 1, taken_from=1, flexible_from=NEVER),
    Api.API_VERSIONS: _speak(0, 4, flexible_from=3),
    Api.CREATE_TOPICS: _speak(2, 7, flexible_from=5),
    Api.DELETE_TOPICS: _speak(1, 6, flexible_from=4),
    Api.DELETE_RECORDS: _speak(0, 2, flexible_from=2),
    Api.INIT_PRODUCER_ID: _speak(0, 5, flexible_from=2),
    Api.OFFSET_FOR_LEADER_EPOCH: _speak(2, 4, flexible_from=4),
    Api.ADD_PARTITIONS_TO_TXN: _speak(0, 3, flexible_from=3),
    Api.ADD_OFFSETS_TO_TXN: _speak(0, 4, flexible_from=3),
    Api.END_TXN: _speak(0, 5, flexible_from=3),
    Api.WRITE_TXN_MARKERS: _speak(1, 1, flexible_from=1),
    Api.TXN_OFFSET_COMMIT: _speak(0, 5, flexible_from=3),
    Api.DESCRIBE_ACLS: _speak(1, 3, flexible_from=2),
    Api.CREATE_ACLS: _speak(1, 3, flexible_from=2),
    Api.DELETE_ACLS: _speak(1, 3, flexible_from=2),
    Api.DESCRIBE_CONFIGS: _speak(1, 4, flexible_from=4),
    Api.ALTER_CONFIGS: _speak(0, 2, flexible_from=2),
    Api.DESCRIBE_LOG_DIRS: _speak(1, 4, flexible_from=2),
    Api.SASL_AUTHENTICATE: _speak(0, 2, flexible_from=2),
    Api.CREATE_PARTITIONS: _speak(0, 3, flexible_from=2),
    Api.DELETE_GROUPS: _speak(0, 2, flexible_from=2),
    Api.ELECT_LEADERS: _speak(0, 2, flexible_from=2),
    Api.INCREMENTAL_ALTER_CONFIGS: _speak(0, 1, flexible_from=1),
    Api.ALTER_PARTITION_REASSIGNMENTS: _speak(0, 1, flexible_from=0),
    Api.LIST_PARTITION_REASSIGNMENTS: _speak(0, 0, flexible_from=0),
    Api.OFFSET_DELETE: _speak(0, 0, flexible_from=NEVER),
    Api.DESCRIBE_USER_SCRAM_CREDENTIALS: _speak(0, 0, flexible_from=0),
    Api.ALTER_USER_SCRAM_CREDENTIALS: _speak(0, 0, flexible_from=0),
    Api.DESCRIBE_QUORUM: _speak(0, 2, flexible_from=0),
    Api.DESCRIBE_CLUSTER: _speak(0, 2, flexible_from=0),
    Api.DESCRIBE_PRODUCERS: _speak(0, 0, flexible_from=0),
    Api.UNREGISTER_BROKER: _speak(0, 0, flexible_from=0),
    Api.DESCRIBE_TRANSACTIONS: _speak(0, 0, flexible_from=0),
    Api.LIST_TRANSACTIONS: _speak(0, 1, flexible_from=0),
    Api.DESCRIBE_TOPIC_PARTITIONS: _speak(0, 0, flexible_from=0),
    Api.ADD_RAFT_VOTER: _speak(0, 0, flexible_from=0),
    Api.REMOVE_RAFT_VOTER: _speak(0, 0, flexible_from=0),
    Api.COMMIT_GROUP: _speak(1, 2, flexible_from=0),
    Api.READ_DECISION: _speak(0, 1, flexible_from=0),
    Api.FORGET_DECISION: _speak(1, 2, flexible_from=0),
    Api.RESTORE_BATCHES: _speak(0, 0, flexible_from=0),
    Api.LIST_DECISIONS: _speak(0, 0, flexible_from=0),
    Api.PERFORM: _speak(0, 0, flexible_from=0),
}
