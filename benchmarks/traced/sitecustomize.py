"""Loaded by every Python process whose path begins here: notes how long our requests take.

One line for each request, and for each call of what Spark calls in a task and at a commit, goes to
the file that TIDELOG_TRACE names: what, and milliseconds.
"""

import functools
import importlib.abc
import importlib.util
import os
import sys
import time
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Final

PATH: Final = os.environ.get("TIDELOG_TRACE", "")


def _note(what: str, began: float) -> None:
    line = f"{what}\t{(time.perf_counter() - began) * 1000:.3f}\n"
    descriptor = os.open(PATH, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)


def _requests(wire: Any) -> None:
    exchange = wire.Connection.exchange

    @functools.wraps(exchange)
    async def timed(self: Any, request: Any, **options: Any) -> Any:
        began = time.perf_counter()
        try:
            return await exchange(self, request, **options)
        finally:
            _note(wire.api_name(request.__api_key__), began)

    wire.Connection.exchange = timed


def _calls(writing: Any) -> None:
    for name in ("write", "decide"):
        setattr(writing, name, _timed(name, getattr(writing, name)))


def _timed(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(call)
    def timed(*arguments: Any, **options: Any) -> Any:
        began = time.perf_counter()
        try:
            return call(*arguments, **options)
        finally:
            _note(f"{name}()", began)

    return timed


class _Finder(importlib.abc.MetaPathFinder):
    """Changes our modules as they are loaded."""

    def __init__(self) -> None:
        self._changes = {"tidelog.client.wire": _requests, "tidelog.spark.writing": _calls}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        change = self._changes.pop(fullname, None)
        spec = None if change is None else importlib.util.find_spec(fullname)
        if change is None or spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def execute_and_change(module: ModuleType) -> None:
            execute(module)
            change(module)

        spec.loader.exec_module = execute_and_change  # type: ignore[method-assign]
        return spec


if PATH:
    sys.meta_path.insert(0, _Finder())
