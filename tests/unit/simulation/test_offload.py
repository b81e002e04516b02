"""Blocking work in virtual time."""

import asyncio
import random

import pytest

from tidelog.host import Lane
from tidelog.simulation.loop import MachineClock, Process, VirtualLoop
from tidelog.simulation.offload import DiskPace, VirtualOffload


class Fixture:
    def __init__(self, seed: int = 0) -> None:
        self.loop = VirtualLoop()
        self.process = Process("p", MachineClock(self.loop))
        self.pace = DiskPace(random.Random(seed), (0.001, 0.1))
        self.offload = VirtualOffload(self.loop, self.process, self.pace)
        self.seen: list[str] = []

    def run(self, letters: str, lane: Lane) -> "list[asyncio.Future[None]]":
        futures = []
        for letter in letters:
            future = self.offload.run(lambda letter=letter: self.seen.append(letter), lane)  # type: ignore[misc]
            future.add_done_callback(lambda _, letter=letter: self.seen.append(letter.upper()))  # type: ignore[misc]
            futures.append(future)
        return futures


@pytest.fixture
def fixture():
    fixture = Fixture()
    yield fixture
    fixture.loop.close()


@pytest.mark.parametrize("lane", [Lane.WRITE, Lane.SYNC])
def test_a_lane_is_one_thread(fixture, lane):
    fixture.run("abcdef", lane)
    fixture.loop.run_events(10)

    assert "".join(fixture.seen) == "aAbBcCdDeEfF"


def test_other_work_runs_in_any_order():
    orders = set()
    for seed in range(20):
        fixture = Fixture(seed)
        fixture.run("abcdef", Lane.ANY)
        assert fixture.seen == []
        fixture.loop.run_events(10)
        assert sorted(fixture.seen) == sorted("abcdefABCDEF")
        orders.add("".join(fixture.seen))
        fixture.loop.close()
    assert len(orders) > 15


def test_errors_are_the_futures(fixture):
    future = fixture.offload.run(lambda: 1 // 0)
    fixture.loop.run_events(1)

    assert isinstance(future.exception(), ZeroDivisionError)


def test_a_stalled_disk_starts_nothing(fixture):
    fixture.pace.stalled_until = 5.0
    fixture.run("ab", Lane.WRITE)
    fixture.run("c", Lane.ANY)
    fixture.loop.run_events(4.9)
    assert fixture.seen == []
    fixture.loop.run_events(6)
    assert sorted(fixture.seen) == sorted("abcABC")


def test_a_slow_disk_takes_longer(fixture):
    fixture.pace.factor = 1000
    fixture.run("a", Lane.ANY)
    fixture.loop.run_events(0.9)
    assert fixture.seen == []


def test_who_dies_between_has_done_it_and_never_hears_of_it(fixture):
    fixture.run("a", Lane.WRITE)
    fixture.run("b", Lane.SYNC)
    fixture.loop.run_events(10, stop=lambda: len(fixture.seen) == 1)
    fixture.loop.kill(fixture.process)
    fixture.loop.run_events(10)

    assert len(fixture.seen) == 1
