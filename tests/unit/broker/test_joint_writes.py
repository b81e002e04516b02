"""When what was gathered for a partition goes."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest

from tidelog.broker import joint_writes
from tidelog.broker.joint_writes import Gathered


class Handed:
    """What was handed on, batch by batch."""

    def __init__(self, at_once_max: int = 100) -> None:
        self.batches: list[list[int]] = []
        self._at_once_max = at_once_max
        self.gathered: Gathered[int] = Gathered(self._take)

    def _take(self, items: Sequence[int]) -> int:
        self.batches.append(list(items[: self._at_once_max]))
        return len(self.batches[-1])

    def put(self, *items: int) -> None:
        for item in items:
            self.gathered.put(item)


def run(story: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(story())


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


@pytest.fixture(autouse=True)
def _no_end_of_patience(monkeypatch):
    monkeypatch.setattr(joint_writes, "GATHER_SECONDS", 3600.0)


def test_what_comes_while_a_batch_is_on_its_way_to_replicas_goes_as_one_behind_it():
    async def story() -> None:
        handed = Handed()
        handed.put(1, 2)
        await turns()
        handed.gathered.pace.begun()

        handed.put(3)
        await turns()
        handed.put(4)
        await turns()
        assert handed.batches == [[1, 2]]

        handed.gathered.pace.ended()
        await turns()
        assert handed.batches == [[1, 2], [3, 4]]

    run(story)


def test_nobody_waits_for_long_for_replicas_that_are_far_away(monkeypatch):
    async def story() -> None:
        monkeypatch.setattr(joint_writes, "GATHER_SECONDS", 0.0)
        went: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def take(items: Sequence[int]) -> int:
            went.set_result(None)
            return len(items)

        gathered = Gathered(take)
        gathered.pace.begun()
        gathered.put(1)

        async with asyncio.timeout(30):
            await went

    run(story)


def test_what_has_no_room_in_a_full_batch_goes_at_once():
    async def story() -> None:
        handed = Handed(at_once_max=2)
        handed.gathered.pace.begun()
        handed.put(1, 2, 3)

        handed.gathered.pace.ended()
        handed.gathered.pace.begun()
        await turns()

        assert handed.batches == [[1, 2], [3]]

    run(story)


def test_with_nothing_waiting_the_end_of_a_batch_is_no_reason_to_go():
    async def story() -> None:
        handed = Handed()
        handed.gathered.pace.begun()
        handed.gathered.pace.ended()
        await turns()

        assert handed.batches == []

    run(story)
