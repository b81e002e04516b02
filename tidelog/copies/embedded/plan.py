"""A copy's half of the replication stream: what it says, hears, keeps and does when that fails.

Rule 1: what arrives is checked, then applied together with the offset that it leads to, and then
        acknowledged. What does not check out is not applied: the stream is left, and asked for
        again from there.
Rule 2: a copy never goes back, unless the log itself has: where an operator let a replica lead that
        lacked records.
Rule 3: every failure is counted and told, and followed by another attempt, elsewhere if there is
        another node, later and later if there is not.
Rule 4: nothing here opens a connection, sleeps or reads a clock by itself; the plan yields effects.

    state         entered by                            left by
    ------------  ------------------------------------  ----------------------------------------
    disconnected  the start; any failure                HELLO_ACK -> syncing
    syncing       HELLO_ACK                             all that it told of is here -> in_sync
    in_sync       nothing lacks, by what was heard last  more is heard of -> lagging
    lagging       something lacks                       it is applied -> in_sync
"""

import sqlite3
import struct
import zlib
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, Final, TypeAlias, TypeVar
from urllib.parse import urlsplit

import msgspec
from crc32c import crc32c

from tidelog.client.http.core import Core
from tidelog.client.http.effects import Lost, Wait
from tidelog.client.http.routes import Place
from tidelog.client.http.values import Change
from tidelog.copies.embedded.changes import changes_of
from tidelog.copies.embedded.errors import (
    ChecksumMismatch,
    ConnectionFailed,
    LogTruncated,
    OffsetNotFound,
    ProtocolError,
    ReplicationError,
    SyncFailed,
    error_of,
)
from tidelog.copies.embedded.files import Copy, moved
from tidelog.copies.embedded.values import PartitionStatus, State
from tidelog.copies.stream import protocol
from tidelog.copies.stream.protocol import (
    Ack,
    Batch,
    Failed,
    FromNode,
    Heartbeat,
    Hello,
    HelloAck,
    LogEntry,
    Snapshot,
    Source,
    Sync,
    SyncStart,
)
from tidelog.errors import CorruptMessage
from tidelog.model import NO_EPOCH, QUEUES_TOPIC
from tidelog.records import CRC_FROM, Record, decode_batch, iterate_batches
from tidelog.wire.names import partition_for

M = TypeVar("M", bound=msgspec.Struct)
T = TypeVar("T")

PATH: Final = "/v1/replicate"
SNAPSHOT_SECONDS_MAX: Final = 120.0
"""What a node gets to make a snapshot."""
HEARTBEATS_MISSED_MAX: Final = 5
SILENCE_SECONDS_MIN: Final = 5.0
TEXT_BYTES_MAX: Final = 256 * 1024 * 1024
"""What a message may grow to when it is unpacked."""
MISMATCHES_MAX: Final = 3
"""So often a damaged entry is asked for again; then everything is."""
NOT_FOUND_MAX: Final = 5
"""So often an offset is asked for that is not there: a new leader may not know yet that it is."""
REDIRECTS_MAX: Final = 3


# Effects, beside those of `http.effects`.


@dataclass(frozen=True, slots=True)
class Connect:
    """Open a socket, which takes the place of the former one; comes back as None, or Lost."""

    url: str


@dataclass(frozen=True, slots=True)
class Say:
    """Send a message; that it cannot be is found out by the next `Hear`."""

    message: bytes


@dataclass(frozen=True, slots=True)
class Hear:
    """Wait for the next message; comes back as text, bytes, or Lost."""

    seconds_max: float


@dataclass(frozen=True, slots=True)
class Aside:
    """Do something that takes long, in a thread; comes back as what it returns."""

    work: Callable[[], Any]


Heard: TypeAlias = str | bytes | Lost
Steps: TypeAlias = Generator[Any, Any, T]
"""A plan of these effects, and of those of `http.core`."""


class Following:
    """Keeps the copy of one partition. One task runs `run`; others may look at `status`."""

    def __init__(
        self,
        core: Core,
        source: Source,
        replica_id: str,
        copy: Copy,
        *,
        format: str = protocol.BINARY_FORMAT,
        wall: Callable[[], datetime],
        changed: Callable[[Sequence[Change]], None] | None = None,
        told: Callable[[], None] = lambda: None,
        greeted: Callable[[HelloAck], None] = lambda ack: None,
    ) -> None:
        """`changed` hears of what was applied, `told` that something is another than before."""
        self._core = core
        self._source = source
        self._replica_id = replica_id
        self._format = format
        self._wall = wall
        self._changed = changed
        self._told = told
        self._greeted = greeted
        self.copy = copy
        self._place = (
            Place(topic=QUEUES_TOPIC, choose=partial(partition_for, source.queue or ""))
            if source.bucket is None
            else Place(topic=source.bucket, partition=source.partition)
        )
        # Where it goes next, and what it asks for.
        self._elsewhere: str | None = None
        self._redirects = 0
        self._wants_whole = False
        self._may_go_back = False
        self._mismatches = 0
        self._not_found = 0
        self._failures = 0
        """Since something was heard."""
        # How it stands.
        self._node: str | None = None
        self._is_connected = False
        self._topic = ""
        """What the node copies from."""
        self._is_doubted = False
        self._is_caught_up = False
        self._current: int | None = None
        self._start = 0
        self._silence_seconds = SILENCE_SECONDS_MIN
        self._behind_since: float | None = None
        self._last_sync: datetime | None = None
        self._applied = 0
        self._full_syncs = 0
        self._expected = self._received = 0
        self._connections = 0
        self._errors = 0
        self.last_error: ReplicationError | None = None

    def __repr__(self) -> str:
        return f"<Following {self._place.topic}-{self._source.partition} at {self.copy.applied}>"

    # How it stands.

    def status(self) -> PartitionStatus:
        lag = 0
        if self.copy.is_whole and self._current is not None:
            lag = max(self._current - self.copy.applied, 0)
        since, now = self._behind_since, self._core.now()
        return PartitionStatus(
            partition=self._source.partition,
            state=self._state(lag),
            node=self._node if self._is_connected else None,
            applied_offset=self.copy.applied if self.copy.is_whole else None,
            current_offset=self._current,
            lag_entries=lag,
            lag_ms=0 if since is None else round((now - since) * 1000),
            operations_applied=self._applied,
            full_syncs=self._full_syncs,
            bytes_expected=self._expected,
            bytes_received=self._received,
            reconnects=max(self._connections - 1, 0),
            errors=self._errors,
            last_error=None if self.last_error is None else _text(self.last_error),
            last_sync=self._last_sync,
        )

    def doubt(self, topic: str) -> None:
        """Another node tells of this topic; if that is not what this one gets, it asks again."""
        self._is_doubted = self._is_connected and self._topic != topic

    def _state(self, lag: int) -> State:
        if not self._is_connected:
            return "disconnected"
        if not self._is_caught_up:
            return "syncing"
        return "lagging" if lag else "in_sync"

    # Over and over.

    def run(self) -> Steps[None]:
        """Copy, for ever."""
        self._is_behind()
        while True:
            try:
                yield from self._session()
            except ReplicationError as error:
                self._failed(error)
            except (OSError, sqlite3.Error) as error:
                self._failed(SyncFailed(f"{self.copy.path}: {error}"))
            finally:
                self._is_connected = self._is_caught_up = self._is_doubted = False
                self._expected = self._received = 0
                self.copy.abandon()
                self._is_behind()
                self._told()
            if self._elsewhere is None:
                yield Wait(self._core.pause(self._failures))

    def _failed(self, error: ReplicationError) -> None:
        self._errors += 1
        self._failures += 1
        self.last_error = error
        match error:
            case LogTruncated():
                self._wants_whole = True
                return
            case OffsetNotFound() if self._is_connected:
                self._not_found += 1
                if self._not_found >= NOT_FOUND_MAX:
                    self._wants_whole = self._may_go_back = True
                return
            case ChecksumMismatch():
                self._mismatches += 1
                self._wants_whole |= self._mismatches >= MISMATCHES_MAX
            case _:
                pass
        if self._node is not None and self._elsewhere is None:
            self._core.routes.avoid(self._node)

    # One connection.

    def _session(self) -> Steps[None]:
        core = self._core
        yield from core.look(self._place)
        self._node = node = self._elsewhere or core.routes.pick(self._place)
        self._elsewhere = None
        lost = yield Connect(node.replace("http", "ws", 1) + PATH)
        if isinstance(lost, Lost):
            raise ConnectionFailed(f"{node}: {lost.why}")
        yield Say(
            protocol.encode(Hello(replica_id=self._replica_id, source=self._source, format=self._format))
        )
        ack = yield from self._expect(HelloAck, core.settings.timeout)
        core.routes.answered(node)
        yield from core.look(self._place)  # who the others are, before this one is lost
        self._welcome(ack)
        sync = self._sync(ack)
        yield Say(protocol.encode(sync))
        is_quick = sync.from_offset is not None and ack.current_offset - sync.from_offset < 1000
        seconds = core.settings.timeout if is_quick else SNAPSHOT_SECONDS_MAX
        start = yield from self._expect(SyncStart, seconds)
        if start.snapshot is not None:
            yield from self._take_whole(start.snapshot)
        elif sync.from_offset is None or start.from_offset != sync.from_offset:
            raise ProtocolError(f"{sync.from_offset} was asked for, not {start.from_offset}")
        self._not_found, self._wants_whole, self._may_go_back = 0, False, False
        while True:
            self._look_whether_all_is_here()
            yield Say(protocol.encode(Ack(offset=self.copy.applied)))
            heard = yield Hear(self._silence_seconds)
            is_idle = self._take(self._checked(heard))
            self._failures = self._redirects = 0
            if is_idle:
                yield from core.look(self._place)

    def _welcome(self, ack: HelloAck) -> None:
        self._is_connected, self._topic, self._is_doubted = True, ack.topic_id, False
        self._connections += 1
        self._current = ack.current_offset
        self._start = ack.log_oldest_offset
        heartbeat = ack.heartbeat_interval_ms / 1000
        self._silence_seconds = max(HEARTBEATS_MISSED_MAX * heartbeat, SILENCE_SECONDS_MIN)
        self._greeted(ack)
        self._told()

    def _sync(self, ack: HelloAck) -> Sync:
        copy = self.copy
        if self._wants_whole or not copy.is_whole or copy.topic != ack.topic_id:
            return Sync()
        return Sync(from_offset=copy.applied, topic_id=copy.topic, epoch=copy.position.epoch)

    def _expect(self, kind: type[M], seconds_max: float) -> Steps[M]:
        heard = self._checked((yield Hear(seconds_max)))
        message = self._decoded(heard)
        if not isinstance(message, kind):
            raise ProtocolError(f"{type(message).__name__} came where {kind.__name__} should")
        return message

    def _checked(self, heard: Heard) -> str | bytes:
        if isinstance(heard, Lost):
            raise ConnectionFailed(f"{self._node}: {heard.why}")
        if self._is_doubted:
            raise ConnectionFailed(f"{self._node} sends another {self._place.topic} than others do")
        return heard

    def _decoded(self, heard: str | bytes) -> FromNode:
        """The message of a text, or of its gzip; raises what the node says has failed."""
        if isinstance(heard, bytes):
            if heard[:1] != protocol.GZIP:
                raise ProtocolError(f"bytes of kind {heard[:1]!r} came where a text should")
            heard = _unpacked(heard[1:])
        try:
            message: FromNode = protocol.decode_from_node(heard)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise ProtocolError(f"{self._node} says what is no message: {error}") from None
        if isinstance(message, Failed):
            self._follow(message.location)
            raise error_of(message.code, f"{self._node}: {message.detail}")
        return message

    def _follow(self, location: str | None) -> None:
        """Go where the node points to, unless all of them point to others."""
        if location is None or self._redirects >= REDIRECTS_MAX:
            return
        self._redirects += 1
        self._elsewhere = f"{self._core.routes.scheme}://{urlsplit(location).netloc}"

    # A snapshot.

    def _take_whole(self, about: Snapshot) -> Steps[None]:
        copy = self.copy
        is_older = about.topic_id == copy.topic and about.applied < copy.applied
        if copy.is_whole and is_older and not self._may_go_back:
            raise SyncFailed(
                f"{self._node} has a snapshot of offset {about.applied}; this copy is at {copy.applied}"
            )
        copy.begin(about)
        self._expected = about.size
        while self._received < about.size:
            heard = self._checked((yield Hear(self._silence_seconds)))
            if isinstance(heard, str) or heard[:1] != protocol.SNAPSHOT:
                self._decoded(heard)
                raise ProtocolError("a snapshot was interrupted by something else")
            self._received = copy.add(heard[1:])
            self._told()
        failed = yield Aside(copy.load)
        if failed is not None:
            raise failed
        self._expected = self._received = 0
        self._full_syncs += 1
        self._mismatches = 0
        if self._changed is not None:
            for changes in copy.changes():
                self._changed(changes)

    # Entries.

    def _take(self, heard: str | bytes) -> bool:
        """Take in what was heard; whether that was just a heartbeat."""
        if isinstance(heard, bytes) and heard[:1] == protocol.BATCHES:
            self._take_batches(memoryview(heard))
            return False
        match message := self._decoded(heard):
            case Heartbeat():
                self._current = message.current_offset
                if message.log_oldest_offset > self._start:
                    self._start = message.log_oldest_offset
                    self._apply([], self.copy.applied, NO_EPOCH)
            case Batch():
                records = [r for entry in message.entries for r in self._opened(entry)]
                self._current = max(message.current_offset, message.next_offset)
                self._apply(records, message.next_offset, message.epoch)
            case _:
                raise ProtocolError(f"{type(message).__name__} came where entries should")
        return isinstance(message, Heartbeat)

    def _take_batches(self, data: memoryview) -> None:
        """Record batches as the log has them; each carries the checksum of its records."""
        if len(data) < 1 + protocol.BATCHES_HEAD.size:
            raise ProtocolError(f"{len(data)} bytes came where batches should")
        following, current, epoch = protocol.BATCHES_HEAD.unpack_from(data, 1)
        data = data[1 + protocol.BATCHES_HEAD.size :]
        records: list[Record] = []
        size = at = 0
        for header, batch in iterate_batches(data):
            size += len(batch)
            if header.base_offset < at or header.next_offset > following:
                raise ChecksumMismatch(f"a batch at {header.base_offset} is out of its place")
            try:
                found = decode_batch(batch)
            except CorruptMessage as error:
                actual = crc32c(batch[CRC_FROM:])
                if actual != header.crc:
                    raise ChecksumMismatch(str(error), expected=header.crc, actual=actual) from error
                found = []  # nobody can read it, though it was written so; nodes pass it over, too
            records += [one for one in found if one.offset >= self.copy.applied]
            at = header.next_offset
        if size != len(data):
            raise ChecksumMismatch(f"{len(data) - size} bytes behind the batches are none")
        self._current = max(current, following)
        self._apply(records, following, epoch)

    def _opened(self, entry: LogEntry) -> list[Record]:
        data = bytes(entry.operation)
        actual = protocol.checksum_of(entry.offset, entry.timestamp, data)
        if actual != entry.checksum:
            raise ChecksumMismatch(
                f"the entry at {entry.offset} is damaged", expected=entry.checksum, actual=actual
            )
        if entry.offset < self.copy.applied:
            return []
        try:
            found = protocol.record_of(entry)
        except (ValueError, struct.error, RecursionError) as error:
            raise ProtocolError(f"the entry at {entry.offset} makes no sense: {error}") from None
        return [] if found is None else [found]

    def _apply(self, records: list[Record], following: int, epoch: int) -> None:
        copy = self.copy
        if following < copy.applied:
            raise ProtocolError(f"entries up to {following} came, which were had before")
        self._is_behind()
        copy.apply(records, moved(copy.position, applied=following, epoch=epoch, start=self._start))
        self._applied += len(records)
        self._mismatches = 0
        if records and self._changed is not None:
            self._changed(changes_of(self._source, records))

    def _is_behind(self) -> None:
        if self._behind_since is None:
            self._behind_since = self._core.now()

    def _look_whether_all_is_here(self) -> None:
        if self._current is not None and self.copy.applied >= self._current:
            self._is_caught_up = True
            self._behind_since = None
            self._last_sync = self._wall()
        else:
            self._is_behind()
        self._told()


def _unpacked(data: bytes) -> bytes:
    """What a gzip holds; ChecksumMismatch if it is damaged."""
    unpacker = zlib.decompressobj(wbits=31)
    try:
        found = unpacker.decompress(data, TEXT_BYTES_MAX)
    except zlib.error as error:
        raise ChecksumMismatch(f"a message arrived damaged: {error}") from None
    if not unpacker.eof:
        raise ProtocolError("a message is cut off, or larger than any may be")
    return found


def _text(error: ReplicationError) -> str:
    return f"{error.code}: {error}"
