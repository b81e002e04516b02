import pytest

from tidelog.errors import ConfigError
from tidelog.model import TopicPartition
from tidelog.spark.ranges import OffsetRange, from_json, limit, limit_bytes, split, to_json

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)


def test_offsets_travel_as_spark_writes_them():
    offsets = {B0: 7, A1: -2, A0: 3}

    assert to_json(offsets) == {"a": {"0": 3, "1": -2}, "b": {"0": 7}}
    assert from_json(to_json(offsets), "x") == offsets
    assert from_json('{"a": {"0": 3}}', "x") == {A0: 3}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "3",
        "[]",
        '{"a": 3}',
        '{"a": {"0": "3"}}',
        '{"a": {"0": true}}',
        '{"a": {"-1": 3}}',
        '{"a": {"zero": 3}}',
        '{"a": {"\u0663": 3}}',
    ],
)
def test_what_is_no_offsets_is_refused_by_the_option_s_name(text):
    with pytest.raises(ConfigError, match=r"^startingOffsets must be JSON like"):
        from_json(text, "startingOffsets")


def test_a_limit_is_shared_in_proportion_and_nobody_starves():
    starts, ends = {A0: 0, A1: 100, B0: 5}, {A0: 900, A1: 190, B0: 15}

    assert limit(starts, ends, 1000) == ends
    assert limit(starts, ends, 100) == {A0: 90, A1: 109, B0: 6}
    assert limit(starts, ends, 2) == {A0: 1, A1: 101, B0: 6}
    assert limit({A0: 5}, {A0: 5}, 1) == {A0: 5}


def test_ranges_are_cut_without_a_gap():
    ranges = [OffsetRange("a", 0, 10, 110), OffsetRange("a", 1, 7, 7), OffsetRange("b", 0, 0, 10)]

    assert split(ranges) == [ranges[0], ranges[2]]
    for options in ({"tasks_min": 11}, {"rows_max": 13}, {"tasks_min": 11, "rows_max": 13}):
        parts = split(ranges, **options)
        assert [at for part in parts for at in range(part.start, part.end)] == [*range(10, 110), *range(10)]
    assert len(split(ranges, tasks_min=11)) == 11
    assert max(part.count for part in split(ranges, rows_max=13)) <= 13


def test_no_part_is_empty_however_many_tasks_are_asked_for():
    assert len(split([OffsetRange("a", 0, 0, 3)], tasks_min=100)) == 3
    assert split([], tasks_min=5) == []


def test_a_limit_of_bytes_takes_the_same_part_of_every_partition():
    start, end = {A0: 10, A1: 0}, {A0: 110, A1: 1000}
    # 100 offsets of 100 bytes and 1000 of 10: 20,000 bytes, of which half may come.
    assert limit_bytes(start, end, {A0: 100.0, A1: 10.0}, 10_000) == {A0: 60, A1: 500}
    assert limit_bytes(start, end, {A0: 100.0, A1: 10.0}, 20_000) == end
    # However large the records are, something comes; what is done stays done.
    assert limit_bytes({A0: 10, A1: 1000}, end, {A0: 1e9}, 1) == {A0: 11, A1: 1000}
    # An unknown size is taken to be as large as the others.
    assert limit_bytes(start, end, {A0: 10.0}, 5_500) == {A0: 60, A1: 500}


def test_what_a_checkpoint_says_beyond_offsets_is_not_seen_by_options():
    text = '{"a": {"0": 3}, "@": {"query": "q", "topics": {"a": "x"}}}'
    assert from_json(text, "startingOffsets") == {A0: 3}
