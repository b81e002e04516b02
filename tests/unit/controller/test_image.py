from uuid import UUID

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.controller.histories import cluster, histories, image_after, registered, voters
from tidelog.config import TopicConfig
from tidelog.controller.decisions import (
    Defaults,
    NewTopic,
    add_partitions,
    create_topic,
    delete_topic,
    grant_producer_ids,
)
from tidelog.controller.image import ClusterImage, PartitionImage, Place
from tidelog.controller.records import (
    BrokerFenced,
    BrokerShutdownWanted,
    BrokerUnfenced,
    BrokerUnregistered,
    LeaderChanged,
    MetadataRecord,
    NodeRegistered,
    PartitionChanged,
    PartitionsAdded,
    PartitionState,
    TopicCreated,
    TopicDeleted,
    VotersChanged,
    cluster_id_of,
    decode,
    encode,
)
from tidelog.errors import BrokerError
from tidelog.model import NO_NODE, TopicPartition
from tidelog.raft.voters import VoterSet

DEFAULTS = Defaults(partitions=1, replication=-1, topic=TopicConfig())
ID, OTHER_ID = UUID(int=5), UUID(int=6)


def test_a_created_topic_is_led_by_its_first_replica_with_all_in_sync():
    image = image_after(TopicCreated(name="t", id=str(ID), replicas=[[2, 1], [1]], config={"a": "b"}))

    topic = image.topics["t"]
    assert topic is image.topics_by_id[ID]
    assert (topic.id, topic.config) == (ID, {"a": "b"})
    first, second = (cluster_id_of(ID, number) for number in range(2))
    assert topic.partitions == [
        PartitionImage(cluster_id=first, replicas=(2, 1), in_sync=frozenset({1, 2}), leader=2, epoch=0),
        PartitionImage(cluster_id=second, replicas=(1,), in_sync=frozenset({1}), leader=1, epoch=0),
    ]


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
    image = image_after(TopicCreated(name="t", id=str(ID), replicas=[[1]]), TopicDeleted(name="t"))
    assert image == ClusterImage()

    image.apply(TopicCreated(name="t", id=str(OTHER_ID), replicas=[[1]]))

    assert set(image.topics_by_id) == {OTHER_ID}


def test_the_partitions_of_a_node_are_those_it_holds_a_replica_of():
    image = image_after(
        TopicCreated(name="t", id=str(ID), replicas=[[1, 2], [2], [3, 1]]),
        TopicCreated(name="u", id=str(OTHER_ID), replicas=[[2]]),
    )

    assert [name for _, name in image.partitions_on(1)] == [TopicPartition("t", 0), TopicPartition("t", 2)]


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


# Clusters.


def test_a_created_partition_is_as_its_record_says():
    state = PartitionState(77, (1, 2, 3), (2,), 2, 0)
    image = image_after(TopicCreated(name="t", id=str(ID), replicas=[[1, 2, 3]], partitions=[state]))

    (partition,) = image.topics["t"].partitions
    assert partition.state == state
    assert image.places == {77: Place(image.topics["t"], 0)}
    assert (image.led.keys(), image.strayed.keys()) == ({2}, {77})


def test_a_changed_partition_is_found_where_it_is_now_and_nowhere_else():
    image = image_after(TopicCreated(name="t", id=str(ID), replicas=[[1, 2], [2]]))
    moved = image.topics["t"].partitions[0].changed(replicas=(3, 2), in_sync=frozenset({2}), leader=NO_NODE)

    image.apply(PartitionChanged(topic=str(ID), partition=0, state=moved.state))

    cluster_id = moved.cluster_id
    assert image.topics["t"].partitions[0] == moved
    assert image.topics_by_id[ID].partitions[0] == moved
    assert image.partitions_on(1) == []
    assert [name for _, name in image.partitions_on(3)] == [TopicPartition("t", 0)]
    assert image.replica(1, cluster_id) is None
    place = image.replica(2, cluster_id)
    assert place is not None
    assert (place.name, place.partition) == (TopicPartition("t", 0), moved)
    assert image.led[NO_NODE].keys() == {cluster_id}


def test_a_change_opens_a_leader_epoch_only_if_the_leader_is_another():
    image = image_after(TopicCreated(name="t", id=str(ID), replicas=[[1, 2]]))
    (partition,) = image.topics["t"].partitions

    shrunk = partition.changed(in_sync=frozenset({1}))
    led = shrunk.changed(leader=2)
    nobody = led.changed(leader=NO_NODE)

    assert [(p.epoch, p.partition_epoch) for p in (shrunk, led, nobody)] == [(0, 1), (1, 2), (2, 3)]


def test_a_broker_is_what_its_last_registration_and_its_fate_say():
    image = image_after(*cluster(1, 2))
    assert image.active_nodes() == [1, 2]

    image.apply(BrokerShutdownWanted(node=1, broker_epoch=1))
    image.apply(BrokerFenced(node=2, broker_epoch=2))
    assert image.active_nodes() == []
    assert (image.brokers[1].fenced, image.brokers[1].shutting_down) == (False, True)
    assert (image.brokers[2].fenced, image.brokers[2].shutting_down) == (True, False)

    image.apply(registered(1, epoch=3, directory="other", rack="r"))
    broker = image.brokers[1]
    assert (broker.broker_epoch, broker.directory, broker.rack) == (3, "other", "r")
    assert (broker.fenced, broker.shutting_down) == (True, False)
    assert image.nodes == {1: "i1.3", 2: "i2.2"}

    image.apply(BrokerUnfenced(node=1, broker_epoch=3))
    image.apply(BrokerUnregistered(node=2, broker_epoch=2))
    assert image.active_nodes() == [1]
    assert (image.nodes.keys(), image.brokers.keys()) == ({1}, {1})


def test_broker_epochs_do_not_fall_when_their_broker_goes():
    image = image_after(*cluster(1, 2), BrokerUnregistered(node=2, broker_epoch=2))

    assert image.broker_epoch_last == 2


def test_a_node_that_was_alone_becomes_a_broker_and_keeps_what_it_leads():
    image = image_after(
        NodeRegistered(node=1, incarnation="a"), TopicCreated(name="t", id=str(ID), replicas=[[1]])
    )
    assert image.active_nodes() == [1]

    image.apply(registered(1))

    assert image.active_nodes() == []
    assert [(p.leader, p.epoch) for p in image.topics["t"].partitions] == [(1, 0)]


def test_the_newest_record_says_who_votes_and_who_leads_the_quorum():
    image = image_after(
        LeaderChanged(epoch=3, leader=2, voters=voters(1, 2)), VotersChanged(voters=voters(1, 2, 3))
    )

    assert (image.quorum_epoch, image.quorum_leader) == (3, 2)
    assert image.voters == VoterSet(voters(1, 2, 3))


def test_a_partition_whose_number_is_taken_gets_the_next():
    taken = cluster_id_of(ID, 0)
    state = PartitionState(taken, (1,), (1,), 1, 0)
    image = image_after(TopicCreated(name="u", id=str(OTHER_ID), replicas=[[1]], partitions=[state]))

    assert image.free_cluster_ids(ID, 0, 2) == [taken + 1, cluster_id_of(ID, 1)]
    image.apply(TopicCreated(name="t", id=str(ID), replicas=[[1]]))
    assert image.topics["t"].partitions[0].cluster_id == taken + 1


def test_images_that_know_different_things_differ():
    records = [
        *cluster(1),
        TopicCreated(name="t", id=str(ID), replicas=[[1]]),
        LeaderChanged(epoch=1, leader=1, voters=voters(1)),
    ]
    image = image_after(*records)
    partition = image.topics["t"].partitions[0].changed()

    assert image == image_after(*records)
    assert all(image != image_after(*records[:n], *records[n + 1 :]) for n in range(1, len(records)))
    changed = PartitionChanged(topic=str(ID), partition=0, state=partition.state)
    assert image != image_after(*records, changed)


def indexes_from_scratch(image):
    places: dict = {}
    held: dict = {}
    led: dict = {}
    strayed: dict = {}
    moving: dict = {}
    preferred: dict = {}
    for topic in image.topics.values():
        for number, partition in enumerate(topic.partitions):
            cluster_id, first = partition.cluster_id, partition.replicas[0]
            places[cluster_id] = (topic.name, number)
            for node in partition.replicas:
                held.setdefault(node, {})[cluster_id] = (topic.name, number)
            led.setdefault(partition.leader, {})[cluster_id] = (topic.name, number)
            preferred[first] = preferred.get(first, 0) + 1
            if partition.leader != first:
                strayed[cluster_id] = (topic.name, number)
            if partition.adding or partition.removing:
                moving[cluster_id] = (topic.name, number)
    return places, held, led, strayed, moving, preferred


def indexes_of(image):
    def named(places):
        assert all(image.topics[place.topic.name] is place.topic for place in places.values())
        return {key: (place.topic.name, place.number) for key, place in places.items()}

    return (
        named(image.places),
        {node: named(places) for node, places in image.held.items()},
        {node: named(places) for node, places in image.led.items()},
        named(image.strayed),
        named(image.moving),
        image.preferred,
    )


@settings(max_examples=50, deadline=None)
@given(records=histories())
def test_the_indexes_equal_what_a_look_at_everything_finds(records):
    image = ClusterImage()
    for record in records:
        image.apply(record)

        assert indexes_of(image) == indexes_from_scratch(image)
        assert {t.id: t for t in image.topics.values()} == image.topics_by_id
        for node in range(5):
            assert sorted(name for _, name in image.partitions_on(node)) == sorted(
                TopicPartition(topic.name, number)
                for topic in image.topics.values()
                for number, partition in enumerate(topic.partitions)
                if node in partition.replicas
            )


@settings(max_examples=50, deadline=None)
@given(records=histories())
def test_encoded_records_fold_to_the_same_image(records):
    assert image_after(*(decode(encode(record)) for record in records)) == image_after(*records)
