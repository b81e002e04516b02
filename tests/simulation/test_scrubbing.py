"""Rot in sealed segments: found within a cycle, told, and healed from another replica."""

import asyncio
import errno
import os
from collections.abc import Collection
from dataclasses import replace
from typing import Any

import pytest

from tests.simulation.test_planted_replication import PLACE, Stage, a_stage
from tidelog.client.admin import AdminClient, ConfigChange, Resource
from tidelog.config import TopicConfig
from tidelog.controller.image import PartitionImage
from tidelog.errors import StorageError
from tidelog.host import Path, read_file
from tidelog.log.cleaner import Cleaner
from tidelog.log.log import Log
from tidelog.log.scrub import BATCH_BYTES_MIN, SegmentScrub
from tidelog.log.scrub_cycle import ScrubState
from tidelog.log.segment import Segment
from tidelog.log.swap import finish_swap
from tidelog.peers.stream import PeerUnreachable
from tidelog.records import Record, encode_batch, read_header
from tidelog.replication import scrub_visits
from tidelog.replication.rot_healing import TEND_SECONDS, RotHealer
from tidelog.replication.rot_helpers import RotHelpers
from tidelog.replication.scrubbing import Scrubber
from tidelog.simulation import swarm
from tidelog.simulation.disk import SimulatedDisk
from tidelog.simulation.machine import Machine
from tidelog.simulation.nodes import DATA
from tidelog.simulation.plan import Plan
from tidelog.simulation.replicated import OneTryClient
from tidelog.simulation.rot import HEALED, MISTAKEN, ROT, check_healed
from tidelog.simulation.swarm import make_plan, play

SEALED = Path(DATA) / str(PLACE) / "00000000000000000000.log"
CYCLE_SECONDS_MAX = 30.0


def scrubbing(**settings: Any) -> dict[str, Any]:
    """Settings of nodes that scrub without a break, and whose segments are small."""
    return {
        "scrub_bytes_per_second": 1 << 20,
        "scrub_interval_ms": 1000,
        "checkpoint_ms": 100,
        "topic_defaults": TopicConfig(segment_bytes=300),
        **settings,
    }


def state_of(stage: Stage, node: int) -> ScrubState:
    state: ScrubState = stage.world.node(node).broker.replication.scrubber.state
    return state


def content(stage: Stage, node: int, path: Path = SEALED) -> bytes:
    return read_file(stage.world.machines[node].disk, path)


def sealed_files(machine: Machine) -> dict[str, bytes]:
    names = [name for name in machine.disk.list(SEALED.parent) if name.endswith(".log")]
    return {name: read_file(machine.disk, SEALED.parent / name) for name in names[:-1]}


def await_cycle(stage: Stage, node: int) -> None:
    """Until a cycle that begins from now on has ended."""
    wanted = state_of(stage, node).cycle + 1

    def is_done() -> bool:
        state = state_of(stage, node)
        return state.cycle > wanted or (state.cycle == wanted and not state.is_running)

    stage.world.run_until(is_done, CYCLE_SECONDS_MAX)


@pytest.mark.parametrize("role", ["leader", "follower"])
@pytest.mark.parametrize("position", [9, 70])
def test_rot_is_healed_where_it_is(role, position):
    with a_stage(**scrubbing()) as stage:
        for _ in range(12):
            stage.commit()
        stage.world.run(1)
        node = stage.nodes[0] if role == "leader" else stage.nodes[1]
        assert stage.leads(node) == (role == "leader")
        epoch, sound = stage.state.epoch, content(stage, node)

        stage.world.machines[node].disk.flip_bit(SEALED, position, 3)
        await_cycle(stage, node)

        assert content(stage, node) == sound
        found = state_of(stage, node)
        assert (found.found, found.healed, found.open) == (1, 1, [])
        [rot] = found.recent
        assert (rot.name, rot.state) == (PLACE, "healed")
        assert rot.source in stage.nodes
        assert rot.source != node
        assert stage.state.epoch == epoch, "nobody had to lead instead"
        assert stage.state.in_sync == set(stage.nodes)


def test_a_log_that_is_never_synced_for_its_writes_is_scrubbed_all_the_same():
    defaults = TopicConfig(segment_bytes=300, durability="replicated")
    with a_stage(**scrubbing(topic_defaults=defaults)) as stage:
        for _ in range(12):
            stage.commit()
        stage.world.run(1)
        node = stage.nodes[1]
        sound = content(stage, node)

        stage.world.machines[node].disk.flip_bit(SEALED, 70, 3)
        await_cycle(stage, node)  # it syncs
        await_cycle(stage, node)

        assert content(stage, node) == sound


def test_a_log_that_grows_faster_than_it_is_read_does_not_keep_the_cycle():
    four_segments = 4 * 8 * BATCH_BYTES_MIN
    with a_stage(**scrubbing(scrub_bytes_per_second=four_segments)) as stage:
        for _ in range(12):
            stage.commit()
        node = stage.nodes[0]
        stage.world.run(1)
        cycle = state_of(stage, node).cycle

        for _ in range(200):
            stage.commit()
            stage.world.run(0.05)

        assert state_of(stage, node).cycle >= cycle + 2


def delete_before(stage: Stage, offset: int) -> None:
    async def work() -> None:
        async with stage.client(AdminClient, stage.controller) as client:
            await client.delete_records(PLACE.topic, {0: offset})

    stage.world.do(work())
    stage.world.run(1)


@pytest.mark.parametrize("position", [9, 70])
def test_rot_of_the_batch_that_holds_the_start_is_healed(position):
    with a_stage(**scrubbing()) as stage:
        stage.commit(10)
        for _ in range(6):
            stage.commit()
        delete_before(stage, 5)
        node = stage.nodes[0]
        assert stage.leads(node)
        sound = content(stage, node)

        stage.world.machines[node].disk.flip_bit(SEALED, position, 3)
        await_cycle(stage, node)

        assert content(stage, node) == sound
        found = state_of(stage, node)
        assert (found.found, found.healed, found.open) == (1, 1, [])
        assert found.recent[0].offset == 5


def test_rot_of_what_is_deleted_keeps_nothing_behind_it_from_being_healed():
    every_batch = TopicConfig(segment_bytes=300, index_interval_bytes=1)
    with a_stage(**scrubbing(topic_defaults=every_batch)) as stage:
        for _ in range(12):
            stage.commit()
        delete_before(stage, 2)
        node = stage.nodes[0]
        sound = content(stage, node)
        size = read_header(sound).size
        assert len(sound) >= 4 * size

        stage.world.machines[node].disk.flip_bit(SEALED, 9, 3)  # the length of what is deleted
        stage.world.machines[node].disk.flip_bit(SEALED, 3 * size + 65, 3)
        await_cycle(stage, node)

        assert content(stage, node)[size:] == sound[size:]
        found = state_of(stage, node)
        assert (found.found, found.healed, found.open) == (1, 1, [])


@pytest.mark.parametrize("role", ["leader", "follower"])
def test_a_replica_whose_rot_cannot_be_healed_where_it_is_begins_anew(role):
    """Where the log begins lies behind a deleted batch; both are rotten, so nobody can tell."""
    with a_stage(**scrubbing()) as stage:
        for _ in range(12):
            stage.commit()
        delete_before(stage, 1)
        leader, *followers = stage.nodes
        node = leader if role == "leader" else followers[0]
        assert stage.leads(node) == (role == "leader")
        machine, size = stage.world.machines[node], read_header(content(stage, node)).size
        machine.is_damaged = True  # its log will fall behind what it was
        for position in (65, size + 1):  # a record that is deleted, and the next one's offset
            machine.disk.flip_bit(SEALED, position, 1)

        stage.world.run_until(lambda: state_of(stage, node).healed, CYCLE_SECONDS_MAX)

        def is_whole() -> bool:
            return stage.state.in_sync == set(stage.nodes) and stage.has(node, 12)

        stage.world.run_until(is_whole, CYCLE_SECONDS_MAX)
        assert state_of(stage, node).open == []


def test_rot_of_two_replicas_in_different_places_is_healed_from_each_other():
    with a_stage(**scrubbing()) as stage:
        for _ in range(12):
            stage.commit()
        stage.world.run(1)
        first, second, _ = stage.nodes
        files = sorted(sealed_files(stage.world.machines[first]))

        stage.world.machines[first].disk.flip_bit(SEALED.parent / files[0], 70, 1)
        stage.world.machines[second].disk.flip_bit(SEALED.parent / files[1], 70, 1)
        for node in stage.nodes:
            await_cycle(stage, node)

        copies = [sealed_files(stage.world.machines[node]) for node in stage.nodes]
        assert copies[0] == copies[1] == copies[2]
        assert [state_of(stage, node).healed for node in stage.nodes] == [1, 1, 0]


def test_rot_waits_for_somebody_who_can_help():
    with a_stage(**scrubbing()) as stage:
        for _ in range(12):
            stage.commit()
        stage.world.run(1)
        first, *others = stage.nodes
        sound = content(stage, first)
        for node in others:
            stage.world.crash(node)
        stage.run_until(lambda: not any(map(stage.image.is_alive, others)))

        stage.world.machines[first].disk.flip_bit(SEALED, 70, 1)
        await_cycle(stage, first)

        [rot] = state_of(stage, first).open
        assert rot.why == "no other replica is there"
        assert content(stage, first) != sound

        stage.world.restart(others[0])
        stage.world.run_until(lambda: not state_of(stage, first).open, CYCLE_SECONDS_MAX)
        assert content(stage, first) == sound


def alone_with_uncommitted(stage: Stage) -> tuple[int, Machine, bytes]:
    """Let one replica be in sync, lead, and hold 12 batches, of which the others had 6.

    It has just begun again, so nothing of its log is in memory.
    """
    world, (first, *others) = stage.world, stage.nodes
    for _ in range(6):
        stage.commit()
    world.run(1)
    for node in others:
        world.crash(node)
        stage.run_until(lambda: node not in stage.state.in_sync)  # noqa: B023
    for _ in range(6):
        sent = stage.send(first, acks=1)
        stage.run_until(sent.done)
    stage.run_until(lambda: stage.has(first, 12))
    world.crash(first)
    world.restart(first)
    stage.run_until(lambda: stage.leads(first))
    return first, world.machines[first], content(stage, first)


def test_rot_that_keeps_a_follower_out_is_healed_by_it_though_more_is_not_committed():
    """A leader cannot read on behind rot. The segment ends above the high watermark."""
    with a_stage(**scrubbing(topic_defaults=TopicConfig(segment_bytes=650))) as stage:
        first, machine, sound = alone_with_uncommitted(stage)
        epoch, size = stage.state.epoch, read_header(sound).size
        assert 6 * size < len(sound) < 12 * size

        machine.disk.flip_bit(SEALED, 4 * size + 1, 1)
        stage.world.restart(stage.nodes[1])
        stage.run_until(lambda: stage.nodes[1] in stage.state.in_sync)

        assert content(stage, first) == sound
        assert (stage.state.leader, stage.state.epoch) == (first, epoch)
        assert state_of(stage, first).healed == 1


def test_rot_of_what_is_not_committed_makes_way_for_a_follower_that_has_all_that_is():
    with a_stage(**scrubbing(topic_defaults=TopicConfig(segment_bytes=650))) as stage:
        first, machine, sound = alone_with_uncommitted(stage)
        second, size = stage.nodes[2], read_header(sound).size
        machine.is_damaged = True  # its log will end before what it had

        machine.disk.flip_bit(SEALED, 7 * size + 65, 1)
        stage.world.restart(second)
        stage.run_until(lambda: stage.leads(second))

        stage.run_until(lambda: {first, second} <= stage.state.in_sync)
        assert stage.has(second, 7)
        stage.world.run_until(lambda: not state_of(stage, first).open, CYCLE_SECONDS_MAX)


def test_rot_that_is_being_healed_is_not_forgotten_meanwhile(monkeypatch):
    """To ask the others takes longer than until they are asked again."""
    ask, asked = RotHelpers.ask, 0

    async def ask_slowly(self: RotHelpers, *arguments: Any) -> Any:
        nonlocal asked
        asked += 1
        await asyncio.sleep(2 * TEND_SECONDS)
        if asked < 3:
            raise PeerUnreachable("no answer")
        return await ask(self, *arguments)

    monkeypatch.setattr(RotHelpers, "ask", ask_slowly)
    with a_stage(**scrubbing()) as stage:
        for _ in range(12):
            stage.commit()
        stage.world.run(1)
        node = stage.nodes[1]
        stage.world.machines[node].disk.flip_bit(SEALED, 65, 1)
        stage.world.run_until(lambda: asked, CYCLE_SECONDS_MAX)

        while asked < 3:
            stage.world.run(1)
            assert len(state_of(stage, node).open) == 1

        stage.world.run_until(lambda: not state_of(stage, node).open, 2 * CYCLE_SECONDS_MAX)
        assert [rot.state for rot in state_of(stage, node).recent] == ["healed"]


def test_a_cycle_reads_on_behind_rot_that_somebody_else_is_healing(monkeypatch):
    """Its length has rotted, so nobody knows where to go on before it is healed."""
    ask = RotHelpers.ask

    async def ask_slowly(self: RotHelpers, *arguments: Any) -> Any:
        await asyncio.sleep(3.0)
        return await ask(self, *arguments)

    monkeypatch.setattr(RotHelpers, "ask", ask_slowly)
    with a_stage(**scrubbing()) as stage:
        for _ in range(12):
            stage.commit()
        stage.world.run(1)
        node = stage.nodes[1]
        sound, partition = content(stage, node), stage.partition(node)
        machine, size = stage.world.machines[node], read_header(sound).size
        machine.disk.flip_bit(SEALED, 9, 1)
        machine.disk.flip_bit(SEALED, 2 * size + 65, 1)

        stage.inside(node, machine.node.broker.replication.damage.suspect, partition, 0)
        await_cycle(stage, node)

        assert content(stage, node) == sound
        assert state_of(stage, node).healed == 2


def test_places_that_rotten_offsets_have_led_to_are_forgotten_once_rot_before_them_is_healed():
    """Two offsets in a row have rotted alike, so that they lead from one to the next."""
    with a_stage(**scrubbing(topic_defaults=TopicConfig(segment_bytes=1000))) as stage:
        for _ in range(40):
            stage.commit()
        stage.world.run(1)
        first, *others = stage.nodes
        sound = content(stage, first)
        size = read_header(sound).size
        for node in others:
            stage.world.crash(node)
        stage.run_until(lambda: not any(map(stage.image.is_alive, others)))

        disk = stage.world.machines[first].disk
        disk.flip_bit(SEALED, 60, 1)
        for at in (1, 2):
            disk.flip_bit(SEALED, at * size + 7, 3)
        rotten = content(stage, first)
        assert [read_header(rotten, at * size).base_offset for at in (1, 2)] == [9, 10]
        await_cycle(stage, first)
        assert [rot.offset for rot in state_of(stage, first).open] == [0, 11]

        stage.world.restart(others[0])
        stage.world.run_until(lambda: not state_of(stage, first).open, CYCLE_SECONDS_MAX)
        assert content(stage, first) == sound


@pytest.mark.slow
def test_a_restart_goes_on_with_the_cycle():
    with a_stage(**scrubbing(scrub_bytes_per_second=20_000, scrub_interval_ms=1)) as stage:
        for _ in range(60):
            stage.commit()
        first = stage.nodes[0]
        stage.world.run_until(lambda: state_of(stage, first).offset > 20, CYCLE_SECONDS_MAX)
        before = state_of(stage, first).cycle
        stage.world.run(0.3)  # it is noted every 100 ms

        stage.world.crash(first)
        stage.world.restart(first)
        stage.world.run_until(lambda: stage.world.is_up(first), CYCLE_SECONDS_MAX)
        stage.world.run_until(lambda: state_of(stage, first).cycle, CYCLE_SECONDS_MAX)

        assert state_of(stage, first).cycle == before
        assert state_of(stage, first).offset > 20


def test_rot_that_was_found_before_a_restart_is_healed_after_it():
    with a_stage(**scrubbing()) as stage:
        for _ in range(12):
            stage.commit()
        stage.world.run(1)
        first, *others = stage.nodes
        sound = content(stage, first)
        for node in others:
            stage.world.crash(node)
        stage.run_until(lambda: not any(map(stage.image.is_alive, others)))
        stage.world.machines[first].disk.flip_bit(SEALED, 70, 1)
        await_cycle(stage, first)
        stage.world.run(0.3)

        stage.world.crash(first)
        for node in stage.nodes:
            stage.world.restart(node)
        stage.world.run_until(lambda: stage.world.is_up(first), CYCLE_SECONDS_MAX)

        stage.world.run_until(lambda: state_of(stage, first).healed, CYCLE_SECONDS_MAX)
        assert content(stage, first) == sound
        assert (state_of(stage, first).found, state_of(stage, first).open) == (1, [])


def test_an_index_is_made_again_and_a_full_disk_puts_that_off():
    with a_stage(**scrubbing()) as stage:
        for _ in range(12):
            stage.commit()
        stage.world.run(1)
        node = stage.nodes[1]
        machine, path = stage.world.machines[node], SEALED.with_suffix(".timeindex")
        sound = content(stage, node, path)
        stage.world.fill_disk(node, left_bytes=0)
        machine.disk.flip_bit(path, 3, 3)

        await_cycle(stage, node)
        assert content(stage, node, path) != sound

        stage.world.heal()
        await_cycle(stage, node)
        assert content(stage, node, path) == sound


def make(stage: Stage, topic: str, replication: int, count: int, keys: int = 100, /, **configs: str) -> None:
    """A topic of one partition with `count` batches, the first `keys` with a key of their own."""

    async def work() -> None:
        async with stage.client(OneTryClient, stage.controller) as client:
            await client.create_topic(topic, partitions=1, replication=replication, configs=configs)
            for number in range(count):
                key, value = b"%d" % (number % keys), b"v" * (1 + number // keys)
                batch = encode_batch([Record(key=key, value=value, timestamp_ms=1)])
                await client.produce(topic, 0, batch)

    stage.world.do(work())
    stage.world.run(1)


def replicas_of(stage: Stage, topic: str) -> list[int]:
    return list(stage.image.topics[topic].partitions[0].replicas)


def test_a_sole_replica_is_told_of_and_never_changed():
    with a_stage(**scrubbing()) as stage:
        make(stage, "alone", 1, 12)
        [node] = replicas_of(stage, "alone")
        path = Path(DATA) / "alone-0" / SEALED.name
        stage.world.machines[node].disk.flip_bit(path, 65, 1)
        rotten = content(stage, node, path)

        await_cycle(stage, node)
        await_cycle(stage, node)

        [rot] = state_of(stage, node).open
        assert (str(rot.name), rot.offset, rot.why) == ("alone-0", 0, "there is no other replica")
        assert state_of(stage, node).found == 1, "it is told of once"
        assert content(stage, node, path) == rotten
        partition = stage.world.node(node).broker.replicas.find("alone", 0)
        assert partition.log.refusal is None, "it takes writes"


def spoil(stage: Stage, node: int, path: Path) -> None:
    """Let a batch rot so that nobody can tell any more which one it was."""
    for position in (18, 65):  # its checksum, and a record
        stage.world.machines[node].disk.flip_bit(path, position, 1)


@pytest.mark.parametrize("position", [9, 18, 65])
def test_two_compacted_replicas_that_rot_heal_each_other_where_they_have_the_same(position):
    """The third has lost everything, and cannot copy what has rotted."""
    with a_stage(**scrubbing()) as stage:
        make(stage, "keys", 3, 12, **{"cleanup.policy": "compact"})
        *rotten, third = replicas_of(stage, "keys")
        stage.world.crash(third)
        await_in_sync(stage, rotten)
        logs = [log_of(stage, node) for node in rotten]
        sound = [content(stage, node, logs[0].segments[at].path()) for at, node in enumerate(rotten)]

        stage.part(*rotten)  # for less than a follower may be silent
        for at, (node, log) in enumerate(zip(rotten, logs, strict=True)):
            stage.world.machines[node].disk.flip_bit(log.segments[at].path(), position, 1)
        for node in rotten:
            await_cycle(stage, node)
        stage.world.heal()

        await_healed(stage, rotten)
        healed = [content(stage, node, logs[0].segments[at].path()) for at, node in enumerate(rotten)]
        assert healed == sound
        assert [log_of(stage, node) for node in rotten] == logs, "nobody has begun anew"
        assert keys_state(stage).in_sync == set(rotten)


@pytest.mark.parametrize("role", ["leader", "follower"])
def test_a_compacted_replica_begins_anew(role):
    with a_stage(**scrubbing()) as stage:
        make(stage, "keys", 3, 12, **{"cleanup.policy": "compact"})
        leader, *followers = replicas_of(stage, "keys")
        node = leader if role == "leader" else followers[0]
        replicas = stage.world.node(node).broker.replicas
        before = replicas.find("keys", 0).log
        path = Path(DATA) / "keys-0" / SEALED.name
        sound = content(stage, node, path)
        stage.world.machines[node].is_damaged = True  # its log will fall behind what it was
        spoil(stage, node, path)

        stage.world.run_until(lambda: state_of(stage, node).healed, CYCLE_SECONDS_MAX)

        def is_whole() -> bool:
            state = stage.image.topics["keys"].partitions[0]
            log = replicas.find("keys", 0).log
            return state.in_sync == set(state.replicas) and log.synced_end == before.end

        assert replicas.find("keys", 0).log is not before
        stage.world.run_until(is_whole, CYCLE_SECONDS_MAX)
        assert content(stage, node, path) == sound
        assert state_of(stage, node).open == []


def test_a_segment_whose_compacted_file_has_not_its_name_yet_is_not_rotten(monkeypatch):
    """For a moment a log has the new segment, and the file of that name is the old one."""
    run, ended = Cleaner._run, []

    async def run_slowly(self: Cleaner, work: Any) -> Any:
        is_last = getattr(work, "func", None) is finish_swap
        if is_last:
            await asyncio.sleep(3.0)  # whole cycles
        result = await run(self, work)
        ended.extend([work] if is_last else [])
        return result

    monkeypatch.setattr(Cleaner, "_run", run_slowly)
    with a_stage(**scrubbing(log_cleaner_backoff_ms=500)) as stage:
        make(stage, "keys", 3, 12, 5)

        settings = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}
        alter(stage, "keys", {**settings, "segment.bytes": "5000"})  # two segments become one
        stage.world.run_until(lambda: len(ended) >= 3, CYCLE_SECONDS_MAX)
        nodes = replicas_of(stage, "keys")
        for node in nodes:
            await_cycle(stage, node)

        assert [state_of(stage, node).found for node in nodes] == [0, 0, 0]
        assert [len(log_of(stage, node).segments) for node in nodes] == [2, 2, 2]


def alter(stage: Stage, topic: str, settings: dict[str, str]) -> None:
    changes = [ConfigChange(name=name, value=value) for name, value in settings.items()]

    async def work() -> None:
        async with stage.client(AdminClient, stage.controller) as client:
            await client.alter_configs(Resource.TOPIC, topic, changes)

    stage.world.do(work())


def log_of(stage: Stage, node: int) -> Log:
    log: Log = stage.world.node(node).broker.replicas.find("keys", 0).log
    return log


def keys_state(stage: Stage) -> PartitionImage:
    """The partition by the newest metadata that a node has; the controller may be down."""
    brokers = [machine.node.broker for machine in stage.world.machines.values() if machine.is_up]
    newest = max(brokers, key=lambda broker: broker.metadata.applied)
    state: PartitionImage = newest.image.topics["keys"].partitions[0]
    return state


def await_in_sync(stage: Stage, nodes: Collection[int]) -> None:
    stage.world.run_until(lambda: keys_state(stage).in_sync == set(nodes), 2 * CYCLE_SECONDS_MAX)


def await_healed(stage: Stage, nodes: Collection[int]) -> None:
    def is_so() -> bool:
        return all(not state_of(stage, node).open for node in nodes)

    stage.world.run_until(is_so, 2 * CYCLE_SECONDS_MAX)
    assert [state_of(stage, node).healed for node in nodes] == [1] * len(nodes)


def test_two_compacted_replicas_that_rot_keep_what_they_have_until_a_third_is_whole():
    with a_stage(**scrubbing()) as stage:
        make(stage, "keys", 3, 12, **{"cleanup.policy": "compact"})
        *rotten, third = nodes = replicas_of(stage, "keys")
        stage.world.crash(third)
        await_in_sync(stage, rotten)
        logs = [log_of(stage, node) for node in rotten]

        stage.part(*rotten)  # for less than a follower may be silent
        for at, (node, log) in enumerate(zip(rotten, logs, strict=True)):
            spoil(stage, node, log.segments[at].path())
        for node in rotten:
            await_cycle(stage, node)
        stage.world.heal()
        stage.world.run(2 * TEND_SECONDS)

        assert [log.damaged_at for log in logs] == [None, None]
        for node in rotten:
            [rot] = state_of(stage, node).open
            assert rot.why == "no other replica that is in sync says that it is whole"
        assert keys_state(stage).leader in rotten
        assert keys_state(stage).in_sync == set(rotten)

        stage.world.restart(third)
        await_healed(stage, rotten)
        await_in_sync(stage, nodes)


def test_a_compacted_replica_that_rots_while_another_begins_anew_from_it_goes_on_leading():
    with a_stage(**scrubbing()) as stage:
        make(stage, "keys", 3, 12, **{"cleanup.policy": "compact"})
        *rotten, third = nodes = replicas_of(stage, "keys")
        for node in rotten:  # so that memory has nothing of what rots
            stage.world.crash(node)
            await_in_sync(stage, set(nodes) - {node})
            stage.world.restart(node)
            await_in_sync(stage, nodes)
        stage.world.crash(third)
        await_in_sync(stage, rotten)

        for at, node in enumerate(rotten):
            spoil(stage, node, log_of(stage, node).segments[at].path())
        # The first to look hears of no rot, and leaves. It cannot copy what has rotted at the last.
        stage.world.run_until(lambda: len(keys_state(stage).in_sync) == 1, CYCLE_SECONDS_MAX)
        [last] = keys_state(stage).in_sync
        stage.world.run(2 * TEND_SECONDS)
        assert keys_state(stage).in_sync == {last}
        assert log_of(stage, last).damaged_at is None
        assert keys_state(stage).leader == last

        stage.world.restart(third)
        await_healed(stage, rotten)
        await_in_sync(stage, nodes)


@pytest.mark.parametrize("role", ["leader", "follower"])
def test_a_compacted_replica_that_is_alone_keeps_what_it_has(role):
    with a_stage(**scrubbing()) as stage:
        make(stage, "keys", 3, 12, **{"cleanup.policy": "compact"})
        leader, *followers = nodes = replicas_of(stage, "keys")
        node = leader if role == "leader" else followers[0]
        others = set(stage.world.machines) - {node}
        for other in others:
            stage.world.cut(node, other)
            stage.world.cut(other, node)
        log = log_of(stage, node)
        assert keys_state(stage).in_sync == set(nodes)

        spoil(stage, node, log.segments[0].path())
        await_cycle(stage, node)

        assert log.damaged_at is None
        assert len(state_of(stage, node).open) == 1

        stage.world.heal()
        await_healed(stage, [node])
        await_in_sync(stage, nodes)


class Unreadable:
    """A device that does not open or read one file, so many times."""

    def __init__(self, disk: SimulatedDisk, path: Path, times: int) -> None:
        self.times = times
        self._path = path
        disk.on_operation = self._fail

    def _fail(self, operation: str, path: Path) -> None:
        if path == self._path and operation in ("open", "read") and self.times:
            self.times -= 1
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))


@pytest.mark.parametrize("role", ["leader", "follower"])
def test_a_compacted_replica_whose_device_fails_to_read_for_a_moment_keeps_what_it_has(role):
    with a_stage(**scrubbing(scrub_interval_ms=10_000)) as stage:
        make(stage, "keys", 3, 12, **{"cleanup.policy": "compact"})
        leader, *followers = replicas_of(stage, "keys")
        node = leader if role == "leader" else followers[0]
        partition = stage.world.node(node).broker.replicas.find("keys", 0)
        before, epoch = partition.log, keys_state(stage).epoch
        path = Path(DATA) / "keys-0" / SEALED.name
        device = Unreadable(stage.world.machines[node].disk, path, times=3)

        await_cycle(stage, node)
        assert not device.times
        [rot] = state_of(stage, node).open
        assert rot.why == "the device did not read it; it is asked again"
        stage.world.run_until(lambda: not state_of(stage, node).open, CYCLE_SECONDS_MAX)

        assert [rot.state for rot in state_of(stage, node).recent] == ["gone"]
        assert partition.log is before
        assert before.damaged_at is None
        state = keys_state(stage)
        assert state.epoch == epoch
        assert state.in_sync == set(state.replicas)


def test_a_compacted_replica_whose_device_does_not_read_any_more_begins_anew():
    calm = scrubbing(scrub_interval_ms=10_000, log_cleaner_backoff_ms=600_000)
    with a_stage(**calm) as stage:  # a cleaner that cannot read ends its node
        make(stage, "keys", 3, 12, **{"cleanup.policy": "compact"})
        node = replicas_of(stage, "keys")[1]
        before = stage.world.node(node).broker.replicas.find("keys", 0).log
        path = Path(DATA) / "keys-0" / SEALED.name
        device = Unreadable(stage.world.machines[node].disk, path, times=1_000_000)

        stage.world.run_until(lambda: before.damaged_at == 0, 2 * CYCLE_SECONDS_MAX)
        device.times = 0  # another file lies elsewhere on the device
        stage.world.run_until(lambda: state_of(stage, node).healed, CYCLE_SECONDS_MAX)

        assert stage.world.node(node).broker.replicas.find("keys", 0).log is not before


# What the simulator waits for before it looks.


@pytest.mark.parametrize("moment", ["before the wait", "during the wait"])
def test_a_node_that_starts_again_has_whole_cycles_to_heal_what_rotted(monkeypatch, moment):
    scrub = Scrubber.run

    async def scrub_late(self: Scrubber) -> None:
        await asyncio.sleep(1.0)  # a node is up before it has read which cycle it is in
        await scrub(self)

    monkeypatch.setattr(Scrubber, "run", scrub_late)
    with a_stage(**scrubbing(scrub_interval_ms=5000)) as stage:
        for _ in range(12):
            stage.commit()
        node = stage.nodes[1]
        for _ in range(3):  # more cycles than are waited for
            await_cycle(stage, node)
        stage.world.run(0.3)  # they are noted
        machine, sound = stage.world.machines[node], content(stage, node)
        machine.is_rotten = True
        for other in set(stage.world.machines) - {node}:
            stage.world.machines[other].is_damaged = True  # nobody waits for their cycles

        def start_rotten() -> None:
            stage.world.crash(node)
            machine.disk.flip_bit(SEALED, 70, 1)
            stage.world.restart(node)

        if moment == "before the wait":
            start_rotten()
            stage.world.run_until(lambda: stage.world.is_up(node), CYCLE_SECONDS_MAX)
        else:
            stage.world.after(6.0, start_rotten)
        check_healed(stage.world, CYCLE_SECONDS_MAX)

        assert content(stage, node) == sound
        assert state_of(stage, node).healed == 1


# Found by seeds.


def a_rotten_plan() -> Plan:
    plan = make_plan(201, story="replicated", kinds=[ROT, "crash"], chaos_seconds=4)
    assert any(fault.kind == ROT for fault in plan.faults)
    return plan


@pytest.mark.slow
def test_nobody_takes_a_rotten_batch_for_what_was_committed():
    """A leader that has begun again may commit, once it knows it, what has rotted on its disk."""
    with a_stage(topic_defaults=TopicConfig(segment_bytes=300), scrub_bytes_per_second=0) as stage:
        for _ in range(6):
            stage.commit()
        stage.world.run(1)
        node = stage.nodes[0]
        machine = stage.world.machines[node]
        stage.world.crash(node)
        stage.world.restart(node)
        stage.run_until(lambda: stage.world.is_up(node) and stage.partition(node))
        found = stage.partition(node)
        assert found is not None
        size = read_header(content(stage, node)).size

        machine.disk.flip_bit(SEALED, 2 * size + 65, 1)

        batches = machine.sound_batches(found.log, 0, 4)
        assert [next(batches)[0].base_offset for _ in range(2)] == [0, 1]
        with pytest.raises(StorageError, match="rotted at 2"):
            next(batches)


def test_rot_is_healed_in_a_seed():
    outcome = play(a_rotten_plan())

    assert outcome.violation is None
    assert outcome.faults[ROT]


@pytest.mark.slow
def test_rot_that_nobody_heals_is_found(monkeypatch):
    async def shrug(self: RotHealer, visit: object, rot: object) -> bool:
        return False

    monkeypatch.setattr(RotHealer, "_try_to_heal", shrug)
    monkeypatch.setattr(swarm, "LIVENESS_SECONDS", 10.0)

    violation = play(a_rotten_plan()).violation

    assert violation is not None
    assert violation.name == HEALED


@pytest.mark.slow
def test_a_scrubber_that_sees_rot_where_there_is_none_is_found(monkeypatch):
    """It takes every batch of a later epoch for rot."""

    def forgetful(segment: Segment, end: int, **known: Any) -> SegmentScrub:
        return SegmentScrub(segment, end, **{**known, "epochs": [(0, 0)]})

    monkeypatch.setattr(scrub_visits, "SegmentScrub", forgetful)
    plan = a_rotten_plan()
    sound = tuple(fault for fault in plan.faults if fault.kind != ROT)

    violation = play(replace(plan, faults=sound)).violation

    assert violation is not None
    assert violation.name == MISTAKEN
