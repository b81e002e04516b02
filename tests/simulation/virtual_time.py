"""An event loop whose time is a `SimulatedClock`: instead of waiting it moves the clock.

A stand-in until `tidelog/simulation` has its own loop, with a network.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from tidelog.simulation.host import SimulatedClock

T = TypeVar("T")


class _Jump:
    """Stands where a selector would."""

    def __init__(self, clock: SimulatedClock) -> None:
        self._clock = clock

    def select(self, timeout: float | None) -> list[Any]:
        assert timeout is not None, "deadlock: everybody waits, and for nothing"
        if timeout > 0:
            self._clock.advance(timeout)
        return []


class VirtualTimeLoop(asyncio.BaseEventLoop):
    """Knows timers and callbacks, no sockets. What goes wrong in a callback is kept in `errors`."""

    def __init__(self, clock: SimulatedClock) -> None:
        super().__init__()
        self._clock = clock
        self._clock_resolution = 1e-9
        self._selector = _Jump(clock)
        self.errors: list[BaseException] = []
        self.set_exception_handler(self._keep_error)

    def time(self) -> float:
        return self._clock.monotonic()

    def _process_events(self, event_list: list[Any]) -> None:
        """There are none."""

    def _write_to_self(self) -> None:
        """Nobody sleeps."""

    def _keep_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if "handle" in context:  # a callback; tasks hand their errors to who awaits them
            self.errors.append(context["exception"])


def run(main: Coroutine[Any, Any, T], clock: SimulatedClock) -> T:
    """Run `main` to its end; then raise what went wrong in callbacks meanwhile, if anything did."""
    loop = VirtualTimeLoop(clock)
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        result = runner.run(main)
    if loop.errors:
        raise loop.errors[0]
    return result
