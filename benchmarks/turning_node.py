"""`tidelog`, on a loop that notes the CPU time of its longest turns.

After SIGUSR1 it appends one line to the file that TIDELOG_TURNS names: the longest turns since the
last one, in milliseconds, each with what ran in it, as JSON. A turn is one callback of the loop.
"""

import asyncio
import heapq
import json
import os
import signal
import sys
from pathlib import Path
from time import thread_time
from typing import Any, Final

import uvloop

PATH: Final = "TIDELOG_TURNS"
KEPT: Final = 5


class Turns:
    """The longest callbacks of the loop since they were last told."""

    def __init__(self) -> None:
        self._longest: list[tuple[float, str]] = []
        self._least = 0.0

    def watch(self) -> None:
        run = asyncio.Handle._run

        def timed(handle: asyncio.Handle) -> None:
            began = thread_time()
            run(handle)
            taken = thread_time() - began
            if taken > self._least:
                self._note(taken, handle)

        asyncio.Handle._run = timed  # type: ignore[assignment, method-assign]

    def _note(self, taken: float, handle: Any) -> None:
        callback = getattr(handle, "_callback", None)
        task = getattr(callback, "__self__", None)
        running: Any = task.get_coro() if isinstance(task, asyncio.Task) else callback
        what = str(getattr(running, "__qualname__", callback))[:90]
        heapq.heappush(self._longest, (taken, what))
        if len(self._longest) > KEPT:
            self._least = heapq.heappop(self._longest)[0]

    def tell(self) -> None:
        told = [[1000 * taken, what] for taken, what in sorted(self._longest, reverse=True)]
        self._longest, self._least = [], 0.0
        with Path(os.environ[PATH]).open("a", encoding="utf-8") as file:
            file.write(json.dumps(told) + "\n")


def main() -> int:
    from tidelog.faces.cli import main as run

    turns = Turns()
    turns.watch()

    def new_loop() -> Any:
        loop = asyncio.SelectorEventLoop()
        loop.add_signal_handler(signal.SIGUSR1, turns.tell)
        return loop

    uvloop.new_event_loop = new_loop
    return run()


if __name__ == "__main__":
    sys.exit(main())
