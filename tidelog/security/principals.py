"""Who asks.

Rule 1: a principal is a value: two connections with the same kind and name are the same principal.
Rule 2: a face makes a principal only of what the client has proved. Who has proved nothing is `ANONYMOUS`.
"""

from dataclasses import dataclass
from typing import Final

USER: Final = "User"
"""The kind of all principals that clients can have, as Kafka names it."""
NAME_CHARACTERS_MAX: Final = 255


@dataclass(frozen=True, slots=True)
class Principal:
    """Somebody who asks: `User:alice`."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"

    @classmethod
    def parse(cls, text: str) -> "Principal":
        """Read `KIND:NAME`; raise ValueError with the form that was expected."""
        kind, colon, name = text.partition(":")
        if not colon or not kind or not name or len(name) > NAME_CHARACTERS_MAX or not text.isprintable():
            raise ValueError(f"{text!r} is not a principal; write it as User:NAME")
        return cls(kind, name)


ANONYMOUS: Final = Principal(USER, "ANONYMOUS")
"""A client that has proved nothing, by Kafka's name."""
