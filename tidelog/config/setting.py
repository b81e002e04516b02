"""One setting: its type, its default, its limits, and a sentence for people."""

import dataclasses
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from tidelog.errors import ConfigError

MIB: Final = 1024 * 1024
DAY_MS: Final = 24 * 60 * 60 * 1000

V = TypeVar("V", int, bool, str, float)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What people and programs may know of one key."""

    name: str
    kind: type
    default: Any
    doc: str
    least: float | None = None
    most: float | None = None
    choices: tuple[str | bool, ...] = ()
    """All that it may be; of a list, all that may be in it."""
    why: str = ""
    """Why nothing else may be chosen, and what to do instead."""
    is_list: bool = False
    """Words between commas, each once. It may be empty where its default is."""
    pattern: str = ""
    """What a text, or each word of a list, looks like if it is not empty; `form` says it for
    people."""
    form: str = ""

    def parse(self, value: object) -> Any:
        """The typed value, or ConfigError with the key and what it may be."""
        try:
            parsed = self._convert(value)
        except (ValueError, TypeError, KeyError):
            raise self._wrong(value) from None
        too_small = self.least is not None and parsed < self.least
        too_large = self.most is not None and parsed > self.most
        if too_small or too_large or not self._is_allowed(parsed):
            raise self._wrong(value)
        return parsed

    def _wrong(self, value: object) -> ConfigError:
        why = f": {self.why}" if self.why else ""
        shown = re.sub(r"//\S*@", "//...@", repr(value))  # what is wrong may be a password
        return ConfigError(f"{self.name} is {shown}; it must be {self.describe()}{why}")

    def _is_allowed(self, parsed: Any) -> bool:
        if not self.is_list:
            is_word = not self.pattern or not parsed or re.fullmatch(self.pattern, parsed)
            return bool(is_word) and (not self.choices or parsed in self.choices)
        words = split_list(parsed)
        if not words:
            return not self.default
        if self.pattern:
            return all(re.fullmatch(self.pattern, word) for word in words)
        return all(word in self.choices for word in words)

    def _convert(self, value: object) -> Any:
        if self.is_list:
            given = value if isinstance(value, list | tuple) else [value]
            words = [word for word in given if isinstance(word, str)]
            if len(words) != len(given):
                raise ValueError(value)
            return ",".join(split_list(",".join(words)))
        if self.kind is bool:
            if isinstance(value, bool):
                return value
            return {"true": True, "false": False}[str(value).strip().lower()]
        if self.kind is int:
            if isinstance(value, bool | float):
                raise ValueError(value)
            return int(str(value).strip())
        if self.kind is float:
            if isinstance(value, bool) or not math.isfinite(number := float(str(value).strip())):
                raise ValueError(value)
            return number
        if not isinstance(value, str | int | float):
            raise ValueError(value)
        return str(value).strip()

    def describe(self) -> str:
        """What a value may be, for people."""
        if self.form:
            return self.form
        if self.choices:
            words = [self.text(choice) for choice in self.choices]
            if len(words) == 1:
                return words[0]
            return ("one or more of " if self.is_list else "one of ") + ", ".join(words)
        if self.kind is bool:
            return "true or false"
        if self.kind not in (int, float):
            return "text"
        number = "a whole number" if self.kind is int else "a number"
        if self.least is not None and self.most is not None:
            return f"{number} from {self.least} to {self.most}"
        return number + (f" of at least {self.least}" if self.least is not None else "")

    def text(self, value: object) -> str:
        """The value as Kafka shows it."""
        return str(value).lower() if isinstance(value, bool) else str(value)


def split_list(text: str) -> list[str]:
    """The words between the commas, each once."""
    return list(dict.fromkeys(word for part in text.split(",") if (word := part.strip())))


def setting(
    default: V,
    doc: str,
    *,
    least: float | None = None,
    most: float | None = None,
    choices: tuple[str | bool, ...] = (),
    why: str = "",
    is_list: bool = False,
    pattern: str = "",
    form: str = "",
) -> V:
    """A field of a config class with its limits and its sentence."""
    value: V = field(
        default=default,
        metadata={
            "doc": doc,
            "least": least,
            "most": most,
            "choices": choices,
            "why": why,
            "is_list": is_list,
            "pattern": pattern,
            "form": form,
        },
    )
    return value


def settings_of(config: type) -> dict[str, Setting]:
    """Every setting of a config class, by key."""
    return {
        (name := entry.name.replace("_", ".")): Setting(
            name=name, kind=type(entry.default), default=entry.default, **entry.metadata
        )
        for entry in dataclasses.fields(config)
        if entry.metadata
    }


def similar(name: str, known: Iterable[str]) -> str:
    """The key that was meant, to be put behind a complaint."""
    import difflib

    close = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""
