"""Settings: one definition each, with type, default, limits and a sentence for people.

    setting.py         one setting
    topic.py           those of a topic
    node.py            those of a node, and where they come from
    environment.py     those in environment variables
    security.py        those that say who may connect; listeners.py: where, and what is spoken there
    master_replica.py  the keys of files for a master and its replicas, and what they are here
    reference.py       all of them as a document
    quorum.py          the voters, as an option names them

Rule 1: a setting's name is its field's name with dots for underscores (`retention_ms` is
        `retention.ms`), as Kafka names it wherever Kafka has it.
Rule 2: values are checked where they enter; an error names the key, the value and the fix.
Rule 3: a default for all topics is the topic's key behind `log.` (`log.retention.ms`).

Sources, the later wins: defaults, the YAML file, the environment (`TIDELOG_LOG_RETENTION_MS`),
the command's flags.
"""

from tidelog.config.environment import from_environment
from tidelog.config.node import (
    DYNAMIC_NODE_SETTINGS,
    NODE_SETTINGS,
    TOPIC_DEFAULT_PREFIX,
    NodeConfig,
    all_node_settings,
    flatten,
    node_config,
    node_value,
    with_node_changes,
)
from tidelog.config.reference import reference
from tidelog.config.setting import DAY_MS, MIB, Setting, split_list
from tidelog.config.topic import TOPIC_SETTINGS, TopicConfig, check_together, topic_config

__all__ = [
    "DAY_MS",
    "DYNAMIC_NODE_SETTINGS",
    "MIB",
    "NODE_SETTINGS",
    "TOPIC_DEFAULT_PREFIX",
    "TOPIC_SETTINGS",
    "NodeConfig",
    "Setting",
    "TopicConfig",
    "all_node_settings",
    "check_together",
    "flatten",
    "from_environment",
    "node_config",
    "node_value",
    "reference",
    "split_list",
    "topic_config",
    "with_node_changes",
]
