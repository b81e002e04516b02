"""How many values an Avro payload may become: no more than a record of its size may cost.

Rule 1: a value that takes bytes is paid for by the record's size. One that takes none, as a null in
        an array, is not: five bytes can say a billion of them. So these are counted, before
        anything is made of them.
Rule 2: one byte does not pay for a thousand values beside it, as the nulls of a record that comes
        again and again. Records and nulls have a bound of their own.
Rule 3: a schema that says neither costs nothing here.
"""

from collections.abc import Callable
from typing import Any, Final

from tidelog.schemas.documents import check_name
from tidelog.schemas.problems import DoesNotFit

FREE_MAX: Final = 1000
"""How many values that take no bytes a record may have, beside one for each of its bytes."""
FREE_PER_BYTE: Final = 10
"""How many records and nulls a record may have for each of its bytes, beside as many as FREE_MAX."""
FIXED_BYTES: Final = {"null": 0, "boolean": 1, "float": 4, "double": 8}
VARINTS: Final = ("int", "long", "enum")
NAMED: Final = ("record", "error", "enum", "fixed")


def guard(schema: Any) -> Callable[[bytes], None] | None:
    """What refuses payloads of a writer's schema that say too much; None if none can."""
    names: dict[str, Any] = {}
    _name(schema, names, set())
    walk = _Walk(names)
    return walk.check if walk.is_needed(schema) else None


def _name(node: Any, names: dict[str, Any], seen: set[int]) -> None:
    """Learn every type with a name, in a schema as fastavro has parsed it."""
    if isinstance(node, list):
        for one in node:
            _name(one, names, seen)
    if not isinstance(node, dict) or id(node) in seen:
        return
    seen.add(id(node))
    for one in node.get("symbols", ()):
        check_name(one)
    for one in node.get("__named_schemas", {}).values():
        _name(one, names, seen)
    if node["type"] in NAMED:
        names.setdefault(node["name"], node)
    for one in node.get("fields", ()):
        check_name(one["name"])
        _name(one["type"], names, seen)
    for part in ("items", "values"):
        _name(node.get(part), names, seen)
    if isinstance(node["type"], dict | list):
        _name(node["type"], names, seen)


class _Walk:
    """Goes over payloads without making values of them."""

    def __init__(self, names: dict[str, Any]) -> None:
        self._names = names
        self._weights: dict[int, int] = {}
        self._widths: dict[int, int] = {}
        self._schema: Any = None

    def is_needed(self, schema: Any) -> bool:
        """Whether a payload of this schema could say too much."""
        self._schema = schema
        return self._finds(schema, set()) or self._width(schema) > FREE_MAX or self._repeats(schema, set())

    def _repeats(
        self, node: Any, seen: set[tuple[int, bool]], around: tuple[int, ...] = (), *, often: bool = False
    ) -> bool:
        """Whether something can come any number of times, and is many values each time."""
        node = self._resolved(node)
        if (often or id(node) in around) and self._width(node) > FREE_PER_BYTE:
            return True
        if isinstance(node, list):
            return any(self._repeats(one, seen, around, often=often) for one in node)
        if not isinstance(node, dict) or (id(node), often) in seen:
            return False
        seen.add((id(node), often))
        within = (*around, id(node))
        if node["type"] in ("array", "map"):
            below = node["items"] if node["type"] == "array" else node["values"]
            return self._repeats(below, seen, within, often=True)
        fields = node.get("fields", ())
        return any(self._repeats(one["type"], seen, within, often=often) for one in fields)

    def _width(self, node: Any, around: tuple[int, ...] = ()) -> int:
        """How many records and nulls there can be in a value without an array or a map of them."""
        node = self._resolved(node)
        if isinstance(node, list):
            return max((self._width(one, around) for one in node), default=0)
        kind = node["type"] if isinstance(node, dict) else node
        if kind not in ("record", "error"):
            return int(kind == "null" or (kind == "fixed" and node["size"] == 0))
        if id(node) in around:
            return 0
        found = self._widths.get(id(node))
        if found is None:
            within = (*around, id(node))
            found = 1 + sum(self._width(one["type"], within) for one in node["fields"])
            self._widths[id(node)] = found
        return found

    def _finds(self, node: Any, seen: set[int]) -> bool:
        node = self._resolved(node)
        if isinstance(node, list):
            return any(self._finds(one, seen) for one in node)
        if not isinstance(node, dict) or id(node) in seen:
            return False
        seen.add(id(node))
        match node["type"]:
            case "array":
                return self._weight(node["items"]) > 0 or self._finds(node["items"], seen)
            case "map":
                return self._finds(node["values"], seen)
            case "record" | "error":
                return any(self._finds(one["type"], seen) for one in node["fields"])
        return False

    def _resolved(self, node: Any) -> Any:
        while True:
            if isinstance(node, str) and node in self._names:
                node = self._names[node]
            elif isinstance(node, dict) and isinstance(node["type"], dict | list):
                node = node["type"]
            else:
                return node

    def _weight(self, node: Any, around: tuple[int, ...] = ()) -> int:
        """How many values an item without bytes is; 0 if every item takes bytes."""
        node = self._resolved(node)
        if isinstance(node, list) or id(node) in around:
            return 0
        kind = node["type"] if isinstance(node, dict) else node
        if kind == "null" or (kind == "fixed" and node["size"] == 0):
            return 1
        if kind not in ("record", "error"):
            return 0
        found = self._weights.get(id(node))
        if found is None:
            parts = [self._weight(one["type"], (*around, id(node))) for one in node["fields"]]
            found = self._weights[id(node)] = 1 + sum(parts) if all(parts) else 0
        return found

    def check(self, payload: bytes) -> None:
        """DoesNotFit, if the payload has more values without bytes than its size allows.

        What is no value is refused as well: who reads it might find another way through it.
        """
        counted = _Payload(payload)
        try:
            self._pass(self._schema, counted)
        except (IndexError, KeyError, TypeError) as error:
            raise DoesNotFit(f"it is no value of its Avro schema: {error}") from None
        except RecursionError:
            raise DoesNotFit("it is nested too deeply") from None

    def _pass(self, node: Any, data: "_Payload") -> None:
        node = self._resolved(node)
        if isinstance(node, list):
            index = data.long()
            self._pass(node[index if index >= 0 else len(node)], data)
            return
        kind = node["type"] if isinstance(node, dict) else node
        if kind in ("null", "record", "error"):
            data.count_part()
        if kind in FIXED_BYTES:
            data.skip(FIXED_BYTES[kind])
        elif kind in VARINTS:
            data.long()
        elif kind in ("bytes", "string"):
            data.skip(data.long())
        elif kind == "fixed":
            data.skip(node["size"])
            if node["size"] == 0:
                data.count_part()
        elif kind in ("record", "error"):
            for one in node["fields"]:
                self._pass(one["type"], data)
        elif kind in ("array", "map"):
            self._pass_blocks(node, data)
        else:
            raise KeyError(kind)

    def _pass_blocks(self, node: Any, data: "_Payload") -> None:
        is_map = node["type"] == "map"
        item = node["values"] if is_map else node["items"]
        weight = 0 if is_map else self._weight(item)
        while (count := data.long()) != 0:
            if count < 0:
                count = -count
                data.long()
            if weight:
                data.count(count * weight)
                continue
            for _ in range(count):
                if is_map:
                    data.skip(data.long())
                self._pass(item, data)


class _Payload:
    """Bytes that are passed over."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0
        self._free = 0
        self._parts_left = FREE_MAX + FREE_PER_BYTE * len(data)

    def skip(self, count: int) -> None:
        if count < 0 or self._at + count > len(self._data):
            raise IndexError("cut off")
        self._at += count

    def long(self) -> int:
        found = shift = 0
        while shift < 70:
            byte = self._data[self._at]
            self._at += 1
            found |= (byte & 0x7F) << shift
            if byte < 0x80:
                return (found >> 1) ^ -(found & 1)
            shift += 7
        raise IndexError("no long")

    def count(self, values: int) -> None:
        self._free += values
        bytes_has = len(self._data)
        if self._free > FREE_MAX + bytes_has:
            raise DoesNotFit(
                f"an array in it has {self._free} values that take no bytes; a record of "
                f"{bytes_has} bytes may have {FREE_MAX + bytes_has}"
            )

    def count_part(self) -> None:
        """Count a record or a value without bytes, wherever it is."""
        self._parts_left -= 1
        if self._parts_left < 0:
            bytes_has = len(self._data)
            raise DoesNotFit(
                f"a record of {bytes_has} bytes may have {FREE_MAX + FREE_PER_BYTE * bytes_has} records and "
                "nulls in it, and it has more"
            )
