"""The loop's time, shared between requests and others; a clock that only they move."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from contextvars import ContextVar
from typing import Any

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

        async def work(steps: int = 20) -> None:
            for _ in range(steps):
                clock.now += STEP_SECONDS
                await asyncio.sleep(0)

        async def longest() -> float:
            await meter.share(work(1))
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


def test_whoever_waits_for_its_turn_costs_the_loop_nothing():
    async def calls(count: int) -> int:
        """How often the loop is asked to call somebody, if so many wait for their turns."""
        clock = Clock()
        meter = Meter(clock)
        loop = asyncio.get_running_loop()
        asked = 0
        call_soon = loop.call_soon

        def count_call(*what: Any, **options: Any) -> asyncio.Handle:
            nonlocal asked
            asked += 1
            return call_soon(*what, **options)

        async def request() -> None:
            clock.now += TURN_SECONDS

        loop.call_soon = count_call  # type: ignore[assignment, method-assign]
        await asyncio.gather(*(meter.share(request()) for _ in range(count)))
        loop.call_soon = call_soon  # type: ignore[method-assign]
        return asked

    assert asyncio.run(calls(200)) <= 10 * asyncio.run(calls(20))


def test_whoever_comes_later_overtakes_nobody_in_the_line():
    async def story(meter: Meter, clock: Clock) -> None:
        begun: list[int] = []

        async def request(number: int) -> None:
            begun.append(number)
            clock.now += TURN_SECONDS

        tasks = []
        for number in range(40):
            tasks.append(asyncio.create_task(meter.share(request(number))))
            if number >= 10:
                await asyncio.sleep(0)  # one more comes in every turn
        await asyncio.gather(*tasks)

        assert begun == list(range(40))

    play(story)


def test_whoever_is_cancelled_or_fails_in_the_line_holds_up_nobody():
    told: list[bool] = []

    async def story(clock: Clock) -> None:
        meter = Meter(clock, on_crowded=told.append)
        begun: list[int] = []
        ended: list[int] = []

        async def request(number: int) -> None:
            begun.append(number)
            clock.now += STEP_SECONDS
            try:
                await asyncio.sleep(0)
            finally:
                ended.append(number)
                clock.now += STEP_SECONDS
            if number % 3 == 1:
                raise ZeroDivisionError

        tasks = [asyncio.create_task(meter.share(request(number))) for number in range(12)]
        while len(begun) < 12:
            await asyncio.sleep(0)
        for task in tasks[::3]:
            task.cancel()
        assert await longest_turn(clock, tasks) <= TURN_SECONDS + STEP_SECONDS
        results = await asyncio.gather(*tasks, return_exceptions=True)
        for _ in range(2):
            await asyncio.sleep(0)

        assert ended == list(range(12))
        assert [type(one) for one in results] == [asyncio.CancelledError, ZeroDivisionError, type(None)] * 4
        assert told == [True, False]

    asyncio.run(story(Clock()))


def test_whoever_is_cancelled_before_it_begins_never_does_and_holds_up_nobody():
    async def story(meter: Meter, clock: Clock) -> None:
        begun: list[int] = []

        async def request(number: int) -> None:
            begun.append(number)
            clock.now += TURN_SECONDS

        tasks = [asyncio.create_task(meter.share(request(number))) for number in range(9)]
        await asyncio.sleep(0)
        for task in tasks[1::2]:
            task.cancel()
        await asyncio.wait(tasks)

        assert begun == [0, 2, 4, 6, 8]
        assert [task.cancelled() for task in tasks] == [False, True] * 4 + [False]

    play(story)


def test_a_turn_that_fails_before_it_begins_is_followed_by_another():
    async def story(clock: Clock) -> None:
        faults = [ZeroDivisionError]
        begun: list[int] = []

        def has_others() -> bool:
            if faults:
                raise faults.pop()
            return True

        async def request(number: int) -> None:
            begun.append(number)
            clock.now += TURN_SECONDS

        asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
        meter = Meter(clock, has_others=has_others)
        tasks = [asyncio.create_task(meter.share(request(number))) for number in range(9)]
        await asyncio.sleep(0)
        tasks.append(asyncio.create_task(meter.share(request(9))))
        await asyncio.gather(*tasks)

        assert begun == list(range(10)) and not faults

    asyncio.run(story(Clock()))


def test_whoever_has_waited_goes_on_in_its_own_context():
    name: ContextVar[int] = ContextVar("name")

    async def story(meter: Meter, clock: Clock) -> None:
        async def request(number: int) -> None:
            name.set(number)
            for _ in range(3):
                clock.now += TURN_SECONDS
                await asyncio.sleep(0)
                assert name.get() == number

        await asyncio.gather(*(meter.share(request(number)) for number in range(9)))

    play(story)


def test_work_within_work_is_done_in_a_crowd_too():
    async def story(meter: Meter, clock: Clock) -> None:
        async def work() -> None:
            for _ in range(3):
                clock.now += TURN_SECONDS
                await asyncio.sleep(0)

        async def request() -> None:
            await in_turn(work())

        await asyncio.gather(*(meter.share(request()) for _ in range(9)))

        assert clock.now == pytest.approx(27 * TURN_SECONDS)

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

        risen = asyncio.Event()

        async def work() -> None:
            try:
                await risen.wait()
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                ended.append("cancelled")
                raise

        task = asyncio.create_task(meter.share(work()))
        for _ in range(3):
            await asyncio.sleep(0)  # now it waits, and its turn is over
        if is_spent:
            risen.set()
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


# What begins at once.


def test_work_that_does_not_wait_ends_at_once_and_costs_no_task():
    async def story(meter: Meter, clock: Clock) -> None:
        done: list[int] = []

        async def work() -> None:
            async with asyncio.timeout(5):
                done.append(1)

        def ask() -> None:
            assert meter.begin(work()) is None and done == [1]
            risen.set()

        risen = asyncio.Event()
        asyncio.get_running_loop().call_soon(ask)
        await risen.wait()

    play(story)


def test_work_that_waits_goes_on_in_a_task_that_its_first_step_has_noted():
    async def story(meter: Meter, clock: Clock) -> None:
        heard: list[object] = []
        tasks: list[Any] = []

        async def work(seconds: float) -> None:
            try:
                async with asyncio.timeout(seconds):
                    await asyncio.Event().wait()
            except TimeoutError:
                heard.append("timeout")
            me = asyncio.current_task()
            assert me is not None and me.cancelling() == 0
            await asyncio.sleep(0)
            heard.append(me is asyncio.current_task() is tasks[0])
            raise ZeroDivisionError

        def ask(seconds: float) -> None:
            tasks.append(meter.begin(work(seconds)))

        for seconds in (0.001, 0.0, -1.0):  # the last two are over before the task has begun
            tasks.clear()
            asyncio.get_running_loop().call_soon(ask, seconds)
            await asyncio.sleep(0)
            with pytest.raises(ZeroDivisionError):
                await tasks[0]
        assert heard == ["timeout", True] * 3

    play(story)


def test_work_that_has_begun_hears_that_its_task_is_cancelled_before_that_begins():
    async def story(meter: Meter, clock: Clock) -> None:
        ended: list[str] = []
        tasks: list[Any] = []

        async def work() -> None:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                ended.append("cancelled")
                raise

        def ask() -> None:
            tasks.append(meter.begin(work()))
            tasks[0].cancel()

        asyncio.get_running_loop().call_soon(ask)
        await asyncio.sleep(0)
        with suppress(asyncio.CancelledError):
            await tasks[0]
        assert ended == ["cancelled"] and tasks[0].cancelled()

    play(story)


def test_work_that_begins_when_the_turn_is_used_up_waits_in_the_line():
    async def story(meter: Meter, clock: Clock) -> None:
        begun: list[int] = []
        tasks: list[Any] = []

        async def work(number: int) -> None:
            begun.append(number)
            clock.now += STEP_SECONDS

        def ask() -> None:
            tasks.extend(meter.begin(work(number)) for number in range(20))

        asyncio.get_running_loop().call_soon(ask)
        await asyncio.sleep(0)
        assert begun == [0, 1] and tasks[:2] == [None, None]
        assert await longest_turn(clock, tasks[2:]) <= TURN_SECONDS + STEP_SECONDS
        assert begun == list(range(20))

    play(story)


def test_first_steps_of_several_may_wait_for_the_same_future():
    async def story() -> list[str]:
        loop, meter = asyncio.get_running_loop(), Meter()
        shared: asyncio.Future[str] = loop.create_future()
        told: list[str] = []

        async def wait() -> None:
            told.append(await shared)

        def begin() -> None:
            tasks.extend(task for task in (meter.begin(wait()), meter.begin(wait())) if task is not None)
            begun.set()

        tasks = [loop.create_task(wait())]
        begun = asyncio.Event()
        loop.call_soon(begin)
        await begun.wait()
        loop.call_soon(shared.set_result, "done")
        await asyncio.gather(*tasks)
        return told

    assert asyncio.run(story()) == ["done"] * 3
