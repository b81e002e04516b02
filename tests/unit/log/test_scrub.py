"""Every flipped bit of a sealed segment is found, and mended with the bytes of another replica."""

import errno

import pytest

from tests.unit.log.logs import Rig, cold_of
from tidelog.host import read_file, replace_file
from tidelog.log.index import OFFSET_ENTRY
from tidelog.log.scrub import GAP, SLICE_BYTES, Fit, SegmentScrub
from tidelog.log.segment import INDEX_SUFFIX, TIME_INDEX_SUFFIX


def a_sealed_log(*sizes: int, epochs: tuple[int, ...] = (0, 1, 1, 3)) -> Rig:
    """A log whose first segment holds four batches, and its copy on another disk."""
    rig = Rig(segment_bytes=1 << 20)
    for at, epoch in enumerate(epochs):
        rig.store(size=(sizes or (10, 200, 40, 7))[at], epoch=epoch)
    rig.log.roll()
    rig.store(epoch=9)
    return rig


def scrub_of(rig: Rig, **settings: bool) -> SegmentScrub:
    log = rig.log
    return SegmentScrub(
        log.segments[0],
        log.segments[1].base,
        start=log.start,
        epochs=log.epochs,
        has_gaps=settings.get("has_gaps", False),
        checks_epochs=settings.get("checks_epochs", True),
    )


def content(rig: Rig) -> bytes:
    return read_file(rig.disk, rig.log.segments[0].path())


def test_a_sound_segment_is_read_to_its_end():
    rig = a_sealed_log()
    scrub = scrub_of(rig)

    scanned = scrub.read(rig.disk)

    assert scrub.is_done
    assert scrub.problem is None
    assert scanned.size == len(content(rig))
    assert scanned.charge >= scanned.size


def test_a_segment_is_read_in_slices_and_a_larger_batch_whole():
    rig = a_sealed_log(SLICE_BYTES // 2, SLICE_BYTES // 2, 2 * SLICE_BYTES, 10)
    scrub = scrub_of(rig)

    offsets = []
    while not scrub.is_done:
        scrub.read(rig.disk)
        offsets.append(scrub.offset)

    assert scrub.problem is None
    assert offsets == [1, 2, 3, 4]


def test_every_flipped_bit_is_found_and_mended():
    whole = content(a_sealed_log())
    batches = a_sealed_log().read_all()
    for position in range(len(whole)):
        rig = a_sealed_log()
        rig.disk.flip_bit(rig.log.segments[0].path(), position, position % 8)
        scrub = scrub_of(rig)

        scrub.seek(rig.disk)

        assert scrub.problem is not None, f"nobody has missed byte {position}"
        assert scrub.position <= position, f"byte {position} is said to be sound"
        fit, size = scrub.mend(rig.disk, b"".join(batches[scrub.offset : 4]))
        assert fit is Fit.WHOLE
        assert size == len(batches[scrub.offset - 1])  # one batch was written, and no other
        assert content(rig) == whole
        scrub.seek(rig.disk)
        assert scrub.is_done


def test_what_was_mended_survives_a_loss_of_power():
    whole = content(a_sealed_log())
    batches = a_sealed_log().read_all()
    rig = a_sealed_log()
    rig.disk.flip_bit(rig.log.segments[0].path(), 100, 0)
    scrub = scrub_of(rig)
    scrub.seek(rig.disk)
    scrub.mend(rig.disk, b"".join(batches[scrub.offset : 4]))

    rig.disk.crash()

    assert content(rig) == whole


def test_a_mended_batch_is_followed_by_more_until_the_rest_is_sound():
    whole = content(a_sealed_log())
    batches = a_sealed_log().read_all()
    rig = a_sealed_log()
    path = rig.log.segments[0].path()
    rig.disk.flip_bit(path, 70, 1)
    rig.disk.flip_bit(path, len(batches[0]) + 10, 6)  # the length of the second one
    scrub = scrub_of(rig)
    scrub.seek(rig.disk)

    fits = [scrub.mend(rig.disk, batches[scrub.offset])[0] for _ in range(2)]

    assert fits == [Fit.MORE, Fit.WHOLE]
    assert content(rig) == whole


@pytest.mark.parametrize("kept", [0, 50, 100])
def test_a_file_that_is_too_short_is_mended(kept):
    whole = content(a_sealed_log())
    batches = a_sealed_log().read_all()
    rig = a_sealed_log()
    rig.disk.open(rig.log.segments[0].path()).truncate(kept)
    scrub = scrub_of(rig)
    scrub.seek(rig.disk)
    assert scrub.problem is not None

    fit, _ = scrub.mend(rig.disk, b"".join(batches[scrub.offset : 4]))

    assert fit is Fit.WHOLE
    assert content(rig) == whole


def test_a_file_that_is_gone_is_made_again():
    whole = content(a_sealed_log())
    batches = a_sealed_log().read_all()
    rig = a_sealed_log()
    rig.log.segments[0].file = None
    rig.disk.remove(rig.log.segments[0].path())
    scrub = scrub_of(rig)
    scrub.seek(rig.disk)

    fit, _ = scrub.mend(rig.disk, b"".join(batches[:4]))

    assert fit is Fit.WHOLE
    assert content(rig) == whole


def test_what_lies_behind_the_last_batch_is_rot_and_goes():
    whole = content(a_sealed_log())
    rig = a_sealed_log()
    rig.disk.open(rig.log.segments[0].path()).write(len(whole), [bytes(30)])
    scrub = scrub_of(rig)
    scrub.seek(rig.disk)
    assert scrub.problem is not None
    assert scrub.offset == scrub.end

    assert scrub.mend(rig.disk, b"") == (Fit.WHOLE, 0)

    assert content(rig) == whole


def test_batches_that_do_not_belong_there_are_not_taken():
    batches = a_sealed_log().read_all()
    others = a_sealed_log(epochs=(0, 2, 2, 3)).read_all()
    rig = a_sealed_log()
    rig.disk.flip_bit(rig.log.segments[0].path(), len(batches[0]) + 70, 1)
    rotten = content(rig)
    scrub = scrub_of(rig)
    scrub.seek(rig.disk)
    assert scrub.offset == 1

    torn = bytearray(batches[1])
    torn[70] ^= 1
    assert scrub.mend(rig.disk, bytes(torn)) == (Fit.NONE, 0)
    assert scrub.mend(rig.disk, others[1]) == (Fit.NONE, 0)  # of another epoch
    assert scrub.mend(rig.disk, batches[2]) == (Fit.GAP, 0)
    assert content(rig) == rotten


@pytest.mark.parametrize("position", [10, 70])
def test_a_replica_that_was_compacted_once_changes_nothing(position):
    """Its batches have the same offsets and epochs, and other bytes: sound ones would go."""
    batches = a_sealed_log().read_all()
    others = a_sealed_log(10, 100, 40, 7).read_all()
    rig = a_sealed_log()
    rig.disk.flip_bit(rig.log.segments[0].path(), len(batches[0]) + position, 1)
    rotten = content(rig)
    scrub = scrub_of(rig)
    scrub.seek(rig.disk)
    assert scrub.offset == 1

    assert scrub.mend(rig.disk, b"".join(others[1:4])) == (Fit.NONE, 0)

    assert content(rig) == rotten
    assert scrub.mend(rig.disk, b"".join(batches[1:4])) == (Fit.WHOLE, len(batches[1]))


@pytest.mark.parametrize("rotten_at", [[10], [10, 300], [70, 330]], ids=["length", "two", "both"])
@pytest.mark.parametrize("piece", [slice(1, 2), slice(1, 3)], ids=["one batch", "two batches"])
def test_a_piece_of_a_replica_that_was_compacted_once_goes_over_no_sound_batch(rotten_at, piece):
    """Of a long range only a piece is asked for at a time: it need not reach the segment's end."""
    sizes = (10, 200, 40, 90)
    batches = a_sealed_log(*sizes).read_all()[:4]
    others = a_sealed_log(10, 100, 40, 90).read_all()
    rig = a_sealed_log(*sizes)
    for position in rotten_at:
        rig.disk.flip_bit(rig.log.segments[0].path(), len(batches[0]) + position, 1)
    scrub = scrub_of(rig)
    scrub.seek(rig.disk)
    assert scrub.offset == 1

    scrub.mend(rig.disk, b"".join(others[piece]))

    behind = sum(map(len, batches[: 2 if len(rotten_at) == 1 else 3]))
    assert content(rig)[: len(batches[0])] == batches[0]
    assert content(rig)[behind:] == b"".join(batches)[behind:]


@pytest.mark.parametrize("rotten_at", [[10], [10, 300], [70, 330]], ids=["length", "two", "both"])
def test_a_piece_that_ends_before_the_segment_mends_what_it_holds(rotten_at):
    rig = a_sealed_log()
    batches, whole = rig.read_all(), content(rig)
    for position in rotten_at:
        rig.disk.flip_bit(rig.log.segments[0].path(), len(batches[0]) + position, 1)
    scrub = scrub_of(rig)
    scrub.seek(rig.disk)

    fits = []
    for at in range(1, 4):
        fits.append(scrub.mend(rig.disk, batches[at])[0])
        if fits[-1] is Fit.WHOLE:
            break

    assert fits == [Fit.MORE] * (len(rotten_at) - 1) + [Fit.WHOLE]
    assert content(rig) == whole


OFFSET_AT = 7  # the last byte of a batch's base offset


@pytest.mark.parametrize(("rotten", "claimed"), [([0], 2), ([0], 3), ([0, 1], 1), ([0, 1], 3)])
def test_a_batch_whose_offset_has_rotted_does_not_keep_others_from_being_mended(rotten, claimed):
    """The checksum does not cover it: the batch looks sound, and as if it belonged elsewhere."""
    rig = a_sealed_log(epochs=(0, 0, 0, 0))
    batches, whole = rig.read_all()[:4], content(rig)
    path = rig.log.segments[0].path()
    for at in rotten:
        rig.disk.flip_bit(path, sum(map(len, batches[:at])) + 70, 1)
    victim = rotten[-1] + 1
    where = sum(map(len, batches[:victim])) + OFFSET_AT
    for bit in range(8):
        if (victim ^ claimed) >> bit & 1:
            rig.disk.flip_bit(path, where, bit)
    assert content(rig)[where] == claimed
    scrub = scrub_of(rig)
    scrub.seek(rig.disk)
    assert scrub.offset == 0

    while not scrub.is_done:
        fit, _ = scrub.mend(rig.disk, b"".join(batches[scrub.offset :]))
        assert fit is Fit.WHOLE
        scrub.seek(rig.disk)

    assert content(rig) == whole


@pytest.mark.parametrize("is_first", [False, True], ids=["a later segment", "the first segment"])
@pytest.mark.parametrize("count", [1, 2])
def test_a_first_batch_whose_offset_has_rotted_to_less_is_found_and_mended(count, is_first):
    """It claims to begin before its segment does, and ends within it."""
    rig = Rig(segment_bytes=1 << 20)
    rig.store(3)
    rig.log.roll()
    for _ in range(count):
        rig.store(3)
    rig.log.roll()
    rig.store()
    segment, following = rig.log.segments[1:]
    if is_first:
        rig.log.advance_start(segment.base)
    whole = read_file(rig.disk, segment.path())
    rig.disk.flip_bit(segment.path(), OFFSET_AT, 0)
    scrub = SegmentScrub(segment, following.base, start=rig.log.start, epochs=rig.log.epochs, has_gaps=False)

    scrub.seek(rig.disk)

    assert (scrub.problem, scrub.offset) == ("its offset cannot be 2", 3)
    assert scrub.mend(rig.disk, whole) == (Fit.WHOLE, len(whole) // count)
    assert read_file(rig.disk, segment.path()) == whole


def test_a_place_that_a_rotten_offset_has_led_to_is_not_written():
    rig = a_sealed_log(epochs=(0, 0, 0, 0))
    batches, whole = rig.read_all()[:4], content(rig)
    scrub = scrub_of(rig)
    scrub.position, scrub.offset = len(batches[0]), 2  # there lies the batch of offset 1

    assert scrub.mend(rig.disk, batches[2]) == (Fit.NONE, 0)

    assert content(rig) == whole


def test_nobody_goes_on_behind_rot_by_an_offset_that_has_rotted():
    rig = a_sealed_log(10, 10, 10, 10)
    batches = rig.read_all()
    path = rig.log.segments[0].path()
    rig.disk.flip_bit(path, 70, 1)
    rig.disk.flip_bit(path, len(batches[0]) + OFFSET_AT, 1)  # 3, not 1
    scrub = scrub_of(rig, checks_epochs=False)
    scrub.seek(rig.disk)

    assert not scrub.skip(rig.disk)
    assert scrub.offset == 0


def test_a_history_that_two_replicas_contradict_is_not_believed():
    rig = a_sealed_log()
    whole = content(rig)
    scrub = SegmentScrub(rig.log.segments[0], 4, start=0, epochs=[(0, 0)], has_gaps=False)
    scrub.seek(rig.disk)
    assert scrub.problem is not None
    assert scrub.offset == 1

    assert scrub.mend(rig.disk, rig.read_all()[1]) == (Fit.WHOLE, 0)

    scrub.seek(rig.disk)
    assert scrub.is_done
    assert content(rig) == whole


def test_a_sector_that_the_device_does_not_read_is_rot():
    rig = a_sealed_log()
    scrub = scrub_of(rig)
    rig.disk.fail_reads(errno.EIO, times=1)

    scrub.read(rig.disk)

    assert scrub.problem is not None
    assert "does not read" in scrub.problem
    assert scrub.mend(rig.disk, rig.read_all()[0]) == (Fit.WHOLE, 0)  # it did the second time


def test_missing_offsets_are_a_problem_unless_there_may_be_gaps():
    rig = a_sealed_log()
    log = rig.log
    strict, lenient = (
        SegmentScrub(log.segments[0], 6, start=0, epochs=log.epochs, has_gaps=has_gaps)
        for has_gaps in (False, True)
    )

    strict.seek(rig.disk)
    lenient.seek(rig.disk)

    assert (strict.problem, strict.offset) == (GAP, 4)
    assert lenient.is_done


def test_who_cannot_be_helped_is_passed_over_if_the_next_batch_is_sound():
    batches = a_sealed_log().read_all()
    rig = a_sealed_log()
    path = rig.log.segments[0].path()
    rig.disk.flip_bit(path, len(batches[0]) + 70, 1)
    scrub = scrub_of(rig)
    scrub.seek(rig.disk)
    assert scrub.offset == 1
    here = scrub.fork()

    assert scrub.skip(rig.disk)

    assert scrub.offset == 2
    assert here.offset == 1
    scrub.seek(rig.disk)
    assert scrub.is_done
    rig.disk.flip_bit(path, len(batches[0]) + 10, 1)  # its length: what follows it is not known
    assert not here.skip(rig.disk)


def test_a_log_that_begins_inside_of_a_batch_is_sound():
    rig = Rig(segment_bytes=1 << 20)
    rig.store(5, epoch=2)
    rig.store(epoch=2)
    rig.log.roll()
    rig.store(epoch=2)
    rig.log.advance_start(3)

    scrub = scrub_of(rig)
    scrub.seek(rig.disk)

    assert scrub.is_done


# Indexes.


def an_indexed_log() -> Rig:
    rig = Rig(segment_bytes=1 << 20, index_interval_bytes=100)
    for number in range(20):
        rig.store(size=60, time_ms=1000 + number)
    rig.log.roll()
    rig.store()
    return rig


def scrub_indexes(rig: Rig) -> SegmentScrub:
    log = rig.log
    scrub = SegmentScrub(
        log.segments[0],
        log.segments[1].base,
        start=0,
        epochs=log.epochs,
        has_gaps=False,
        index_interval_bytes=100,
    )
    scrub.seek(rig.disk)
    assert scrub.is_done
    return scrub


def test_sound_indexes_are_left_alone():
    assert scrub_indexes(an_indexed_log()).stale_indexes == []


@pytest.mark.parametrize("suffix", [INDEX_SUFFIX, TIME_INDEX_SUFFIX])
def test_an_index_that_rots_is_made_again(suffix):
    rig = an_indexed_log()
    path = rig.log.segments[0].path(suffix)
    sound = read_file(rig.disk, path)
    for position in range(len(sound)):
        rig.disk.flip_bit(path, position, position % 8)

        scrub = scrub_indexes(rig)
        scrub.write_indexes(rig.disk)

        assert read_file(rig.disk, path) == sound
        assert scrub_indexes(rig).stale_indexes == []


def test_an_index_that_is_gone_is_made_again():
    rig = an_indexed_log()
    path = rig.log.segments[0].path(INDEX_SUFFIX)
    sound = read_file(rig.disk, path)
    rig.disk.remove(path)

    scrub_indexes(rig).write_indexes(rig.disk)

    assert read_file(rig.disk, path) == sound


def test_an_index_that_has_come_meanwhile_is_left_alone():
    """That of a segment which was sealed just now is written by another thread."""
    rig = an_indexed_log()
    path = rig.log.segments[0].path(INDEX_SUFFIX)
    sound = read_file(rig.disk, path)
    rig.disk.remove(path)
    scrub = scrub_indexes(rig)
    replace_file(rig.disk, path, sound)
    written: list[str] = []
    rig.disk.on_operation = lambda operation, path: written.append(operation)

    scrub.write_indexes(rig.disk)

    assert "rename" not in written


def test_an_index_that_would_mislead_readers_is_made_again():
    rig = an_indexed_log()
    rig.log.tail.drop_before(rig.log.segments[1].base)
    path = rig.log.segments[0].path(INDEX_SUFFIX)
    file = rig.disk.open(path)
    relative, position = OFFSET_ENTRY.unpack(file.read(2 * OFFSET_ENTRY.size, OFFSET_ENTRY.size))
    file.write(OFFSET_ENTRY.size, [OFFSET_ENTRY.pack(relative - 2, position)])
    read = cold_of(rig.log.read(relative - 1, 1, rig.log.end))
    assert read.perform_checked(rig.disk, has_gaps=False) == rig.read_all()[relative - 1]

    scrub_indexes(rig).write_indexes(rig.disk)

    assert scrub_indexes(rig).stale_indexes == []
    assert read.perform_checked(rig.disk, has_gaps=False) == rig.read_all()[relative - 1]
