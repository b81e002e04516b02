"""Exactly once under fire, in small; `python -m tests.spark.exactly_once` does it at length."""

from collections import Counter

import pytest

from tests.spark.exactly_once import Fire, difference

pytestmark = pytest.mark.timeout(900)

VICTIMS = ("node", "worker", "driver")
"""The driver last: what copies the rest is a new one anyhow, and each takes long to start."""


@pytest.fixture(scope="module")
def outcome(tmp_path_factory):
    return Fire(tmp_path_factory.mktemp("fire"), seed=1, is_local=True).run(VICTIMS)


def test_whoever_is_killed_each_record_is_seen_once(outcome):
    assert outcome.is_exactly_once, outcome


def test_the_same_fire_makes_an_at_least_once_sink_write_twice(outcome):
    assert outcome.is_hot, f"nothing was written twice: the fire proves nothing: {outcome}"


def test_what_the_source_has_twice_is_no_fault_of_a_sink() -> None:
    source = Counter([b"1", b"2", b"2", b"3"])

    assert difference(source, Counter([b"1", b"2", b"2", b"3"])) == (0, 0)
    assert difference(source, Counter([b"1", b"2", b"3"])) == (1, 0)
    assert difference(source, Counter([b"1", b"1", b"2", b"2", b"3"])) == (0, 1)
