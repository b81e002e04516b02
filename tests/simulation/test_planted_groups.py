"""Bugs that groups had, or would have, planted: the story finds each in a handful of seeds."""

from collections.abc import Callable
from typing import Any

import pytest

from tidelog.broker import groups
from tidelog.broker.coordinator import GroupsDriver
from tidelog.groups.shard import Shard
from tidelog.simulation.campaign import play_seed
from tidelog.simulation.group_lives import ONE_TOPIC, STATIC

SEEDS = range(1, 13)


def compare_names(patch: pytest.MonkeyPatch) -> None:
    """A coordinator that comes keeps the offsets of every topic whose name is there."""

    def on_loaded(self: GroupsDriver, shard: Shard) -> None:
        gone = shard.topics() - set(self._broker.image.topics)
        self.perform(shard.topics_deleted(gone, {}, self.now()))

    patch.setattr(GroupsDriver, "_on_loaded", on_loaded)
    patch.setattr(groups, "_of_topic", lambda broker, place, value: value)


def forget_restarts(patch: pytest.MonkeyPatch) -> None:
    """A coordinator that comes knows static members by the ids of their first life."""

    def ignore(*_: Any) -> None:
        pass

    patch.setattr(Shard, "_replay_member", ignore)


@pytest.mark.parametrize(
    ("plant", "kind", "invariant"),
    [(compare_names, "remake_topic", ONE_TOPIC), (forget_restarts, "restart_static", STATIC)],
)
def test_the_story_of_groups_finds_it(
    monkeypatch: pytest.MonkeyPatch,
    plant: Callable[[pytest.MonkeyPatch], None],
    kind: str,
    invariant: str,
) -> None:
    plant(monkeypatch)

    for seed in SEEDS:
        played = play_seed(seed, story="groups", kinds=[kind, "crash"])
        if played.finding is not None:
            assert played.finding.name == invariant
            return
    raise AssertionError(f"nothing in {len(SEEDS)} seeds")
