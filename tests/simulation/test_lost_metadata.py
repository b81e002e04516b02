"""Voters whose disks lose metadata that they had synced and acknowledged."""

import re
from collections.abc import Iterator

import pytest

from tests.simulation.test_cluster import SECONDS_MAX, controller, create, knows, make_world
from tidelog.cluster.acknowledged import FILE_NAME, AcknowledgedNote
from tidelog.cluster.quorum_log import QuorumLog
from tidelog.cluster.snapshots import SUFFIX
from tidelog.host import Path, read_file
from tidelog.raft.logview import LogView
from tidelog.simulation.nodes import DATA
from tidelog.simulation.quorum import AGREE, IMAGES, WHOLE
from tidelog.simulation.world import Violation, World

METADATA = Path(DATA) / "__cluster_metadata-0"


@pytest.fixture
def world() -> Iterator[World]:
    with make_world() as world:
        world.start()
        world.run(seconds=1)
        yield world


def lose_tail(world: World, node: int, count: int) -> None:
    """Let the log of a node that is down end earlier, as after writes that landed elsewhere."""
    file = world.machines[node].disk.open(METADATA / "00000000000000000000.log")
    file.truncate(file.size() - count)
    file.datasync()


def is_whole(world: World, node: int) -> bool:
    return bool(world.is_up(node) and world.node(node).broker.member.quorum.raft.log.is_whole)


def rot_newest_note(world: World, node: int) -> None:
    """Let a bit rot in each copy of the newest note of a node that is down."""
    disk, path = world.machines[node].disk, METADATA / FILE_NAME
    numbers = re.findall(rb'"number":(\d+)', read_file(disk, path))
    newest = b'"number":%d,' % max(map(int, numbers))
    for found in re.finditer(newest, read_file(disk, path)):
        disk.flip_bit(path, found.start(), 1)


def tell_story(world: World) -> None:
    """Two of three decide, one of them forgets, and the third, which knows less, is there."""
    leader = controller(world)
    assert leader is not None
    lagging, forgetful = (node for node in (1, 2, 3) if node != leader)
    world.crash(lagging)
    world.run(seconds=1)
    world.do(create(world, "decided", leader))
    world.crash(leader)
    world.crash(forgetful)
    disk = world.machines[forgetful].disk
    size = disk.open(METADATA / "00000000000000000000.log").size()
    lose_tail(world, forgetful, size // 2)
    world.restart(forgetful)
    world.restart(lagging)
    world.run(seconds=20)
    assert controller(world) is None, "only the old leader has all that was decided"
    world.restart(leader)
    for node in (1, 2, 3):
        world.run_until(lambda n=node: knows(world, n, "decided"), SECONDS_MAX)  # type: ignore[misc]
        world.run_until(lambda n=node: is_whole(world, n), SECONDS_MAX)  # type: ignore[misc]


def test_a_voter_that_lost_what_it_acknowledged_elects_nobody_who_lacks_it(world):
    tell_story(world)


def test_a_voter_whose_newest_note_rots_does_not_vote_by_the_one_before(world):
    leader = controller(world)
    assert leader is not None
    lagging, forgetful = (node for node in (1, 2, 3) if node != leader)
    world.run(seconds=6)  # a checkpoint notes what is durable: what rots is damage
    world.cut(leader, lagging)
    world.cut(lagging, leader)
    world.do(create(world, "decided", leader))  # one note later than the one that lags behind
    world.crash(leader)
    world.crash(forgetful)
    world.flip_bits(forgetful, count=40, suffix=".log", inside="__cluster_metadata")
    rot_newest_note(world, forgetful)
    world.heal()
    world.restart(forgetful)
    world.run(seconds=20)
    assert controller(world) is None, "only the old leader has all that was decided"
    world.restart(leader)
    for node in (1, 2, 3):
        world.run_until(lambda n=node: knows(world, n, "decided"), SECONDS_MAX)
        world.run_until(lambda n=node: is_whole(world, n), SECONDS_MAX)


def test_a_voter_that_votes_by_what_is_left_is_found(world, monkeypatch):
    monkeypatch.setattr(LogView, "is_whole", True)
    monkeypatch.setattr(
        LogView, "is_ahead_of", lambda self, last_epoch, end: (self.last_epoch, self.end) > (last_epoch, end)
    )

    with pytest.raises(Violation) as found:
        tell_story(world)

    assert found.value.name in (WHOLE, AGREE, IMAGES)


def test_a_voter_that_lost_metadata_helps_to_elect_who_has_it(world):
    leader = controller(world)
    assert leader is not None
    other, forgetful = (node for node in (1, 2, 3) if node != leader)
    world.do(create(world, "decided", leader))
    world.run_until(lambda: knows(world, other, "decided"), SECONDS_MAX)
    world.run(seconds=1)
    world.crash(forgetful)
    lose_tail(world, forgetful, 500)
    world.crash(leader)  # for good: two are left, and one of them has forgotten

    world.restart(forgetful)

    world.run_until(lambda: controller(world) == other, SECONDS_MAX)
    world.run_until(lambda: is_whole(world, forgetful), SECONDS_MAX)


@pytest.mark.parametrize("suffix", [".log", "quorum-acknowledged"])
def test_a_rotten_voter_fetches_what_it_lacks(world, suffix):
    """Rot below the durable mark, which is damage for certain; and rot in the notes."""
    rotten = next(node for node in (1, 2, 3) if node != controller(world))
    world.run(seconds=6)  # a checkpoint notes what is durable
    world.crash(rotten)
    world.flip_bits(rotten, count=40, suffix=suffix, inside="__cluster_metadata")
    world.do(create(world, "meanwhile", controller(world) or 0))

    world.restart(rotten)

    world.run_until(lambda: knows(world, rotten, "meanwhile"), SECONDS_MAX)
    world.run_until(lambda: is_whole(world, rotten), SECONDS_MAX)


def test_a_voter_without_a_sound_snapshot_begins_anew():
    with make_world(metadata_snapshot_records=10) as world:
        world.start()
        rotten = next(node for node in (1, 2, 3) if node != controller(world))
        for number in range(30):
            world.do(create(world, f"topic-{number}", controller(world) or 0))
        world.run_until(lambda: knows(world, rotten, "topic-29"), SECONDS_MAX)
        world.run(seconds=1)
        world.crash(rotten)
        disk = world.machines[rotten].disk
        for name in disk.list(METADATA):
            if name.endswith(SUFFIX):
                disk.flip_bit(METADATA / name, 20, 1)

        world.restart(rotten)

        world.run_until(lambda: knows(world, rotten, "topic-29"), SECONDS_MAX)
        world.run_until(lambda: is_whole(world, rotten), SECONDS_MAX)


def lead_two_ways(world: World) -> int:
    """Isolate a leader that has appended what the others never heard of; they decide on more."""
    old = controller(world)
    assert old is not None
    for other in {1, 2, 3} - {old}:
        world.cut(old, other)
        world.cut(other, old)
    world.client("story").spawn(create(world, "undecided", old))
    world.run_until(lambda: controller(world) not in (None, old), SECONDS_MAX)
    world.do(create(world, "decided", controller(world) or 0))
    return old


def test_a_log_that_is_cut_is_noted_to_end_there_before(world, monkeypatch):
    """Power may be lost in between, and must not look as if the disk had lost anything."""
    truncate, cuts = QuorumLog.truncate, []

    async def watched(self: QuorumLog, end: int) -> None:
        noted = AcknowledgedNote(self._host.disk, self.path).read()
        assert noted is not None
        cuts.append((noted.end <= end, self.end > end))
        await truncate(self, end)

    monkeypatch.setattr(QuorumLog, "truncate", watched)
    old = lead_two_ways(world)
    world.heal()
    world.run_until(lambda: knows(world, old, "decided"), SECONDS_MAX)

    assert cuts == [(True, True)]


def test_a_voter_that_finds_rot_when_its_log_is_cut_ends_and_a_start_mends_it(world):
    world.run(seconds=6)  # a checkpoint notes what is durable
    old = lead_two_ways(world)
    world.flip_bits(old, count=40, suffix=".log", inside="__cluster_metadata")
    world.heal()
    world.run_until(lambda: not world.machines[old].is_running, SECONDS_MAX)

    world.restart(old)

    world.run_until(lambda: knows(world, old, "decided"), SECONDS_MAX)
    world.run_until(lambda: is_whole(world, old), SECONDS_MAX)
