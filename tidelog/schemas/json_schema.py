"""Values of JSON Schema: JSON that is checked, by jsonschema-rs.

Rule 1: JSON is kept as it was written, digits and all; it is checked, never written anew.
Rule 2: `$ref` finds what is in the schema or among its references in the registry. Nothing is ever
        asked of a network address or a file.
Rule 3: JSON is checked by the schema that it was written with. Columns have the types of the
        reader's schema, and a value of another type is refused.
"""

import json
import math
from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar, Final, NoReturn

import msgspec

from tidelog.schemas.codec import Codec, array_of, relaxed
from tidelog.schemas.documents import decoded, members, shown, told
from tidelog.schemas.json_cost import BACKTRACKS_MAX, Costs, check_patterns
from tidelog.schemas.problems import DoesNotFit, SchemaProblem, missing
from tidelog.schemas.registry import Registry, Schema
from tidelog.schemas.table import Reading

try:
    import jsonschema_rs
except ImportError:  # pragma: no cover - tried where it is not installed
    jsonschema_rs = None  # type: ignore[assignment]

if TYPE_CHECKING:
    import pyarrow as pa

    from tidelog.schemas.json_types import JsonColumn

REFERENCES_MAX: Final = 200
REASON_MAX: Final = 300
EXPLAINED_MAX: Final = 2000
EXPLAINED_DEPTH_MAX: Final = 8
"""Of larger values nobody says where they are wrong: with `anyOf` that can take minutes."""
_encode: Final = msgspec.json.Encoder(decimal_format="number").encode


class JsonSchemaCodec(Codec):
    label: ClassVar[str] = "JSON"

    def __init__(self, schema: Schema, registry: Registry | None, reading: Reading) -> None:
        if jsonschema_rs is None:
            raise missing("jsonschema-rs", "JSON Schema")
        self._root = _document(schema.text)
        self._others: dict[str, Any] = {}
        _gather(schema, registry, self._others)
        self._validates = reading.validates
        self._plan: JsonColumn | None = None
        check_patterns([self._root, *self._others.values()])
        try:
            patterns = jsonschema_rs.FancyRegexOptions(backtrack_limit=BACKTRACKS_MAX)
            self._validator = jsonschema_rs.validator_for(
                self._root, retriever=self._found, pattern_options=patterns
            )
            self._costs = Costs(self._root, self._others)
        except (ValueError, RecursionError) as error:
            why = getattr(error, "message", None) or told(error)
            raise SchemaProblem(f"it is no JSON Schema: {why[:REASON_MAX]}") from None

    def _found(self, uri: str) -> Any:
        """A schema that another one refers to; called by the validator when it is made."""
        return found_among(self._others, uri)

    # Single values.

    def document(self, payload: bytes) -> Any:
        try:
            found = _decode(decoded(payload))
        except RecursionError:
            raise DoesNotFit("it is nested too deeply") from None
        except ValueError as error:
            raise DoesNotFit(f"it is no JSON: {error}") from None
        if self._validates:
            self._check(found)
        return found

    def text(self, payload: bytes) -> bytes:
        self.document(payload)
        # One line, which keeps the digits of numbers and the order of members. Strings have no
        # line ends, so that these are between values.
        return b"".join(one.strip() for one in payload.split(b"\n"))

    def payload(self, line: bytes, *, is_typed: bool = True) -> bytes:
        words, is_string = decoded(line), is_typed and self._is_string
        try:
            found = _decode(words)
        except RecursionError:
            raise DoesNotFit("it is nested too deeply") from None
        except ValueError as error:
            if not is_string:
                raise DoesNotFit(f"it is no JSON: {error}") from None
            found = words
        if is_string and not isinstance(found, str):
            found = words  # 1.10 is the string 1.10, not 1.1
        self._check(found)
        return _encode(found) if found is words else line.strip()

    @property
    def _is_string(self) -> bool:
        return isinstance(self._root, dict) and self._root.get("type") == "string"

    def _check(self, value: Any) -> None:
        try:
            self._costs.check(value)
            if self._validator.is_valid(value):
                return
            if not _is_small(value):
                raise DoesNotFit("the JSON schema does not allow it (it is too long to say why)")
            self._validator.validate(value)
            return
        except jsonschema_rs.ValidationError as found:
            error = found
        except (ValueError, RecursionError) as problem:
            raise DoesNotFit(f"it cannot be checked: {told(problem)}") from None
        at = "".join(f"[{one}]" if isinstance(one, int) else f".{one}" for one in error.instance_path)
        why = error.message[:REASON_MAX]
        raise DoesNotFit(f"the JSON schema does not allow it: {at.lstrip('.')}{': ' * bool(at)}{why}")

    # Columns.

    @property
    def _columns(self) -> "JsonColumn":
        from tidelog.schemas.json_types import plan

        if self._plan is None:
            self._plan = plan(self._root, self._others)
        return self._plan

    def arrow_type(self) -> "pa.DataType":
        return self._columns.kind

    def read_all(self, payloads: Sequence[bytes], writer: Codec) -> "pa.Array":
        read = self._columns.read
        values = [writer.document(payload) for payload in payloads]
        made = [None if one is None else read(one) for one in values]
        return array_of(made, relaxed(self.arrow_type()))

    def encode(self, values: Sequence[Any]) -> list[bytes | None]:
        write = self._columns.write
        made: list[bytes | None] = []
        for value in values:
            if value is None:
                made.append(None)
                continue
            document = write(value)
            self._check(document)
            made.append(_encode(document))
        return made


def _is_small(value: Any) -> bool:
    """Whether it costs little to say what is wrong; it may be as much again for each choice."""
    left = [(value, 0)]
    for count, (one, depth) in enumerate(left):
        if count > EXPLAINED_MAX or depth > EXPLAINED_DEPTH_MAX:
            return False
        below = one.values() if isinstance(one, dict) else one if isinstance(one, list) else ()
        left += [(each, depth + 1) for each in islice(below, EXPLAINED_MAX + 1)]
    return True


def _document(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise SchemaProblem(f"it is no JSON Schema: {told(error)}") from None


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number in JSON")


def _finite(digits: str) -> float:
    """A double; the validator would take infinity for null."""
    found = float(digits)
    if math.isinf(found):
        raise DoesNotFit(f"{shown(digits)} is too large for a double, by which it is checked")
    return found


_decode: Final = json.JSONDecoder(
    object_pairs_hook=members, parse_constant=_no_constant, parse_float=_finite
).decode
"""A member that comes twice is refused, also when it is read: one of them would be lost."""


def _gather(schema: Schema, registry: Registry | None, others: dict[str, Any]) -> None:
    """All schemas that one refers to, by the name that `$ref` has for it."""
    for reference in schema.references:
        if reference.name in others:
            continue
        if registry is None:
            raise SchemaProblem(f"the schema refers to {reference.name}, which is not at hand")
        if len(others) >= REFERENCES_MAX:
            raise SchemaProblem(f"the schema refers to more than {REFERENCES_MAX} others")
        other = registry.version(reference.subject, reference.version).schema
        others[reference.name] = _document(other.text)
        _gather(other, registry, others)


def found_among(others: dict[str, Any], uri: str) -> Any:
    """A schema by its address, which ends with the reference's name once it is made absolute.

    Of several the longest: a/b.json is not b.json.
    """
    names = [name for name in others if uri == name or uri.endswith(f"/{name}")]
    if names:
        return others[max(names, key=len)]
    raise SchemaProblem(f"$ref {uri} is neither in the schema nor among its references")


def open_schema(schema: Schema, registry: Registry | None, reading: Reading) -> Codec:
    return JsonSchemaCodec(schema, registry, reading)


def schema_text(kind: "pa.DataType", name: str) -> str:
    """A schema that can say every value of a column."""
    from tidelog.schemas.json_types import schema_of

    made = {"$schema": "http://json-schema.org/draft-07/schema#", "title": name}
    return json.dumps(made | schema_of(kind, name, nullable=False))
