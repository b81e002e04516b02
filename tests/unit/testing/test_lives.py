"""A life ends as a whole, whatever it was at."""

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

from tidelog.host import Path
from tidelog.testing.disk import DiskTroubles, NodeDisk
from tidelog.testing.lives import Life
from tidelog.testing.loop import LoopThread


@contextmanager
def loop_thread() -> Iterator[LoopThread]:
    loop = LoopThread("a test")
    try:
        yield loop
    finally:
        loop.close()


def test_tasks_of_tasks_belong_to_the_life_and_end_with_it():
    cancelled = []

    async def wait_for_ever(name: str) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(name)
            raise

    async def parent() -> None:
        child = asyncio.create_task(wait_for_ever("child"))
        asyncio.get_running_loop().call_soon(
            lambda: children.append(asyncio.ensure_future(wait_for_ever("of a callback")))
        )
        await child

    async def tell() -> None:
        life = Life("a node")
        life.spawn(parent())
        await asyncio.sleep(0.01)
        await life.end()

    children: list[object] = []
    with loop_thread() as loop:
        loop.run(tell(), 10)

    assert sorted(cancelled) == ["child", "of a callback"]


def test_a_task_that_comes_to_be_after_the_end_takes_one_step_and_no_more():
    done = []

    async def awaited() -> None:
        done.append("one step")
        await asyncio.sleep(0)
        done.append("another")

    async def work(coroutine: Coroutine[Any, Any, None]) -> None:
        await coroutine

    async def tell() -> None:
        life = Life("a node")
        await life.end()
        task = life.spawn(work(awaited()))
        await asyncio.wait([task])
        assert task.cancelled()

    with loop_thread() as loop:
        loop.run(tell(), 10)

    assert done == ["one step"]


def test_a_task_that_does_not_want_to_end_is_asked_again():
    async def stubborn() -> None:
        for _ in range(2):
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                pass

    async def tell() -> None:
        life = Life("a node")
        task = life.spawn(stubborn())
        await asyncio.sleep(0)
        await life.end()
        assert task.done()

    with loop_thread() as loop:
        loop.run(tell(), 10)


def test_the_end_takes_its_threads_along_and_gives_its_locks_back(tmp_path):
    path = Path(tmp_path / "lock")

    async def tell() -> None:
        first = Life("a node")
        lock = NodeDisk(first, DiskTroubles()).lock(path)
        await first.end()
        second = Life("the same node")
        again = NodeDisk(second, DiskTroubles()).lock(path)
        await second.end()
        assert lock is not again

    before = threading.active_count()
    with loop_thread() as loop:
        loop.run(tell(), 10)

    assert threading.active_count() == before
