from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.controller.histories import cluster, image_after, partition_in
from tidelog.controller import moves
from tidelog.controller.moves import Layout
from tidelog.controller.records import (
    BrokerFenced,
    BrokerUnregistered,
    NodeConfigChanged,
    PartitionState,
    TopicCreated,
)
from tidelog.errors import BrokerIdNotRegistered, InvalidReplicationFactor, UnknownTopicOrPartition
from tidelog.model import TopicPartition


def layout(partitions, *, nodes=(1, 2, 3, 4), closed=(), racks=None):
    """A layout of topics: {"t": [(1, 2), ...]}."""
    return Layout(
        racks={node: (racks or {}).get(node) for node in nodes},
        open=frozenset(nodes).difference(closed),
        replicas={
            TopicPartition(topic, number): tuple(replicas)
            for topic, all_replicas in partitions.items()
            for number, replicas in enumerate(all_replicas)
        },
    )


def after(before, plan):
    return Layout(racks=before.racks, open=before.open, replicas={**before.replicas, **plan})


def held(found, topic=None):
    """How many replicas every broker that can hold more has."""
    counts = Counter(
        node for name, replicas in found.replicas.items() for node in replicas if topic in (None, name.topic)
    )
    return {node: counts[node] for node in sorted(found.open)}


def led(found):
    counts = Counter(replicas[0] for replicas in found.replicas.values())
    return {node: counts[node] for node in sorted(found.open)}


def shared_racks(found):
    """How many replicas have another one of their partition in their rack."""
    return sum(
        sum(count - 1 for rack, count in racks.items() if rack is not None)
        for replicas in found.replicas.values()
        for racks in [Counter(found.racks[node] for node in replicas)]
    )


# The layout of an image.


def test_a_layout_tells_who_can_hold_more_and_where_replicas_will_be():
    state = PartitionState(7, (4, 1, 2), (1, 2), 1, 0, 1, (), (4,), (2,), (), (1, 2))
    image = image_after(
        *cluster(1, 2, 3, 4, racks={1: "a"}),
        TopicCreated(
            name="t", id="00000000-0000-0000-0000-000000000005", replicas=[[4, 1, 2]], partitions=[state]
        ),
        BrokerFenced(node=2, broker_epoch=2),
        NodeConfigChanged(node=3, config={"cordoned.log.dirs": "*"}),
    )

    found = Layout.of(image)

    assert found.racks == {1: "a", 2: None, 3: None, 4: None}
    assert found.open == {1, 4}
    assert found.replicas == {TopicPartition("t", 0): (4, 1)}
    assert found.in_sync == {TopicPartition("t", 0): {1, 2}}


def test_a_broker_that_is_removed_is_cordoned_no_more():
    image = image_after(
        *cluster(1, 2),
        partition_in([1], [1], 1),
        NodeConfigChanged(node=2, config={"cordoned.log.dirs": "*"}),
    )
    assert image.is_cordoned(2)

    image.apply(BrokerUnregistered(node=2, broker_epoch=2))

    assert not image.is_cordoned(2)


# Draining.


def test_what_a_drained_broker_held_goes_to_those_who_have_the_least():
    before = layout({"t": [(1, 2), (2, 1), (3, 1)]})

    plan = moves.drain(before, [1])

    assert set(plan) == {TopicPartition("t", number) for number in range(3)}
    assert held(after(before, plan)) == {1: 0, 2: 2, 3: 2, 4: 2}
    assert moves.moved(before, plan) == 3


def test_the_first_replica_stays_the_first_and_another_leads_what_the_drained_one_led():
    before = layout({"t": [(1, 2), (1, 2), (2, 1)]}, nodes=(1, 2, 3))

    plan = moves.drain(before, [1])

    assert plan[TopicPartition("t", 2)] == (2, 3)
    assert led(after(before, plan)) == {1: 0, 2: 2, 3: 1}


def test_a_drain_without_room_names_the_topics():
    before = layout({"wide": [(1, 2, 3, 4)], "narrow": [(1,)]})

    with pytest.raises(InvalidReplicationFactor, match=r"without \[1\].*replicas: wide \(4\)\."):
        moves.drain(before, [1])
    with pytest.raises(BrokerIdNotRegistered):
        moves.drain(before, [9])


def test_brokers_that_are_away_or_cordoned_get_nothing_and_keep_what_they_have():
    before = layout({"t": [(1, 3)]}, closed=[3, 4])

    assert moves.drain(before, [1]) == {TopicPartition("t", 0): (3, 2)}


def test_a_replica_goes_to_a_rack_that_has_none():
    before = layout({"t": [(1, 3)]}, racks={1: "a", 2: "a", 3: "b", 4: "b"})

    assert moves.drain(before, [1]) == {TopicPartition("t", 0): (3, 2)}
    assert moves.drain(before, [3]) == {TopicPartition("t", 0): (1, 4)}


# Another number of replicas.


def test_more_replicas_are_added_behind_those_that_are_there():
    before = layout({"t": [(1,), (2,)], "u": [(3,)]})

    plan = moves.change_replication(before, "t", 2)

    assert plan == {TopicPartition("t", 0): (1, 4), TopicPartition("t", 1): (2, 3)}


def test_those_go_first_who_are_away_and_the_first_replica_goes_last():
    before = Layout(
        racks=dict.fromkeys((1, 2, 3)),
        open=frozenset({1, 2}),
        replicas={TopicPartition("t", n): (1, 2, 3) for n in range(3)},
        in_sync={
            TopicPartition("t", 0): frozenset({1, 2, 3}),
            TopicPartition("t", 1): frozenset({1, 3}),
            TopicPartition("t", 2): frozenset({2, 3}),
        },
    )

    assert moves.change_replication(before, "t", 2) == {
        TopicPartition("t", 0): (1, 2),
        TopicPartition("t", 1): (1, 3),
        TopicPartition("t", 2): (2, 3),
    }


def test_replicas_cannot_be_more_than_brokers_nor_none():
    before = layout({"t": [(1,)]}, closed=[4])

    with pytest.raises(InvalidReplicationFactor, match=r"t \(4\)"):
        moves.change_replication(before, "t", 4)
    with pytest.raises(InvalidReplicationFactor, match="at least"):
        moves.change_replication(before, "t", 0)
    with pytest.raises(UnknownTopicOrPartition):
        moves.change_replication(before, "nobody", 1)


# Balance.


def test_a_new_broker_gets_its_share_of_replicas_and_leads():
    before = layout({"t": [(1, 2), (2, 3), (3, 1)] * 4})

    plan = moves.balance(before)

    assert held(after(before, plan)) == dict.fromkeys((1, 2, 3, 4), 6)
    assert led(after(before, plan)) == dict.fromkeys((1, 2, 3, 4), 3)
    assert moves.moved(before, plan) == 6


def test_leads_are_evened_out_without_moving_anything():
    before = layout({"t": [(1, 2, 3)] * 6}, nodes=(1, 2, 3))

    plan = moves.balance(before)

    assert led(after(before, plan)) == {1: 2, 2: 2, 3: 2}
    assert moves.moved(before, plan) == 0


def test_what_is_even_stays_as_it_is():
    assert moves.balance(layout({"t": [(1, 2), (2, 3), (3, 4), (4, 1)]})) == {}


def test_replicas_that_share_a_rack_part_if_there_is_another():
    before = layout({"t": [(1, 2), (3, 4)]}, racks={1: "a", 2: "a", 3: "b", 4: "b"})

    plan = moves.balance(before)

    assert shared_racks(after(before, plan)) == 0
    assert set(held(after(before, plan)).values()) == {1}


# Whatever the layout.


@st.composite
def layouts(draw, *, racks=True):
    nodes = range(1, draw(st.integers(2, 7)) + 1)
    factor = draw(st.integers(1, min(3, len(nodes))))
    replicas = st.lists(st.sampled_from(nodes), min_size=factor, max_size=factor, unique=True).map(tuple)
    topics = draw(
        st.dictionaries(st.sampled_from("abc"), st.lists(replicas, min_size=1, max_size=8), min_size=1)
    )
    names = st.sampled_from([None, "x", "y", "z"] if racks else [None])
    closed = draw(st.lists(st.sampled_from(nodes), max_size=1)) if racks else []
    return layout(topics, nodes=nodes, closed=closed, racks={n: draw(names) for n in nodes})


def check(before, plan):
    """What holds of every plan: each target is another one, of known brokers, each once."""
    for name, target in plan.items():
        assert target != before.replicas[name]
        assert len(set(target)) == len(target)
        assert set(target) <= set(before.racks)
        added = set(target) - set(before.replicas[name])
        assert added <= before.open, "nobody gets a replica who cannot hold it"


@settings(max_examples=200, deadline=None)
@given(before=layouts(), data=st.data())
def test_a_drain_moves_what_must_move_and_nothing_else(before, data):
    nodes = data.draw(st.lists(st.sampled_from(sorted(before.racks)), min_size=1, max_size=2))
    try:
        plan = moves.drain(before, nodes)
    except InvalidReplicationFactor:
        room = before.open.difference(nodes)
        assert any(
            len(room.union(replicas).difference(nodes)) < len(replicas)
            for replicas in before.replicas.values()
        )
        return

    check(before, plan)
    assert not any(set(nodes) & set(r) for r in after(before, plan).replicas.values())
    for name, target in plan.items():
        replicas = before.replicas[name]
        assert set(replicas).difference(nodes) <= set(target)
        assert len(target) == len(replicas)
        if replicas[0] not in nodes:
            assert target[0] == replicas[0]


@settings(max_examples=200, deadline=None)
@given(before=layouts(racks=False), data=st.data())
def test_a_drain_gives_to_those_who_have_the_least_of_the_topic(before, data):
    node = data.draw(st.sampled_from(sorted(before.racks)))
    try:
        plan = moves.drain(before, [node])
    except InvalidReplicationFactor:
        return

    now = after(before, plan)
    for heir in now.open - {node}:
        for topic in {name.topic for name in plan}:
            got = [
                target
                for name, target in plan.items()
                if name.topic == topic and heir in set(target) - set(before.replicas[name])
            ]
            count = held(now, topic)
            # When it got its last one, nobody else who could have had it had fewer.
            assert not got or any(
                all(count[heir] <= count[n] + 1 for n in now.open - {node} - set(target)) for target in got
            )


@settings(max_examples=200, deadline=None)
@given(before=layouts(), factor=st.integers(1, 5), topic=st.sampled_from("abc"))
def test_another_number_of_replicas_keeps_as_many_as_it_can(before, factor, topic):
    try:
        plan = moves.change_replication(before, topic, factor)
    except (InvalidReplicationFactor, UnknownTopicOrPartition):
        return

    check(before, plan)
    now = after(before, plan)
    for name, replicas in before.replicas.items():
        target = now.replicas[name]
        if name.topic != topic:
            assert target == replicas
            continue
        assert len(target) == factor
        kept = set(target) & set(replicas)
        assert len(kept) == min(factor, len(replicas))


@settings(max_examples=200, deadline=None)
@given(before=layouts())
def test_balance_is_even_where_it_can_be_and_stays_so(before):
    plan = moves.balance(before)

    check(before, plan)
    now = after(before, plan)
    assert {n: len(r) for n, r in now.replicas.items()} == {n: len(r) for n, r in before.replicas.items()}
    assert shared_racks(now) <= shared_racks(before)
    if len(set(before.racks.values())) == 1:
        assert not before.open or max(held(now).values()) - min(held(now).values()) <= 1
    assert moves.balance(now) == {}
    for node in set(before.racks) - before.open:
        for name, replicas in before.replicas.items():
            assert (node in now.replicas[name]) == (node in replicas), "it keeps what it has"


@settings(max_examples=200, deadline=None)
@given(before=layouts(racks=False))
def test_balance_copies_as_little_as_can_be(before):
    plan = moves.balance(before)

    loads = sorted(held(before).values(), reverse=True)
    share, over = divmod(sum(loads), len(loads))
    least = sum(max(load - share - (rank < over), 0) for rank, load in enumerate(loads))
    assert moves.moved(before, plan) == least


@settings(max_examples=200, deadline=None)
@given(before=layouts(racks=False))
def test_balance_evens_out_leads_wherever_replicas_allow_it(before):
    now = after(before, moves.balance(before))

    # Nobody leads two more than another one to whom its leads could be handed on.
    leads = led(now)
    for source in leads:
        reached, queue = {source}, [source]
        while queue:
            node = queue.pop()
            for replicas in now.replicas.values():
                if replicas[0] == node:
                    queue += [n for n in replicas if n not in reached]
                    reached.update(replicas)
        assert all(leads[source] - leads[node] < 2 for node in reached)
