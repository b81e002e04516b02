"""Seeds of queues, and bugs that the story finds."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tidelog.queues import work_desk
from tidelog.queues.fold import Fold
from tidelog.queues.lines import Line
from tidelog.queues.records import Delivery, Settings, delivery_record
from tidelog.queues.requests import Requests
from tidelog.queues.work import WorkQueue
from tidelog.queues.work_desk import WorkDesk
from tidelog.simulation import queue_watch
from tidelog.simulation.queue_operators import GONE, ONCE_ONLY, ONE_REQUEST
from tidelog.simulation.queue_watch import FOLD, FULL
from tidelog.simulation.queues import DONE, LOST, ONCE, ONE_OWNER, ORDER, OWNED, POINTERS
from tidelog.simulation.swarm import make_plan, play

KINDS = ["crash", "isolate", "lose_power_everywhere"]


def test_the_same_seed_gives_the_same_history():
    plan = make_plan(4, story="queues", nodes=3, chaos_seconds=4, kinds=KINDS)

    first, second = play(plan), play(plan)

    assert first.violation is None
    assert first.trace_hash == second.trace_hash
    assert first.acknowledged == second.acknowledged > 50


def count_anew_in_another_lane(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(WorkQueue, "to_lane", lambda self, message, lane, since: Delivery(message.offset, 0, lane))


def know_no_request_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Requests, "_found", lambda self, request, now: None)


def delete_what_is_done_from_memory_alone(patch: pytest.MonkeyPatch) -> None:
    def records(queue: WorkQueue, values, at):
        return [
            delivery_record(
                queue.place(one.sequence), value or Delivery(one.offset, one.count), now_ms=at.wall_ms
            )
            for one, value in values
        ]

    patch.setattr(work_desk, "records_of", records)


def serve_from_half_a_log(patch: pytest.MonkeyPatch) -> None:
    replay = Fold.replay

    def skip(self: Fold, record) -> None:
        if record.key[:1] != b"P":
            replay(self, record)

    patch.setattr(Fold, "replay", skip)


def begin_a_queue_anew_when_it_is_declared_again(patch: pytest.MonkeyPatch) -> None:
    settings: Any = Settings

    def declare(self: WorkDesk, event, at):
        first = self.next_sequence
        patch.setattr(work_desk, "Settings", lambda *fields: settings(*fields[:-1], first))
        return original(self, event, at)

    original = WorkDesk._declare
    patch.setattr(WorkDesk, "_declare", declare)


def know_no_deletion_again(patch: pytest.MonkeyPatch) -> None:
    found = Requests._found

    def forget(self: Requests, request, now):
        outcome = found(self, request, now)
        return None if type(outcome).__name__ in ("Dropped", "Swept") else outcome

    patch.setattr(Requests, "_found", forget)


def take_any_body_for_a_key(patch: pytest.MonkeyPatch) -> None:
    found = Requests._found

    def any_body(self: Requests, request, now):
        return found(self, request._replace(body=b""), now)

    patch.setattr(Requests, "_found", any_body)


def return_what_is_not_owned(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(WorkQueue, "owns", lambda self, offset, count: offset in self.messages)


def give_out_what_is_not_first(patch: pytest.MonkeyPatch) -> None:
    def newest(self: Line, messages, lane):
        members = [one for one in self._objects if one in messages and messages[one].lane == lane]
        return self.waiting.first() or (messages[max(members)] if members else None)

    patch.setattr(Line, "first", newest)
    patch.setattr(WorkQueue, "assert_invariants", lambda self: None)


def leave_what_was_in_a_deleted_queue(patch: pytest.MonkeyPatch) -> None:
    settings: Any = Settings
    patch.setattr(work_desk, "Settings", lambda *fields: settings(*fields[:-1], 0))
    patch.setattr(work_desk, "keys_of", lambda queue: iter(()))


@pytest.mark.parametrize(
    ("plant", "seed", "invariants"),
    [
        (count_anew_in_another_lane, 3, {ONE_OWNER}),
        (know_no_request_again, 0, {ONCE, ONCE_ONLY, ONE_REQUEST}),
        (delete_what_is_done_from_memory_alone, 1, {DONE, FOLD, FULL, GONE}),
        (serve_from_half_a_log, 1, {POINTERS}),
        (begin_a_queue_anew_when_it_is_declared_again, 1, {FOLD, ORDER, LOST}),
        (know_no_deletion_again, 1, {ONCE_ONLY, GONE}),
        (take_any_body_for_a_key, 1, {ONE_REQUEST}),
        (return_what_is_not_owned, 1, {OWNED}),
        (give_out_what_is_not_first, 1, {ORDER}),
        (leave_what_was_in_a_deleted_queue, 1, {FOLD, GONE}),
    ],
)
def test_a_planted_bug_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], seed: int, invariants: set[str], monkeypatch
):
    monkeypatch.setattr(queue_watch, "_FOLD_EVERY", 2000)
    plant(monkeypatch)

    violation = None
    for tried in range(seed, seed + 8):  # a history depends on every moment, and changes with the product
        plan = make_plan(tried, story="queues", nodes=3, chaos_seconds=6, kinds=KINDS)
        pace = replace(plan.queue_pace, has_operators=True, repeat_chance=0.3, is_ordered=True)
        rule = (
            {"max_deliveries": 2, "forget_chance": 0.3}
            if invariants == {ONE_OWNER}
            else {"max_deliveries": 0}
        )
        violation = play(replace(plan, queue_pace=replace(pace, **rule))).violation
        if violation is not None:
            break

    assert violation is not None, "nobody saw it"
    assert violation.name in invariants, violation
