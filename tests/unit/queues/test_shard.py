"""A shard's queues do not disturb each other."""

from typing import Any

from tidelog.errors import UnknownQueue
from tidelog.queues.records import MAIN, About, Settings
from tidelog.queues.shard import Shard
from tidelog.queues.work import State
from tidelog.shards.effects import Append, Moment


class Desk:
    """A loaded shard, whose writes are all stored at once."""

    def __init__(self, *queues: str) -> None:
        self.shard = Shard(0, 1)
        self.shard.loaded(Moment(0, 0))
        self.answers: dict[object, Any] = {}
        self.end = 0
        self.now = 0.0
        for name in queues:
            settings = Settings(visibility_ms=500, max_deliveries=1)
            self.do(self.shard.declare(name, settings, name, b"", self.at))

    @property
    def at(self) -> Moment:
        return Moment(self.now, int(1000 * self.now))

    def do(self, effects: Any) -> None:
        waiting = list(effects)
        while waiting:
            effect = waiting.pop(0)
            if isinstance(effect, Append):
                self.shard.appended(effect.write, self.end)
                self.end += len(effect.records)
                waiting += self.shard.stored(effect.write, self.at)
            else:
                self.answers[effect.to] = effect.result

    def receive(self, name: str, *, wait_seconds: float, request: bytes = b"") -> None:
        self.do(
            self.shard.receive(
                name, MAIN, f"receive {name}", request, self.at, count_max=1,
                wait_seconds=wait_seconds, visibility_ms=None,
            )
        )  # fmt: skip


def test_a_queue_deleted_under_a_waiting_receiver_disturbs_no_other_queue():
    desk = Desk("a", "b")
    desk.do(desk.shard.publish("b", [(b"x", About())], "publish", b"", desk.at))
    desk.receive("b", wait_seconds=0)
    desk.receive("a", wait_seconds=0.5)

    desk.do(desk.shard.drop("a", "drop", desk.at))
    desk.now = 1.0
    desk.do(desk.shard.tick(desk.at))

    assert isinstance(desk.answers["receive a"], UnknownQueue)
    (job,) = desk.shard.work_queues["b"].jobs.values()
    assert job.state is not State.SETTLING, "the message of the other queue came due and died"
    assert desk.shard.next_deadline() is None


def test_a_receive_that_a_deletion_ended_may_be_sent_again():
    desk = Desk("a")
    desk.receive("a", wait_seconds=5, request=b"once")
    desk.do(desk.shard.drop("a", "drop", desk.at))
    settings = Settings(visibility_ms=500, max_deliveries=1)
    desk.do(desk.shard.declare("a", settings, "declare", b"", desk.at))
    desk.do(desk.shard.publish("a", [(b"x", About())], "publish", b"", desk.at))

    desk.receive("a", wait_seconds=0, request=b"once")

    assert len(desk.answers["receive a"]) == 1


def test_a_late_copy_of_a_read_that_found_nothing_moves_no_pointer():
    desk = Desk()
    desk.do(desk.shard.create("create", b"", desk.at))
    desk.do(desk.shard.read(0, "reader", "first copy", b"read 1", desk.at))
    desk.do(desk.shard.append(0, b"x", "append", b"", desk.at))

    desk.do(desk.shard.read(0, "reader", "late copy", b"read 1", desk.at))
    desk.do(desk.shard.read(0, "reader", "next read", b"read 2", desk.at))

    assert desk.answers["first copy"] is desk.answers["late copy"] is None
    assert desk.answers["next read"] == desk.answers["append"]
