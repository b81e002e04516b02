"""Vectors are those of Kafka's own UtilsTest."""

import pytest

from tidelog.client.partitioner import Partitioner, murmur2, partition_for


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_the_hash_is_kafkas(key, expected):
    assert murmur2(key) == expected


def test_a_key_always_goes_to_the_same_partition():
    partitioner = Partitioner(7)

    first = partitioner.pick(b"foobar")
    partitioner.move_on()

    assert partitioner.pick(b"foobar") == first == partition_for(b"foobar", 7)
    assert first == (-790332482 & 0x7FFFFFFF) % 7


def test_keyless_records_stay_until_told_to_move_on_and_visit_every_partition():
    partitioner = Partitioner(3)
    visited = []

    for _ in range(4):
        visited.append((partitioner.pick(None), partitioner.pick(None)))
        partitioner.move_on()

    assert visited == [(0, 0), (1, 1), (2, 2), (0, 0)]
