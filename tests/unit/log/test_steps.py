import errno

import pytest

from tests.unit.log.logs import DIRECTORY, new_disk
from tidelog.host import read_file
from tidelog.log.segment import Segment
from tidelog.log.steps import Create, DiskFull, Seal, Step, Write, Written, perform


def squeeze(disk, room: int) -> None:
    disk.capacity_bytes = 1 << 40
    disk.capacity_bytes -= disk.free_bytes(DIRECTORY) - room


def test_steps_are_performed_in_order_and_the_last_write_is_the_end():
    disk = new_disk()
    first, second = Segment(DIRECTORY, 0), Segment(DIRECTORY, 5)

    outcome = perform(
        disk,
        [
            Create(first),
            Write(first, 0, [b"one", b"two"], 3),
            Write(first, 6, [b"three"], 5),
            Seal(first, ((first.path(".index"), b"index"),)),
            Create(second),
            Write(second, 0, [b"four"], 6),
        ],
        0,
    )

    assert outcome == Written(6)
    assert read_file(disk, first.path()) == b"onetwothree"
    assert read_file(disk, first.path(".index")) == b"index"
    assert read_file(disk, second.path()) == b"four"


def test_without_a_write_the_end_is_what_it_was():
    assert perform(new_disk(), [Create(Segment(DIRECTORY, 7))], 7) == Written(7)


def test_a_new_segment_begins_empty_whatever_a_crash_has_left():
    disk = new_disk()
    segment = Segment(DIRECTORY, 0)
    disk.open(segment.path(), create=True).write(0, [b"left over"])

    perform(disk, [Create(segment)], 0)

    assert read_file(disk, segment.path()) == b""


def test_a_sealed_segment_and_what_lies_beside_it_are_durable():
    for seed in range(30):
        disk = new_disk(seed)
        segment = Segment(DIRECTORY, 0)
        steps: list[Step] = [
            Create(segment),
            Write(segment, 0, [b"bytes" * 300], 9),
            Seal(segment, ((segment.path(".index"), b"index"), (segment.path(".x"), b"more"))),
        ]
        perform(disk, steps, 0)

        disk.crash()

        assert read_file(disk, segment.path()) == b"bytes" * 300
        assert read_file(disk, segment.path(".index")) == b"index"
        assert read_file(disk, segment.path(".x")) == b"more"


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_what_does_not_fit_is_undone_and_nothing_after_it_is_tried(code):
    disk = new_disk()
    segment = Segment(DIRECTORY, 0)
    perform(disk, [Create(segment), Write(segment, 0, [b"kept"], 1)], 0)
    disk.fail_writes(code, times=1)

    outcome = perform(disk, [Write(segment, 4, [b"lost"], 2), Write(segment, 8, [b"never tried"], 3)], 1)

    assert isinstance(outcome, DiskFull)
    assert (outcome.end, outcome.error.errno) == (1, code)
    assert read_file(disk, segment.path()) == b"kept"


def test_any_other_failure_is_raised():
    disk = new_disk()
    segment = Segment(DIRECTORY, 0)
    disk.fail_writes(errno.EIO)

    with pytest.raises(OSError, match="Input/output error"):
        perform(disk, [Create(segment), Write(segment, 0, [b"lost"], 1)], 0)


def test_no_segment_is_made_if_a_sync_failed_elsewhere_meanwhile():
    disk = new_disk()
    first, second = Segment(DIRECTORY, 0), Segment(DIRECTORY, 1)
    perform(disk, [Create(first), Write(first, 0, [b"kept"], 1)], 0)

    def check() -> None:
        raise OSError(errno.EIO, "a sync failed elsewhere")

    with pytest.raises(OSError, match="elsewhere"):
        perform(disk, [Seal(first, ()), Create(second)], 1, check)

    assert not disk.exists(second.path())


def test_a_segment_that_cannot_be_sealed_is_not_followed_by_another():
    disk = new_disk()
    first, second = Segment(DIRECTORY, 0), Segment(DIRECTORY, 1)
    perform(disk, [Create(first), Write(first, 0, [b"kept"], 1)], 0)
    squeeze(disk, 3)

    outcome = perform(disk, [Seal(first, ((first.path(".index"), b"index"),)), Create(second)], 1)

    assert isinstance(outcome, DiskFull)
    assert outcome.end == 1
    assert not disk.exists(second.path())
    assert not disk.exists(first.path(".index"))
