"""Which row of a table serves a path.

    path := ("/" | text | "{" name "}" | "{" name ":int}" | "{" name ":path}")*

Rule: of the rows that fit a request, the first serves it. No row has a parameter in its first two
      segments, by which the rows are sorted.
"""

import re
from collections.abc import Callable, Iterable
from re import Match
from typing import Any, Final, Generic, NamedTuple, TypeVar

import httptools

T = TypeVar("T")

_SEGMENTS: Final = 2
_PARAMETER: Final = re.compile(r"\{(\w+)(?::(\w+))?\}")
_PATTERNS: Final = {"": "[^/]+", "int": "[0-9]{1,4000}", "path": "(?s:.*)"}


class _Row(NamedTuple, Generic[T]):
    match: Callable[[str], Match[str] | None]
    numbers: tuple[str, ...]
    """The parameters that are whole numbers."""
    serves: T


class Table(Generic[T]):
    """Rows of a method, a path and what serves it."""

    def __init__(self, rows: Iterable[tuple[str, str, T]]) -> None:
        self._exact: dict[tuple[str, str], T] = {}
        """Rows without parameters that no earlier row hides."""
        self._rows: dict[tuple[str, str], list[_Row[T]]] = {}
        self._methods: dict[str, list[tuple[Callable[[str], Match[str] | None], str]]] = {}
        for method, path, serves in rows:
            start = _start_of(path)
            assert "{" not in start, f"{path} is not found by its beginning"
            regex, numbers = _compile(path)
            earlier = self._rows.setdefault((method, start), [])
            if "{" not in path and not any(row.match(path) for row in earlier):
                self._exact[method, path] = serves
            earlier.append(_Row(regex.fullmatch, numbers, serves))
            self._methods.setdefault(start, []).append((regex.fullmatch, method))

    def find(self, method: str, path: str) -> tuple[T, dict[str, Any]] | None:
        """What serves it, and the parameters in its path; None if nothing does."""
        serves = self._exact.get((method, path))
        if serves is not None:
            return serves, {}
        for row in self._rows.get((method, _start_of(path)), ()):
            found = row.match(path)
            if found is not None:
                params: dict[str, Any] = found.groupdict()
                for name in row.numbers:
                    params[name] = int(params[name])
                return row.serves, params
        return None

    def methods(self, path: str) -> list[str]:
        """What a path takes."""
        known = self._methods.get(_start_of(path), ())
        return list(dict.fromkeys(method for match, method in known if match(path)))


def _compile(path: str) -> tuple[re.Pattern[str], tuple[str, ...]]:
    pattern, numbers, end = "", [], 0
    for found in _PARAMETER.finditer(path):
        name, kind = found[1], found[2] or ""
        pattern += f"{re.escape(path[end : found.start()])}(?P<{name}>{_PATTERNS[kind]})"
        end = found.end()
        if kind == "int":
            numbers.append(name)
    return re.compile(pattern + re.escape(path[end:])), tuple(numbers)


def _start_of(path: str) -> str:
    return "/".join(path.split("/", _SEGMENTS + 1)[: _SEGMENTS + 1])


def target_of(url: bytes) -> tuple[bytes, bytes]:
    """Path and query of a request's target; HttpParserInvalidURLError if there are none."""
    if url[:1] == b"/" and b"#" not in url and url[:2] != b"//" and url.isascii():
        path, _, query = url.partition(b"?")
        return path, query
    parsed = httptools.parse_url(url)
    path = parsed.path or b"/"
    if not path.isascii():
        raise httptools.HttpParserInvalidURLError("a path is ASCII")
    return path, parsed.query or b""
