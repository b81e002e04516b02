"""The client for threads is derived from the client for coroutines.

    python -m tests.support.derive_client

writes `tidelog/client/http/blocking.py` anew; so does `make format`.

Rule 1: only `awaiting.py` is written by hand. What is not awaited needs no `async` and no `await`,
        and classes lose their `Async`; the other differences are the tables below.
Rule 2: the result is committed, so that type checkers, editors and debuggers see ordinary code. A
        test compares it with what this makes.
Rule 3: each row of a table occurs in `awaiting.py`: a row that has lost its line is an error.
"""

import re
import subprocess
import sys
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).parents[2] / "tidelog" / "client" / "http"
AWAITING: Final = HERE / "awaiting.py"
BLOCKING: Final = HERE / "blocking.py"

PROSE: Final = {
    "The client for coroutines: one task waits for a call, and others go on meanwhile.": (
        "The client for threads: every call returns when it is done."
    ),
    "Write by hand only this module: `python -m tests.support.derive_client` makes `blocking.py` of it.": (
        "Do not edit: `python -m tests.support.derive_client` makes this module of `awaiting.py`."
    ),
    "in the caller's task": "in the caller's thread",
    "To stop earlier, close this (`contextlib.aclosing`).": (
        "To stop earlier, leave the loop, or close this."
    ),
    "who closes this\n        (`contextlib.aclosing`) puts back the one that he has.": (
        "who leaves the loop, by\n        `break` or by an error, puts back the one that he has."
    ),
    "for one event loop; close it, or use it in an `async with`.": (
        "which threads may share; close it, or use it in a `with`."
    ),
}
NAMES: Final = {
    "import asyncio\nimport inspect\n": "import time\n",
    "asyncio.sleep": "time.sleep",
    "AsyncBaseTransport": "BaseTransport",
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "aclose()": "close()",
    "aread()": "read()",
    "aiter_bytes()": "iter_bytes()",
    "anext(": "next(",
}
TYPES: Final = {
    r"AsyncGenerator\[(\w+), None\]": r"Generator[\1, None, None]",
    r"AsyncIterator\b": "Iterator",
    r"Coroutine\[Any, Any, (\w+(?:\[\w+\])?)\]": r"\1",
    r"Awaitable\[None\]": "None",
    r"\bAsync(?=[A-Z])": "",
}
IMPORTS: Final = {
    "AsyncGenerator": "Generator",
    "AsyncIterator": "Iterator",
    "Awaitable": "",
    "Coroutine": "",
}
"""What is imported from `collections.abc` instead."""
_AWAITED_IF_NEED_BE: Final = re.compile(
    r"came = (.+)\n +return await came if inspect\.isawaitable\(came\) else came"
)


def derive(text: str) -> str:
    """The text of `blocking.py`, of that of `awaiting.py`."""
    for mine, theirs in {**PROSE, **NAMES}.items():
        assert mine in text, f"{AWAITING.name} lacks {mine!r}, which this table replaces"
        text = text.replace(mine, theirs)
    text, count = _AWAITED_IF_NEED_BE.subn(r"return \1", text)
    assert count == 1, "a user's function may be a coroutine's, in one place"
    first = re.search(r"from collections\.abc import (.+)\n", text)
    assert first is not None
    names = {IMPORTS.get(name, name) for name in first[1].split(", ")} - {""}
    text = text.replace(first[0], f"from collections.abc import {', '.join(sorted(names))}\n")
    for pattern, theirs in TYPES.items():
        text, count = re.subn(pattern, theirs, text)
        assert count, f"nothing in {AWAITING.name} matches {pattern}"
    return _formatted(text.replace("async ", "").replace("await ", ""))


def _formatted(text: str) -> str:
    for options in (["check", "--quiet", "--select", "I", "--fix"], ["format"]):
        command = [sys.executable, "-m", "ruff", *options, "--stdin-filename", str(BLOCKING), "-"]
        text = subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout
    return text


if __name__ == "__main__":
    BLOCKING.write_text(derive(AWAITING.read_text()))
