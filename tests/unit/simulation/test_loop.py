"""Virtual time, and processes that die, pause and have clocks of their own."""

import asyncio
import gc
import math
from typing import Any

import pytest

from tidelog.simulation.loop import MachineClock, Process, VirtualLoop


@pytest.fixture
def loop():
    loop = VirtualLoop()
    yield loop
    loop.close()


def process(loop: VirtualLoop, name: str = "p", **clock) -> Process:
    return Process(name, MachineClock(loop, **clock))


def spawn(loop: VirtualLoop, process: Process, work) -> asyncio.Task:
    return loop.create_task(work, context=process.context.copy())


def test_time_jumps_to_the_next_event(loop):
    seen: list[Any] = []
    loop.call_later(3600, lambda: seen.append(loop.time()))
    loop.call_later(60, lambda: seen.append(loop.time()))

    loop.run_events(until=10_000)

    assert seen == pytest.approx([60, 3600])
    assert loop.now == 10_000


def test_events_of_one_moment_run_in_the_order_they_were_asked_for(loop):
    seen: list[Any] = []
    for letter in "abc":
        loop.at(1.0, loop.world.context, seen.append, letter)
    loop.at(1.0, loop.world.context, lambda: loop.call_soon(seen.append, "soon"))
    loop.at(1.0, loop.world.context, seen.append, "d")

    loop.run_events(until=2)

    assert seen == ["a", "b", "c", "d", "soon"]


def test_cancelled_timers_neither_fire_nor_pile_up(loop):
    fired: list[int] = []
    for _ in range(5000):
        loop.call_later(100, fired.append, 1).cancel()
        loop.run_events(until=loop.now + 0.001)

    assert len(loop._heap) < 1000
    loop.run_events(until=200)
    assert fired == []


def test_a_run_stops_when_it_is_told_to(loop):
    seen: list[Any] = []
    for second in range(10):
        loop.at(second, loop.world.context, seen.append, second)

    assert loop.run_events(until=100, stop=lambda: 4 in seen)
    assert loop.now == 4
    assert not loop.run_events(until=5)
    assert seen == [0, 1, 2, 3, 4, 5]


def test_nothing_of_a_dead_process_runs_again(loop):
    seen: list[Any] = []

    async def work() -> None:
        try:
            while True:
                await asyncio.sleep(1)
                seen.append("alive")
        finally:
            asyncio.get_running_loop().call_soon(seen.append, "from the grave")
            await asyncio.sleep(1)
            seen.append("after the end")

    one, other = process(loop), process(loop)
    spawn(loop, one, work())
    one.context.run(loop.call_later, 2.5, seen.append, "timer")
    spawn(loop, other, asyncio.sleep(1))
    loop.run_events(until=1.5)

    loop.kill(one)
    loop.run_events(until=10)
    gc.collect()
    loop.run_events(until=20)

    assert seen == ["alive"]
    assert loop.errors == []


def test_what_a_dead_process_starts_while_it_unwinds_never_begins(loop, recwarn):
    seen: list[Any] = []

    async def more() -> None:
        seen.append("began")

    async def work() -> None:
        try:
            await asyncio.sleep(100)
        finally:
            seen.append(asyncio.create_task(more()))

    one = process(loop)
    spawn(loop, one, work())
    loop.run_events(until=1)
    asyncio.events._set_running_loop(loop)
    try:
        loop.kill(one)
    finally:
        asyncio.events._set_running_loop(None)
    loop.run_events(until=10)
    gc.collect()

    assert [task for task in seen if isinstance(task, str)] == []
    assert len(seen) == 1
    assert loop.errors == []
    assert [str(w.message) for w in recwarn] == []


def test_a_paused_process_does_all_that_came_due_when_it_resumes(loop):
    seen: list[Any] = []
    one = process(loop)
    for second in (1, 2, 3, 30):
        one.context.run(loop.call_later, second, seen.append, second)

    loop.run_events(until=1.5)
    loop.pause(one)
    loop.run_events(until=20)
    assert seen == [1]
    loop.resume(one)
    loop.run_events(until=20)
    assert seen == [1, 2, 3]
    loop.run_events(until=40)
    assert seen == [1, 2, 3, 30]


def test_a_process_may_die_while_it_is_paused(loop):
    seen: list[Any] = []
    one = process(loop)
    one.context.run(loop.call_later, 1, seen.append, 1)
    loop.pause(one)
    loop.run_events(until=2)
    loop.kill(one)
    loop.resume(one)
    loop.run_events(until=3)

    assert seen == []


def test_clocks_drift_and_timers_with_them(loop):
    fast, slow = process(loop, seconds=500.0), process(loop)
    fast.clock.skew(2.0)
    slow.clock.skew(0.5)
    seen: list[Any] = []

    async def wait(name: str) -> None:
        started = loop.time()
        await asyncio.sleep(10)
        seen.append((name, loop.time() - started, loop.now))

    spawn(loop, fast, wait("fast"))
    spawn(loop, slow, wait("slow"))
    loop.run_events(until=100)

    assert [name for name, _, _ in seen] == ["fast", "slow"]
    assert [local for _, local, _ in seen] == pytest.approx([10, 10])
    assert [true for _, _, true in seen] == pytest.approx([5, 20])


def test_a_timer_never_fires_before_its_time(loop):
    one = process(loop, seconds=77_777.7)
    one.clock.skew(1.0 / 3.0)
    early = []

    async def wait() -> None:
        for n in range(2000):
            until = loop.time() + 0.001 * n / 7
            await asyncio.sleep(until - loop.time())
            while loop.time() < until:
                early.append(until - loop.time())
                await asyncio.sleep(until - loop.time())

    task = spawn(loop, one, wait())
    loop.run_events(until=10_000, stop=task.done)

    assert task.done()
    assert all(seconds < 1e-9 for seconds in early)


def test_monotonic_time_never_falls_and_the_wall_clock_may(loop):
    clock = MachineClock(loop, seconds=5.0, wall_ms=1000)
    loop.run_events(until=10)
    assert (clock.monotonic(), clock.wall_ms()) == (15.0, 11_000)
    clock.skew(0.1)
    clock.jump_wall_ms(-10_000)
    assert (clock.monotonic(), clock.wall_ms()) == (15.0, 1000)
    loop.run_events(until=20)
    assert clock.monotonic() == pytest.approx(16.0)


def test_errors_in_callbacks_and_forgotten_tasks_are_kept(loop):
    async def fail() -> None:
        raise KeyError("forgotten")

    loop.create_task(fail())
    loop.run_events(until=1)
    loop.world.tasks.clear()
    gc.collect()
    loop.call_soon(lambda: 1 // 0)
    loop.run_events(until=2)

    assert [type(failure.error) for failure in loop.errors] == [KeyError, ZeroDivisionError]


def test_it_serves_as_an_ordinary_loop():
    async def main() -> str:
        async with asyncio.timeout(1000):
            await asyncio.sleep(500)
        return "done"

    loop = VirtualLoop()
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        assert runner.run(main()) == "done"
    assert loop.now == pytest.approx(500)


def test_waiting_for_nothing_is_a_deadlock():
    async def main() -> None:
        await asyncio.get_running_loop().create_future()

    loop = VirtualLoop()
    with pytest.raises(AssertionError, match="deadlock"), asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(main())


def test_the_collector_rests_while_events_run(loop):
    states = []
    loop.call_soon(lambda: states.append(gc.isenabled()))
    loop.run_events(until=math.nextafter(0, 1))

    assert states == [False]
    assert gc.isenabled()
