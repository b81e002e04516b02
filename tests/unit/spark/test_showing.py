"""What a group shows of a query, with a cluster that answers when it is told to."""

import asyncio
import threading
from typing import Any

import pytest

from tidelog.errors import TidelogError
from tidelog.model import TopicPartition
from tidelog.spark import client_loop
from tidelog.spark.showing import Shown

PLACE = TopicPartition("t", 0)


class Cluster:
    """Takes offsets, each when it may."""

    def __init__(self) -> None:
        self.offsets: list[int] = []
        self.asked = threading.Semaphore(0)
        self.may = asyncio.Semaphore(0)
        self.failure: Exception | None = None

    async def commit_offsets(self, group: str, offsets: dict[TopicPartition, int]) -> None:
        self.asked.release()
        await self.may.acquire()
        if self.failure is not None:
            raise self.failure
        self.offsets.append(offsets[PLACE])

    def answer(self, times: int = 1) -> None:
        async def work() -> None:
            for _ in range(times):
                self.may.release()

        client_loop.wait(client_loop.start(work()))


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    cluster = Cluster()
    client: Any = cluster
    monkeypatch.setattr(client_loop, "client", lambda bootstrap, **_: client)
    return cluster


def test_a_busy_query_does_not_wait_and_the_newest_offsets_are_shown_last(cluster):
    shown = Shown("x:1")
    shown.tell("g", {PLACE: 1})
    assert cluster.asked.acquire(timeout=10)

    for offset in (2, 3):  # while the first is on its way
        shown.tell("g", {PLACE: offset})
    cluster.answer(2)
    shown.wait()

    assert cluster.offsets == [1, 3]


def test_what_is_shown_is_not_told_again(cluster):
    shown = Shown("x:1")
    cluster.answer(2)
    for _ in range(2):
        shown.tell("g", {PLACE: 1})
        shown.wait()

    assert cluster.offsets == [1]


@pytest.mark.parametrize("kind", [TidelogError, TimeoutError, OSError, ValueError])
def test_a_group_that_cannot_be_told_stops_nobody(cluster, caplog, kind):
    cluster.failure = kind("not now")
    cluster.answer()
    shown = Shown("x:1")

    shown.tell("g", {PLACE: 1})
    shown.wait()

    assert "the offsets of group 'g' are not shown: not now" in caplog.text


def test_nothing_to_show_is_nothing_to_wait_for(cluster):
    Shown("x:1").wait()

    assert cluster.offsets == []
