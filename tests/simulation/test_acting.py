"""A node acts on the metadata in the turn in which it learns it."""

from functools import partial

from tidelog.client.admin import AdminClient
from tidelog.simulation.nodes import bootstrap, real_node
from tidelog.simulation.world import World

QUORUM = ",".join(f"{n}@node-{n}:9192" for n in (1, 2, 3))


def test_whoever_learns_from_a_node_that_it_leads_finds_it_leading():
    with World(11, nodes=3, node_factory=partial(real_node, quorum=QUORUM)) as world:
        world.start()

        async def create() -> None:
            network = world.client("story").network
            async with AdminClient(bootstrap(1), network=network) as client:
                await client.create_topic("tide", partitions=6, replication=3)

        world.do(create())
        world.run_until(lambda: all(len(world.node(n).broker.partitions()) == 6 for n in (1, 2, 3)), 5)
        late: list[str] = []
        seen: list[int] = []

        def look(node: int, records: object) -> None:
            broker = world.node(node).broker
            for place in broker.image.led.get(node, {}).values():
                leader = broker.partition(place.topic.id, place.number).leader
                seen.append(place.partition.epoch)
                if leader is None or leader.epoch != place.partition.epoch:
                    late.append(f"node {node}: {place.name} is led in {place.partition.epoch}")

        for node in (2, 3):
            world.node(node).broker.metadata.on_applied(partial(look, node))
        world.crash(1)
        world.run(seconds=3)

        assert max(seen) > 0, "somebody took over"
        assert late == []
