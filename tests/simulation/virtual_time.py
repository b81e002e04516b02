"""One process on a virtual loop, whose time is a clock that the test may move as well."""

import asyncio
from collections.abc import Coroutine
from contextvars import copy_context
from typing import Any, TypeVar

from tidelog.simulation.host import SimulatedClock
from tidelog.simulation.loop import VirtualLoop

T = TypeVar("T")


class VirtualTimeLoop(VirtualLoop):
    """Moves the clock instead of waiting, and follows it when somebody else moves it."""

    def __init__(self, clock: SimulatedClock) -> None:
        super().__init__()
        self._clock = clock
        self.now = clock.monotonic()

    def time(self) -> float:
        return self._clock.monotonic()

    def call_at(self, when: float, *args: Any, **options: Any) -> Any:  # type: ignore[override]
        self.now = self._clock.monotonic()
        return self.at(when, options.get("context") or copy_context(), *args)

    def _advance(self, until: float) -> bool:
        self.now = self._clock.monotonic()
        moved = super()._advance(until)
        self._clock.advance(self.now - self._clock.monotonic())
        return moved


def run(main: Coroutine[Any, Any, T], clock: SimulatedClock) -> T:
    """Run `main` to its end; then raise what went wrong in callbacks meanwhile, if anything did."""
    loop = VirtualTimeLoop(clock)
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        result = runner.run(main)
    for failure in loop.errors:
        if failure.message.startswith("in "):  # a callback; tasks hand theirs to who awaits them
            raise failure.error
    return result
