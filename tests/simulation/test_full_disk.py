"""Disks that are full: what can be deleted is deleted, and what fits elsewhere is written."""

import errno
from collections.abc import Callable
from typing import Any

import pytest

from tests.simulation.test_catchup import TOPIC, Story
from tidelog.client.admin import ConfigChange, Resource
from tidelog.config import TopicConfig
from tidelog.controller.records import NodeConfigChanged
from tidelog.faces.http.replication import metrics_text
from tidelog.host import Path
from tidelog.operators.brokers import brokers_of
from tidelog.simulation.disk import SimulatedDisk
from tidelog.simulation.swarm import make_plan, play

NODES = (1, 2, 3)
SMALL_SEGMENTS = TopicConfig(segment_bytes=20_000)


def filled(**settings: Any) -> Story:
    """One partition of 20 segments, ten records each."""
    story = Story(7, topic_defaults=SMALL_SEGMENTS, **settings)
    story.fill(200)
    story.world.run(seconds=6)  # checkpoints note what is durable
    return story


def log_files(story: Story, node: int, topic: str = TOPIC) -> list[str]:
    disk = story.world.machines[node].disk
    root = Path(story.world.node(node).broker.config.data)
    return [
        file
        for name in disk.list(root)
        if name.startswith(f"{topic}-")
        for file in disk.list(root / name)
        if file.endswith(".log")
    ]


def refuse(disk: SimulatedDisk, *operations: str) -> Callable[[], None]:
    """Let the disk have no room for `operations` on files of partitions; a call ends that."""
    before = disk.on_operation

    def on_operation(operation: str, path: Path) -> None:
        if before is not None:
            before(operation, path)
        if operation in operations and TOPIC in str(path):
            raise OSError(errno.ENOSPC, "No space left on device", str(path))

    def end() -> None:
        disk.on_operation = before

    disk.on_operation = on_operation
    return end


def test_deleting_records_empties_full_disks():
    with filled() as story:
        for node in NODES:
            story.world.fill_disk(node)

        story.delete_before(150)

        story.until(lambda: all(len(log_files(story, n)) == 5 for n in NODES))
        assert [story.replica(n).log.start for n in NODES] == [150] * 3
        disk = story.world.machines[story.first].disk
        assert disk.capacity_bytes is not None and disk.used_bytes < disk.capacity_bytes / 2


def test_retention_empties_full_disks():
    with filled(retention_check_ms=500) as story:
        for node in NODES:
            story.world.fill_disk(node, left_bytes=1000)

        changes = [ConfigChange(name="retention.bytes", value="30000")]
        story.do(lambda client: client.alter_configs(Resource.TOPIC, TOPIC, changes))

        story.until(lambda: all(len(log_files(story, n)) <= 4 for n in NODES))
        assert len({story.replica(n).log.start for n in NODES}) == 1


@pytest.mark.parametrize("operation", ["remove", "sync_directory"])
def test_a_removal_that_failed_is_tried_again(operation):
    with filled() as story:
        disk = story.world.machines[story.first].disk
        end = refuse(disk, operation)
        story.delete_before(150)
        story.world.run(seconds=12)
        assert story.replica(story.first).log.gone

        end()

        story.until(lambda: len(log_files(story, story.first)) == 5)
        story.until(lambda: not story.replica(story.first).log.gone)


def test_files_that_a_reopened_log_finds_below_its_start_are_removed():
    with filled() as story:
        machine = story.world.machines[story.first]
        end = refuse(machine.disk, "remove")
        story.delete_before(150)
        story.world.run(seconds=6)
        story.world.crash(story.first)
        end()
        story.world.restart(story.first)
        story.until(lambda: story.is_whole(*NODES))

        story.delete_before(155)

        story.until(lambda: len(log_files(story, story.first)) == 5)


@pytest.mark.parametrize("operations", [("rename",), ("remove", "remove_directory")])
def test_a_topic_is_deleted_where_a_full_disk_refuses_to_change_names(operations):
    with filled() as story:
        end = refuse(story.world.machines[story.away].disk, *operations)
        story.do(lambda client: client.delete_topic(TOPIC))
        story.world.run(seconds=12)
        assert bool(log_files(story, story.away)) == ("remove" in operations)

        end()

        story.until(lambda: not log_files(story, story.away))
        story.do(story._create, partitions=1)
        story.fill(10)
        story.until(lambda: story.is_whole(*NODES))


# One full disk of three.


def image_of(story: Story, node: int) -> Any:
    return story.world.node(node).broker.image.topics[TOPIC].partitions[0]


def controller_of(story: Story) -> int:
    leader: int = story.world.node(story.other).broker.member.quorum.raft.leader
    return leader


def acknowledged_within(story: Story, seconds: float, *, patience: float = 4.0) -> tuple[int, int]:
    """How many writes of one client were acknowledged in time, and how many were not."""
    done = failed = 0
    world, until = story.world, story.world.now + seconds
    while world.now < until:
        begun = world.now
        story.fill(10)
        if world.now - begun <= patience:
            done += 1
        else:
            failed += 1
        world.run(seconds=0.5)
    return done, failed


@pytest.mark.parametrize("lag_ms", [2000, 30_000])
@pytest.mark.parametrize("role", ["leader", "follower", "controller"])
def test_one_full_disk_of_three_does_not_stop_writes(role, lag_ms):
    with filled(replica_lag_time_max_ms=lag_ms) as story:
        full = story.first if role == "leader" else story.away
        if role == "controller":
            full = controller_of(story)
        story.world.fill_disk(full)

        done, failed = acknowledged_within(story, 30)

        assert failed == 0 and done > 20
        some = next(n for n in NODES if n != full)
        assert image_of(story, some).leader != full
        assert full not in image_of(story, some).in_sync


def test_leadership_returns_to_the_preferred_replica_once_its_disk_has_room():
    with filled() as story:
        full = story.first
        story.world.fill_disk(full)
        acknowledged_within(story, 10)
        assert image_of(story, story.other).leader != full

        story.world.heal()

        story.until(lambda: image_of(story, story.other).leader == full)
        story.until(lambda: story.is_whole(*NODES))
        assert acknowledged_within(story, 5)[1] == 0


def test_a_full_disk_is_told_by_the_node_and_by_the_controller():
    with filled() as story:
        broker = story.world.node(story.first).broker
        story.world.fill_disk(story.first)
        acknowledged_within(story, 2)

        shown = brokers_of(story.world.node(controller_of(story)).broker)
        assert [one.id for one in shown if one.disk_full] == [story.first]
        assert "tidelog_disk_full 1" in story.world.do(metrics_text(broker)).splitlines()

        story.world.heal()
        story.until(lambda: not broker.room.is_full)
        assert "tidelog_disk_full 0" in story.world.do(metrics_text(broker)).splitlines()


def test_want_of_descriptors_is_told_apart_from_a_full_disk():
    with filled() as story:
        broker = story.world.node(story.first).broker
        disk = story.world.machines[story.first].disk
        disk.descriptors_max = disk.open_files
        acknowledged_within(story, 2)

        shown = brokers_of(story.world.node(controller_of(story)).broker)
        assert [one.id for one in shown if one.out_of_files] == [story.first]
        assert [one.id for one in shown if one.disk_full] == []
        lines = story.world.do(metrics_text(broker)).splitlines()
        assert {"tidelog_disk_full 0", "tidelog_out_of_files 1"} <= set(lines)

        disk.descriptors_max = None
        story.until(lambda: not broker.room.is_short)


def test_three_full_disks_take_writes_again_once_there_is_room():
    with filled() as story:
        for node in NODES:
            story.world.fill_disk(node, seconds=60)
        story.world.run(seconds=61)

        story.fill(10)

        story.until(lambda: story.is_whole(*NODES))


def test_a_controller_without_room_survives_what_others_propose():
    with filled() as story:
        full = controller_of(story)
        other = next(node for node in NODES if node != full)
        there = story.world.node(other).broker.metadata
        story.world.fill_disk(full)

        for number in range(5):
            change = NodeConfigChanged(node=other, config={"log.retention.ms": str(number)})
            story.world.do(there.change(lambda _, change=change: change))

        assert there.image.node_configs[other] == {"log.retention.ms": "4"}
        assert story.world.is_up(full)
        assert story.world.machines[full].lives == 1


@pytest.mark.slow
def test_a_metadata_log_that_is_cut_before_it_is_opened_again_leaves_no_gap():
    kinds = ["fail_looks", "crash", "lose_power", "fill_disks"]

    outcome = play(make_plan(9460005, kinds=kinds, story="cluster"))

    assert outcome.violation is None
