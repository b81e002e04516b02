"""WebSockets and pages of other origins, without connections."""

import dataclasses
from typing import Any

import pytest

from tests.unit.broker.node import on_a_node
from tests.unit.faces.http.test_app import ask, face
from tidelog.errors import LeaderNotAvailable
from tidelog.faces.http import app as module
from tidelog.faces.http.api import Call, Operation, Param
from tidelog.faces.http.app import make_app
from tidelog.faces.http.problems import Problem
from tidelog.faces.http.sockets import socket_of
from tidelog.simulation.http_door import SWITCHING, Closed, Door, Message, Said

FAILURES = {
    "problem": Problem(400, "no such thing " + "ö" * 100),
    "later": LeaderNotAvailable("nobody leads"),
    "bug": ZeroDivisionError(),
}


async def echo(call: Call) -> None:
    if call["refuse"] is not None:
        raise FAILURES[call["refuse"]]
    socket = socket_of(call)
    await socket.accept()
    heard = await socket.receive_text()
    if heard in FAILURES:
        raise FAILURES[heard]
    await socket.send_text(f"{call.path['name']} {call['times']} {heard}")


ECHO = Operation(
    method="WS",
    path="/v1/echo/{name}",
    handler=echo,
    tag="test",
    summary="Say it again.",
    params=(Param(name="times", doc="", kind=int, default=1), Param(name="refuse", doc="")),
)


@pytest.fixture(autouse=True)
def with_echo(monkeypatch):
    known = module.all_operations()
    monkeypatch.setattr(module, "all_operations", lambda: (*known, ECHO))


async def talk(app, path: str, *heard: str, headers: dict[str, str] | None = None) -> list[Any]:
    """What the application says on a socket of a client that says `heard`, and hangs up."""
    sent: list[Message] = []

    async def tell(message: Message) -> None:
        sent.append(message)

    door = Door(app, "WS", path, tell, headers=headers)
    for one in heard:
        door.say(one)
    door.hang_up()
    await door.run()
    return sent


def test_a_socket_is_an_operation_with_a_path_and_parameters():
    async def story(node):
        app = make_app(face(node))

        accepted, said, closed = await talk(app, "/v1/echo/ann?times=3", "hello")

        assert accepted.status == SWITCHING and accepted.headers["x-request-id"]
        assert said == Said("ann 3 hello")
        assert closed == Closed(1000, "")

    on_a_node(story)


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/v1/echo/ann?times=x", 400),
        ("/v1/echo/ann?tims=1", 400),
        ("/v1/echo/ann?refuse=problem", 400),
        ("/v1/echo/ann?refuse=later", 503),
        ("/v1/nothing", 404),
        ("/v1/cluster", 404),
    ],
)
def test_what_is_wrong_with_a_request_is_said_before_the_socket_opens(path, status):
    async def story(node):
        start, *_ = await talk(make_app(face(node)), path)

        assert start.status == status
        assert start.headers["content-type"] == "application/problem+json" and start.headers["x-request-id"]

    on_a_node(story)


@pytest.mark.parametrize(("word", "code"), [("problem", 1008), ("later", 1013), ("bug", 1011)])
def test_what_goes_wrong_later_is_the_reason_of_its_end(word, code, caplog):
    async def story(node):
        *_, closed = await talk(make_app(face(node)), "/v1/echo/ann", word)

        assert isinstance(closed, Closed) and closed.code == code
        assert closed.reason and len(closed.reason.encode()) <= 123
        assert ("socket" in caplog.text) == (word == "bug")

    on_a_node(story)


def test_one_who_hangs_up_is_no_error(caplog):
    async def story(node):
        assert len(await talk(make_app(face(node)), "/v1/echo/ann")) == 1

    on_a_node(story)
    assert not caplog.records


# Pages of other origins.


def allow(node, origins: str):
    node.broker.config = dataclasses.replace(node.broker.config, http_cors_origins=origins)
    return make_app(face(node))


@pytest.mark.parametrize(
    ("origin", "origins", "is_served"),
    [
        (None, "", True),
        ("http://here:80", "", True),
        ("http://there:80", "", False),
        ("null", "", False),
        ("http://there:80", "http://other,http://there:80", True),
        ("http://there:80", "*", True),
        ("http://there:80", "http://there", False),
    ],
)
def test_a_page_of_another_origin_opens_a_socket_only_if_it_is_named(origin, origins, is_served):
    async def story(node):
        headers = {"host": "here:80"} | ({"origin": origin} if origin else {})

        first, *_ = await talk(allow(node, origins), "/v1/echo/ann", "x", headers=headers)

        assert first.status == (SWITCHING if is_served else 403)

    on_a_node(story)


ASKING = {"access-control-request-method": "PUT", "access-control-request-headers": "content-type"}


def test_pages_of_no_other_origin_are_allowed_anything_by_default():
    async def story(node):
        app = make_app(face(node))

        asked = await ask(app, "/v1/cluster", method="OPTIONS", headers={"origin": "http://there", **ASKING})
        read = await ask(app, "/v1/cluster", headers={"origin": "http://there"})

        assert asked.status == 405
        assert not any("access-control" in name for name in asked.headers | read.headers)

    on_a_node(story)


def test_pages_of_a_named_origin_may_ask_and_read_and_others_may_not():
    async def story(node):
        app = allow(node, "http://there")

        for origin, is_allowed in (("http://there", True), ("http://elsewhere", False)):
            asked = await ask(app, "/v1/cluster", method="OPTIONS", headers={"origin": origin, **ASKING})
            read = await ask(app, "/nothing", headers={"origin": origin})

            assert asked.status == (200 if is_allowed else 400)
            for answer in (asked, read):
                allowed = answer.headers.get("access-control-allow-origin")
                assert allowed == ("http://there" if is_allowed else None)
                assert answer.headers["x-request-id"] and "Origin" in answer.headers["vary"]

    on_a_node(story)


def test_a_page_learns_why_its_request_was_too_long():
    async def story(node):
        headers = {"origin": "http://there", "content-length": str(2**40)}

        answer = await ask(allow(node, "http://there"), "/", method="POST", headers=headers)

        assert (answer.status, answer.headers["access-control-allow-origin"]) == (413, "http://there")

    on_a_node(story)
