"""What may be done to what, by Kafka's names.

Rule: a permission is an operation on a resource. The whole cluster is one resource.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Final

CLUSTER_NAME: Final = "kafka-cluster"
"""The name of the one cluster resource, as Kafka writes it."""


class Operation(Enum):
    """What may be allowed or denied, by Kafka's names."""

    READ = "Read"
    WRITE = "Write"
    CREATE = "Create"
    DELETE = "Delete"
    ALTER = "Alter"
    DESCRIBE = "Describe"
    DESCRIBE_CONFIGS = "DescribeConfigs"
    ALTER_CONFIGS = "AlterConfigs"


class Kind(Enum):
    """What an operation is done to, by Kafka's names."""

    TOPIC = "Topic"
    GROUP = "Group"
    CLUSTER = "Cluster"
    TRANSACTIONAL_ID = "TransactionalId"


@dataclass(frozen=True, slots=True)
class Resource:
    """One thing that permissions are given for."""

    kind: Kind
    name: str
