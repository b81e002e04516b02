"""A desk at which a test sits as the driver of queues: one shard, its log, and its clock.

Every request gets a token of its own; the desk keeps the answers, and complains about a second one
to the same request. After every event the invariants of all queues are checked.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

from tidelog.errors import BrokerError
from tidelog.queues.events import (
    Add,
    Create,
    Declare,
    Delete,
    Drop,
    Event,
    Publish,
    Read,
    Receive,
    Request,
    Settle,
    Sweep,
)
from tidelog.queues.limits import Limits
from tidelog.queues.message import MAIN
from tidelog.queues.records import About, Settings
from tidelog.queues.shard import Shard
from tidelog.records import Record
from tidelog.shards.effects import Append, Moment
from tidelog.simulation.queue_watch import compacted

WAITS = "waits"
"""The answer of a request that has none yet."""
WALL_MS = 1_700_000_000_000


def request(key: str | None, body: str = "") -> Request:
    return Request() if key is None else Request(key.encode().ljust(16)[:16], body.encode())


class Desk:
    """What is appended is committed at once, or while the desk holds when the test says so."""

    def __init__(
        self, *, limits: Limits | None = None, log: Iterable[Record] = (), now: float = 1000.0
    ) -> None:
        self.limits = limits or Limits()
        self.now = now
        self.log: list[Record] = list(log)
        self.end = self.log[-1].offset + 1 if self.log else 0
        self.answers: dict[object, Any] = {}
        self.in_flight: dict[int, tuple[Record, ...]] = {}
        self.holds = False
        self._ticket = count(1)
        self.shard = Shard(0, 1, self.limits)
        for record in self.log:
            self.shard.replay(record)
        self.do(self.shard.loaded(self.at))

    @property
    def at(self) -> Moment:
        return Moment(self.now, WALL_MS + round(self.now * 1000))

    # Effects.

    def do(self, effects: Iterable[Any]) -> None:
        for effect in effects:
            if isinstance(effect, Append):
                placed = [
                    replace(record, offset=self.end + delta) for delta, record in enumerate(effect.records)
                ]
                self.shard.appended(effect.write, self.end)
                self.end += len(placed)
                self.in_flight[effect.write] = tuple(placed)
            else:
                assert self.answers.get(effect.to, WAITS) is WAITS, f"{effect.to}: answered twice"
                self.answers[effect.to] = effect.result
        if not self.holds:
            self.store()
        for queue in self.shard.work_queues.values():
            queue.assert_invariants()
        self.shard.books.ledger.assert_invariants()

    def store(self) -> None:
        """The log commits everything, and what comes of it, unless it is held back."""
        while self.in_flight:
            last = max(self.in_flight)
            for write in sorted(self.in_flight):
                self.log += self.in_flight.pop(write)
            holds, self.holds = self.holds, True
            self.do(self.shard.stored(last, self.at))
            self.holds = holds
            if holds:
                return

    def fail(self, error: BrokerError, write: int | None = None) -> None:
        """A write, the first one unless said otherwise, does not come into the log."""
        write = min(self.in_flight) if write is None else write
        del self.in_flight[write]
        self.do(self.shard.store_failed(write, error, self.at))

    def pass_time(self, seconds: float) -> None:
        end = self.now + seconds
        while (due := self.shard.next_deadline()) is not None and due <= end:
            self.now = max(self.now, due)
            self.do(self.shard.tick(self.at))
        self.now = end

    def fail_over(self, log: Sequence[Record] | None = None) -> "Desk":
        """Another desk, with what this one's log has committed."""
        assert not self.in_flight
        return Desk(limits=self.limits, log=self.log if log is None else log, now=self.now)

    def compact_and_fail_over(self) -> "Desk":
        return self.fail_over(compacted(self.log))

    # Requests; each returns its answer, or WAITS.

    def ask(self, event: Event) -> Any:
        self.answers[event.reply] = WAITS
        self.do(self.shard.ask(event, self.at))
        return self.answers[event.reply]

    def _token(self) -> str:
        return f"request {next(self._ticket)}"

    @property
    def last(self) -> str:
        """The token of the newest request."""
        return list(self.answers)[-1]  # type: ignore[return-value]

    def declare(self, name: str = "q", *, key: str | None = None, **settings: Any) -> Any:
        return self.ask(
            Declare(reply=self._token(), request=request(key), name=name, settings=Settings(**settings))
        )

    def drop(self, name: str = "q", *, key: str | None = None) -> Any:
        return self.ask(Drop(reply=self._token(), request=request(key), name=name))

    def publish(
        self,
        *values: bytes,
        name: str = "q",
        key: str | None = None,
        about: About | None = None,
        body: str = "",
    ) -> Any:
        messages = tuple((value, about or About()) for value in values)
        return self.ask(
            Publish(reply=self._token(), request=request(key, body), name=name, messages=messages)
        )

    def receive(
        self,
        most: int = 1,
        *,
        name: str = "q",
        lane: int = MAIN,
        wait: float = 0.0,
        visible: int | None = None,
        key: str | None = None,
        body: str = "",
    ) -> Any:
        return self.ask(
            Receive(
                reply=self._token(),
                request=request(key, body),
                name=name,
                lane=lane,
                count_max=most,
                wait_seconds=wait,
                visibility_ms=visible,
            )
        )

    def settle(
        self, kind: Any, *receipts: str, name: str = "q", ms: int = 0, key: str | None = None, body: str = ""
    ) -> Any:
        return self.ask(
            Settle(
                reply=self._token(),
                request=request(key, body),
                name=name,
                receipts=receipts,
                kind=kind,
                ms=ms,
            )
        )

    def sweep(
        self, lane: int = MAIN, *, deletes: bool = True, name: str = "q", key: str | None = None
    ) -> Any:
        return self.ask(
            Sweep(reply=self._token(), request=request(key), name=name, lane=lane, deletes=deletes)
        )

    def create(self, *, key: str | None = None) -> Any:
        return self.ask(Create(reply=self._token(), request=request(key)))

    def delete(self, queue_id: int, *, key: str | None = None) -> Any:
        return self.ask(Delete(reply=self._token(), request=request(key), queue_id=queue_id))

    def add(self, queue_id: int, value: bytes = b"1", *, key: str | None = None) -> Any:
        return self.ask(Add(reply=self._token(), request=request(key), queue_id=queue_id, value=value))

    def read(
        self, queue_id: int, client: str = "ada", *, key: str | None = None, is_repeat: bool = False
    ) -> Any:
        return self.ask(
            Read(
                reply=self._token(),
                request=request(key),
                queue_id=queue_id,
                client=client,
                is_repeat=is_repeat,
            )
        )

    # What is there.

    def counts(self, lane: int = MAIN, name: str = "q") -> dict[str, int]:
        found = self.shard.work_queue(name).counts(lane, self.at.wall_ms)
        return {kind: number for kind, number in found.items() if kind != "oldest_ms" and number}


def receipts(received: Any) -> list[str]:
    return [f"{one.offset}-{one.count}" for one in received.given]
