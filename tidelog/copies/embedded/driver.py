"""Performs the effects of one partition's plan: a socket, requests, pauses, and work in threads.

Rule 1: nothing is decided here.
Rule 2: work that was begun in a thread is waited for, however its task ends: whoever comes after it
        finds the files at rest.
"""

import asyncio
from typing import Any, Final

import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidStatus, WebSocketException

from tidelog.client.http.awaiting import Driver as HttpDriver
from tidelog.client.http.core import Core
from tidelog.client.http.effects import Lost, Send, Wait
from tidelog.copies.embedded.plan import Aside, Connect, Hear, Say, Steps

MESSAGE_BYTES_MAX: Final = 256 * 1024 * 1024
CLOSE_SECONDS_MAX: Final = 1.0
PING_SECONDS: Final = 10.0


class SocketDriver:
    """One plan's, with one socket at a time."""

    def __init__(self, http: HttpDriver, core: Core) -> None:
        self._http = http
        self._core = core
        self._socket: ClientConnection | None = None

    async def run(self, plan: Steps[None]) -> None:
        came: Any = None
        try:
            while True:
                came = await self._perform(plan.send(came))
        except StopIteration:
            return
        finally:
            plan.close()
            await self._close()

    async def _perform(self, effect: object) -> Any:
        match effect:
            case Hear(seconds_max):
                return await self._hear(seconds_max)
            case Say(message):
                return await self._say(message)
            case Connect(url):
                return await self._connect(url)
            case Aside(work):
                return await _finished(asyncio.ensure_future(asyncio.to_thread(work)))
            case Wait(_):
                await self._close()
                return await self._http.perform(effect)
            case Send():
                return await self._http.perform(effect)
            case _:
                raise AssertionError(f"{effect} is no effect of a copy")

    async def _connect(self, url: str) -> Lost | None:
        await self._close()
        try:
            self._socket = await connect(
                url,
                compression=None,
                proxy=None,
                max_size=MESSAGE_BYTES_MAX,
                open_timeout=self._core.settings.timeout,
                close_timeout=CLOSE_SECONDS_MAX,
                ping_interval=PING_SECONDS,
                ping_timeout=PING_SECONDS,
            )
        except InvalidStatus as error:
            return Lost(why=_refusal(error), was_sent=False)
        except (OSError, TimeoutError, WebSocketException) as error:
            return Lost(why=str(error) or type(error).__name__, was_sent=False)
        return None

    async def _say(self, message: bytes) -> None:
        assert self._socket is not None, "it was connected"
        try:
            await self._socket.send(message, text=True)
        except WebSocketException:
            pass  # whoever listens next hears of it

    async def _hear(self, seconds_max: float) -> str | bytes | Lost:
        assert self._socket is not None, "it was connected"
        try:
            async with asyncio.timeout(seconds_max):
                return await self._socket.recv()
        except TimeoutError:
            return Lost(why=f"nothing was heard for {seconds_max:g} s", was_sent=True)
        except WebSocketException as error:
            return Lost(why=str(error), was_sent=True)

    async def _close(self) -> None:
        if self._socket is not None:
            await self._socket.close()
            self._socket = None


def _refusal(error: InvalidStatus) -> str:
    """What a node answered that opens no socket."""
    try:
        return str(msgspec.json.decode(error.response.body or b"")["detail"])
    except (msgspec.MsgspecError, KeyError, TypeError):
        return f"it answered with {error.response.status_code}"


async def _finished(work: "asyncio.Future[Any]") -> Any:
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        await asyncio.wait([work])
        raise
