"""Records written and read over HTTP."""

import asyncio
import json
from typing import Any

import pytest

from tests.unit.broker.node import batch_of, on_a_node
from tests.unit.faces.http.test_app import Answer, ask, face
from tidelog.faces.http.app import make_app
from tidelog.records import Record, encode_batch
from tidelog.services.services import Services
from tidelog.simulation.http_door import Door, Message

WRITE = "/v1/topics/t/records"
READ = "/v1/topics/t/partitions/0/records"


def serving(node) -> Any:
    """The application of a node that has its services."""
    found = face(node)
    found.services = Services(node.broker)
    found.stop_wanted = asyncio.get_running_loop().create_future()
    app = make_app(found)
    app.node = found  # type: ignore[attr-defined]
    return app


async def post(app, *records: dict[str, Any], path: str = WRITE, key: str | None = None) -> Answer:
    headers = {"content-type": "application/json"} | ({"idempotency-key": key} if key else {})
    body = json.dumps({"records": records}).encode()
    return await ask(app, path, method="POST", headers=headers, chunks=(body,))


async def read(app, query: str = "") -> Any:
    answer = await ask(app, READ + query)
    assert answer.status == 200, answer.body
    return answer.json


# Writing.


def test_what_is_written_as_json_text_or_base64_is_read_as_it_was():
    async def story(node):
        await node.create("t")
        app = serving(node)
        sent: list[dict[str, Any]] = [
            {"value": {"a": [1, 2.5, None]}},
            {"value": "words", "encoding": "text"},
            {"value": "AP8=", "encoding": "base64"},
            {"value": None, "key": "gone"},
            {
                "value": 1,
                "key": "AP8=",
                "key_encoding": "base64",
                "timestamp_ms": 1_000_000,
                "headers": {"a": "text", "b": None, "c": {"base64": "/w=="}, "d": ["1", "2", None]},
            },
        ]

        answer = await post(app, *sent)

        assert answer.status == 200
        assert answer.json == {"records": [{"partition": 0, "offset": n} for n in range(5)]}
        found = (await read(app))["records"]
        for record, wanted in zip(found, sent, strict=True):
            defaults = {"key": None, "headers": {}, "encoding": "json", "timestamp_ms": node.clock.wall_ms()}
            assert record == defaults | wanted | {"offset": record["offset"]}

    on_a_node(story, log_message_timestamp_before_max_ms=2**62)


def test_a_body_of_text_or_bytes_is_the_value_of_one_record():
    async def story(node):
        await node.create("t", 3)
        app = serving(node)
        for n, kind in enumerate(("text/plain; charset=utf-8", "application/octet-stream")):
            answer = await ask(
                app,
                f"{WRITE}?key=k&partition=2",
                method="POST",
                headers={"content-type": kind},
                chunks=(b"not ", b"JSON"),
            )
            assert answer.json == {"records": [{"partition": 2, "offset": n}]}

        found = (await ask(app, READ.replace("/0/", "/2/"))).json["records"]
        assert [(one["key"], one["value"], one["encoding"]) for one in found] == [
            ("k", "not JSON", "text")
        ] * 2

    on_a_node(story)


def test_a_foreign_page_cannot_write_by_sending_text_unasked():
    async def story(node):
        await node.create("t")
        headers = {"content-type": "text/plain", "origin": "http://evil", "host": "here"}
        answer = await ask(serving(node), WRITE, method="POST", headers=headers, chunks=(b"x",))
        assert answer.status == 403 and node.broker.partition("t", 0).log.end == 0

    on_a_node(story)


@pytest.mark.parametrize(
    ("record", "says"),
    [
        ({}, "value"),
        ({"value": 1, "encoding": "text"}, r"records\[1\]: a value in text is a string"),
        ({"value": "x", "encoding": "base64"}, "base64"),
        ({"value": "x", "encoding": "hex"}, "hex"),
        ({"value": 1, "key": 1}, "key"),
        ({"value": 1, "key": "x", "key_encoding": "base64"}, r"records\[1\]"),
        ({"value": 1, "headers": {"a": 1}}, "headers"),
        ({"value": 1, "partition": 9}, r"records\[1\] is for partition 9"),
        ({"value": 1, "timestamp_ms": -1}, "timestamp_ms"),
        ({"value": 1, "timestamp_ms": 2**61}, r"records\[1\]"),
        ({"value": 1, "offset": 3}, "offset"),
    ],
)
def test_one_record_that_is_wrong_refuses_the_request(record, says):
    async def story(node):
        await node.create("t", 2)
        answer = await post(serving(node), {"value": 1}, record)

        assert answer.status == 400
        assert pytest.raises(AssertionError, match=says).matches(AssertionError(answer.json["detail"]))
        assert sum(node.broker.partition("t", n).log.end for n in range(2)) == 0

    on_a_node(story)


@pytest.mark.parametrize(
    ("body", "kind", "path", "status"),
    [
        (b'{"records":[]}', "application/json", WRITE, 400),
        (b'{"records":[{"value":"\xff"}]}', "application/json", WRITE, 400),
        (b"{", "application/json", WRITE, 400),
        (b"{}", "text/html", WRITE, 415),
        (b'{"records":[{"value":1}]}', "application/json", f"{WRITE}?key=k", 400),
        (b"x", "text/plain", f"{WRITE}?partition=7", 400),
        (b"x", "text/plain", f"{WRITE}?min_replicas_ack=1", 400),
        (b"x" * 2000, "text/plain", WRITE, 413),
    ],
)
def test_a_request_that_cannot_be_done_is_refused(body, kind, path, status):
    async def story(node):
        await node.create("t", max_message_bytes="1000")
        answer = await ask(serving(node), path, method="POST", headers={"content-type": kind}, chunks=(body,))
        assert (answer.status, node.broker.partition("t", 0).log.end) == (status, 0)

    on_a_node(story)


def test_a_repeated_request_has_the_same_answer_and_another_one_with_its_key_is_refused():
    async def story(node):
        await node.create("t", 4)
        app = serving(node)

        first = await post(app, {"value": 1}, {"value": 2, "key": "k"}, key="abc")
        again = await post(app, {"value": 1}, {"value": 2, "key": "k"}, key="abc")
        other = await post(app, {"value": 1}, {"value": 1}, {"value": 2, "key": "k"}, key="abc")

        assert first.status == 200 and again.json == first.json
        assert other.status == 422
        assert "this Idempotency-Key was used for another request" in other.json["detail"]

    on_a_node(story)


def test_what_became_of_each_record_is_told_if_some_were_not_written():
    async def story(node):
        await node.create("t", 2)
        node.broker.partition("t", 1).log.refusal = "broken"

        answer = await post(serving(node), {"value": 1, "partition": 0}, {"value": 2, "partition": 1})

        assert answer.status == 503 and "broken" in answer.json["detail"]
        good, bad = answer.json["records"]
        assert good == {"partition": 0, "offset": 0}
        assert (bad["partition"], bad["error"]["status"]) == (1, 503)
        assert "broken" in bad["error"]["detail"]

    on_a_node(story)


def test_a_write_that_is_not_seen_to_be_committed_says_what_is_known_of_it():
    async def story(node):
        await node.create("t")
        answer = await post(serving(node), {"value": 1}, path=f"{WRITE}?sync_timeout_ms=1")
        assert (answer.status, answer.json["outcome"], answer.json["offset"]) == (504, "unknown", 0)
        assert {"written", "committed", "replicas"} <= set(answer.json)

    on_a_node(_with_slow_disk(story))


def _with_slow_disk(story):
    async def slow(node):
        run = node.broker.host.offload.run
        loop = asyncio.get_running_loop()

        def later(work, *lane):
            future = loop.create_future()

            def begin():
                done = run(work, *lane)
                done.add_done_callback(lambda one: future.cancelled() or _copy(one, future))

            loop.call_later(0.05, begin)
            return future

        node.broker.host.offload.run = later
        await story(node)
        node.broker.host.offload.run = run
        await asyncio.sleep(1)

    return slow


def _copy(done, future):
    if done.exception() is not None:
        future.set_exception(done.exception())
    else:
        future.set_result(done.result())


# Reading.


def test_records_are_read_page_by_page_from_an_offset_or_a_time():
    async def story(node):
        await node.create("t")
        app = serving(node)
        for n in range(5):
            await node.produce("t", batch_of(b"%d" % n, time_ms=1000 * n))

        page = await read(app, "?limit=2")
        assert [one["offset"] for one in page["records"]] == [0, 1]
        assert page["next_offset"] == 2
        assert (page["high_watermark"], page["log_start"]) == (5, 0)
        page = await read(app, f"?offset={page['next_offset']}")
        assert [one["value"] for one in page["records"]] == [2, 3, 4]
        page = await read(app, "?time_ms=2500")
        assert [one["timestamp_ms"] for one in page["records"]] == [3000, 4000]
        await node.produce("t", batch_of(b"5", b"6", b"7"))
        assert (await read(app, "?offset=5&max_bytes=2"))["next_offset"] == 7

    on_a_node(story)


def test_a_value_is_shown_as_it_is_asked_for():
    async def story(node):
        await node.create("t")
        app = serving(node)
        await node.produce("t", batch_of(b"[1]", b"\xff"))

        async def shown(encoding: str) -> list[tuple[Any, str]]:
            found = (await read(app, f"?encoding={encoding}"))["records"]
            return [(one["value"], one["encoding"]) for one in found]

        assert await shown("auto") == [([1], "json"), ("/w==", "base64")]
        assert await shown("text") == [("[1]", "text"), ("/w==", "base64")]
        assert await shown("base64") == [("WzFd", "base64"), ("/w==", "base64")]

    on_a_node(story)


def test_a_reader_who_waits_is_answered_when_something_comes():
    async def story(node):
        await node.create("t")
        app = serving(node)
        waiting = asyncio.create_task(read(app, "?wait_ms=30000"))
        await asyncio.sleep(5)
        assert not waiting.done()
        await node.produce("t", batch_of(b"1"))
        assert [one["value"] for one in (await waiting)["records"]] == [1]
        assert (await read(app, "?offset=1&wait_ms=10"))["records"] == []

    on_a_node(story)


def test_a_reader_who_hangs_up_is_waited_for_no_more():
    async def story(node):
        await node.create("t")
        heard: asyncio.Queue[Message] = asyncio.Queue()
        door = Door(serving(node), "GET", f"{READ}?wait_ms=30000", heard.put)
        asking = asyncio.create_task(door.run())
        await asyncio.sleep(1)
        watchers = node.broker.partition("t", 0)._watchers
        assert len(watchers) == 1
        door.hang_up()
        await asking
        assert not watchers and node.clock.monotonic() < 5

    on_a_node(story)


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("?offset=1&time_ms=1", 400),
        ("?wait_ms=30001", 400),
        ("?limit=0", 400),
        ("?limit=10001", 400),
        ("?encoding=hex", 400),
        ("?isolation=none", 400),
        ("?offset=-1", 400),
        ("?offset=9", 416),
        ("?max_bytes=0", 400),
    ],
)
def test_a_read_that_makes_no_sense_is_refused(query, status):
    async def story(node):
        await node.create("t")
        assert (await ask(serving(node), READ + query)).status == status

    on_a_node(story)


def test_an_offset_that_is_not_there_is_refused_with_those_that_are():
    async def story(node):
        await node.create("t")
        await node.produce("t", batch_of(b"a", b"b", b"c"))
        await node.broker.advance_start(node.broker.partition("t", 0), 2)

        answer = await ask(serving(node), f"{READ}?offset=1")

        assert (answer.status, answer.json["log_start"], answer.json["high_watermark"]) == (416, 2, 3)

    on_a_node(story)


@pytest.mark.parametrize("path", ["/v1/topics/t/partitions/1/records", READ.replace("/t/", "/u/")])
def test_a_partition_that_is_not_there_is_unknown(path):
    async def story(node):
        await node.create("t")
        assert (await ask(serving(node), path)).status == 404

    on_a_node(story)


def test_a_large_page_is_made_away_from_the_loop():
    async def story(node):
        await node.create("t")
        records = [Record(value=b'{"n":1}', timestamp_ms=1000)] * 5000
        await node.produce("t", encode_batch(records))
        app = serving(node)
        assert len((await read(app, "?limit=10000"))["records"]) == 5000

    on_a_node(story)
