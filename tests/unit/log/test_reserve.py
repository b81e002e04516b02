import errno
import random

import pytest

from tidelog.host import Path, read_file, replace_file
from tidelog.log.reserve import FILE_NAME, PIECES, Reserve
from tidelog.simulation.disk import SimulatedDisk

ROOT = Path("/data")
SIZE = 8000


@pytest.fixture
def disk() -> SimulatedDisk:
    disk = SimulatedDisk(random.Random(0))
    disk.make_directory(ROOT)
    return disk


def held(disk: SimulatedDisk) -> int:
    return len(read_file(disk, ROOT / FILE_NAME))


def test_a_write_that_finds_no_room_gets_a_piece_of_the_reserve(disk):
    reserve = Reserve(disk, ROOT, SIZE)
    reserve.fill()
    disk.capacity_bytes = disk.used_bytes

    reserve.spend(lambda: replace_file(disk, ROOT / "note", b"kept"))

    assert read_file(disk, ROOT / "note") == b"kept"
    assert held(disk) == SIZE - SIZE // PIECES
    assert not reserve.is_whole


def test_a_large_write_gets_as_many_pieces_as_it_needs(disk):
    reserve = Reserve(disk, ROOT, SIZE)
    reserve.fill()
    disk.capacity_bytes = disk.used_bytes

    reserve.spend(lambda: replace_file(disk, ROOT / "note", b"x" * 5000))

    assert len(read_file(disk, ROOT / "note")) == 5000


def test_a_reserve_that_is_spent_lets_the_write_fail(disk):
    reserve = Reserve(disk, ROOT, SIZE)
    reserve.fill()
    disk.capacity_bytes = disk.used_bytes

    with pytest.raises(OSError) as refused:
        reserve.spend(lambda: replace_file(disk, ROOT / "note", b"x" * 2 * SIZE))

    assert refused.value.errno == errno.ENOSPC


def test_an_error_other_than_a_full_disk_costs_nothing_of_the_reserve(disk):
    reserve = Reserve(disk, ROOT, SIZE)
    reserve.fill()
    disk.fail_next_write(errno.EIO)

    with pytest.raises(OSError):
        reserve.spend(lambda: replace_file(disk, ROOT / "note", b"kept"))

    assert reserve.is_whole


def test_want_of_descriptors_costs_nothing_of_the_reserve(disk):
    reserve = Reserve(disk, ROOT, SIZE)
    reserve.fill()
    disk.descriptors_max = disk.open_files

    with pytest.raises(OSError) as refused:
        reserve.spend(lambda: replace_file(disk, ROOT / "note", b"kept"))

    assert refused.value.errno == errno.EMFILE
    assert reserve.is_whole


def test_what_was_spent_is_taken_again_once_there_is_room(disk):
    reserve = Reserve(disk, ROOT, SIZE)
    reserve.fill()
    disk.capacity_bytes = disk.used_bytes
    reserve.spend(lambda: replace_file(disk, ROOT / "note", b"kept"))

    reserve.fill()
    assert held(disk) < SIZE, "only as much as the disk has"
    disk.capacity_bytes = None
    reserve.fill()

    assert reserve.is_whole
    assert held(disk) == SIZE


def test_a_smaller_reserve_gives_the_rest_back_and_none_goes_away(disk):
    Reserve(disk, ROOT, SIZE).fill()

    Reserve(disk, ROOT, 100).fill()
    assert held(disk) == 100

    Reserve(disk, ROOT, 0).fill()
    assert not disk.exists(ROOT / FILE_NAME)
