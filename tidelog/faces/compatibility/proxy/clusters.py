"""One cluster behind a proxy: its nodes, who leads, and whether anybody answers.

Rule 1: requests go to the leader that the queue's log has, and to another node if that one is lost
        (`tidelog.client.http`).
Rule 2: a cluster that does not answer is looked at every other second. Until it does, its requests
        are refused at once: whoever waits for it would keep others from being served.
"""

import asyncio
import logging
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import httpx

from tidelog.client.http.awaiting import Driver
from tidelog.client.http.core import Ask, Settings
from tidelog.client.http.effects import Reply
from tidelog.client.http.errors import TidelogHTTPError, Unavailable
from tidelog.client.http.routes import Place
from tidelog.client.http.transport import make_core, options
from tidelog.model import QUEUES_TOPIC
from tidelog.wire.names import partition_for

_log = logging.getLogger(__name__)

LOOK_SECONDS: Final = 2.0
LOOK_SECONDS_MAX: Final = 3.0
"""For how long a node may think about how it is."""
CONNECTIONS_MAX: Final = 200
RETRIES: Final = 3
BACKOFF_SECONDS: Final = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How a cluster is, as far as the proxy knows."""

    is_up: bool | None = None
    """None before anybody has looked."""
    detail: str | None = None
    since_ms: int = 0


class Cluster:
    """The nodes of one cluster. Owned by one event loop."""

    def __init__(
        self,
        number: int,
        addresses: str,
        *,
        discover: bool = True,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """`discover`: ask the nodes that were given for the others."""
        self.number = number
        self._core = make_core(
            addresses,
            Settings(retries=RETRIES, backoff=BACKOFF_SECONDS),
            discover=discover,
            clock=None,
            random=None,
        )
        self._http = httpx.AsyncClient(transport=transport, **options(self._core, CONNECTIONS_MAX))
        self._driver = Driver(self._http, asyncio.sleep)
        self._looking: asyncio.Task[None] | None = None
        self.standing = Standing()

    def __repr__(self) -> str:
        return f"<Cluster {self.number} {', '.join(self.nodes)} {self.standing}>"

    @property
    def nodes(self) -> list[str]:
        return self._core.routes.every()

    def start(self) -> None:
        self._looking = asyncio.create_task(self._look_on())

    async def stop(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            with suppress(asyncio.CancelledError):
                await self._looking
        await self._http.aclose()

    async def ask(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, Any] | None = None,
        body: bytes | None = None,
        queue: int | str | None = None,
        key: str | None = None,
        is_repeat: bool = False,
        seconds_max: float | None = None,
    ) -> Reply:
        """An answer that is a success; a TidelogHTTPError otherwise.

        `queue` is what it is about: an id of this cluster's, or a name.
        """
        if self.standing.is_up is False:
            raise Unavailable(f"{self._title} does not answer: {self.standing.detail}")
        try:
            reply = await self._send(
                Ask(
                    method=method,
                    path=path,
                    query=query or {},
                    body=body,
                    place=_place(queue),
                    idempotency_key=key,
                    is_repeat=is_repeat,
                    seconds_max=seconds_max,
                )
            )
        except Unavailable as error:
            if not error.problem:  # nobody answered at all; else a node has said what it lacks
                self._note(is_up=False, detail=str(error))
            raise
        except TidelogHTTPError as error:
            if error.problem:
                self._note(is_up=True)
            raise
        self._note(is_up=True)
        return reply

    async def _send(self, ask: Ask) -> Reply:
        return await self._driver.run(self._core.send(ask))

    @property
    def _title(self) -> str:
        return f"cluster {self.number}"

    # How it is.

    async def _look_on(self) -> None:
        while True:
            await self.look()
            await asyncio.sleep(LOOK_SECONDS)

    async def look(self) -> None:
        """See whether a node can serve."""
        ask = Ask(
            method="GET",
            path="/health/ready",
            seconds_max=LOOK_SECONDS_MAX,
            retries=max(len(self.nodes) - 1, 0),
        )
        try:
            await self._send(ask)
        except TidelogHTTPError as error:
            self._note(is_up=False, detail=error.detail)
        else:
            self._note(is_up=True)

    def _note(self, *, is_up: bool, detail: str | None = None) -> None:
        before = self.standing
        if before.is_up is is_up:
            return
        self.standing = Standing(is_up=is_up, detail=detail, since_ms=time.time_ns() // 1_000_000)
        if not is_up:
            _log.warning("%s does not answer: %s", self._title, detail)
        elif before.is_up is False:
            _log.warning("%s answers again", self._title)


def _place(queue: int | str | None) -> Place | None:
    if queue is None:
        return None
    if isinstance(queue, int):
        return Place(topic=QUEUES_TOPIC, choose=lambda count: queue % count)
    return Place(topic=QUEUES_TOPIC, choose=lambda count: partition_for(queue, count))
