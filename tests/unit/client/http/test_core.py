"""Retries, routes, redirects and errors, through the blocking client."""

import asyncio

import httpx
import pytest

from tests.unit.client.http.fleet import Asked, Fleet, Gone, ok, problem
from tidelog.client import (
    BadAddress,
    BadRequest,
    Client,
    Conflict,
    Delete,
    NotFound,
    OutcomeUnknown,
    OutOfRange,
    TidelogHTTPError,
    TooLarge,
    Unavailable,
)
from tidelog.client.http.core import path_of
from tidelog.client.http.routes import Place, Routes

KEY = "/v1/kv/b/k"
QUEUE = "/v1/queues/q"
PUT = {"key": "k", "value": 1, "version": 3, "token": "0:4"}


def unknown(**facts: object) -> httpx.Response:
    return problem(504, "not committed in time", **{"outcome": "unknown", "offset": 3, **facts})


# Retries.


@pytest.mark.parametrize(
    "failure",
    [
        Gone(httpx.ConnectError),
        Gone(httpx.ReadError),
        Gone(httpx.ReadTimeout),
        Gone(httpx.RemoteProtocolError),
        problem(503),
        problem(502),
        unknown(),
    ],
    ids=["refused", "reset", "silent", "broken", "503", "502", "unknown"],
)
def test_a_write_that_fails_for_now_is_repeated_under_the_same_key(failure):
    fleet = Fleet()
    fleet.says(KEY, failure, failure, ok(PUT))

    entry = fleet.client().kv("b").put("k", 1)

    assert entry.version == 3
    keys = [asked.key for asked in fleet.questions(KEY)]
    assert len(keys) == 3 and len(set(keys)) == 1 and keys[0]


@pytest.mark.parametrize(
    ("failure", "is_repeat"),
    [(Gone(httpx.ConnectError), False), (Gone(httpx.ReadTimeout), True), (unknown(), True)],
    ids=["refused", "silent", "unknown"],
)
def test_a_write_says_whether_an_earlier_attempt_may_have_arrived(failure, is_repeat):
    fleet = Fleet()
    fleet.says(KEY, failure, ok(PUT))

    fleet.client().kv("b").put("k", 1)

    said = ["idempotency-repeat" in asked.headers for asked in fleet.questions(KEY)]
    assert said == [False, is_repeat]


def test_two_writes_have_two_keys():
    fleet = Fleet()
    fleet.says(KEY, ok(PUT))
    kv = fleet.client().kv("b")

    kv.put("k", 1)
    kv.put("k", 1)

    first, second = [asked.key for asked in fleet.questions(KEY)]
    assert first != second


def test_a_key_of_the_caller_s_is_the_one_that_is_sent():
    fleet = Fleet()
    fleet.says(KEY, ok(PUT))

    fleet.client().kv("b").put("k", 1, idempotency_key="mine")

    assert [asked.key for asked in fleet.questions(KEY)] == ["mine"]


def test_a_read_carries_no_key():
    fleet = Fleet()
    fleet.says(KEY, ok(PUT))

    fleet.client().kv("b").get("k")

    assert [asked.key for asked in fleet.questions(KEY)] == [None]


@pytest.mark.parametrize("status", [400, 403, 404, 409, 410, 413, 416, 500])
def test_an_answer_that_will_not_change_is_not_asked_for_again(status):
    fleet = Fleet()
    fleet.says(KEY, problem(status))

    with pytest.raises(TidelogHTTPError):
        fleet.client().kv("b").put("k", 1)

    assert len(fleet.questions(KEY)) == 1
    assert fleet.slept == []


def test_pauses_double_and_have_a_part_of_chance():
    fleet = Fleet()
    fleet.says(KEY, Gone())

    with pytest.raises(Unavailable):
        fleet.client(retries=5, backoff=0.4).kv("b").get("k")

    # Half of each is certain, and of the rest this chance gives half.
    assert fleet.slept == pytest.approx([0.3, 0.6, 1.2, 2.4, 3.75])


def test_a_node_s_own_wish_for_a_pause_is_granted():
    fleet = Fleet()
    fleet.says(KEY, problem(503, headers={"retry-after": "1"}), ok(PUT))

    fleet.client(backoff=0.4).kv("b").get("k")

    assert fleet.slept == pytest.approx([1.3])


@pytest.mark.parametrize("retries", [0, 1, 3])
def test_so_many_retries_are_made_and_no_more(retries):
    fleet = Fleet()
    fleet.says(KEY, Gone())

    with pytest.raises(Unavailable):
        fleet.client(retries=retries).kv("b").put("k", 1)

    assert len(fleet.questions(KEY)) == 1 + retries


# What is known in the end.


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, BadRequest),
        (403, TidelogHTTPError),
        (404, NotFound),
        (409, Conflict),
        (413, TooLarge),
        (415, BadRequest),
        (416, OutOfRange),
        (503, Unavailable),
        (504, Unavailable),
    ],
)
def test_every_status_has_its_error_with_the_problem(status, kind):
    fleet = Fleet()
    fleet.says("/v1/topics/t", problem(status, "do this instead", code=4))

    with pytest.raises(TidelogHTTPError) as caught:
        fleet.client(retries=0).topics.describe("t")

    error = caught.value
    assert type(error) is kind
    assert (error.status, error.request_id, error.problem["code"]) == (status, "r1", 4)
    assert error.detail == "do this instead"
    assert "GET /v1/topics/t" in str(error) and "do this instead" in str(error)


def test_where_nothing_was_sent_nothing_was_written_and_the_error_says_what_to_do():
    fleet = Fleet("a:1", "b:2")
    fleet.down = {"a:1", "b:2"}

    with pytest.raises(Unavailable) as caught:
        fleet.client("a:1", "b:2").kv("b").put("k", 1)

    assert "http://a:1, http://b:2" in str(caught.value)
    assert "connection refused" in str(caught.value)
    assert "tidelog start" in str(caught.value)
    assert len(caught.value.attempts) == 3


def test_a_write_that_may_have_arrived_has_an_unknown_outcome():
    fleet = Fleet()
    fleet.says(KEY, Gone(httpx.ReadError), Gone(httpx.ConnectError))

    with pytest.raises(OutcomeUnknown) as caught:
        fleet.client().kv("b").put("k", 1, idempotency_key="again")

    assert caught.value.idempotency_key == "again"
    assert "may have happened" in str(caught.value) and "'again'" in str(caught.value)
    assert caught.value.known == {"outcome": "unknown"}
    assert not caught.value.is_committed


def test_a_write_that_a_node_stumbles_over_has_an_unknown_outcome():
    fleet = Fleet()
    fleet.says(KEY, problem(500, "a bug in tidelog"))

    with pytest.raises(OutcomeUnknown, match="a bug in tidelog") as caught:
        fleet.client().kv("b").put("k", 1)

    assert caught.value.status == 500
    with pytest.raises(TidelogHTTPError) as read:
        fleet.client().kv("b").get("k")
    assert not isinstance(read.value, OutcomeUnknown)


def test_an_unknown_outcome_tells_what_the_last_node_knew():
    fleet = Fleet()
    fleet.says(KEY, unknown(written=True, committed=False, replicas=1), problem(503))

    with pytest.raises(OutcomeUnknown) as caught:
        fleet.client().kv("b").put("k", 1)

    assert caught.value.known == {
        "outcome": "unknown",
        "offset": 3,
        "written": True,
        "committed": False,
        "replicas": 1,
    }


WRITES = {
    "put": (KEY, 404, lambda client: client.kv("b").put("k", 1)),
    "delete": (KEY, 404, lambda client: client.kv("b").delete("k")),
    "batch": ("/v1/kv/b:batch", 404, lambda client: client.kv("b").batch([Delete("k")])),
    "publish": (f"{QUEUE}/messages", 429, lambda client: client.queue("q").publish(1)),
    "publish to none": (f"{QUEUE}/messages", 404, lambda client: client.queue("q").publish(1)),
    "ack": (f"{QUEUE}/ack", 409, lambda client: client.queue("q").ack("1-1")),
    "nack": (f"{QUEUE}/nack", 404, lambda client: client.queue("q").nack("1-1")),
    "receive": (f"{QUEUE}/receive", 404, lambda client: client.queue("q").receive()),
    "append": ("/append", 404, lambda client: client.pointer_queues.append(1, "m")),
    "tell": ("/v1/rooms/r/events", 404, lambda client: client.room("r").publish(1)),
    "produce": ("/v1/topics/t/records", 404, lambda client: client.topic("t").produce(1)),
    "alter": ("/v1/topics/t", 409, lambda client: client.topics.alter("t", partitions=2)),
    "forget": ("/v1/groups/g", 404, lambda client: client.groups.delete("g")),
}


@pytest.mark.parametrize("name", WRITES)
def test_a_refusal_after_a_lost_attempt_is_no_certain_no(name):
    path, status, write = WRITES[name]
    fleet = Fleet()
    fleet.says(path, problem(status), Gone(httpx.ReadError), problem(status, "not now"))

    with pytest.raises(TidelogHTTPError) as refused:
        write(fleet.client())
    with pytest.raises(OutcomeUnknown, match="not now") as unknown:
        write(fleet.client())

    assert refused.value.status == status
    assert not isinstance(refused.value, OutcomeUnknown)
    assert unknown.value.status == 504
    assert unknown.value.known == {"outcome": "unknown"}
    assert unknown.value.idempotency_key == fleet.questions(path)[-1].key


@pytest.mark.parametrize("name", WRITES)
def test_a_refusal_after_a_lost_attempt_is_no_certain_no_for_tasks(name):
    path, status, write = WRITES[name]
    fleet = Fleet()
    fleet.says(path, Gone(httpx.ReadError), problem(status, "not now"))

    async def story():
        with pytest.raises(OutcomeUnknown, match="not now"):
            await write(fleet.async_client())

    asyncio.run(story())


@pytest.mark.parametrize("status", [400, 413, 415, 422])
def test_what_is_wrong_in_itself_is_refused_whichever_attempt_arrives(status):
    fleet = Fleet()
    fleet.says(KEY, Gone(httpx.ReadError), problem(status))

    with pytest.raises(TidelogHTTPError) as refused:
        fleet.client().kv("b").put("k", 1)

    assert refused.value.status == status


def test_an_address_that_does_not_speak_http_is_told_which_one_does():
    fleet = Fleet()
    fleet.says(KEY, Gone(httpx.RemoteProtocolError))

    with pytest.raises(Unavailable, match="http= address of the node's ready line"):
        fleet.client().kv("b").get("k")


def test_a_read_that_was_lost_is_just_unavailable():
    fleet = Fleet()
    fleet.says(KEY, Gone(httpx.ReadTimeout))

    with pytest.raises(Unavailable) as caught:
        fleet.client(timeout=7).kv("b").get("k")

    assert "no answer within 7 s" in str(caught.value)
    assert "asked 4 times" in str(caught.value)
    assert "written" not in str(caught.value) and "tidelog start" not in str(caught.value)


def test_a_write_that_is_committed_but_not_copied_is_not_repeated():
    fleet = Fleet()
    fleet.says(KEY, problem(504, "one replica has it", outcome="committed", replicas=1))

    with pytest.raises(OutcomeUnknown) as caught:
        fleet.client().kv("b").put("k", 1, min_replicas_ack=2)

    assert caught.value.is_committed and caught.value.known["replicas"] == 1
    assert "committed" in str(caught.value)
    assert len(fleet.questions(KEY)) == 1


def test_an_answer_of_a_proxy_that_is_no_json_is_an_error_all_the_same():
    fleet = Fleet()
    fleet.says(KEY, httpx.Response(418, text="<html>"))

    with pytest.raises(TidelogHTTPError, match="418"):
        fleet.client().kv("b").get("k")


def test_when_all_connections_are_in_use_the_error_says_so_at_once():
    fleet = Fleet()
    fleet.says(KEY, Gone(httpx.PoolTimeout))

    with pytest.raises(Unavailable, match="connections_max"):
        fleet.client().kv("b").get("k")

    assert fleet.slept == []


# How safe a write shall be, and how long it may take.


def test_a_write_says_how_safe_it_shall_be_and_how_long_it_waits():
    fleet = Fleet()
    fleet.says(KEY, ok(PUT))

    fleet.client().kv("b").put("k", 1, min_replicas_ack=2, sync_timeout=0.1)
    fleet.client(timeout=4).kv("b").put("k", 1)

    first, second = fleet.questions(KEY)
    assert first.query == {"min_replicas_ack": "2", "sync_timeout_ms": "100"}
    assert second.query == {"sync_timeout_ms": "4000"}


def test_a_node_has_longer_than_it_may_wait_to_say_what_became_of_a_write():
    waits = []

    def answer(request: httpx.Request) -> httpx.Response:
        waits.append(request.extensions["timeout"]["read"])
        return ok(PUT)

    client = Client(transport=httpx.MockTransport(answer), timeout=3)
    client.kv("b").put("k", 1, sync_timeout=20)
    client.kv("b").get("k")

    assert waits[0] > 20 and waits[-1] == 3


# Whom to ask.


def test_who_asks_once_pays_for_one_request():
    fleet = Fleet()
    fleet.says(KEY, ok(PUT))

    fleet.client().kv("b").get("k")

    assert len(fleet.asked) == 1


def test_from_the_second_request_on_the_leader_is_asked():
    fleet = Fleet("a:1", "b:2", "c:3")
    fleet.leaders = {"b": ["c:3"]}
    fleet.says(KEY, ok(PUT))
    kv = fleet.client().kv("b")

    for _ in range(4):
        kv.put("k", 1)

    assert [asked.node for asked in fleet.questions(KEY)] == ["a:1", "c:3", "c:3", "c:3"]
    (look,) = fleet.questions("/v1/cluster")
    assert look.query == {"topics": "b"}


def test_a_key_goes_to_the_leader_of_its_partition():
    fleet = Fleet("a:1", "b:2", "c:3")
    fleet.leaders = {"b": ["a:1", "b:2", "c:3"]}
    kv = fleet.client().kv("b")
    for key in ("k0", "k1", "k2", "k3"):
        fleet.says(f"/v1/kv/b/{key}", ok({**PUT, "key": key}))
    kv.get("k0")

    for key in ("k0", "k1", "k2", "k3"):
        kv.get(key)

    # murmur2, as Kafka's clients have it.
    assert [asked.node for asked in fleet.asked if asked.path != "/v1/cluster"][1:] == [
        fleet.leaders["b"][number] for number in (2, 2, 0, 1)
    ]


def test_the_cluster_is_looked_at_again_after_half_a_minute():
    fleet = Fleet("a:1", "b:2")
    fleet.leaders = {"b": ["a:1"]}
    fleet.says(KEY, ok(PUT))
    kv = fleet.client().kv("b")
    kv.get("k")
    kv.get("k")

    fleet.now += 29
    kv.get("k")
    assert len(fleet.questions("/v1/cluster")) == 1

    fleet.leaders = {"b": ["b:2"]}
    fleet.now += 2
    kv.get("k")
    assert len(fleet.questions("/v1/cluster")) == 2
    assert fleet.asked[-1].node == "b:2"


@pytest.mark.parametrize("sign", ["gone", "503", "redirect"])
def test_a_change_of_leader_is_looked_at_at_once(sign):
    fleet = Fleet("a:1", "b:2", "c:3")
    fleet.leaders = {"b": ["b:2"]}
    fleet.says(KEY, ok(PUT))
    kv = fleet.client().kv("b")
    kv.get("k")
    kv.get("k")
    fleet.leaders = {"b": ["c:3"]}
    if sign == "gone":
        fleet.down = {"b:2"}
    elif sign == "503":
        fleet.says(KEY, problem(503), node="b:2")
    else:
        moved = httpx.Response(307, headers={"location": f"http://c:3{KEY}"})
        fleet.says(KEY, moved, node="b:2")

    kv.put("k", 1)
    kv.put("k", 1)

    assert len(fleet.questions("/v1/cluster")) == 2
    assert [asked.node for asked in fleet.questions(KEY)][2:] == ["b:2", "c:3", "c:3"]
    assert len({asked.key for asked in fleet.questions(KEY)[2:4]}) == 1


def test_a_redirect_is_followed_and_one_without_end_is_not():
    fleet = Fleet("a:1")
    promote = "/v1/topics/t/partitions/0/promote"
    fleet.says(promote, httpx.Response(307, headers={"location": f"http://a:1{promote}"}))

    with pytest.raises(TidelogHTTPError):
        fleet.client().request("POST", promote, body={})

    assert len(fleet.questions(promote)) == 4


def test_a_redirect_out_of_https_is_not_followed():
    fleet = Fleet("a:1")
    fleet.says(KEY, httpx.Response(307, headers={"location": "http://elsewhere/"}))

    with pytest.raises(TidelogHTTPError):
        fleet.client("https://a:1").kv("b").get("k")

    assert [asked.node for asked in fleet.asked] == ["a:1"]


def test_one_of_the_given_addresses_is_enough():
    fleet = Fleet("a:1", "b:2")
    fleet.down = {"a:1"}
    fleet.says(KEY, ok(PUT))

    assert fleet.client("a:1", "b:2").kv("b").get("k") is not None
    assert [asked.node for asked in fleet.questions(KEY)] == ["a:1", "b:2"]


def test_a_node_that_was_found_is_asked_when_the_given_one_is_gone():
    fleet = Fleet("a:1", "b:2")
    fleet.says(KEY, ok(PUT))
    kv = fleet.client("a:1").kv("b")
    kv.get("k")
    kv.get("k")
    fleet.down = {"a:1"}

    assert kv.get("k") is not None
    assert fleet.asked[-1].node == "b:2"


def test_a_client_that_shall_not_look_around_keeps_to_its_addresses():
    fleet = Fleet("a:1", "b:2")
    fleet.leaders = {"b": ["b:2"]}
    fleet.says(KEY, ok(PUT))
    kv = fleet.client(discover=False).kv("b")

    for _ in range(3):
        kv.get("k")

    assert {asked.node for asked in fleet.asked} == {"a:1"}


@pytest.mark.parametrize(
    "broker",
    [
        {"id": 2, "http": None},
        {"id": 2, "http": "0.0.0.0:8080"},
        {"id": 2, "http": "[::]:8080"},
        {"id": 2, "http": "b:2", "fenced": True},
        {"id": 2, "http": "b:2", "shutting_down": True},
    ],
    ids=["none", "any", "any6", "fenced", "leaving"],
)
def test_a_leader_that_cannot_be_asked_is_asked_through_others(broker):
    fleet = Fleet("a:1")
    document = {
        "brokers": [{"id": 1, "http": "a:1"}, broker],
        "topics": [{"name": "b", "partitions": [{"leader": 2}]}],
    }
    fleet.says("/v1/cluster", ok(document))
    fleet.says(KEY, ok(PUT))
    kv = fleet.client().kv("b")

    for _ in range(3):
        kv.get("k")

    assert {asked.node for asked in fleet.asked} == {"a:1"}


@pytest.mark.parametrize("answer", [problem(404), ok([]), ok({"brokers": [{}]}), Gone(), problem(503)])
def test_a_look_that_fails_harms_no_request(answer):
    fleet = Fleet("a:1", "b:2")
    fleet.says("/v1/cluster", answer)
    fleet.says(KEY, ok(PUT))
    kv = fleet.client("a:1", "b:2").kv("b")

    for _ in range(5):
        assert kv.get("k") is not None

    assert len(fleet.questions("/v1/cluster")) == 1
    fleet.now += 1.5
    kv.get("k")
    assert len(fleet.questions("/v1/cluster")) == 2


def test_one_looks_around_while_others_go_on_with_what_is_known():
    routes = Routes("a:1", clock=lambda: 0.0)
    routes.answered("http://a:1")
    first = routes.claim_refresh(Place(topic="t"))
    routes.look_again()

    assert first == "/v1/cluster?topics=t"
    assert routes.claim_refresh(Place(topic="u")) is None
    routes.refreshed(None)
    assert routes.claim_refresh(Place(topic="u")) == "/v1/cluster?topics=t,u"


def test_the_topics_that_are_looked_for_fit_into_a_request():
    routes = Routes("a:1", clock=lambda: 0.0)
    routes.answered("http://a:1")
    paths = []
    for number in range(100):
        paths.append(routes.claim_refresh(Place(topic=f"{number:03}".ljust(200, "x"))))
        routes.refreshed(None)

    assert max(len(path or "") for path in paths) < 9 * 1024
    assert "099" in (paths[-1] or "") and "000" not in (paths[-1] or "")


def test_what_was_just_made_is_looked_for():
    fleet = Fleet("a:1", "b:2")
    fleet.says(KEY, problem(404), problem(404), ok(PUT))
    fleet.says("/v1/kv/b", ok({"name": "b", "partitions": 1}, 201))
    kv = fleet.client().kv("b")
    for _ in range(2):
        with pytest.raises(NotFound):
            kv.put("k", 1)
    fleet.leaders = {"b": ["b:2"]}

    kv.create()
    kv.put("k", 1)

    assert fleet.asked[-1].node == "b:2"


# Addresses and paths.


@pytest.mark.parametrize(
    "address", ["", "http://", "ftp://a:1", "http://a:port", "http://a:1/path", "a:1,,b:2"]
)
def test_what_is_no_address_is_refused_with_one_that_is(address):
    with pytest.raises(BadAddress, match=r"http://127\.0\.0\.1:8080"):
        Client(address)


def test_no_address_at_all_is_refused():
    with pytest.raises(BadAddress):
        Client([])
    with pytest.raises(BadAddress):
        Client(["http://a:1", "https://b:2"])


@pytest.mark.parametrize("address", ["a:1", "http://a:1", "http://a:1/", "a:1, b:2"])
def test_an_address_may_be_short(address):
    fleet = Fleet()
    fleet.says("/health/ready", ok({"status": "ready", "node": 1}))

    assert fleet.client(address).health()["status"] == "ready"


@pytest.mark.parametrize(
    ("key", "path"),
    [
        ("a/b", "/v1/kv/b/a%2Fb"),
        ("..", "/v1/kv/b/%2E%2E"),
        (".", "/v1/kv/b/%2E"),
        ("a?b#c", "/v1/kv/b/a%3Fb%23c"),
        ("100%", "/v1/kv/b/100%25"),
        ("ü ", "/v1/kv/b/%C3%BC%20"),
        ("x:watch", "/v1/kv/b/x%3Awatch"),
    ],
)
def test_nothing_in_a_key_is_taken_for_a_part_of_the_path(key, path):
    fleet = Fleet()
    fleet.says(path, ok({**PUT, "key": key}))

    entry = fleet.client().kv("b").get(key)

    assert entry is not None and entry.key == key
    assert path_of("v1", "kv", "b", key) == path


def test_any_path_can_be_asked_for():
    fleet = Fleet()
    fleet.says("/v1/elections", lambda asked: ok({"got": asked.body, **asked.query}))

    found = fleet.client().request(
        "post", "/v1/elections", query={"a": True, "b": None, "c": 1}, body={"type": "preferred"}
    )

    assert found == {"got": {"type": "preferred"}, "a": "true", "c": "1"}


def test_values_that_are_no_json_are_refused_before_anything_is_sent():
    fleet = Fleet()
    kv = fleet.client().kv("b")

    with pytest.raises(TypeError):
        kv.put("k", b"bytes")
    with pytest.raises(ValueError, match="JSON"):
        kv.put("k", float("nan"))
    with pytest.raises(ValueError, match="key"):
        kv.put("", 1)

    assert fleet.asked == []


def ready(asked: Asked) -> httpx.Response:
    return ok({"status": "ready", "node": 1})


def test_health_tells_why_a_node_cannot_serve_and_does_not_raise():
    fleet = Fleet()
    fleet.says("/health/ready", problem(503, "nobody leads the quorum"), ready)
    client = fleet.client()

    assert client.health() == {"status": "unready", "detail": "nobody leads the quorum"}
    assert client.health()["status"] == "ready"


def test_health_of_a_node_that_is_gone_is_an_error():
    fleet = Fleet()
    fleet.down = {"a:1"}

    with pytest.raises(Unavailable):
        fleet.client().health()
