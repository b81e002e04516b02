"""Keys and values of a schema registry over HTTP: the node decodes and encodes them.

Rule 1: the registry is the operator's (`schema.registry.url`). No request names an address, and
        none registers a schema.
Rule 2: the work is done in a thread of its own, so that a slow registry holds up no other
        requests. Few requests wait for it; more are told to come back.
Rule 3: a request has bounded seconds for the registry's answers, and asks for few unknown schemas.
        Once the registry is away, it is not asked again for a moment.
"""

import os
import threading
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, TypeVar

import msgspec

from tidelog.errors import ConfigError
from tidelog.faces.http.problems import Problem
from tidelog.faces.http.values import BASE64, JSON, is_json, show_value
from tidelog.host import Lane
from tidelog.schemas.problems import RegistryDown, RegistryRefused, SchemaProblem
from tidelog.schemas.table import FORMATS

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker
    from tidelog.schemas.formats import PartFormat
    from tidelog.schemas.values import ValueWriter

T = TypeVar("T")

Form: TypeAlias = Literal["avro", "protobuf", "json-schema"]
"""The names of `FORMATS`, which OpenAPI must know."""

USER: Final = "TIDELOG_SCHEMA_REGISTRY_USER"
PAGE_BYTES_MAX: Final = 4 * 1024 * 1024
"""How much of a partition one request decodes."""
PAGE_TEXT_MAX: Final = 256 * 1024 * 1024
"""Of the keys, or of the values, of one page as JSON: names come again with each record."""
WAITING_MAX: Final = 32
REGISTRY_SECONDS_MAX: Final = 5.0
PAUSE_SECONDS: Final = 1.0
ASKED_MAX: Final = 50
"""Schemas that one request may ask the registry for."""
NOT_FOUND: Final = 404
AWAY: Final = {"retry-after": "1"}
NULL: Final = b"null"


class SchemaUsed(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """The schema of a key or a value."""

    id: int | None = None
    """Its id in the registry; when writing, by default the latest of the subject TOPIC-value or
    TOPIC-key."""
    message: str | None = None
    """Which message of a Protobuf schema; when writing, by default the first."""


class SchemaDesk:
    """Where the requests of a node go that need a schema registry."""

    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self._waiting = 0
        self._lock = threading.Lock()
        self._away_until = float("-inf")
        self._url = broker.config.schema_registry_url

    def check(self) -> None:
        """A Problem if there is no registry."""
        if not self._url:
            raise Problem(
                400,
                f"encodings {', '.join(FORMATS)} need a schema registry: this node has no "
                "schema.registry.url",
            )

    async def run(self, work: Callable[[], T]) -> T:
        """Do `work` aside; a Problem if there is no registry, if it is away or too busy."""
        self.check()
        if self._now() < self._away_until:
            raise Problem(503, "the schema registry is away; try again", headers=AWAY)
        if self._waiting >= WAITING_MAX:
            raise Problem(503, "too many requests wait for schemas; try again", headers=AWAY)
        with self._lock:
            self._waiting += 1
        return await self._broker.host.offload.run(partial(self._perform, work), Lane.SCHEMAS)

    def _perform(self, work: Callable[[], T]) -> T:
        from tidelog.schemas.registry import within

        try:
            if self._now() < self._away_until:  # it went away while this request waited
                raise Problem(503, "the schema registry is away; try again", headers=AWAY)
            with within(REGISTRY_SECONDS_MAX):
                return work()
        except RegistryDown as error:
            self._away_until = self._now() + PAUSE_SECONDS
            raise Problem(503, self.told(error), headers=AWAY) from None
        except RegistryRefused as error:
            status = 422 if error.status in (NOT_FOUND, 422) else 503
            raise Problem(status, self.told(error)) from None
        except (SchemaProblem, ConfigError) as error:
            raise Problem(422, self.told(error)) from None
        finally:
            with self._lock:
                self._waiting -= 1

    def _now(self) -> float:
        return self._broker.host.clock.monotonic()

    def told(self, error: Exception) -> str:
        """What an error says, without the registry's address: that is the operator's alone."""
        return str(error).replace(f" at {self._url.rstrip('/')}", "")

    def form(self, part: str, name: str) -> "PartFormat":
        from tidelog.schemas.formats import PartFormat

        return PartFormat(part=part, name=name, url=self._url, user_info=os.environ.get(USER) or None)


class PartShower:
    """Shows the keys or the values of one page."""

    def __init__(self, desk: SchemaDesk, part: str, name: str) -> None:
        self._desk = desk
        self._name = name
        self._form = desk.form(part, name)
        self._asked = 0
        self._text_left = PAGE_TEXT_MAX
        self._refused: dict[int, SchemaProblem] = {}

    def show(self, data: bytes | None) -> tuple[Any, str, SchemaUsed | None, str | None]:
        """A value, its encoding, its schema, and why it is shown in base64, if it is."""
        from tidelog.schemas.framing import unframe

        if data is None:
            return None, JSON, None, None
        try:
            number, payload = unframe(data)
            codec = self._codec(number)
            text = codec.text(payload)
            if text == NULL or not is_json(text):
                raise SchemaProblem(f"JSON cannot say it as a value: {text[:80].decode(errors='replace')}")
            self._text_left -= len(text)
            if self._text_left < 0:
                raise SchemaProblem(
                    f"the page has more than {PAGE_TEXT_MAX} bytes as JSON; ask for fewer records"
                )
            used = SchemaUsed(id=number, message=codec.message_of(payload))
            return msgspec.Raw(text), self._name, used, None
        except RegistryDown:
            raise
        except (SchemaProblem, ConfigError) as problem:
            value, encoding = show_value(data, BASE64)
            return value, encoding, None, self._desk.told(problem)

    def _codec(self, number: int) -> Any:
        if number in self._refused:
            raise self._refused[number]
        if not self._form.registry().knows(number):
            self._asked += 1
            if self._asked > ASKED_MAX:
                raise SchemaProblem(f"schema {number} was not asked for: one request asks for {ASKED_MAX}")
        try:
            return self._form.writer_of(number)
        except RegistryRefused as error:
            if error.status != NOT_FOUND:
                raise RegistryDown(str(error)) from error  # the node may not ask: no record's fault
            self._refused[number] = error
            raise


class PartWriters:
    """Writes the keys and the values of one request; each schema is asked for once."""

    def __init__(self, desk: SchemaDesk, topic: str) -> None:
        self._desk = desk
        self._topic = topic
        self._writers: dict[tuple[str, str, int | None, str | None], ValueWriter] = {}

    def encode(self, part: str, name: str, used: SchemaUsed | None, value: bytes) -> bytes | None:
        """The bytes of a value in JSON; null is none."""
        from tidelog.schemas.values import ValueWriter

        if value.strip() == NULL:
            return None
        used = used or SchemaUsed()
        chosen = (part, name, used.id, used.message)
        found = self._writers.get(chosen)
        if found is None:
            if len(self._writers) >= ASKED_MAX:
                raise Problem(422, f"a request has at most {ASKED_MAX} different schemas")
            form = self._desk.form(part, name).by_id(used.id, used.message)
            found = self._writers[chosen] = ValueWriter(form, self._topic, None)
        return found.bytes_of(value, is_typed=False)
