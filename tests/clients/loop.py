"""An event loop in a thread of its own, for code that tests call from outside of it."""

import asyncio
import functools
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class LoopThread:
    """Runs coroutines for callers that are not coroutines."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="loop", daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, T], seconds: float) -> T:
        """Wait for `coroutine`; TimeoutError after `seconds`, and it is cancelled."""
        return asyncio.run_coroutine_threadsafe(asyncio.wait_for(coroutine, seconds), self.loop).result()


@functools.cache
def shared_loop() -> LoopThread:
    """One for the whole run; it ends with the process."""
    return LoopThread()
