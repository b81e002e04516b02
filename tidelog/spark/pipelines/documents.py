"""Values of a YAML document, checked one by one.

Rule: an error names the key and what it must be.
"""

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from tidelog.config.setting import similar
from tidelog.errors import TidelogError

T = TypeVar("T", bound=Struct)


class SpecError(TidelogError):
    """The pipeline's folder is wrong; the message names the file, the key and the fix."""


def text(document: Mapping[str, Any], key: str, default: str) -> str:
    value = document.get(key, default)
    if not isinstance(value, str) or not value:
        raise SpecError(f"{key} is {value!r}; it must be text")
    return value


def flag(document: Mapping[str, Any], key: str) -> bool:
    value = document.get(key, False)
    if not isinstance(value, bool):
        raise SpecError(f"{key} is {value!r}; it must be true or false")
    return value


def section(document: Mapping[str, Any], key: str, kind: type) -> Any:
    value = document.get(key)
    if value is None:
        return kind()
    if not isinstance(value, kind):
        shape = "a list" if kind is list else "a mapping of names"
        raise SpecError(f"{key} must be {shape}, not {value!r}")
    return value


def mapping(document: Mapping[str, Any], key: str, kind: type[T]) -> dict[str, T]:
    return {
        str(name): convert(entry, kind, f"{key}.{name}")
        for name, entry in section(document, key, dict).items()
    }


def convert(entry: Any, kind: type[T], where: str) -> T:
    known = [config.encode_name for config in msgspec.structs.fields(kind)]
    for key in entry if isinstance(entry, dict) else ():
        if key not in known:
            raise SpecError(f"{where}: unknown key {key!r}{similar(str(key), known)}")
    try:
        return msgspec.convert({} if entry is None else entry, kind)
    except msgspec.ValidationError as error:
        message, _, path = str(error).partition(" - at `$")
        raise SpecError(f"{where}{path.rstrip('`')}: {message.replace('`', '')}") from None


def setting(value: Any) -> str:
    """A setting as Spark reads it."""
    return str(value).lower() if isinstance(value, bool) else str(value)
