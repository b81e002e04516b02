"""Fetch: whole batches from where they lie, now or when there are enough.

Rule 1: nothing above the watermark (or the last stable offset) is ever shown to a client.
Rule 2: a request that finds too little is parked: it costs nothing until a watermark rises, its
        time is up or its client goes.
Rule 3: the first partition with data may return one batch of any size, so that no consumer is
        stuck behind a large one; beyond that every limit holds.
Rule 4: a consumer that says in which rack it stands may read from followers, up to the watermark
        that they know of. A leader sends it to an in-sync follower in that rack, if there is one
        that holds what is asked for (KIP-392).
Rule 5: no record is passed over because its disk is damaged. Who finds the batch that it asks for
        to be another makes the node look at the whole segment.
Rule 6: a partition is judged each time that it is looked at, also while a request is parked. What was
        allowed is allowed until a permission changes.
"""

import asyncio
import logging
from functools import partial
from typing import Any, Final, TypeAlias
from uuid import UUID

from tidelog.broker.broker import Broker
from tidelog.broker.cold_reads import suspect
from tidelog.broker.topics import name_of
from tidelog.errors import (
    BrokerError,
    InvalidRequest,
    NotLeader,
    OffsetNotAvailable,
    OffsetOutOfRange,
    StorageError,
)
from tidelog.host import Bytes, Disk
from tidelog.kafka.context import Reply
from tidelog.kafka.fetch_sessions import NO_SESSION, Interest, Key, Session, Sessions
from tidelog.kafka.permissions import NEEDS
from tidelog.log.aborted import AbortedIndex
from tidelog.log.reading import Read
from tidelog.model import NO_NODE, NodeId, Offset
from tidelog.partition.driver import Partition
from tidelog.partition.leader import Leader
from tidelog.records import batch_size_at, read_header
from tidelog.security.authorizer import Access, remember
from tidelog.security.permissions import Kind
from tidelog.wire.apis import Api
from tidelog.wire.entities import NO_ID, decode_request
from tidelog.wire.fetch import TOPIC_IDS_FROM, PartitionFetched, encode_response
from tidelog.wire.requests import Header

_log = logging.getLogger(__name__)

READ_COMMITTED = 1

_Found: TypeAlias = Bytes | BrokerError
_NOTHING: Final = Read((), 0, 0)


def handle_fetch(
    broker: Broker, sessions: Sessions, frame: bytearray, header: Header, access: Access, reply: Reply
) -> None:
    """Answer a consumer's fetch, or park it."""
    request: Any = decode_request(header.api_key, header.version, frame, header.body_at)
    version = header.version
    uses_ids = version >= TOPIC_IDS_FROM
    try:
        if _replica_id(request) >= 0:
            raise InvalidRequest("replicas fetch from the peers' listener, not from this one")
        session, incremental, interests = sessions.resolve(
            getattr(request, "session_id", NO_SESSION),
            getattr(request, "session_epoch", -1),
            _interests(request, uses_ids),
            _forgotten(request, uses_ids),
            uses_ids=uses_ids,
        )
    except BrokerError as error:
        reply.send(encode_response(version, error=error.code, session_id=NO_SESSION, topics=()))
        return
    _Fetch(broker, access, version, request, session, incremental, interests, reply).begin()


def _replica_id(request: Any) -> int:
    state = getattr(request, "replica_state", None)  # since version 15
    return int(state.replica_id if state is not None else request.replica_id)


def _interests(request: Any, uses_ids: bool) -> list[Interest]:
    return [
        Interest(
            ((topic.topic_id or NO_ID) if uses_ids else topic.topic, p.partition),
            p.fetch_offset,
            p.partition_max_bytes,
            getattr(p, "current_leader_epoch", -1),
        )
        for topic in request.topics
        for p in topic.partitions
    ]


def _forgotten(request: Any, uses_ids: bool) -> list[Key]:
    return [
        ((topic.topic_id or NO_ID) if uses_ids else topic.topic, number)
        for topic in getattr(request, "forgotten_topics_data", ())
        for number in topic.partitions
    ]


class _Fetch:
    """One request, from its first look at the logs to its answer."""

    def __init__(
        self,
        broker: Broker,
        access: Access,
        version: int,
        request: Any,
        session: Session | None,
        incremental: bool,
        interests: list[Interest],
        reply: Reply,
    ) -> None:
        self._broker = broker
        self._access = access
        self._version = version
        self._session = session
        self._incremental = incremental
        self._interests = interests
        self._reply = reply
        self._bytes_max = min(request.max_bytes, broker.config.fetch_max_bytes)
        self._bytes_min = min(request.min_bytes, self._bytes_max)
        self._wait_seconds = request.max_wait.total_seconds()
        self._committed_only = request.isolation_level == READ_COMMITTED
        self._fetched: list[tuple[Interest, PartitionFetched]] = []
        self._cold: list[tuple[PartitionFetched, Partition, Read]] = []
        self._aborted: list[tuple[Offset, PartitionFetched, AbortedIndex]] = []
        """What was aborted when a partition was looked at; while it is read, some may go."""
        self._watched: list[Partition] = []
        self._timer: asyncio.TimerHandle | None = None
        self._looking = False
        self._rack = getattr(request, "rack_id", "")
        self._is_sent_away = False

    def begin(self) -> None:
        if self._look() or self._wait_seconds <= 0:
            self._finish()
        else:
            self._park()

    def _look(self) -> bool:
        """Collect what there is; whether that is enough for an answer."""
        self._fetched.clear()
        self._cold.clear()
        self._aborted.clear()
        left = self._bytes_max
        size = 0
        enough = False
        for interest in self._interests:
            topic, number = interest.key
            fetched = PartitionFetched(number)
            self._fetched.append((interest, fetched))
            try:
                read = self._read(interest, topic, fetched, left, at_least_one=size == 0)
            except BrokerError as error:
                fetched.error = error.code
                enough = True
                continue
            if read.cold is None:
                fetched.buffers = read.buffers
                fetched.size = more = read.size
            else:
                self._cold.append((fetched, self._broker.partition(topic, number), read))
                more = max(read.cold.bytes_max, 1)  # it finds a batch, however absurd the limit is
                enough = True
            size += more
            left -= more
        return enough or size >= self._bytes_min or self._is_sent_away

    def _read(
        self,
        interest: Interest,
        topic: str | UUID,
        fetched: PartitionFetched,
        left: int,
        *,
        at_least_one: bool,
    ) -> Read:
        if self._access.is_judged and topic not in self._access.answers().readable:
            self._judge(topic)
        partition = self._broker.partition(topic, fetched.index)
        log = partition.log
        end = partition.readable_end(interest.epoch, followers_too=bool(self._rack))
        if end is None:
            return _NOTHING
        leader, is_beyond = partition.leader, interest.offset > log.end
        if leader is None:
            if is_beyond:  # the leader has more
                raise OffsetNotAvailable(f"this follower ends at {log.end}")
        elif is_beyond and len(leader.replicas) > 1 and not partition.has_lease():
            raise NotLeader(leader=None)  # whoever leads by now may have more
        elif self._rack and (nearer := self._nearer(leader, interest.offset)) is not None:
            fetched.preferred_replica = nearer
        fetched.high_watermark = end
        fetched.last_stable_offset = partition.last_stable_offset
        fetched.log_start = log.start
        if fetched.preferred_replica != NO_NODE:
            self._is_sent_away = True
            return _NOTHING
        limit = fetched.high_watermark
        if self._committed_only:
            limit = fetched.last_stable_offset
            fetched.aborted = ()
            if aborted := log.transactions.aborted:
                self._aborted.append((interest.offset, fetched, aborted.snapshot()))
        bytes_max = min(interest.bytes_max, left)
        if bytes_max <= 0 and not at_least_one:
            return _NOTHING
        return partition.read(interest.offset, bytes_max, limit, at_least_one=at_least_one)

    def _judge(self, topic: str | UUID) -> None:
        """Let the client read the topic, or raise the error that it gets."""
        self._access.require(NEEDS[Api.FETCH][Kind.TOPIC], Kind.TOPIC, name_of(self._broker, topic))
        remember(self._access.answers().readable, topic)

    def _nearer(self, leader: Leader, offset: Offset) -> NodeId | None:
        """A follower in the consumer's rack that holds `offset`, unless the leader stands there."""
        brokers = self._broker.image.brokers
        there = [
            node
            for node in leader.replicas
            if node in leader.in_sync
            and (known := brokers.get(node)) is not None
            and known.rack == self._rack
            and not known.fenced
        ]
        if leader.me in there:
            return None
        return next((n for n in there if leader.followers[n].offset >= offset), None)

    # Parking.

    def _park(self) -> None:
        for interest, _ in self._fetched:
            try:
                partition = self._broker.partition(*interest.key)
            except BrokerError:
                continue
            partition.watch(self._poke)
            self._watched.append(partition)
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._wait_seconds, self._time_is_up)
        self._reply.on_gone(self._unpark)

    def _poke(self) -> None:
        """A watermark has risen. Look once at the end of this turn, however many have."""
        if not self._looking:
            self._looking = True
            asyncio.get_running_loop().call_soon(self._look_again)

    def _look_again(self) -> None:
        self._looking = False
        if self._timer is not None and self._look():
            self._unpark()
            self._finish()

    def _time_is_up(self) -> None:
        self._unpark()
        self._look()
        self._finish()

    def _unpark(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for partition in self._watched:
            partition.unwatch(self._poke)
        self._watched.clear()

    # Answering.

    def _finish(self) -> None:
        if not self._cold:
            self._answer()
            return
        reads = [read for _, _, read in self._cold]
        work = partial(_load_all, self._broker.host.disk, reads)
        self._broker.host.offload.run(work).add_done_callback(self._warm)

    def _warm(self, future: "asyncio.Future[list[_Found]]") -> None:
        if future.cancelled():
            return
        if (error := future.exception()) is not None:
            self._reply.refuse(f"reading from disk failed: {error}")
            return
        for (fetched, partition, read), data in zip(self._cold, future.result(), strict=True):
            if isinstance(data, OffsetNotAvailable):
                fetched.error = OffsetOutOfRange.code  # its segment was deleted meanwhile
            elif isinstance(data, BrokerError):
                _log.warning("%s: %s", partition.name, data)
                fetched.error = data.code
                assert read.cold is not None, "memory does not rot"
                suspect(self._broker, partition, read.cold.offset)
            elif data:
                fetched.buffers, fetched.size = (data,), len(data)
        self._answer()

    def _answer(self) -> None:
        for offset, fetched, aborted in self._aborted:
            if fetched.size:  # however many there are further on
                fetched.aborted = aborted.find(offset, _end_of(fetched.buffers[-1]))
        topics: dict[str | UUID, list[PartitionFetched]] = {}
        for interest, fetched in self._fetched:
            if self._incremental and not self._is_news(interest, fetched):
                continue
            interest.told_watermark = fetched.high_watermark
            interest.told_log_start = fetched.log_start
            interest.told_stable = fetched.last_stable_offset
            topics.setdefault(interest.key[0], []).append(fetched)
            if fetched.size and self._session is not None:
                self._session.serve_later(interest)
        session_id = self._session.id if self._session is not None else NO_SESSION
        self._reply.send(
            encode_response(self._version, error=0, session_id=session_id, topics=list(topics.items()))
        )

    @staticmethod
    def _is_news(interest: Interest, fetched: PartitionFetched) -> bool:
        return bool(
            fetched.size
            or fetched.error
            or fetched.preferred_replica != NO_NODE
            or fetched.high_watermark != interest.told_watermark
            or fetched.last_stable_offset != interest.told_stable
            or fetched.log_start != interest.told_log_start
        )


def _end_of(batches: Bytes) -> Offset:
    """Where the last of these batches ends."""
    at, size = 0, len(batches)
    while more := batch_size_at(batches, at, size):
        if at + more >= size:
            break
        at += more
    return read_header(batches, at).next_offset


def _load_all(disk: Disk, reads: list[Read]) -> list[_Found]:
    """Read from the files: batches, or why there are none."""
    found: list[_Found] = []
    for read in reads:
        try:
            found.append(read.load(disk))
        except (OffsetNotAvailable, StorageError) as error:
            found.append(error)
    return found
