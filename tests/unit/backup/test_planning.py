from tidelog.backup.manifest import Chunk, PartitionBackup
from tidelog.backup.planning import Before, LogNow, plan

DAY_MS = 24 * 60 * 60 * 1000


def chunk(start, end):
    return Chunk(start=start, end=end, file=f"{start}")


def before(*chunks, start=0, topic_id="id", taken_ms=0, kept_end=None):
    return Before(
        topic_id=topic_id,
        taken_ms=taken_ms,
        kept_end=kept_end,
        partition=PartitionBackup(
            partition=0, start=start, end=chunks[-1].end if chunks else start, chunks=chunks
        ),
    )


def share(was, *, start=0, end, tombstones_ms=None, now_ms=1000):
    now = LogNow(start=start, end=end, epoch=3)
    return plan("id", now, was, tombstones_ms=tombstones_ms, now_ms=now_ms)


def test_the_first_backup_reads_everything_and_has_nothing_to_explain():
    found = share(None, start=5, end=20)

    assert (found.start, found.read_from, found.end, found.kept) == (5, 5, 20, ())
    assert found.why_anew is None


def test_the_next_one_reads_what_is_new():
    found = share(before(chunk(0, 10)), end=25)

    assert (found.read_from, found.kept) == (10, (chunk(0, 10),))


def test_where_nothing_is_new_nothing_is_read():
    found = share(before(chunk(0, 10)), end=10)

    assert found.new_offsets == 0
    assert found.kept == (chunk(0, 10),)


def test_what_retention_has_taken_is_no_longer_named():
    found = share(before(chunk(0, 10), chunk(10, 20), chunk(20, 30)), start=15, end=40)

    assert (found.start, found.kept) == (15, (chunk(10, 20), chunk(20, 30)))
    assert found.read_from == 30


def test_a_log_that_begins_where_the_backup_ends_keeps_none_of_it_and_lost_nothing():
    found = share(before(chunk(0, 10)), start=10, end=12)

    assert (found.kept, found.read_from, found.why_anew) == ((), 10, None)


def test_a_topic_that_was_made_anew_begins_anew():
    found = share(before(chunk(0, 10), topic_id="another"), end=25)

    assert (found.read_from, found.kept) == (0, ())
    assert "created again" in found.why_anew


def test_what_was_deleted_before_it_was_backed_up_is_said():
    found = share(before(chunk(0, 10)), start=12, end=25)

    assert (found.read_from, found.kept) == (12, ())
    assert "offsets 10 to 11" in found.why_anew


def test_a_log_that_was_cut_begins_anew():
    assert "was cut" in share(before(chunk(0, 10)), end=8).why_anew
    assert "was cut" in share(before(chunk(0, 10), kept_end=9), end=15).why_anew
    assert share(before(chunk(0, 10), kept_end=10), end=15).why_anew is None


def test_a_compacted_log_is_continued_while_it_has_its_tombstones():
    was = before(chunk(0, 10), taken_ms=0)

    assert share(was, end=15, tombstones_ms=DAY_MS, now_ms=DAY_MS - 1).read_from == 10
    late = share(was, end=15, tombstones_ms=DAY_MS, now_ms=DAY_MS)
    assert (late.read_from, late.kept) == (0, ())
    assert "delete.retention.ms" in late.why_anew
    assert share(was, end=15, now_ms=99 * DAY_MS).read_from == 10
