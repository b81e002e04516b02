"""The table of verbs: what holds for every row."""

import re
from typing import Any

import msgspec
import pytest

from tests.unit.broker.node import on_a_node
from tests.unit.faces.http.test_app import ask
from tests.unit.faces.http.test_operations import Face
from tidelog.errors import InvalidRequest
from tidelog.faces.http import topics, verbs
from tidelog.faces.http.app import make_app
from tidelog.operators.table import VERBS
from tidelog.operators.topics import ChangeTopic
from tidelog.security.authorizer import Access
from tidelog.security.permissions import CLUSTER_NAME, Kind, Operation
from tidelog.security.principals import ANONYMOUS

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
    "principal": "User:a",
    "operation": "Read",
    "kind": "Topic",
    "acls": [{"principal": "User:a", "operation": "Read", "kind": "Topic", "name": "t"}],
}
"""What is enough for every verb to be asked for."""


@pytest.mark.parametrize("verb", ROWS, ids=lambda verb: verb.name)
def test_a_row_says_who_may_ask_and_what_for(verb):
    fields = {one.name for one in msgspec.structs.fields(verb.asks)}

    assert verb.permission.parameter is None or verb.permission.parameter in fields
    is_nameless = verb.permission.parameter is None and not verb.permission.is_of_each
    assert (verb.permission.kind is Kind.CLUSTER) == is_nameless
    assert verb.summary.endswith(".")


@pytest.mark.parametrize("verb", ROWS, ids=lambda verb: verb.name)
def test_parameters_and_answers_cross_the_link_between_nodes(verb):
    asked = {one.name: SAID.get(one.name, 1) for one in msgspec.structs.fields(verb.asks) if one.required}
    asked |= {name: {} for name in asked if name == "settings"}

    sent = msgspec.msgpack.encode(msgspec.convert(asked, verb.asks, strict=False))

    assert msgspec.msgpack.decode(sent, type=verb.asks) == msgspec.convert(asked, verb.asks, strict=False)
    msgspec.msgpack.Decoder(verb.answers)  # a type that cannot be read is refused here


QUERIES = {"groups.delete_offsets": "?topic=1", "acls.explain": "?principal=User:a&operation=Read&kind=Topic"}
JUDGED = [
    one for one in (*verbs.OPERATIONS, *topics.OPERATIONS) if not VERBS[str(one.verb)].permission.is_of_each
]


@pytest.mark.parametrize("operation", JUDGED, ids=lambda one: one.verb)
def test_every_verb_over_http_is_judged_before_it_is_done(operation):
    async def story(node):
        path = re.sub(r"{\w+(:\w+)?}", "1", operation.path)
        query = QUERIES.get(str(operation.verb), "")
        body = msgspec.json.encode({name: SAID[name] for name in _needed(operation.body)})
        headers = {"content-type": "application/json"}
        app = make_app(Face(node))  # type: ignore[arg-type]
        answer = await ask(app, path + query, method=operation.method, headers=headers, chunks=(body,))
        permission = VERBS[str(operation.verb)].permission
        assert answer.status == 403
        assert f"User:ANONYMOUS may not do {permission.operation.value} on " in answer.json["detail"]

    on_a_node(story, authorizer_enabled=True)


def test_a_verb_that_is_two_operations_of_kafkas_asks_for_both_permissions():
    asked: list[Operation] = []

    class Noting(Access):
        def may(self, operation: Operation, kind: Kind, name: str = CLUSTER_NAME) -> bool:
            asked.append(operation)
            return True

    async def story(node):
        desk = Face(node).desk
        await node.create("t")
        access = Noting(node.broker.authorizer, ANONYMOUS, "")
        await desk.perform("topics.change", ChangeTopic(topic="t", partitions=2), access=access)

    on_a_node(story)
    assert asked[:2] == [Operation.ALTER, Operation.ALTER_CONFIGS]


def _needed(body: Any) -> list[str]:
    if not (isinstance(body, type) and issubclass(body, msgspec.Struct)):
        return []
    return [one.name for one in msgspec.structs.fields(body) if one.required]


def test_a_verb_that_is_not_in_the_table_is_refused_with_those_that_are():
    async def story(node):
        with pytest.raises(InvalidRequest, match=r"no verb 'groups\.burn'.*quorum\.describe"):
            Face(node).desk.verb("groups.burn")

    on_a_node(story)
