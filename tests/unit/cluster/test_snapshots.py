import random

from tidelog.cluster.snapshots import Snapshots, checked, file_name, parse_name
from tidelog.host import Path
from tidelog.raft.messages import SnapshotId
from tidelog.simulation.disk import SimulatedCrash, SimulatedDisk

DIRECTORY = Path("/data/__cluster_metadata-0")


def stage(seed: int = 0) -> tuple[SimulatedDisk, Snapshots]:
    disk = SimulatedDisk(random.Random(seed))
    disk.make_directory(DIRECTORY)
    disk.sync_everything(DIRECTORY)
    return disk, Snapshots(disk, DIRECTORY)


def test_the_newest_is_found_by_its_offset():
    _, snapshots = stage()
    snapshots.write(SnapshotId(9, 1), b"older")
    snapshots.write(SnapshotId(10, 1), b"newer")

    assert snapshots.newest() == (SnapshotId(10, 1), b"newer")


def test_a_rotten_one_counts_for_nothing():
    disk, snapshots = stage()
    snapshots.write(SnapshotId(9, 1), b"older")
    snapshots.write(SnapshotId(10, 1), b"newer")

    disk.flip_bit(DIRECTORY / file_name(SnapshotId(10, 1)), 5, 3)

    assert snapshots.newest() == (SnapshotId(9, 1), b"older")


def test_a_peer_gets_it_in_pieces_and_keeps_it_as_it_was():
    _, snapshots = stage()
    snapshots.write(SnapshotId(10, 2), b"0123456789")
    content, size = b"", 1
    while len(content) < size:
        size, piece = snapshots.read(SnapshotId(10, 2), len(content), 3)
        content += piece

    _, others = stage(1)
    others.keep(SnapshotId(10, 2), content)

    assert checked(content) == b"0123456789"
    assert others.newest() == (SnapshotId(10, 2), b"0123456789")


def test_one_that_is_not_here_has_no_size():
    _, snapshots = stage()

    assert snapshots.read(SnapshotId(1, 1), 0, 100) == (0, b"")


def test_a_crash_leaves_it_whole_or_not_at_all():
    for seed in range(60):
        disk, snapshots = stage(seed)
        snapshots.write(SnapshotId(1, 1), b"old")
        disk.crash_after(1 + seed % 8)
        try:
            snapshots.write(SnapshotId(2, 1), b"new" * 500)
        except SimulatedCrash:
            pass
        disk.crash()

        found = snapshots.newest()

        assert found in ((SnapshotId(1, 1), b"old"), (SnapshotId(2, 1), b"new" * 500)), seed


def test_older_ones_are_removed():
    _, snapshots = stage()
    for end in (1, 2, 3):
        snapshots.write(SnapshotId(end, 1), b"")

    snapshots.remove_before(SnapshotId(3, 1))

    assert snapshots.all() == [SnapshotId(3, 1)]


def test_names_that_are_not_ours_are_passed_over():
    for name in ("00000000000000000009.log", "9-1.checkpoint", "x-y.checkpoint", "quorum-state"):
        assert parse_name(name) is None
    assert parse_name(file_name(SnapshotId(7, 3))) == SnapshotId(7, 3)
