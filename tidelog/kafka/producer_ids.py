"""InitProducerId: numbers that no other producer ever had or will have.

Rule: a block of numbers is granted by the metadata log before the first of it is given out, so
that a restart skips numbers but never repeats one.
"""

import asyncio
from typing import Any

from tidelog.broker.broker import Broker
from tidelog.controller import decisions
from tidelog.kafka.context import Request


class ProducerIds:
    """This node's share of the producer ids."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._next = 0
        self._end = 0
        self._refill = asyncio.Lock()

    async def take(self) -> int:
        async with self._refill:
            if self._next == self._end:
                granted = await self._broker.metadata.change(
                    lambda image: decisions.grant_producer_ids(image, self._broker.node_id)
                )
                self._next, self._end = granted.end - decisions.PRODUCER_IDS_BLOCK, granted.end
            self._next += 1
            return self._next - 1

    async def init_producer_id(self, broker: Broker, request: Any, context: Request) -> dict[str, Any]:
        """A new id with epoch 0, for a producer without transactions."""
        return {"producer_id": await self.take(), "producer_epoch": 0}
