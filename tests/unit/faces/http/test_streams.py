"""Streams of records, without connections that carry them."""

import asyncio
import json
from base64 import urlsafe_b64encode
from contextlib import suppress
from copy import deepcopy
from typing import Any

import pytest

from tests.unit.broker.node import batch_of, on_a_node
from tests.unit.faces.http.test_app import ask
from tests.unit.faces.http.test_records import serving
from tidelog.broker.topics import delete_topic
from tidelog.controller.image import ClusterImage
from tidelog.errors import LeaderNotAvailable, RequestTimedOut
from tidelog.faces.http.push import HEARTBEAT_SECONDS, SLOW_SECONDS, Event, Feed
from tidelog.faces.http.streams import Cursor, read_cursor, write_cursor
from tidelog.simulation.http_door import Closed, Door, Message, Piece, Said, Started
from tidelog.wire.apis import Api

SECONDS_MAX = 300.0
"""For how long a stream is listened to that should say something; these are not real ones."""
STREAM = "/v1/topics/t/stream"
SOCKET = "/v1/topics/t/ws"


class Listener:
    """A client of a stream: it reads while its window is open, and hangs up at the end."""

    def __init__(self, app, path: str, *, last: str | None = None) -> None:
        self.reads = asyncio.Event()
        self.reads.set()
        self.is_slow = False
        """Whether it reads one message each time that it is told to."""
        self._heard = asyncio.Event()
        self.messages: list[Message] = []
        self.is_socket = path.partition("?")[0].endswith("/ws")
        headers = {} if last is None else {"last-event-id": last}
        method = "WS" if self.is_socket else "GET"
        self._door = Door(app, method, path, self._tell, headers=headers)
        self.served = asyncio.create_task(self._door.run())

    async def _tell(self, message: Message) -> None:
        await self.reads.wait()
        if self.is_slow:
            self.reads.clear()
        self.messages.append(message)
        self._heard.set()

    async def hang_up(self) -> None:
        self._door.hang_up()
        await self.end()

    async def end(self) -> None:
        """Wait until it is over."""
        async with asyncio.timeout(SECONDS_MAX):
            await self.served

    @property
    def text(self) -> str:
        return b"".join(one.body for one in self.messages if isinstance(one, Piece)).decode()

    @property
    def status(self) -> int:
        start = self.messages[0]
        assert isinstance(start, Started)
        return start.status

    def events(self) -> list[dict[str, Any]]:
        """Everything that was heard: kind, cursor and the fields of the data."""
        if self.is_socket:
            heard = [json.loads(one.message) for one in self.messages if isinstance(one, Said)]
            return [{"kind": one.pop("event", ""), **one} for one in heard]
        found = []
        for block in self.text.split("\n\n"):
            fields = dict(line.split(": ", 1) for line in block.split("\n") if ": " in line[1:])
            if "data" in fields:
                data = json.loads(fields["data"])
                found.append(data | {"kind": fields.get("event", ""), "cursor": fields["id"]})
        return found

    def values(self) -> list[Any]:
        return [one["value"] for one in self.events() if not one["kind"]]

    async def hear(self, count: int) -> list[Any]:
        """The values, once there are so many."""
        until = asyncio.get_running_loop().time() + SECONDS_MAX
        while len(self.values()) < count:
            self._heard.clear()
            if self.served.done():
                self.served.result()
                raise AssertionError(f"it ended: {self.events()}")
            assert asyncio.get_running_loop().time() < until, self.values()
            with suppress(TimeoutError):
                async with asyncio.timeout(1):
                    await self._heard.wait()
        return self.values()


def watchers(node, count: int = 1) -> int:
    return sum(len(node.broker.partition("t", n)._watchers) for n in range(count))


def anywhere(positions: dict[int, int]) -> str:
    """A cursor of whichever topic has the name now."""
    return write_cursor(Cursor(None, positions))


def cursor_of(node, positions: dict[int, int]) -> str:
    return write_cursor(Cursor(node.broker.image.topics["t"].id.hex, positions))


both = pytest.mark.parametrize("path", [STREAM, SOCKET])


@both
def test_records_are_heard_from_the_beginning_and_as_they_come(path):
    async def story(node):
        await node.create("t")
        await node.produce("t", batch_of(b'{"n": 1}', b"text\nof two lines"))
        listener = Listener(serving(node), f"{path}?from=earliest")

        assert await listener.hear(2) == [{"n": 1}, "text\nof two lines"]
        await node.produce("t", batch_of(b"[\n3\r\n]"))
        assert (await listener.hear(3))[2] == [3]

        last = listener.events()[-1]
        assert read_cursor(last.pop("cursor")).positions == {0: 3}
        assert last == {
            "kind": "",
            "partition": 0,
            "offset": 2,
            "timestamp_ms": 1000,
            "key": None,
            "value": [3],
            "headers": {},
            "encoding": "json",
        }
        await listener.hang_up()

    on_a_node(story)


@both
def test_by_default_only_what_comes_from_now_on_is_heard(path):
    async def story(node):
        await node.create("t")
        await node.produce("t", batch_of(b"1"))
        listener = Listener(serving(node), path)
        await asyncio.sleep(1)
        await node.produce("t", batch_of(b"2"))

        assert await listener.hear(1) == [2]
        await listener.hang_up()

    on_a_node(story)


def test_an_event_stream_has_the_headers_that_browsers_and_proxies_want():
    async def story(node):
        await node.create("t")
        listener = Listener(serving(node), f"{STREAM}?from=earliest")
        await asyncio.sleep(1)
        start = listener.messages[0]
        assert isinstance(start, Started)
        assert start.headers["content-type"].startswith("text/event-stream")
        assert start.headers["cache-control"] == "no-store" and start.headers["x-request-id"]
        # Whoever loses it before the first event goes on from where it began, too.
        assert f"id: {cursor_of(node, {0: 0})}\n\n" in listener.text and "retry: " in listener.text
        await listener.hang_up()

    on_a_node(story)


@both
def test_a_cursor_goes_on_in_every_partition_without_gap_or_repeat(path):
    async def story(node):
        await node.create("t", 3)
        app = serving(node)
        sent = []
        for n in range(30):
            await node.produce("t", batch_of(b"%d" % n), partition=n % 3)
            sent.append(n)
        heard: list[int] = []
        cursor = "earliest"
        for _ in range(30):
            if len(heard) == 30:
                break
            listener = Listener(app, f"{path}?from={cursor}")
            await listener.hear(1)
            await listener.hang_up()
            some = listener.events()[: 1 + len(heard) % 7]  # the client may not get to the last
            heard += [one["value"] for one in some]
            cursor = some[-1]["cursor"]

        assert sorted(heard) == sent
        for number in range(3):
            assert [n for n in heard if n % 3 == number] == sent[number::3]

    on_a_node(story)


def test_a_browser_that_connects_again_goes_on_after_its_last_event():
    async def story(node):
        await node.create("t")
        await node.produce("t", batch_of(b"0", b"1", b"2"))
        listener = Listener(serving(node), f"{STREAM}?from=earliest", last=anywhere({0: 2}))
        assert await listener.hear(1) == [2]
        await listener.hang_up()

    on_a_node(story)


def test_a_partition_that_came_after_the_cursor_is_heard_from_its_beginning():
    async def story(node):
        await node.create("t", 2)
        for number in range(2):
            await node.produce("t", batch_of(b"%d" % number), partition=number)
        listener = Listener(serving(node), f"{STREAM}?from={anywhere({0: 1})}")
        assert await listener.hear(1) == [1]
        await listener.hang_up()

    on_a_node(story)


def test_only_the_partitions_that_are_named_are_heard():
    async def story(node):
        await node.create("t", 3)
        for number in range(3):
            await node.produce("t", batch_of(b"%d" % number), partition=number)
        listener = Listener(serving(node), f"{STREAM}?from=earliest&partitions=2,0,2&encoding=text")
        assert sorted(await listener.hear(2)) == ["0", "2"]
        assert read_cursor(listener.events()[-1]["cursor"]).positions == {0: 1, 2: 1}
        await listener.hang_up()

    on_a_node(story)


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("from=yesterday", 400),
        ("from=e30x", 400),
        (f"from={urlsafe_b64encode(b'[null,{},' + b'[' * 5000 + b']' * 5001).decode()}", 400),
        (f"from={anywhere({5: 0})}", 400),
        (f"from={anywhere({0: -1})}", 400),
        (f"from={anywhere({0: 9})}", 416),
        (f"from={anywhere({0: 0})}", 416),
        ("partitions=a", 400),
        ("partitions=", 400),
        ("partitions=2", 404),
        ("encoding=hex", 400),
        ("to=latest", 400),
    ],
)
@both
def test_a_stream_that_cannot_be_is_refused_before_it_begins(path, query, status):
    async def story(node):
        await node.create("t", 2)
        await node.produce("t", batch_of(b"1", b"2"))
        await node.broker.advance_start(node.broker.partition("t", 0), 1)
        listener = Listener(serving(node), f"{path}?{query}")
        await listener.end()
        assert listener.status == status

    on_a_node(story)


def test_a_topic_that_is_not_there_has_no_stream_and_one_of_too_many_partitions_neither():
    async def story(node):
        await node.create("t", 300)
        app = serving(node)
        assert (await ask(app, STREAM.replace("/t/", "/u/"))).status == 404
        refused = await ask(app, STREAM)
        assert refused.status == 400 and "partitions=0,1" in refused.json["detail"]

    on_a_node(story)


@both
def test_who_has_nothing_to_hear_hears_a_heartbeat(path):
    async def story(node):
        await node.create("t")
        listener = Listener(serving(node), path)
        await asyncio.sleep(3 * HEARTBEAT_SECONDS - 1)
        if listener.is_socket:
            beats = [one for one in listener.events() if one["kind"] == "heartbeat"]
            assert beats == [{"kind": "heartbeat", "cursor": cursor_of(node, {0: 0})}] * 2
        else:
            assert listener.text.count(": heartbeat\n\n") == 2
        await listener.hang_up()

    on_a_node(story)


@both
def test_a_client_that_goes_leaves_nothing_behind(path):
    async def story(node):
        await node.create("t", 3)
        app = serving(node)
        before = asyncio.all_tasks()
        listener = Listener(app, path)
        await asyncio.sleep(1)
        assert watchers(node, 3) == 3
        await listener.hang_up()
        assert watchers(node, 3) == 0
        assert asyncio.all_tasks() <= before

    on_a_node(story)


@both
def test_a_client_that_reads_too_slowly_is_told_why_and_where_to_go_on(path):
    async def story(node):
        await node.create("t")
        for n in range(20):
            await node.produce("t", batch_of(b'"%02d%s"' % (n, b"x" * 200_000)))
        listener = Listener(serving(node), f"{path}?from=earliest")
        await listener.hear(1)
        listener.reads.clear()
        await asyncio.sleep(SLOW_SECONDS + 5)
        assert watchers(node) == 0  # nobody reads for it any more
        listener.reads.set()
        await listener.end()

        *records, dropped = listener.events()
        assert (dropped["kind"], dropped["reason"]) == ("dropped", "slow")
        assert read_cursor(dropped["cursor"]).positions == {0: len(records)}
        assert 0 < len(records) < 20
        if listener.is_socket:
            assert isinstance(last := listener.messages[-1], Closed) and last.code == 1013

    on_a_node(story)


def test_a_slow_client_that_reads_on_is_not_dropped():
    async def story(node):
        await node.create("t")
        for n in range(20):
            await node.produce("t", batch_of(b'"%02d%s"' % (n, b"x" * 200_000)))
        listener = Listener(serving(node), f"{STREAM}?from=earliest")
        listener.is_slow = True
        while len(listener.values()) < 20:
            assert not listener.served.done(), listener.events()[-1]
            await asyncio.sleep(SLOW_SECONDS - 1)
            listener.reads.set()
        assert [value[:2] for value in listener.values()] == [f"{n:02d}" for n in range(20)]
        await listener.hang_up()

    on_a_node(story)


def test_what_waits_for_a_client_is_bounded():
    async def story():
        feed = Feed(bytes_max=100)
        event = Event(b"x" * 60, "")

        async def put():
            assert await feed.room()
            feed.put([event])

        await put()
        await put()
        waiting = [asyncio.create_task(put()) for _ in range(2)]
        await asyncio.sleep(0)
        assert not any(task.done() for task in waiting)
        assert await feed.take() == [event, event]
        await asyncio.gather(*waiting)
        feed.end("error", 1008, {"detail": "enough"})
        assert not await feed.room()
        assert await feed.take() == [event, event]  # what was put before is heard before
        assert [one.kind for one in await feed.take()] == ["error"]
        assert await feed.take() == await feed.take() == []

    asyncio.run(story())


@both
def test_a_topic_that_is_deleted_is_the_end_of_its_stream(path):
    async def story(node):
        await node.create("t")
        await node.produce("t", batch_of(b"1"))
        listener = Listener(serving(node), f"{path}?from=earliest")
        await listener.hear(1)
        cursor = cursor_of(node, {0: 1})
        await delete_topic(node.broker, "t", None)
        await listener.end()

        error = listener.events()[-1]
        assert (error["kind"], error["status"]) == ("error", 404)
        assert error["cursor"] == cursor

    on_a_node(story)


def test_another_topic_of_the_same_name_is_not_gone_on_with():
    async def story(node):
        await node.create("t")
        await node.produce("t", batch_of(b"1"))
        app = serving(node)
        listener = Listener(app, f"{STREAM}?from=earliest")
        await listener.hear(1)
        read = app.node.services.records.read

        async def read_late(*asked, **options):
            await delete_topic(node.broker, "t", None)
            await node.create("t")
            await node.produce("t", batch_of(b"another", b"one"))
            app.node.services.records.read = read
            return await read(*asked, **options)

        app.node.services.records.read = read_late
        await node.produce("t", batch_of(b"2"))
        await listener.end()

        assert listener.values() == [1, 2]
        assert "another has its name" in listener.events()[-1]["detail"]

    on_a_node(story)


@both
def test_a_cursor_of_a_topic_that_was_made_anew_is_not_gone_on_with(path):
    async def story(node):
        await node.create("t")
        cursor = cursor_of(node, {0: 1})
        await delete_topic(node.broker, "t", None)
        await node.create("t")
        await node.produce("t", batch_of(b"another", b"one"))
        listener = Listener(serving(node), f"{path}?from={cursor}")
        await listener.end()

        assert listener.status == 404
        assert listener.values() == []

    on_a_node(story)


def test_offsets_that_are_deleted_under_a_reader_are_told_and_not_passed_over():
    async def story(node):
        await node.create("t")
        await node.produce("t", batch_of(b"1"))
        app = serving(node)
        listener = Listener(app, f"{STREAM}?from=earliest")
        await listener.hear(1)
        read = app.node.services.records.read

        async def read_late(*asked, **options):
            await node.produce("t", batch_of(b"3"))
            await node.broker.advance_start(node.broker.partition("t", 0), 3)
            return await read(*asked, **options)

        app.node.services.records.read = read_late
        await node.produce("t", batch_of(b"2"))
        await listener.end()

        error = listener.events()[-1]
        assert (error["kind"], error["status"], error["log_start"]) == ("error", 416, 3)
        assert listener.values() == [1, 2]

    on_a_node(story)


def test_a_stream_goes_on_when_nobody_led_for_a_while():
    async def story(node):
        await node.create("t")
        app = serving(node)
        service = app.node.services.records
        listener = Listener(app, f"{STREAM}?from=earliest")
        await asyncio.sleep(1)
        read = service.read
        failures: list[int] = []

        async def fail_first(*asked, **options):
            if len(failures) < 5:
                failures.append(1)
                raise LeaderNotAvailable("nobody leads")
            return await read(*asked, **options)

        service.read = fail_first
        await node.produce("t", batch_of(b"1"))
        await listener.hear(1)
        await node.produce("t", batch_of(b"2"))

        assert await listener.hear(2) == [1, 2] and len(failures) == 5
        await listener.hang_up()

    on_a_node(story)


@both
def test_a_node_that_stops_sends_its_listeners_elsewhere(path):
    async def story(node):
        await node.create("t")
        await node.produce("t", batch_of(b"1"))
        app = serving(node)
        listener = Listener(app, f"{path}?from=earliest")
        await listener.hear(1)
        app.node.stop_wanted.set_result(None)
        await listener.end()

        error = listener.events()[-1]
        assert (error["kind"], error["status"]) == ("error", 503) and "stopping" in error["detail"]
        if listener.is_socket:
            assert isinstance(last := listener.messages[-1], Closed) and last.code == 1012
        else:
            assert listener.messages[-1] == Piece(b"", True)

    on_a_node(story)


def test_a_bug_ends_a_stream_with_an_error_and_a_line_in_the_log(caplog):
    async def story(node):
        await node.create("t")
        app = serving(node)
        listener = Listener(app, STREAM)
        await asyncio.sleep(1)

        async def fail(*asked, **options):
            raise ZeroDivisionError

        app.node.services.records.read = fail
        await node.produce("t", batch_of(b"1"))
        await listener.end()
        assert listener.events()[-1]["status"] == 500 and "ZeroDivisionError" in caplog.text

    on_a_node(story)


async def made_anew(node):
    await delete_topic(node.broker, "t", None)
    await node.create("t", 2)


async def given_partitions(node):
    topics = [{"name": "t", "count": 2, "assignments": None}]
    answer = await node.ask(Api.CREATE_PARTITIONS, 3, topics=topics, timeout=1000)
    assert answer.results[0].error_code == 0, answer


def let_lag(node, before: ClusterImage) -> None:
    """Let the node know nothing since `before`, until it asks the quorum."""
    metadata = node.broker.metadata
    newest, change = metadata.image, metadata.change

    async def catch_up(decide):
        metadata.image, metadata.change = newest, change
        return await change(decide)

    metadata.image, metadata.change = before, catch_up


@both
@pytest.mark.parametrize("changed", [made_anew, given_partitions])
def test_a_node_that_lags_behind_goes_on_from_a_good_cursor(path, changed):
    async def story(node):
        await node.create("t")
        before = deepcopy(node.broker.image)
        await changed(node)
        await node.produce("t", batch_of(b"1", b"2"), partition=1)
        cursor = cursor_of(node, {0: 0, 1: 1})
        let_lag(node, before)

        listener = Listener(serving(node), f"{path}?from={cursor}")

        assert await listener.hear(1) == [2]
        await listener.hang_up()

    on_a_node(story)


def test_a_node_that_lags_behind_streams_a_partition_that_came_just_now():
    async def story(node):
        await node.create("t")
        before = deepcopy(node.broker.image)
        await given_partitions(node)
        await node.produce("t", batch_of(b"1"), partition=1)
        let_lag(node, before)

        listener = Listener(serving(node), f"{STREAM}?from=earliest&partitions=1")

        assert await listener.hear(1) == [1]
        await listener.hang_up()

    on_a_node(story)


@both
@pytest.mark.parametrize("positions", [{0: 0}, {0: 0, 1: 0}], ids=["another topic", "partitions"])
def test_a_node_that_cannot_make_certain_of_a_topic_does_not_refuse_a_cursor_for_good(path, positions):
    async def story(node):
        await node.create("t")
        cursor = cursor_of(node, positions)
        if len(positions) == 1:
            await delete_topic(node.broker, "t", None)
            await node.create("t")
        app = serving(node)

        async def fail(decide):
            raise RequestTimedOut("the quorum did not decide in time")

        node.broker.metadata.change = fail
        listener = Listener(app, f"{path}?from={cursor}")
        await listener.end()

        absent = await ask(app, STREAM.replace("/t/", "/u/"))
        assert listener.status == absent.status >= 500

    on_a_node(story)


@both
def test_a_topic_that_was_made_anew_and_is_shorter_is_not_taken_for_deleted_offsets(path):
    async def story(node):
        await node.create("t")
        await node.produce("t", batch_of(b"1", b"2"))
        app = serving(node)
        listener = Listener(app, f"{path}?from=earliest")
        await listener.hear(2)
        read = app.node.services.records.read

        async def read_late(*asked, **options):
            await made_anew(node)
            app.node.services.records.read = read
            return await read(*asked, **options)

        app.node.services.records.read = read_late
        await node.produce("t", batch_of(b"3"))
        await listener.end()

        error = listener.events()[-1]
        assert (error["kind"], error["status"]) == ("error", 404)
        assert "another has its name" in error["detail"]

    on_a_node(story)


@pytest.mark.parametrize("start", ["earliest", "cursor"])
def test_a_topic_that_is_made_anew_while_a_stream_begins_is_begun_with_or_refused(start):
    async def story(node):
        await node.create("t")
        await node.produce("t", batch_of(b"1", b"2"))
        app, cursor = serving(node), cursor_of(node, {0: 1})
        read = app.node.services.records.read

        async def read_late(*asked, **options):
            app.node.services.records.read = read
            await made_anew(node)
            await node.produce("t", batch_of(b"3"))
            return await read(*asked, **options)

        app.node.services.records.read = read_late
        listener = Listener(app, f"{STREAM}?from={cursor if start == 'cursor' else start}")

        if start == "cursor":
            await listener.end()
            assert listener.status == 404
        else:
            assert await listener.hear(1) == [3]
            await listener.hang_up()

    on_a_node(story)
