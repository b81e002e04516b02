from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from msgspec import Raw

from tests.unit.copies.embedded.copying import (
    OTHER_TOPIC,
    Make,
    Stage,
    entries,
    frame,
    heartbeat,
    hello_ack,
    incremental,
    put,
    snapshot,
    squeezed,
    text,
)
from tests.unit.copies.node.test_views import unreadable
from tidelog.client import (
    ChecksumMismatch,
    ConnectionFailed,
    LogTruncated,
    OffsetNotFound,
    ProtocolError,
    SyncFailed,
)
from tidelog.client.http.effects import Lost
from tidelog.copies.embedded.plan import MISMATCHES_MAX, NOT_FOUND_MAX, SNAPSHOT_SECONDS_MAX
from tidelog.copies.stream import protocol
from tidelog.copies.stream.kinds import QueueView
from tidelog.copies.stream.protocol import Ack, Batch, Failed, Hello, LogEntry, Source, Sync
from tidelog.queues.records import About, PlaceOf, delivery_record, job_key, job_record
from tidelog.queues.records import Delivery as Given
from tidelog.records import Record, encode_batch

ONE = put("k", b"1", 0)
TWO = put("k", b"2", 1)
LOST = Lost(why="connection refused", was_sent=False)
WHOLE = [hello_ack(1), *snapshot(ONE, applied=1)]
"""A first sync that brings one key."""


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    stages: list[Stage] = []

    def made(**options: Any) -> Stage:
        stages.append(Stage(tmp_path / "copy.db", **options))
        return stages[-1]

    yield made
    for stage in stages:
        stage.close()


def failed(code: str, **more: Any) -> str:
    return text(Failed(code=code, detail="it says so", **more))


# From nothing to in sync.


def test_a_new_copy_asks_for_everything_and_goes_on_from_where_that_ends(make):
    stage = make()

    stage.play([*WHOLE, frame(TWO)])

    hello, sync, *acks = stage.said
    assert isinstance(hello, Hello) and (hello.replica_id, hello.format) == ("replica-1", "binary")
    assert sync == Sync()
    assert [ack.offset for ack in acks] == [1, 2]
    assert stage.rows() == [(b"k", b"2", 1)]
    assert stage.called == ["ws://a:1/v1/replicate"]
    assert stage.partitions == 1


def test_a_copy_is_syncing_until_it_has_what_it_was_told_of(make):
    stage = make()
    assert stage.following.status().state == "disconnected"

    stage.play([hello_ack(3), *snapshot(ONE, applied=1)])
    syncing = stage.following.status()
    stage.hear(frame(TWO, put("l", b"1", 2)))

    assert (syncing.state, syncing.lag_entries, syncing.full_syncs) == ("syncing", 2, 1)
    found = stage.following.status()
    assert (found.state, found.lag_entries, found.lag_ms) == ("in_sync", 0, 0)
    assert (found.applied_offset, found.current_offset, found.operations_applied) == (3, 3, 2)
    assert (found.node, found.errors, found.reconnects) == ("http://a:1", 0, 0)
    assert found.last_sync is not None


def test_a_copy_that_hears_of_more_than_it_has_is_lagging(make):
    stage = make()

    stage.play([*WHOLE, frame(TWO, current=9)])
    stage.now += 0.25

    found = stage.following.status()
    assert (found.state, found.lag_entries, found.lag_ms) == ("lagging", 7, 250)


def test_a_heartbeat_is_acknowledged_so_that_the_node_knows_who_is_there(make):
    stage = make()

    stage.play([*WHOLE, heartbeat(1), heartbeat(1)])

    assert [ack.offset for ack in stage.of_kind(Ack)] == [1, 1, 1]
    assert stage.listened[-1] == 5  # heartbeats that may be missed


def test_what_retention_has_deleted_goes_from_the_copy_too(make):
    stage = make()

    stage.play([*WHOLE, frame(put("l", b"1", 1)), heartbeat(2, oldest=1)])

    assert [key for key, _, _ in stage.rows()] == [b"l"]


def test_json_entries_lead_to_the_same_copy_as_bytes(make):
    stage = make(format="json")
    gone, text_value = put("k", None, 1), put("t", b"plain", 2)
    raw, expiring = put("r", b"\xff", 3), replace(put("e", b"1.50", 4), headers=(_expires(99),))

    stage.play([*WHOLE, squeezed(entries(gone, text_value)), text(entries(raw, expiring))])

    assert stage.rows("SELECT key, value, version, expires FROM entries ORDER BY key") == [
        (b"e", b"1.50", 4, 99),
        (b"r", b"\xff", 3, None),
        (b"t", b"plain", 2, None),
    ]
    assert stage.said[0].format == "json"


def _expires(at_ms: int) -> tuple[str, bytes]:
    return ("tidelog-expires-at", b"%d" % at_ms)


def test_a_queue_s_messages_come_and_go(make):
    source, place = Source(queue="q"), PlaceOf("q", 0)
    other = replace(job_record(PlaceOf("other", 0), b"1", About(), now_ms=1), offset=1)
    job = replace(job_record(place, b'"x"', About({"a": "b"}), now_ms=1), offset=0)
    given = replace(delivery_record(place, Given(0, 1), now_ms=1), offset=2)
    done = Record(key=job_key(place), value=None, timestamp_ms=1, offset=3)
    stage = make(source=source)

    stage.play([hello_ack(2), *snapshot(job, other, applied=2, kind=QueueView()), frame(given)])
    before = stage.rows("SELECT queue, value, deliveries FROM messages ORDER BY queue DESC")
    stage.hear(frame(done))

    assert before == [("q", b'"x"', 1), ("other", b"1", 0)]
    assert stage.rows("SELECT queue FROM messages") == [("other",)]
    told = [(one.key, one.value, one.is_deleted) for one in stage.changes]
    assert told == [("0", "x", False), ("0", None, True)]


def test_a_value_may_be_nested_as_deeply_as_its_writer_likes(make):
    stage = make(format="json")
    stage.play(WHOLE)
    for depth in (10, 500, *range(700, 1100, 25), 5000):
        value = b"[" * depth + b"]" * depth

        stage.hear(text(entries(put("k", value, stage.copy.applied))))

        assert stage.following.last_error is None
        assert [found for _, found, _ in stage.rows()] == [value]


def test_a_batch_that_nobody_can_read_is_passed_over_as_nodes_do(make):
    stage = make()
    head = protocol.BATCHES + protocol.BATCHES_HEAD.pack(3, 3, 3)
    later = bytes(encode_batch([put("l", b"1", 2)], base_offset=2))

    stage.play([*WHOLE, head + unreadable(1) + later])

    assert stage.following.last_error is None
    assert [key for key, _, _ in stage.rows()] == [b"k", b"l"]


# After a loss.


def test_a_copy_that_was_lost_asks_for_what_follows_elsewhere_and_later(make):
    stage = make()

    stage.play([*WHOLE], LOST, [hello_ack(2), incremental(1), frame(TWO)])

    assert [url[5:8] for url in stage.called] == ["a:1", "b:1", "a:1"]
    assert stage.of_kind(Sync)[-1] == Sync(from_offset=1, topic_id=stage.copy.topic, epoch=3)
    assert len(stage.slept) == 2 and stage.slept[0] < stage.slept[1]
    found = stage.following.status()
    assert (found.state, found.errors, found.reconnects) == ("in_sync", 2, 1)
    assert found.last_error == "ConnectionFailed: http://b:1: connection refused"
    assert isinstance(stage.following.last_error, ConnectionFailed)


def test_a_copy_that_knows_one_node_has_heard_of_the_others_before_it_is_lost(make):
    stage = make(given=["http://a:1"])

    stage.play(WHOLE, [hello_ack(1), incremental(1)])

    assert [url[5:8] for url in stage.called] == ["a:1", "b:1"]


def test_a_copy_that_is_cut_off_says_so_and_for_how_long_it_lacks_something(make):
    stage = make()
    stage.play([*WHOLE], LOST)

    stage.now += 2

    found = stage.following.status()
    assert (found.state, found.node, found.applied_offset) == ("disconnected", None, 1)
    assert found.lag_ms >= 2000


def test_a_copy_goes_on_after_a_restart_where_it_was(make):
    stage = make()
    stage.play([*WHOLE, frame(TWO)])
    stage.close()

    again = make()
    again.play([hello_ack(2), incremental(2)])

    assert again.of_kind(Sync) == [Sync(from_offset=2, topic_id=again.copy.topic, epoch=3)]
    assert again.following.status().state == "in_sync"


def test_pauses_begin_anew_once_a_node_was_heard(make):
    stage = make()
    stage.play(LOST, LOST, LOST, [*WHOLE, heartbeat(1)], LOST)

    assert stage.slept[0] < stage.slept[1] < stage.slept[2]
    assert stage.slept[3] == stage.slept[0]


def test_a_node_that_points_elsewhere_is_followed_at_once_but_not_for_ever(make):
    stage = make()
    pointing = failed("ConnectionFailed", location="http://c:9/v1/replicate")

    stage.play(*[[hello_ack(1), pointing]] * 5)

    assert [url[5:8] for url in stage.called[:4]] == ["a:1", "c:9", "c:9", "c:9"]
    assert stage.called[4][5:8] != "c:9"
    assert len(stage.slept) == 2


def test_a_snapshot_may_take_long_to_be_made_and_what_follows_may_not(make):
    stage = make()
    stage.play(WHOLE, [hello_ack(1), incremental(1)])

    assert SNAPSHOT_SECONDS_MAX in stage.listened
    assert stage.listened.count(SNAPSHOT_SECONDS_MAX) == 1


# What does not check out.


@pytest.mark.parametrize("form", ["binary", "json"])
def test_a_damaged_entry_is_not_applied_and_asked_for_again(make, form):
    stage = make(format=form)
    sound: Any = frame(TWO) if form == "binary" else squeezed(entries(TWO))
    if form == "binary":
        damaged: Any = sound[:-1] + bytes([sound[-1] ^ 1])
    else:
        (entry,) = entries(TWO).entries
        whole = text(entries(TWO))
        damaged = whole.replace(str(entry.checksum), str(entry.checksum ^ 1))

    stage.play([*WHOLE, damaged])
    before = stage.rows()
    stage.play([hello_ack(2), incremental(1), sound])

    assert before == [(b"k", b"1", 0)]
    assert stage.rows() == [(b"k", b"2", 1)]
    error = stage.following.last_error
    assert isinstance(error, ChecksumMismatch) and error.expected != error.actual
    assert stage.following.status().errors == 1
    assert stage.of_kind(Sync)[-1].from_offset == 1


@pytest.mark.parametrize(
    "damaged",
    [frame(TWO) + b"more", frame(TWO)[:-1], frame(TWO, following=1), protocol.GZIP + b"no gzip"],
    ids=["longer", "cut", "out of its place", "no gzip"],
)
def test_bytes_that_are_not_what_was_sent_are_not_applied(make, damaged):
    stage = make()

    stage.play([*WHOLE, damaged])

    assert isinstance(stage.following.last_error, ChecksumMismatch)
    assert stage.copy.applied == 1


def entry(operation: bytes) -> str:
    """A batch of one entry, which arrives as it was sent."""
    found = LogEntry(
        offset=1, timestamp=1, operation=Raw(operation), checksum=protocol.checksum_of(1, 1, operation)
    )
    return text(Batch(entries=[found], next_offset=2))


@pytest.mark.parametrize(
    "senseless",
    [
        protocol.BATCHES + b"short",
        b"",
        "[" * 100_000,
        '{"type":"batch","next_offset":2,"entries":[' + "[" * 100_000,
        '{"type":"log_entry","offset":1,"timestamp":1,"checksum":1,"operation":' + "[" * 100_000,
        entry(b'{"type":"kv_unheard_of","key":"k"}'),
        entry(b'{"type":"kv_set","key":"k","value":"*","encoding":"base64"}'),
        entry(b'{"type":"kv_set","key":"k","value":7,"encoding":"text"}'),
        entry(b'{"type":"kv_del","keys":[]}'),
        entry(b'{"type":"kv_del","keys":["k","l"]}'),
        entry(b'{"type":"queue_publish","queue":"q","message":{}}'),
        entry(b'{"type":"queue_ack","queue":"q","sequence":%d}' % 2**80),
        text(Batch(entries=[], next_offset=2**70)),
    ],
)
def test_what_makes_no_sense_is_left_and_asked_for_again(make, senseless):
    stage = make()
    stage.play(WHOLE)

    stage.hear(senseless)

    assert isinstance(stage.following.last_error, ProtocolError)
    stage.play([hello_ack(2), incremental(1), frame(TWO)])
    assert stage.rows() == [(b"k", b"2", 1)]


def test_an_entry_that_stays_damaged_is_got_by_a_snapshot(make):
    stage = make()
    damaged = frame(TWO)[:-1] + b"!"
    again = [hello_ack(2), incremental(1), damaged]

    stage.play([*WHOLE, damaged], *[again] * (MISMATCHES_MAX - 1), [hello_ack(2), *snapshot(TWO, applied=2)])

    assert stage.of_kind(Sync)[-1] == Sync()
    assert stage.rows() == [(b"k", b"2", 1)]


def test_what_was_had_before_is_not_applied_again(make):
    stage = make()

    stage.play([*WHOLE, frame(replace(ONE, value=b"other"), TWO)])

    assert stage.rows() == [(b"k", b"2", 1)]
    assert stage.following.status().operations_applied == 1


# Snapshots.


def test_a_snapshot_that_is_cut_half_way_leaves_the_old_copy(make):
    stage = make()
    many = [put(f"k{number:03}", b"x" * 100, number) for number in range(200)]
    start, first, *_ = snapshot(*many, applied=200)

    stage.play(WHOLE, [hello_ack(200), start, first])
    underway = stage.following.status()
    stage.play([hello_ack(200), *snapshot(*many, applied=200)])

    assert 0 < underway.bytes_received < underway.bytes_expected
    assert len(stage.rows()) == 200
    assert stage.following.status().bytes_expected == 0
    assert list(stage.copy.path.parent.glob("*.incoming")) == []


def test_a_snapshot_that_arrives_damaged_is_not_used(make):
    stage = make()
    start, *pieces = cast(list[bytes], snapshot(ONE, applied=1))
    damaged = [pieces[0], pieces[1][:-1] + b"!", *pieces[2:]]

    stage.play([hello_ack(1), start, *damaged])

    error = stage.following.last_error
    assert isinstance(error, ChecksumMismatch) and error.expected != error.actual
    assert not stage.copy.is_whole


@pytest.mark.parametrize(
    "made",
    [
        lambda: snapshot(applied=1, kind=QueueView()),
        lambda: snapshot(ONE, applied=1, says=2),
        lambda: [*snapshot(ONE, applied=1)[:2], heartbeat(1)],
        lambda: [*snapshot(ONE, applied=1), *[protocol.SNAPSHOT + b"more"]],
    ],
    ids=["of another kind", "of another offset", "interrupted", "longer"],
)
def test_a_snapshot_that_is_not_what_was_asked_for_is_not_used(make, made):
    stage = make()

    stage.play([hello_ack(1), *made()])

    assert isinstance(stage.following.last_error, ProtocolError)


def test_a_copy_never_goes_back_to_an_older_snapshot(make):
    stage = make()
    stage.play([*WHOLE, frame(TWO)], [hello_ack(9), *snapshot(ONE, applied=1)])

    assert isinstance(stage.following.last_error, SyncFailed)
    assert stage.rows() == [(b"k", b"2", 1)]


def test_a_log_that_was_truncated_is_asked_for_as_a_whole(make):
    stage = make()
    stage.play(WHOLE, [hello_ack(9), failed("LogTruncated")], [hello_ack(9), *snapshot(TWO, applied=9)])

    assert stage.of_kind(Sync)[-1] == Sync()
    assert isinstance(stage.following.last_error, LogTruncated)
    assert stage.rows() == [(b"k", b"2", 1)]


def test_a_bucket_that_was_made_anew_is_copied_anew(make):
    stage = make()
    new = put("n", b"1", 0)

    stage.play(
        [*WHOLE, frame(TWO)],
        [hello_ack(1, topic_id=OTHER_TOPIC), *snapshot(new, applied=1, topic=OTHER_TOPIC)],
    )

    assert stage.of_kind(Sync)[-1] == Sync()
    assert stage.rows() == [(b"n", b"1", 0)]
    told = [(one.key, one.value, one.is_deleted) for one in stage.changes]
    assert told[-2:] == [("n", 1, False), ("k", None, True)]


def test_a_copy_asks_again_when_others_are_told_of_another_topic(make):
    stage = make()
    stage.play(WHOLE)

    stage.following.doubt(stage.copy.topic)
    stage.hear(frame(TWO))
    assert stage.following.status().errors == 0
    stage.following.doubt(OTHER_TOPIC)
    stage.hear(heartbeat(2))

    assert stage.following.status().last_error is not None
    new = snapshot(put("new", b"1", 0), applied=1, topic=OTHER_TOPIC)
    stage.play([hello_ack(1, topic_id=OTHER_TOPIC), *new])
    assert stage.copy.topic == OTHER_TOPIC
    assert [key for key, _, _ in stage.rows()] == [b"new"]


def test_an_offset_that_stays_unknown_means_that_the_log_has_gone_back(make):
    stage = make()
    gone = [hello_ack(1), failed("OffsetNotFound")]

    stage.play([*WHOLE, frame(TWO)], *[gone] * NOT_FOUND_MAX, [hello_ack(1), *snapshot(ONE, applied=1)])

    assert [sync.from_offset for sync in stage.of_kind(Sync)] == [None, *[2] * NOT_FOUND_MAX, None]
    assert isinstance(stage.following.last_error, OffsetNotFound)
    assert stage.rows() == [(b"k", b"1", 0)]


def test_a_source_that_is_not_there_is_asked_for_until_it_is(make):
    stage = make()
    stage.play(*[[failed("OffsetNotFound")]] * 9, WHOLE)

    assert stage.following.status().state == "in_sync"
    assert stage.following.status().errors == 9


# What is no message.


@pytest.mark.parametrize(
    "said",
    ["nonsense", '{"type":"unknown"}', heartbeat(1), b"?bytes", incremental(0)],
    ids=["no json", "unknown", "too early", "bytes", "too early, too"],
)
def test_who_answers_a_hello_with_something_else_is_left(make, said):
    stage = make()

    stage.play([said], WHOLE)

    assert isinstance(stage.following.last_error, ProtocolError)
    assert stage.called[1][5:8] == "b:1"


def test_a_node_that_goes_on_from_somewhere_else_is_left(make):
    stage = make()

    stage.play(WHOLE, [hello_ack(9), incremental(5)])

    assert isinstance(stage.following.last_error, ProtocolError)


def test_what_a_node_says_has_failed_is_told_by_its_name(make):
    stage = make()

    stage.play([hello_ack(1), failed("SyncFailed")])

    assert stage.following.status().last_error == "SyncFailed: http://a:1: it says so"


# Changes.


def test_every_change_is_told_of_snapshots_only_what_is_another(make):
    stage = make()
    stays, gone = put("stays", b"1", 0), put("gone", b"1", 1)
    stage.play([hello_ack(2), *snapshot(stays, gone, applied=2)], LOST)
    first = list(stage.changes)
    stage.changes.clear()

    stage.play(
        [hello_ack(9), failed("LogTruncated")],
        [hello_ack(9), *snapshot(stays, put("new", b'{"a":1}', 5), applied=9)],
    )

    assert sorted((one.key, one.value) for one in first) == [("gone", 1), ("stays", 1)]
    assert [(one.key, one.value, one.version, one.is_deleted) for one in stage.changes] == [
        ("new", {"a": 1}, 5, False),
        ("gone", None, 8, True),
    ]
