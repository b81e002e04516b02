import datetime
from uuid import UUID

import pytest

from tests.unit.wire.messages import read_response
from tidelog.host import Bytes
from tidelog.wire.apis import APIS, Api
from tidelog.wire.fetch import PartitionFetched, encode_response

VERSIONS = range(APIS[Api.FETCH].taken_from, APIS[Api.FETCH].most + 1)
LARGE = bytes(range(256)) * 80


def topic_of(version, number):
    return UUID(int=number) if version >= 13 else f"topic-{number}"


@pytest.mark.parametrize("version", VERSIONS)
def test_kio_reads_what_a_response_says(version):
    buffers: list[Bytes] = [b"small", LARGE, memoryview(b"more"), LARGE]
    size = sum(map(len, buffers))
    topics = [
        (
            topic_of(version, 1),
            [PartitionFetched(4, 0, 2**40, 2**40 - 1, 17, buffers, size), PartitionFetched(5, 1)],
        ),
        (topic_of(version, 2), []),
        (topic_of(version, 3), [PartitionFetched(0, 0, 10, 10, 0, [b"x"], 1)]),
    ]

    pieces = encode_response(version, error=0, session_id=2**31 - 1, topics=topics)

    read = read_response(Api.FETCH, version, b"".join(pieces))
    assert read.throttle_time == datetime.timedelta(0)
    if version >= 7:
        assert (read.error_code, read.session_id) == (0, 2**31 - 1)
    name = "topic_id" if version >= 13 else "topic"
    assert [getattr(t, name) for t in read.responses] == [topic for topic, _ in topics]
    (good, bad), nothing, (last,) = (topic.partitions for topic in read.responses)
    assert nothing == ()
    assert (good.partition_index, good.error_code, good.high_watermark) == (4, 0, 2**40)
    assert good.last_stable_offset == 2**40 - 1
    assert good.records == b"".join(buffers)
    assert (bad.partition_index, bad.error_code, bad.high_watermark) == (5, 1, -1)
    assert bad.records == b""  # never null: some clients cannot read that
    assert last.records == b"x"
    assert good.aborted_transactions is None
    if version >= 5:
        assert (good.log_start_offset, bad.log_start_offset) == (17, -1)
    if version >= 11:
        assert good.preferred_read_replica == -1


@pytest.mark.parametrize("version", [v for v in VERSIONS if v >= 7])
def test_an_error_of_the_whole_fetch_stands_at_the_top(version):
    body = b"".join(encode_response(version, error=70, session_id=0, topics=()))

    read = read_response(Api.FETCH, version, body)

    assert (read.error_code, read.session_id, read.responses) == (70, 0, ())


@pytest.mark.parametrize("version", [11, 12])
def test_large_buffers_are_sent_from_where_they_lie(version):
    fetched = PartitionFetched(0, 0, 1, 1, 0, [LARGE, b"small"], len(LARGE) + 5)

    pieces = encode_response(version, error=0, session_id=0, topics=[("t", [fetched])])

    assert [piece is LARGE for piece in pieces] == [False, True, False]


def test_buffers_are_joined_to_pieces_of_a_bounded_size():
    """One piece that grew with the answer would be copied again and again."""
    small, middle = b"s" * 100, b"m" * 5000
    buffers = [small] * 3000 + [middle] * 3
    fetched = PartitionFetched(0, 0, 1, 1, 0, buffers, sum(map(len, buffers)))

    pieces = encode_response(12, error=0, session_id=0, topics=[("t", [fetched])])

    assert b"".join(buffers) in b"".join(pieces)
    assert all(pieces), "no piece is empty"
    assert max(map(len, pieces)) < 66_000
    assert 5 < len(pieces) < 12
    assert sum(piece is middle for piece in pieces) == 3
