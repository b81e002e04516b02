"""What the commands share that speak to the HTTP face: a client, and values as text.

Rule: a value is JSON if it parses as JSON, and text otherwise; a text is printed as it is. What
begins like a JSON object, array or string and does not parse is refused: it is a typing error more
often than a text, and `--text` stores it all the same.
"""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from tidelog.faces.cli.common import UsageError, UserError, plain

if TYPE_CHECKING:
    from tidelog.client import Client

DEFAULT_HTTP: Final = "127.0.0.1:8080"
RETRIES: Final = 2
BACKOFF_SECONDS: Final = 0.1
"""A person waits: somebody who answers is found fast, and that nobody does is said fast."""
CELL_MAX: Final = 100
"""Characters of a value in a table."""

Http = Annotated[
    str,
    typer.Option(
        "--http",
        envvar="TIDELOG_HTTP_BOOTSTRAP",
        metavar="HOST:PORT",
        help="HTTP address of a node (http= of its ready line); several are separated by commas.",
    ),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
AsText = Annotated[bool, typer.Option("--text", help="Store the value as text even if it is JSON.")]
AsLines = Annotated[bool, typer.Option("--json", help="One JSON document per line.")]


def not_empty(text: str) -> str:
    if not text:
        raise typer.BadParameter("it has at least one character")
    return text


@contextmanager
def open_client(http: str, *, missing: str | None = None) -> "Iterator[Client]":
    """A client; what a node refuses, in one line. `missing` says what to do about a 404."""
    from tidelog.client import BadAddress, Client, NotFound, TidelogHTTPError

    try:
        with Client(http, retries=RETRIES, backoff=BACKOFF_SECONDS) as client:
            yield client
    except BadAddress:
        raise UsageError(f"--http {http!r} is not HOST:PORT, for example {DEFAULT_HTTP}") from None
    except NotFound as error:
        raise UserError(missing or error.detail) from error
    except TidelogHTTPError as error:
        if not error.problem or error.status == 504:
            raise  # what is known of it is in its own words
        raise UserError(error.detail) from error


def confirm(question: str, *, yes: bool, refusal: str) -> None:
    """Go on only if that is meant; `refusal` is for who cannot be asked."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise UserError(f"{refusal}; add --yes if you mean it")
    if not typer.confirm(question, err=True):
        raise UserError("nothing was deleted")


# Values.


def read_value(text: str, *, as_text: bool) -> Any:
    """What an argument stands for; - is all of standard input."""
    if text == "-":
        with open(0, "rb", closefd=False) as standard_input:
            data = standard_input.read()
        try:
            text = data.decode()
        except UnicodeDecodeError:
            raise UserError("standard input is no text in UTF-8; give it as base64") from None
    if as_text:
        return text
    try:
        return json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        if text.lstrip().startswith(("{", "[", '"')):
            raise UsageError(
                f"the value looks like JSON but does not parse: {error}; --text stores it as text"
            ) from None
        return text


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def value_fields(value: Any) -> dict[str, Any]:
    """A value as fields of a JSON document."""
    if isinstance(value, bytes):
        from base64 import b64encode

        return {"value": b64encode(value).decode(), "encoding": "base64"}
    return {"value": value}


def key_text(key: str) -> str:
    """A key that can be printed; bytes that are no UTF-8 are shown as what they are."""
    return key.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def shown(value: Any) -> str:
    """A value as text: a str as it is, bytes as they read, anything else as JSON."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def short(value: Any) -> str:
    text = shown(value)
    return text if len(text) <= CELL_MAX else text[: CELL_MAX - 1] + "…"


def print_value(value: Any) -> None:
    if isinstance(value, bytes) and not sys.stdout.isatty():
        sys.stdout.buffer.write(value + b"\n")
        return
    text = shown(value)
    print("\n".join(map(plain, text.split("\n"))) if sys.stdout.isatty() else text)


def count_of(count: int, what: str) -> str:
    """`1 message`, `2 messages`."""
    return f"{count:,} {what}{'s' * (count != 1)}"
