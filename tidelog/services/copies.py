"""Copies outside of the cluster: what they are sent, and who they are.

Rule 1: an entry is sent once it is decided; a copy never has what the cluster may lose.
Rule 2: who is far behind, or asks for what was deleted, gets the view of a replica as it is,
        through SQLite's own backup, with the topic, the epoch and the offset that it is of.
Rule 3: a copy that says nothing for too long is forgotten; it begins again where it is.
Rule 4: a replica may copy several sources; each of these is a copy, with a connection and offsets
        of its own.
"""

import hashlib
import sqlite3
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial
from typing import BinaryIO, Final, NamedTuple

from tidelog.broker.broker import Broker
from tidelog.copies.node.views import DIRECTORY, View, Views
from tidelog.copies.stream.kinds import QueueView, kind_of
from tidelog.copies.stream.protocol import Snapshot, Source
from tidelog.copies.views.store import Position
from tidelog.errors import BrokerError, InvalidRequest, NotLeader, StorageError, UnknownTopicOrPartition
from tidelog.host import Path
from tidelog.model import NO_EPOCH, QUEUES_TOPIC, Endpoint, Epoch, Offset, TopicPartition
from tidelog.records import iterate_batches
from tidelog.services.kv import Kv
from tidelog.services.pubsub import name_problem
from tidelog.services.queues import Queues
from tidelog.services.records import Batches, RecordService

ROOM_PREFIX: Final = "room."
READ_BYTES: Final = 1024 * 1024
PIECE_BYTES: Final = 256 * 1024
SUFFIX: Final = ".copy"
JOURNAL: Final = "-journal"
"""SQLite's, beside the file, while a snapshot is made."""
_SNAPSHOT_SECONDS_MAX: Final = 60.0


@dataclass(slots=True)
class Copy:
    """What one replica outside of the cluster has of one source, as this node knows it."""

    replica_id: str
    source: str
    connected_at_ms: int
    heard_at: float
    """When it acknowledged, or first had something to; by the clock that never jumps."""
    sent: Offset = 0
    acknowledged: Offset = 0
    last_ack_ms: int = 0
    is_connected: bool = True


class Taken(NamedTuple):
    """A snapshot in a file that has no name any more: it is gone when nobody reads it."""

    file: BinaryIO
    about: Snapshot


class Elsewhere(NotLeader):
    """This node has no replica of it; another does."""

    def __init__(self, at: Endpoint | None) -> None:
        where = "" if at is None else f"; the node at {at} does"
        BrokerError.__init__(self, "this node holds no replica of it" + where)
        self.at = at


def check_source(source: Source) -> None:
    """InvalidRequest if it does not name one thing, or that cannot be a name."""
    named = (source.bucket, source.queue, source.room, source.topic, source.pubsub)
    if len([name for name in named if name]) != 1:
        raise InvalidRequest("a source names one of bucket, queue, room, topic and pubsub")
    if source.pubsub and (problem := name_problem(source.pubsub, is_pattern=True)) is not None:
        raise InvalidRequest(f"{source.pubsub!r} is no topic and no pattern: {problem}")


class Copies:
    """What this node sends to copies, and what it knows of them."""

    def __init__(self, broker: Broker, records: RecordService, kv: Kv, queues: Queues) -> None:
        self._broker = broker
        self._records = records
        self._kv = kv
        self._queues = queues
        self._queue_views = Views(broker, QueueView(), lambda partition: False)
        self._taking: set[str] = set()
        """Names of snapshots that are being made."""
        self.known: dict[tuple[str, str], Copy] = {}
        """By the replica's id and the source."""

    async def place_of(self, source: Source) -> TopicPartition:
        """The partition that a source is in; the error that says why there is none."""
        if source.bucket is not None:
            places = await self._kv.places(source.bucket)
            if not 0 <= source.partition < len(places):
                raise UnknownTopicOrPartition(TopicPartition(source.bucket, source.partition))
            return places[source.partition]
        if source.queue is not None:
            return await self._queues.place_of(source.queue)
        name = source.topic or f"{ROOM_PREFIX}{source.room}"
        await self._records.topic(name, partition=source.partition)
        return TopicPartition(name, source.partition)

    def partitions(self, topic: str) -> int:
        """How many partitions a topic has; UnknownTopicOrPartition if it is gone by now."""
        found = self._broker.image.topics.get(topic)
        if found is None:
            raise UnknownTopicOrPartition(topic)
        return len(found.partitions)

    async def bounds(self, place: TopicPartition) -> Batches:
        """Where a partition begins and ends, as far as that is decided."""
        return await self._records.read(place.topic, place.partition, offset=-1, records_max=1)

    async def is_of(self, place: TopicPartition, offset: Offset, epoch: Epoch) -> bool:
        """Whether a copy up to `offset`, whose last record is of `epoch`, can be of this log."""
        if epoch == NO_EPOCH:
            return True
        found = await self._records.peek(place, offset - 1)
        for header, _ in iterate_batches(found.data):
            if header.base_offset < offset <= header.next_offset:
                return header.leader_epoch == epoch
        return True  # nothing is left of it that could say so

    async def batches(
        self, place: TopicPartition, offset: Offset, *, wait_seconds: float, records_max: int
    ) -> AsyncIterator[Batches]:
        """What comes from `offset` on, for ever; empty ones where nothing came in time."""
        while True:
            found = await self._records.read(
                place.topic,
                place.partition,
                offset=offset,
                wait_seconds=wait_seconds,
                bytes_max=READ_BYTES,
                records_max=records_max,
            )
            yield found
            offset = max(offset, found.end)

    # Snapshots.

    async def snapshot(self, place: TopicPartition, source: Source) -> Taken:
        """The view of this node's replica, as it is, in a file of its own."""
        kind = kind_of(source)
        if kind is None:
            raise InvalidRequest("only buckets and queues can be had as a whole")
        try:
            partition = self._broker.partition(place.topic, place.partition)
        except BrokerError:
            raise Elsewhere(self._where(place)) from None
        views = self._queue_views if place.topic == QUEUES_TOPIC else self._kv.views
        view = views.of(partition)
        deadline = self._broker.host.clock.monotonic() + _SNAPSHOT_SECONDS_MAX
        await view.reached(partition.last_stable_offset, deadline)
        position, file = await self._back_up(view)
        size, digest = await self._broker.host.offload.run(partial(_digest, file))
        return Taken(
            file,
            Snapshot(
                size=size,
                sha256=digest,
                topic_id=partition.topic_id.hex,
                epoch=position.epoch,
                applied=position.applied,
            ),
        )

    async def _back_up(self, view: View) -> tuple[Position, BinaryIO]:
        """What the view is at one moment, in a file; StorageError if the disk does not take it."""
        broker = self._broker
        offload, name = broker.host.offload, f"{broker.host.new_id().hex}{SUFFIX}"
        directory = broker.root / DIRECTORY
        self._taking.add(name)
        try:
            await offload.run(partial(self._sweep, directory))
            position = await view.backup(directory / name)
            return position, await offload.run(partial(broker.host.databases.seize, directory / name))
        except (OSError, sqlite3.Error) as error:
            raise StorageError(f"no snapshot can be made: {error}") from error
        finally:
            self._taking.discard(name)

    def _sweep(self, directory: Path) -> None:
        """Remove what a crash, or a full disk, has left of snapshots."""
        disk = self._broker.host.disk
        for name in disk.list(directory):
            snapshot = name.removesuffix(JOURNAL)
            # Looked at after the listing: a name is taken before there is a file of it.
            if snapshot.endswith(SUFFIX) and snapshot not in self._taking:
                disk.remove(directory / name)

    async def pieces(self, taken: Taken) -> AsyncIterator[bytes]:
        """The bytes of a snapshot, once."""
        with taken.file as file:
            for at in range(0, taken.about.size, PIECE_BYTES):
                size = min(PIECE_BYTES, taken.about.size - at)
                yield await self._broker.host.offload.run(partial(_piece, file, size, at))

    def _where(self, place: TopicPartition) -> Endpoint | None:
        image = self._broker.image
        topic = image.topics.get(place.topic)
        if topic is None:
            return None
        known = topic.partitions[place.partition]
        for node in (known.leader, *known.replicas):
            broker = image.brokers.get(node)
            if broker is not None and not broker.fenced and broker.http is not None:
                return broker.http
        return None

    # Who copies.

    def arrived(self, replica_id: str, source: str) -> Copy:
        """A replica has connected; of its earlier connection for this nothing counts any more."""
        self.list()  # others may be forgotten by now
        clock = self._broker.host.clock
        copy = self.known[replica_id, source] = Copy(
            replica_id, source, connected_at_ms=clock.wall_ms(), heard_at=clock.monotonic()
        )
        return copy

    def left(self, copy: Copy) -> None:
        copy.is_connected = False

    def find(self, replica_id: str, source: str | None) -> Copy | None:
        """What a replica has of a source; without one, the only copy that it has.

        Copies that have left count only if all have. InvalidRequest if there are several.
        """
        if source is not None:
            return self.known.get((replica_id, source))
        found = [copy for copy in self.list() if copy.replica_id == replica_id]
        found = [copy for copy in found if copy.is_connected] or found
        if len(found) > 1:
            raise InvalidRequest(f"replica {replica_id!r} copies {len(found)} sources; name one as source")
        return found[0] if found else None

    def acknowledged(self, copy: Copy, offset: Offset) -> None:
        """It has everything below `offset`, as far as it was sent."""
        clock = self._broker.host.clock
        copy.acknowledged = max(copy.acknowledged, min(offset, copy.sent))
        copy.last_ack_ms = clock.wall_ms()
        copy.heard_at = clock.monotonic()

    def expects(self, copy: Copy) -> None:
        """From now on it has something to acknowledge."""
        copy.heard_at = self._broker.host.clock.monotonic()

    def is_silent(self, copy: Copy) -> bool:
        """Whether it has said nothing for too long."""
        seconds = self._broker.host.clock.monotonic() - copy.heard_at
        return seconds > self._broker.config.replication_stream_replica_timeout_secs

    def list(self) -> list[Copy]:
        """Those that are here, or were within the time that one is remembered."""
        timeout_ms = self._broker.config.replication_stream_replica_timeout_secs * 1000
        now_ms = self._broker.host.clock.wall_ms()
        for key, copy in list(self.known.items()):
            heard_ms = max(copy.last_ack_ms, copy.connected_at_ms)
            if not copy.is_connected and now_ms - heard_ms > timeout_ms:
                del self.known[key]
        return list(self.known.values())


# In a disk's thread.


def _digest(file: BinaryIO) -> tuple[int, str]:
    """How long a file is, and its hash."""
    digest = hashlib.sha256()
    size = 0
    while data := file.read(PIECE_BYTES):
        digest.update(data)
        size += len(data)
    return size, digest.hexdigest()


def _piece(file: BinaryIO, size: int, at: int) -> bytes:
    file.seek(at)
    return file.read(size)
