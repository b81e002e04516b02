"""The loop's time, shared between requests and others; a clock that only they move."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest

from tidelog.faces.http.pacing import ALONE_SECONDS, TURN_SECONDS, Meter, in_turn

STEP_SECONDS = 0.75 * TURN_SECONDS


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def play(story: Callable[[Meter, Clock], Awaitable[None]]) -> None:
    async def run() -> None:
        clock = Clock()
        await story(Meter(clock), clock)

    asyncio.run(run())


async def longest_turn(clock: Clock, tasks: list[asyncio.Task[None]]) -> float:
    """How far the clock went at most while somebody else waited for the loop."""
    longest = 0.0
    while not all(task.done() for task in tasks):
        began = clock.now
        await asyncio.sleep(0)
        longest = max(longest, clock.now - began)
    return longest


@pytest.mark.parametrize("is_child", [False, True], ids=["by itself", "in a task of its own"])
def test_many_requests_keep_the_loop_no_longer_than_a_few(is_child):
    async def story(meter: Meter, clock: Clock) -> None:
        async def work() -> None:
            for _ in range(5):
                clock.now += STEP_SECONDS
                await asyncio.sleep(0)

        async def request() -> None:
            await (asyncio.create_task(in_turn(work())) if is_child else work())

        tasks = [asyncio.create_task(meter.share(request())) for _ in range(50)]

        assert await longest_turn(clock, tasks) <= TURN_SECONDS + STEP_SECONDS
        assert clock.now == pytest.approx(50 * 5 * STEP_SECONDS)

    play(story)


def test_those_who_are_woken_together_take_turns_too():
    async def story(meter: Meter, clock: Clock) -> None:
        risen = asyncio.Event()

        async def listen() -> None:
            await risen.wait()
            clock.now += STEP_SECONDS

        tasks = [asyncio.create_task(meter.share(listen())) for _ in range(50)]
        await asyncio.sleep(0)
        risen.set()

        assert await longest_turn(clock, tasks) <= TURN_SECONDS + STEP_SECONDS

    play(story)


def test_whoever_has_the_loop_alone_takes_longer_turns():
    async def story(clock: Clock) -> None:
        others = False
        meter = Meter(clock, has_others=lambda: others)

        async def work() -> None:
            for _ in range(20):
                clock.now += STEP_SECONDS
                await asyncio.sleep(0)

        async def longest() -> float:
            await meter.share(asyncio.sleep(0))
            await asyncio.sleep(0)  # a turn in which it sees whether there are others
            tasks = [asyncio.create_task(meter.share(work())) for _ in range(50)]
            return await longest_turn(clock, tasks)

        assert ALONE_SECONDS < await longest() <= ALONE_SECONDS + STEP_SECONDS
        others = True
        assert await longest() <= TURN_SECONDS + STEP_SECONDS

    asyncio.run(story(Clock()))


def test_others_are_told_while_requests_wait_for_their_turn():
    told: list[bool] = []

    async def story(clock: Clock) -> None:
        meter = Meter(clock, on_crowded=told.append)

        async def request(steps: int) -> None:
            for _ in range(steps):
                clock.now += TURN_SECONDS
                await asyncio.sleep(0)

        await meter.share(request(5))
        assert told == []
        await asyncio.gather(*(meter.share(request(5)) for _ in range(3)))
        await asyncio.sleep(0)
        assert told == [True, False]  # once, for all the turns that they took
        await meter.share(request(5))
        assert told == [True, False]

    asyncio.run(story(Clock()))


def test_requests_begin_in_their_order():
    async def story(meter: Meter, clock: Clock) -> None:
        begun: list[int] = []

        async def request(number: int) -> None:
            begun.append(number)
            clock.now += TURN_SECONDS

        await asyncio.gather(*(meter.share(request(number)) for number in range(20)))

        assert begun == list(range(20))

    play(story)


def test_what_work_returns_raises_and_waits_for_is_its_own():
    async def story(meter: Meter, clock: Clock) -> None:
        async def give() -> str:
            return await asyncio.wait_for(asyncio.sleep(0, "found"), 5)

        async def fail() -> None:
            await asyncio.sleep(0)
            raise ZeroDivisionError

        async def be_late() -> None:
            async with asyncio.timeout(0.001):
                await asyncio.Event().wait()

        assert await meter.share(give()) == "found"
        with pytest.raises(ZeroDivisionError):
            await meter.share(fail())
        with pytest.raises(TimeoutError):
            await meter.share(be_late())

    play(story)


@pytest.mark.parametrize("is_spent", [False, True], ids=["waiting", "giving way"])
def test_work_hears_that_it_is_cancelled_wherever_it_stands(is_spent):
    async def story(meter: Meter, clock: Clock) -> None:
        ended: list[str] = []

        async def work() -> None:
            try:
                await asyncio.sleep(0)
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                ended.append("cancelled")
                raise

        task = asyncio.create_task(meter.share(work()))
        await asyncio.sleep(0)
        if is_spent:
            meter.used = TURN_SECONDS
        await asyncio.sleep(0)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

        assert ended == ["cancelled"]

    play(story)


def test_without_a_meter_work_is_just_done():
    async def story(meter: Meter, clock: Clock) -> None:
        assert await in_turn(asyncio.sleep(0, "done")) == "done"

    play(story)
