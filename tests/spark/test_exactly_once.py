"""Exactly once under fire, in small; `python -m tests.spark.exactly_once` does it at length."""

import pytest

from tests.spark.exactly_once import Fire

pytestmark = pytest.mark.timeout(900)


def test_whoever_is_killed_each_record_is_seen_once(tmp_path):
    outcome = Fire(tmp_path, seed=1, is_local=True).run(["driver", "worker", "node"])

    assert outcome.is_exactly_once, outcome


def test_the_same_fire_makes_an_at_least_once_sink_write_twice(tmp_path):
    fire = Fire(tmp_path, seed=2, is_local=True, delivery="at-least-once")
    outcome = fire.run(["driver"])

    assert not outcome.missing, outcome
    assert outcome.twice, "nothing was written twice: the fire proves nothing"
