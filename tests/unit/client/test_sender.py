import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.simulation import virtual_time
from tidelog.client.cluster import Refused
from tidelog.client.kafka import KafkaClient
from tidelog.client.sender import WINDOW, BatchSender, Identity
from tidelog.client.wire import ConnectionFailed
from tidelog.model import Endpoint, TopicPartition
from tidelog.records import Record, decode_batch, encode_batch, read_header
from tidelog.simulation.host import SimulatedClock
from tidelog.wire.entities import encode, response_entity

AT = Endpoint(host="one", port=1)
A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)
NOT_LEADER, OUT_OF_ORDER, MESSAGE_TOO_LARGE = 6, 45, 10
ME = Identity(producer_id=7, epoch=3, transactional_id="me")


class Log(KafkaClient):
    """A client whose one broker keeps an idempotent producer's batches, and fails as it is told."""

    def __init__(self) -> None:
        super().__init__("x:1", timeout_seconds=5)
        self._reached = True
        self.values: dict[int, list[bytes | None]] = {0: [], 1: []}
        self.fails: Callable[[], BaseException | int | None] = lambda: None
        self.fails_after: Callable[[], BaseException | None] = lambda: None
        self.held: asyncio.Event | None = None
        self.flying = self.flying_most = 0

    async def leader(self, topic: str, partition: int) -> Any:
        return self

    async def request(self, request: Any, **options: Any) -> Any:
        assert encode(request)
        assert request.transactional_id == "me"
        (part,) = request.topic_data[0].partition_data
        code = self._append(part.index, bytes(part.records))
        self.flying += 1
        self.flying_most = max(self.flying, self.flying_most)
        await asyncio.sleep(0.01)
        if self.held is not None:
            await self.held.wait()
        self.flying -= 1
        if (error := self.fails_after()) is not None:
            raise error
        answer = {"index": part.index, "error_code": code, "base_offset": 0}
        return response_entity(0, 12, {"responses": [{"name": "a", "partition_responses": [answer]}]})

    def _append(self, partition: int, batch: bytes) -> int:
        failure = self.fails()
        if isinstance(failure, BaseException):
            raise failure
        if failure is not None:
            return failure
        header, stored = read_header(batch), self.values[partition]
        assert (header.producer_id, header.producer_epoch) == (7, 3)
        if header.base_sequence < len(stored):
            return 0  # it has it
        if header.base_sequence > len(stored):
            return OUT_OF_ORDER
        stored += [record.value for record in decode_batch(batch)]
        return 0


def sending(story: Callable[[Log, BatchSender], Awaitable[None]]) -> None:
    async def main() -> None:
        log = Log()
        await story(log, BatchSender(log, ME))

    virtual_time.run(main(), SimulatedClock())


async def put(sender: BatchSender, place: TopicPartition, values: list[bytes]) -> None:
    sequence = sender.take_sequence(place, len(values))
    batch = encode_batch(
        [Record(key=None, value=value, timestamp_ms=1) for value in values],
        producer_id=ME.producer_id,
        producer_epoch=ME.epoch,
        base_sequence=sequence,
    )
    await sender.put(place, batch, len(values))


def test_batches_of_a_partition_are_stored_in_order_and_several_are_on_their_way():
    async def story(log, sender):
        for number in range(40):
            await put(sender, A0, [b"%d" % number, b"x"])
            await put(sender, A1, [b"%d" % -number])
        await sender.flush()

        assert log.values[0] == [value for n in range(40) for value in (b"%d" % n, b"x")]
        assert log.values[1] == [b"%d" % -n for n in range(40)]
        assert sender.records == 120
        assert sender.places == [A0, A1]
        assert log.flying_most == 2 * WINDOW

    sending(story)


@pytest.mark.parametrize("seed", range(20))
def test_whatever_fails_on_the_way_each_batch_is_stored_once_and_in_order(seed):
    async def story(log, sender):
        dice = random.Random(seed)
        broken = ConnectionFailed(AT, "reset")
        log.fails = lambda: dice.choice([None, None, None, broken, NOT_LEADER])
        log.fails_after = lambda: dice.choice([None, None, None, None, broken])
        values = [b"%d" % number for number in range(100)]
        for at in range(0, 100, 4):
            await put(sender, A0, values[at : at + 4])
            if dice.random() < 0.3:
                await asyncio.sleep(dice.random())
        await sender.flush()

        assert log.values[0] == values
        assert sender.records == 100

    sending(story)


def test_a_refusal_ends_it_for_good():
    async def story(log, sender):
        log.fails = lambda: MESSAGE_TOO_LARGE
        await put(sender, A0, [b"a"])
        with pytest.raises(Refused):
            await sender.flush()

        log.fails = lambda: None
        with pytest.raises(Refused):
            await put(sender, A1, [b"b"])
        assert log.values == {0: [], 1: []}

    sending(story)


def test_nothing_is_taken_while_too_much_is_unanswered():
    async def story(log, sender):
        log.held = asyncio.Event()
        sends = asyncio.create_task(_flood(sender))
        await asyncio.sleep(60)
        assert not sends.done()
        assert sender._unanswered_bytes < 50_000_000

        log.held.set()
        await sends
        await sender.flush()
        assert len(log.values[0]) == 50

    sending(story)


async def _flood(sender: BatchSender) -> None:
    for _ in range(50):
        await put(sender, A0, [b"x" * 1_000_000])


def test_what_was_not_sent_is_dropped_when_it_is_cancelled():
    async def story(log, sender):
        await put(sender, A0, [b"first"])
        await sender.flush()
        log.held = asyncio.Event()
        for number in range(20):
            await put(sender, A0, [b"%d" % number])
        await asyncio.sleep(1)
        await sender.cancel()

        assert len(log.values[0]) == 1 + WINDOW
        assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []

    sending(story)
