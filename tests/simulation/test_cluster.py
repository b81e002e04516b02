"""Three nodes that keep one metadata log, told as stories."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from tidelog.client.admin import AdminClient
from tidelog.client.cluster import Refused
from tidelog.controller.image import ClusterImage
from tidelog.controller.records import NodeConfigChanged, ProducerIdsGranted
from tidelog.errors import BrokerError
from tidelog.faces.node import Node
from tidelog.host import Host, Path
from tidelog.raft.state import Role
from tidelog.simulation.nodes import DATA, bootstrap, real_node
from tidelog.simulation.quorum import QuorumWatch, quorum_of
from tidelog.simulation.world import World
from tidelog.wire.apis import Api

SECONDS_MAX = 30.0


def quorum_text(nodes: int) -> str:
    return ",".join(f"{n}@node-{n}:9192" for n in range(1, nodes + 1))


def make_world(seed: int = 7, nodes: int = 3, **settings: Any) -> World:
    factory = partial(real_node, quorum=quorum_text(nodes), **settings)
    world = World(seed, nodes=nodes, node_factory=factory)
    QuorumWatch(world)
    return world


@pytest.fixture
def world() -> Iterator[World]:
    with make_world() as world:
        world.start()
        yield world


def controller(world: World) -> int | None:
    """The node that decides, if one of them knows that it does."""
    for number, machine in world.machines.items():
        quorum = quorum_of(machine)
        if quorum is not None and quorum.leads and not machine.is_paused:
            return number
    return None


def leads(world: World, node: int) -> bool:
    """Whether the node takes itself for the controller."""
    quorum = quorum_of(world.machines[node])
    return quorum is not None and quorum.leads


def another_leads(world: World, than: int) -> bool:
    return controller(world) not in (None, than)


async def create(world: World, name: str, node: int) -> None:
    network = world.client("story").network
    async with AdminClient(bootstrap(node), network=network, timeout_seconds=10.0) as client:
        try:
            await client.create_topic(name, partitions=3)
        except Refused as error:
            if error.code != ErrorCode.topic_already_exists:  # it was, and the answer was lost
                raise


def knows(world: World, node: int, name: str) -> bool:
    return world.is_up(node) and name in world.node(node).broker.image.topics


def wipe(world: World, node: int) -> None:
    """Give the machine an empty disk."""
    disk = world.machines[node].disk
    disk.remove_tree(Path(DATA))
    disk.sync_everything(Path("/"))


def test_a_topic_made_at_any_node_is_known_to_all(world):
    for node in (1, 2, 3):
        world.do(create(world, f"made-at-{node}", node))

    for node in (1, 2, 3):
        for at in (1, 2, 3):
            world.run_until(lambda n=node, a=at: knows(world, n, f"made-at-{a}"), SECONDS_MAX)


@pytest.mark.parametrize("fault", ["crash", "pause", "isolate", "lose_power"])
def test_another_node_decides_when_the_controller_is_gone(world, fault):
    old = controller(world)
    assert old is not None

    getattr(world, fault)(old)
    world.run_until(lambda: another_leads(world, old), SECONDS_MAX)
    survivor = next(node for node in (1, 2, 3) if node != old)
    world.do(create(world, "meanwhile", survivor))

    if fault in ("crash", "lose_power"):
        world.restart(old)
    elif fault == "pause":
        world.resume(old)
    world.heal()
    world.run_until(lambda: knows(world, old, "meanwhile"), SECONDS_MAX)


def test_a_dead_controller_is_replaced_sooner_than_any_timeout(world):
    old = controller(world)
    assert old is not None
    world.run(seconds=1)  # the others have all that it decided
    died_at = world.now

    world.crash(old)
    world.run_until(lambda: another_leads(world, old), SECONDS_MAX)

    assert world.now - died_at < 0.5, "its connections were closed: nobody had to wait"


def test_a_dead_broker_is_fenced_at_once_and_a_silent_one_when_its_lease_ends(world):
    leader = controller(world)
    assert leader is not None
    dead, silent = (node for node in (1, 2, 3) if node != leader)
    image = world.node(leader).broker.image

    began_at = world.now
    world.pause(silent)
    world.run_until(lambda: not image.is_alive(silent), SECONDS_MAX)
    assert world.now - began_at > 1.0
    world.resume(silent)
    world.run_until(lambda: image.is_alive(silent), SECONDS_MAX)

    began_at = world.now
    world.crash(dead)
    world.run_until(lambda: not image.is_alive(dead), SECONDS_MAX)
    assert world.now - began_at < 0.5


async def delete(world: World, name: str, node: int) -> int:
    """Once, and at this node, which a client that tries again would not do."""
    network = world.client("story").network
    async with AdminClient(bootstrap(node), network=network, timeout_seconds=20.0) as client:
        connection = await client.any_connection()
        response = await connection.call(
            Api.DELETE_TOPICS, topic_names=[name], topics=[{"name": name, "topic_id": None}], timeout=20_000
        )
        return int(response.responses[0].error_code)


def test_a_node_that_lags_refuses_nothing_that_it_only_does_not_know_yet(world):
    leader = controller(world)
    assert leader is not None
    lagging = next(node for node in (1, 2, 3) if node != leader)
    world.cut(leader, lagging)
    world.do(create(world, "new", leader))
    assert not knows(world, lagging, "new")

    deleting = world.client("story").spawn(delete(world, "new", lagging))
    world.run(seconds=0.5)
    world.heal()
    world.run_until(deleting.done, SECONDS_MAX)

    assert deleting.result() == 0
    assert not knows(world, leader, "new")


@pytest.mark.parametrize("beside", [False, True], ids=["at the controller", "at a node beside it"])
def test_a_controller_that_does_not_know_that_it_is_deposed_refuses_nothing(beside):
    """Its leases are long, so that it is not busy with fencing those who are out of its reach."""
    with make_world(nodes=5, broker_session_timeout_ms=60_000) as world:
        world.start()
        world.run(seconds=1)
        old = controller(world)
        assert old is not None
        companion, *others = (node for node in world.machines if node != old)
        for node in (old, companion):
            for other in others:
                world.cut(node, other)
                world.cut(other, node)
        world.run_until(lambda: any(leads(world, node) for node in others), SECONDS_MAX)
        world.do(create(world, "new", next(node for node in others if leads(world, node))))
        assert leads(world, old), "as far as it knows"

        deleting = world.client("story").spawn(delete(world, "new", companion if beside else old))
        world.run(seconds=0.3)
        world.heal()
        world.run_until(deleting.done, SECONDS_MAX)

        assert deleting.result() == 0


def test_a_busy_controller_fences_a_silent_broker_none_the_later(world):
    leader = controller(world)
    assert leader is not None
    silent, other = (node for node in (1, 2, 3) if node != leader)
    image = world.node(leader).broker.image

    async def keep_busy() -> None:
        for number in range(1000):
            await create(world, f"busy-{number}", other)

    busy = world.client("story").spawn(keep_busy())
    world.pause(silent)
    world.run_until(lambda: not image.is_alive(silent), 4.0)

    assert not busy.done()
    busy.cancel()


def test_a_node_that_stops_lets_others_lead_first(world):
    world.do(create(world, "tide", 1))
    leader = controller(world)
    assert leader is not None
    other = next(node for node in (1, 2, 3) if node != leader)
    image = world.node(leader).broker.image

    world.stop(other)
    world.run_until(lambda: not world.is_up(other), SECONDS_MAX)

    assert not image.led.get(other)


def test_nothing_is_decided_without_a_majority_and_all_is_well_with_one_again(world):
    leader = controller(world)
    assert leader is not None
    others = [node for node in (1, 2, 3) if node != leader]
    for node in others:
        world.crash(node)
    world.run(seconds=10)
    assert controller(world) is None, "it resigned"

    world.restart(others[0])
    world.run_until(lambda: controller(world) is not None, SECONDS_MAX)
    world.run_until(lambda: world.is_up(others[0]), SECONDS_MAX)
    world.do(create(world, "again", others[0]))


def test_everything_decided_survives_losing_power_everywhere(world):
    world.do(create(world, "kept", 2))

    world.lose_power_everywhere()
    world.run(seconds=1)
    world.start()

    for node in (1, 2, 3):
        world.run_until(lambda n=node: knows(world, n, "kept"), SECONDS_MAX)


def test_a_wiped_disk_follows_and_does_not_vote(world):
    world.do(create(world, "kept", 1))
    old = world.node(2).broker.member.me.key
    world.crash(2)
    wipe(world, 2)

    world.restart(2)
    world.run_until(lambda: knows(world, 2, "kept"), SECONDS_MAX)

    raft = world.node(2).broker.member.quorum.raft
    assert raft.role is Role.OBSERVER
    assert old in raft.voters and world.node(2).broker.member.me.key != old


def test_two_wiped_disks_cannot_outvote_the_one_that_remembers(world):
    world.do(create(world, "kept", 1))
    for node in (2, 3):
        world.crash(node)
        wipe(world, node)
        world.restart(node)

    world.run(seconds=20)

    assert controller(world) is None
    assert knows(world, 1, "kept")


def test_clocks_an_hour_apart_change_nothing(world):
    world.jump_clock(1, 3600)
    world.jump_clock(2, -3600)
    before = controller(world)

    world.run(seconds=10)
    world.do(create(world, "on-time", 3))

    assert controller(world) == before, "no lease and no election looks at the wall clock"


def test_a_node_far_behind_is_sent_a_snapshot():
    with make_world(metadata_snapshot_records=20) as world:
        world.start()
        leader = controller(world)
        assert leader is not None
        behind = next(node for node in (1, 2, 3) if node != leader)
        world.crash(behind)
        for number in range(60):
            world.do(create(world, f"topic-{number}", leader))

        world.restart(behind)
        world.run_until(lambda: knows(world, behind, "topic-59"), SECONDS_MAX)

        broker = world.node(behind).broker
        assert broker.member.log.log.start > 0, "the beginning of the log came as a snapshot"
        assert broker.image == world.node(leader).broker.image
        world.crash(behind)
        world.restart(behind)
        world.run_until(lambda: knows(world, behind, "topic-0"), SECONDS_MAX)


def test_a_second_node_with_the_same_number_is_refused():
    """Machine 4 is configured as node 3, on a disk of its own."""

    def factory(host: Host, number: int) -> Node:
        node = real_node(host, number, quorum=quorum_text(3), peer=f"node-{number}:9192")
        return Node(host, replace(node.config, node_id=3)) if number == 4 else node

    with World(3, nodes=4, node_factory=factory, keep_trace=True) as world:
        for node in (1, 2, 3):
            world.restart(node)
        world.run_until(lambda: all(world.is_up(node) for node in (1, 2, 3)), SECONDS_MAX)

        world.restart(4)
        world.run(seconds=20)

        refusal = next(line for line in world.trace.lines() if "cannot start" in line)
        assert "two nodes" in refusal
        assert "--node-id" in refusal
        assert all(world.is_up(node) for node in (1, 2, 3))


@pytest.mark.parametrize("nodes", [1, 5, 7])
def test_quorums_of_other_sizes_decide_too(nodes):
    with make_world(nodes=nodes) as world:
        world.start()
        survives = (nodes - 1) // 2
        for node in range(1, survives + 1):
            world.crash(node)
        world.run_until(lambda: controller(world) not in (None, *range(1, survives + 1)), SECONDS_MAX)

        world.do(create(world, "tide", nodes))


def test_a_node_that_is_not_of_the_quorum_follows_it():
    def factory(host: Host, number: int) -> Node:
        return real_node(host, number, quorum=quorum_text(3), peer=f"node-{number}:9192")

    with World(3, nodes=4, node_factory=factory) as world:
        QuorumWatch(world)
        world.start()

        world.do(create(world, "tide", 4))

        assert knows(world, 4, "tide")
        assert world.node(4).broker.member.quorum.raft.role is Role.OBSERVER


def test_a_voter_that_was_away_finds_a_leader_of_which_it_never_heard():
    def factory(host: Host, number: int) -> Node:
        return real_node(host, number, quorum=quorum_text(3), peer=f"node-{number}:9192")

    with World(3, nodes=4, node_factory=factory) as world:
        QuorumWatch(world)
        world.start()
        world.crash(2)
        world.run_until(lambda: another_leads(world, 2), SECONDS_MAX)
        electorate = world.node(4).broker.electorate
        world.do(electorate.add(4))
        for node in (2, 1, 3):
            world.run(seconds=1)
            world.do(electorate.remove(node))
            world.run_until(partial(another_leads, world, node), SECONDS_MAX)
        assert controller(world) == 4

        world.restart(2)

        world.run_until(lambda: world.is_up(2), SECONDS_MAX)
        assert world.node(2).broker.member.quorum.raft.voters.ids == [4]


def test_a_wiped_disk_votes_again_once_an_operator_says_so(world):
    world.crash(2)
    wipe(world, 2)
    world.restart(2)
    world.run_until(lambda: world.is_up(2), SECONDS_MAX)
    new = world.node(2).broker.member.me.key

    world.do(world.node(3).broker.electorate.remove(2))
    world.run(seconds=1)
    world.do(world.node(1).broker.electorate.add(2))

    for node in (1, 2, 3):
        raft = world.node(node).broker.member.quorum.raft
        world.run_until(lambda r=raft: new in r.voters, SECONDS_MAX)
    old = controller(world)
    assert old is not None
    if old != 2:
        world.crash(old)
        world.run_until(lambda: another_leads(world, old), SECONDS_MAX)


def test_the_leader_can_be_voted_out_and_another_decides(world):
    old = controller(world)
    assert old is not None
    others = [node for node in (1, 2, 3) if node != old]

    world.do(world.node(others[0]).broker.electorate.remove(old))
    world.run_until(lambda: another_leads(world, old), SECONDS_MAX)

    assert world.node(others[0]).broker.member.quorum.raft.voters.ids == others
    world.do(create(world, "after", old))


def test_a_full_disk_makes_nobody_forget_who_votes():
    """Otherwise two of five would decide, with the three of the first set in mind."""

    def factory(host: Host, number: int) -> Node:
        return real_node(host, number, quorum=quorum_text(3), peer=f"node-{number}:9192")

    everyone = [1, 2, 3, 4, 5]
    with World(3, nodes=5, node_factory=factory) as world:
        QuorumWatch(world)
        world.start()
        for node in (4, 5):
            world.do(world.node(1).broker.electorate.add(node))
            world.run(seconds=1)
        victim, partner = [node for node in (1, 2, 3) if node != controller(world)][:2]
        rest = [node for node in everyone if node not in (victim, partner)]
        quorum = world.node(victim).broker.member.quorum
        built_first = quorum.raft

        world.fill_disk(victim, 0)
        world.do(create(world, "tide", partner))
        world.run_until(lambda: quorum.raft is not built_first, SECONDS_MAX)
        world.heal()
        world.run_until(lambda: knows(world, victim, "tide"), SECONDS_MAX)

        assert quorum.raft.voters.ids == everyone
        for one in (victim, partner):
            for other in rest:
                world.cut(one, other)
                world.cut(other, one)
        world.run_until(lambda: controller(world) in rest, SECONDS_MAX)
        world.run(seconds=10)
        assert [node for node in everyone if world.node(node).broker.member.quorum.leads] == [
            controller(world)
        ]


def test_a_topic_is_deleted_while_every_disk_is_full():
    """The record that deletes it finds room in the reserve of each node."""
    factory = partial(real_node, quorum=quorum_text(3), disk_reserve_bytes=8000)
    with World(7, nodes=3, node_factory=factory) as world:
        QuorumWatch(world)
        world.start()
        world.do(create(world, "tide", 1))
        epoch = world.node(1).broker.image.quorum_epoch
        for node in (1, 2, 3):
            world.fill_disk(node)

        async def delete() -> None:
            network = world.client("story").network
            async with AdminClient(bootstrap(1), network=network, timeout_seconds=10.0) as client:
                await client.delete_topic("tide")

        world.do(delete())

        everyone = (1, 2, 3)
        world.run_until(lambda: not any(knows(world, node, "tide") for node in everyone), SECONDS_MAX)
        assert all(world.node(node).broker.member.quorum.refusal is None for node in everyone)
        assert world.node(1).broker.image.quorum_epoch == epoch, "nobody had to give way"


def test_a_refusal_ends_when_the_disk_has_room_though_nothing_is_written(world):
    follower = next(node for node in (1, 2, 3) if node != controller(world))
    quorum = world.node(follower).broker.member.quorum
    world.fill_disk(follower)
    world.do(create(world, "tide", 6 - follower - (controller(world) or 0)))
    world.run_until(lambda: quorum.refusal is not None, SECONDS_MAX)
    world.crash(controller(world) or 0)  # so that this one may be elected before it has room

    world.heal()

    world.run_until(lambda: quorum.refusal is None, SECONDS_MAX)


def test_a_voter_that_is_no_broker_or_votes_already_is_refused_by_name(world):
    for node, problem in ((9, "9"), (2, "votes already")):
        with pytest.raises(BrokerError, match=problem):
            world.do(world.node(1).broker.electorate.add(node))


def test_a_change_waits_for_the_next_controller_no_longer_than_for_its_election(world):
    old = controller(world)
    assert old is not None
    survivor = next(node for node in (1, 2, 3) if node != old)
    world.pause(old)
    began_at = world.now

    async def make() -> int:
        """At this node, where a client would ask the controller that it knows of."""
        network = world.client("story").network
        async with AdminClient(bootstrap(survivor), network=network) as client:
            connection = await client.any_connection()
            topic = {
                "name": "meanwhile",
                "num_partitions": 1,
                "replication_factor": -1,
                "assignments": [],
                "configs": [],
            }
            response = await connection.call(
                Api.CREATE_TOPICS, topics=[topic], timeout=20_000, validate_only=False
            )
            return int(response.topics[0].error_code)

    assert world.do(make()) == 0
    assert world.now - began_at < 4.0, "no answer of the old one is waited for"


def test_a_leader_that_slept_is_not_blamed_for_what_one_with_a_damaged_disk_decided():
    damaged: int | None = None
    for _ in range(2):  # the same history twice, the second time with a disk that is not judged
        with make_world() as world:
            world.start()
            old = controller(world)
            assert old is not None
            if damaged is not None:
                world.machines[damaged].is_damaged = True
            world.pause(old)
            world.run_until(partial(another_leads, world, old), SECONDS_MAX)
            damaged = controller(world)
            assert damaged is not None
            world.do(create(world, "meanwhile", 6 - old - damaged))

            world.resume(old)
            world.run_until(partial(knows, world, old, "meanwhile"), SECONDS_MAX)


def test_a_distant_node_s_change_is_decided_though_others_commit_all_the_time(world):
    """Its proposal reaches the controller a few commits late, each time."""
    leader = controller(world)
    assert leader is not None
    distant = next(node for node in (1, 2, 3) if node != leader)
    for source, target in ((leader, distant), (distant, leader)):
        world.clog(source, target, delay_seconds=0.2, seconds=SECONDS_MAX)
    metadata = world.node(leader).broker.metadata

    async def grant_always() -> None:
        while True:
            await metadata.change(
                lambda image: ProducerIdsGranted(node=leader, end=image.producer_ids_end + 1)
            )
            await asyncio.sleep(0.01)

    decided = []

    def decide(image: ClusterImage) -> NodeConfigChanged:
        decided.append(image.producer_ids_end)
        return NodeConfigChanged(node=distant, config={"log.retention.ms": "5"})

    world.client("busy").spawn(grant_always())
    world.do(world.node(distant).broker.metadata.change(decide))

    assert len(decided) <= 2
    assert metadata.image.producer_ids_end > decided[-1]
