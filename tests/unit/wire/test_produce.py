import datetime
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.wire.messages import frame_of, header_of, produce_fields, read_response
from tidelog.records import Record, encode_batch
from tidelog.wire.apis import Api
from tidelog.wire.entities import encode, request_entity
from tidelog.wire.lengths import MessageDamaged
from tidelog.wire.produce import PartitionAnswer, Repeated, decode_request, encode_response

VERSIONS = range(3, 14)
BATCH = bytes(encode_batch([Record(value=b"hello")]))
SOME_ID = UUID(int=77)


def topic_of(version, name="orders"):
    return UUID(bytes=name.encode()[:16].ljust(16, b"_")) if version >= 13 else name


def produce_frame(version, topics, **options):
    client = {k: options.pop(k) for k in ("client_id", "correlation_id") if k in options}
    return frame_of(Api.PRODUCE, version, produce_fields(topics, **options), **client)


def decode(frame):
    header = header_of(frame)
    return decode_request(frame, header.body_at, header.version)


def plain(request):
    """What a request says, with copies instead of views."""
    return (
        request.transactional_id,
        request.acks,
        request.timeout_ms,
        [
            (topic, [(p, None if records is None else bytes(records)) for p, records, _ in parts])
            for topic, parts in request.topics
        ],
    )


# Requests.


@pytest.mark.parametrize("version", VERSIONS)
def test_a_request_says_what_kio_wrote(version):
    topics = [
        (topic_of(version, "a"), [(0, BATCH), (3, None), (2**31 - 1, b"")]),
        (topic_of(version, "b"), []),
        (topic_of(version, "ü" * 7), [(1, bytes(300))]),
    ]

    frame = produce_frame(version, topics, acks=1, timeout_ms=1234, transactional_id="tä")

    assert plain(decode(frame)) == ("tä", 1, 1234, topics)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_batch_is_a_view_into_its_request(version):
    frame = produce_frame(version, [(topic_of(version), [(0, BATCH)])])
    records = decode(frame).topics[0].partitions[0].records
    assert records is not None

    records[0:1] = b"\x7f"

    assert records.obj is frame
    assert frame.count(b"\x7f" + BATCH[1:]) == 1


@pytest.mark.parametrize("version", VERSIONS)
def test_bytes_after_a_request_are_refused(version):
    frame = produce_frame(version, [(topic_of(version), [(0, BATCH)])])

    with pytest.raises(MessageDamaged, match="1 bytes follow"):
        decode(frame + b"\0")


@pytest.mark.parametrize("version", VERSIONS)
def test_a_request_cut_anywhere_is_refused(version):
    frame = produce_frame(version, [(topic_of(version), [(0, b"abc")])], transactional_id="t")
    body_at = header_of(frame).body_at

    for size in range(body_at, len(frame)):
        with pytest.raises(MessageDamaged):
            decode_request(frame[:size], body_at, version)


@given(data=st.data())
def test_a_damaged_request_is_refused_or_says_something(data):
    version = data.draw(st.sampled_from(VERSIONS))
    frame = produce_frame(version, [(topic_of(version), [(0, b"abc"), (1, None)])])
    body_at = header_of(frame).body_at
    at = data.draw(st.integers(body_at, len(frame) - 1))
    frame[at] = data.draw(st.integers(0, 255))
    try:
        decode(frame)
    except MessageDamaged:
        pass


@pytest.mark.parametrize("version", [3, 9])
def test_an_array_that_cannot_fit_is_refused_at_once(version):
    lie = b"\x7f\xff\xff\xff" if version < 9 else b"\xff\xff\xff\xff\x07"
    body = (b"\xff\xff" if version < 9 else b"\0") + b"\xff\xff" + bytes(4) + lie + bytes(50)

    with pytest.raises(MessageDamaged, match="items does not fit"):
        decode_request(bytearray(body), 0, version)


def test_tags_are_passed_over():
    frame = produce_frame(9, [("orders", [(0, BATCH)])])
    tagged = frame[:-3] + b"\x01\x05\x02xy" + b"\x00" + b"\x02\x00\x00\x01\x01z"

    assert plain(decode(tagged)) == plain(decode(frame))


# Repeated requests.


def expected_after(frame):
    return Repeated.of(frame, header_of(frame).version, decode(frame))


@pytest.mark.parametrize("version", VERSIONS)
def test_a_repeat_is_recognised_whatever_its_batch_and_correlation_id(version):
    topic = topic_of(version)
    repeated = expected_after(produce_frame(version, [(topic, [(5, BATCH)])], acks=1))
    assert repeated is not None
    assert (repeated.topic, repeated.partition, repeated.acks) == (topic, 5, 1)
    assert repeated.timeout_ms == 1000

    for batch in (BATCH, b"x", bytes(126), bytes(127), bytes(128), bytes(20_000)):
        frame = produce_frame(version, [(topic, [(5, batch)])], acks=1, correlation_id=2**31 - 1)

        found = repeated.batch_in(frame)

        assert found is not None
        assert found == batch
        assert found.obj is frame


OPTIONS = st.fixed_dictionaries(
    {
        "version": st.sampled_from([8, 9, 12, 13]),
        "topic": st.sampled_from(["orders", "orderz", "order", "orders2"]),
        "partition": st.sampled_from([0, 1]),
        "batch": st.sampled_from([None, b"", b"a", b"\x00" * 5, BATCH, BATCH * 3]),
        "acks": st.sampled_from([-1, 0, 1]),
        "timeout_ms": st.sampled_from([1000, 1001]),
        "transactional_id": st.sampled_from([None, None, "t"]),
        "client_id": st.sampled_from(["test", "tesd", "", None]),
        "correlation_id": st.integers(0, 2**31 - 1),
    }
)


def frame_from(options):
    options = dict(options)
    version, partition, batch = (options.pop(k) for k in ("version", "partition", "batch"))
    topic = topic_of(version, options.pop("topic"))
    return produce_frame(version, [(topic, [(partition, batch)])], **options)


@settings(max_examples=200)
@given(
    first=OPTIONS,
    changes=st.dictionaries(
        st.sampled_from(
            [
                "version",
                "topic",
                "partition",
                "batch",
                "acks",
                "timeout_ms",
                "transactional_id",
                "client_id",
                "correlation_id",
            ]
        ),
        st.none(),
        max_size=2,
    ),
    other=OPTIONS,
    mangle=st.none() | st.tuples(st.integers(0, 400), st.sampled_from([b"", b"\0", b"\1", b"\xff"])),
)
def test_whatever_is_taken_for_a_repeat_decodes_to_the_same(first, changes, other, mangle):
    repeated = expected_after(frame_from(first))
    options = {k: other[k] if k in changes else v for k, v in first.items()}
    second = frame_from(options)
    if mangle is not None:  # one byte changed, or bytes cut or added
        at = mangle[0] % len(second)
        second[at : at + 1] = mangle[1]
    if repeated is None:
        return

    batch = repeated.batch_in(second)

    if mangle is None and options["batch"] and set(changes) <= {"batch", "correlation_id"}:
        assert batch is not None
    if batch is not None:
        request = decode(second)
        assert header_of(second).version == repeated.version
        assert plain(request) == (
            None,
            repeated.acks,
            repeated.timeout_ms,
            [(repeated.topic, [(repeated.partition, bytes(batch))])],
        )


@pytest.mark.parametrize(
    "change",
    [
        {"acks": 0},
        {"topic": "orderz"},
        {"topic": "orders2"},
        {"version": 10},
        {"partition": 1},
        {"timeout_ms": 1001},
        {"client_id": "tesd"},
        {"transactional_id": "t"},
        {"batch": None},
        {"batch": b""},
    ],
)
def test_anything_different_is_decoded(change):
    usual = {
        "version": 9,
        "topic": "orders",
        "partition": 0,
        "batch": BATCH,
        "acks": -1,
        "timeout_ms": 1000,
        "client_id": "test",
        "transactional_id": None,
    }
    repeated = expected_after(frame_from(usual))
    assert repeated is not None

    assert repeated.batch_in(frame_from(usual | change)) is None


@pytest.mark.parametrize("version", [8, 9])
def test_a_length_that_does_not_fit_is_decoded(version):
    frame = produce_frame(version, [("orders", [(0, BATCH)])])
    repeated = expected_after(frame)
    assert repeated is not None

    for other in (frame + b"\0", frame[:-1], frame[: len(frame) - len(BATCH) - 4], frame[:12]):
        assert repeated.batch_in(other) is None


def test_tags_are_never_taken_for_a_repeat():
    frame = produce_frame(9, [("orders", [(0, BATCH)])])
    tagged = frame[:-3] + b"\x01\x05\x02xy\0\0"
    repeated = expected_after(frame)
    assert repeated is not None

    assert repeated.batch_in(tagged) is None
    assert expected_after(tagged) is None


def test_a_tag_that_looks_like_a_batch_is_never_taken_for_one():
    batch = b"B" * 80
    frame = produce_frame(9, [("orders", [(0, batch)])])
    # A tagged field of the partition, one byte longer than the batch and with a zero at its end.
    tagged = frame[:-3] + b"\x01\x00" + bytes([81]) + b"T" * 80 + b"\0" + b"\0\0"
    assert bytes(decode(tagged).topics[0].partitions[0].records or b"") == batch

    repeated = expected_after(tagged)

    assert repeated is None or repeated.batch_in(tagged) is None


def test_a_request_for_more_than_one_partition_is_not_expected_again():
    assert expected_after(produce_frame(9, [("a", [(0, BATCH), (1, BATCH)])])) is None
    assert expected_after(produce_frame(9, [("a", [(0, BATCH)]), ("b", [(0, BATCH)])])) is None
    assert expected_after(produce_frame(9, [])) is None
    assert expected_after(produce_frame(9, [("a", [(0, None)])])) is None
    assert expected_after(produce_frame(9, [("a", [(0, BATCH)])], transactional_id="t")) is None


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("error", [0, 3])
def test_the_answer_to_a_repeat_is_the_answer_to_the_request(version, error):
    topic = topic_of(version)
    repeated = expected_after(produce_frame(version, [(topic, [(5, BATCH)])]))
    assert repeated is not None
    answer = PartitionAnswer(
        5, error, base_offset=2**40, append_time_ms=1234, log_start=7, message="no" if error else None
    )

    assert repeated.encode_answer(answer) == encode_response(version, [(topic, [answer])])


# Responses.


@pytest.mark.parametrize("version", VERSIONS)
def test_kio_reads_what_a_response_says(version):
    topic, other = topic_of(version), topic_of(version, "ö" * 3)
    answers = [
        PartitionAnswer(0, 0, base_offset=2**40, append_time_ms=1_700_000_000_123, log_start=9),
        PartitionAnswer(1, 3, message="there is no such ü", record_errors=[(0, "ö"), (70, "b")]),
    ]

    body = encode_response(version, [(topic, answers), (other, [])])

    read = read_response(Api.PRODUCE, version, body)
    assert read.throttle_time == datetime.timedelta(0)
    first, second = read.responses
    name = "topic_id" if version >= 13 else "name"
    assert [getattr(first, name), getattr(second, name)] == [topic, other]
    assert second.partition_responses == ()
    good, bad = first.partition_responses
    assert (good.index, good.error_code, good.base_offset) == (0, 0, 2**40)
    assert good.log_append_time.timestamp() == 1_700_000_000.123
    assert (bad.index, bad.error_code, bad.base_offset, bad.log_append_time) == (1, 3, -1, None)
    if version >= 5:
        assert (good.log_start_offset, bad.log_start_offset) == (9, -1)
    if version >= 8:
        assert (good.error_message, bad.error_message) == (None, "there is no such ü")
        assert good.record_errors == ()
        errors = [(e.batch_index, e.batch_index_error_message) for e in bad.record_errors]
        assert errors == [(0, "ö"), (70, "b")]


def test_a_request_that_kio_wrote_with_nothing_in_it_is_read():
    body = bytearray(encode(request_entity(Api.PRODUCE, 9, {})))

    assert plain(decode_request(body, 0, 9)) == (None, 0, 0, [])


def test_a_message_too_long_for_the_wire_is_cut_between_characters():
    answer = PartitionAnswer(0, 3, message="é" * 20_000)

    read = read_response(Api.PRODUCE, 9, encode_response(9, [("t", [answer])]))

    assert set(read.responses[0].partition_responses[0].error_message) == {"é"}
