"""What cannot be read of a coordinator's log: it ends no node, and is served again once it can."""

import asyncio

import pytest

from tests.unit.broker.node import Machine
from tests.unit.coordinators.transacting import SETTINGS, Producer
from tidelog.errors import BrokerError, StorageError
from tidelog.model import OFFSETS_TOPIC, QUEUES_TOPIC, TRANSACTIONS_TOPIC, TopicPartition
from tidelog.queues.records import PLAIN_HEADERS, Settings
from tidelog.records import Record, encode_batch
from tidelog.services.queue_work import DeclareWork, LookWork
from tidelog.services.services import Services
from tidelog.wire.apis import Api
from tidelog.wire.names import partition_for

KINDS = {
    "transactions": (TRANSACTIONS_TOPIC, Record(key=b"\x00", value=b"\xff", timestamp_ms=1)),
    "groups": (OFFSETS_TOPIC, Record(key=b"\x00\x01\x00", value=b"1", timestamp_ms=1)),
    "queues": (QUEUES_TOPIC, Record(key=b"W\xff\xfe", value=b"\xc1", timestamp_ms=1)),
    "no message, with its headers": (
        QUEUES_TOPIC,
        Record(key=b"Q" + bytes(8), value=b"1", headers=PLAIN_HEADERS, timestamp_ms=1),
    ),
}


class Coordinators:
    """All three kinds on one node; of queues with two partitions."""

    def __init__(self, node):
        self.node = node
        self.services = Services(node.broker)
        transactions = node.requests._verification._coordinator_of.__self__
        self.keepers = {
            TRANSACTIONS_TOPIC: transactions,
            OFFSETS_TOPIC: transactions.groups,
            QUEUES_TOPIC: self.services.queues,
        }

    async def ready(self):
        for keeper in self.keepers.values():
            await keeper.ready()

    async def loaded(self, *names):
        for name in names:
            while not self.keepers[name.topic].driver_of(name.partition).shard.is_loaded:
                await asyncio.sleep(0.01)

    async def refused(self, name):
        while self.keepers[name.topic].driver_of(name.partition).refusal is None:
            await asyncio.sleep(0.01)

    async def ask(self, name):
        """What somebody is told who asks for something that the partition keeps."""
        if name.topic == TRANSACTIONS_TOPIC:
            return await Producer(self.node).init()
        if name.topic == OFFSETS_TOPIC:
            return (await self.node.ask(Api.DESCRIBE_GROUPS, 5, groups=["g"])).groups[0].error_code
        try:
            await self.services.queues.have_done(name, LookWork(what="work"), seconds=1)
        except BrokerError as error:
            return error.code
        return 0


def partition_of(node, name):
    return node.broker.partition(name.topic, name.partition)


def write(node, name, record):
    class Waiter:
        deadline = float("inf")

        def settled(self, error):
            assert error is None

    batch = encode_batch([record])
    partition_of(node, name).appender.append(
        batch, acks=-1, waiter=Waiter(), pins_bytes=len(batch), internal=True
    )


@pytest.mark.parametrize(("topic", "record"), KINDS.values(), ids=KINDS)
def test_a_record_that_makes_no_sense_ends_no_node_and_nothing_else(topic, record):
    machine = Machine(**SETTINGS, queues_topic_num_partitions=2)
    bad = TopicPartition(topic, 0)
    others = [
        name
        for name in (
            TopicPartition(TRANSACTIONS_TOPIC, 0),
            TopicPartition(OFFSETS_TOPIC, 0),
            TopicPartition(QUEUES_TOPIC, 0),
            TopicPartition(QUEUES_TOPIC, 1),
        )
        if name != bad
    ]

    async def poisoned(node):
        desk = Coordinators(node)
        await desk.ready()
        await desk.loaded(bad, *others)
        assert await desk.ask(bad) == 0
        end = partition_of(node, bad).log.end
        write(node, bad, record)
        desk.keepers[topic].driver_of(0).reload()
        await refuses(node, desk, end)

    async def refuses(node, desk, end):
        await desk.refused(bad)
        assert await desk.ask(bad) in (15, 56)
        told = node.broker.unserved[bad]
        assert f"the batch at offsets {end} to {end} of {bad} makes no sense" in told
        assert "restore" in told
        await desk.loaded(*others)
        for name in others:
            assert await desk.ask(name) == 0
        ends.append(end)

    async def restarted(node):
        await refuses(node, Coordinators(node), ends[0])

    ends: list[int] = []
    machine.live(poisoned)
    machine.live(restarted)


NAME = "jobs"
PLACE = TopicPartition(QUEUES_TOPIC, partition_for(NAME, 2))


def rotten_machine():
    """A node whose queue was stored well, before a bit of it rotted on its disk."""
    machine = Machine(**SETTINGS, queues_topic_num_partitions=2)
    paths = []

    async def written(node):
        desk = Coordinators(node)
        await desk.ready()
        work = DeclareWork(name=NAME, settings=Settings())
        await desk.services.queues.have_done(PLACE, work, seconds=5)
        paths.append(partition_of(node, PLACE).log.segments[0].path())

    machine.live(written)
    machine.disk.flip_bit(paths[0], 75, 3)
    return machine, paths[0]


def test_what_rots_is_suspected_and_read_again_once_it_is_healed():
    machine, path = rotten_machine()

    async def story(node):
        suspected = []

        def heal(partition, offset):
            suspected.append((partition.name, offset))
            assert "healed" in node.broker.unserved[PLACE]
            if len(suspected) == 3:
                machine.disk.flip_bit(path, 75, 3)

        node.broker.replication.feeding.on_suspect = heal
        partition_of(node, PLACE).is_copy = True
        desk = Coordinators(node)
        await desk.loaded(PLACE)

        assert suspected == [(PLACE, 0)] * 3
        assert node.broker.unserved == {}
        work = LookWork(name=NAME)
        await desk.services.queues.have_done(PLACE, work, seconds=5)

    machine.live(story)


def test_rot_that_no_other_replica_heals_is_told_and_ends_no_node():
    machine, _ = rotten_machine()

    async def story(node):
        desk = Coordinators(node)
        await desk.refused(PLACE)

        with pytest.raises(StorageError, match=f"{PLACE} is damaged at offset 0.*no other replica"):
            await desk.services.queues.have_done(PLACE, LookWork(name=NAME), seconds=5)
        assert list(node.broker.unserved) == [PLACE]
        await desk.loaded(TopicPartition(QUEUES_TOPIC, 1 - PLACE.partition))

    machine.live(story)


def test_a_driver_that_stops_reads_no_more_of_what_rots():
    machine, _ = rotten_machine()

    async def story(node):
        suspected = []
        node.broker.replication.feeding.on_suspect = lambda *what: suspected.append(what)
        partition_of(node, PLACE).is_copy = True
        desk = Coordinators(node)
        while not suspected:
            await asyncio.sleep(0.01)
        desk.services.queues._on_moved([(PLACE, False)])
        assert node.broker.unserved == {}
        await asyncio.sleep(100)

        assert len(suspected) == 1

    machine.live(story)
