import asyncio
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

from tests.simulation import virtual_time
from tidelog.broker.outboxes import Outboxes
from tidelog.simulation.host import SimulatedClock


class Post:
    """Notes every request, and answers it when it may."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, list[int]]] = []
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        broker: Any = SimpleNamespace(spawn=asyncio.get_running_loop().create_task)
        self.boxes: Outboxes[int] = Outboxes(broker, self._ask)

    async def _ask(self, node: int, items: list[int]) -> None:
        self.asked.append((node, items))
        await self.may_answer.wait()


def posting(story: Callable[[Post], Coroutine[Any, Any, None]]) -> None:
    clock = SimulatedClock()

    async def main() -> None:
        await story(Post())

    virtual_time.run(main(), clock)


def test_what_comes_in_one_turn_goes_together_to_each_node():
    async def story(post):
        for item in range(4):
            post.boxes.put(item % 2, item)
        await asyncio.sleep(0.01)

        assert post.asked == [(0, [0, 2]), (1, [1, 3])]

    posting(story)


def test_what_comes_while_a_request_is_under_way_goes_with_the_next():
    async def story(post):
        post.may_answer.clear()
        post.boxes.put(1, 0)
        await asyncio.sleep(0.01)
        for item in (1, 2, 3):
            post.boxes.put(1, item)
            await asyncio.sleep(0.005)
        assert post.asked == [(1, [0])]

        post.may_answer.set()
        await asyncio.sleep(0.001)

        assert post.asked == [(1, [0]), (1, [1, 2, 3])]

    posting(story)


def test_a_request_that_is_slow_to_be_answered_holds_up_nobody():
    async def story(post):
        post.may_answer.clear()
        post.boxes.put(1, 0)
        await asyncio.sleep(0.01)
        post.boxes.put(1, 1)
        await asyncio.sleep(0.06)

        assert post.asked == [(1, [0]), (1, [1])]
        post.may_answer.set()
        await asyncio.sleep(0.1)
        post.boxes.put(1, 2)
        await asyncio.sleep(0.01)
        assert post.asked[2:] == [(1, [2])]

    posting(story)


def test_a_request_has_so_many_things_at_most_and_the_rest_follow():
    async def story(post):
        for item in range(2500):
            post.boxes.put(1, item)
        await asyncio.sleep(0.01)

        assert [len(items) for _, items in post.asked] == [1000, 1000, 500]
        assert [item for _, items in post.asked for item in items] == list(range(2500))

    posting(story)
