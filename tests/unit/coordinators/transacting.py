"""A transactional producer of a node under test, request by request; and a way to hold up peers."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from tests.unit.broker.node import Node, Place, batch_of, on_a_node
from tests.unit.wire.messages import produce_fields, read_response
from tidelog.records import TRANSACTIONAL, decode_batch, iterate_batches
from tidelog.wire.apis import Api

SETTINGS = {"transaction_state_log_num_partitions": 1, "offsets_topic_num_partitions": 1}
ADDS = 12
"""The first version of Produce with which partitions join by themselves."""
BUMPS = 5
"""The first version of EndTxn that gives each transaction an epoch of its own."""


def on_a_coordinator(story: Callable[[Node], Awaitable[None]], **settings: object) -> None:
    """Run `story` on a node that coordinates transactions, with a topic `t` of two partitions."""

    async def whole(node: Node) -> None:
        await node.create("t", partitions=2)
        answer = await node.ask(Api.FIND_COORDINATOR, 3, key="tx", key_type=1)
        assert answer.error_code == 0
        await story(node)

    on_a_node(whole, **(SETTINGS | settings))


class Producer:
    """One transactional id; it numbers its batches, and does nothing by itself."""

    def __init__(self, node: Node, name: str = "tx") -> None:
        self.node = node
        self.name = name
        self.id = -1
        self.epoch = -1
        self._sequences: dict[int, int] = {}

    async def init(self, *, timeout_ms: int = 60_000, **more: Any) -> int:
        fields = {
            "transactional_id": self.name,
            "transaction_timeout": timeout_ms,
            "producer_id": -1,
            "producer_epoch": -1,
            **more,
        }
        answer = await self.node.ask(Api.INIT_PRODUCER_ID, 4, **fields)
        if answer.error_code == 0:
            self._go_on_as(answer.producer_id, answer.producer_epoch)
        return int(answer.error_code)

    def _go_on_as(self, producer_id: int, epoch: int) -> None:
        if (producer_id, epoch) != (self.id, self.epoch):
            self._sequences.clear()
        self.id, self.epoch = producer_id, epoch

    async def add(self, *partitions: int, topic: str = "t", version: int = 3) -> list[int]:
        answer = await self.node.ask(
            Api.ADD_PARTITIONS_TO_TXN,
            version,
            v3_and_below_transactional_id=self.name,
            v3_and_below_producer_id=self.id,
            v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=[{"name": topic, "partitions": list(partitions)}],
        )
        (result,) = answer.results_by_topic_v3_and_below
        return [int(one.partition_error_code) for one in result.results_by_partition]

    def send(
        self, *values: bytes, partition: int = 0, version: int = ADDS, acks: int = -1, **header: Any
    ) -> Place:
        """Send one batch; the next one goes by the next sequence, whatever comes of this one."""
        sequence = self._sequences.get(partition, 0)
        self._sequences[partition] = sequence + len(values)
        batch = batch_of(
            *values,
            time_ms=self.node.clock.wall_ms(),
            attributes=TRANSACTIONAL,
            **{"producer_id": self.id, "producer_epoch": self.epoch, "base_sequence": sequence} | header,
        )
        fields = produce_fields([("t", [(partition, batch)])], transactional_id=self.name, acks=acks)
        return self.node.send(Api.PRODUCE, version, fields)

    @staticmethod
    async def answer(place: Place, version: int = ADDS) -> int:
        body = await place.body
        (topic,) = read_response(Api.PRODUCE, version, body).responses
        return int(topic.partition_responses[0].error_code)

    async def write(self, *values: bytes, version: int = ADDS, **options: Any) -> int:
        return await self.answer(self.send(*values, version=version, **options), version)

    async def end(self, *, commits: bool, version: int = BUMPS) -> int:
        answer = await self.node.ask(
            Api.END_TXN,
            version,
            transactional_id=self.name,
            producer_id=self.id,
            producer_epoch=self.epoch,
            committed=commits,
        )
        if answer.error_code == 0 and version >= BUMPS:
            self._go_on_as(answer.producer_id, answer.producer_epoch)
        return int(answer.error_code)

    async def state(self) -> Any:
        """What the coordinator says of it."""
        keeper = self.node.requests._verification._coordinator_of.__self__  # type: ignore[attr-defined]
        return keeper.driver(self.name).shard.describe(self.name)

    async def completed(self) -> None:
        """Wait until the markers of the last transaction stand."""
        for _ in range(100):
            if (await self.state()).state.startswith("Complete"):
                return
            await asyncio.sleep(0.1)
        raise AssertionError(f"not complete: {await self.state()}")


class Gate:
    """Holds up what a node says to itself, by the kind of message."""

    def __init__(self, node: Node) -> None:
        self._hub = node.broker.member.hub
        self._ask = self._hub.ask
        self._hub.ask = self  # type: ignore[method-assign]
        self.asked: list[Any] = []
        self._shut: dict[type, asyncio.Event] = {}
        self._kept: dict[type, asyncio.Event] = {}

    def shut(self, kind: type) -> None:
        """Let no message of that kind through."""
        self._shut[kind] = asyncio.Event()

    def open(self, kind: type) -> None:
        self._shut.pop(kind).set()

    def keep_answers(self, kind: type) -> None:
        """Let the messages through, but not their answers."""
        self._kept[kind] = asyncio.Event()

    def give_answers(self, kind: type) -> None:
        self._kept.pop(kind).set()

    async def __call__(self, node: int, message: Any, answer: Any, **options: Any) -> Any:
        self.asked.append(message)
        if (shut := self._shut.get(type(message))) is not None:
            await shut.wait()
        kept = self._kept.get(type(message))
        said = await self._ask(node, message, answer, **options)
        if kept is not None:
            await kept.wait()
        return said


async def seen(node: Node, partition: int = 0, *, committed: bool = True) -> list[bytes]:
    """The values that a reader sees; a reader of committed records passes over aborted ones."""
    answer = await node.fetch(("t", partition, 0), isolation_level=1 if committed else 0)
    (one,) = answer.responses[0].partitions
    assert one.error_code == 0
    aborted = sorted((a.first_offset, a.producer_id) for a in one.aborted_transactions or ())
    aborting: set[int] = set()
    found: list[bytes] = []
    for header, batch in iterate_batches(one.records or b""):
        while aborted and aborted[0][0] <= header.base_offset:
            aborting.add(aborted.pop(0)[1])
        if header.is_control:
            aborting.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in aborting):
            found += [record.value or b"" for record in decode_batch(batch)]
    return found
