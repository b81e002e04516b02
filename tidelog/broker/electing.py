"""What the active controller needs to decide on leaders: that it is active, the electorate, the partition."""

from tidelog.broker.broker import Broker
from tidelog.controller.decisions import find_topic
from tidelog.controller.elections import Electorate
from tidelog.controller.image import ClusterImage, Place
from tidelog.errors import NotController, UnknownTopicOrPartition
from tidelog.model import TopicPartition


def require_controller(broker: Broker) -> None:
    """Refuse what only the active controller can decide: it has heard how the replicas are."""
    if not broker.member.quorum.leads:
        raise NotController("the active controller decides this: it knows how the replicas are")


def electorate_of(broker: Broker, image: ClusterImage) -> Electorate:
    """Who can be elected, as far as this node has heard: the active controller, of everybody."""
    return broker.controller.controller.electorate(image)


def find_place(image: ClusterImage, name: TopicPartition) -> Place:
    topic = find_topic(image, name.topic)
    if not 0 <= name.partition < len(topic.partitions):
        raise UnknownTopicOrPartition(name)
    return Place(topic, name.partition)
