"""What a node that leads the quorum, or believes so, answers to heartbeats."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.controller.histories import CLUSTER_ID, cluster, image_after
from tidelog.cluster.active import ActiveController
from tidelog.cluster.messages import Beat, HeartbeatAnswer
from tidelog.controller.controller import Controller
from tidelog.controller.elections import min_in_sync, own_config
from tidelog.controller.leases import Heartbeat


class Place:
    def __init__(self) -> None:
        self.answers: list[Any] = []

    def send(self, message: Any) -> None:
        self.answers.append(message)


async def answer_to(
    broker_epoch: int, *, is_certain: bool, process: str = ""
) -> tuple[HeartbeatAnswer, Controller]:
    """What a life of node 2 hears from a controller that knows it by the broker epoch 2."""
    loop = asyncio.get_running_loop()
    metadata = SimpleNamespace(image=image_after(*cluster(1, 2)), applied=9, on_applied=lambda listener: None)
    ignore = lambda *_: None  # noqa: E731
    member: Any = SimpleNamespace(
        metadata=metadata,
        quorum=SimpleNamespace(leads=True, spawn=loop.create_task),
        identity=SimpleNamespace(cluster_id=CLUSTER_ID),
        handle=ignore,
        on_lead=ignore,
        on_follow=ignore,
        on_gone=ignore,
        on_down=ignore,
    )
    host: Any = SimpleNamespace(
        clock=SimpleNamespace(monotonic=lambda: 0.0), new_id=lambda: SimpleNamespace(hex="p")
    )
    active = ActiveController(host, member, min_in_sync(), own_config, lease_seconds=2.0)
    active.start()

    async def confirmed() -> bool:
        return is_certain

    active._leadership = SimpleNamespace(confirmed=confirmed)  # type: ignore[assignment]
    place = Place()
    heartbeat = Heartbeat(node=2, broker_epoch=broker_epoch, metadata_offset=9)
    beat = Beat(heartbeat=heartbeat, process=process)
    active._on_heartbeat(2, beat, place)  # type: ignore[arg-type]
    while not place.answers:
        await asyncio.sleep(0)
    (answer,) = place.answers
    assert isinstance(answer, HeartbeatAnswer)
    return answer, active.controller


@pytest.mark.parametrize("broker_epoch", [1, 2, 7], ids=["past", "known", "later"])
def test_a_controller_that_may_be_deposed_says_nothing_of_any_life(broker_epoch):
    """The life may have begun under its successor: it would end, and with it all that it led."""
    answer, _ = asyncio.run(answer_to(broker_epoch, is_certain=False))

    assert not answer.is_controller


@pytest.mark.parametrize(("broker_epoch", "is_known"), [(1, False), (2, True), (7, False)])
def test_a_controller_that_leads_for_certain_says_which_life_it_knows(broker_epoch, is_known):
    answer, _ = asyncio.run(answer_to(broker_epoch, is_certain=True))

    assert answer.is_controller
    assert answer.is_known is is_known


@pytest.mark.parametrize(("process", "is_known"), [("", True), ("p", True), ("q", False)])
def test_what_a_broker_told_the_process_before_this_one_was_not_told(process, is_known):
    """The heartbeat says that all was told; a part of it to a process that is no more."""
    _, controller = asyncio.run(answer_to(2, is_certain=True, process=process))

    assert controller.reports.has_told_all(2, 2) is is_known
