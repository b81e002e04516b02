"""Requests of a proxy and their answers.

Rule 1: what a cluster answers is passed on as it is, but for the ids of queues with pointers.
Rule 2: a request that only waits for messages ends when its client has gone; any other is carried
        out once it has come.
"""

import asyncio
import itertools
import logging
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar

import msgspec

from tidelog.client.http.core import path_of
from tidelog.client.http.effects import Reply
from tidelog.client.http.errors import NotFound, OutcomeUnknown, TidelogHTTPError, Unavailable
from tidelog.faces.compatibility.proxy import listing
from tidelog.faces.compatibility.proxy.clusters import Cluster
from tidelog.faces.compatibility.proxy.placing import Places, without_dead
from tidelog.faces.http.edge.bodies import NoRoom
from tidelog.faces.http.edge.messages import BodyTooLong, ClientDisconnect, Request, Response
from tidelog.faces.http.edge.routes import Table
from tidelog.faces.http.edge.sockets import WebSocket
from tidelog.faces.http.problems import MEDIA_TYPE, Problem, problem_bytes

T = TypeVar("T")

_log = logging.getLogger(__name__)

BODY_BYTES_MAX: Final = 64 * 1024 * 1024
STORED_MS: Final = 30_000
"""How long a node waits until something is stored, unless the client says otherwise."""
STORED_MS_MAX: Final = 300_000
WAIT_MS_MAX: Final = 30_000
MARGIN_SECONDS: Final = 5.0
"""What a node gets beyond the time that it was given."""
KEY: Final = "idempotency-key"
REPEAT: Final = "idempotency-repeat"
CLUSTER: Final = "x-tidelog-cluster"
JSON: Final = "application/json"
REPLACED: Final = (
    "/apply_create_queue",
    "/apply_append",
    "/apply_set_pointer",
    "/heartbeat",
    "/set_follower_urls",
    "/set_peer_urls",
)
"""What is no more; a node says what replaced it."""


class Proxy:
    """The clusters, and what is asked of them."""

    def __init__(self, clusters: Sequence[Cluster], places: Places) -> None:
        assert len(clusters) == places.clusters, "each has its number"
        self.clusters = clusters
        self.places = places
        self.stopping = asyncio.Event()
        self._turns = itertools.count(random.randrange(len(clusters)))

    # Queues with pointers.

    async def create_queue(self, request: Request) -> Response:
        """Clusters take turns; with a key it is the key's own, whatever else is there."""
        body = await request.body() or b"{}"
        key = request.headers.get(KEY)
        if key is not None:
            order = [self.clusters[self.places.of_key(key)]]
        else:
            first = next(self._turns) % len(self.clusters)
            order = [*self.clusters[first:], *self.clusters[:first]]

        async def ask(cluster: Cluster) -> Response:
            reply = await cluster.ask(
                "POST",
                "/create_queue",
                query=request.query_params,
                body=body,
                key=key,
                seconds_max=_seconds(request),
            )
            local = msgspec.json.decode(reply.body)["queue_id"]
            document = {"queue_id": self.places.everywhere(local, cluster.number)}
            return _json(document, reply.status, cluster)

        for cluster in order[:-1]:
            with suppress(Unavailable):  # nothing was made there
                return await ask(cluster)
        return await ask(order[-1])

    async def about_queue(self, request: Request) -> Response:
        """`/append`, `/read` and `/delete_queue`, with the id that the queue has in its cluster."""
        try:
            fields = msgspec.json.decode(await request.body(), type=dict[str, msgspec.Raw])
            queue_id = msgspec.json.decode(fields["queue_id"], type=int)
        except KeyError:
            raise Problem(400, "queue_id is missing") from None
        except msgspec.MsgspecError as error:
            raise Problem(400, f"the body is not what it should be: {error}") from None
        found = self.places.find(queue_id)
        if found is None:
            raise Problem(404, f"there is no queue {queue_id}; POST /create_queue makes one")
        number, local = found
        cluster = self.clusters[number]
        fields["queue_id"] = msgspec.Raw(b"%d" % local)
        try:
            reply = await cluster.ask(
                "POST",
                request.path,
                query=request.query_params,
                body=msgspec.json.encode(fields),
                queue=local,
                key=request.headers.get(KEY),
                is_repeat=request.headers.get(REPEAT) == "true",
                seconds_max=_seconds(request),
            )
        except NotFound:
            raise Problem(404, f"there is no queue {queue_id}; POST /create_queue makes one") from None
        return _passed_on(reply, cluster)

    async def list_all(self, request: Request) -> Response:
        try:
            wanted = msgspec.json.decode(await request.body() or b"{}", type=listing.Page)
        except msgspec.MsgspecError as error:
            raise Problem(400, f"the body is not what it should be: {error}") from None
        return _json(await listing.list_pointers(self.clusters, self.places, request.path, wanted))

    async def broker_info(self, request: Request) -> Response:
        found = await listing.infos(self.clusters)
        is_up = any(one["up"] for one in found)
        return _json({"is_proxy": True, "is_leader": False, "ready": is_up, "clusters": found})

    async def replaced(self, request: Request) -> Response:
        body = await request.body() or b"{}"
        up = [one for one in self.clusters if one.standing.is_up is not False]
        cluster = (up or self.clusters)[0]
        return _passed_on(await cluster.ask("POST", request.path, body=body), cluster)

    # Work queues.

    async def list_names(self, request: Request) -> Response:
        try:
            limit = int(request.query_params.get("limit", "100"))
        except ValueError:
            limit = 0
        if not 1 <= limit <= listing.LISTED_MAX:
            raise Problem(400, f"limit must be from 1 to {listing.LISTED_MAX}")
        after = request.query_params.get("after")
        return _json(await listing.list_names(self.clusters, limit=limit, after=after))

    async def work_queue(self, request: Request) -> Response:
        """Anything about one work queue, as it came."""
        name, action = request.path_params["queue"], request.path_params.get("action")
        cluster = self.clusters[self.places.of_name(name)]
        body = await request.body()
        path = path_of("v1", "queues", name, *(() if action is None else (action,)))
        seconds = _seconds(request)
        if action == "receive":
            seconds += _wait_seconds(body)
        asked = cluster.ask(
            request.method,
            path,
            query=request.query_params,
            body=body or None,
            queue=without_dead(name),
            key=request.headers.get(KEY),
            seconds_max=seconds,
        )
        if action == "receive":
            return _passed_on(await self._while_there(request, asked), cluster)
        return _passed_on(await asked, cluster)

    async def _while_there(self, request: Request, work: Awaitable[T]) -> T:
        """What comes of it, unless the client goes, or the proxy stops, before."""
        task = asyncio.ensure_future(work)
        gone = asyncio.ensure_future(request.gone())
        stopping = asyncio.ensure_future(self.stopping.wait())
        try:
            await asyncio.wait((task, gone, stopping), return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise Problem(503, "the proxy is stopping", headers={"retry-after": "1"})
            return task.result()
        finally:
            for one in (task, gone, stopping):
                one.cancel()
                with suppress(asyncio.CancelledError, TidelogHTTPError):
                    await one

    # Health.

    async def live(self, request: Request) -> Response:
        return _json({"status": "live"})

    async def ready(self, request: Request) -> Response:
        """200 while a cluster can be asked; which ones cannot is said."""
        standings = [one.standing for one in self.clusters]
        up = sum(one.is_up is True for one in standings)
        status = "ready" if up == len(standings) else "degraded" if up else "unavailable"
        if self.stopping.is_set():
            up, status = 0, "stopping"
        document = {
            "status": status,
            "clusters": [
                {
                    "cluster": one.number,
                    "nodes": one.nodes,
                    "up": one.standing.is_up,
                    "detail": one.standing.detail,
                    "since_ms": one.standing.since_ms,
                }
                for one in self.clusters
            ],
        }
        return _json(document, 200 if up else 503)


class App:
    """What is served over HTTP."""

    takes_sockets = False

    def __init__(self, proxy: Proxy) -> None:
        queue = "/v1/queues/{queue}"
        rows: list[tuple[str, str, Callable[[Request], Awaitable[Response]]]] = [
            ("POST", "/create_queue", proxy.create_queue),
            ("POST", "/append", proxy.about_queue),
            ("POST", "/read", proxy.about_queue),
            ("POST", "/delete_queue", proxy.about_queue),
            ("POST", "/broker_info", proxy.broker_info),
            *(("POST", path, proxy.list_all) for path in listing.PATHS),
            *(("POST", path, proxy.replaced) for path in REPLACED),
            ("GET", "/v1/queues", proxy.list_names),
            *((method, queue, proxy.work_queue) for method in ("GET", "PUT", "DELETE")),
            ("POST", queue + "/{action}", proxy.work_queue),
            ("GET", "/health/live", proxy.live),
            ("GET", "/health/ready", proxy.ready),
        ]
        self._table = Table(rows)

    async def serve(self, request: Request) -> Response:
        """The answer to a request; whatever goes wrong is one, too."""
        request.bytes_max = BODY_BYTES_MAX
        try:
            found = self._table.find("GET" if request.method == "HEAD" else request.method, request.path)
            if found is None:
                raise self._nothing_there(request)
            serve, request.path_params = found
            return await serve(request)
        except Exception as error:
            return _explain(request, error)

    async def open(self, socket: WebSocket) -> Response | None:
        raise NotImplementedError("a proxy has no sockets")

    def _nothing_there(self, request: Request) -> Problem:
        if methods := self._table.methods(request.path):
            detail = f"{request.path} does not take {request.method}"
            return Problem(405, detail, headers={"allow": ", ".join(methods)})
        return Problem(404, f"there is nothing at {request.path}; a proxy serves queues, see docs/proxy.md")


def make_app(proxy: Proxy) -> App:
    return App(proxy)


# Bodies and answers.


def _seconds(request: Request) -> float:
    """How long a node may take for an answer."""
    given = request.query_params.get("sync_timeout_ms", "")
    stored_ms = int(given) if given.isascii() and given.isdecimal() and len(given) < 10 else 0
    return min(stored_ms or STORED_MS, STORED_MS_MAX) / 1000 + MARGIN_SECONDS


class _Waits(msgspec.Struct):
    wait_ms: int = 0


def _wait_seconds(body: bytes) -> float:
    try:
        wanted = msgspec.json.decode(body or b"{}", type=_Waits)
    except msgspec.MsgspecError:
        return 0.0  # the node says what is wrong
    return min(max(wanted.wait_ms, 0), WAIT_MS_MAX) / 1000


def _json(document: Any, status: int = 200, cluster: Cluster | None = None) -> Response:
    headers = {} if cluster is None else {CLUSTER: str(cluster.number)}
    return Response(msgspec.json.encode(document), status, headers=headers, media_type=JSON)


def _passed_on(reply: Reply, cluster: Cluster) -> Response:
    kind = reply.headers.get("content-type", JSON)
    headers = {CLUSTER: str(cluster.number), "content-type": kind}
    return Response(reply.body, reply.status, headers=headers)


def _refusal(
    status: int,
    detail: str,
    *,
    headers: Mapping[str, str] | None = None,
    facts: Mapping[str, Any] | None = None,
) -> Response:
    return Response(
        problem_bytes(status, detail, facts=facts), status, headers=headers, media_type=MEDIA_TYPE
    )


def _explain(request: Request, error: Exception) -> Response:
    """The answer that says what went wrong."""
    match error:
        case Problem():
            return _refusal(error.status, error.detail, headers=error.headers, facts=error.facts)
        case TidelogHTTPError():
            return _explain_cluster(error)
        case BodyTooLong():
            return _refusal(413, str(error), headers={"connection": "close"})
        case NoRoom():
            return _refusal(
                503, "too many large bodies; try again", headers={"retry-after": "1", "connection": "close"}
            )
        case ClientDisconnect():
            return _refusal(400, "the request has no end")
        case _:
            _log.error("a request failed: %s", request.path, exc_info=error)
            return _refusal(500, "a bug in tidelog; the proxy's log has more")


def _explain_cluster(error: TidelogHTTPError) -> Response:
    """What a cluster has said, or that it says nothing."""
    status = error.status or 502
    headers = {"retry-after": "1"} if status == 503 else None
    facts = {name: value for name, value in error.problem.items() if name not in _SAID}
    if isinstance(error, OutcomeUnknown):
        facts |= error.known
    return _refusal(status, error.detail, headers=headers, facts=facts)


_SAID: Final = frozenset({"type", "title", "status", "detail"})
