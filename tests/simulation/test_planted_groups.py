"""Bugs that groups had, or would have, planted: the story finds each in a handful of seeds."""

import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tidelog.coordinators.groups import GroupsDriver
from tidelog.groups.group import Group
from tidelog.groups.offsets import Offsets
from tidelog.groups.shard import Shard
from tidelog.groups.state import GroupState
from tidelog.groups.writes import Writes
from tidelog.kafka import groups
from tidelog.simulation.campaign import play_seed
from tidelog.simulation.group_lives import ONE_TOPIC, STATIC
from tidelog.simulation.group_watch import OWNER, RISES, STORED
from tidelog.simulation.groups import METADATA
from tidelog.simulation.offset_lives import FORGOTTEN, KEPT

SEEDS = range(1, 13)


def compare_names(patch: pytest.MonkeyPatch) -> None:
    """A coordinator that comes keeps the offsets of every topic whose name is there."""

    def on_loaded(self: GroupsDriver, shard: Shard) -> None:
        gone = shard.topics() - set(self._broker.image.topics)
        self.perform(shard.topics_deleted(gone, {}, self.now()))

    patch.setattr(GroupsDriver, "_on_loaded", on_loaded)
    patch.setattr(groups, "of_topic", lambda broker, place, value: value)


def forget_restarts(patch: pytest.MonkeyPatch) -> None:
    """A coordinator that comes knows static members by the ids of their first life."""

    def ignore(*_: Any) -> None:
        pass

    patch.setattr(Shard, "_replay_member", ignore)


def forget_deletions(patch: pytest.MonkeyPatch) -> None:
    """A coordinator that comes takes no notice of offsets that were deleted."""
    apply = Offsets.apply

    def keep(self: Offsets, place: Any, value: Any, written_at: Any) -> Any:
        return None if value is None and _is_loading() else apply(self, place, value, written_at)

    patch.setattr(Offsets, "apply", keep)


def _is_loading() -> bool:
    return any(frame.function == "replay" for frame in inspect.stack(0)[1:4])


def delete_groups_alone(patch: pytest.MonkeyPatch) -> None:
    """A group that is deleted leaves its offsets in the log."""
    delete = Writes.delete

    def delete_nothing_else(self: Writes, entry: Any, places: Any, at: Any, **how: Any) -> Any:
        return delete(self, entry, [] if how.get("removes_group") else places, at, **how)

    patch.setattr(Writes, "delete", delete_nothing_else)


def expire_by_age_alone(patch: pytest.MonkeyPatch) -> None:
    """An offset expires whether or not somebody uses it."""
    patch.setattr(GroupState, "expires_at_ms", lambda self, topic, offset, retention_ms: offset.expires_ms)


def load_without_metadata(patch: pytest.MonkeyPatch) -> None:
    """A coordinator that comes knows offsets, and not what was noted with them."""
    apply = Offsets.apply

    def forget(self: Offsets, place: Any, value: Any, written_at: Any) -> Any:
        if value is not None and _is_loading():
            value = replace(value, metadata="")
        return apply(self, place, value, written_at)

    patch.setattr(Offsets, "apply", forget)


def forget_generations(patch: pytest.MonkeyPatch) -> None:
    """A coordinator that comes counts the generations of a group from the beginning."""
    restore = GroupState._restore

    def begin_anew(self: GroupState, record: Any) -> None:
        restore(self, record)
        self.generation = 0

    patch.setattr(GroupState, "_restore", begin_anew)


def tell_before_storing(patch: pytest.MonkeyPatch) -> None:
    """Members hear of their shares while those are on their way to the log."""
    sync = Group.sync

    def tell(self: Group, event: Any, at: Any) -> Any:
        effects, saving = sync(self, event, at), self._saving
        if saving is not None:
            self._saving = None
            self._become_stable(saving.record, at)
        return [*effects, *self._done()]

    patch.setattr(Group, "sync", tell)


def give_all_to_all(patch: pytest.MonkeyPatch) -> None:
    """Whatever the leader says, every member owns the first partition."""
    record = GroupState.record

    def overrule(self: GroupState, assignments: Any, since_ms: int) -> Any:
        return record(self, {member.id: bytes([0]) for member in self.roster}, since_ms)

    patch.setattr(GroupState, "record", overrule)


@pytest.mark.parametrize(
    ("plant", "kind", "invariant"),
    [
        (compare_names, "remake_topic", ONE_TOPIC),
        (forget_restarts, "restart_static", STATIC),
        (forget_deletions, "delete_offsets", FORGOTTEN),
        (forget_deletions, "expire_offsets", FORGOTTEN),
        (delete_groups_alone, "delete_group", FORGOTTEN),
        (expire_by_age_alone, "expire_offsets", KEPT),
        (load_without_metadata, "delete_offsets", METADATA),
        (forget_generations, "stop", RISES),
        (tell_before_storing, "stop", STORED),
        (give_all_to_all, "stop", OWNER),
    ],
)
def test_the_story_of_groups_finds_it(
    monkeypatch: pytest.MonkeyPatch, plant: Callable[[pytest.MonkeyPatch], None], kind: str, invariant: str
) -> None:
    plant(monkeypatch)

    for seed in SEEDS:
        played = play_seed(seed, story="groups", kinds=[kind, "crash"])
        if played.finding is not None:
            assert played.finding.name == invariant
            return
    raise AssertionError(f"nothing in {len(SEEDS)} seeds")
