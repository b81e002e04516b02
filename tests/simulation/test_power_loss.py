"""Acknowledged means durable: a node loses power, is killed, runs full, and forgets nothing.

One seed is one history. A failure names its seed; to see it again alone, or to look further:

    TIDELOG_SEED=123 python -m pytest tests/simulation -k losing_power
    TIDELOG_SEEDS=5000 python -m pytest tests/simulation -n 4
"""

import asyncio
import errno
import os
from collections.abc import Callable

import pytest

from tests.simulation.world import DATA, SEED_VARIABLE, Producer, World
from tidelog.errors import BrokerError, StorageError, UnknownTopicOrPartition
from tidelog.host import Path, read_file
from tidelog.model import TopicPartition
from tidelog.records import iterate_batches

SEEDS = int(os.environ.get("TIDELOG_SEEDS", "60"))
BLOCKS = 5


def seeds(share: float = 1.0) -> pytest.MarkDecorator:
    """Blocks of seeds, which can run side by side; or the one seed that the environment names."""
    if SEED_VARIABLE in os.environ:
        seed = int(os.environ[SEED_VARIABLE])
        return pytest.mark.parametrize("block", [range(seed, seed + 1)], ids=[f"seed {seed}"])
    size = max(1, round(SEEDS * share / BLOCKS))
    blocks = [range(start, start + size) for start in range(0, BLOCKS * size, size)]
    return pytest.mark.parametrize("block", blocks, ids=[f"{b.start}-{b.stop - 1}" for b in blocks])


def play(block: range, name: str, story: Callable[[World], None]) -> None:
    for seed in block:
        world = World(seed, name)
        try:
            story(world)
        except BaseException as error:
            error.add_note(f"seed {seed}, life {world.lives}: replay with {SEED_VARIABLE}={seed}")
            raise


# What the clients do.


async def work(world: World) -> None:
    """Topics come and go, producers write, consumers read, records are deleted; for a while."""
    choose = world.random
    if not world.memories or choose.random() < 0.3:
        await create_some_topic(world)
    if choose.random() < 0.2 and len(world.memories) > 2:
        await world.delete_topic(choose.choice(list(world.memories)).topic)
    await write_and_read(world)


async def write_and_read(world: World) -> None:
    choose = world.random
    for producer in list(world.producers):
        await world.resend(producer)
    while len(world.producers) < 3 and world.memories:
        await world.add_producer(choose.choice(list(world.memories)))
    await asyncio.gather(
        *(write(world, producer) for producer in world.producers), read(world), delete(world), churn(world)
    )


async def create_some_topic(world: World) -> None:
    choose = world.random
    name = choose.choice(("tide", "ebb", "flow", "swell"))
    if any(partition.topic == name for partition in world.memories):
        return
    config = {
        "segment.bytes": str(choose.choice((14, 400, 400, 1000, 1000, 5000))),
        "index.interval.bytes": str(choose.choice((0, 100, 4096))),
        "message.timestamp.type": choose.choice(("CreateTime", "LogAppendTime")),
        "durability": choose.choice(("fsync", "fsync", "fsync", "replicated")),
    }
    if choose.random() < 0.2:
        config["retention.records"] = "20"
    await world.create_topic(name, choose.randint(1, 3), config)


async def write(world: World, producer: Producer) -> None:
    choose = world.random
    for _ in range(choose.randint(1, 30)):
        if producer not in world.producers:
            return  # its topic is gone
        acks = -1 if producer.id >= 0 else choose.choice((-1, -1, 0, 1))
        answer = world.send(producer, acks=acks)
        if producer.prune() >= 4:
            try:
                await answer
            except UnknownTopicOrPartition:
                assert producer not in world.producers, "its topic was not deleted"
        if choose.random() < 0.3:
            await asyncio.sleep(choose.choice((0, 0.001, 0.1)))


async def churn(world: World) -> None:
    """Delete topics while others use them, and make new ones of the same names."""
    choose = world.random
    while choose.random() < 0.4:
        await asyncio.sleep(choose.choice((0, 0.01, 0.1)))
        if world.memories and choose.random() < 0.6:
            await world.delete_topic(choose.choice(list(world.memories)).topic)
        await create_some_topic(world)


async def read(world: World) -> None:
    for _ in range(world.random.randint(0, 20)):
        if world.memories:
            await world.read_some(world.random.choice(list(world.memories)))
        await asyncio.sleep(world.random.choice((0, 0.001, 0.1)))


async def delete(world: World) -> None:
    while world.random.random() < 0.5:
        await asyncio.sleep(world.random.choice((0, 0.05, 0.2)))
        if world.memories:
            name = world.random.choice(list(world.memories))
            memory = world.memories[name]
            try:
                await world.delete_records(name)
            except UnknownTopicOrPartition:
                assert world.memories.get(name) is not memory, "its topic was not deleted"


# The stories.


@seeds()
def test_acknowledged_records_survive_losing_power(block):
    def story(world: World) -> None:
        choose = world.random

        async def life() -> None:
            await work(world)
            if choose.random() < 0.3:
                await world.broker.stop()

        for _ in range(4):
            if choose.random() < 0.8:
                world.disk.crash_after(choose.choice((5, 10, 20, 100, 300, 1000)))
            world.live(life)
            assert world.fatal is None, world.fatal
            world.lose_power()
        world.live(lambda: work(world))

    play(block, "power loss", story)


def test_one_seed_is_one_history():
    def history(seed: int) -> list[object]:
        world = World(seed, "power loss")
        operations: list[tuple[str, str]] = []
        world.disk.on_operation = lambda kind, path: operations.append((kind, str(path)))
        for _ in range(3):
            world.disk.crash_after(world.random.choice((100, 300)))
            world.live(lambda: work(world))
            world.lose_power()
        return [operations, world.acknowledgements, world.clock.monotonic()]

    for seed in range(3):
        assert history(seed) == history(seed)


def test_deletions_side_by_side_all_survive_losing_power():
    def story(world: World) -> None:
        async def life() -> None:
            if not world.memories:
                await world.create_topic("tide", 3, {"segment.bytes": "1000"})
            for name in world.memories:
                for _ in range(5):
                    await world.send(await world.add_producer(name))
            await asyncio.gather(*(world.delete_records(name) for name in world.memories))

        for _ in range(3):
            world.live(life)
            world.lose_power()

    play(range(20), "deletions", story)


def test_a_deletion_that_a_full_disk_put_off_is_durable_once_it_succeeds():
    world = World(0, "put off")

    async def life() -> None:
        await world.create_topic("tide", 1, {})
        (name,) = world.memories
        for _ in range(5):
            await world.send(await world.add_producer(name))
        partition = world.partition(name)
        world.memories[name].start_max = 3
        world.disk.capacity_bytes = 0
        with pytest.raises(StorageError):
            await world.broker.advance_start(partition, 3)
        world.disk.capacity_bytes = None

        while partition.log_start.noted < 3:  # the next checkpoint has room for it
            await asyncio.sleep(0.1)
        await world.broker.advance_start(partition, 3)
        world.memories[name].start = 3

    world.live(life)
    world.lose_power()
    world.live(lambda: asyncio.sleep(0))


@seeds(0.5)
def test_whatever_was_written_survives_a_kill_and_is_synced_before_it_is_shown(block):
    def story(world: World) -> None:
        choose = world.random
        for _ in range(4):
            world.disk.crash_after(choose.choice((5, 10, 20, 100, 300, 1000)))
            world.live(lambda: work(world))
            assert world.fatal is None, world.fatal
            world.kill()
            if choose.random() < 0.3:
                world.live(lambda: asyncio.sleep(0))  # the start alone must make it durable
                world.lose_power()
        world.live(lambda: work(world))

    play(block, "kill", story)


@seeds(0.5)
def test_a_failed_sync_ends_the_process_and_nothing_acknowledged_is_lost(block):
    def story(world: World) -> None:
        choose = world.random
        world.live(lambda: work(world))
        world.kill()
        for _ in range(3):
            loses_power = choose.random() < 0.5
            # A kill leaves names in memory that a failed sync of a directory has lost for good;
            # file systems stop altogether after that. The bytes of files must survive both.
            kinds = ("datasync", "sync_directory", "sync_everything")
            fail_at(world, kinds if loses_power else kinds[:1], world.disk.fail_syncs)
            world.live(lambda: expecting_failure(world))
            world.disk.on_operation = None
            world.disk.heal()
            world.lose_power() if loses_power else world.kill()
            if choose.random() < 0.5:
                world.live(lambda: asyncio.sleep(0))
                world.lose_power()
        world.live(lambda: work(world))

    play(block, "failed sync", story)


@seeds(0.5)
def test_a_failed_write_ends_the_process_and_nothing_acknowledged_is_lost(block):
    def story(world: World) -> None:
        world.live(lambda: work(world))
        world.kill()
        for _ in range(3):
            fail_at(world, ("write",), world.disk.fail_writes)
            world.live(lambda: expecting_failure(world))
            world.disk.on_operation = None
            world.disk.heal()
            world.random.choice((world.lose_power, world.kill))()
        world.live(lambda: work(world))

    play(block, "failed write", story)


@seeds(0.5)
def test_a_full_disk_refuses_writes_whole_and_takes_them_again_once_there_is_room(block):
    def story(world: World) -> None:
        choose = world.random

        async def life() -> None:
            if not world.memories or choose.random() < 0.3:
                await create_some_topic(world)
            while len(world.producers) < 4:
                await world.add_producer(choose.choice(list(world.memories)))
            for producer in world.producers:
                await world.resend(producer)
            await asyncio.gather(
                *(write_stubbornly(world, p) for p in world.producers), squeeze(world), read(world)
            )
            for producer in world.producers:
                await world.send(producer)

        for _ in range(3):
            if choose.random() < 0.3:
                world.disk.crash_after(choose.choice((5, 10, 20, 100, 300, 1000)))
            world.live(life)
            assert world.fatal is None, world.fatal
            world.disk.capacity_bytes = None
            choose.choice((world.lose_power, world.kill))()
        world.live(lambda: work(world))

    play(block, "full disk", story)


async def squeeze(world: World) -> None:
    """Leave little room, and after a while all that anybody may want."""
    choose = world.random
    for _ in range(choose.randint(1, 3)):
        await asyncio.sleep(choose.choice((0, 0.01, 0.1)))
        everything = world.disk.capacity_bytes = 1 << 40
        used = everything - world.disk.free_bytes(DATA)
        world.disk.capacity_bytes = used + choose.choice((0, 100, 1000, 3000))
        await asyncio.sleep(choose.choice((0.01, 0.1, 0.5)))
        world.disk.capacity_bytes = None
    for name in world.memories:
        for _ in range(100):
            if world.partition(name).log.refusal is None:
                break
            await asyncio.sleep(0.1)
        else:
            raise AssertionError(f"{name} takes no writes though there is room")


async def write_stubbornly(world: World, producer: Producer) -> None:
    """Write, and after a refusal send again what is not in the log, as clients do."""
    choose = world.random
    for _ in range(choose.randint(5, 25)):
        try:
            if any(sent.refused for sent in producer.in_flight) or choose.random() < 0.1:
                await world.resend(producer)
            answer = world.send(producer)
            if choose.random() < 0.3 or producer.prune() >= 4:
                await answer
            if choose.random() < 0.3:
                await asyncio.sleep(choose.choice((0, 0.001, 0.1)))
        except BrokerError:
            await asyncio.sleep(0.05)
            await resend_stubbornly(world, producer)
    await resend_stubbornly(world, producer)


async def resend_stubbornly(world: World, producer: Producer) -> None:
    refusal: BrokerError | None = None
    for _ in range(1000):
        try:
            await world.resend(producer)
            return
        except BrokerError as error:
            refusal = error
            await asyncio.sleep(0.05)
    raise AssertionError(f"{producer.partition} still refuses: {refusal!r}")


@seeds(0.5)
def test_rot_below_the_durable_mark_stops_one_partition_and_cuts_nothing(block):
    def story(world: World) -> None:
        choose = world.random

        async def fill() -> None:
            for topic in ("tide", "ebb"):
                config = {"segment.bytes": "2000", "index.interval.bytes": "100"}
                await world.create_topic(topic, 2, config)
            for name in world.memories:
                for _ in range(2):
                    producer = await world.add_producer(name)
                    for _ in range(choose.randint(1, 10)):
                        await world.send(producer)
            await until_checkpoint(world)

        world.live(fill)
        name = choose.choice(list(world.memories))
        path = world.partition(name).log.active.path()
        choose.choice((world.lose_power, world.kill))()
        world.disk.flip_bit(path, choose_checked_byte(world, path), choose.randrange(8))
        rotten = read_file(world.disk, path)
        world.damaged = name

        async def life() -> None:
            await expect_refusal(world, name)
            others = [producer for producer in world.producers if producer.partition != name]
            for producer in others:
                await world.resend(producer)
            await asyncio.gather(*(write(world, producer) for producer in others))
            if choose.random() < 0.5:
                await until_checkpoint(world)
            await expect_refusal(world, name)
            if choose.random() < 0.3:
                await world.broker.stop()

        for _ in range(3):
            world.live(life)
            assert read_file(world.disk, path) == rotten, "damage was cut, or written over"
            choose.choice((world.lose_power, world.kill))()

    play(block, "rot", story)


def choose_checked_byte(world: World, path: Path) -> int:
    """A byte that a scan checks: any but the leader epochs, which no checksum covers."""
    unchecked: list[int] = []
    at = 0
    for header, _ in iterate_batches(read_file(world.disk, path)):
        unchecked += range(at + 12, at + 16)
        at += header.size
    return world.random.choice([byte for byte in range(at) if byte not in unchecked])


async def until_checkpoint(world: World) -> None:
    """Wait until the durable marks are noted."""
    await asyncio.sleep(2 * world.config.checkpoint_ms / 1000)


async def expect_refusal(world: World, name: TopicPartition) -> None:
    producer = await world.add_producer(name)
    with pytest.raises(StorageError, match="damaged"):
        world.send(producer)
    world.producers.remove(producer)


def fail_at(world: World, kinds: tuple[str, ...], fail: Callable[..., None]) -> None:
    """Let one operation of these kinds fail, some time after now."""
    left = world.random.choice((1, 5, 20, 60))

    def count(operation: str, _: Path) -> None:
        nonlocal left
        if operation in kinds:
            left -= 1
            if left == 0:
                fail(errno.EIO, times=1)

    world.disk.on_operation = count


async def expecting_failure(world: World) -> None:
    try:
        for _ in range(30):
            await work(world)
    except (BrokerError, OSError):
        await asyncio.sleep(1)
    finally:
        assert world.fatal is not None or world.is_dead, "the node went on after its disk failed"
