"""The settings of each topic, and of the node, as they are in effect on this node.

Rule: a setting that this version does not understand has no effect, and is said; it ends nothing. Another
version may have set it, and the metadata has it for good.
"""

import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Final

from tidelog.config import NodeConfig, TopicConfig, topic_config, with_node_changes
from tidelog.config.topic import BY_REPLICAS
from tidelog.controller.image import ClusterImage, TopicImage
from tidelog.errors import ConfigError
from tidelog.model import INTERNAL_TOPICS, OFFSETS_TOPIC, QUEUES_TOPIC, TRANSACTIONS_TOPIC

_log = logging.getLogger(__name__)

INTERNAL_TOPIC_CONFIG: Final = TopicConfig(
    retention_ms=-1, max_message_bytes=64 * 1024 * 1024, segment_bytes=100 * 1024 * 1024
)
"""Always synced, never deleted by age."""

COMPACTED_TOPIC_CONFIG: Final = replace(INTERNAL_TOPIC_CONFIG, cleanup_policy="compact")

_MIN_IN_SYNC_DEFAULT: Final = "log.min.insync.replicas"


class TopicConfigs:
    """What topics' settings come to; kept until what they are made of changes."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[object, TopicConfig]] = {}

    def of(self, topic: TopicImage, image: ClusterImage, config: NodeConfig) -> TopicConfig:
        if topic.name in (OFFSETS_TOPIC, TRANSACTIONS_TOPIC, QUEUES_TOPIC):
            return COMPACTED_TOPIC_CONFIG
        if topic.name in INTERNAL_TOPICS:
            return INTERNAL_TOPIC_CONFIG
        # Never by this node's own file: leaders and controllers must not differ in it.
        common = image.node_configs.get(None, {}).get(_MIN_IN_SYNC_DEFAULT, BY_REPLICAS)
        settings = (topic.config, config.topic_defaults, common)
        known = self._known.get(topic.name)
        if known is None or known[0] != settings:
            settled = _settled(topic, config.topic_defaults)
            if "min.insync.replicas" not in topic.config:
                settled = replace(settled, min_insync_replicas=int(common))
            known = self._known[topic.name] = settings, settled
        return known[1]

    def forget(self, topic: str) -> None:
        """The topic is no more."""
        self._known.pop(topic, None)


def _settled(topic: TopicImage, defaults: TopicConfig) -> TopicConfig:
    """The settings that this version understands: another one may have set more."""
    try:
        return topic_config(topic.config, defaults)
    except ConfigError as error:
        _log.error("a setting of topic %s has no effect here: %s", topic.name, error)
    for key, value in topic.config.items():
        with suppress(ConfigError):
            defaults = topic_config({key: value}, defaults)
    return defaults


def node_config_after(config: NodeConfig, changes: Mapping[str, str]) -> NodeConfig:
    """A node's settings after those changes that this version understands."""
    try:
        return with_node_changes(config, changes)
    except ConfigError as error:
        _log.error("a setting that was changed at runtime has no effect here: %s", error)
    for key, value in changes.items():
        with suppress(ConfigError):
            config = with_node_changes(config, {key: value})
    return config
