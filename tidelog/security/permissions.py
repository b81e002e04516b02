"""What may be done to what, by Kafka's names.

Rule 1: a permission is an operation on a resource. The whole cluster is one resource.
Rule 2: what no topic can be called names what is no topic: a queue is the topic `queue:NAME`, and a
        channel of pub/sub the topic `pubsub:NAME`. So no permission for one is one for another.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

CLUSTER_NAME: Final = "kafka-cluster"
"""The name of the one cluster resource, as Kafka writes it."""
QUEUE_PREFIX: Final = "queue:"
POINTERS_PREFIX: Final = "pointers:"
CHANNEL_PREFIX: Final = "pubsub:"


class Operation(Enum):
    """What may be allowed or denied, by Kafka's names."""

    ALL = "All"
    """Every operation; nobody asks for it, but a binding may name it."""
    READ = "Read"
    WRITE = "Write"
    CREATE = "Create"
    DELETE = "Delete"
    ALTER = "Alter"
    DESCRIBE = "Describe"
    CLUSTER_ACTION = "ClusterAction"
    DESCRIBE_CONFIGS = "DescribeConfigs"
    ALTER_CONFIGS = "AlterConfigs"
    IDEMPOTENT_WRITE = "IdempotentWrite"
    CREATE_TOKENS = "CreateTokens"
    DESCRIBE_TOKENS = "DescribeTokens"


class Kind(Enum):
    """What an operation is done to, by Kafka's names."""

    TOPIC = "Topic"
    GROUP = "Group"
    CLUSTER = "Cluster"
    TRANSACTIONAL_ID = "TransactionalId"
    USER = "User"


IMPLIED_BY: Final[Mapping[Operation, tuple[Operation, ...]]] = {
    Operation.DESCRIBE: (Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER),
    Operation.DESCRIBE_CONFIGS: (Operation.ALTER_CONFIGS,),
}
"""Who is allowed one of these may do the other, too. What is denied is denied alone."""

OPERATIONS_OF: Final[Mapping[Kind, tuple[Operation, ...]]] = {
    Kind.TOPIC: (
        Operation.READ,
        Operation.WRITE,
        Operation.CREATE,
        Operation.DELETE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    Kind.GROUP: (Operation.READ, Operation.DELETE, Operation.DESCRIBE),
    Kind.CLUSTER: (
        Operation.CREATE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.CLUSTER_ACTION,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
        Operation.IDEMPOTENT_WRITE,
    ),
    Kind.TRANSACTIONAL_ID: (Operation.WRITE, Operation.DESCRIBE),
    Kind.USER: (Operation.CREATE_TOKENS, Operation.DESCRIBE_TOKENS),
}
"""What can be done to a resource; clients that ask what they may do are told of these."""


@dataclass(frozen=True, slots=True)
class Resource:
    """One thing that permissions are given for."""

    kind: Kind
    name: str
