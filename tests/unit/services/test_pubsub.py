"""Patterns of topics, and who hears what."""

import pytest

from tests.unit.broker.node import on_a_node
from tidelog.services.pubsub import PubSub, matches, name_problem


@pytest.mark.parametrize(
    ("pattern", "name", "is_meant"),
    [
        ("a.b", "a.b", True),
        ("a.b", "a.c", False),
        ("a.*", "a.b", True),
        ("a.*", "a", False),
        ("a.*", "a.b.c", False),
        ("*.b", "a.b", True),
        ("a.#", "a.b.c", True),
        ("a.#", "a", True),
        ("#", "a.b", True),
        ("a.#", "b.a", False),
        ("*.*.c", "a.b.c", True),
    ],
)
def test_a_star_is_one_word_and_a_hash_is_the_rest(pattern, name, is_meant):
    assert matches(pattern, name) is is_meant


@pytest.mark.parametrize("name", ["", "a..b", "a.*", "#", "x" * 257])
def test_what_cannot_be_a_topic_is_refused(name):
    assert name_problem(name) is not None


@pytest.mark.parametrize("pattern", ["a.b*", "#.a", "a.#b", "a..*"])
def test_what_cannot_be_a_pattern_is_refused(pattern):
    assert name_problem(pattern, is_pattern=True) is not None


def test_each_subscriber_hears_a_message_once_whatever_patterns_it_has():
    async def story(node):
        pubsub = PubSub(node.broker)
        heard = []

        def hear(topic, data):
            heard.append((topic, data))
            return True

        for pattern in ("a.*", "a.b", "#"):
            pubsub.subscribe(pattern, hear)

        assert await pubsub.publish("a.b", b"1") == 1
        assert await pubsub.publish("c", b"2") == 1
        assert heard == [("a.b", b"1"), ("c", b"2")]
        assert await pubsub.all_counts() == {"#": 1, "a.*": 1, "a.b": 1}
        for pattern in ("a.*", "a.b", "#"):
            pubsub.unsubscribe(pattern, hear)
        assert await pubsub.publish("a.b", b"3") == 0
        assert pubsub.counts() == {}

    on_a_node(story)


def test_a_subscriber_that_has_gone_is_forgotten():
    async def story(node):
        pubsub = PubSub(node.broker)
        pubsub.subscribe("a", lambda topic, data: False)

        assert await pubsub.publish("a", b"1") == 0
        assert pubsub.counts() == {}

    on_a_node(story)


def test_who_follows_a_history_and_who_listens_by_the_same_name_are_both_counted():
    async def story(node):
        pubsub = PubSub(node.broker)
        pubsub.presence["room.lobby"] += 2
        pubsub.subscribe("room.lobby", lambda topic, data: True)

        assert pubsub.counts() == {"room.lobby": 3}

    on_a_node(story)
