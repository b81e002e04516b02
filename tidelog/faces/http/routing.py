"""Finds what serves a request, without a look at every route.

Rule 1: what is found is what Starlette would find: of the routes that fit, the first.
Rule 2: what is not found here (sockets, methods that a path does not take, nothing at all) is
        left to Starlette.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from re import Match
from typing import Any, Final, NamedTuple, TypeAlias

from starlette.convertors import Convertor
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from tidelog.faces.http.problems import Problem

STARTED: Final = "tidelog.started"
"""In the scope of a request whose answer has begun."""

Explain: TypeAlias = Callable[[Request, Exception], Awaitable[Response]]

_SEGMENTS: Final = 2
"""By so many the routes are sorted; none has a parameter there."""


class _Place(NamedTuple):
    """A route, taken apart."""

    match: Callable[[str], Match[str] | None]
    methods: frozenset[str]
    convertors: Mapping[str, Convertor[Any]]
    serve: Callable[[Request], Awaitable[Response]]


class Routing:
    """The routes by the beginning of their paths; errors become answers by `explains`."""

    def __init__(
        self, routes: Sequence[BaseRoute], explains: Mapping[type[Exception], Explain], app: ASGIApp
    ) -> None:
        """`app` is asked for what is not found; it has the same routes and `explains`."""
        self._app = app
        self._explains = explains
        self._places: dict[str, list[_Place]] = {}
        for route in routes:
            if isinstance(route, Route):
                start = _start_of(route.path)
                assert "{" not in start, f"{route.path} is not found by its beginning"
                place = _Place(
                    route.path_regex.match, frozenset(route.methods or ()),
                    route.param_convertors, route.endpoint,
                )  # fmt: skip
                self._places.setdefault(start, []).append(place)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope, receive, send)
        try:
            serve = self._find(scope)
            answer: ASGIApp = self._app if serve is None else await serve(request)
            await answer(scope, receive, send)
        except Exception as error:
            if STARTED in scope:
                raise
            explain = self._explain_of(error)
            answer = await explain(request, error)
            await answer(scope, receive, send)
            if explain is self._explains[Exception]:
                raise  # nobody expected it: uvicorn logs where it was

    def _find(self, scope: Scope) -> Callable[[Request], Awaitable[Response]] | None:
        path, method = scope["path"], scope["method"]
        for place in self._places.get(_start_of(path), ()):
            found = place.match(path)
            if found is not None:
                params = {
                    name: _convert(place.convertors[name], text)
                    for name, text in found.groupdict().items()
                }
                if method in place.methods:
                    scope["path_params"] = params
                    return place.serve
        return None

    def _explain_of(self, error: Exception) -> Explain:
        return next(self._explains[kind] for kind in type(error).__mro__ if kind in self._explains)


def _convert(convertor: Convertor[Any], text: str) -> Any:
    try:
        return convertor.convert(text)
    except ValueError:  # a number of thousands of digits
        raise Problem(404, f"there is no {text[:20]}...") from None


def _start_of(path: str) -> str:
    return "/".join(path.split("/", _SEGMENTS + 1)[: _SEGMENTS + 1])
