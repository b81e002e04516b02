from collections import Counter
from uuid import UUID

import pytest

from tests.unit.controller.histories import cluster, image_after, partition_in, states
from tidelog.config import TopicConfig
from tidelog.controller.decisions import (
    PARTITIONS_MAX,
    PRODUCER_IDS_BLOCK,
    Defaults,
    NewTopic,
    add_partitions,
    create_topic,
    delete_topic,
    eligible_after,
    find_topic,
    grant_producer_ids,
)
from tidelog.controller.image import ClusterImage
from tidelog.controller.records import (
    BrokerFenced,
    NodeConfigChanged,
    NodeRegistered,
    PartitionState,
    TopicConfigChanged,
    TopicCreated,
    TopicDeleted,
    cluster_id_of,
)
from tidelog.errors import (
    EligibleLeadersNotAvailable,
    InvalidConfig,
    InvalidPartitions,
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    InvalidTopic,
    TopicAlreadyExists,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from tidelog.model import INTERNAL_TOPICS, NO_NODE

DEFAULTS = Defaults(partitions=2, replication=-1, topic=TopicConfig())
TOPIC_ID = UUID(int=9)


def image_of(*nodes, topics=()):
    image = ClusterImage()
    for node in nodes:
        image.apply(NodeRegistered(node=node, incarnation=f"i{node}"))
    for number, (name, replicas) in enumerate(topics):
        image.apply(TopicCreated(name=name, id=str(UUID(int=100 + number)), replicas=replicas))
    return image


def create(image, name="new", *, defaults=DEFAULTS, config=None, **wanted):
    return create_topic(image, NewTopic(name=name, config=config or {}, **wanted), TOPIC_ID, defaults)


# Creating.


def test_a_new_topic_gets_its_id_its_config_and_the_defaults():
    created = create(image_of(1), config={"retention.ms": "5", "segment.ms": None})

    assert created == TopicCreated(
        name="new", id=str(TOPIC_ID), replicas=[[1], [1]], config={"retention.ms": "5"}
    )


def test_a_decision_changes_nothing():
    image = image_of(1, 2)

    create(image)
    grant_producer_ids(image, 1)

    assert image == image_of(1, 2)


@pytest.mark.parametrize(("nodes", "count"), [((1,), 1), ((1, 2), 2), ((1, 2, 3, 4), 3)])
def test_replication_defaults_to_three_or_all_nodes(nodes, count):
    created = create(image_of(*nodes))

    assert {len(replicas) for replicas in created.replicas} == {count}


def test_the_clusters_replication_goes_before_three():
    defaults = Defaults(partitions=1, replication=2, topic=TopicConfig())

    assert len(create(image_of(1, 2, 3), defaults=defaults).replicas[0]) == 2
    assert len(create(image_of(1, 2, 3), defaults=defaults, replication=1).replicas[0]) == 1


def test_leaders_and_replicas_are_spread_evenly_over_distinct_nodes():
    created = create(image_of(3, 1, 7), partitions=6, replication=2)

    leaders = Counter(replicas[0] for replicas in created.replicas)
    held = Counter(node for replicas in created.replicas for node in replicas)
    assert leaders == {1: 2, 3: 2, 7: 2}
    assert held == {1: 4, 3: 4, 7: 4}
    assert all(len(set(replicas)) == 2 for replicas in created.replicas)


def test_topics_of_one_partition_do_not_all_have_the_same_leader():
    first = create(image_of(1, 2), partitions=1, replication=1)
    second = create(image_of(1, 2, topics=[("a", [[1]])]), partitions=1, replication=1)

    assert first.replicas != second.replicas


def test_replicas_may_be_given_by_hand():
    created = create(image_of(1, 2, 3), assignment={1: [3, 1], 0: [2, 3]})

    assert created.replicas == [[2, 3], [3, 1]]


@pytest.mark.parametrize(
    ("wanted", "error", "why"),
    [
        ({"name": ""}, InvalidTopic, "empty"),
        ({"name": "a b"}, InvalidTopic, "only letters"),
        ({"name": "old.topic"}, TopicAlreadyExists, "old.topic"),
        ({"name": "__consumer_offsets"}, TopicAlreadyExists, "__consumer_offsets"),
        ({"name": "old_topic"}, InvalidTopic, "only in '.' and '_'"),
        ({"partitions": 0}, InvalidPartitions, "not 0"),
        ({"partitions": -2}, InvalidPartitions, "not -2"),
        ({"partitions": PARTITIONS_MAX + 1}, InvalidPartitions, str(PARTITIONS_MAX)),
        ({"replication": 0}, InvalidReplicationFactor, "0 replicas"),
        ({"replication": 3}, InvalidReplicationFactor, "3 replicas cannot be placed on 2 nodes"),
        ({"config": {"retention.m": "1"}}, InvalidConfig, "retention.ms"),
        ({"config": {"retention.ms": "x"}}, InvalidConfig, "retention.ms is 'x'"),
        ({"assignment": {0: [9]}}, InvalidReplicaAssignment, r"no nodes \[9\]"),
        ({"assignment": {0: [1, 1]}}, InvalidReplicaAssignment, "repeat"),
        ({"assignment": {0: []}}, InvalidReplicaAssignment, "none"),
        ({"assignment": {1: [1]}}, InvalidReplicaAssignment, "0, 1, 2"),
        ({"assignment": {0: [1], 1: [1, 2]}}, InvalidReplicaAssignment, "same number"),
        ({"assignment": {0: [1]}, "partitions": 1}, InvalidReplicaAssignment, "-1 partitions"),
        ({"assignment": {0: [1]}, "replication": 1}, InvalidReplicaAssignment, "-1 partitions"),
    ],
)
def test_an_impossible_topic_is_refused_with_the_reason(wanted, error, why):
    image = image_of(1, 2, topics=[("old.topic", [[1]])])

    with pytest.raises(error, match=why):
        create(image, **{"name": "new", **wanted})


def test_without_nodes_no_topic_can_be_placed():
    with pytest.raises(InvalidReplicationFactor):
        create(image_of())


# Growing.


def test_a_topic_grows_by_as_many_partitions_as_it_lacks():
    image = image_of(1, 2, 3, topics=[("t", [[1, 2], [2, 3]])])

    added = add_partitions(image, "t", 5, None)

    assert added.topic == "t"
    assert len(added.replicas) == 3
    leaders = Counter([1, 2, *(replicas[0] for replicas in added.replicas)])
    assert sorted(leaders.values()) == [1, 2, 2]
    assert all(len(set(replicas)) == 2 for replicas in added.replicas)


def test_added_replicas_may_be_given_by_hand():
    image = image_of(1, 2, topics=[("t", [[1]])])

    assert add_partitions(image, "t", 3, [[2], [1]]).replicas == [[2], [1]]


@pytest.mark.parametrize(
    ("name", "count", "assignment", "error"),
    [
        ("u", 2, None, UnknownTopicOrPartition),
        ("t", 1, None, InvalidPartitions),
        ("t", 0, None, InvalidPartitions),
        ("t", PARTITIONS_MAX + 1, None, InvalidPartitions),
        ("t", 3, [[1]], InvalidReplicaAssignment),
        ("t", 2, [[9]], InvalidReplicaAssignment),
        ("t", 2, [[]], InvalidReplicaAssignment),
    ],
)
def test_impossible_growth_is_refused(name, count, assignment, error):
    with pytest.raises(error):
        add_partitions(image_of(1, 2, topics=[("t", [[1]])]), name, count, assignment)


@pytest.mark.parametrize("name", sorted(INTERNAL_TOPICS))
def test_internal_topics_do_not_grow_since_what_they_keep_would_be_looked_for_elsewhere(name):
    with pytest.raises(InvalidTopic):
        add_partitions(image_of(1, topics=[(name, [[1]])]), name, 2, None)


def test_added_partitions_must_have_the_topics_replication():
    with pytest.raises(InvalidReplicaAssignment):
        add_partitions(image_of(1, 2, topics=[("t", [[1]])]), "t", 2, [[1, 2]])


# Deleting, finding, granting.


def test_a_topic_is_deleted_by_name_or_by_id():
    image = image_of(1, topics=[("t", [[1]])])

    assert delete_topic(image, "t", None) == TopicDeleted(name="t")
    assert delete_topic(image, None, UUID(int=100)) == TopicDeleted(name="t")


def test_a_topic_that_is_not_there_cannot_be_deleted_or_found():
    image = image_of(1)

    with pytest.raises(UnknownTopicOrPartition):
        delete_topic(image, "t", None)
    with pytest.raises(UnknownTopicId):
        delete_topic(image, None, UUID(int=100))
    with pytest.raises(UnknownTopicId):
        delete_topic(image, None, None)
    with pytest.raises(UnknownTopicOrPartition):
        find_topic(image, "t")


def test_blocks_of_producer_ids_never_overlap():
    image = image_of(1, 2)
    ends = []
    for node in (1, 2, 1):
        granted = grant_producer_ids(image, node)
        assert granted.node == node
        image.apply(granted)
        ends.append(granted.end)

    assert ends == [PRODUCER_IDS_BLOCK, 2 * PRODUCER_IDS_BLOCK, 3 * PRODUCER_IDS_BLOCK]


# In a cluster.


def test_in_a_cluster_all_who_are_there_hold_all_of_a_new_partition_and_are_in_sync():
    image = image_after(*cluster(1, 2, 3))

    created = create(image, partitions=3, replication=3)
    image.apply(created)

    assert [state.replicas for state in created.partitions] == list(map(tuple, created.replicas))
    for partition in image.topics["new"].partitions:
        assert partition.leader == partition.replicas[0]
        assert partition.in_sync == {1, 2, 3}
        assert (partition.epoch, partition.partition_epoch) == (0, 0)
    added = add_partitions(image, "new", 4, None)
    assert [state.in_sync for state in added.partitions] == [(1, 2, 3)]


def test_a_node_that_is_alone_writes_what_it_always_wrote():
    assert create(image_of(1)).partitions == []
    assert add_partitions(image_of(1, topics=[("t", [[1]])]), "t", 2, None).partitions == []


def test_the_cluster_ids_of_new_partitions_are_in_the_record_and_taken_by_nobody():
    taken = cluster_id_of(TOPIC_ID, 1)
    other = TopicCreated(
        name="other",
        id=str(UUID(int=77)),
        replicas=[[1]],
        partitions=[PartitionState(taken, (1,), (1,), 1, 0)],
    )
    image = image_after(*cluster(1), other)

    created = create(image, partitions=3)
    image.apply(created)
    added = add_partitions(image, "new", 4, None)

    assert [state.cluster_id for state in (*created.partitions, *added.partitions)] == [
        cluster_id_of(TOPIC_ID, 0),
        taken + 1,
        cluster_id_of(TOPIC_ID, 2),
        cluster_id_of(TOPIC_ID, 3),
    ]


def test_a_broker_that_is_away_neither_leads_nor_is_in_sync_with_what_it_is_given_by_hand():
    image = image_after(*cluster(1, 2, 3), BrokerFenced(node=1, broker_epoch=1))

    created = create(image, assignment={0: [1, 3, 2]})

    (state,) = created.partitions
    assert (state.replicas, state.leader, state.in_sync) == ((1, 3, 2), 3, (2, 3))
    with pytest.raises(InvalidReplicaAssignment, match=r"name one of \[2, 3\]"):
        create(image, assignment={0: [1]})


def test_a_cluster_without_any_broker_there_takes_no_topic():
    image = image_after(*cluster(1), BrokerFenced(node=1, broker_epoch=1))

    with pytest.raises(EligibleLeadersNotAvailable, match="start one"):
        create(image)


def after_config(image, *, defaults=None, **config):
    names = {name.replace("_", "."): value for name, value in config.items()}
    changed = TopicConfigChanged(topic="t", config=names)
    return states(eligible_after(image, changed, defaults or TopicConfig()))


def test_the_eligible_are_dropped_where_fewer_suffice_from_now_on():
    image = image_after(*cluster(1, 2, 3), partition_in([1, 2, 3], [1], 1, eligible=[2]))

    assert after_config(image, min_insync_replicas="1") == [(1, (1,), (), 3, 5)]
    assert after_config(image, min_insync_replicas="2") == []
    assert after_config(image) == []
    assert after_config(image, defaults=TopicConfig(min_insync_replicas=1)) == [(1, (1,), (), 3, 5)]


def test_while_nobody_leads_the_eligible_stay_so_however_few_suffice():
    image = image_after(*cluster(1, 2, 3), partition_in([1, 2, 3], [1], NO_NODE, eligible=[2]))

    assert after_config(image, min_insync_replicas="1") == []


def test_a_default_for_all_topics_drops_the_eligible_of_those_that_have_no_setting_of_their_own():
    image = image_after(*cluster(1, 2, 3), partition_in([1, 2, 3], [1], 1, eligible=[2]))
    changed = NodeConfigChanged(node=None, config={"log.min.insync.replicas": "1"})
    lowered = TopicConfig(min_insync_replicas=1)

    assert states(eligible_after(image, changed, lowered)) == [(1, (1,), (), 3, 5)]
    assert eligible_after(image, changed, TopicConfig()) == []
    image.apply(TopicConfigChanged(topic="t", config={"min.insync.replicas": "2"}))
    assert eligible_after(image, changed, lowered) == []
