"""One node's partitions on a simulated disk, without the node: to test what feeds and fetches."""

import random
from types import SimpleNamespace
from typing import Any
from uuid import UUID

from tests.support.waiting import Waiting
from tests.unit.log.logs import make_batch
from tidelog.config import TopicConfig
from tidelog.errors import BrokerError, UnknownTopicOrPartition
from tidelog.host import Path
from tidelog.log.recovery import open_log
from tidelog.log.rounds import Rounds
from tidelog.log.tail import TailBudget
from tidelog.model import NodeId, TopicPartition
from tidelog.partition.driver import Partition
from tidelog.records import iterate_batches, stamp
from tidelog.simulation.disk import SimulatedDisk
from tidelog.simulation.host import SimulatedClock, simulated_host

TOPIC = UUID(int=7)
ROOT = Path("/data")


class Producer(Waiting):
    """A producer that notes what it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[BrokerError | None] = []

    def settled(self, error: BrokerError | None) -> None:
        self.told.append(error)


class Replicas:
    """Stands for `broker.replicas`: the partitions of one topic, by number."""

    def __init__(self, me: NodeId, clock: SimulatedClock) -> None:
        self.me = me
        self.disk = SimulatedDisk(random.Random(me))
        self.disk.make_directory(ROOT)
        self.host = simulated_host(me, self.disk, clock=clock)
        self.fatal: list[BaseException] = []
        self.rounds = Rounds(self.host, ROOT, self.fatal.append)
        self.budget = TailBudget(10**6)
        self.partitions: dict[int, Partition] = {}

    def open(self, number: int = 0, **config: Any) -> Partition:
        path = ROOT / f"tide-{number}"
        self.disk.make_directory(path)
        self.disk.sync_everything(ROOT)
        settings = TopicConfig(**config)
        state = open_log(
            self.disk,
            path,
            clean=False,
            durable_mark=0,
            start=0,
            index_interval_bytes=settings.index_interval_bytes,
        )
        self.partitions[number] = Partition(
            name=TopicPartition("tide", number),
            topic_id=TOPIC,
            me=self.me,
            config=settings,
            path=path,
            state=state,
            host=self.host,
            rounds=self.rounds,
            budget=self.budget,
        )
        return self.partitions[number]

    # As the broker's.

    def find(self, topic: object, number: int) -> Partition:
        if number not in self.partitions:
            raise UnknownTopicOrPartition(f"tide-{number}")
        return self.partitions[number]

    def holds(self, partition: Partition) -> bool:
        return partition in self.partitions.values()

    def all(self) -> list[Partition]:
        return list(self.partitions.values())


class Member:
    """Stands for `cluster.member`: keeps the handlers, and where partitions are by cluster id."""

    def __init__(self, *cluster_ids: int) -> None:
        self.handlers: dict[type, Any] = {}
        self.gone: list[Any] = []
        topic = SimpleNamespace(id=TOPIC)
        partition = SimpleNamespace(eligible=frozenset())
        places = {at: SimpleNamespace(topic=topic, number=at, partition=partition) for at in cluster_ids}
        self.metadata = SimpleNamespace(image=SimpleNamespace(places=places))

    def handle(self, kind: type, handler: Any) -> None:
        self.handlers[kind] = handler

    def on_gone(self, call: Any) -> None:
        self.gone.append(call)


def append(partition: Partition, count: int = 1, *, size: int = 10) -> Producer:
    """Append one batch of `count` records, with acks=all; who waits for it."""
    producer = Producer()
    batch = make_batch(count, size=size, time_ms=1_700_000_000_000)
    partition.appender.append(batch, acks=-1, waiter=producer, pins_bytes=len(batch))
    return producer


def batch_at(offset: int, epoch: int, count: int = 1, *, size: int = 10) -> bytes:
    """A batch as a leader sends it."""
    batch = make_batch(count, size=size)
    stamp(batch, offset, epoch)
    return bytes(batch)


def offsets_in(data: bytes | memoryview) -> list[tuple[int, int]]:
    """The (epoch, first offset) of every batch."""
    return [(header.leader_epoch, header.base_offset) for header, _ in iterate_batches(data)]
