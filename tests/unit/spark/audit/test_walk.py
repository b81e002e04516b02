"""One replica, read batch by batch: what is told of what comes."""

from kio.schema.errors import ErrorCode

from tidelog.records import Record, encode_batch, stamp
from tidelog.spark.audit.walk import Answer, Kind, Row, Stretch, Walk

STORAGE = ErrorCode.kafka_storage_error.value
OUT_OF_RANGE = ErrorCode.offset_out_of_range.value


def batch(base: int, count: int = 10, *, epoch: int = 1) -> bytearray:
    records = [Record(key=b"k%d" % n, value=b"value") for n in range(count)]
    return encode_batch(records, base_offset=base, leader_epoch=epoch)


def walk(start: int = 0, end: int = 30, *, is_first: bool = True, **more: bool) -> Walk:
    fields = {"is_compacted": False, **more}
    return Walk(Stretch(topic="t", partition=0, replica=2, start=start, end=end, is_first=is_first, **fields))


def answer(*batches: bytearray, watermark: int = 30) -> Answer:
    return Answer(high_watermark=watermark, log_start=0, records=b"".join(map(bytes, batches)))


def spans(rows: list[Row]) -> list[tuple[str, int, int]]:
    return [(row.kind, row.base_offset, row.last_offset) for row in rows]


def test_every_batch_is_a_row():
    one = walk()

    rows = one.take(answer(batch(0), batch(10), batch(20, epoch=2)))

    assert spans(rows) == [("batch", 0, 9), ("batch", 10, 19), ("batch", 20, 29)]
    assert rows[2].leader_epoch == 2
    assert one.is_done


def test_a_batch_over_an_edge_belongs_to_the_stretch_where_it_begins():
    left, right = walk(0, 15), walk(15, 30, is_first=False)

    assert spans(left.take(answer(batch(0), batch(10)))) == [("batch", 0, 9), ("batch", 10, 19)]
    assert spans(right.take(answer(batch(10), batch(20)))) == [("batch", 20, 29)]


def test_the_first_batch_may_begin_before_the_first_stretch():
    assert spans(walk(15, 20).take(answer(batch(10)))) == [("batch", 10, 19)]


def test_a_flipped_byte_is_told_and_what_comes_then_too():
    broken = batch(10)
    broken[-3] ^= 1
    one = walk()

    first = one.take(answer(batch(0), broken, batch(20)))
    assert spans(first) == [("batch", 0, 9), ("bad", 10, 19)]
    assert "checksum" in (first[1].problem or "")
    assert one.position == 10

    mended = one.take(answer(batch(10), batch(20)))
    assert spans(mended) == [("batch", 10, 19), ("batch", 20, 29)]
    assert one.is_done


def test_a_batch_that_stays_bad_is_passed_over_once():
    broken = batch(10)
    broken[-3] ^= 1
    one = walk()
    one.take(answer(batch(0), broken))

    assert spans(one.take(answer(broken, batch(20)))) == [("batch", 20, 29)]
    assert one.is_done


def test_a_wrong_base_offset_is_told_though_no_checksum_covers_it():
    moved = batch(10)
    stamp(moved, 5, 1)

    rows = walk().take(answer(batch(0), moved))

    assert spans(rows)[1][0] == Kind.BAD
    assert "5, where 10 follows" in (rows[1].problem or "")


def test_damage_that_the_node_tells_of_is_a_row_and_asked_for_again():
    one = walk()

    assert spans(one.take(Answer(error=STORAGE))) == [("unreadable", 0, 0)]
    assert one.waits_for and not one.is_done
    assert one.take(Answer(error=STORAGE)) == []  # told once
    assert spans(one.take(answer(batch(0), batch(10), batch(20))))[0] == ("batch", 0, 9)


def test_damage_without_an_end_is_given_up_to_the_end_of_the_stretch():
    one = walk()
    one.take(Answer(error=STORAGE))

    assert spans(one.give_up("long enough")) == [("unreadable", 0, 29)]
    assert one.is_done


def test_what_retention_took_meanwhile_is_no_gap():
    one = walk()

    rows = one.take(Answer(error=OUT_OF_RANGE, log_start=20))

    assert spans(rows) == [("deleted", 0, 19)]
    assert one.position == 20


def test_a_replica_that_ends_too_early_is_waited_for_and_then_unreachable():
    one = walk()
    one.take(answer(batch(0)))

    assert one.take(answer(watermark=10)) == []
    assert one.waits_for
    assert spans(one.give_up(one.waits_for)) == [("unreachable", 10, 29)]


def test_nothing_more_below_the_watermark_leaves_a_gap_for_the_comparison():
    one = walk()
    one.take(answer(batch(0)))

    assert one.take(answer()) == []
    assert one.is_done


def test_records_of_compacted_topics_are_told_by_their_hashes():
    (row,) = walk(0, 10, is_compacted=True).take(answer(batch(0)))
    (same,) = walk(0, 10, is_compacted=True).take(answer(batch(0, epoch=7)))

    assert row.contents is not None and row.contents == same.contents
    found = row.contents.to_pylist()
    assert [one["offset"] for one in found] == list(range(10))
    assert len({one["key"] for one in found}) == 10
