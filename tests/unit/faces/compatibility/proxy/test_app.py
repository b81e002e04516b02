"""The proxy between clients and clusters of one made-up node each."""

import asyncio
import json
from contextlib import asynccontextmanager

import httpx
import pytest

from tidelog.faces.compatibility.proxy.app import Proxy, make_app
from tidelog.faces.compatibility.proxy.clusters import Cluster
from tidelog.faces.compatibility.proxy.placing import Places
from tidelog.simulation.http_door import Door, Message


class FakeNode:
    """Answers what it is told to, and remembers what it was asked."""

    def __init__(self):
        self.is_up = True
        self.answers = {}
        self.seen = []
        self.waiting = asyncio.Event()
        self.left = asyncio.Event()

    async def __call__(self, request):
        if not self.is_up:
            raise httpx.ConnectError("refused")
        path = request.url.path
        if path.startswith(("/v1/cluster", "/health")):
            return httpx.Response(200, json={"brokers": [], "topics": []})
        self.seen.append(request)
        answer = self.answers.get(path, (200, {}))
        if answer == "wait":
            self.waiting.set()
            try:
                await asyncio.Event().wait()
            finally:
                self.left.set()
        if callable(answer):
            answer = answer(json.loads(request.content or b"{}"))
        status, document = answer
        return httpx.Response(status, json=document)

    @property
    def bodies(self):
        return [json.loads(one.content or b"null") for one in self.seen]

    @property
    def keys(self):
        return [one.headers.get("idempotency-key") for one in self.seen]


class DoorTransport(httpx.AsyncBaseTransport):
    """Asks an application, without a connection."""

    def __init__(self, app):
        self._app = app

    async def handle_async_request(self, request):
        said = []

        async def tell(message):
            said.append(message)

        path = request.url.raw_path.decode()
        door = Door(
            self._app, request.method, path, tell, headers=request.headers, body=[await request.aread()]
        )
        try:
            await door.run()
        except asyncio.CancelledError:
            door.hang_up()
            raise
        start, *pieces = said
        return httpx.Response(
            start.status, headers=start.headers, content=b"".join(one.body for one in pieces)
        )


class World:
    """Two clusters and a client of their proxy."""

    def __init__(self, *, slots=2):
        self.nodes = [FakeNode(), FakeNode()]
        clusters = [
            Cluster(number, f"http://node-{number}", transport=httpx.MockTransport(node))
            for number, node in enumerate(self.nodes)
        ]
        self.proxy = Proxy(clusters, Places(2, slots))
        self.client = httpx.AsyncClient(
            transport=DoorTransport(make_app(self.proxy)), base_url="http://proxy"
        )

    async def post(self, path, body=None, **options):
        return await self.client.post(path, json=body or {}, **options)


@asynccontextmanager
async def world_of(**options):
    world = World(**options)
    try:
        yield world
    finally:
        await world.client.aclose()
        for cluster in world.proxy.clusters:
            await cluster.stop()


def story(work):
    """A test that is given a world."""

    def test():
        async def run():
            async with world_of() as world:
                await work(world)

        asyncio.run(run())

    test.__name__ = work.__name__
    return test


@story
async def test_queues_are_made_in_turn_and_their_ids_tell_where(world):
    for node in world.nodes:
        node.answers["/create_queue"] = (200, {"queue_id": 7})

    ids = [(await world.post("/create_queue")).json()["queue_id"] for _ in range(4)]

    assert sorted(ids) == [14, 14, 15, 15]
    assert [len(node.seen) for node in world.nodes] == [2, 2]


@story
async def test_a_request_with_a_key_makes_its_queue_where_it_did_before(world):
    for node in world.nodes:
        node.answers["/create_queue"] = (200, {"queue_id": 7})

    answers = [await world.post("/create_queue", headers={"idempotency-key": "mine"}) for _ in range(5)]

    assert len({one.json()["queue_id"] for one in answers}) == 1
    assert {key for node in world.nodes for key in node.keys} == {"mine"}


@story
async def test_a_queue_is_made_elsewhere_if_a_cluster_is_down(world):
    world.nodes[0].is_up = False
    world.nodes[1].answers["/create_queue"] = (200, {"queue_id": 3})

    answers = [await world.post("/create_queue") for _ in range(3)]

    assert [one.json() for one in answers] == [{"queue_id": 7}] * 3


@story
async def test_messages_go_to_the_queue_s_own_cluster_under_its_own_id(world):
    world.nodes[1].answers["/append"] = (200, {"message_id": 40})

    answer = await world.post("/append", {"queue_id": 15, "value": {"a": [1, None, "ä"]}})

    assert (answer.status_code, answer.json()) == (200, {"message_id": 40})
    assert answer.headers["x-tidelog-cluster"] == "1"
    assert world.nodes[1].bodies == [{"queue_id": 7, "value": {"a": [1, None, "ä"]}}]
    assert world.nodes[0].seen == []


@story
async def test_a_value_is_passed_on_digit_by_digit(world):
    world.nodes[0].answers["/append"] = (200, {"message_id": 0})
    body = b'{"queue_id": 0, "value": 12345678901234567890123.10}'

    await world.client.post("/append", content=body)

    assert b"12345678901234567890123.10" in world.nodes[0].seen[0].content


@story
async def test_keys_are_passed_on_and_made_where_there_are_none(world):
    await world.post("/read", {"queue_id": 0, "client_id": "a"}, headers={"idempotency-key": "k"})
    await world.post("/read", {"queue_id": 0, "client_id": "a"})

    given, made = world.nodes[0].keys
    assert given == "k"
    assert made


@story
async def test_a_queue_that_is_not_there_is_said_by_the_id_that_the_client_knows(world):
    world.nodes[1].answers["/read"] = (404, {"status": 404, "detail": "there is no queue 7"})

    answer = await world.post("/read", {"queue_id": 15, "client_id": "a"})

    assert answer.status_code == 404
    assert "queue 15" in answer.json()["detail"]


@story
async def test_refusals_are_passed_on_with_their_facts(world):
    refusal = {"status": 409, "detail": "expired", "results": [{"receipt": "1-1"}], "code": 5}
    for node in world.nodes:
        node.answers["/v1/queues/jobs/ack"] = (409, refusal)

    answer = await world.post("/v1/queues/jobs/ack", {"receipts": ["1-1"]})

    assert answer.status_code == 409
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["results"] == [{"receipt": "1-1"}]


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/append", b"", 400),
        ("/append", b"[]", 400),
        ("/append", b"{}", 400),
        ("/append", b'{"queue_id": "x", "value": 1}', 400),
        ("/append", b'{"queue_id": -1, "value": 1}', 404),
        ("/get_all_queues", b'{"limit": 0}', 400),
        ("/get_all_queues", b'{"after": ["x"]}', 400),
        ("/get_all_queues", b'{"after": [9]}', 400),
        ("/get_all_queues", b"{", 400),
        ("/nowhere", b"{}", 404),
        ("/health/live", b"{}", 405),
    ],
)
def test_what_cannot_be_is_refused_before_a_cluster_is_asked(path, body, status):
    async def run():
        async with world_of() as world:
            answer = await world.client.post(path, content=body)

            assert answer.status_code == status
            assert answer.json()["status"] == status
            assert all(node.seen == [] for node in world.nodes)

    asyncio.run(run())


@story
async def test_a_cluster_that_is_down_fails_for_its_own_queues_alone(world):
    world.nodes[1].is_up = False

    down = await world.post("/append", {"queue_id": 15, "value": 1})
    up = await world.post("/append", {"queue_id": 14, "value": 1})

    assert (down.status_code, up.status_code) == (503, 200)
    assert down.headers["retry-after"] == "1"


@story
async def test_a_cluster_that_is_down_is_not_asked_again_until_it_answers(world):
    cluster, node = world.proxy.clusters[1], world.nodes[1]
    node.is_up = False
    await world.post("/append", {"queue_id": 15, "value": 1})
    node.is_up = True

    refused = await world.post("/append", {"queue_id": 15, "value": 1})
    await cluster.look()
    taken = await world.post("/append", {"queue_id": 15, "value": 1})

    assert (refused.status_code, taken.status_code) == (503, 200)
    assert len(node.seen) == 1


@story
async def test_health_tells_how_each_cluster_is(world):
    for cluster in world.proxy.clusters:
        await cluster.look()
    well = await world.client.get("/health/ready")
    world.nodes[0].is_up = False
    await world.proxy.clusters[0].look()
    half = await world.client.get("/health/ready")
    world.nodes[1].is_up = False
    await world.proxy.clusters[1].look()
    none = await world.client.get("/health/ready")

    statuses = [(one.status_code, one.json()["status"]) for one in (well, half, none)]
    assert statuses == [(200, "ready"), (200, "degraded"), (503, "unavailable")]
    assert [one["up"] for one in half.json()["clusters"]] == [False, True]
    assert (await world.client.get("/health/live")).status_code == 200


# Listings.


def pages_of(ids):
    """A node's `/get_all_queues`."""

    def answer(body):
        after = (body.get("after") or [-1])[0]
        found = [one for one in ids if one > after]
        page = found[: body["limit"]]
        return 200, {"queue_ids": page, "next": [page[-1]] if len(found) > len(page) else None}

    return answer


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5, 1000])
def test_listings_of_all_clusters_are_one_list_page_by_page(limit):
    async def run():
        async with world_of() as world:
            world.nodes[0].answers["/get_all_queues"] = pages_of([0, 1, 2])
            world.nodes[1].answers["/get_all_queues"] = pages_of([5, 6])
            found, after = [], None
            while True:
                body = {"limit": limit} | ({} if after is None else {"after": after})
                page = (await world.post("/get_all_queues", body)).json()
                assert len(page["queue_ids"]) <= limit
                found += page["queue_ids"]
                after = page["next"]
                if after is None:
                    break
            assert found == [0, 2, 4, 11, 13]

    asyncio.run(run())


@story
async def test_messages_and_pointers_are_listed_by_the_ids_that_clients_know(world):
    message = {"message_id": 3, "queue_id": 2, "value": 1}
    world.nodes[1].answers["/get_all_messages"] = (200, {"messages": [message], "next": None})
    world.nodes[0].answers["/get_all_messages"] = (200, {"messages": [], "next": None})

    found = (await world.post("/get_all_messages")).json()

    assert found == {"messages": [{**message, "queue_id": 5}], "next": None}


@story
async def test_a_listing_says_which_clusters_are_missing(world):
    world.nodes[0].is_up = False
    world.nodes[1].answers["/get_all_queues"] = pages_of([1])
    world.nodes[1].answers["/v1/queues"] = (200, {"queues": ["b"], "next": None})

    ids = await world.post("/get_all_queues")
    names = await world.client.get("/v1/queues")
    world.nodes[1].is_up = False
    none = await world.post("/get_all_queues")

    assert ids.json() == {"queue_ids": [3], "next": None, "unavailable": [0]}
    assert names.json() == {"queues": ["b"], "next": None, "unavailable": [0]}
    assert none.status_code == 503


@story
async def test_names_of_all_clusters_come_in_order(world):
    world.nodes[0].answers["/v1/queues"] = (200, {"queues": ["a", "d"], "next": "d"})
    world.nodes[1].answers["/v1/queues"] = (200, {"queues": ["b", "c"], "next": None})

    page = (await world.client.get("/v1/queues", params={"limit": 2, "after": "A"})).json()

    assert page == {"queues": ["a", "b"], "next": "b"}
    assert world.nodes[0].seen[0].url.params["after"] == "A"
    bad = await world.client.get("/v1/queues", params={"limit": "many"})
    assert bad.status_code == 400


# Work queues.


@story
async def test_everything_about_a_work_queue_goes_to_one_cluster(world):
    name = "jobs ä?"
    path = "/v1/queues/jobs%20%C3%A4%3F"
    place = world.proxy.places.of_name(name)

    await world.client.put(path, json={"visibility_ms": 5})
    await world.client.get(path)
    await world.client.delete(path)

    seen = world.nodes[place].seen
    assert [one.method for one in seen] == ["PUT", "GET", "DELETE"]
    assert {one.url.raw_path for one in seen} == {path.encode()}
    assert world.nodes[1 - place].seen == []


@story
async def test_what_a_client_asks_for_beside_the_body_is_passed_on(world):
    await world.post("/v1/queues/jobs/messages?sync_timeout_ms=77", {"messages": []})

    (seen,) = [one for node in world.nodes for one in node.seen]
    assert seen.url.params["sync_timeout_ms"] == "77"
    assert json.loads(seen.content) == {"messages": []}


@story
async def test_who_stops_waiting_for_messages_stops_the_node_too(world):
    node = world.nodes[world.proxy.places.of_name("jobs")]
    node.answers["/v1/queues/jobs/receive"] = "wait"

    asking = asyncio.create_task(world.post("/v1/queues/jobs/receive", {"wait_ms": 30_000}))
    await node.waiting.wait()
    world.proxy.stopping.set()
    answer = await asking

    assert answer.status_code == 503
    await node.left.wait()


@story
async def test_a_message_nobody_waits_for_is_not_received(world):
    node = world.nodes[world.proxy.places.of_name("jobs")]
    node.answers["/v1/queues/jobs/receive"] = "wait"
    heard: asyncio.Queue[Message] = asyncio.Queue()
    door = Door(make_app(world.proxy), "POST", "/v1/queues/jobs/receive", heard.put, body=[b"{}"])
    serving = asyncio.create_task(door.run())
    await node.waiting.wait()
    door.hang_up()

    await node.left.wait()
    await serving


@story
async def test_what_was_replaced_is_said_by_a_node(world):
    gone = {"status": 410, "detail": "/heartbeat is not needed"}
    for node in world.nodes:
        node.answers["/heartbeat"] = (410, gone)

    answer = await world.post("/heartbeat")

    assert (answer.status_code, answer.json()["detail"]) == (410, gone["detail"])


@story
async def test_broker_info_tells_of_all_clusters(world):
    world.nodes[0].answers["/broker_info"] = (200, {"broker_id": 1})
    world.nodes[1].is_up = False

    found = (await world.post("/broker_info")).json()

    assert [one["info"] for one in found["clusters"]] == [{"broker_id": 1}, None]
    assert found["ready"] is True
