"""Which rot in a compacted log is healed by the very batch that was there."""

import errno
import os

import pytest

from tests.unit.log.logs import Rig, make_batch
from tests.unit.log.test_scrub import a_sealed_log, content, scrub_of
from tidelog.host import Path
from tidelog.log.same_batch import heal_same
from tidelog.log.scrub import SegmentScrub
from tidelog.records import HEADER_BYTES, read_header, stamp


def rotten(*positions: int, bit: int = 3) -> tuple[Rig, SegmentScrub]:
    """A log whose second batch has rotted in these bytes of it."""
    rig = a_sealed_log()
    first = read_header(content(rig)).size
    for position in positions:
        rig.disk.flip_bit(rig.log.segments[0].path(), first + position, bit)
    scrub = scrub_of(rig, has_gaps=True)
    scrub.seek(rig.disk)
    return rig, scrub


SOUND = content(a_sealed_log())
BATCHES = [bytes(batch) for batch in a_sealed_log().read_all()]
OFFSET = range(6)
"""Its higher bytes: others may be missing before it, so a slightly higher one is no rot."""


@pytest.mark.parametrize("position", [*OFFSET, *range(8, 12), *range(16, len(BATCHES[1]))])
def test_any_bit_that_rots_is_healed(position):
    rig, scrub = rotten(position)
    assert scrub.problem is not None

    size = heal_same(rig.disk, scrub, b"".join(BATCHES[:4]))

    assert size == len(BATCHES[1])
    assert content(rig) == SOUND
    scrub.seek(rig.disk)
    assert scrub.is_done


def test_what_was_healed_survives_a_loss_of_power():
    rig, scrub = rotten(70)

    heal_same(rig.disk, scrub, BATCHES[1])
    rig.disk.crash()

    assert content(rig) == SOUND


@pytest.mark.parametrize(
    "positions",
    [
        (18, 70),  # checksum and record
        (8, 70),  # length and record
        (0, 70),  # offset and record
        (0, 1),  # two bits of the offset
    ],
)
def test_a_batch_that_nobody_can_know_again_is_left_alone(positions):
    rig, scrub = rotten(*positions)
    before = content(rig)

    assert heal_same(rig.disk, scrub, b"".join(BATCHES)) == 0
    assert content(rig) == before


def test_another_batch_of_the_same_place_is_not_taken():
    rig, scrub = rotten(70)
    before = content(rig)
    other = bytearray(make_other(len(BATCHES[1])))
    stamp(other, base_offset=1, leader_epoch=1)

    assert heal_same(rig.disk, scrub, bytes(other)) == 0
    assert content(rig) == before


def make_other(size: int) -> bytearray:
    """A batch of so many bytes."""
    for value_size in range(size):
        batch = make_batch(size=value_size, time_ms=7)
        if len(batch) == size:
            return batch
    raise AssertionError(f"none has {size} bytes")


def test_a_batch_that_does_not_check_out_is_not_taken():
    rig, scrub = rotten(70)
    before = content(rig)
    sent = bytearray(BATCHES[1])
    sent[HEADER_BYTES + 20] ^= 1

    assert heal_same(rig.disk, scrub, bytes(sent)) == 0
    assert content(rig) == before


@pytest.mark.parametrize("operation", ["open", "read"])
def test_a_device_that_does_not_read_leaves_everything_as_it_is(operation):
    rig, scrub = rotten(70)
    before = content(rig)

    def fail(kind: str, path: Path) -> None:
        if kind == operation:
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    rig.disk.on_operation = fail
    assert heal_same(rig.disk, scrub, BATCHES[1]) == 0
    rig.disk.on_operation = None
    assert content(rig) == before
