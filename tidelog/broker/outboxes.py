"""What is to be asked of other nodes, many things in one request.

Rule 1: what comes for a node in one turn of the loop goes out together, and so does what comes
        while a request is under way.
Rule 2: a request that is slow to be answered holds up nobody: what waits behind goes out after
        `_PATIENCE_SECONDS`, in a request of its own.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final, Generic, TypeVar

from tidelog.broker.broker import Broker
from tidelog.model import NodeId

T = TypeVar("T")

_PATIENCE_SECONDS: Final = 0.05
_ITEMS_MAX: Final = 1000
"""In one request; the others go with the next."""


class Outboxes(Generic[T]):
    """The things that wait for each node, in the order in which they came."""

    def __init__(
        self, broker: Broker, ask: Callable[[NodeId, list[T]], Coroutine[Any, Any, None]]
    ) -> None:
        """`ask` makes one request of a node, and sees to its answer and its failure."""
        self._broker = broker
        self._ask = ask
        self._waiting: dict[NodeId, list[T]] = {}
        self._busy: set[NodeId] = set()

    def put(self, node: NodeId, item: T) -> None:
        """Let `item` go out with the next request."""
        self._waiting.setdefault(node, []).append(item)
        if node not in self._busy:
            self._busy.add(node)
            asyncio.get_running_loop().call_soon(self._begin, node)

    def _begin(self, node: NodeId) -> None:
        self._broker.spawn(self._empty(node))

    async def _empty(self, node: NodeId) -> None:
        try:
            while waiting := self._waiting.pop(node, []):
                if rest := waiting[_ITEMS_MAX:]:
                    self._waiting[node] = rest
                asking = self._broker.spawn(self._ask(node, waiting[:_ITEMS_MAX]))
                await asyncio.wait({asking}, timeout=_PATIENCE_SECONDS)
        finally:
            self._busy.discard(node)
