"""The table of verbs: what holds for every row."""

import re
from typing import Any

import msgspec
import pytest

from tests.unit.broker.node import on_a_node
from tests.unit.faces.http.test_app import ask
from tests.unit.faces.http.test_operations import Face
from tidelog.errors import InvalidRequest, PolicyViolation
from tidelog.faces.http import topics, verbs
from tidelog.faces.http.app import make_app
from tidelog.operators.table import VERBS
from tidelog.operators.topics import ChangeTopic
from tidelog.security.permissions import CLUSTER_NAME, Kind, Operation, Resource
from tidelog.security.principals import Principal

ROWS = list(VERBS.values())
SAID: dict[str, Any] = {
    "topic": "t",
    "group": "g",
    "broker": "1",
    "id": "1",
    "type": "preferred",
    "balance": True,
    "to": "latest",
    "name": "n",
    "user": "u",
    "password": "p",
    "places": [],
    "offsets": [],
}
"""What is enough for every verb to be asked for."""


@pytest.mark.parametrize("verb", ROWS, ids=lambda verb: verb.name)
def test_a_row_says_who_may_ask_and_what_for(verb):
    fields = {one.name for one in msgspec.structs.fields(verb.asks)}

    assert verb.permission.parameter is None or verb.permission.parameter in fields
    assert (verb.permission.kind is Kind.CLUSTER) == (verb.permission.parameter is None)
    assert verb.summary.endswith(".")


@pytest.mark.parametrize("verb", ROWS, ids=lambda verb: verb.name)
def test_parameters_and_answers_cross_the_link_between_nodes(verb):
    asked = {one.name: SAID.get(one.name, 1) for one in msgspec.structs.fields(verb.asks) if one.required}
    asked |= {name: {} for name in asked if name == "settings"}

    sent = msgspec.msgpack.encode(msgspec.convert(asked, verb.asks, strict=False))

    assert msgspec.msgpack.decode(sent, type=verb.asks) == msgspec.convert(asked, verb.asks, strict=False)
    msgspec.msgpack.Decoder(verb.answers)  # a type that cannot be read is refused here


@pytest.mark.parametrize("operation", [*verbs.OPERATIONS, *topics.OPERATIONS], ids=lambda one: one.verb)
def test_every_verb_over_http_asks_for_its_permission_before_it_is_done(operation):
    asked: list[tuple[Operation, Resource]] = []

    def deny(principal: Principal, wanted: Operation, resource: Resource) -> None:
        asked.append((wanted, resource))
        raise PolicyViolation(f"{principal} may not")

    async def story(node):
        face = Face(node)
        face.desk.authorize = deny
        path = re.sub(r"{\w+(:\w+)?}", "1", operation.path)
        query = "?topic=1" if operation.verb == "groups.delete_offsets" else ""
        body = msgspec.json.encode({name: SAID[name] for name in _needed(operation.body)})
        headers = {"content-type": "application/json"}
        app = make_app(face)  # type: ignore[arg-type]
        answer = await ask(app, path + query, method=operation.method, headers=headers, chunks=(body,))
        assert (answer.status, answer.json["detail"]) == (403, "User:ANONYMOUS may not")

    on_a_node(story)
    permission = VERBS[operation.verb].permission
    ((wanted, resource),) = asked
    assert (wanted, resource.kind) == (permission.operation, permission.kind)
    assert resource.name == (CLUSTER_NAME if permission.parameter is None else resource.name) != ""


def test_a_verb_that_is_two_operations_of_kafkas_asks_for_both_permissions():
    asked: list[Operation] = []

    async def story(node):
        desk = Face(node).desk
        desk.authorize = lambda principal, wanted, resource: asked.append(wanted)
        await node.create("t")
        await desk.perform(
            "topics.change", ChangeTopic(topic="t", partitions=2), principal=Principal.parse("User:ann")
        )

    on_a_node(story)
    assert asked == [Operation.ALTER, Operation.ALTER_CONFIGS]


def _needed(body: Any) -> list[str]:
    if not (isinstance(body, type) and issubclass(body, msgspec.Struct)):
        return []
    return [one.name for one in msgspec.structs.fields(body) if one.required]


def test_a_verb_that_is_not_in_the_table_is_refused_with_those_that_are():
    async def story(node):
        with pytest.raises(InvalidRequest, match=r"no verb 'groups\.burn'.*quorum\.describe"):
            Face(node).desk.verb("groups.burn")

    on_a_node(story)
