"""What the commands share: options, output, errors.

Rule: text from outside (names, messages, values) reaches a terminal only through `plain`, so that
it can neither move the cursor nor change the markup.
"""

import json
import os
import sys
from collections.abc import Coroutine, Iterable, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, Final, TypeVar

import typer

from tidelog.errors import TidelogError

if TYPE_CHECKING:
    from rich.progress import Progress

T = TypeVar("T")

INTERRUPTED: Final = 130
"""The exit code of what Ctrl-C ended, by the shells' convention."""
WRONG_USE: Final = 2
"""The exit code of a wrong command line or setting; systemd does not restart a node after it."""
DEFAULT_BOOTSTRAP: Final = "127.0.0.1:9092"
PAGE: Final = 1000
"""The most that a verb lists at once."""
PIPED_WIDTH: Final = 200
"""Columns of the widest table: one that goes to a file or a pipe, or has long ids."""


def _resolve(bootstrap: str) -> str:
    """The addresses, with how to connect there: a job's tasks on other machines must know it, too."""
    if not os.environ.get("TIDELOG_CLIENT_CONFIG"):
        return bootstrap
    from tidelog.client.security import resolved

    return resolved(bootstrap)


Bootstrap = Annotated[
    str,
    typer.Option(
        "--bootstrap",
        callback=_resolve,
        envvar="TIDELOG_BOOTSTRAP",
        metavar="HOST:PORT",
        help="Kafka address of the cluster; several are separated by commas.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


class UserError(TidelogError):
    """The command cannot do what it was asked; the message says what to change."""


class UsageError(UserError):
    """The options do not fit together, or one is not of its form."""


class Format(StrEnum):
    """How keys and values are written as lines."""

    TEXT = "text"
    JSON = "json"
    HEX = "hex"
    BASE64 = "base64"


def plain(text: object) -> str:
    """The text with everything that a terminal would obey made visible."""
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in str(text).encode("utf-8", "replace").decode()
    )


def complain(message: str) -> None:
    """Print one line of error."""
    print(f"tidelog: {plain(message)}", file=sys.stderr)


def note(message: str) -> None:
    """Tell a person something beside the result."""
    print(plain(message), file=sys.stderr, flush=True)


def print_json(document: Any) -> None:
    print(json.dumps(document, ensure_ascii=False, default=str))


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A table for people; columns whose name ends in # hold numbers.

    A table that is wider than the terminal keeps its rows whole, so that ids can be copied.
    """
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        is_number = column.endswith("#")
        justify: Any = "right" if is_number else "left"
        table.add_column(column.removesuffix("#"), justify=justify, overflow="fold")
    for row in rows:
        table.add_row(*(Text(plain(cell)) for cell in row))
    console = Console(width=None if sys.stdout.isatty() else PIPED_WIDTH)
    wanted = console.measure(table, options=console.options.update(max_width=PIPED_WIDTH)).maximum
    console.width = max(console.width, wanted)
    console.print(table)


def progress_bar(*, visible: bool) -> "Progress":
    """A bar on standard error for work of known size, in bytes; gone when it is done."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
        disable=not (visible and sys.stderr.isatty()),
    )


def key_values(options: Sequence[str], option: str) -> list[tuple[str, str]]:
    """`k=v` options as pairs, in order."""
    found = []
    for text in options:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise UsageError(f"{option} {text!r} is not KEY=VALUE, for example {option} a=b")
        found.append((key, value))
    return found


def run(work: Coroutine[Any, Any, T], *, fast: bool = False) -> T:
    """Run a command's coroutine to its end; `fast` is for those whose speed is the point."""
    import asyncio

    if fast:
        import uvloop

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(work)
    return asyncio.run(work)


def perform(bootstrap: str, verb: str, **asked: Any) -> Any:
    """What the cluster answers to an operator's verb (docs/verbs.md)."""

    async def work() -> Any:
        from tidelog.client.kafka import KafkaClient

        async with KafkaClient(bootstrap) as client:
            return await client.perform(verb, **asked)

    return run(work())


def pages(bootstrap: str, verb: str, key: str, **asked: Any) -> dict[str, Any]:
    """The same of a verb that answers page by page: the first answer, with all that is under `key`."""

    async def work() -> dict[str, Any]:
        from tidelog.client.kafka import KafkaClient

        async with KafkaClient(bootstrap) as client:
            found: dict[str, Any] = await client.perform(verb, **asked, limit=PAGE)
            while found["next"] is not None:
                more = await client.perform(verb, **asked, limit=PAGE, after=found["next"])
                found[key] += more[key]
                found["next"] = more["next"]
            return found

    return run(work())


def number(value: float) -> str:
    """1234567 as 1,234,567."""
    return f"{value:,.0f}"


def standard_output() -> BinaryIO:
    """Standard output for bytes, buffered whatever the interpreter was told."""
    try:
        return open(sys.stdout.fileno(), "wb", closefd=False)
    except OSError:
        return sys.stdout.buffer  # a test has put something else in its place
