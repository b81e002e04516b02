"""A desk at which a test sits as the coordinator's driver: one shard, its log, and the markers.

Every request gets a token of its own; the desk keeps the answers, and complains about a second one
to the same request. After every event all invariants are checked.
"""

from collections.abc import Iterable
from itertools import count
from typing import Any

from tidelog.errors import BrokerError
from tidelog.model import TopicPartition
from tidelog.records import Record
from tidelog.shards.effects import Answer, Append, Moment
from tidelog.txn.events import (
    AddPartitions,
    CommitGroup,
    EndTransaction,
    ForgetDecision,
    GroupMember,
    Initialised,
    InitProducer,
    SendMarkers,
    ShardEffect,
    TransactionView,
)
from tidelog.txn.limits import Limits
from tidelog.txn.shard import Shard
from tidelog.wire.batches_decided import NO_BATCH, Counting

WAITS = "waits"
"""The answer of a request that has none yet."""
WALL_MS = 1_700_000_000_000
A, B, C = (TopicPartition(topic, 0) for topic in "abc")


class Clock:
    """Both clocks, moved by hand."""

    def __init__(self) -> None:
        self.seconds = 1000.0
        self.wall_offset_ms = WALL_MS

    def __call__(self) -> Moment:
        return Moment(self.seconds, self.wall_offset_ms + round(self.seconds * 1000))


class Desk:
    """What is appended is committed when the test says so, and so are markers."""

    def __init__(
        self,
        limits: Limits | None = None,
        log: Iterable[Record] = (),
        *,
        at: Clock | None = None,
        ids: "count[int] | None" = None,
    ) -> None:
        self.at = at or Clock()
        self.limits = limits or Limits()
        self.answers: dict[object, Any] = {}
        self.log: list[Record] = [*log]
        self.in_flight: dict[int, tuple[Record, ...]] = {}
        self.markers: list[SendMarkers] = []
        self._ids = ids or count(100)
        self._ticket = count(1)
        self.shard = Shard(self.limits)
        for record in self.log:
            self.shard.replay(record)
        self.do(self.shard.loaded(self.at()))

    def _token(self) -> str:
        token = f"request {next(self._ticket)}"
        self.answers[token] = WAITS
        return token

    def do(self, effects: Iterable[ShardEffect]) -> None:
        for effect in effects:
            match effect:
                case Append():
                    self.in_flight[effect.write] = effect.records
                case SendMarkers():
                    self._check_markers(effect)
                    self.markers.append(effect)
                case Answer():
                    assert self.answers[effect.to] is WAITS, f"{effect.to} is answered twice"
                    self.answers[effect.to] = effect.result
        self.shard.assert_invariants()

    def _check_markers(self, markers: SendMarkers) -> None:
        view = self.view(markers.transactional_id)
        assert view.state == ("PrepareCommit" if markers.commits else "PrepareAbort")
        assert (view.producer_id, view.epoch) == (markers.producer_id, markers.epoch)
        assert view.places == view.unmarked == markers.places

    # Requests return their token.

    def init(self, name: str, **fields: Any) -> str:
        token = self._token()
        defaults = {"timeout_ms": 60_000, "fresh_id": next(self._ids)}
        event = InitProducer(reply=token, **{**defaults, **fields})
        self.do(self.shard.init_producer(name, event, self.at()))
        return token

    def add(self, name: str, who: tuple[int, int], *places: TopicPartition, **fields: Any) -> str:
        token = self._token()
        event = AddPartitions(
            reply=token, producer_id=who[0], epoch=who[1], places=frozenset(places or (A,)), **fields
        )
        self.do(self.shard.add_partitions(name, event, self.at()))
        return token

    def end(
        self, name: str, who: tuple[int, int], *, commits: bool = True, bumps: bool = False, **fields: Any
    ) -> str:
        token = self._token()
        event = EndTransaction(
            reply=token, producer_id=who[0], epoch=who[1], commits=commits, bumps_epoch=bumps, **fields
        )
        self.do(self.shard.end(name, event, self.at()))
        return token

    def abort(self, name: str) -> str:
        token = self._token()
        self.do(self.shard.abort(name, token, self.at()))
        return token

    def commit_group(
        self,
        group: str,
        batch_id: int,
        *members: GroupMember,
        after: int | None = None,
        counting: Counting = Counting.APPLICATION,
        proof: bytes | None = None,
    ) -> str:
        """Ask for a decision, after the newest one if nothing else is said."""
        token = self._token()
        newest = self.shard._decisions.get(group)
        known = NO_BATCH if newest is None else newest.batch_id
        event = CommitGroup(
            reply=token,
            group=group,
            batch_id=batch_id,
            members=members,
            counting=counting,
            after=known if after is None else after,
            proof=proof,
        )
        self.do(self.shard.commit_group(event, self.at()))
        return token

    def forget(self, group: str, batch_id: int = 0, *, is_reset: bool = False) -> str:
        token = self._token()
        event = ForgetDecision(reply=token, group=group, batch_id=batch_id, is_reset=is_reset)
        self.do(self.shard.forget(event, self.at()))
        return token

    # The world around.

    def mark(self, markers: SendMarkers | None = None, *places: TopicPartition) -> None:
        """The markers of one transaction stand; by default those that went out first."""
        markers = markers or self.markers.pop(0)
        self.do(
            self.shard.marked(
                markers.transactional_id,
                markers.producer_id,
                markers.epoch,
                places or markers.places,
                self.at(),
            )
        )

    def store(self, write: int | None = None) -> None:
        """The log commits up to `write`, or everything; what that sets off is left in flight."""
        if write is None and not self.in_flight:
            return
        write = max(self.in_flight) if write is None else write
        for number in sorted(number for number in self.in_flight if number <= write):
            self.log += self.in_flight.pop(number)
        self.do(self.shard.stored(write, self.at()))

    def fail_store(self, error: BrokerError, write: int | None = None) -> None:
        write = min(self.in_flight) if write is None else write
        del self.in_flight[write]
        self.do(self.shard.store_failed(write, error, self.at()))

    def settle(self) -> None:
        """The log and all markers do their work until nothing is left to do."""
        while self.in_flight or self.markers:
            self.store()
            if self.markers:
                self.mark()

    def pass_time(self, seconds: float) -> None:
        end = self.at.seconds + seconds
        while (due := self.shard.next_deadline()) is not None and due <= end:
            self.at.seconds = max(self.at.seconds, due)
            self.do(self.shard.tick(self.at()))
        self.at.seconds = end

    def expire(self) -> None:
        self.do(self.shard.expire(self.at()))

    def restart(self) -> "Desk":
        """Another desk, with what this one's log has committed."""
        return Desk(self.limits, self.log, at=self.at, ids=self._ids)

    # What is there.

    def view(self, name: str) -> TransactionView:
        view = self.shard.describe(name)
        assert view is not None
        return view

    def state(self, name: str) -> str | None:
        view = self.shard.describe(name)
        return None if view is None else view.state

    def who(self, name: str) -> tuple[int, int]:
        return self.view(name).producer_id, self.view(name).epoch

    # Stories begin here.

    def began(self, name: str, **fields: Any) -> Initialised:
        """A producer has the id, and has not written."""
        token = self.init(name, **fields)
        self.store()
        result = self.answers[token]
        assert isinstance(result, Initialised), result
        return result

    def opened(self, name: str, *places: TopicPartition, **fields: Any) -> Initialised:
        """A producer has the id, and a transaction is open."""
        who = self.began(name, **fields)
        self.add(name, who, *places)
        self.store()
        return who
