"""What a log has from an offset on, and what its reader is told to do."""

import pytest

from tests.unit.log.logs import MIB, Rig, cold_of
from tidelog.errors import OffsetNotAvailable


def old_batches(count: int) -> Rig:
    """Batches that memory has let go, in one file."""
    rig = Rig(tail_bytes=0, index_interval_bytes=0)
    for _ in range(count):
        rig.store(2)
    rig.budget.evict()
    return rig


def test_one_buffer_is_handed_over_as_it_is():
    rig = Rig()
    rig.append(3)

    read = rig.log.read(0, MIB, rig.log.end)

    assert read.cold is None and read.load(rig.disk) is read.buffers[0]


def test_what_is_loaded_may_be_rotten_behind_its_first_batch_and_what_is_sound_is_not():
    rig = old_batches(3)
    size = len(rig.read(0, 1))
    read = rig.log.read(0, MIB, 6)
    whole = bytes(read.load(rig.disk))
    assert read.load_sound(rig.disk) == whole == read.load_unchecked(rig.disk)

    rig.disk.flip_bit(rig.log.segments[0].path(), 2 * size - 1, 0)

    assert len(read.load(rig.disk)) == 3 * size
    assert read.load_sound(rig.disk) == whole[:size]


def test_a_file_that_has_gone_is_told_as_an_offset_to_look_for_again():
    rig = old_batches(3)
    read = rig.log.read(0, MIB, 6)
    segment = rig.log.segments[0]
    segment.file = None
    rig.disk.remove(segment.path())

    with pytest.raises(OffsetNotAvailable, match="offset 0 has moved or gone"):
        read.load(rig.disk)


def test_a_read_ends_where_the_log_is_damaged():
    rig = old_batches(3)
    rig.log.note_damage(4)

    read = rig.log.read(0, MIB, 6)

    assert read.limit == cold_of(read).limit == 4
