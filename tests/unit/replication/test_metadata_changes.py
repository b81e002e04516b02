"""What a node does about the metadata, and in how many turns of its loop."""

import asyncio
from collections.abc import Callable, Coroutine
from functools import wraps
from types import SimpleNamespace
from typing import Any
from uuid import UUID

from tidelog.controller.difference import SLICE
from tidelog.controller.image import ClusterImage
from tidelog.controller.records import MetadataRecord, PartitionChanged, TopicCreated, TopicDeleted
from tidelog.replication.metadata_changes import MetadataChanges

TOPIC = UUID(int=7)
MANY = 3 * SLICE + 20


def on_a_loop(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    @wraps(test)
    def run() -> None:
        asyncio.run(test())

    return run


class Stage:
    """Node 1 follows what a test applies; what it does is counted by turns of the loop."""

    def __init__(self) -> None:
        self.image = ClusterImage()
        self.applied = 0
        self.turn = 0
        self.acted: dict[int, int] = {}
        self.opened: list[Any] = []
        self.deleted: list[str] = []
        self.calls: list[Any] = []
        metadata: Any = SimpleNamespace(on_applied=self.calls.append)
        self.metadata = metadata
        self._show()
        replicas: Any = SimpleNamespace(
            open=self._open, close=self._close, become=self._become, become_now=self._become_now
        )
        self.following = MetadataChanges(
            1,
            metadata,
            replicas,
            apply_configs=self._configure,
            tell_deleted=self.deleted.append,
            tell_moved=self._moved,
        )

    def _show(self) -> None:
        self.metadata.image, self.metadata.applied = self.image, self.applied

    def apply(self, *records: MetadataRecord) -> None:
        for record in records:
            self.image.apply(record)
        self.applied += len(records)
        self._show()
        for call in self.calls:
            call(records)

    def install(self, image: ClusterImage) -> None:
        self.image, self.applied = image, self.applied + 1
        self._show()
        for call in self.calls:
            call(())

    def _count(self, by: int = 1) -> None:
        self.acted[self.turn] = self.acted.get(self.turn, 0) + by

    async def _open(self, wanted: Any, image: Any) -> None:
        self.opened += wanted

    async def _close(self, closed: Any) -> None:
        self.opened = [r for r in self.opened if r.name not in {c.name for c in closed}]

    async def _become(self, replica: Any) -> None:
        self._become_now(replica)

    def _become_now(self, replica: Any) -> bool:
        self._count()
        return True

    async def _configure(self, topics: Any) -> None:
        pass

    def _moved(self, moved: Any) -> None:
        self._count(len(moved))

    async def tick(self) -> None:
        while True:
            self.turn += 1
            await asyncio.sleep(0)

    async def done(self) -> None:
        ticking = asyncio.get_running_loop().create_task(self.tick())
        running = asyncio.get_running_loop().create_task(self.following.run())
        await self.following.done(self.applied)
        for task in (ticking, running):
            task.cancel()


def created(name: str = "t", topic_id: UUID = TOPIC, count: int = MANY) -> TopicCreated:
    return TopicCreated(name=name, id=str(topic_id), replicas=[[1, 2]] * count)


def led_by_2(image: ClusterImage) -> list[PartitionChanged]:
    return [
        PartitionChanged(topic=str(TOPIC), partition=number, state=partition.changed(leader=2).state)
        for number, partition in enumerate(image.topics_by_id[TOPIC].partitions)
    ]


@on_a_loop
async def test_many_changes_are_acted_on_in_many_turns():
    stage = Stage()
    stage.apply(created())
    await stage.done()
    stage.acted.clear()

    stage.apply(*led_by_2(stage.image))
    await stage.done()

    assert sum(stage.acted.values()) == 2 * MANY, "each is led anew, and told of"
    assert max(stage.acted.values()) <= 2 * SLICE


@on_a_loop
async def test_a_snapshot_is_compared_in_many_turns():
    stage = Stage()
    compared: dict[int, int] = {}
    compare = stage.following._differences._compare_one

    def count(*args: Any) -> None:
        compared[stage.turn] = compared.get(stage.turn, 0) + 1
        compare(*args)

    stage.following._differences._compare_one = count  # type: ignore[method-assign, assignment]
    image = ClusterImage()
    image.apply(created())

    stage.install(image)
    await stage.done()

    assert len(stage.opened) == MANY
    assert sum(compared.values()) == MANY
    assert max(compared.values()) <= SLICE


@on_a_loop
async def test_what_is_committed_while_a_snapshot_is_compared_comes_after_it():
    stage = Stage()
    stage.apply(created(name="old", topic_id=UUID(int=9)))
    await stage.done()
    image = ClusterImage()
    image.apply(created())
    stage.install(image)
    running = asyncio.get_running_loop().create_task(stage.following.catch_up())
    await asyncio.sleep(0)
    assert len(stage.opened) == MANY, "nothing is acted on while it is compared"

    stage.apply(TopicDeleted(name="t"))
    await running
    await stage.following.catch_up()

    assert stage.opened == []


@on_a_loop
async def test_topics_that_a_snapshot_lacks_are_told_of_at_once_wherever_they_were():
    stage = Stage()
    elsewhere = TopicCreated(name="elsewhere", id=str(UUID(int=8)), replicas=[[2, 3]])
    stage.apply(created(count=1), elsewhere)
    await stage.done()
    image = ClusterImage()
    image.apply(created(topic_id=UUID(int=9), count=1))  # another one of its name

    stage.install(image)

    assert stage.deleted == ["t", "elsewhere"]
    await stage.done()
    assert stage.deleted == ["t", "elsewhere"]
