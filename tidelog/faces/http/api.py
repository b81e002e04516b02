"""What the HTTP face offers, as a table: its routes and its OpenAPI description are made of it.

Rule 1: an operation says all that a client must know of it: parameters, body, answer. What it does
        not name is refused: a parameter that is misspelt must not be ignored.
Rule 2: a handler gets a `Call` whose parts were checked, and returns a value or raises: a
        `Problem`, or any error of the broker, of which `problems` knows the status.
Rule 3: what changes something takes `application/json`, or another type that a page in somebody's
        browser cannot send without asking us first.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar, get_args

import msgspec

from tidelog.faces.http.edge.messages import Head, Request, Response
from tidelog.faces.http.health import why_not_ready
from tidelog.faces.http.problems import Problem
from tidelog.security.authorizer import host_of
from tidelog.security.failures import AuthenticationFailed

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker
    from tidelog.faces.http.permissions import Need
    from tidelog.faces.node import Node
    from tidelog.security.authorizer import Access

T = TypeVar("T")

JSON: Final = "application/json"
EVENTS: Final = "text/event-stream"
LINES: Final = "application/x-ndjson"
UNREADY_RETRY_SECONDS: Final = "1"

Handler: TypeAlias = "Callable[[Call], Awaitable[Any]]"

_encode: Final = msgspec.json.Encoder().encode
_BOOLS: Final = {"true": True, "1": True, "": True, "false": False, "0": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class Param:
    """One parameter of the query, or a header."""

    name: str
    doc: str
    kind: type[str] | type[int] | type[bool] = str
    default: Any = None
    least: int | None = None
    most: int | None = None
    choices: tuple[str, ...] = ()
    is_header: bool = False
    is_required: bool = False
    """Whether a verb cannot do without it."""

    def parse(self, text: str) -> Any:
        """The value in `text`; Problem with what it may be."""
        if self.kind is bool:
            if (found := _BOOLS.get(text.lower())) is None:
                raise Problem(400, f"{self.name} is {text!r}; it must be true or false")
            return found
        if self.kind is int:
            return self._parse_int(text)
        if self.choices and text not in self.choices:
            raise Problem(400, f"{self.name} is {text!r}; it must be {' or '.join(self.choices)}")
        return text

    def _parse_int(self, text: str) -> int:
        digits = text.removeprefix("-")
        if not (digits.isascii() and digits.isdecimal() and len(digits) < 20):
            raise Problem(400, f"{self.name} is {text!r}; it must be a whole number")
        value = int(text)
        if self.least is not None and value < self.least:
            raise Problem(400, f"{self.name} is {value}; it must be at least {self.least}")
        if self.most is not None and value > self.most:
            raise Problem(400, f"{self.name} is {value}; it must be at most {self.most}")
        return value


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one path."""

    method: str
    """`WS` for a WebSocket (`sockets.py`)."""
    path: str
    """As `edge.routes` reads it: `/v1/topics/{topic}/partitions/{partition:int}`."""
    handler: Handler
    summary: str
    _: KW_ONLY
    tag: str = ""
    """Under which heading it is described; `tagged` gives it to the operations of a module."""
    params: Sequence[Param] = ()
    body: Any = None
    """The type of a JSON body (a Struct); None if there is none, or if the handler reads it."""
    raw_body: Sequence[str] = ()
    """Content types of bodies that the handler reads by itself."""
    answer: Any = None
    """The type of the JSON answer, for the description; by default the Struct that the handler returns."""
    media_type: str = JSON
    """What the answer is, where it is not JSON."""
    status: int = 200
    errors: Mapping[int, str] = field(default_factory=dict)
    """Statuses beyond those that any operation may have, and when they are given."""
    needs: tuple["Need", ...] | None = None
    """What its sender must be allowed; nothing, where a verb is judged by its row."""
    needs_cluster: bool = True
    """Whether it is refused with 503 until the node has found its quorum."""
    name: str = ""
    """What it is called in the description; by default after its handler."""
    verb: str | None = None
    """Its row in the table of verbs, if it has one."""
    is_hidden: bool = False
    """Left out of the description: what older programs ask for, and are told what replaced it."""

    def __post_init__(self) -> None:
        if self.answer is None:
            object.__setattr__(self, "answer", _struct_of(self.handler))

    @property
    def takes(self) -> frozenset[str]:
        return frozenset(param.name for param in self.params if not param.is_header)


def _struct_of(handler: Handler) -> Any:
    """The Struct that a handler returns, as its signature says."""
    kind = getattr(handler, "__annotations__", {}).get("return")
    kinds = [one for one in (kind, *get_args(kind)) if isinstance(one, type)]
    return next((one for one in kinds if issubclass(one, msgspec.Struct)), None)


def tagged(tag: str, *operations: Operation) -> tuple[Operation, ...]:
    """The operations of a module, described under one heading."""
    return tuple(replace(one, tag=tag) for one in operations)


class Call:
    """One request as its handler sees it."""

    __slots__ = ("_kept", "body", "node", "operation", "params", "path", "request")

    def __init__(
        self,
        node: "Node",
        operation: Operation,
        request: Request,
        takes: frozenset[str],
        kept: dict[Any, Any],
    ) -> None:
        self._kept = kept
        self.node = node
        self.operation = operation
        self.request = request
        self.path = request.path_params
        self.params = read_params(operation, request, takes)
        self.body: Any = None

    @property
    def broker(self) -> "Broker":
        return self.node.broker

    @property
    def access(self) -> "Access":
        """What the client may do, as whoever it has proved to be."""
        request = self.request
        return self.node.broker.authorizer.access(request.principal, host_of(request.host))

    def access_now(self) -> "Access":
        """The same, while that proof holds; AuthenticationFailed once it has ended."""
        if not self.request.is_still_proved():
            raise AuthenticationFailed("what proved who asks has ended")
        return self.access

    def judge(self) -> None:
        """Let the client do this, or raise the error that it gets; again, where it goes on for long."""
        if self.node.broker.authorizer.is_on:
            access = self.access
            for need in self.operation.needs or ():
                need.require(access, self.path)

    def may(self, need: "Need", name: str) -> bool:
        """Whether the client may do what `need` says to the resource of that name."""
        return not self.node.broker.authorizer.is_on or need.is_met(self.access, name)

    @property
    def request_id(self) -> str:
        return self.request.request_id

    def keep(self, make: "Callable[[Broker], T]") -> T:
        """What the face keeps of one kind while the node runs; made when it is first needed."""
        found: T | None = self._kept.get(make)
        if found is None:
            found = self._kept[make] = make(self.broker)
        return found

    def __getitem__(self, name: str) -> Any:
        """A parameter of the query or a header, or its default."""
        return self.params[name]


def read_params(operation: Operation, request: Head, takes: frozenset[str]) -> dict[str, Any]:
    """Every parameter that the operation takes; Problem for one that it does not."""
    query = request.query_params
    for name in query:
        if name not in takes:
            near = get_close_matches(name, takes, 1)
            known = ", ".join(sorted(takes)) or "none"
            hint = f"; did you mean {near[0]!r}?" if near else f"; it takes {known}"
            raise Problem(400, f"{operation.path} takes no parameter {name!r}{hint}")
    found: dict[str, Any] = {}
    headers = request.headers
    for param in operation.params:
        name = param.name
        text = headers.get(name) if param.is_header else query.get(name)
        found[name] = param.default if text is None else param.parse(text)
    return found


def content_type(request: Request) -> str:
    found: str = request.headers.get("content-type", "")
    return found if found == JSON else found.partition(";")[0].strip().lower()


def decode_body(body: bytes, kind: Any, decoder: "msgspec.json.Decoder[Any] | None" = None) -> Any:
    """The JSON body as `kind`; Problem if it is something else."""
    try:
        if not body.isascii():
            body.decode()  # what is kept as it was sent is not looked at otherwise
        return (decoder or msgspec.json.Decoder(kind)).decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        what = "the body must be JSON"
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            fields = ", ".join(one.encode_name for one in msgspec.structs.fields(kind))
            what = f"the body must be a JSON object that may have {fields}"
        raise Problem(400, f"{what}: {error}") from None


def require_cluster(node: "Node", operation: Operation) -> None:
    """Problem if the operation needs a cluster and the node has not found it yet."""
    if operation.needs_cluster and node.broker.quorum is None:
        raise Problem(503, why_not_ready(node) or "", headers={"retry-after": UNREADY_RETRY_SECONDS})


def endpoint(
    node: "Node", operation: Operation, kept: dict[Any, Any]
) -> Callable[[Request], Awaitable[Response]]:
    """What serves this operation."""
    handler, status, kind, takes = operation.handler, operation.status, operation.body, operation.takes
    needs = operation.needs
    decoder = None if kind is None else msgspec.json.Decoder(kind)

    async def serve(request: Request) -> Response:
        require_cluster(node, operation)
        call = Call(node, operation, request, takes, kept)
        if needs:
            call.judge()
        if decoder is not None:
            sent = content_type(request)
            if sent == JSON:
                call.body = decode_body(await request.body(), kind, decoder)
            elif sent not in operation.raw_body:
                raise Problem(415, f"send a body of content-type {JSON}; {{}} will do where it is optional")
        found = await handler(call)
        return found if isinstance(found, Response) else json_answer(found, status)

    return serve


def json_answer(document: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(_encode(document), status, headers=headers, media_type=JSON)
