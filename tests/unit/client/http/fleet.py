"""Nodes of a cluster that answer as they are told, without a socket; and clients of them."""

import json
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import httpx

from tidelog.client import AsyncClient, Client

JSON = "application/json"
PROBLEM = "application/problem+json"


@dataclass(frozen=True)
class Asked:
    """One request as a node got it."""

    node: str
    method: str
    path: str
    """As it was on the wire, escapes and all."""
    query: dict[str, str]
    headers: httpx.Headers
    body: Any

    @property
    def key(self) -> str | None:
        return self.headers.get("idempotency-key")


@dataclass(frozen=True)
class Gone:
    """There is no answer: connecting fails, or it is lost after it was sent."""

    error: type[httpx.TransportError] = httpx.ConnectError


class Chunks(httpx.SyncByteStream, httpx.AsyncByteStream):
    """A stream that ends, or is lost, after its chunks."""

    def __init__(self, *chunks: bytes, lost: bool = False) -> None:
        self._chunks = chunks
        self._lost = lost

    def __iter__(self) -> Iterator[bytes]:
        yield from self._chunks
        if self._lost:
            raise httpx.ReadError("connection reset")

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for chunk in self:
            yield chunk


Answer = httpx.Response | Gone | Callable[[Asked], httpx.Response]


def ok(document: Any, status: int = 200, **headers: str) -> httpx.Response:
    return httpx.Response(status, json=document, headers=headers)


def problem(status: int, detail: str = "no", **facts: Any) -> httpx.Response:
    headers = facts.pop("headers", {})
    document = {"status": status, "title": "No", "detail": detail, "request_id": "r1", **facts}
    return httpx.Response(status, content=json.dumps(document), headers={"content-type": PROBLEM, **headers})


def events(*texts: str, lost: bool = False) -> httpx.Response:
    stream = Chunks(*(text.encode() for text in texts), lost=lost)
    return httpx.Response(200, headers={"content-type": "text/event-stream"}, stream=stream)


class Fleet:
    """`fleet.says(path, a, b)`: its nodes answer a, then b and b again. Others: 404."""

    def __init__(self, *nodes: str) -> None:
        self.nodes = nodes or ("a:1",)
        self.leaders: dict[str, list[str | None]] = {}
        """Of every topic, by partition."""
        self.down: set[str] = set()
        self.asked: list[Asked] = []
        self.slept: list[float] = []
        self.now = 0.0
        self._answers: dict[tuple[str, str], deque[Answer]] = defaultdict(deque)

    def says(self, path: str, *answers: Answer, node: str = "") -> None:
        self._answers[node, path].extend(answers)

    def questions(self, path: str) -> list[Asked]:
        return [one for one in self.asked if one.path == path]

    def answer(self, request: httpx.Request) -> httpx.Response:
        url = urlsplit(str(request.url))
        path, _, query = request.url.raw_path.decode().partition("?")
        body = json.loads(request.content) if request.content else None
        asked = Asked(
            node=url.netloc,
            method=request.method,
            path=path,
            query=dict(parse_qsl(query, keep_blank_values=True)),
            headers=request.headers,
            body=body,
        )
        self.asked.append(asked)
        answer = self._next(asked)
        if asked.node in self.down:
            answer = Gone()
        if isinstance(answer, Gone):
            raise answer.error("connection refused", request=request)
        return answer(asked) if callable(answer) else answer

    def _next(self, asked: Asked) -> Answer:
        answers = self._answers.get((asked.node, asked.path)) or self._answers.get(("", asked.path))
        if answers:
            return answers.popleft() if len(answers) > 1 else answers[0]
        if asked.path == "/v1/cluster":
            return ok(self.describe())
        return problem(404, f"there is nothing at {asked.path}")

    def describe(self) -> dict[str, Any]:
        numbers = {node: number for number, node in enumerate(self.nodes, 1)}
        return {
            "brokers": [
                {"id": number, "http": node, "fenced": node in self.down} for node, number in numbers.items()
            ],
            "topics": [
                {"name": name, "partitions": [{"leader": numbers.get(leader or "")} for leader in leaders]}
                for name, leaders in self.leaders.items()
            ],
        }

    # Clients whose time and chance are the test's.

    def client(self, *addresses: str, **options: Any) -> Client:
        return Client(
            self._where(addresses),
            transport=httpx.MockTransport(self.answer),
            clock=lambda: self.now,
            sleep=self._sleep,
            random=lambda: 0.5,
            **options,
        )

    def async_client(self, *addresses: str, **options: Any) -> AsyncClient:
        async def sleep(seconds: float) -> None:
            self._sleep(seconds)

        return AsyncClient(
            self._where(addresses),
            transport=httpx.MockTransport(self.answer),
            clock=lambda: self.now,
            sleep=sleep,
            random=lambda: 0.5,
            **options,
        )

    def _where(self, addresses: tuple[str, ...]) -> str | tuple[str, ...]:
        return addresses if len(addresses) > 1 else (*addresses, f"http://{self.nodes[0]}")[0]

    def _sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds
