"""Seeds of queues, and bugs that the story finds."""

from collections.abc import Callable

import pytest

from tidelog.queues.pointers import PointerQueue
from tidelog.queues.recent import Recent
from tidelog.queues.records import Delivery, Moved, delivery_record
from tidelog.queues.shard import Shard
from tidelog.queues.work import WorkQueue
from tidelog.simulation.queues import DONE, ONCE, ONE_OWNER, POINTERS
from tidelog.simulation.swarm import make_plan, play

KINDS = ["crash", "isolate", "lose_power_everywhere"]


def test_the_same_seed_gives_the_same_history():
    plan = make_plan(4, story="queues", nodes=3, chaos_seconds=4, kinds=KINDS)

    first, second = play(plan), play(plan)

    assert first.violation is None
    assert first.trace_hash == second.trace_hash
    assert first.acknowledged == second.acknowledged > 50


def count_anew_in_another_lane(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(WorkQueue, "to_lane", lambda self, job, lane: Delivery(job.offset, 0, lane))


def know_no_request_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Recent, "get", lambda self, request: None)


def delete_what_is_done_from_memory_alone(patch: pytest.MonkeyPatch) -> None:
    def tombstones(queue: WorkQueue, jobs, request, at):
        return [
            delivery_record(queue.place(job), None, now_ms=at.wall_ms, request=request)
            for job in jobs
        ]

    patch.setattr(Shard, "_tombstones", staticmethod(tombstones))


def move_pointers_before_that_is_stored(patch: pytest.MonkeyPatch) -> None:
    begin_read = PointerQueue.begin_read

    def begin(self: PointerQueue, client: str) -> Moved | None:
        way = begin_read(self, client)
        if way is not None:
            self.pointers[client] = way.to
        return way

    patch.setattr(PointerQueue, "begin_read", begin)
    patch.setattr(PointerQueue, "moved", lambda self, client, way: True)


def serve_from_half_a_log(patch: pytest.MonkeyPatch) -> None:
    replay = Shard.replay

    def skip(self: Shard, record) -> None:
        if record.key[:1] != b"P":
            replay(self, record)

    patch.setattr(Shard, "replay", skip)


@pytest.mark.parametrize(
    ("plant", "seed", "invariant"),
    [
        (count_anew_in_another_lane, 3, ONE_OWNER),
        (know_no_request_again, 0, ONCE),
        (delete_what_is_done_from_memory_alone, 1, DONE),
        (move_pointers_before_that_is_stored, 1, POINTERS),
        (serve_from_half_a_log, 1, POINTERS),
    ],
)
def test_a_planted_bug_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], seed: int, invariant: str, monkeypatch
):
    plan = make_plan(seed, story="queues", nodes=3, chaos_seconds=6, kinds=KINDS)
    plant(monkeypatch)

    violation = play(plan).violation

    assert violation is not None and violation.name == invariant, violation
