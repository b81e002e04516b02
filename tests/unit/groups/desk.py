"""A desk at which a test sits as the coordinator's driver: one group, or one shard with its log.

Every request gets a token of its own; the desk keeps the answers, and complains about a second one
to the same request. After every event all invariants are checked.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import count
from typing import Any

from tidelog.errors import BrokerError
from tidelog.groups.events import (
    Change,
    Commit,
    Effect,
    Heartbeat,
    Join,
    Joined,
    Leave,
    Leaver,
    Left,
    OffsetToCommit,
    ShardEffect,
    Store,
    Sync,
    Synced,
    TransactionalCommit,
)
from tidelog.groups.group import Group
from tidelog.groups.limits import Limits
from tidelog.groups.shard import Shard
from tidelog.model import NO_PRODUCER, Offset, ProducerId, TopicPartition
from tidelog.records import Record
from tidelog.shards.effects import Answer, Append, Moment, Writer

WAITS = "waits"
"""The answer of a request that has none yet."""
WALL_MS = 1_700_000_000_000


def subscription(*topics: str) -> bytes:
    """What a consumer that owns nothing says of itself, in version 0."""
    named = b"".join(len(topic).to_bytes(2, "big") + topic.encode() for topic in topics)
    return (0).to_bytes(2, "big") + len(topics).to_bytes(4, "big") + named + b"\xff\xff\xff\xff"


RANGE = (("range", subscription("orders")),)


def _to_commit(
    offsets: Mapping[TopicPartition, OffsetToCommit | int],
) -> dict[TopicPartition, OffsetToCommit]:
    return {
        place: OffsetToCommit(offset=offset) if isinstance(offset, int) else offset
        for place, offset in offsets.items()
    }


class Clock:
    """Both clocks, moved by hand."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> Moment:
        return Moment(self.seconds, WALL_MS + round(self.seconds * 1000))


class _Desk:
    def __init__(self) -> None:
        self.at = Clock()
        self.answers: dict[object, Any] = {}
        self._ticket = count(1)

    def _token(self) -> str:
        token = f"request {next(self._ticket)}"
        self.answers[token] = WAITS
        return token

    def _note(self, answer: Answer) -> None:
        assert self.answers[answer.to] is WAITS, f"{answer.to} is answered twice"
        self.answers[answer.to] = answer.result

    def _join_event(self, member_id: str, **fields: Any) -> Join:
        defaults: dict[str, Any] = {
            "reply": self._token(),
            "member_id": member_id,
            "unique": f"id{next(self._ticket)}",
            "client_id": "app",
            "client_host": "/10.0.0.1",
            "session_timeout_ms": 10_000,
            "rebalance_timeout_ms": 30_000,
            "protocol_type": "consumer",
            "protocols": RANGE,
            "wants_id_first": False,
            "can_skip_assignment": True,
        }
        return Join(**{**defaults, **fields})


class GroupDesk(_Desk):
    """One group; a store waits for the test to say what became of it."""

    def __init__(self, group: Group | None = None, **limits: Any) -> None:
        super().__init__()
        self.group = group or Group("g", Limits(**limits), since_ms=WALL_MS)
        self.stores: list[Change] = []
        self.checks = True
        """Off in tests of large groups, where checking everything each time takes too long."""

    def do(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Store):
                self.stores.append(effect.change)
            else:
                self._note(effect)
        if self.checks:
            self.group.assert_invariants()

    def join(self, member_id: str = "", **fields: Any) -> str:
        """Join; returns the token, as all requests do."""
        event = self._join_event(member_id, **fields)
        self.do(self.group.join(event, self.at()))
        return str(event.reply)

    def joined(self, token: str) -> Joined:
        result = self.answers[token]
        assert isinstance(result, Joined), result
        return result

    def sync(self, member_id: str, generation: int | None = None, **fields: Any) -> str:
        token = self._token()
        event = Sync(
            reply=token,
            member_id=member_id,
            generation=self.group.generation if generation is None else generation,
            **fields,
        )
        self.do(self.group.sync(event, self.at()))
        return token

    def synced(self, token: str) -> Synced:
        result = self.answers[token]
        assert isinstance(result, Synced), result
        return result

    def heartbeat(self, member_id: str, generation: int | None = None, **fields: Any) -> Any:
        token = self._token()
        event = Heartbeat(
            reply=token,
            member_id=member_id,
            generation=self.group.generation if generation is None else generation,
            **fields,
        )
        self.do(self.group.heartbeat(event, self.at()))
        return self.answers[token]

    def leave(self, *leavers: str | Leaver) -> Any:
        """The error of each leaver, or the one of the whole request."""
        token = self._token()
        members = tuple(Leaver(who) if isinstance(who, str) else who for who in leavers)
        self.do(self.group.leave(Leave(reply=token, members=members), self.at()))
        result = self.answers[token]
        return [error for _, error in result.members] if isinstance(result, Left) else result

    def commit(self, member_id: str = "", generation: int = -1, **fields: Any) -> Any:
        event = Commit(reply=None, member_id=member_id, generation=generation, offsets={}, **fields)
        try:
            self.group.check_commit(event, self.at())
        except BrokerError as error:
            return error
        finally:
            self.group.assert_invariants()
        return None

    def pass_time(self, seconds: float) -> None:
        """Let time pass, and every deadline on the way come up when it does."""
        end = self.at.seconds + seconds
        while (due := self.group.next_deadline()) is not None and due <= end:
            self.at.seconds = max(self.at.seconds, due)
            self.do(self.group.tick(self.at()))
        self.at.seconds = end

    def store(self) -> None:
        """The log takes what it was given."""
        while self.stores:
            self.do(self.group.stored(self.stores.pop(0), self.at()))

    def fail_store(self, error: BrokerError) -> None:
        while self.stores:
            self.do(self.group.store_failed(self.stores.pop(0), error, self.at()))

    # Stories begin here.

    def stable(self, *members: Mapping[str, Any]) -> list[str]:
        """Bring `members` into one stable generation; returns their ids, the leader's first."""
        first = self.join(**members[0])
        self.sync(self.joined(first).member_id)
        self.store()
        ids = [self.joined(first).member_id]
        tokens = [self.join(**fields) for fields in members[1:]]
        if tokens:
            tokens.insert(0, self.join(ids[0], **members[0]))
            ids = [self.joined(token).member_id for token in tokens]
            shares = {member_id: f"for {number}".encode() for number, member_id in enumerate(ids)}
            for member_id in ids:
                self.sync(member_id, assignments=shares)
            self.store()
        return ids


class ShardDesk(_Desk):
    """One shard and its log. What is appended is committed when the test says so."""

    def __init__(self, limits: Limits | None = None, before: "ShardDesk | None" = None) -> None:
        super().__init__()
        self.limits = limits or Limits()
        self.log: list[Record] = [] if before is None else [*before.log]
        self.writers: dict[Offset, ProducerId] = {} if before is None else {**before.writers}
        """In whose transaction a record stands."""
        self.markers: dict[Offset, tuple[ProducerId, bool]] = {}
        """Those that are committed, and whether they commit."""
        self.end = 0
        self.in_flight: dict[int, tuple[Record, ...]] = {}
        self.markers_in_flight: dict[Offset, tuple[ProducerId, bool]] = {}
        self.shard = Shard(self.limits)
        if before is not None:
            self.at, self.end, self.markers = before.at, before.end, {**before.markers}
        self.read()
        self.do(self.shard.loaded(self.at()))

    def read(self) -> None:
        """Let the shard read the log."""
        entries: dict[Offset, Record | None] = {record.offset: record for record in self.log}
        for offset, record in sorted({**dict.fromkeys(self.markers), **entries}.items()):
            if record is None:
                self.shard.replay_marker(*self.markers[offset])
            else:
                self.shard.replay(record, self.writers.get(offset, NO_PRODUCER))

    def do(self, effects: Iterable[ShardEffect]) -> None:
        for effect in effects:
            if isinstance(effect, Append):
                offsets = range(self.end, self.end + len(effect.records))
                self.end = offsets.stop
                placed = zip(effect.records, offsets, strict=True)
                self.in_flight[effect.write] = tuple(
                    [replace(record, offset=offset) for record, offset in placed]
                )
                if effect.writer is not None:
                    self.writers.update(dict.fromkeys(offsets, effect.writer.producer_id))
                self.shard.appended(effect.write, offsets.start)
            else:
                self._note(effect)
        self.shard.assert_invariants()

    def join(self, group_id: str, member_id: str = "", **fields: Any) -> Any:
        event = self._join_event(member_id, **fields)
        self.do(self.shard.join(group_id, event, self.at()))
        return event.reply

    def sync(self, group_id: str, member_id: str, generation: int, **fields: Any) -> str:
        token = self._token()
        event = Sync(reply=token, member_id=member_id, generation=generation, **fields)
        self.do(self.shard.sync(group_id, event, self.at()))
        return token

    def heartbeat(self, group_id: str, member_id: str, generation: int, **fields: Any) -> Any:
        token = self._token()
        event = Heartbeat(reply=token, member_id=member_id, generation=generation, **fields)
        self.do(self.shard.heartbeat(group_id, event, self.at()))
        return self.answers[token]

    def leave(self, group_id: str, *leavers: Leaver) -> Any:
        token = self._token()
        event = Leave(reply=token, members=leavers)
        self.do(self.shard.leave(group_id, event, self.at()))
        return self.answers[token]

    def commit(
        self, group_id: str, offsets: Mapping[TopicPartition, OffsetToCommit | int], **fields: Any
    ) -> str:
        token = self._token()
        event = Commit(reply=token, offsets=_to_commit(offsets), **fields)
        self.do(self.shard.commit(group_id, event, self.at()))
        return token

    def commit_in_transaction(
        self,
        group_id: str,
        offsets: Mapping[TopicPartition, OffsetToCommit | int],
        *,
        producer_id: ProducerId = 7,
        epoch: int = 0,
        **fields: Any,
    ) -> str:
        token = self._token()
        event = TransactionalCommit(
            reply=token, writer=Writer(producer_id, epoch), offsets=_to_commit(offsets), **fields
        )
        self.do(self.shard.commit_in_transaction(group_id, event, self.at()))
        return token

    def end_transaction(self, producer_id: ProducerId = 7, *, commits: bool = True) -> Offset:
        """A marker goes to the log, behind all that was appended; returns its offset."""
        offset, self.end = self.end, self.end + 1
        self.markers_in_flight[offset] = producer_id, commits
        return offset

    def delete_offsets(self, group_id: str, *places: TopicPartition) -> str:
        token = self._token()
        self.do(self.shard.delete_offsets(group_id, places, token, self.at()))
        return token

    def delete_group(self, group_id: str) -> str:
        token = self._token()
        self.do(self.shard.delete_group(group_id, token, self.at()))
        return token

    def expire(self) -> None:
        self.do(self.shard.expire(self.at()))

    def pass_time(self, seconds: float) -> None:
        end = self.at.seconds + seconds
        while (due := self.shard.next_deadline()) is not None and due <= end:
            self.at.seconds = max(self.at.seconds, due)
            self.do(self.shard.tick(self.at()))
        self.at.seconds = end

    def store(self, write: int | None = None) -> None:
        """The log commits up to `write`, or everything; what that sets off is left in flight."""
        if write is None:
            write = max(self.in_flight, default=-1)
            self._commit_before(self.end)
        else:
            self._commit_before(self.in_flight[write][-1].offset + 1)
        if write >= 0:
            self.do(self.shard.stored(write, self.at()))

    def _commit_before(self, end: Offset) -> None:
        for number, records in sorted(self.in_flight.items()):
            if records[0].offset < end:
                self.log += self.in_flight.pop(number)
        for offset, (producer_id, commits) in sorted(self.markers_in_flight.items()):
            if offset < end:
                self.markers[offset] = self.markers_in_flight.pop(offset)
                self.do(self.shard.completed(producer_id, commits, self.at(), offset))

    def store_all(self) -> None:
        while self.in_flight or self.markers_in_flight:
            self.store()

    def fail_store(self, error: BrokerError, write: int | None = None) -> None:
        write = min(self.in_flight) if write is None else write
        del self.in_flight[write]
        self.do(self.shard.store_failed(write, error, self.at()))

    def restart(self) -> "ShardDesk":
        """Another desk, with what this one's log has committed."""
        return ShardDesk(self.limits, self)

    def offsets(self, group_id: str, **fields: Any) -> dict[str, Any]:
        found = self.shard.fetch_offsets(group_id, None, **fields)
        return {str(place): getattr(value, "offset", value) for place, value in found.items()}
