"""The settings of each topic, as they are in effect on this node."""

from dataclasses import replace
from typing import Final

from tidelog.config import NodeConfig, TopicConfig, topic_config
from tidelog.config.topic import BY_REPLICAS
from tidelog.controller.image import ClusterImage, TopicImage
from tidelog.model import INTERNAL_TOPICS, OFFSETS_TOPIC, QUEUES_TOPIC, TRANSACTIONS_TOPIC

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
            settled = topic_config(topic.config, config.topic_defaults)
            if "min.insync.replicas" not in topic.config:
                settled = replace(settled, min_insync_replicas=int(common))
            known = self._known[topic.name] = settings, settled
        return known[1]

    def forget(self, topic: str) -> None:
        """The topic is no more."""
        self._known.pop(topic, None)
