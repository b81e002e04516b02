"""Consumers that read from the follower in their rack."""

from collections.abc import Iterator
from typing import Any

import pytest

from tidelog.client.kafka import KafkaClient
from tidelog.faces.node import Node
from tidelog.host import Host
from tidelog.records import Record, encode_batch, iterate_batches
from tidelog.simulation.nodes import bootstrap, real_node
from tidelog.simulation.world import World
from tidelog.wire.apis import Api

QUORUM = ",".join(f"{n}@node-{n}:9192" for n in (1, 2, 3))
RACKS = {1: "a", 2: "b", 3: "c"}
TOPIC = "tide"


def in_its_rack(host: Host, number: int) -> Node:
    return real_node(host, number, quorum=QUORUM, rack=RACKS[number])


@pytest.fixture
def world() -> Iterator[World]:
    with World(3, nodes=3, node_factory=in_its_rack) as world:
        world.start()
        yield world


async def produce(world: World, count: int) -> int:
    """Make the topic, fill it, and say who leads it."""
    async with KafkaClient(bootstrap(1), network=world.client("story").network) as client:
        await client.create_topic(TOPIC, partitions=1, replication=3)
        for number in range(count):
            batch = encode_batch([Record(value=b"%d" % number, timestamp_ms=1)])
            await client.produce(TOPIC, 0, batch)
    return int(world.node(1).broker.image.topics[TOPIC].partitions[0].leader)


async def fetch(
    world: World, node: int, offset: int, *, rack: str, epoch: int = -1, wait_ms: int = 1000
) -> Any:
    """The answer of one node, whoever leads."""
    async with KafkaClient(bootstrap(node), network=world.client("story").network) as client:
        connection = await client.any_connection()
        partition = {
            "partition": 0,
            "fetch_offset": offset,
            "partition_max_bytes": 1 << 20,
            "current_leader_epoch": epoch,
        }
        answer = await connection.call(
            Api.FETCH,
            replica_id=-1,
            max_wait=wait_ms,
            min_bytes=1,
            max_bytes=1 << 20,
            isolation_level=0,
            session_id=0,
            session_epoch=-1,
            forgotten_topics_data=[],
            topics=[{"topic": TOPIC, "partitions": [partition]}],
            rack_id=rack,
        )
        return answer.responses[0].partitions[0]


def values(answer: Any) -> int:
    return sum(header.record_count for header, _ in iterate_batches(answer.records or b""))


def test_a_leader_sends_a_consumer_to_the_follower_in_its_rack(world):
    leader = world.do(produce(world, 5))
    follower = next(node for node in RACKS if node != leader)

    answer = world.do(fetch(world, leader, 0, rack=RACKS[follower]))

    assert (answer.error_code, answer.preferred_read_replica) == (0, follower)
    assert not answer.records


@pytest.mark.parametrize("rack", ["elsewhere", ""])
def test_a_consumer_without_a_follower_in_its_rack_reads_from_the_leader(world, rack):
    leader = world.do(produce(world, 5))

    answer = world.do(fetch(world, leader, 0, rack=rack))

    assert answer.preferred_read_replica == -1
    assert values(answer) == 5


def test_a_follower_is_read_up_to_its_watermark(world):
    leader = world.do(produce(world, 5))
    follower = next(node for node in RACKS if node != leader)

    here = world.node(follower).broker.partition(TOPIC, 0)
    world.run_until(lambda: here.high_watermark == 5, 1.0)

    answer = world.do(fetch(world, follower, 0, rack=RACKS[follower]))

    assert values(answer) == 5
    assert answer.high_watermark == 5


def test_a_follower_that_lags_does_not_say_that_an_offset_is_out_of_range(world):
    leader = world.do(produce(world, 5))
    follower = next(node for node in RACKS if node != leader)

    answer = world.do(fetch(world, follower, 9, rack=RACKS[follower]))

    assert answer.error_code == 78, "offset not available: the leader may have it"


def test_a_follower_refuses_a_consumer_that_says_no_rack_or_knows_another_epoch(world):
    leader = world.do(produce(world, 5))
    follower = next(node for node in RACKS if node != leader)

    assert world.do(fetch(world, follower, 0, rack="")).error_code == 6
    assert world.do(fetch(world, follower, 0, rack=RACKS[follower], epoch=7)).error_code == 75
