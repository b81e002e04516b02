"""Exactly once under fire, in small; `python -m tests.spark.exactly_once` does it at length."""

import pytest

from tests.spark.exactly_once import Fire

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
