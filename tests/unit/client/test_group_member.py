import pytest

from tidelog.client.group_member import assign_ranges, encode_assignment, encode_subscription
from tidelog.model import TopicPartition
from tidelog.wire.subscription import decode_assignment, subscribed_topics


def places(topic: str, *numbers: int) -> list[TopicPartition]:
    return [TopicPartition(topic, number) for number in numbers]


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (5, {"a": [0, 1], "b": [2, 3], "c": [4]}),
        (3, {"a": [0], "b": [1], "c": [2]}),
        (1, {"a": [0], "b": [], "c": []}),
    ],
)
def test_members_get_neighbouring_partitions_and_the_first_ones_more(count, expected):
    shares = assign_ranges({member: ["t"] for member in "cab"}, {"t": count})

    assert shares == {member: places("t", *numbers) for member, numbers in expected.items()}


def test_each_topic_is_shared_among_those_who_read_it():
    shares = assign_ranges({"a": ["t"], "b": ["t", "u"], "c": []}, {"t": 2, "u": 2, "v": 9})

    assert shares == {"a": places("t", 0), "b": places("t", 1) + places("u", 0, 1), "c": []}


def test_members_of_other_libraries_can_read_what_is_written_for_them():
    assert subscribed_topics(encode_subscription(["t", "ü"])) == frozenset({"t", "ü"})
    given = places("t", 0, 7) + places("u", 1)
    assert decode_assignment(encode_assignment(given)) == tuple(given)
    assert decode_assignment(encode_assignment([])) == ()
