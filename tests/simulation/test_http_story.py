"""Seeds of the HTTP face, and a bucket that is restored after the time of its keys is up."""

import asyncio
from functools import partial
from typing import Any

import pytest

from tidelog.backup import creating, restoring
from tidelog.backup.cluster_requests import BackupClient
from tidelog.client.admin import AdminClient
from tidelog.model import TopicPartition
from tidelog.simulation.backups import MemoryStorage
from tidelog.simulation.http_clients import http_client
from tidelog.simulation.nodes import bootstrap, http_of, real_node
from tidelog.simulation.swarm import make_plan, play
from tidelog.simulation.who_leads import manual_failover
from tidelog.simulation.world import World


@pytest.mark.parametrize("seed", [3])
def test_the_same_seed_gives_the_same_history(seed):
    plan = make_plan(seed, story="http", chaos_seconds=4)

    first, second = play(plan), play(plan)

    assert first.violation is None
    assert first.trace_hash == second.trace_hash
    assert first.acknowledged == second.acknowledged > 0


def test_nothing_acknowledged_is_lost_when_every_node_loses_power_at_once():
    plan = make_plan(6, story="http", chaos_seconds=6, kinds=["lose_power_everywhere"])

    outcome = play(plan)

    assert outcome.violation is None
    assert outcome.acknowledged > 20
    assert outcome.faults["lose_power_everywhere"] > 2


class SlowClient(BackupClient):
    """Restores so slowly that leaders look at what is there before all of it is."""

    async def restore(self, *args: Any) -> None:
        await super().restore(*args)
        await asyncio.sleep(5.0)


def test_a_bucket_is_restored_as_it_was_and_its_keys_expire_after_that():
    """Its leader must not delete them before everything is there: the log would end elsewhere."""

    def make(host, number):
        return real_node(host, number, http=http_of(number))

    with World("expiry", nodes=1, node_factory=make) as world:
        world.start()
        host, storage = world.client("story"), MemoryStorage()
        connect = partial(SlowClient, network=host.network)

        async def story():
            http = http_client(world, host, world.fork("http"), nodes=[1], timeout=5.0)
            await http.kv("b").create()
            await http.kv("b").put("k", "for a moment", ttl=1.0)
            await http.kv("b").put("other", "for good")
            made = await creating.create(
                bootstrap(1), storage, creating.Wish(), now_ms=host.process.clock.wall_ms, connect=connect
            )
            await asyncio.sleep(3.0)
            done = await restoring.restore(
                bootstrap(1), storage, made.manifest, restoring.Wish(prefix="again-"), connect=connect
            )
            return done.verified_records

        assert world.do(story()) == 2

        def is_expired():
            partition = world.node(1).broker.replicas.named(TopicPartition("again-b", 0))
            return partition.high_watermark == 3

        world.run_until(is_expired, 60)  # though nobody asks for it


def test_operators_who_let_a_topic_fail_over_by_itself_again_think_of_what_was_restored_of_it():
    """A backup has the setting of its moment, and nobody promotes what is restored of it."""
    quorum = "1@node-1:9192,2@node-2:9192,3@node-3:9192"
    with World("by hand", nodes=3, node_factory=partial(real_node, quorum=quorum)) as world:
        world.start()
        host, storage = world.client("story"), MemoryStorage()
        addresses = ",".join(map(bootstrap, world.machines))
        connect = partial(BackupClient, network=host.network)

        def state(topic):
            return world.node(1).broker.image.topics[topic].partitions[0]

        def mode(topic):
            return world.node(1).broker.image.topics[topic].config.get("failover.mode")

        async def create():
            client = AdminClient(addresses, network=host.network)
            await client.create_topic("tide-0", partitions=1, replication=3)
            client.close()

        async def restore():
            made = await creating.create(
                addresses, storage, creating.Wish(), now_ms=host.process.clock.wall_ms, connect=connect
            )
            wish = restoring.Wish(prefix="again-")
            await restoring.restore(addresses, storage, made.manifest, wish, connect=connect)

        world.do(create())
        manual_failover(world, "tide-0", seconds=20)
        world.run_until(lambda: mode("tide-0") == "manual", 10)
        world.do(restore())
        world.run_until(lambda: mode("again-tide-0") == "manual", 10)
        leader = state("again-tide-0").leader
        world.crash(leader)
        world.run(0.1)
        world.restart(leader)
        world.run_until(lambda: world.all_up() and state("again-tide-0").leader == -1, 10)

        world.run_until(lambda: state("again-tide-0").leader != -1, 40)
