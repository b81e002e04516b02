"""Pub/sub over the replication stream: what is told from now on, to one replica.

Rule: what waits for a replica is bounded, in number and in bytes. Who lets more wait has lost some
      of it: it gets what waits, and then it is over.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Final

import msgspec

from tidelog.copies.stream import protocol
from tidelog.copies.stream.protocol import Batch, Heartbeat, PubSubPublish
from tidelog.faces.http.api import Call
from tidelog.faces.http.permissions import SUBSCRIBES

WAITING_MAX: Final = 10_000
BYTES_MAX: Final = 16 * 1024 * 1024


class Live:
    """Messages of pub/sub for one replica, numbered from 0 on."""

    def __init__(self, call: Call, pattern: str) -> None:
        self._pubsub = call.node.services.pubsub
        self._clock = call.broker.host.clock
        self._seconds = call.broker.config.replication_stream_heartbeat_interval_ms / 1000
        self._pattern = pattern
        self._access = call.access
        self._waiting: asyncio.Queue[tuple[str, bytes]] = asyncio.Queue()
        self._bytes = 0
        self._is_late = False
        self._pubsub.subscribe(pattern, self._hear)

    def _hear(self, topic: str, data: bytes) -> bool:
        if not SUBSCRIBES.is_met(self._access, topic):
            return True  # it is not for this replica, and others may be
        self._is_late |= self._waiting.qsize() >= WAITING_MAX or self._bytes >= BYTES_MAX
        if not self._is_late:
            self._waiting.put_nowait((topic, data))
            self._bytes += len(data)
        return not self._is_late

    async def messages(self) -> AsyncIterator[Batch | Heartbeat]:
        """Batches and heartbeats; they end where something was lost."""
        number = 0
        while not (self._is_late and self._waiting.empty()):
            try:
                async with asyncio.timeout(self._seconds):
                    topic, data = await self._waiting.get()
            except TimeoutError:
                yield Heartbeat(current_offset=number)
                continue
            self._bytes -= len(data)
            operation = PubSubPublish(topic=topic, message=msgspec.Raw(data))
            entry = protocol.sealed(number, self._clock.wall_ms(), operation)
            number += 1
            yield Batch(entries=[entry], next_offset=number)

    def close(self) -> None:
        self._pubsub.unsubscribe(self._pattern, self._hear)
