"""Routes found by the beginning of their paths, as Starlette finds them by trying all."""

import asyncio
import re

import pytest
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route

from tidelog.faces.http.app import all_operations
from tidelog.faces.http.routing import STARTED, Routing
from tidelog.faces.http.sockets import METHOD as WEB_SOCKET


def scope_of(path, method="GET", kind="http"):
    return {"type": kind, "method": method, "path": path, "headers": [], "query_string": b""}


class Asked:
    """An application that notes what it is asked, and answers with its name."""

    def __init__(self, name: str = "") -> None:
        self.name = name
        self.paths: list[str] = []

    async def serve(self, request: Request) -> Response:
        return Response(self.name + repr(request.path_params))

    async def __call__(self, scope, receive, send) -> None:
        self.paths.append(scope["path"])


def ask(routing, scope):
    """The body that was sent."""
    sent = []

    async def send(message):
        if message["type"] == "http.response.start":
            scope[STARTED] = True
        sent.append(message)

    asyncio.run(routing(scope, None, send))
    return b"".join(message.get("body", b"") for message in sent).decode()


def first_of(routes, scope):
    """What Starlette would answer."""
    for route in routes:
        match, child = route.matches(scope)
        if match is Match.FULL:
            return asyncio.run(route.endpoint(Request({**scope, **child}))).body.decode()
    return ""


def test_every_operation_is_found_as_starlette_would_find_it():
    known = [one for one in all_operations() if one.method != WEB_SOCKET]
    routes = [
        Route(one.path, Asked(f"{one.method} {one.path} ").serve, methods=[one.method])
        for one in known
    ]
    routing = Routing(routes, {}, Asked())

    for one in known:
        for word in ("7", "a:b", "a:watch", "a/b", "a/records", "a/partitions/0/records"):
            scope = scope_of(re.sub(r"\{[^}]*\}", word, one.path), one.method)
            assert ask(routing, dict(scope)) == first_of(routes, dict(scope))


def test_what_is_not_found_is_left_to_starlette():
    other = Asked()
    routing = Routing([Route("/v1/a/{b}", Asked().serve, methods=["GET"])], {}, other)

    for scope in (
        scope_of("/v1/a/1", "POST"), scope_of("/v1/a"), scope_of("/"),
        scope_of("/v1/a/2", kind="websocket"),
    ):  # fmt: skip
        assert ask(routing, scope) == ""

    assert other.paths == ["/v1/a/1", "/v1/a", "/", "/v1/a/2"]


def failing(error):
    async def serve(request):
        raise error

    async def explain(request, error):
        return Response(f"explained: {error}")

    async def fail(request, error):
        return Response("a bug")

    explains = {LookupError: explain, Exception: fail}
    return Routing([Route("/v1/a", serve, methods=["GET"])], explains, Asked())


def test_an_error_becomes_the_answer_that_explains_the_nearest_kind_of_it():
    assert ask(failing(KeyError("k")), scope_of("/v1/a")) == "explained: 'k'"


def test_an_error_that_nobody_expected_is_answered_and_passed_on():
    scope = scope_of("/v1/a")

    with pytest.raises(ZeroDivisionError):
        ask(failing(ZeroDivisionError()), scope)

    assert STARTED in scope


def test_an_answer_that_has_begun_is_not_followed_by_another():
    scope = scope_of("/v1/a") | {STARTED: True}

    with pytest.raises(KeyError):
        ask(failing(KeyError("k")), scope)
