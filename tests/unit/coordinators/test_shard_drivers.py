import asyncio

import msgspec
import pytest

from tests.unit.coordinators.transacting import Gate, Producer, on_a_coordinator, seen
from tests.unit.kafka.test_groups import committed
from tidelog.broker.joint_writes import BYTES_MAX
from tidelog.cluster.messages import WriteMarkers
from tidelog.coordinators import shard_drivers
from tidelog.coordinators.shard_drivers import result_of
from tidelog.errors import (
    CoordinatorNotAvailable,
    NotCoordinator,
    NotEnoughReplicasAfterAppend,
    NotLeader,
    StorageError,
    StorageErrorAfterAppend,
)
from tidelog.model import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from tidelog.records import iterate_batches
from tidelog.shards.effects import Moment
from tidelog.wire.apis import Api

OK, LOADING, NOT_AVAILABLE, NOT_COORDINATOR = 0, 14, 15, 16


def keeper_of(node):
    """The transactions that the node coordinates."""
    return node.requests._verification._coordinator_of.__self__


def driver_of(node):
    (driver,) = keeper_of(node).drivers()
    return driver


def led_anew(node, topic=TRANSACTIONS_TOPIC) -> None:
    """As if another node had led meanwhile, and nobody had told the coordinators yet."""
    partition = node.broker.partition(topic, 0)
    epoch = partition.leading().epoch
    partition.resign(NotLeader(leader=None))
    partition.lead(epoch + 2, {node.broker.node_id})


def test_who_served_in_another_epoch_answers_nothing_and_writes_nothing():
    async def story(node):
        producer = Producer(node)
        await producer.init(timeout_ms=1000)
        await producer.write(b"a")
        driver, log = driver_of(node), node.broker.partition(TRANSACTIONS_TOPIC, 0).log
        end = log.end
        led_anew(node)

        assert await producer.init() == NOT_COORDINATOR
        later = Moment(node.clock.monotonic() + 10, node.clock.wall_ms() + 10_000)
        driver.perform(driver.shard.tick(later))
        assert log.end == end

        keeper_of(node)._on_moved([(driver._partition.name, True)])
        await asyncio.sleep(1.5)
        await producer.completed()
        assert await producer.init() == OK

    on_a_coordinator(story)


def test_markers_go_out_in_the_name_of_the_epoch_that_was_loaded():
    async def story(node):
        producer = Producer(node)
        await producer.init()
        await producer.write(b"a")
        gate = Gate(node)
        gate.shut(WriteMarkers)
        await producer.end(commits=True)
        await asyncio.sleep(0.1)
        led_anew(node)
        driver = driver_of(node)
        (effect,) = driver.shard._transactions["tx"]._send_markers(
            driver.shard._transactions["tx"].stored, driver.now()
        )
        asked = len(gate.asked)

        driver.perform([effect])
        await asyncio.sleep(0.1)

        assert len(gate.asked) == asked
        gate.open(WriteMarkers)

    on_a_coordinator(story)


def test_a_log_is_looked_at_on_the_loop_and_folded_in_a_thread():
    async def story(node):
        producer = Producer(node)
        await producer.init()
        driver = driver_of(node)
        log, offload = driver._partition.log, node.broker.host.offload
        in_thread, folded = [], []
        run, replay = offload.run, driver._replay_batch

        def watched_run(work, *lane):
            def watched_work():
                in_thread.append(True)
                try:
                    return work()
                finally:
                    in_thread.pop()

            return run(watched_work, *lane)

        class Watched:
            start, end = log.start, log.end

            def read(self, *asked, **how):
                assert not in_thread, "its memory is the loop's"
                return log.read(*asked, **how)

        def watched_replay(*asked):
            folded.append(bool(in_thread))
            replay(*asked)

        driver._partition.log = Watched()
        offload.run, driver._replay_batch = watched_run, watched_replay
        driver.reload()
        while not driver.shard.is_loaded:
            await asyncio.sleep(0.01)
        driver._partition.log, offload.run = log, run

        assert folded == [True]
        assert (await producer.state()).state == "Empty"

    on_a_coordinator(story)


def test_a_shard_that_is_read_again_tells_who_waits_and_goes_on_from_the_log():
    async def story(node):
        producer = Producer(node)
        await producer.init()
        gate = Gate(node)
        await producer.write(b"a")
        gate.shut(WriteMarkers)
        await producer.end(commits=True)
        waiting = producer.send(b"b")  # for the markers
        await asyncio.sleep(0.1)

        driver_of(node).reload()

        assert await producer.init() == LOADING
        assert await producer.answer(waiting) == 19, "to be sent again"
        gate.open(WriteMarkers)
        await asyncio.sleep(0.1)
        await producer.completed()
        assert await seen(node) == [b"a"]

    on_a_coordinator(story)


@pytest.mark.parametrize(
    ("error", "is_read_again"),
    [
        (NotEnoughReplicasAfterAppend(in_sync=1, needed=2), True),
        (NotLeader(leader=None), True),
        (StorageErrorAfterAppend("full"), True),
        (StorageError("full"), False),
    ],
)
def test_a_write_of_which_nothing_is_known_ends_the_shard(error, is_read_again):
    async def story(node):
        producer = Producer(node)
        await producer.init()
        driver, keeper = driver_of(node), keeper_of(node)
        shard, log = driver.shard, node.broker.partition(TRANSACTIONS_TOPIC, 0).log
        end = log.end
        asking = asyncio.ensure_future(producer.init())
        while log.end == end:
            await asyncio.sleep(0)
        (write,) = shard._writes._ledger

        driver.settled(shard, [write.number], error)

        assert await asking == (NOT_AVAILABLE if is_read_again else NOT_COORDINATOR)
        assert (driver.shard is not shard) == is_read_again
        assert keeper.driver_of(0) is driver
        driver.settled(shard, [write.number], None)  # late, and of a shard that is given up

    on_a_coordinator(story)


def test_what_a_shard_writes_in_one_turn_is_one_batch():
    async def story(node):
        producers = [Producer(node, name) for name in ("a", "b", "c")]
        for producer in producers:
            await producer.init()  # from now on it has its producer id
        partition = node.broker.partition(TRANSACTIONS_TOPIC, 0)
        end = partition.log.end

        assert await asyncio.gather(*(producer.init() for producer in producers)) == [OK] * 3

        found = partition.read(end, 2**20, partition.log.end)
        counts = [header.record_count for data in found.buffers for header, _ in iterate_batches(data)]
        assert counts == [3]

    on_a_coordinator(story)


@pytest.mark.parametrize(("bytes_max", "left"), [(BYTES_MAX, 3), (1, 1)])
def test_what_a_shard_left_to_be_written_is_not_written_for_the_next_one(monkeypatch, bytes_max, left):
    """Its writes are numbered from 0 on, as those of the next one are."""
    monkeypatch.setattr(shard_drivers, "BYTES_MAX", bytes_max)

    async def story(node):
        producers = [Producer(node, name) for name in ("a", "b", "c")]
        driver = driver_of(node)
        partition, given_up = driver._partition, driver.shard
        end = partition.log.end

        class Losing:
            def __getattr__(self, name):
                return getattr(partition, name)

            @property
            def appender(self):
                return self

            def append(self, *asked, **more):
                driver._partition = partition
                driver.settled(given_up, [0], NotLeader(leader=None))  # it is read again
                return partition.appender.append(*asked, **more)

        driver._partition = Losing()
        driver._performing = True  # all three are asked for in one turn
        asking = [asyncio.ensure_future(producer.init()) for producer in producers]
        while len(driver._queue) < 3:
            await asyncio.sleep(0)
        driver._performing = False
        driver.perform(())

        assert await asyncio.gather(*asking) == [NOT_AVAILABLE] * 3
        assert partition.log.end == end + left, "what was being written, and nothing behind it"
        while not driver.shard.is_loaded:
            await asyncio.sleep(0.01)
        assert driver.shard is not given_up
        assert await producers[2].init() == OK
        driver.shard.assert_invariants()

    on_a_coordinator(story)


def test_nothing_is_answered_once_it_is_heard_that_another_leads():
    """Though nobody has acted on it: this node may be busy with the files of others."""

    async def story(node):
        producer = Producer(node)
        await producer.init()
        partitions = node.broker.image.topics[TRANSACTIONS_TOPIC].partitions
        mine = partitions[0]

        partitions[0] = msgspec.structs.replace(mine, epoch=mine.epoch + 1, leader=9)
        assert await producer.init() == NOT_COORDINATOR
        partitions[0] = mine
        assert await producer.init() == OK

    on_a_coordinator(story)


def test_nothing_is_answered_without_a_lease_where_others_could_lead():
    async def story(node):
        producer = Producer(node)
        await producer.init()
        partition = node.broker.partition(TRANSACTIONS_TOPIC, 0)
        partition.has_lease = lambda: False
        assert await producer.init() == OK, "nobody else holds the partition"

        partition.leading().replicas = (1, 2)

        assert await producer.init() == NOT_COORDINATOR
        partition.has_lease = lambda: True
        assert await producer.init() == OK
        partition.leading().replicas = (1,)

    on_a_coordinator(story)


def test_whoever_waits_is_told_when_the_coordinator_moves():
    async def story(node):
        producer = Producer(node)
        await producer.init()
        driver = driver_of(node)
        asking = asyncio.ensure_future(producer.init())
        while not driver.shard._writes:
            await asyncio.sleep(0)

        driver.stop(NotCoordinator("it has moved"))

        assert await asking == NOT_COORDINATOR

    on_a_coordinator(story)


@pytest.mark.parametrize("commits", [True, False])
def test_offsets_are_decided_though_their_marker_comes_while_the_groups_are_read(commits):
    async def story(node):
        producer = Producer(node)
        await producer.init()
        await node.ask(Api.FIND_COORDINATOR, 3, key="g", key_type=0)
        groups = keeper_of(node).groups
        offset = {
            "partition_index": 0,
            "committed_offset": 7,
            "committed_leader_epoch": -1,
            "committed_metadata": "",
        }
        answer = await node.ask(
            Api.TXN_OFFSET_COMMIT,
            5,
            transactional_id="tx",
            group_id="g",
            producer_id=producer.id,
            producer_epoch=producer.epoch,
            member_id="",
            generation_id=-1,
            group_instance_id=None,
            topics=[{"name": "t", "partitions": [offset]}],
        )
        assert answer.topics[0].partitions[0].error_code == OK
        (driver,) = groups.drivers()
        gate = asyncio.Event()
        load = driver.load

        async def slow_load():
            await gate.wait()
            await load()

        driver.load = slow_load
        driver.reload()
        await producer.end(commits=commits)
        await producer.completed()
        end = node.broker.partition(OFFSETS_TOPIC, 0).log.end
        assert end == 2, "the offset and the marker"

        gate.set()
        while not driver.shard.is_loaded:
            await asyncio.sleep(0.01)

        assert await committed(node) == ({("t", 0): 7} if commits else {})
        driver.shard.assert_invariants()

    on_a_coordinator(story)


def test_a_refusal_of_a_shard_is_raised():
    assert result_of(5) == 5
    with pytest.raises(CoordinatorNotAvailable):
        result_of(CoordinatorNotAvailable("later"))
