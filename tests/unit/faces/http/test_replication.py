from types import SimpleNamespace
from typing import Any

from tidelog.faces.http.replication import LISTED_MAX, _catching_up
from tidelog.model import TopicPartition
from tidelog.partition.catchup import CatchUps, Key, Pace


def test_of_very_many_catch_ups_some_are_listed_and_all_are_counted():
    found = CatchUps(pace=Pace(0), concurrent_max=8)
    for number in range(LISTED_MAX + 500):
        found.asks(
            Key(number, 3), TopicPartition("tide", number), 4,
            at=0, target=1000, bytes_left=100_000, now=0.0,
        )  # fmt: skip
    last = Key(LISTED_MAX + 499, 3)
    found.interrupt(last, "node 3 is away", 1.0)
    broker: Any = SimpleNamespace(catching_up=SimpleNamespace(all=found))

    told = _catching_up(broker, 2.0)

    waiting = LISTED_MAX + 500 - 8 - 1
    assert told["states"] == {"waiting": waiting, "running": 8, "stalled": 0, "interrupted": 1}
    assert len(told["running"]) == LISTED_MAX
    assert [one["state"] for one in told["running"][:9]] == ["running"] * 8 + ["interrupted"]
