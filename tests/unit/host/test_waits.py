import asyncio
import gc

import pytest

from tidelog.errors import StorageError
from tidelog.host import unbroken


def test_who_is_cancelled_in_unbroken_work_waits_for_its_end():
    async def story() -> None:
        thread: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        learned: list[str] = []

        async def work() -> None:
            await thread
            learned.append("what the thread did")

        task = asyncio.create_task(unbroken(work()))
        for _ in range(3):  # however often
            await asyncio.sleep(0)
            task.cancel()
        await asyncio.sleep(0)
        assert not task.done()
        thread.set_result(None)
        with pytest.raises(asyncio.CancelledError):
            await task

        assert learned == ["what the thread did"]

    asyncio.run(story())


def test_unbroken_work_that_fails_says_so_even_to_who_was_cancelled():
    async def story() -> None:
        thread: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        async def work() -> None:
            await thread

        task = asyncio.create_task(unbroken(work()))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.sleep(0)
        thread.set_exception(OSError("the disk failed"))

        with pytest.raises(OSError, match="the disk failed"):
            await task

    asyncio.run(story())


def test_who_was_cancelled_does_not_try_again_what_unbroken_work_was_refused():
    async def story() -> None:
        thread: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        async def work() -> None:
            await thread

        task = asyncio.create_task(unbroken(work()))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.sleep(0)
        thread.set_exception(StorageError("no more files can be opened"))

        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(story())


def test_nobody_complains_of_unbroken_work_that_failed_when_its_process_ended():
    complaints: list[dict[str, object]] = []

    async def story() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: complaints.append(context))
        thread: asyncio.Future[None] = loop.create_future()

        async def work() -> None:
            await thread

        waiting = unbroken(work())
        waiting.send(None)  # it waits for the task that it made, and never comes back
        await asyncio.sleep(0)
        thread.set_exception(OSError("the disk failed"))
        await asyncio.sleep(0)
        waiting.close()
        await asyncio.sleep(0)

    asyncio.run(story())
    gc.collect()

    assert complaints == []


# Reading what the device has.
