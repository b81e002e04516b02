"""The REST API of a schema registry: Confluent's, which Karapace, Apicurio and others speak.

Rule 1: a schema never changes under its id, so an id is asked for once. The latest version of a
        subject is asked for each time.
Rule 2: a failure says which registry, which id or subject, and what to do, and never a password.
Rule 3: an answer is small and comes soon, or it is none: a connection is cut when its time is over,
        whatever of the answer has come by then, and however slowly the rest comes.
"""

import json
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final, TypeVar
from urllib.parse import quote

import httpx

from tidelog.errors import ConfigError
from tidelog.schemas.problems import RegistryDown, RegistryRefused
from tidelog.schemas.table import SCHEMA_BYTES_MAX

TIMEOUT_SECONDS: Final = 10.0
TRIES_MAX: Final = 4
PAUSE_SECONDS: Final = 0.2
ANSWER_BYTES_MAX: Final = 16 * 1024 * 1024
TOLD_MAX: Final = 200
SCHEMAS_MAX: Final = 10_000
"""Schemas that a process remembers; then it forgets the oldest."""
CONTENT_TYPE: Final = "application/vnd.schemaregistry.v1+json"
AVRO: Final = "AVRO"
"""The kind of a schema that names none."""
T = TypeVar("T")
_deadline: ContextVar[float] = ContextVar("_deadline", default=float("inf"))


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Give all questions that this thread asks meanwhile so many seconds together."""
    token = _deadline.set(time.monotonic() + seconds)
    try:
        yield
    finally:
        _deadline.reset(token)


@dataclass(frozen=True, slots=True)
class Reference:
    """A schema that another one names."""

    name: str
    subject: str
    version: int


@dataclass(frozen=True, slots=True)
class Schema:
    kind: str
    text: str
    references: tuple[Reference, ...] = ()


@dataclass(frozen=True, slots=True)
class Registered:
    """A schema with the id and the version that it has in a subject."""

    id: int
    version: int
    schema: Schema


class Registry:
    """One registry. Safe to be used by several threads."""

    def __init__(
        self,
        url: str,
        *,
        user_info: str | None = None,
        transport: Any = None,
        timeout_seconds: float = TIMEOUT_SECONDS,
    ) -> None:
        if not url.startswith(("http://", "https://")):
            raise ConfigError(f"schema.registry.url must be http:// or https://, not {_shown(url)!r}")
        self.url = re.sub(r"//[^/?#]*@", "//", url).rstrip("/")
        if "@" in self.url:
            raise ConfigError(
                f"schema.registry.url {_shown(url)!r} has a user or a password with / ? or #: set "
                "schema.registry.basic.auth.user.info instead"
            )
        try:
            httpx.URL(self.url)
            address = httpx.URL(url)
        except httpx.InvalidURL as error:
            why = "" if "@" in url else f": {error}"
            raise ConfigError(f"schema.registry.url {_shown(url)!r} is no URL{why}") from None
        if user_info is not None and ":" not in user_info:
            raise ConfigError("schema.registry.basic.auth.user.info must be USER:PASSWORD")
        if user_info is None and address.userinfo:
            user_info = f"{address.username}:{address.password}"
        user, _, password = (user_info or "").partition(":")
        self._seconds_max = timeout_seconds
        self._http = httpx.Client(
            timeout=timeout_seconds,
            transport=transport,
            trust_env=False,
            auth=(user, password) if user_info else None,
            headers={"Accept": CONTENT_TYPE, "Accept-Encoding": "identity"},
            limits=httpx.Limits(max_keepalive_connections=0),
        )
        self._schemas: dict[tuple[int, str], Schema] = {}
        self._lock = threading.Lock()

    def schema(self, schema_id: int, *, form: str = "") -> Schema:
        """The schema with an id. `form` is how its text is wanted, as `serialized`."""
        known = self._schemas.get((schema_id, form))
        if known is None:
            query = {"format": form} if form else {}
            known = self._ask("GET", f"/schemas/ids/{schema_id}", _schema, query=query)
            with self._lock:
                if len(self._schemas) >= SCHEMAS_MAX:
                    del self._schemas[next(iter(self._schemas))]
                self._schemas[schema_id, form] = known
        return known

    def knows(self, schema_id: int) -> bool:
        """Whether the schema of an id is at hand, and the registry need not be asked."""
        return (schema_id, "") in self._schemas

    def latest(self, subject: str) -> Registered:
        return self.version(subject, "latest")

    def version(self, subject: str, version: int | str, *, form: str = "") -> Registered:
        query = {"format": form} if form else {}
        path = f"/subjects/{quote(subject, safe='')}/versions/{version}"
        return self._ask(
            "GET", path, lambda it: Registered(_id(it), int(it["version"]), _schema(it)), query=query
        )

    def register(self, subject: str, schema: Schema) -> int:
        """The id of a schema in a subject, which is registered there if it is new."""
        body: dict[str, Any] = {"schema": schema.text}
        if schema.kind != AVRO:
            body["schemaType"] = schema.kind
        if schema.references:
            body["references"] = [
                {"name": one.name, "subject": one.subject, "version": one.version}
                for one in schema.references
            ]
        path = f"/subjects/{quote(subject, safe='')}/versions"
        return self._ask("POST", path, _id, body=body)

    def _ask(
        self,
        method: str,
        path: str,
        make: Callable[[dict[str, Any]], T],
        *,
        query: Mapping[str, str] | None = None,
        body: Any = None,
    ) -> T:
        headers = {"Content-Type": CONTENT_TYPE} if body is not None else {}
        failure = ""
        for left in reversed(range(TRIES_MAX)):
            ends = min(time.monotonic() + self._seconds_max, _deadline.get())
            seconds = ends - time.monotonic()
            if seconds <= 0:
                failure = failure or "there is no time left to ask it"
                break
            cut = _Cut(seconds)
            try:
                with (
                    cut,
                    self._http.stream(
                        method,
                        self.url + path,
                        params=query or None,
                        json=body,
                        headers=headers,
                        timeout=seconds,
                        extensions={"trace": cut.see},
                    ) as answer,
                ):
                    data = self._body(answer, path, ends)
            except httpx.RequestError as error:
                failure = f"{type(error).__name__}: {error}"
                if cut.is_done:
                    failure = f"no whole answer in {self._seconds_max:g} s"
            else:
                if answer.status_code < 500:
                    return self._understood(answer.status_code, data, path, make)
                failure = f"it answers {answer.status_code}"
            if left:
                time.sleep(PAUSE_SECONDS)
        raise RegistryDown(
            f"the schema registry at {self.url} cannot be asked for {path}: {failure}. Check "
            "schema.registry.url, and that it runs"
        )

    def _body(self, answer: httpx.Response, path: str, ends: float) -> bytes:
        if answer.headers.get("Content-Encoding", "identity") != "identity":
            # Unpacked, a few bytes may become many, and endless ones nothing.
            raise RegistryRefused(
                f"the schema registry at {self.url} answers {path} compressed, which nobody asked "
                "for; is it a schema registry?",
                status=answer.status_code,
            )
        data = bytearray()
        for part in answer.iter_bytes():
            data += part
            if len(data) > ANSWER_BYTES_MAX:
                raise RegistryRefused(
                    f"the schema registry at {self.url} answers {path} with more than "
                    f"{ANSWER_BYTES_MAX} bytes; is it a schema registry?",
                    status=answer.status_code,
                )
            if time.monotonic() > ends:
                raise httpx.ReadTimeout(f"no whole answer in {self._seconds_max:g} s")
        return bytes(data)

    def _understood(self, status: int, data: bytes, path: str, make: Callable[[dict[str, Any]], T]) -> T:
        try:
            document = json.loads(data)
        except (ValueError, RecursionError):
            document = None
        is_object = isinstance(document, dict)
        told = data[:TOLD_MAX].decode(errors="replace")
        if is_object:
            told = str(document.get("message", ""))[:TOLD_MAX]
        if status < 300 and is_object:
            try:
                return make(document)
            except (KeyError, ValueError, TypeError, AttributeError, OverflowError) as error:
                told = f"what it says is no schema: {type(error).__name__} {error}"
        hint = {
            401: "set schema.registry.basic.auth.user.info",
            403: "its user may not do that",
            404: "the id or the subject is not there: is it the registry that the records were written with?",
            409: "a schema that readers of the older ones cannot follow; change it, or the "
            "subject's compatibility",
            422: "it is no schema that the registry understands",
        }.get(status, "is it a schema registry?")
        raise RegistryRefused(
            f"the schema registry at {self.url} refuses {path} ({status}"
            f"{': ' + told if told else ''}); {hint}",
            status=status,
        )


class _Cut:
    """Cuts the connection of one request when its time is over.

    The client bounds each wait for bytes, and not their sum: headers that come one by one never end.
    Each request has a connection of its own, which is seen while it is made.
    """

    def __init__(self, seconds: float) -> None:
        self.is_done = False
        self._connection: socket.socket | None = None
        self._lock = threading.Lock()
        self._timer = threading.Timer(seconds, self._end)
        self._timer.daemon = True

    def __enter__(self) -> None:
        self._timer.start()

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()

    def see(self, event: str, about: Mapping[str, Any]) -> None:
        """Called by the client at each step of a request."""
        if event in ("connection.connect_tcp.complete", "connection.start_tls.complete"):
            with self._lock:
                self._connection = about["return_value"].get_extra_info("socket")
                self._shut()

    def _end(self) -> None:
        with self._lock:
            self.is_done = True
            self._shut()

    def _shut(self) -> None:
        if self.is_done and self._connection is not None:
            with suppress(OSError):
                self._connection.shutdown(socket.SHUT_RDWR)


def _shown(url: str) -> str:
    """An address without the user and the password in it, whatever they are made of."""
    return re.sub(r"^([a-zA-Z]+://)?.*@", r"\1", url, flags=re.DOTALL)


def _id(document: Mapping[str, Any]) -> int:
    found = document["id"]
    if type(found) is not int or not 0 <= found < 2**32:
        raise ValueError(f"{found!r} is no id of a schema")
    return found


def _schema(document: Mapping[str, Any]) -> Schema:
    references = tuple(
        Reference(_text(one, "name"), _text(one, "subject"), int(one["version"]))
        for one in document.get("references") or ()
    )
    text = _text(document, "schema")
    if len(text) > SCHEMA_BYTES_MAX:
        raise ValueError(f"it has {len(text)} characters; {SCHEMA_BYTES_MAX} are allowed")
    return Schema(str(document.get("schemaType") or AVRO), text, references)


def _text(document: Mapping[str, Any], name: str) -> str:
    found = document[name]
    if not isinstance(found, str):
        raise TypeError(f"the {name} is no text")
    return found


_registries: dict[tuple[str, str | None], Registry] = {}
_registries_lock = threading.Lock()


def registry(url: str, user_info: str | None = None) -> Registry:
    """The registry of this process at an address, with what it has learnt."""
    with _registries_lock:
        found = _registries.get((url, user_info))
        if found is None:
            found = _registries[url, user_info] = Registry(url, user_info=user_info)
        return found
