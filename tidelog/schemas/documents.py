"""JSON that stands for values which JSON has no types for: bytes, decimals, times."""

import base64
import datetime
import decimal
import json
from typing import Any, Final

from tidelog.schemas.problems import DoesNotFit, SchemaProblem

SHOWN_MAX: Final = 80
NAME_MAX: Final = 255
"""How long names of fields and of an enum's values may be: a byte of a payload can stand for one."""
TEXT_BYTES_MAX: Final = 64 * 1024 * 1024
"""Of a record as JSON, about: names come again with each value."""


def text(document: Any) -> bytes:
    return json.dumps(document, ensure_ascii=False, separators=(",", ":"), default=_plain).encode()


def check_name(name: Any) -> None:
    """SchemaProblem, if it cannot be the name of a field or of an enum's value."""
    if not isinstance(name, str):
        raise SchemaProblem(f"the schema has a name that is no text: {shown(name)}")
    if len(name) > NAME_MAX:
        raise SchemaProblem(f"the schema has a name of {len(name)} characters; {NAME_MAX} are allowed")


def check_size(document: Any) -> None:
    """DoesNotFit, if a document is too long as JSON, which is told before it is made."""
    left, size = [document], 0
    for one in left:
        if isinstance(one, dict):
            size += sum(map(len, one)) + 4 * len(one)
            left += one.values()
        elif isinstance(one, list | tuple):
            left += one
        size += len(one) if isinstance(one, str | bytes) else 4
        if size > TEXT_BYTES_MAX:
            raise DoesNotFit(f"as JSON it has more than {TEXT_BYTES_MAX >> 20} MiB")


def _plain(value: Any) -> Any:
    """Bytes are {"base64": "..."}, times are ISO, decimals are strings."""
    if isinstance(value, bytes):
        return {"base64": base64.b64encode(value).decode()}
    if isinstance(value, datetime.datetime | datetime.date | datetime.time):
        return value.isoformat()
    return str(value)


def decoded(line: bytes) -> str:
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        raise DoesNotFit(f"it is not UTF-8: {error}") from None


def parsed(line: str, *, exact: bool = False) -> Any:
    """The value of a JSON text; with `exact`, numbers with a fraction are decimals.

    ValueError if it is no JSON; DoesNotFit if an object has a member twice.
    """
    return json.loads(line, parse_float=decimal.Decimal if exact else None, object_pairs_hook=members)


def members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON; DoesNotFit if a member comes twice."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise DoesNotFit(f"an object has {twice!r} twice")
    return found


def shown(value: Any) -> str:
    """A value in a message, cut where it is long."""
    found = repr(value) if isinstance(value, str) else str(value)
    if isinstance(value, dict | list):
        found = json.dumps(value, separators=(",", ":"), default=_plain)
    return found if len(found) <= SHOWN_MAX else found[:SHOWN_MAX] + "..."


def told(error: BaseException) -> str:
    """What an error of a library says, in one short line."""
    found = " ".join(str(error).split())
    found = found if len(found) <= 4 * SHOWN_MAX else found[: 4 * SHOWN_MAX] + "..."
    return f"{type(error).__name__}: {found}" if found else type(error).__name__
