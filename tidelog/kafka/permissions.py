"""What each of Kafka's APIs does to which kind of resource: the operations that its sender must be allowed.

Rule 1: an API has a row here, or is one of `FREE`. A handler names the resources; which operation a
        resource takes is written here and nowhere else.
Rule 2: the operations are Kafka's own, so that the permissions of a cluster of Kafka do here what they
        did there.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from tidelog.security.permissions import OPERATIONS_OF, Kind, Operation
from tidelog.wire.apis import Api

_TOPIC, _GROUP, _CLUSTER, _ID = Kind.TOPIC, Kind.GROUP, Kind.CLUSTER, Kind.TRANSACTIONAL_ID
_READ, _WRITE, _CREATE, _DELETE = Operation.READ, Operation.WRITE, Operation.CREATE, Operation.DELETE
_ALTER, _DESCRIBE, _ACTION = Operation.ALTER, Operation.DESCRIBE, Operation.CLUSTER_ACTION
_SEE, _SET, _IDEMPOTENT = (Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS, Operation.IDEMPOTENT_WRITE)

NEEDS: Final[Mapping[Api, Mapping[Kind, Operation]]] = MappingProxyType(
    {
        Api.PRODUCE: {_TOPIC: _WRITE, _ID: _WRITE},
        Api.FETCH: {_TOPIC: _READ},
        Api.LIST_OFFSETS: {_TOPIC: _DESCRIBE},
        Api.METADATA: {_TOPIC: _DESCRIBE},
        Api.OFFSET_COMMIT: {_GROUP: _READ, _TOPIC: _READ},
        Api.OFFSET_FETCH: {_GROUP: _DESCRIBE, _TOPIC: _DESCRIBE},
        Api.FIND_COORDINATOR: {_GROUP: _DESCRIBE, _ID: _DESCRIBE},
        Api.JOIN_GROUP: {_GROUP: _READ},
        Api.HEARTBEAT: {_GROUP: _READ},
        Api.LEAVE_GROUP: {_GROUP: _READ},
        Api.SYNC_GROUP: {_GROUP: _READ},
        Api.DESCRIBE_GROUPS: {_GROUP: _DESCRIBE},
        Api.LIST_GROUPS: {_GROUP: _DESCRIBE, _CLUSTER: _DESCRIBE},
        Api.CREATE_TOPICS: {_TOPIC: _CREATE, _CLUSTER: _CREATE},
        Api.DELETE_TOPICS: {_TOPIC: _DELETE},
        Api.DELETE_RECORDS: {_TOPIC: _DELETE},
        Api.INIT_PRODUCER_ID: {_ID: _WRITE, _CLUSTER: _IDEMPOTENT, _TOPIC: _WRITE},
        Api.OFFSET_FOR_LEADER_EPOCH: {_TOPIC: _DESCRIBE},
        Api.ADD_PARTITIONS_TO_TXN: {_ID: _WRITE, _TOPIC: _WRITE},
        Api.ADD_OFFSETS_TO_TXN: {_ID: _WRITE, _GROUP: _READ},
        Api.END_TXN: {_ID: _WRITE},
        Api.WRITE_TXN_MARKERS: {_CLUSTER: _ACTION},
        Api.TXN_OFFSET_COMMIT: {_ID: _WRITE, _GROUP: _READ, _TOPIC: _READ},
        Api.DESCRIBE_ACLS: {_CLUSTER: _DESCRIBE},
        Api.CREATE_ACLS: {_CLUSTER: _ALTER},
        Api.DELETE_ACLS: {_CLUSTER: _ALTER},
        Api.DESCRIBE_CONFIGS: {_TOPIC: _SEE, _CLUSTER: _SEE},
        Api.ALTER_CONFIGS: {_TOPIC: _SET, _CLUSTER: _SET},
        Api.DESCRIBE_LOG_DIRS: {_CLUSTER: _DESCRIBE},
        Api.CREATE_PARTITIONS: {_TOPIC: _ALTER},
        Api.DELETE_GROUPS: {_GROUP: _DELETE},
        Api.ELECT_LEADERS: {_CLUSTER: _ALTER},
        Api.INCREMENTAL_ALTER_CONFIGS: {_TOPIC: _SET, _CLUSTER: _SET},
        Api.ALTER_PARTITION_REASSIGNMENTS: {_CLUSTER: _ALTER},
        Api.LIST_PARTITION_REASSIGNMENTS: {_CLUSTER: _DESCRIBE},
        Api.OFFSET_DELETE: {_GROUP: _DELETE, _TOPIC: _READ},
        Api.DESCRIBE_USER_SCRAM_CREDENTIALS: {_CLUSTER: _DESCRIBE},
        Api.ALTER_USER_SCRAM_CREDENTIALS: {_CLUSTER: _ALTER},
        Api.DESCRIBE_QUORUM: {_CLUSTER: _DESCRIBE},
        Api.DESCRIBE_PRODUCERS: {_TOPIC: _READ},
        Api.UNREGISTER_BROKER: {_CLUSTER: _ALTER},
        Api.DESCRIBE_TRANSACTIONS: {_ID: _DESCRIBE, _TOPIC: _DESCRIBE},
        Api.LIST_TRANSACTIONS: {_ID: _DESCRIBE},
        Api.DESCRIBE_TOPIC_PARTITIONS: {_TOPIC: _DESCRIBE},
        Api.ADD_RAFT_VOTER: {_CLUSTER: _ALTER},
        Api.REMOVE_RAFT_VOTER: {_CLUSTER: _ALTER},
        Api.COMMIT_GROUP: {_CLUSTER: _ACTION, _ID: _WRITE},
        Api.READ_DECISION: {_ID: _DESCRIBE},
        Api.FORGET_DECISION: {_CLUSTER: _ACTION, _ID: _WRITE},
        Api.RESTORE_BATCHES: {_CLUSTER: _ACTION},
        Api.LIST_DECISIONS: {_ID: _DESCRIBE},
    }
)
"""By API, the operation on each kind of resource that its requests name."""

FREE: Final[Mapping[Api, str]] = MappingProxyType(
    {
        Api.API_VERSIONS: "It tells what this software is, and clients ask before they prove who they are.",
        Api.SASL_HANDSHAKE: "By it a client proves who it is.",
        Api.SASL_AUTHENTICATE: "By it a client proves who it is.",
        Api.DESCRIBE_CLUSTER: "It tells where the brokers are, which every client has to know.",
        Api.PERFORM: "The verb that it names has a row in the table of verbs, with what it needs.",
    }
)
"""APIs that anybody may call, and why."""

REMARKS: Final[Mapping[Api, str]] = MappingProxyType(
    {
        Api.PRODUCE: "The transactional id, if there is one. Nobody may use producer ids of the HTTP range.",
        Api.METADATA: "Topics that may not be described are left out. Create, to create a missing topic.",
        Api.LIST_GROUPS: "Describe on the cluster shows all groups; otherwise those that may be described.",
        Api.CREATE_TOPICS: "Either is enough. The answer has settings only with DescribeConfigs.",
        Api.INIT_PRODUCER_ID: "Without an id: IdempotentWrite on the cluster, or Write on any topic.",
        Api.WRITE_TXN_MARKERS: "Alter on the cluster is enough, too.",
        Api.DESCRIBE_TRANSACTIONS: "Topics that may not be described are left out.",
        Api.LIST_TRANSACTIONS: "Those that may not be described are left out.",
        Api.COMMIT_GROUP: "Either ClusterAction, or Write on the group and on every transactional id.",
        Api.FORGET_DECISION: "Either is enough.",
        Api.LIST_DECISIONS: "Those that may not be described are left out.",
    }
)
"""What the row alone does not say."""

EITHER: Final = frozenset(
    {Api.CREATE_TOPICS, Api.LIST_GROUPS, Api.INIT_PRODUCER_ID, Api.COMMIT_GROUP, Api.FORGET_DECISION}
)
"""APIs for which one of the operations is enough, where their requests may take several."""

NO_OPERATIONS: Final = -(2**31)
"""What may be done was not asked for."""
OPERATION_CODES: Final[Mapping[Operation, int]] = MappingProxyType(
    {
        Operation.ALL: 2,
        Operation.READ: 3,
        Operation.WRITE: 4,
        Operation.CREATE: 5,
        Operation.DELETE: 6,
        Operation.ALTER: 7,
        Operation.DESCRIBE: 8,
        Operation.CLUSTER_ACTION: 9,
        Operation.DESCRIBE_CONFIGS: 10,
        Operation.ALTER_CONFIGS: 11,
        Operation.IDEMPOTENT_WRITE: 12,
        Operation.CREATE_TOKENS: 13,
        Operation.DESCRIBE_TOKENS: 14,
    }
)
"""As Kafka's messages write them."""
ALL_OF: Final[Mapping[Kind, int]] = MappingProxyType(
    {kind: sum(1 << OPERATION_CODES[one] for one in many) for kind, many in OPERATIONS_OF.items()}
)
"""All that can be done to a resource, as an answer writes it: one bit for each operation."""
