"""What sums come to: rates, shares, skew, lag; and what a sample stands for."""

import pytest

from tidelog.groups.records import CommittedOffset, OffsetWritten, encode
from tidelog.model import TopicPartition
from tidelog.spark.analysis import plan as planning
from tidelog.spark.analysis.measure import Kind
from tidelog.spark.analysis.plan import AnalysisPlan, Wanted, sampled
from tidelog.spark.analysis.summary import as_json, key_text, summarize
from tidelog.spark.analysis.totals import (
    SECONDS,
    TIMES_MAX,
    Committed,
    Heavy,
    Keys,
    Moment,
    Sizes,
    Totals,
    moment_seconds,
)
from tidelog.spark.ranges import OffsetRange

BOUNDS = (OffsetRange("t", 0, 0, 300), OffsetRange("t", 1, 0, 100))


def plan(sample: float = 1.0) -> AnalysisPlan:
    return AnalysisPlan(cluster_id="c", wanted=Wanted(sample=sample), bounds=BOUNDS)


def batch(partition: int, at: int, records: int, end: int, codec: str = "none") -> Moment:
    return Moment(Kind.BATCH, "t", partition, codec, at, records, 1, 10 * records, 5 * records, end)


def record(partition: int, at: int, records: int) -> Moment:
    return Moment(Kind.RECORD, "t", partition, None, at, records, 0, 0, 5 * records, None)


def totals(*moments: Moment, committed: list[Committed] | None = None) -> Totals:
    return Totals(
        seconds=10,
        moments=list(moments),
        sizes=[Sizes("t", "record bytes", 3, 50, 300), Sizes("t", "record bytes", 7, 50, 5000)],
        heavy=[Heavy("t", b"hot", 100)],
        keys=[Keys("t", 40, 7, 0)],
        committed=committed or [],
    )


def commit(partition: int, at: int, offset: int, group: str = "g") -> Committed:
    place = TopicPartition("t", partition)
    value = CommittedOffset(offset=offset, committed_ms=0)
    key = encode(OffsetWritten(group_id=group, place=place, value=value), 0).key
    assert key is not None
    return Committed(key, at, offset)


def test_shares_and_skew_are_by_records():
    found = summarize(plan(), totals(batch(0, 0, 300, 300), batch(1, 10, 100, 100, "zstd")))

    (topic,) = found.topics
    assert [(one.name, one.records) for one in topic.partitions] == [("0", 300), ("1", 100)]
    assert topic.skew == 1.5
    assert [(one.name, one.stored) for one in topic.codecs] == [("none", 3000), ("zstd", 1000)]
    assert (topic.heaviest[0].key, topic.heaviest[0].share) == ("hot", 0.25)
    assert (topic.keys, topic.keys_are_all, topic.no_key) == (40, True, 7)


def test_points_are_by_the_times_of_records_and_those_without_a_time_are_left_out():
    found = summarize(plan(), totals(record(0, 0, 3), record(1, 0, 4), record(0, -10, 9)))

    assert [(point.at, point.records) for point in found.topics[0].points] == [(0, 7)]


def test_sizes_have_a_mean_and_bounds_for_half_and_for_most():
    (sizes,) = summarize(plan(), totals()).topics[0].histograms

    assert (sizes.mean, sizes.median_below, sizes.most_below) == (53.0, 8, 128)


def test_lag_is_where_the_log_ended_minus_what_was_committed():
    moments = [batch(0, 0, 100, 100), batch(0, 10, 100, 200), batch(1, 20, 50, 50)]
    committed = [commit(0, 0, 90), commit(0, 20, 200), commit(1, 20, 20)]

    (lag,) = summarize(plan(), totals(*moments, committed=committed)).lags

    assert (lag.group, lag.topic) == ("g", "t")
    assert lag.points == ((0, 10), (10, 110), (20, 30))
    assert (lag.last, lag.most) == (30, 110)


def test_a_group_that_only_commits_after_the_last_record_has_a_lag_too():
    committed = [commit(0, 500, 60)]

    (lag,) = summarize(plan(), totals(batch(0, 0, 100, 100), committed=committed)).lags

    assert lag.points == ((500, 40),)


def test_commits_for_other_topics_are_left_out():
    other = encode(
        OffsetWritten(
            group_id="g", place=TopicPartition("u", 0), value=CommittedOffset(offset=1, committed_ms=0)
        ),
        0,
    ).key
    assert other is not None

    assert summarize(plan(), totals(committed=[Committed(other, 0, 1)])).lags == ()


def test_a_sample_stands_for_all(monkeypatch):
    monkeypatch.setattr(planning, "STRETCH_OFFSETS", 30)
    some = plan(sample=0.1)
    read = [one for task in some.tasks() for one in task.ranges]

    found = summarize(some, totals(batch(0, 0, 30, 165), record(0, 0, 30)))

    assert [one.count for one in read] == [30, 30]
    assert some.factors() == {TopicPartition("t", 0): 10, TopicPartition("t", 1): 100 / 30}
    assert found.topics[0].records == 300
    assert found.topics[0].points[0].records == 300
    assert not found.topics[0].keys_are_all


def test_a_sample_is_spread_evenly_and_lies_inside(monkeypatch):
    monkeypatch.setattr(planning, "STRETCH_OFFSETS", 10)
    whole = OffsetRange("t", 0, 50, 1050)

    parts = sampled(whole, 0.1)

    assert len(parts) == 10
    assert [one.start for one in parts] == [95 + 100 * n for n in range(10)]
    assert sampled(whole, 1.0) == [whole]
    assert sampled(OffsetRange("t", 0, 5, 5), 1.0) == []


@pytest.mark.parametrize("span", [0, 1, 119, 121, 86_400, 10**9, 2**53])
def test_a_moment_is_as_long_as_it_takes_for_a_plot(span):
    seconds = moment_seconds(span)

    assert span / seconds <= TIMES_MAX or seconds == SECONDS[-1]


def test_keys_are_shown_as_text_or_else_as_bytes():
    assert key_text(b"user-1") == "user-1"
    assert key_text(b"\xff\0") == "0xff00"
    assert key_text(b"a\n") == "0x610a"
    assert len(key_text(b"k" * 500)) == 60


def test_all_of_it_can_be_said_in_json():
    found = as_json(summarize(plan(), totals(batch(0, 0, 300, 300), record(0, 0, 300))))

    assert found["topics"][0]["points"] == [[0, 300, 1500]]
    assert found["topics"][0]["sizes"][0]["bins"] == [[8, 50], [128, 50]]
