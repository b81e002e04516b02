"""The HTTP application, asked without a connection."""

import asyncio
import errno
import json
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.broker.node import batch_of, on_a_node
from tidelog.controller.records import BrokerRegistered, PartitionChanged, PartitionState
from tidelog.controller.reports import ReplicaReport
from tidelog.faces.http.app import explain, make_app
from tidelog.faces.http.cluster import SLICE, ClusterView
from tidelog.faces.http.edge.bodies import NoRoom
from tidelog.faces.http.edge.messages import Headers, Request
from tidelog.faces.http.health import why_not_ready
from tidelog.model import Endpoint, TopicPartition
from tidelog.operators.desk import Desk
from tidelog.simulation.http_door import Door, Message


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes = b""
    json: Any = field(init=False)

    def __post_init__(self) -> None:
        is_json = self.headers.get("content-type", "").endswith("json")
        self.json = json.loads(self.body) if is_json else None


def face(node, *, is_serving=True, is_stopping=False):
    """What the application knows of a node."""
    return SimpleNamespace(
        broker=node.broker, desk=Desk(node.broker), is_serving=is_serving, is_stopping=is_stopping
    )


async def ask(
    app,
    path: str,
    *,
    method: str = "GET",
    headers: dict[str, str] | None = None,
    chunks: tuple[bytes, ...] = (b"",),
) -> Answer:
    sent: list[Any] = []

    async def tell(message: Message) -> None:
        sent.append(message)

    await Door(app, method, path, tell, headers=headers, body=chunks).run()
    start, *rest = sent
    return Answer(status=start.status, headers=start.headers, body=b"".join(part.body for part in rest))


def test_a_body_for_which_there_is_no_room_now_may_come_again():
    answer = explain(Request("POST", b"/v1/topics/t/records", b"", Headers([])), NoRoom())

    assert (answer.status_code, answer.closes) == (503, True)
    assert answer.headers is not None and answer.headers["retry-after"] == "1"


# Health.


def test_a_node_that_serves_is_live_and_ready():
    async def story(node):
        app = make_app(face(node))

        assert (await ask(app, "/health/live")).json == {"status": "live"}
        ready = await ask(app, "/health/ready")
        assert (ready.status, ready.json) == (200, {"status": "ready", "node": 1})

    on_a_node(story)


@pytest.mark.parametrize(
    ("code", "said"), [(errno.ENOSPC, "the disk is full"), (errno.EMFILE, "no more files can be opened")]
)
def test_a_node_that_is_short_of_something_is_ready_and_says_of_what(code, said):
    async def story(node):
        node.broker.room.ran_out(OSError(code, "refused"))

        ready = await ask(make_app(face(node)), "/health/ready")

        assert ready.status == 200
        assert ready.json["detail"].startswith(said)

    on_a_node(story)


def test_a_node_that_cannot_read_what_it_leads_is_ready_and_says_so():
    async def story(node):
        node.broker.unserved[TopicPartition("__queues", 3)] = "__queues-3 is damaged"
        node.broker.unserved[TopicPartition("__queues", 4)] = "__queues-4 is damaged"

        ready = await ask(make_app(face(node)), "/health/ready")

        assert ready.status == 200
        assert ready.json["detail"] == "__queues-3 is damaged (and 1 more)"

    on_a_node(story)


def test_a_node_that_starts_or_stops_is_live_but_not_ready_and_says_why():
    async def story(node):
        for state, word in (({"is_serving": False}, "starting"), ({"is_stopping": True}, "stop")):
            app = make_app(face(node, **state))

            live, ready = await ask(app, "/health/live"), await ask(app, "/health/ready")

            assert live.status == 200
            assert (ready.status, ready.headers["retry-after"]) == (503, "1")
            assert ready.headers["content-type"] == "application/problem+json"
            assert word in ready.json["detail"]

    on_a_node(story)


def test_before_it_has_found_its_quorum_a_node_answers_all_the_same():
    async def story(node):
        early: Any = SimpleNamespace(
            broker=SimpleNamespace(
                quorum=None,
                host=node.broker.host,
                node_id=1,
                config=node.broker.config,
                waits_for_voters=lambda: None,
            ),
            is_serving=False,
            is_stopping=False,
        )
        app = make_app(early)

        for path in ("/health/ready", "/v1/cluster"):
            answer = await ask(app, path)
            assert answer.status == 503 and "quorum" in answer.json["detail"]

    on_a_node(story)


def test_a_fenced_node_and_one_without_a_leader_are_not_ready():
    fenced = SimpleNamespace(broker=SimpleNamespace(fenced=True))
    unknown = SimpleNamespace(broker=None)
    led = SimpleNamespace(leader=2, voters=SimpleNamespace(ids=[1, 2, 3]))
    leaderless = SimpleNamespace(leader=None, voters=SimpleNamespace(ids=[1, 2, 3]))

    def why(membership, quorum, waiting=None):
        broker = SimpleNamespace(membership=membership, quorum=quorum, waits_for_voters=lambda: waiting)
        node = SimpleNamespace(broker=broker, is_serving=True, is_stopping=False)
        return why_not_ready(node)  # type: ignore[arg-type]

    assert "fenced" in why(fenced, led)
    assert "registers again" in why(unknown, led)
    assert "more than half of the voters 1, 2, 3" in why(fenced, leaderless)
    assert why(fenced, leaderless, "waiting for 2 of 3 voters: 2, 3") == ("waiting for 2 of 3 voters: 2, 3")


# Every request.


@pytest.mark.parametrize("path", ["/nothing", "/v1/cluster/", "/v1/nothing", "/health"])
def test_anything_else_is_a_problem_that_says_where_to_look(path):
    async def story(node):
        answer = await ask(make_app(face(node)), path)

        assert (answer.status, answer.json["title"]) == (404, "Not Found")
        assert path in answer.json["detail"] and "/docs" in answer.json["detail"]
        assert answer.json["request_id"] == answer.headers["x-request-id"]

    on_a_node(story)


def test_another_method_is_refused():
    async def story(node):
        answer = await ask(make_app(face(node)), "/v1/cluster", method="DELETE")

        assert answer.status == 405 and "GET" in answer.headers["allow"]
        assert "DELETE" in answer.json["detail"]

    on_a_node(story)


def test_a_request_keeps_its_id_if_that_can_be_printed_and_gets_one_if_not():
    async def story(node):
        app = make_app(face(node))

        async def id_for(given: str) -> str:
            answer = await ask(app, "/health/live", headers={"x-request-id": given})
            return answer.headers["x-request-id"]

        assert await id_for("mine-1") == "mine-1"
        for unfit in ("", "x" * 129, "a\tb", "\x1b[31m"):
            assert len(await id_for(unfit)) == 32

    on_a_node(story)


def test_a_body_that_is_too_long_is_refused_by_its_length_or_by_its_bytes():
    async def story(node):
        app = make_app(face(node))
        bytes_max = node.broker.config.http_max_body_bytes

        async def send(*chunks: bytes, **headers: str) -> Answer:
            known = {"content-type": "application/json"} | headers
            return await ask(app, "/v1/broker/stop", method="POST", headers=known, chunks=chunks)

        fits = await send(b"{" + bytes(bytes_max - 2), b"}")
        assert fits.status == 400  # it was read

        lengths = (str(bytes_max + 1), "many", "-1", "0" * 5000 + "2")
        too_long = [await send(**{"content-length": length}) for length in lengths]
        too_long.append(await send(bytes(bytes_max), b"x"))

        for answer in too_long:
            assert (answer.status, answer.headers["connection"]) == (413, "close")

    on_a_node(story)


def test_a_bug_is_a_problem_too_and_the_log_says_where(monkeypatch, caplog):
    async def story(node):
        async def fail(self, topics):
            raise ZeroDivisionError

        monkeypatch.setattr(ClusterView, "get", fail)

        answer = await ask(make_app(face(node)), "/v1/cluster", headers={"x-request-id": "mine"})

        assert answer.status == 500 and "bug" in answer.json["detail"]
        assert "mine" in caplog.text and "ZeroDivisionError" in caplog.text

    on_a_node(story)


def test_what_only_a_socket_tells_asks_for_one():
    async def story(node):
        for method in ("GET", "HEAD"):
            answer = await ask(make_app(face(node)), "/v1/replicate", method=method)

            assert (answer.status, answer.headers["upgrade"]) == (426, "websocket")

    on_a_node(story)


# The cluster.


def test_the_cluster_is_told_in_its_documented_shape():
    async def story(node):
        await node.create("orders", 2)
        await node.produce("orders", batch_of(b"a", b"b"), partition=1)

        answer = await ask(make_app(face(node)), "/v1/cluster")

        found = answer.json
        assert list(found) == ["brokers", "controller", "quorum", "peers", "topics"]
        assert found["controller"] == found["quorum"]["leader"] == 1
        (broker,) = found["brokers"]
        assert (broker["id"], broker["fenced"], broker["leads"], broker["holds"]) == (1, False, 2, 2)
        (voter,) = found["quorum"]["voters"]
        assert (voter["id"], voter["lag"]) == (1, 0)
        (topic,) = found["topics"]
        assert topic["name"] == "orders"
        assert topic["partitions"][1] == {
            "partition": 1,
            "leader": 1,
            "epoch": 0,
            "replicas": [1],
            "in_sync": [1],
            "eligible": [],
            "adding": [],
            "removing": [],
            "high_watermark": 2,
            "ends": {"1": 2},
        }

    on_a_node(story)


def test_topics_can_be_chosen_or_left_out():
    async def story(node):
        for name in ("a", "b", "c"):
            await node.create(name)
        app = make_app(face(node))

        async def names(query: str) -> list[str]:
            return [t["name"] for t in (await ask(app, "/v1/cluster" + query)).json["topics"]]

        assert await names("") == ["a", "b", "c"]
        assert await names("?topics=c,a,nobody") == ["a", "c"]
        assert await names("?topics=") == []

    on_a_node(story)


def test_other_brokers_replicas_are_known_from_their_reports_or_not_at_all():
    async def story(node):
        await node.create("orders")
        image = node.broker.image
        for number in (2, 3):
            image.apply(
                BrokerRegistered(
                    node=number,
                    incarnation="x",
                    broker_epoch=100 + number,
                    directory="d",
                    kafka=Endpoint(host="h", port=number),
                    peer=Endpoint(host="h", port=number),
                )
            )
        topic = image.topics["orders"]
        cluster_id = topic.partitions[0].cluster_id
        state = PartitionState(cluster_id, (2, 3), (2,), 2, 7)
        image.apply(PartitionChanged(topic=str(topic.id), partition=0, state=state))
        reports = node.broker.controller.controller.reports
        reports.take(2, 102, [ReplicaReport(cluster_id, 7, 20, 18)], 0.0)

        found = (await ask(make_app(face(node)), "/v1/cluster")).json

        (partition,) = found["topics"][0]["partitions"]
        assert partition["ends"] == {"2": 20, "3": None}
        assert (partition["leader"], partition["high_watermark"]) == (2, 18)
        assert [broker["fenced"] for broker in found["brokers"]] == [False, True, True]

    on_a_node(story)


def test_a_large_cluster_is_told_in_slices_and_others_run_in_between():
    async def story(node):
        await node.create("many", 4 * SLICE)
        await node.create("few", 3)
        ran = 0

        async def others():
            nonlocal ran
            while True:
                ran += 1
                await asyncio.sleep(0)

        running = asyncio.create_task(others())
        document = json.loads(await ClusterView(node.broker).get())
        running.cancel()

        assert ran >= 4
        many = document["topics"][0]["partitions"]
        assert [one["partition"] for one in many] == list(range(4 * SLICE))

    on_a_node(story)


def test_who_asks_while_one_is_built_shares_the_next():
    async def story(node):
        await node.create("many", 2 * SLICE)
        view = ClusterView(node.broker)
        first = asyncio.create_task(view.get())
        await asyncio.sleep(0)
        await asyncio.sleep(0)

        second, third = asyncio.create_task(view.get()), asyncio.create_task(view.get())

        assert await second is await third
        assert await first is not await second

    on_a_node(story)
