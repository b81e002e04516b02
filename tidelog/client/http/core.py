"""How a request is sent until it is answered: routes, retries, redirects, errors.

Rule 1: nothing here opens a connection, sleeps or reads a clock by itself; plans yield effects.
Rule 2: a write carries one Idempotency-Key through all of its attempts, so it happens once.
Rule 3: connections that are lost, 502 and 503 are tried again elsewhere, later, and less and less
        often; so is 504, unless it says that the write is committed. Every other answer is final.
Rule 4: when the last attempt has failed, the error says what is known: that nothing was written,
        or that nobody knows.
Rule 5: once an attempt may have arrived, or arrive yet, a refusal of the next one is no certain no:
        what is refused now may be done in a moment. It is one if the request is wrong in itself, or
        if the refusal is true of every attempt (`settled_by`).
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar
from urllib.parse import quote, urlencode

from tidelog.client.http.effects import Emit, Flow, Lost, Open, Plan, Pull, Reply, Request, Send, Wait
from tidelog.client.http.errors import ABOUT, OutcomeUnknown, TidelogHTTPError, Unavailable, error_of
from tidelog.client.http.routes import Place, Routes
from tidelog.client.http.sse import EVENT_BYTES_MAX, Event, EventTooLong, Parser
from tidelog.client.http.tokens import Tokens
from tidelog.client.http.values import Document, Seconds, milliseconds

T = TypeVar("T")

BACKOFF_SECONDS_MAX: Final = 5.0
ANSWER_MARGIN_SECONDS: Final = 2.0
"""What a node gets beyond the time that it was given, to say what became of it."""
REFRESH_SECONDS_MAX: Final = 5.0
SILENCE_SECONDS_MAX: Final = 45.0
"""A stream has a heartbeat every 15 seconds; one that is silent for three is lost."""
REDIRECTS_MAX: Final = 3
CHANGE_SECONDS: Final = 40.0
"""A change of metadata may take half a minute while the quorum has no leader."""

JSON: Final = "application/json"
EVENT_STREAM: Final = "text/event-stream"
_ASK_AGAIN: Final = frozenset({502, 503, 504})
_REDIRECTS: Final = frozenset({307, 308})
GONE: Final = frozenset({404})
"""Settles a deletion: what it names is not there, whoever has deleted it; or the node remembers
that a deletion, purge or redrive has found no queue."""
MADE: Final = frozenset({409})
"""Settles the making of a topic: it is there, whoever has made it."""
_WRONG_IN_ITSELF: Final = frozenset({400, 405, 413, 415, 422})
_SAFE: Final = frozenset({"GET", "HEAD"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What holds for all requests of a client."""

    timeout: float = 10.0
    retries: int = 3
    backoff: float = 0.2
    reconnect_seconds: float = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """A request to whichever node is the right one."""

    method: str
    path: str
    query: Mapping[str, Any] = field(default_factory=dict)
    """What is None is left out."""
    body: bytes | None = None
    content_type: str = JSON
    place: Place | None = None
    is_local: bool = False
    """Whether any replica may answer: then it is for the nodes that were given."""
    origin: str | None = None
    """The one node that is meant."""
    idempotency_key: str | None = None
    seconds_max: float | None = None
    retries: int | None = None
    is_repeatable: bool = True
    """False if nobody knows it again: then it is not repeated once a node may have got it."""
    settled_by: frozenset[int] = frozenset()
    """The refusals that are true of all attempts, one that is still on its way among them: because
    the node remembers under the key that it has refused, or because no more was asked for."""
    is_repeat: bool = False
    """Whether an earlier attempt may have arrived, or may arrive yet."""
    has_cursor: bool = True
    """Whether a stream of it goes on where it was; otherwise with whatever comes then."""

    @property
    def is_write(self) -> bool:
        return self.method not in _SAFE

    @property
    def target(self) -> Place | None:
        """Whose leader is the one to ask."""
        return None if self.is_local else self.place

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


def path_of(*segments: object) -> str:
    """A path in which nothing of a segment is taken for more than its text."""
    return "".join(f"/{_segment(str(segment))}" for segment in segments)


def _segment(text: str) -> str:
    if text in (".", ".."):
        return text.replace(".", "%2E")  # clients and proxies take the plain ones as directions
    return quote(text, safe="", errors="surrogateescape")


def to_json(document: Any) -> bytes:
    """A body; what is no JSON is a TypeError or a ValueError, before anything is sent."""
    return json.dumps(document, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def document_of(reply: Reply) -> Any:
    """What the body says; an empty object if it is no JSON, as a proxy's page is not."""
    try:
        return json.loads(reply.body)
    except (ValueError, RecursionError):
        return {}


class Core:
    """One client's state: routes, tokens and settings; and the plans that all others rest on."""

    def __init__(
        self,
        routes: Routes,
        settings: Settings,
        *,
        clock: Callable[[], float],
        random: Callable[[], float],
        new_key: Callable[[], str],
    ) -> None:
        self.routes = routes
        self.settings = settings
        self.tokens = Tokens()
        self._clock = clock
        self._random = random
        self._new_key = new_key

    @property
    def change_seconds(self) -> float:
        """How long a node gets to change the cluster's metadata."""
        return max(self.settings.timeout, CHANGE_SECONDS)

    def chance(self) -> float:
        """Some number from 0 to 1."""
        return self._random()

    def now(self) -> float:
        """Seconds of a clock that only goes forward."""
        return self._clock()

    # One request.

    def ask(self, ask: Ask, tries: "Tries | None" = None) -> Plan[Any]:
        """The document of the answer; a TidelogHTTPError if there is none, or a refusal."""
        return document_of((yield from self.send(ask, tries)))

    def whole(self, ask: Ask, name: str) -> Plan[Document]:
        """A document whose list `name` is answered page by page, with all of it."""
        whole: Document = yield from self.ask(ask)
        while (after := whole.pop("next", None)) is not None:
            document = yield from self.ask(replace(ask, query={**ask.query, "after": after}))
            whole[name] += document[name]
            whole["next"] = document.get("next")
        return whole

    def pages(self, ask: Ask, name: str) -> Plan[list[Any]]:
        """Every item of a list that is answered page by page."""
        found: list[Any] = (yield from self.whole(ask, name))[name]
        return found

    def write(
        self,
        ask: Ask,
        *,
        min_replicas_ack: int | None = None,
        sync_timeout: Seconds | None = None,
        idempotency_key: str | None = None,
        tries: "Tries | None" = None,
    ) -> Plan[Any]:
        """Ask for records to be written; the node waits for the replicas, as long as it may.

        `tries` is told what becomes of the attempts, for an answer that has several outcomes.
        """
        wait_ms = milliseconds(self.settings.timeout if sync_timeout is None else sync_timeout)
        how = {"min_replicas_ack": min_replicas_ack, "sync_timeout_ms": wait_ms}
        return (
            yield from self.ask(
                replace(
                    ask,
                    query={**ask.query, **how},
                    idempotency_key=idempotency_key,
                    seconds_max=wait_ms / 1000 + ANSWER_MARGIN_SECONDS,
                ),
                tries,
            )
        )

    def send(self, ask: Ask, tries: "Tries | None" = None) -> Plan[Reply]:
        """The answer that is a success; a TidelogHTTPError otherwise."""
        if ask.is_write and ask.idempotency_key is None:
            ask = replace(ask, idempotency_key=self._new_key())
        tries = tries or Tries(ask)
        tries.ask = ask
        retries = self.settings.retries if ask.retries is None else ask.retries
        while True:
            yield from self.look(ask.place)
            origin = ask.origin or self.routes.pick(ask.target)
            is_repeat = ask.is_repeat or (ask.is_write and tries.may_have_happened)
            reply = yield from self._send_to(origin, replace(ask, is_repeat=is_repeat))
            if isinstance(reply, Reply) and not tries.may_ask_again(reply):
                self.routes.answered(origin)
                if reply.status < 300:
                    return reply
                raise tries.refusal(reply)
            self._note_failure(tries, origin, reply)
            if tries.count > retries or (tries.may_have_happened and not ask.is_repeatable):
                raise tries.failure(self.routes.every())
            yield Wait(self.pause(tries.count, reply))

    def _send_to(self, origin: str, ask: Ask) -> Plan[Reply | Lost]:
        """What a node answers, or the node to which it refers us."""
        url = self._url(origin, ask.path, ask.query)
        redirects = 0
        while True:
            reply: Reply | Lost = yield Send(self._request(ask, url))
            location = None if isinstance(reply, Lost) else reply.headers.get("location")
            is_final = isinstance(reply, Lost) or reply.status not in _REDIRECTS
            if is_final or location is None or redirects == REDIRECTS_MAX:
                return reply
            if "://" in location and not location.startswith(f"{self.routes.scheme}://"):
                return reply  # from https to http, or back
            redirects += 1
            self.routes.look_again()
            url = location if "://" in location else origin + location

    def _request(self, ask: Ask, url: str) -> Request:
        headers = {"accept": JSON}
        if ask.body is not None:
            headers["content-type"] = ask.content_type
        if ask.idempotency_key is not None:
            headers["idempotency-key"] = ask.idempotency_key
        if ask.is_repeat:
            headers["idempotency-repeat"] = "true"
        seconds = self.settings.timeout if ask.seconds_max is None else ask.seconds_max
        return Request(method=ask.method, url=url, headers=headers, body=ask.body, seconds_max=seconds)

    def _url(self, origin: str, path: str, query: Mapping[str, Any]) -> str:
        given = {name: _text(value) for name, value in query.items() if value is not None}
        return f"{origin}{path}?{urlencode(given)}" if given else f"{origin}{path}"

    def pause(self, failures: int, reply: Reply | Lost | None = None) -> float:
        """Twice as long every time, half of it by chance, and no shorter than a node asks for."""
        longest: float = min(self.settings.backoff * 2 ** (failures - 1), BACKOFF_SECONDS_MAX)
        pause = longest * (1 + self._random()) / 2
        asked_for = reply.headers.get("retry-after", "") if isinstance(reply, Reply) else ""
        if asked_for.isascii() and asked_for.isdecimal():
            pause += min(float(asked_for), BACKOFF_SECONDS_MAX)
        return pause

    # Who leads.

    def look(self, place: Place | None) -> Plan[None]:
        """Look at the cluster, if it is time to, or if nothing is known of this place."""
        path = self.routes.claim_refresh(place)
        if path is None:
            return
        document = None
        try:
            origin = self.routes.pick()
            seconds = min(self.settings.timeout, REFRESH_SECONDS_MAX)
            reply = yield Send(
                Request(
                    method="GET", url=origin + path, headers={"accept": JSON}, body=None, seconds_max=seconds
                )
            )
            if isinstance(reply, Reply) and reply.status == 200:
                document = document_of(reply)
            else:
                self.routes.avoid(origin)
        finally:
            self.routes.refreshed(document)

    # A stream of events.

    def follow(self, ask: Ask, read: Callable[[Event], T]) -> Flow[T]:
        """What `read` makes of every event; after a loss it goes on where it was."""
        cursor = ask.query.get("from")
        tries = Tries(ask)
        heard_at: float | None = None
        while True:
            yield from self.look(ask.place)
            origin = self.routes.pick(ask.target)
            reply = yield Open(self._stream_request(origin, ask, cursor))
            if isinstance(reply, Reply) and reply.status == 200:
                self.routes.answered(origin)
                parser = Parser(EVENT_BYTES_MAX)
                farewell: Reply | None = None
                chunk: bytes | Lost = b""
                while farewell is None:
                    chunk = yield Pull()
                    if isinstance(chunk, Lost) or not chunk:
                        break
                    tries, heard_at = Tries(ask), self._clock()
                    for event in _events(parser, chunk, ask):
                        farewell = _farewell(event)
                        if farewell is not None:
                            break
                        yield Emit(read(event))
                    if ask.has_cursor:
                        cursor = parser.last_id or cursor
                reply = farewell or chunk or Lost(why="the stream ended", was_sent=True)
            if isinstance(reply, Reply) and not tries.may_ask_again(reply):
                raise tries.refusal(reply)
            self._note_failure(tries, origin, reply)
            if heard_at is None:
                is_hopeless = tries.count > self.settings.retries
            else:
                is_hopeless = self._clock() - heard_at > self.settings.reconnect_seconds
            if is_hopeless:
                raise tries.failure(self.routes.every())
            yield Wait(self.pause(tries.count, reply))

    def _note_failure(self, tries: "Tries", origin: str, reply: Reply | Lost) -> None:
        if isinstance(reply, Lost) and reply.is_ours:
            raise Unavailable(f"{tries.ask}: {reply.why}")
        self.routes.avoid(origin)
        tries.failed(origin, reply)

    def _stream_request(self, origin: str, ask: Ask, cursor: str | None) -> Request:
        return Request(
            method=ask.method,
            url=self._url(origin, ask.path, {**ask.query, "from": cursor}),
            headers={"accept": EVENT_STREAM, "cache-control": "no-store"},
            body=None,
            seconds_max=SILENCE_SECONDS_MAX,
        )


class Tries:
    """What became of the attempts of one request so far."""

    def __init__(self, ask: Ask) -> None:
        self.ask = ask
        self.told: list[str] = []
        self.may_have_happened = False
        self._were_all_refused = True
        """Whether no attempt got as far as a node."""
        self._problem: dict[str, Any] = {}

    @property
    def count(self) -> int:
        return len(self.told)

    def may_ask_again(self, reply: Reply) -> bool:
        """Whether this answer may be another one soon."""
        if reply.status not in _ASK_AGAIN:
            return False
        return reply.status != 504 or _problem_of(reply).get("outcome") != "committed"

    def failed(self, origin: str, reply: Reply | Lost) -> None:
        if isinstance(reply, Lost):
            self.told.append(f"{origin}: {reply.why}")
            self.may_have_happened |= reply.was_sent
            self._were_all_refused &= not reply.was_sent
            return
        problem = _problem_of(reply)
        self.told.append(f"{origin}: {problem.get('detail') or reply.status}")
        self._were_all_refused = False
        # Of records for several partitions some may be written where others were refused.
        if reply.status != 503 or "records" in problem:
            self.may_have_happened = True
        if reply.status == 504 or not self._problem:
            self._problem = problem

    def refusal(self, reply: Reply) -> TidelogHTTPError:
        """The error of an answer that is final."""
        return self.refused(reply.status, _problem_of(reply), str(self.ask))

    def refused(self, status: int, problem: dict[str, Any], what: str) -> TidelogHTTPError:
        """The error of a refusal of the last attempt, of all of it or of a part."""
        is_settled = status in _WRONG_IN_ITSELF or status in self.ask.settled_by
        # Who settles a receipt whose message is gone finds it gone for good.
        is_settled = is_settled or (status == 404 and "results" in problem)
        is_stumble = status >= 500 and status not in (502, 503)
        is_known = not is_stumble and (is_settled or not self.may_have_happened)
        if is_known or not self.ask.is_write:
            return error_of(status, problem, what, attempts=self.told, is_repeat=self.may_have_happened)
        why = problem.get("detail") or f"the answer was {status}"
        if not is_stumble:  # then the document speaks of the last attempt alone
            problem = {name: fact for name, fact in problem.items() if name not in ABOUT}
        return self._unknown(why, problem, what, status if is_stumble else None)

    def failure(self, asked: list[str]) -> TidelogHTTPError:
        """The error when no attempt is left."""
        last = self.told[-1]
        if self.may_have_happened and self.ask.is_write:
            return self._unknown(last, self._problem, str(self.ask))
        if self._were_all_refused:
            message = (
                f"no node answers at {', '.join(asked)} ({last.partition(': ')[2]}); start one "
                "with `tidelog start`, or give the http address of its ready line"
            )
        else:
            message = f"{self.ask}: {last}; asked {_times(self.count)}"
            if self.ask.is_write:
                message += ". Nothing was written"
        status = self._problem.get("status")
        return Unavailable(
            message,
            problem=self._problem,
            status=status if isinstance(status, int) else None,
            attempts=self.told[:-1],
        )

    def _unknown(
        self, why: str, problem: dict[str, Any], what: str, status: int | None = None
    ) -> OutcomeUnknown:
        key = self.ask.idempotency_key
        if problem.get("outcome") == "committed":
            message = f"{what}: it is committed, but not as safe as was asked for: {why}"
        else:
            message = (
                f"{what}: it may have happened, or not: {why}. Look, or repeat it with "
                f"idempotency_key={key!r}"
            )
        return OutcomeUnknown(
            message, idempotency_key=key, problem=problem, attempts=self.told, is_repeat=True, status=status
        )


def _events(parser: Parser, chunk: bytes, ask: Ask) -> list[Event]:
    try:
        return parser.feed(chunk)
    except EventTooLong as error:
        raise TidelogHTTPError(f"{ask}: {error}, which is more than this client takes") from None


def _farewell(event: Event) -> Reply | None:
    """Why a node ends a stream, as if it had answered so to the request; None for an item."""
    if event.kind == "message":
        return None
    reply = Reply(status=503, headers={}, body=event.data.encode())
    status = _problem_of(reply).get("status")
    return replace(reply, status=status) if isinstance(status, int) else reply


def _problem_of(reply: Reply) -> dict[str, Any]:
    document = document_of(reply)
    return document if isinstance(document, dict) else {}


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
