"""What is to be asked of other nodes, many things in one request.

Rule 1: what comes for a node in one turn of the loop goes out together, and so does what comes
        while a request is under way.
Rule 2: a request that is slow to be answered holds up nobody: what waits behind goes out after
        `_PATIENCE_SECONDS`, in a request of its own.
"""

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final, Generic, TypeVar

from tidelog.broker.broker import Broker
from tidelog.model import NodeId

T = TypeVar("T")

_PATIENCE_SECONDS: Final = 0.05
_ITEMS_MAX: Final = 1000
"""In one request; the others go with the next."""


class Outboxes(Generic[T]):
    """The things that wait for each node, in the order in which they came."""

    def __init__(self, broker: Broker, ask: Callable[[NodeId, list[T]], Coroutine[Any, Any, None]]) -> None:
        """`ask` makes one request of a node, and sees to its answer and its failure."""
        self._broker = broker
        self._ask = ask
        self._waiting: dict[NodeId, list[T]] = {}
        self._next_calls: dict[NodeId, asyncio.Handle] = {}
        """When the next request goes out at the latest; none if nothing is under way."""

    def put(self, node: NodeId, item: T) -> None:
        """Let `item` go out with the next request."""
        self._waiting.setdefault(node, []).append(item)
        if node not in self._next_calls:
            self._next_calls[node] = asyncio.get_running_loop().call_soon(self._next, node)

    def _next(self, node: NodeId) -> None:
        """Make a request of what waits."""
        self._next_calls.pop(node).cancel()
        waiting = self._waiting.pop(node, [])
        if not waiting:
            return
        if rest := waiting[_ITEMS_MAX:]:
            self._waiting[node] = rest
        asking = self._broker.spawn(self._ask(node, waiting[:_ITEMS_MAX]))
        late = asyncio.get_running_loop().call_later(_PATIENCE_SECONDS, self._next, node)
        self._next_calls[node] = late
        asking.add_done_callback(partial(self._answered, node, late))

    def _answered(self, node: NodeId, late: asyncio.Handle, asking: "asyncio.Task[None]") -> None:
        is_last = self._next_calls.get(node) is late  # else it was late, and another went out
        if is_last and not asking.cancelled():
            self._next(node)
