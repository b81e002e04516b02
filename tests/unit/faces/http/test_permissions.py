"""Every operation of the HTTP face for who is allowed nothing, all but one of what it needs, or all of it.

A new operation fails here until it says what it needs, and until a request of it is known.
"""

import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import msgspec
import pytest

from tests.unit.faces.http.cluster import Cluster
from tidelog.faces.http.api import EVENTS, Operation
from tidelog.faces.http.app import all_operations, make_app
from tidelog.faces.http.permissions import FREE, Need
from tidelog.model import QUEUES_TOPIC
from tidelog.operators.table import VERBS
from tidelog.security.acls import Acls, Binding, Effect, Pattern
from tidelog.security.permissions import CLUSTER_NAME, Kind
from tidelog.security.permissions import Operation as Right
from tidelog.security.principals import ANONYMOUS
from tidelog.services.packing import NewRecord
from tidelog.simulation.http_door import Door, Message, Piece

WS = "WS"
NAMES = {"topic": "tee", "bucket": "bee", "queue": "queue-q", "room": "rue", "group": "gee", "id": "1"}
RECORDS = {"records": [{"value": 1}]}
BODIES: dict[str, Any] = {
    "POST /v1/topics/{topic}/records": RECORDS,
    "POST /v1/replicate": {"replica_id": "r", "source": {"bucket": "bee"}},
    "POST /v1/replicate/ack": {"replica_id": "r", "offset": 1},
    "POST /append": {"queue_id": 0, "value": 1},
    "POST /read": {"queue_id": 0, "client_id": "c"},
    "POST /delete_queue": {"queue_id": 0},
    "POST /v1/kv/{bucket}:batch": {"operations": []},
    "PUT /v1/kv/{bucket}/{key:path}": {"value": 1},
    "POST /v1/queues/{queue}/messages": {"messages": [{"value": 1}]},
    "POST /v1/rooms/{room}/events": {"data": 1},
    "POST /v1/pubsub/{topic}": {"data": 1},
    "POST /v1/topics": {"name": "new"},
    "POST /v1/acls": {"acls": [{"principal": "User:a", "operation": "Read", "kind": "Group", "name": "g"}]},
    "POST /v1/elections": {"type": "preferred"},
    "POST /v1/reassignments": {"balance": True},
    "POST /v1/groups/{group:path}/reset": {"topic": "tee", "to": "latest"},
    "PUT /v1/users/{user}": {"password": "secret"},
    "POST /v1/tokens": {"user": "u"},
}
"""What a request says where an empty object is not enough."""
QUERIES = {
    "/v1/pubsub": "topics=a.b",
    "/v1/groups/{group:path}/offsets": "topic=tee",
    "/health/replication": "topic=tee",
    "/v1/acls/explain": "principal=User:a&operation=Read&kind=Topic&name=tee",
}
EVERYTHING = [(kind, CLUSTER_NAME if kind is Kind.CLUSTER else "*") for kind in Kind]
OPERATIONS = all_operations()
BY_MESSAGE = "/v1/replicate"
"""What its socket needs is said by a message."""


def title(operation: Operation) -> str:
    return f"{operation.method} {operation.path}"


@pytest.fixture(scope="module")
def world() -> Iterator[Cluster]:
    with Cluster(1, authorizer_enabled=True, queues_topic_num_partitions=1) as world:
        allow(world, *((Right.ALL, kind, name) for kind, name in EVERYTHING))
        world.post(1, "/v1/topics/tee/records", RECORDS)
        world.ask(1, "/v1/kv/bee/key", "PUT", {"value": 1})
        world.ask(1, "/v1/queues/queue-q", "PUT", {})
        world.post(1, "/v1/rooms/rue/events", {"data": 1}, 201)
        assert world.post(1, "/create_queue", {}) == {"queue_id": 0}
        world.post(1, "/append", {"queue_id": 0, "value": "secret words"})
        yield world


def acls(world: Cluster) -> Acls:
    found: Acls = world.node(1).broker.image.acls
    return found


def allow(world: Cluster, *wanted: tuple[Right, Kind, str]) -> None:
    """Let everybody do this and no more; the image is changed by hand, for it is quicker."""
    for one in list(acls(world)):
        acls(world).remove(one)
    for operation, kind, name in wanted:
        acls(world).add(Binding(principal=ANONYMOUS, operation=operation, kind=kind, name=name))


def ask(world: Cluster, operation: Operation) -> Any:
    def value(found: re.Match[str]) -> str:
        return quote(NAMES.get(found[1], "1" if found[2] == "int" else "key"))

    path = re.sub(r"{(\w+)(?::(\w+))?}", value, operation.path)
    if query := QUERIES.get(operation.path):
        path += f"?{query}"
    body = BODIES.get(title(operation), {} if operation.method in ("POST", "PUT", "PATCH") else None)
    return world.ask(1, path, operation.method, body)


def needs_of(operation: Operation) -> list[tuple[Right, Kind, str]]:
    """What the path says that the request needs."""
    return [
        (
            need.operation,
            need.kind,
            CLUSTER_NAME if need.parameter is None else need.resource(NAMES[need.parameter]),
        )
        for need in operation.needs or ()
    ]


def is_shown_each(operation: Operation) -> bool:
    if operation.verb is not None:
        return VERBS[operation.verb].permission.is_of_each
    return any("each that is shown" in need.note for need in operation.needs or ())


@pytest.mark.parametrize("operation", OPERATIONS, ids=title)
def test_every_operation_says_what_it_needs(operation):
    assert (operation.needs is None) is (operation.verb is not None)


@pytest.mark.parametrize("operation", OPERATIONS, ids=title)
def test_who_is_allowed_nothing_is_refused_or_shown_nothing(world, operation):
    if title(operation) == f"{WS} {BY_MESSAGE}":
        return  # below
    allow(world)

    answer = ask(world, operation)

    told = answer.body.decode()
    if operation.needs == FREE:
        assert answer.status != 403
    elif is_shown_each(operation):
        assert answer.status == 200, told
        assert not any(name in told for name in (*NAMES.values(), "secret") if len(name) > 1), told
        assert "[0]" not in told  # the pointer queue
    else:
        assert answer.status == 403, told
        assert "User:ANONYMOUS may not do" in answer.json["detail"]


JUDGED_BY_PATH = [
    one
    for one in OPERATIONS
    if one.needs
    and not any(need.note for need in one.needs)
    and one.media_type != EVENTS
    and one.method not in (WS, "DELETE")
]


@pytest.mark.parametrize("operation", JUDGED_BY_PATH, ids=title)
def test_each_of_the_needs_is_needed_and_all_are_enough(world, operation):
    needed = needs_of(operation)
    for missing in needed:
        allow(world, *(one for one in needed if one != missing))
        assert ask(world, operation).status == 403

    allow(world, *needed)
    assert ask(world, operation).status != 403


def test_a_topic_that_is_missing_is_made_only_for_who_may_create_it(world):
    def write(path: str, method: str, body: Any) -> Any:
        return world.ask(1, path, method, body).status

    for path, method, body, name in (
        ("/v1/topics/n1/records", "POST", RECORDS, "n1"),
        ("/v1/kv/n2/key", "PUT", {"value": 1}, "n2"),
        ("/v1/rooms/n3/events", "POST", {"data": 1}, "room.n3"),
    ):
        allow(world, (Right.WRITE, Kind.TOPIC, name))
        assert write(path, method, body) in (403, 404)
        assert name not in world.node(1).broker.image.topics
        allow(world, (Right.WRITE, Kind.TOPIC, name), (Right.CREATE, Kind.TOPIC, name))
        assert write(path, method, body) in (200, 201)


def test_a_queue_and_a_topic_of_one_name_have_permissions_of_their_own(world):
    allow(world, (Right.ALL, Kind.TOPIC, "queue-q"))
    assert world.ask(1, "/v1/queues/queue-q").status == 403
    allow(world, (Right.DESCRIBE, Kind.TOPIC, "queue:queue-q"))
    assert world.ask(1, "/v1/queues/queue-q").status == 200
    assert world.ask(1, "/v1/queues/queue-q/purge", "POST", {}).status == 403


def test_what_is_dead_of_a_queue_is_the_queues(world):
    allow(world, (Right.READ, Kind.TOPIC, "queue:queue-q.dead"))
    assert world.ask(1, "/v1/queues/queue-q.dead/receive", "POST", {}).status == 403
    allow(world, (Right.READ, Kind.TOPIC, "queue:queue-q"))
    assert world.ask(1, "/v1/queues/queue-q.dead/receive", "POST", {}).status == 200


@pytest.mark.parametrize(
    "source",
    [
        {"bucket": "bee"},
        {"queue": "queue-q"},
        {"room": "rue"},
        {"topic": "tee"},
        {"pubsub": "a.*"},
        {"pubsub": "a"},
    ],
)
def test_a_source_is_copied_by_nobody_who_may_not_read_it(world, source):
    body = {"replica_id": "r", "source": source}
    for allowed in ((), [(Right.DESCRIBE, Kind.TOPIC, "*"), (Right.WRITE, Kind.TOPIC, "*")]):
        allow(world, *allowed)
        assert world.ask(1, "/v1/replicate", "POST", body).status == 403


def test_an_empty_name_beside_a_source_changes_nothing(world):
    for empty in ({"room": ""}, {"pubsub": ""}, {"queue": ""}, {"bucket": ""}):
        source = {"topic": "tee", **empty} if "bucket" in empty else {"bucket": "bee", **empty}
        allow(world, *((Right.READ, Kind.TOPIC, name) for name in ("room.", "pubsub:", QUEUES_TOPIC)))

        assert world.ask(1, "/v1/replicate", "POST", {"replica_id": "r", "source": source}).status == 403


def test_a_queue_is_copied_with_others_and_so_by_who_may_read_them_all(world):
    body = {"replica_id": "r", "source": {"queue": "queue-q"}}
    allow(world, (Right.READ, Kind.TOPIC, "queue:queue-q"))

    answer = world.ask(1, "/v1/replicate", "POST", body)

    assert (answer.status, QUEUES_TOPIC in answer.json["detail"]) == (403, True)


def test_a_pattern_hears_the_channels_that_may_be_read_and_no_others(world):
    from tidelog.faces.http.permissions import SUBSCRIBES, require_listening

    access = world.node(1).broker.authorizer.access(ANONYMOUS, "")
    allow(world)
    acls(world).add(
        Binding(
            principal=ANONYMOUS,
            operation=Right.READ,
            kind=Kind.TOPIC,
            name="pubsub:a.",
            pattern=Pattern.PREFIXED,
        )
    )
    acls(world).add(
        Binding(
            principal=ANONYMOUS,
            operation=Right.READ,
            effect=Effect.DENY,
            kind=Kind.TOPIC,
            name="pubsub:a.secret",
        )
    )

    require_listening(access, "#")

    assert [SUBSCRIBES.is_met(access, name) for name in ("a.b", "a.secret", "b")] == [True, False, False]


def test_a_need_reads_as_people_write_it():
    known = {str(need) for one in OPERATIONS for need in one.needs or ()}

    assert {"Read on Topic `{topic}`", "Describe on Cluster", "Write on Topic `queue:{queue}`"} <= known
    assert "Create on Topic `room.{room}` or Cluster" in known
    assert str(Need(Right.READ, note="of each")) == "Read on Topic of each"


def test_the_settings_of_a_topic_are_shown_to_who_may_see_them(world):
    allow(world, (Right.DESCRIBE, Kind.TOPIC, "bee"))
    assert world.get(1, "/v1/topics/bee")["config"] == {}
    allow(world, (Right.DESCRIBE, Kind.TOPIC, "bee"), (Right.DESCRIBE_CONFIGS, Kind.TOPIC, "bee"))
    assert "cleanup.policy" in world.get(1, "/v1/topics/bee")["config"]


def test_readiness_tells_a_stranger_nothing_of_partitions(world):
    from tidelog.model import TopicPartition

    world.node(1).broker.unserved[TopicPartition("tee", 0)] = "tee-0 is damaged"
    try:
        allow(world)
        assert "detail" not in world.get(1, "/health/ready")
        allow(world, (Right.DESCRIBE, Kind.CLUSTER, CLUSTER_NAME))
        assert world.get(1, "/health/ready")["detail"] == "tee-0 is damaged"
    finally:
        world.node(1).broker.unserved.clear()


def test_a_socket_of_copies_is_refused_by_its_first_answer(world):
    import asyncio

    from tests.unit.faces.http.test_replicate import Replica

    allow(world)

    async def story() -> Any:
        replica = Replica(make_app(world.node(1)))
        replica.say(type="hello", replica_id="r", source={"topic": "tee"})
        return await replica.hear()

    task = world.loop.create_task(story())
    world.run_until(task.done, 60.0)
    assert asyncio.isfuture(task)
    told = task.result()
    assert (told["type"], "may not do Read" in msgspec.json.encode(told).decode()) == ("error", True)


def test_a_stream_ends_for_who_may_read_no_more(world):
    allow(world, (Right.READ, Kind.TOPIC, "tee"))
    node, process = world.node(1), world.machines[1].process
    assert process is not None
    heard: list[bytes] = []

    async def tell(message: Message) -> None:
        if isinstance(message, Piece):
            heard.append(message.body)

    def start(work: Any) -> Any:
        return world.loop.create_task(work, context=process.context.copy())

    door = Door(make_app(node), "GET", "/v1/topics/tee/stream?from=earliest", tell)
    listening = start(door.run())
    world.run_until(lambda: b'"value":1' in b"".join(heard), 60.0)

    allow(world)
    later = [NewRecord(b"later", partition=0)]
    start(node.services.records.produce("tee", later, seconds_max=5.0))
    world.run_until(listening.done, 60.0)

    told = b"".join(heard)
    assert b"may not do Read on Topic" in told and b"later" not in told
