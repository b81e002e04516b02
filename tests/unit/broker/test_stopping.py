"""A stop notes what the files hold, whatever was being done to them."""

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pytest

from tests.unit.broker.node import Machine, Node, batch_of, on_a_node
from tidelog.controller.records import ProducerIdsGranted
from tidelog.errors import StorageError
from tidelog.log.directory import DURABLE_MARKS
from tidelog.model import Offset, TopicPartition


def test_a_node_that_stops_while_its_metadata_log_is_cut_starts_again():
    machine = Machine()

    async def story(node: Node) -> None:
        broker = node.broker
        log, quorum = broker.member.log, broker.member.quorum
        decided = log.end
        log.append([ProducerIdsGranted(node=1, end=1)], quorum.raft.epoch)  # nobody else has it
        await broker.rounds.drained()
        await broker.housekeeping.note()
        quorum.post(partial(log.truncate, decided))
        for _ in range(machine._lives % 10):  # the stop comes a little later in each life
            await asyncio.sleep(0)

    for _ in range(30):
        machine.live(story)


def test_a_checkpoint_whose_task_is_cancelled_is_written_before_anything_is_cut():
    async def story(node: Node) -> None:
        broker = node.broker
        topic = await node.create("tide")
        directory, write = broker._directory, broker._directory.write_checkpoint
        noted: list[tuple[str, bool]] = []

        def note(name: str, offsets: Mapping[TopicPartition, Offset]) -> None:
            noted.append((name, directory.noting.locked()))
            write(name, offsets)

        directory.write_checkpoint = note  # type: ignore[method-assign]
        for _ in range(30):  # in most of them the disk is quicker than the cancellation
            await node.produce(topic, batch_of(b"v"), version=13)
            noted.clear()
            task = asyncio.get_running_loop().create_task(broker.housekeeping.note())
            while not directory.noting.locked():
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

            assert (DURABLE_MARKS, True) in noted

    on_a_node(story)


def test_a_node_stops_though_the_disk_refuses_what_it_notes_meanwhile():
    async def story(node: Node) -> None:
        broker = node.broker
        begun, may_end = asyncio.Event(), asyncio.Event()

        async def refuse(work: Callable[[], Any]) -> Any:
            begun.set()
            await may_end.wait()
            raise StorageError("no more files can be opened")

        broker.housekeeping._change_disk = refuse
        broker.repeat(0.01, broker.housekeeping.note)
        await begun.wait()
        stopping = asyncio.get_running_loop().create_task(broker._stop_housekeeping())
        await asyncio.sleep(0)
        may_end.set()

        async with asyncio.timeout(1):
            await stopping

    on_a_node(story)
