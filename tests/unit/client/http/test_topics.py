import json
from datetime import timedelta

import httpx
import pytest

from tests.unit.client.http.fleet import Fleet, Gone, events, ok, problem
from tidelog.client import Conflict, OutcomeUnknown, OutOfRange, Produced, Record, ToProduce

RECORDS = "/v1/topics/t/records"
READ = "/v1/topics/t/partitions/1/records"
STREAM = "/v1/topics/t/stream"


def produced(*places: tuple[int, int]) -> httpx.Response:
    return ok({"records": [{"partition": one, "offset": at} for one, at in places]})


# Topics.


def test_topics_are_made_altered_and_deleted():
    fleet = Fleet()
    fleet.says("/v1/topics", ok({"name": "t"}, 201))
    fleet.says("/v1/topics/t", ok({"name": "t", "deleted": True}))
    topics = fleet.client().topics

    topics.create("t", partitions=3, config={"retention.ms": 5})
    topics.alter("t", partitions=6, config={"retention.ms": None})
    assert topics.delete("t") is True

    (made,) = fleet.questions("/v1/topics")
    altered, deleted = fleet.questions("/v1/topics/t")
    assert (made.method, made.body) == ("POST", {"name": "t", "partitions": 3, "config": {"retention.ms": 5}})
    assert (altered.method, altered.body) == ("PATCH", {"partitions": 6, "config": {"retention.ms": None}})
    assert (deleted.method, deleted.body) == ("DELETE", None)


def test_a_topic_that_is_there_cannot_be_made():
    fleet = Fleet()
    fleet.says("/v1/topics", problem(409, "there is one"))

    with pytest.raises(Conflict):
        fleet.client().topics.create("t")


def test_a_topic_whose_making_was_not_answered_is_described():
    fleet = Fleet()
    fleet.says("/v1/topics", Gone(httpx.ReadError), problem(409, "there is one"))
    fleet.says("/v1/topics/t", ok({"name": "t", "id": "x"}))

    assert fleet.client().topics.create("t")["id"] == "x"


def test_deleting_what_is_not_there_is_said():
    fleet = Fleet()
    fleet.says("/v1/topics/t", problem(404), Gone(httpx.ReadError), problem(404))
    topics = fleet.client().topics

    assert topics.delete("t") is False
    assert topics.delete("t") is True


def test_all_topics_are_listed():
    fleet = Fleet()
    fleet.says(
        "/v1/topics",
        ok({"topics": [{"name": "a"}], "next": "a"}),
        ok({"topics": [{"name": "b"}], "next": None}),
    )

    assert [topic["name"] for topic in fleet.client().topics.list()] == ["a", "b"]


# Records.


@pytest.mark.parametrize(
    ("value", "sent"),
    [
        ({"a": 1}, {"value": {"a": 1}, "encoding": "json"}),
        (None, {"value": None, "encoding": "json"}),
        ("text", {"value": "text", "encoding": "text"}),
        (b"\xff\x00", {"value": "/wA=", "encoding": "base64"}),
    ],
    ids=["json", "tombstone", "text", "bytes"],
)
def test_a_value_is_written_as_what_it_is(value, sent):
    fleet = Fleet()
    fleet.says(RECORDS, produced((0, 7)))

    assert fleet.client().topic("t").produce(value) == Produced(partition=0, offset=7)

    assert fleet.asked[0].body == {"records": [sent]}
    assert fleet.asked[0].key is not None


def test_a_record_has_all_that_was_given():
    fleet = Fleet()
    fleet.says(RECORDS, produced((2, 7)))

    fleet.client().topic("t").produce(
        "[1]",
        key=b"\xff",
        headers={"a": "b"},
        partition=2,
        timestamp_ms=5,
        encoding="json",
        min_replicas_ack=1,
        sync_timeout=timedelta(seconds=2),
        idempotency_key="mine",
    )

    (asked,) = fleet.asked
    assert asked.body == {
        "records": [
            {
                "value": "[1]",
                "encoding": "json",
                "key": "/w==",
                "key_encoding": "base64",
                "headers": {"a": "b"},
                "partition": 2,
                "timestamp_ms": 5,
            }
        ]
    }
    assert asked.query == {"min_replicas_ack": "1", "sync_timeout_ms": "2000"}
    assert asked.key == "mine"


def test_many_records_go_in_one_request_and_come_back_in_order():
    fleet = Fleet()
    fleet.says(RECORDS, produced((1, 5), (0, 9)))

    found = fleet.client().topic("t").produce_many([ToProduce(value=1, key="a"), ToProduce(value=2)])

    assert [(one.partition, one.offset) for one in found] == [(1, 5), (0, 9)]
    assert len(fleet.asked) == 1


def test_a_record_goes_to_the_leader_of_its_partition():
    fleet = Fleet("a:1", "b:2", "c:3")
    fleet.leaders = {"t": ["a:1", "b:2", "c:3"]}
    fleet.says(RECORDS, produced((0, 0)))
    topic = fleet.client().topic("t")
    topic.produce(1)

    topic.produce(1, partition=1)
    topic.produce(1, key="k0")
    topic.produce(1)

    assert [asked.node for asked in fleet.questions(RECORDS)] == ["a:1", "b:2", "c:3", "a:1"]


def record(offset: int, **more: object) -> dict[str, object]:
    return {
        "offset": offset,
        "timestamp_ms": 9,
        "key": "k",
        "value": {"a": 1},
        "headers": {},
        "encoding": "json",
        **more,
    }


def test_a_node_writes_and_reads_by_schemas_of_its_registry():
    fleet = Fleet()
    fleet.says(RECORDS, produced((2, 7)))
    fleet.client().topic("t").produce(
        {"id": 1}, key={"k": 1}, encoding="avro", key_encoding="json-schema", schema={"id": 3}
    )
    assert fleet.asked[0].body == {
        "records": [
            {
                "value": {"id": 1},
                "encoding": "avro",
                "key": {"k": 1},
                "key_encoding": "json-schema",
                "schema": {"id": 3},
            }
        ]
    }

    shown = record(4, encoding="avro", schema={"id": 3})
    broken = record(5, encoding="base64", value="/w==", error="not framed")
    document = {"records": [shown, broken], "next_offset": 6, "high_watermark": 6, "log_start": 1}
    fleet.says(READ, ok(document))
    good, bad = fleet.client().topic("t").read(1, encoding="avro", key_encoding="avro").records
    assert (good.value, good.schema, good.error) == ({"a": 1}, {"id": 3}, None)
    assert (bad.value, bad.schema, bad.error) == (b"\xff", None, "not framed")
    assert fleet.asked[1].query["key_encoding"] == "avro"


def test_records_are_read_from_an_offset_on():
    fleet = Fleet()
    bare = record(5, key=None, value="/w==", encoding="base64")
    document = {"records": [record(4), bare], "next_offset": 6, "high_watermark": 6, "log_start": 1}
    fleet.says(READ, ok(document))

    found = fleet.client().topic("t").read(1, 4, limit=2, wait=0.5)

    assert (found.next_offset, found.high_watermark, found.log_start) == (6, 6, 1)
    assert found.records[0] == Record(
        topic="t", partition=1, offset=4, timestamp_ms=9, key="k", value={"a": 1}, headers={}, encoding="json"
    )
    assert (found.records[1].value, found.records[1].key) == (b"\xff", None)
    assert fleet.asked[0].query == {
        "offset": "4",
        "limit": "2",
        "wait_ms": "500",
        "encoding": "auto",
        "isolation": "committed",
    }


def test_an_offset_that_is_gone_is_out_of_range():
    fleet = Fleet()
    fleet.says(READ, problem(416, "the log holds 5 to 9"))

    with pytest.raises(OutOfRange, match="5 to 9"):
        fleet.client().topic("t").read(1, 4)


def test_a_stream_gives_records_with_their_cursors_and_goes_on_after_a_loss():
    fleet = Fleet()
    first = f"id: c1\ndata: {json.dumps(record(1, partition=0))}\n\n"
    second = f"id: c2\ndata: {json.dumps(record(8, partition=2))}\n\n"
    fleet.says(STREAM, events(first, lost=True), events(second))

    stream = fleet.client().topic("t").stream(from_="earliest", partitions=[0, 2])

    found = [next(stream), next(stream)]
    stream.close()
    assert [(one.partition, one.offset, one.cursor) for one in found] == [(0, 1, "c1"), (2, 8, "c2")]
    asked = fleet.questions(STREAM)
    assert asked[0].query == {"from": "earliest", "partitions": "0,2", "encoding": "auto"}
    assert asked[1].query == {**asked[0].query, "from": "c1"}


@pytest.mark.parametrize(
    "farewell",
    [
        'event: dropped\nid: c1\ndata: {"reason": "slow", "cursor": "c1"}\n\n',
        'event: error\nid: c1\ndata: {"status": 503, "detail": "the node is stopping"}\n\n',
    ],
    ids=["slow", "stopping"],
)
def test_a_stream_that_a_node_ends_for_now_goes_on_from_where_it_says(farewell):
    fleet = Fleet()
    item = f"id: c2\ndata: {json.dumps(record(1, partition=0))}\n\n"
    fleet.says(STREAM, events("id: c0\n\n", farewell), events(item))

    stream = fleet.client().topic("t").stream()

    assert next(stream).offset == 1
    stream.close()
    assert [asked.query["from"] for asked in fleet.questions(STREAM)] == ["latest", "c1"]


def test_a_stream_that_a_node_ends_for_good_is_an_error():
    fleet = Fleet()
    gone = {"status": 416, "detail": "the log holds 5 to 9", "log_start": 5}
    fleet.says(STREAM, events(f"event: error\nid: c1\ndata: {json.dumps(gone)}\n\n"))

    with pytest.raises(OutOfRange, match="5 to 9") as caught:
        next(fleet.client().topic("t").stream())

    assert caught.value.problem["log_start"] == 5


def test_records_of_which_some_were_written_have_no_known_outcome():
    fleet = Fleet()
    told = [{"partition": 0, "offset": 4}, {"partition": 1, "error": {"status": 503}}]
    fleet.says(RECORDS, problem(503, "1 of 2 records were written", records=told))

    with pytest.raises(OutcomeUnknown) as caught:
        fleet.client().topic("t").produce_many([ToProduce(value=1), ToProduce(value=2)])

    assert caught.value.known["records"] == told


def test_names_are_not_empty():
    client = Fleet().client()

    with pytest.raises(ValueError, match="name"):
        client.topic("")
    with pytest.raises(ValueError, match="name"):
        client.kv("")
