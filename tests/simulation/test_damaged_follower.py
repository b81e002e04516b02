"""A follower that is damaged leaves the in-sync set before it discards anything, and stays out."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.simulation.test_catchup import TOPIC, Story
from tests.simulation.test_planted_replication import a_stage
from tidelog.config import TopicConfig
from tidelog.controller import in_sync
from tidelog.host import read_file
from tidelog.log.log import Log
from tidelog.log.segment import file_stem
from tidelog.model import NodeId, TopicPartition
from tidelog.partition.driver import Partition
from tidelog.partition.follower import Follower
from tidelog.partition.leader import Leader
from tidelog.replication.log_changes import LogChanges
from tidelog.simulation.replica_watch import INTACT, JOINED, ReplicaWatch
from tidelog.simulation.world import Violation

LEADER, DAMAGED, OTHER = 4, 1, 2
"""Nodes 1 to 3 vote; so the leader has heard nothing of what replicas report."""
COMMITTED = 200


class Damage:
    """Three replicas, of which one follower finds that a sealed segment of its is rotten."""

    def __init__(self, story: Story) -> None:
        self.story = story
        self.world = story.world
        ReplicaWatch(self.world)
        target = (LEADER, DAMAGED, OTHER)
        place = TopicPartition(TOPIC, 0)
        story.do(lambda client: client.alter_reassignments({place: target}))
        story.until(lambda: self.state.replicas == target and self.state.leader == LEADER)
        story.until(lambda: self.state.in_sync == set(target))
        story.fill(COMMITTED)
        self.world.run(1)

    @property
    def state(self) -> Any:
        return self.world.node(3).broker.image.topics[TOPIC].partitions[0]

    @property
    def follower(self) -> Partition:
        return self.story.replica(DAMAGED)

    def rot(self) -> None:
        """Damage a sealed segment of the follower, which cannot be mended where it lies."""
        machine, log = self.world.machines[DAMAGED], self.follower.log
        machine.is_damaged = True
        segment = log.segments[1]
        file = machine.disk.open(segment.path())
        (byte,) = file.read(200, 1)
        file.write(200, [bytes([byte ^ 1])])
        file.datasync()
        segment.file = None
        assert machine.process is not None
        self.world.loop.call_soon(
            self.world.node(DAMAGED).broker.replication.damage.declare,
            self.follower,
            log,
            segment.base,
            context=machine.process.context,
        )
        self.story.until(lambda: self.follower.log.damaged_at is not None)


@contextmanager
def a_rotten_follower() -> Iterator[Damage]:
    with Story(11, nodes=5, topic_defaults=TopicConfig(segment_bytes=20_000)) as story:
        yield Damage(story)


def tell_of_damage() -> None:
    """The follower's disk is slow, too: that it is out is known long before it can be cut.

    If it is let in again meanwhile, the disk gets on at that moment.
    """
    with a_rotten_follower() as damage:
        damage.rot()
        damage.world.stall_disk(DAMAGED, 30)
        damage.story.until(lambda: DAMAGED not in damage.state.in_sync)
        epoch = damage.state.partition_epoch
        for _ in range(150):
            damage.world.run(0.02)
            if DAMAGED in damage.state.in_sync:
                break
        damage.world.heal()

        damage.story.until(lambda: damage.follower.log.damaged_at is None)
        damage.story.until(lambda: DAMAGED in damage.state.in_sync)
        damage.world.run(0.1)

        assert damage.follower.log.end == COMMITTED
        assert damage.state.partition_epoch == epoch + 1, "it came back once, when it was whole"


def plant_joins_that_leaders_judge(patch: pytest.MonkeyPatch) -> None:
    """Nobody who decides has heard that the follower is damaged, and the leader remembers."""

    async def leave_sets(self: LogChanges, partition: Partition, follower: Follower) -> None:
        while True:
            known = self._metadata.image.topics[TOPIC].partitions[0]
            if self._node_id not in known.in_sync | known.eligible:
                return
            await self._metadata.reached(self._metadata.applied + 1)

    def forget(self: Leader, node: NodeId) -> bool:
        return True

    patch.setattr(in_sync, "_check_health", lambda *_: None)
    patch.setattr(Leader, "forget", forget)
    patch.setattr(LogChanges, "_leave_sets", leave_sets)


def test_a_damaged_follower_is_not_in_sync_before_it_is_whole_again(monkeypatch):
    tell_of_damage()

    plant_joins_that_leaders_judge(monkeypatch)

    with pytest.raises(Violation) as found:
        tell_of_damage()
    assert found.value.name == JOINED


def test_nothing_is_discarded_before_the_leader_has_forgotten_what_the_follower_told():
    """It is out for another reason, has told all that it holds, and then finds the damage."""
    with a_rotten_follower() as damage:
        world = damage.world
        world.pause(DAMAGED)
        damage.story.until(lambda: DAMAGED not in damage.state.in_sync)
        world.cut(LEADER, 1)
        world.cut(LEADER, 2)
        world.cut(LEADER, 3)  # so that the leader's proposals are not answered
        world.resume(DAMAGED)
        damage.rot()
        world.run(1)
        assert damage.follower.log.damaged_at is not None
        assert damage.follower.log.end == COMMITTED, "its leader did not say that it may"

        world.heal()
        damage.story.until(lambda: damage.follower.log.damaged_at is None)
        damage.story.until(lambda: DAMAGED in damage.state.in_sync)

        assert damage.follower.log.end == COMMITTED


@pytest.mark.parametrize("byte", [7, 11, 15, 20, 65])  # offset, length, epoch, checksum, records
def test_a_deposed_leader_that_is_cut_at_a_rotten_segment_reads_it_again(byte, monkeypatch):
    """The cut makes a sealed segment, which rotted while the node was down, the last one."""
    found: list[tuple[int, int]] = []
    note_damage = Log.note_damage

    def noted(log: Log, offset: int) -> None:
        found.append((offset, log.end))
        note_damage(log, offset)

    monkeypatch.setattr(Log, "note_damage", noted)
    settings: dict[str, Any] = {"topic_defaults": TopicConfig(segment_bytes=60), "scrub_bytes_per_second": 0}
    with a_stage(**settings) as stage:
        world, (first, second, third) = stage.world, stage.nodes
        for _ in range(3):
            stage.commit()
        stage.part(first, second, third)
        stage.send(first)
        stage.run_until(lambda: stage.has(first, 4))
        world.crash(first)
        stage.run_until(lambda: stage.leads(second) or stage.leads(third))
        world.heal()
        disk = world.machines[first].disk
        (sealed,) = [p for p in world.machines[first].files() if p.name == f"{file_stem(2)}.log"]
        sound = read_file(disk, sealed)
        disk.flip_bit(sealed, byte, 0)

        world.restart(first)
        stage.run_until(lambda: world.is_up(first) and stage.partition(first))
        replica = stage.partition(first)
        assert replica is not None
        stage.run_until(lambda: found)
        assert found == [(2, 3)], "nothing goes that somebody counts on"
        stage.run_until(lambda: first in stage.state.in_sync and stage.has(first, 3))

        assert replica.log.damaged_at is None
        assert read_file(disk, sealed) == sound


def test_damage_of_all_who_may_lead_is_a_loss():
    with a_stage() as stage:
        stage.commit()
        stage.world.run(1)
        found = [stage.partition(node) for node in stage.nodes]
        first, *others = [partition for partition in found if partition is not None]
        assert len(others) == 2
        for partition in others:
            partition.log.note_damage(0)
        stage.world.run(0.001)
        assert first.log.damaged_at is None

        first.log.note_damage(0)
        with pytest.raises(Violation, match=INTACT):
            stage.world.run(1)
