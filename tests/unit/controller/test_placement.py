from collections import Counter
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.controller.histories import cluster, image_after
from tidelog.controller.placement import Candidate, candidates, place
from tidelog.controller.records import BrokerFenced, BrokerShutdownWanted, NodeConfigChanged, TopicCreated
from tidelog.errors import EligibleLeadersNotAvailable, InvalidReplicationFactor


def brokers(*nodes, racks=None):
    return [Candidate(node=node, rack=(racks or {}).get(node)) for node in nodes]


def held_by(placed):
    return Counter(node for replicas in placed for node in replicas)


def led_by(placed):
    return Counter(replicas[0] for replicas in placed)


def difference(counts, nodes):
    return max(counts[node] for node in nodes) - min(counts[node] for node in nodes)


@settings(max_examples=200, deadline=None)
@given(
    nodes=st.lists(st.integers(0, 50), min_size=1, max_size=9, unique=True),
    partitions=st.integers(1, 40),
    start=st.integers(0, 20),
    data=st.data(),
)
def test_replicas_and_leaders_are_spread_evenly_over_distinct_brokers(nodes, partitions, start, data):
    replication = data.draw(st.integers(1, len(nodes)))

    placed = place(brokers(*nodes), partitions=partitions, replication=replication, start=start)

    assert [len(set(replicas)) for replicas in placed] == [replication] * partitions
    assert difference(held_by(placed), nodes) <= 1
    assert difference(led_by(placed), nodes) <= 1
    again = place(brokers(*reversed(nodes)), partitions=partitions, replication=replication, start=start)
    assert placed == again, "the order in which brokers are named makes no difference"


@settings(max_examples=200, deadline=None)
@given(
    rack_count=st.integers(1, 4),
    rack_size=st.integers(1, 3),
    partitions=st.integers(1, 40),
    start=st.integers(0, 20),
    data=st.data(),
)
def test_racks_of_one_size_are_loaded_evenly_and_share_no_partition_while_they_need_not(
    rack_count, rack_size, partitions, start, data
):
    racks = {n: f"r{n % rack_count}" for n in range(1, rack_count * rack_size + 1)}
    replication = data.draw(st.integers(1, len(racks)))

    placed = place(brokers(*racks, racks=racks), partitions=partitions, replication=replication, start=start)

    for replicas in placed:
        used = Counter(racks[node] for node in replicas)
        assert len(used) == min(rack_count, replication)
        assert max(used.values()) == -(-replication // rack_count)
        assert len(set(replicas)) == replication
    assert difference(held_by(placed), racks) <= 1
    assert difference(led_by(placed), racks) <= 1


def test_unequal_racks_keep_replicas_apart_though_some_brokers_hold_more():
    racks = {1: "a", 2: "b", 3: "b"}

    placed = place(brokers(1, 2, 3, racks=racks), partitions=4, replication=2)

    assert all({racks[node] for node in replicas} == {"a", "b"} for replicas in placed)
    assert held_by(placed) == {1: 4, 2: 2, 3: 2}


def test_what_is_left_over_goes_to_those_that_have_the_least():
    among = [
        Candidate(node=1, replicas=7, leaders=1),
        Candidate(node=2, replicas=5, leaders=3),
        Candidate(node=3, replicas=6, leaders=2),
    ]

    assert place(among, partitions=1, replication=1) == [[2]]
    assert place(among, partitions=1, replication=2) == [[3, 2]]
    assert place(among, partitions=1, replication=3)[0][0] == 1


@settings(max_examples=50, deadline=None)
@given(sizes=st.lists(st.tuples(st.integers(1, 5), st.integers(1, 3)), max_size=12))
def test_many_topics_together_are_spread_evenly_too(sizes):
    image = image_after(*cluster(1, 2, 3, 4))
    for number, (partitions, replication) in enumerate(sizes):
        placed = place(candidates(image), partitions=partitions, replication=replication, start=number)
        image.apply(TopicCreated(name=f"t{number}", id=str(UUID(int=number)), replicas=placed))

        held = {node: len(image.held.get(node, ())) for node in (1, 2, 3, 4)}
        assert difference(held, held) <= 1


def test_a_topic_that_grows_stays_evenly_spread():
    image = image_after(
        *cluster(1, 2, 3), TopicCreated(name="t", id=str(UUID(int=1)), replicas=[[1, 2], [1, 2]])
    )

    placed = place(candidates(image), partitions=1, replication=2, topic=image.topics["t"])

    assert placed == [[3, 1]] or placed == [[3, 2]]


def test_partners_change_so_that_not_all_fail_over_to_one():
    placed = place(brokers(1, 2, 3, 4), partitions=24, replication=2)

    pairs = Counter(frozenset(replicas) for replicas in placed)
    assert len(pairs) >= 4


def test_brokers_that_are_away_or_leaving_get_nothing_while_there_are_others():
    image = image_after(
        *cluster(1, 2, 3, 4),
        BrokerFenced(node=1, broker_epoch=1),
        BrokerShutdownWanted(node=2, broker_epoch=2),
    )

    assert set(held_by(place(candidates(image), partitions=4, replication=2))) == {3, 4}


def test_brokers_that_are_away_are_used_last_and_do_not_lead():
    image = image_after(*cluster(1, 2, 3), BrokerFenced(node=1, broker_epoch=1))

    placed = place(candidates(image), partitions=6, replication=3)

    assert led_by(placed) == {2: 3, 3: 3}
    assert held_by(placed) == {1: 6, 2: 6, 3: 6}


@pytest.mark.parametrize(
    ("among", "replication", "why"),
    [
        ([], 1, "1 replicas cannot be placed on 0 nodes"),
        (brokers(1, 2), 3, "3 replicas cannot be placed on 2 nodes; ask for 1 to 2"),
        (brokers(1, 2), 0, "0 replicas"),
    ],
)
def test_what_cannot_be_placed_is_refused_with_the_reason(among, replication, why):
    with pytest.raises(InvalidReplicationFactor, match=why):
        place(among, partitions=1, replication=replication)


def test_a_topic_is_refused_for_now_while_no_broker_is_there():
    with pytest.raises(EligibleLeadersNotAvailable, match="none of the 1 brokers") as refused:
        place([Candidate(node=1, is_active=False)], partitions=1, replication=1)
    assert refused.value.retriable


def test_a_broker_that_is_cordoned_gets_nothing_though_others_are_few():
    image = image_after(
        *cluster(1, 2, 3),
        BrokerFenced(node=2, broker_epoch=2),
        NodeConfigChanged(node=3, config={"cordoned.log.dirs": "*"}),
    )

    assert held_by(place(candidates(image), partitions=4, replication=2)) == {1: 4, 2: 4}
    with pytest.raises(InvalidReplicationFactor, match=r"2 nodes \(nodes \[3\] are cordoned\)"):
        place(candidates(image), partitions=1, replication=3)
    image.apply(NodeConfigChanged(node=3, config={}))
    assert held_by(place(candidates(image), partitions=4, replication=2))[3] == 4
