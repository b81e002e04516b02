"""Bugs 11 and 14 of RELIABILITY, planted: rot that is taken for a torn tail, groups half loaded."""

import asyncio
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from tests.simulation.test_planted_replication import PLACE, SECONDS_MAX, Stage, a_stage
from tidelog.client.admin import AdminClient
from tidelog.config import TopicConfig
from tidelog.controller import elections
from tidelog.coordinators.groups import GroupsDriver
from tidelog.errors import TidelogError
from tidelog.groups.shard import Shard
from tidelog.host import Bytes, Disk, Path, read_file
from tidelog.log.directory import DataDirectory
from tidelog.log.log import LogState
from tidelog.log.reading import ColdRead
from tidelog.log.recovery import open_log
from tidelog.model import NO_NODE, OFFSETS_TOPIC, TopicPartition
from tidelog.records import decode_batch, read_header
from tidelog.simulation import history_check
from tidelog.simulation import replica_watch as watch
from tidelog.simulation.history import History
from tidelog.simulation.nodes import DATA
from tidelog.simulation.replicated import EpochClient
from tidelog.simulation.world import Violation
from tidelog.wire.names import partition_for


def plant_rot_taken_for_a_torn_tail(patch: pytest.MonkeyPatch) -> None:
    """11: whatever does not check out at a start is cut, and nobody is told."""

    def trusting(*arguments: Any, **settings: Any) -> LogState:
        silently = {**settings, "durable_mark": 0, "before_cut": lambda end, size: None}
        found = open_log(*arguments, **silently)
        return replace(found, discarded_bytes=0)

    patch.setattr("tidelog.replication.replicas.open_log", trusting)


def tell_rot(*, checkpoint_ms: int = 100, starts: int = 1) -> None:
    """The last in sync dies and rots; it comes back first, then one that has everything."""
    with a_stage(checkpoint_ms=checkpoint_ms) as stage:
        world = stage.world
        for _ in range(10):
            stage.commit()
        world.run(1)
        first, second, last = stage.nodes
        for node in (first, second):
            world.crash(node)
            stage.run_until(partial(_has_left, stage, node))
        assert stage.state.in_sync == {last}
        world.crash(last)
        world.flip_bits(last, 200, inside=f"{PLACE}")

        for _ in range(starts):
            world.crash(last)
            world.restart(last)
            world.run(3)
        world.restart(first)
        world.run(3)
        world.restart(second)

        world.run_until(lambda: stage.state.in_sync == set(stage.nodes), SECONDS_MAX)
        assert stage.has(second, 10)


def _has_left(stage: Stage, node: int) -> bool:
    return node not in stage.state.in_sync


def test_rot_is_not_taken_for_a_torn_tail(monkeypatch):
    tell_rot()

    plant_rot_taken_for_a_torn_tail(monkeypatch)

    with pytest.raises(Violation) as found:
        tell_rot()
    assert found.value.name == watch.JOINED


def plant_cuts_forgotten_by_the_next_start(patch: pytest.MonkeyPatch) -> None:
    """11: that bytes were discarded is known to the process that did it, and to no later one."""
    patch.setattr(DataDirectory, "note_cut", _forget_cut)


def _forget_cut(self: DataDirectory, partition: TopicPartition, end: int, size: int) -> None:
    self.cuts.places[partition] = end


def test_a_second_start_does_not_forget_what_the_first_has_cut(monkeypatch):
    tell_rot(checkpoint_ms=60_000, starts=2)

    plant_cuts_forgotten_by_the_next_start(monkeypatch)

    with pytest.raises(Violation) as found:
        tell_rot(checkpoint_ms=60_000, starts=2)
    assert found.value.name == watch.JOINED


def test_the_last_in_sync_knows_what_it_has_cut_though_nobody_lets_it_lead(monkeypatch):
    plant_cuts_forgotten_by_the_next_start(monkeypatch)
    monkeypatch.setattr(elections, "choose", lambda partition, electorate: None)

    with pytest.raises(Violation) as found:
        tell_rot(checkpoint_ms=60_000, starts=2)
    assert found.value.name == watch.JOINED


@pytest.mark.parametrize(("torn", "may_lead"), [(60, True), (61, False)])
def test_who_is_eligible_leads_when_the_last_in_sync_rots_unless_it_may_have_cut_a_batch(torn, may_lead):
    with a_stage(checkpoint_ms=60_000) as stage:
        world = stage.world
        for _ in range(10):
            stage.commit()
        first, second, last = stage.nodes
        for node in (first, second):
            world.crash(node)
            stage.run_until(partial(_has_left, stage, node))
        assert (set(stage.state.in_sync), set(stage.state.eligible)) == ({last}, {second})
        world.stop(last)  # its mark is that of its end
        world.run(1)
        world.flip_bits(last, 200, inside=f"{PLACE}")
        machine = world.machines[second]
        [path] = [path for path in machine.files() if path.match(f"{PLACE}/*.log")]
        file = machine.disk.open(path)
        file.write(file.size(), [b"t" * torn])
        file.datasync()

        for node in (last, second):
            world.restart(node)
        world.run(10)

        assert stage.state.leader == (second if may_lead else NO_NODE)


@pytest.mark.parametrize("torn", ["as much as it reads again", "more"])
def test_who_may_have_cut_a_batch_leads_once_it_has_read_as_much_again(torn):
    """The last in sync rots, where nothing is committed, while it feeds the eligible one."""
    settings: dict[str, Any] = {"checkpoint_ms": 60_000, "topic_defaults": TopicConfig(segment_bytes=650)}
    with a_stage(**settings) as stage:
        world = stage.world
        for _ in range(6):
            stage.commit()
        first, second, last = stage.nodes
        for node in (first, second):
            world.crash(node)
            stage.run_until(partial(_has_left, stage, node))
        assert (set(stage.state.in_sync), set(stage.state.eligible)) == ({last}, {second})
        for _ in range(6):
            stage.run_until(stage.send(last, acks=1).done)
        stage.run_until(lambda: stage.has(last, 12))
        world.crash(last)
        path = Path(DATA) / str(PLACE) / "00000000000000000000.log"
        rotten, cut = world.machines[last], world.machines[second]
        size = read_header(read_file(rotten.disk, path)).size
        rotten.is_damaged = True  # its log will end before what it had
        rotten.disk.flip_bit(path, 8 * size + 65, 1)
        file = cut.disk.open(path)
        file.write(file.size(), [b"t" * (2 * size + (torn == "more"))])
        file.datasync()

        for node in (last, second):
            world.restart(node)
        world.run(10)

        assert stage.state.leader == (NO_NODE if torn == "more" else second)
        assert stage.has(second, 8)


def test_a_controller_that_has_just_begun_lets_no_damaged_replica_lead():
    """The last in sync is damaged, and waits for one that is away; all voters begin again."""
    with a_stage(checkpoint_ms=100) as stage:
        world = stage.world
        for _ in range(10):
            stage.commit()
        world.run(1)
        first, second, last = stage.nodes
        voters = [node for node in (1, 2, 3) if node not in (second, last)]
        for node in (first, second):
            world.crash(node)
            stage.run_until(partial(_has_left, stage, node))
        world.crash(last)
        world.flip_bits(last, 200, inside=f"{PLACE}")
        for node in (last, first):
            world.restart(node)
        world.run(4)
        assert (stage.state.leader, set(stage.state.in_sync)) == (NO_NODE, {last})

        for node in voters:
            world.crash(node)
        world.run(0.3)
        for node in voters:
            world.restart(node)
        world.run(4)

        assert (stage.state.leader, set(stage.state.in_sync)) == (NO_NODE, {last})
        world.restart(second)
        world.run_until(lambda: stage.state.in_sync == set(stage.nodes), SECONDS_MAX)
        assert stage.has(second, 10)


def plant_groups_half_loaded(patch: pytest.MonkeyPatch) -> None:
    """14: a coordinator answers before it has read the log of its groups."""

    def read_nothing(self: GroupsDriver, shard: Shard, *batch: object) -> None:
        pass

    patch.setattr(GroupsDriver, "_replay_batch", read_nothing)


def tell_a_coordinator_that_moves() -> History:
    """A group commits, and asks the next coordinator where it was."""
    told = History()
    with a_stage() as stage:
        stage.commit(10)
        group = _group_elsewhere(stage)
        for offset in (4, 9):
            writing = told.begin_commit("member", group, {str(PLACE): offset})
            stage.world.do(_commit(stage, group, offset))
            writing.ok()
        stage.world.crash(_coordinator(stage, group))
        looking = told.begin_commit("member", group)
        looking.ok({str(PLACE): stage.world.do(_committed(stage, group))})
    return told


def _coordinator(stage: Stage, group: str) -> int:
    topic = stage.image.topics[OFFSETS_TOPIC]
    return int(topic.partitions[partition_for(group, len(topic.partitions))].leader)


def _group_elsewhere(stage: Stage) -> str:
    """A group that the cluster's controller does not coordinate."""
    stage.world.do(_commit(stage, "first", 1))
    names = (f"group-{number}" for number in range(1000))
    return next(name for name in names if _coordinator(stage, name) != stage.controller)


async def _commit(stage: Stage, group: str, offset: int) -> None:
    async with stage.client(AdminClient, stage.controller) as client:
        await client.commit_offsets(group, {PLACE: offset})


async def _committed(stage: Stage, group: str) -> int:
    async with stage.client(AdminClient, stage.controller) as client:
        found = (await client.group_offsets(group)).get(PLACE)
        return -1 if found is None else int(found.offset)


def test_a_coordinator_that_answers_too_early_is_found(monkeypatch):
    assert history_check.check(tell_a_coordinator_that_moves()) == []

    plant_groups_half_loaded(monkeypatch)

    found = history_check.check(tell_a_coordinator_that_moves())
    assert [anomaly.rule for anomaly in found] == [history_check.GROUP_REGRESSED]


def plant_reads_that_nobody_checks(patch: pytest.MonkeyPatch) -> None:
    """11: what consumers are given is what lies there, or what lies behind it."""

    def perform(self: ColdRead, disk: Disk, *, has_gaps: bool) -> Bytes:
        return self.perform(disk)

    patch.setattr(ColdRead, "perform_checked", perform)


def tell_a_reader_of_rot() -> list[int]:
    """The leader's disk rots, and nobody but a consumer reads it; the offsets that it gets."""
    with a_stage(topic_defaults=TopicConfig(segment_bytes=300)) as stage:
        for _ in range(12):
            stage.commit()
        leader = stage.nodes[0]
        stage.world.crash(leader)
        stage.run_until(lambda: leader not in stage.state.in_sync)
        stage.world.restart(leader)
        stage.run_until(lambda: stage.leads(leader))  # with nothing in memory
        stage.world.flip_bits(leader, 100, inside=f"{PLACE}")
        return stage.world.do(_read_everything(stage, 12))


async def _read_everything(stage: Stage, end: int) -> list[int]:
    found: list[int] = []
    async with stage.client(EpochClient, stage.controller) as client:
        for _ in range(20):  # it is patient with errors, each time for some seconds
            try:
                polled = await client.read(PLACE, found[-1] + 1 if found else 0)
                for batch in polled.batches:
                    found += [record.offset for record in decode_batch(batch)]
            except TidelogError:
                await asyncio.sleep(0.5)
            if found and found[-1] == end - 1:
                break
    return found


def test_a_consumer_is_given_every_record_though_its_leader_rots(monkeypatch):
    assert tell_a_reader_of_rot() == list(range(12))

    plant_reads_that_nobody_checks(monkeypatch)

    assert tell_a_reader_of_rot() != list(range(12))
