"""The description of the HTTP face, and the page that shows it."""

import json
import re
from collections import Counter
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from tests.unit.broker.node import on_a_node
from tests.unit.faces.http.test_app import ask, face
from tidelog.faces.http.api import JSON, Call, Operation, Param
from tidelog.faces.http.app import all_operations, make_app
from tidelog.faces.http.docs import read_page
from tidelog.faces.http.openapi import describe, description, name_of


class Wish(msgspec.Struct, forbid_unknown_fields=True):
    """What is wanted."""

    name: str
    many: int = 3


class Granted(msgspec.Struct):
    wishes: list[Wish]


async def grant(call: Call) -> None:
    """Nothing."""


def operation(**given: Any) -> Operation:
    fields: dict[str, Any] = {
        "method": "POST",
        "path": "/v1/wishes",
        "handler": grant,
        "summary": "Grant it.",
        "tag": "wishes",
        "body": Wish,
        "answer": Granted,
    }
    return Operation(**fields | given)


def described(*operations: Operation) -> Any:
    return json.loads(msgspec.json.encode(describe(operations)))


def test_converters_of_a_path_become_types_of_its_parameters():
    found = described(operation(path="/v1/{topic}/{number:int}:do/{rest:path}"))

    (path,) = found["paths"]
    assert path == "/v1/{topic}/{number}:do/{rest}"
    places = {one["name"]: one for one in found["paths"][path]["post"]["parameters"]}
    assert {name: one["schema"]["type"] for name, one in places.items()} == {
        "topic": "string",
        "number": "integer",
        "rest": "string",
    }
    assert all(one["required"] and one["in"] == "path" for one in places.values())


def test_parameters_say_what_they_may_be():
    found = described(
        operation(
            params=(
                Param(name="limit", doc="How many.", kind=int, default=5, least=1, most=9),
                Param(name="how", doc="", choices=("a", "b")),
                Param(name="x-key", doc="", is_header=True),
            )
        )
    )

    limit, how, key = found["paths"]["/v1/wishes"]["post"]["parameters"]
    assert limit == {
        "name": "limit",
        "in": "query",
        "description": "How many.",
        "schema": {"type": "integer", "minimum": 1, "maximum": 9, "default": 5},
    }
    assert how["schema"] == {"type": "string", "enum": ["a", "b"]}
    assert (key["in"], key["schema"]) == ("header", {"type": "string"})


def test_bodies_and_answers_are_those_of_the_handler():
    found = described(operation(status=201, raw_body=("text/plain",)))

    told = found["paths"]["/v1/wishes"]["post"]
    assert list(told["requestBody"]["content"]) == [JSON, "text/plain"]
    body = told["requestBody"]["content"][JSON]["schema"]
    assert body == {"$ref": "#/components/schemas/Wish"}
    answer = told["responses"]["201"]["content"][JSON]["schema"]
    assert answer == {"$ref": "#/components/schemas/Granted"}
    wish = found["components"]["schemas"]["Wish"]
    assert (wish["required"], wish["additionalProperties"]) == (["name"], False)


def test_every_status_that_may_come_is_there_with_its_problem():
    with_all = described(operation(errors={404: "Gone.", 200: "It was there."}, status=201))
    with_few = described(operation(body=None, method="GET", needs_cluster=False))

    answers = with_all["paths"]["/v1/wishes"]["post"]["responses"]
    assert list(answers) == ["200", "201", "400", "404", "413", "415", "503", "504"]
    assert list(with_few["paths"]["/v1/wishes"]["get"]["responses"]) == ["200", "400"]
    assert answers["404"]["description"] == "Gone."
    for status, answer in answers.items():
        kind = "application/json" if status < "300" else "application/problem+json"
        assert list(answer["content"]) == [kind]


def test_a_socket_stands_beside_the_methods_of_its_path():
    found = described(
        operation(method="WS", body=None), operation(method="GET", body=None, media_type="text/x")
    )

    path = found["paths"]["/v1/wishes"]
    assert set(path) == {"x-websocket", "get"}
    assert "101" in path["x-websocket"]["responses"]
    assert path["get"]["responses"]["200"]["content"].keys() == {"text/x"}


def test_what_is_hidden_is_not_told():
    assert described(operation(is_hidden=True))["paths"] == {}


# Of what there is.


def test_no_two_operations_have_one_name():
    names = Counter(name_of(one) for one in all_operations() if not one.is_hidden)

    assert [name for name, count in names.items() if count > 1] == []


def test_every_reference_in_the_description_leads_somewhere():
    found = json.loads(description())

    names = set(re.findall(r'"#/components/schemas/([^"]+)"', description().decode()))
    assert names <= set(found["components"]["schemas"])
    assert {one["name"] for one in found["tags"]} >= {"health", "description"}


@pytest.mark.parametrize("path", ["/openapi.json", "/docs"])
def test_the_description_is_there_before_the_cluster_is(path):
    async def story(node):
        broker = SimpleNamespace(
            quorum=None,
            host=node.broker.host,
            node_id=1,
            config=node.broker.config,
            waits_for_voters=lambda: None,
        )
        early = face(SimpleNamespace(broker=broker), is_serving=False)

        answer = await ask(make_app(early), path)

        assert answer.status == 200
        if answer.json is not None:
            assert answer.json["openapi"].startswith("3.1")

    on_a_node(story)


def test_people_who_come_to_the_front_door_are_led_to_the_page():
    async def story(node):
        answer = await ask(make_app(face(node)), "/")

        assert (answer.status, answer.headers["location"]) == (307, "/docs")

    on_a_node(story)


def test_the_page_asks_nobody_but_the_node_and_makes_no_markup_of_answers():
    page, policy = read_page()

    assert b"://" not in page
    for word in (b"innerHTML", b"outerHTML", b"insertAdjacentHTML", b"document.write", b"eval("):
        assert word not in page
    assert "default-src 'none'" in policy and "unsafe" not in policy
    assert policy.count("'sha256-") == 2
