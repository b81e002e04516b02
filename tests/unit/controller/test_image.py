from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from tidelog.config import TopicConfig
from tidelog.controller.decisions import (
    Defaults,
    NewTopic,
    add_partitions,
    create_topic,
    delete_topic,
    grant_producer_ids,
)
from tidelog.controller.image import ClusterImage, PartitionImage
from tidelog.controller.records import (
    MetadataRecord,
    NodeRegistered,
    PartitionsAdded,
    TopicCreated,
    TopicDeleted,
    decode,
    encode,
)
from tidelog.errors import BrokerError
from tidelog.model import TopicPartition

DEFAULTS = Defaults(partitions=1, replication=-1, topic=TopicConfig())
ID, OTHER_ID = UUID(int=5), UUID(int=6)


def image_after(*records):
    image = ClusterImage()
    for record in records:
        image.apply(record)
    return image


def test_a_created_topic_is_led_by_its_first_replica_with_all_in_sync():
    image = image_after(
        TopicCreated(name="t", id=str(ID), replicas=[[2, 1], [1]], config={"a": "b"})
    )

    topic = image.topics["t"]
    assert topic is image.topics_by_id[ID]
    assert (topic.id, topic.config) == (ID, {"a": "b"})
    assert topic.partitions == (
        PartitionImage(replicas=(2, 1), in_sync=frozenset({1, 2}), leader=2, epoch=0),
        PartitionImage(replicas=(1,), in_sync=frozenset({1}), leader=1, epoch=0),
    )


def test_a_node_that_starts_again_opens_an_epoch_where_it_leads_and_nowhere_else():
    image = image_after(
        NodeRegistered(node=1, incarnation="a"),
        TopicCreated(name="t", id=str(ID), replicas=[[1, 2], [2, 1]]),
        NodeRegistered(node=1, incarnation="b"),
        NodeRegistered(node=1, incarnation="c"),
    )

    assert image.nodes == {1: "c"}
    assert [partition.epoch for partition in image.topics["t"].partitions] == [2, 0]
    assert image.topics_by_id[ID] is image.topics["t"]


def test_added_partitions_follow_the_old_ones_which_keep_their_epochs():
    image = image_after(
        TopicCreated(name="t", id=str(ID), replicas=[[1]]),
        NodeRegistered(node=1, incarnation="a"),
        PartitionsAdded(topic="t", replicas=[[2]]),
    )

    partitions = image.topics["t"].partitions
    assert [(p.leader, p.epoch) for p in partitions] == [(1, 1), (2, 0)]
    assert image.topics_by_id[ID] is image.topics["t"]


def test_a_deleted_topic_is_gone_by_name_and_by_id_and_its_name_is_free():
    image = image_after(
        TopicCreated(name="t", id=str(ID), replicas=[[1]]),
        TopicDeleted(name="t"),
    )
    assert image == ClusterImage()

    image.apply(TopicCreated(name="t", id=str(OTHER_ID), replicas=[[1]]))

    assert set(image.topics_by_id) == {OTHER_ID}


def test_the_partitions_of_a_node_are_those_it_holds_a_replica_of():
    image = image_after(
        TopicCreated(name="t", id=str(ID), replicas=[[1, 2], [2], [3, 1]]),
        TopicCreated(name="u", id=str(OTHER_ID), replicas=[[2]]),
    )

    assert [name for _, name in image.partitions_on(1)] == [
        TopicPartition("t", 0),
        TopicPartition("t", 2),
    ]


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["register", "create", "grow", "delete", "grant"]),
        st.integers(1, 3),
        st.sampled_from(["a", "b", "c"]),
    ),
    max_size=25,
)


@given(events=EVENTS)
def test_the_replay_of_encoded_records_gives_the_live_image(events):
    live, log = ClusterImage(), []
    for number, (kind, node, name) in enumerate(events):
        record: MetadataRecord
        try:
            match kind:
                case "register":
                    record = NodeRegistered(node=node, incarnation=str(number))
                case "create":
                    wanted = NewTopic(name=name, partitions=node, config={"segment.ms": "7"})
                    record = create_topic(live, wanted, UUID(int=number + 1), DEFAULTS)
                case "grow":
                    record = add_partitions(live, name, node + 2, None)
                case "delete":
                    record = delete_topic(live, name, None)
                case _:
                    record = grant_producer_ids(live, node)
        except BrokerError:
            continue
        live.apply(record)
        log.append(encode(record))

    replayed = image_after(*map(decode, log))

    assert replayed == live
    assert len(live.topics_by_id) == len(live.topics)
    assert all(live.topics_by_id[t.id] is t for t in live.topics.values())
