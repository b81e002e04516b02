"""The ends of transactions: sent by coordinators, written by the leaders of partitions.

Rule 1: a decided transaction is ended everywhere: a marker is sent until it stands, whoever leads
        by then, or until its partition is no more.
Rule 2: a transaction over many partitions costs as many requests as brokers lead them, and one
        partition that cannot be written to holds up no other for long.
Rule 3: to forget a marker leaves a transaction open for ever; to write one that was held up on its
        way may end the next transaction, if that has the same epoch. So who wrote a marker
        remembers its number, and writes none that is not higher.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple
from weakref import WeakKeyDictionary

from tidelog.broker.broker import Broker
from tidelog.broker.outboxes import Outboxes
from tidelog.cluster.messages import Place, TransactionEnd, WriteMarkers, WriteMarkersAnswer
from tidelog.errors import BrokerError, InvalidProducerEpoch, TransactionCoordinatorFenced
from tidelog.log.log import Log
from tidelog.model import NO_NODE, OFFSETS_TOPIC, Epoch, NodeId, Offset, ProducerId, TopicPartition
from tidelog.partition.driver import Partition
from tidelog.peers.listener import Answer
from tidelog.peers.stream import PeerUnreachable
from tidelog.peers.wire import PeerRefused
from tidelog.records import Marker

_log = logging.getLogger(__name__)

_RETRY_SECONDS: Final = 0.05
_ASK_SECONDS_MAX: Final = 5.0
_WRITE_SECONDS_MAX: Final = 2.0
"""So long a marker is awaited here. Others of its request are answered with it, and it is asked for
again."""
_REMEMBERED_MAX: Final = 10_000
"""Producers of a partition whose newest marker is known; one is held up for seconds at most."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Ending:
    """A decided transaction whose markers are on their way."""

    transactional_id: str
    producer_id: ProducerId
    epoch: int
    commits: bool
    is_bumped: bool
    coordinator_epoch: Epoch
    number: int
    is_wanted: Callable[[], bool]
    """Whether it still is for this coordinator to end it."""
    marked: Callable[[tuple[TopicPartition, ...]], None]
    """Told where the marker stands, or need not stand any more."""


class MarkerSender:
    """Markers that this node's coordinator sends."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._outboxes: Outboxes[tuple[Ending, TopicPartition]] = Outboxes(broker, self._ask)

    def send(self, ending: Ending, places: tuple[TopicPartition, ...]) -> None:
        """Send the marker to all `places`, until it stands in each."""
        gone = []
        for place in places:
            leader = self._leader_of(place)
            if leader is None:
                gone.append(place)
            elif leader == NO_NODE:
                self._retry(ending, place)
            else:
                self._outboxes.put(leader, (ending, place))
        if gone:
            ending.marked(tuple(gone))

    def _leader_of(self, place: TopicPartition) -> NodeId | None:
        """Who leads the place; NO_NODE while nobody does, None if it is no more."""
        topic = self._broker.image.topics.get(place.topic)
        if topic is None or place.partition >= len(topic.partitions):
            return None
        return topic.partitions[place.partition].leader

    async def _ask(self, node: NodeId, waiting: list[tuple[Ending, TopicPartition]]) -> None:
        by_ending: dict[Ending, list[TopicPartition]] = {}
        for ending, place in waiting:
            if ending.is_wanted():
                by_ending.setdefault(ending, []).append(place)
        if not by_ending:
            return
        request = WriteMarkers(
            ends=tuple(
                TransactionEnd(
                    ending.producer_id,
                    ending.epoch,
                    ending.commits,
                    ending.is_bumped,
                    ending.coordinator_epoch,
                    ending.number,
                    tuple(Place(place.topic, place.partition) for place in places),
                )
                for ending, places in by_ending.items()
            )
        )
        try:
            answer = await self._broker.member.hub.ask(
                node, request, WriteMarkersAnswer, seconds_max=_ASK_SECONDS_MAX
            )
        except (PeerUnreachable, PeerRefused) as error:
            _log.debug("node %d does not write markers: %s", node, error)
            for ending, places in by_ending.items():
                for place in places:
                    self._retry(ending, place)
            return
        for (ending, places), codes in zip(by_ending.items(), answer.codes, strict=True):
            self._heard(ending, places, codes)

    def _heard(self, ending: Ending, places: list[TopicPartition], codes: tuple[int, ...]) -> None:
        standing = []
        for place, code in zip(places, codes, strict=True):
            # A greater epoch there means that the marker stands, or that a later one does.
            if code in (0, InvalidProducerEpoch.code):
                standing.append(place)
            elif code != TransactionCoordinatorFenced.code:  # else another node sees to it
                self._retry(ending, place)
        if standing and ending.is_wanted():
            ending.marked(tuple(standing))

    def _retry(self, ending: Ending, place: TopicPartition) -> None:
        wait = _RETRY_SECONDS * (0.5 + self._broker.host.random.random())
        asyncio.get_running_loop().call_later(wait, self._again, ending, place)

    def _again(self, ending: Ending, place: TopicPartition) -> None:
        if ending.is_wanted():
            self.send(ending, (place,))


class MarkerWriter:
    """Markers that others send, and this node's partitions get."""

    def __init__(
        self,
        broker: Broker,
        *,
        on_end: Callable[[Partition, ProducerId, int], None],
        on_offsets: Callable[[int, ProducerId, bool, Offset], None],
    ) -> None:
        """`on_end` is called when a transaction ends in a partition, with the first epoch that has
        not ended; `on_offsets` once that is committed in one of `__consumer_offsets`, with its
        number and the marker's offset."""
        self._broker = broker
        self._on_end = on_end
        self._on_offsets = on_offsets
        self._newest: WeakKeyDictionary[Log, dict[ProducerId, _Newest]] = WeakKeyDictionary()
        """By the log in memory: one that is opened again may have lost what was not committed."""

    def on_write_markers(self, source: NodeId, asked: WriteMarkers, answer: Answer | None) -> None:
        assert answer is not None
        work = _Work(asked, answer)
        for at, end in enumerate(asked.ends):
            marker = Marker(commits=end.commits, coordinator_epoch=end.coordinator_epoch)
            for number, place in enumerate(end.places):
                self._write(end, marker, place, partial(work.settled, at, number))
        work.begun()

    def _write(
        self, end: TransactionEnd, marker: Marker, place: Place, settled: Callable[[BrokerError | None], None]
    ) -> None:
        waiter = _Written(settled, self._broker.host.clock.monotonic() + _WRITE_SECONDS_MAX)
        try:
            partition = self._broker.partition(place.topic, place.partition)
            newest = self._known(partition, end)
            if newest is not None:
                done = partition.appender.wait_committed(newest.offset + 1, waiter)
            else:
                offset, done = partition.appender.append_marker(
                    marker,
                    producer_id=end.producer_id,
                    producer_epoch=end.epoch,
                    is_bumped=end.is_bumped,
                    waiter=waiter,
                )
                newest = self._remember(partition, end, offset)
                self._on_end(partition, end.producer_id, end.epoch + (not end.is_bumped))
        except BrokerError as error:
            settled(error)
            return
        if place.topic == OFFSETS_TOPIC:
            # Whoever was to tell it before may have been refused, though the marker stands.
            waiter.then = partial(
                self._on_offsets, place.partition, end.producer_id, newest.commits, newest.offset
            )
        if done:
            waiter.settled(None)

    async def abort(
        self, partition: Partition, producer_id: ProducerId, epoch: int, coordinator_epoch: Epoch
    ) -> None:
        """End what a producer has open here, in this very turn, and wait until that is committed.

        Only for orphans: `orphans.py` knows whether it is one.
        """
        place = partition.name
        done: asyncio.Future[BrokerError | None] = asyncio.get_running_loop().create_future()
        deadline = self._broker.host.clock.monotonic() + _WRITE_SECONDS_MAX

        def settled(error: BrokerError | None) -> None:
            if not done.done():  # whoever asked may have gone
                done.set_result(error)

        waiter = _Written(settled, deadline)
        offset, is_committed = partition.appender.append_marker(
            Marker(commits=False, coordinator_epoch=coordinator_epoch),
            producer_id=producer_id,
            producer_epoch=epoch,
            is_bumped=False,
            waiter=waiter,
        )
        self._on_end(partition, producer_id, epoch + 1)
        if place.topic == OFFSETS_TOPIC:
            waiter.then = partial(self._on_offsets, place.partition, producer_id, False, offset)
        if is_committed:
            waiter.settled(None)
        if (error := await done) is not None:
            raise error

    def _known(self, partition: Partition, end: TransactionEnd) -> "_Newest | None":
        """The marker that was written for this end, or for a later one of the same producer."""
        known = self._newest.get(partition.log, {}).get(end.producer_id)
        is_here = known is not None and known.leader_epoch == partition.leading().epoch
        is_old = known is not None and (end.coordinator_epoch, end.number) <= known.numbers
        return known if is_here and is_old else None

    def _remember(self, partition: Partition, end: TransactionEnd, offset: Offset) -> "_Newest":
        known = self._newest.setdefault(partition.log, {})
        known.pop(end.producer_id, None)
        newest = known[end.producer_id] = _Newest(
            (end.coordinator_epoch, end.number), partition.leading().epoch, offset, end.commits
        )
        if len(known) > _REMEMBERED_MAX:
            del known[next(iter(known))]
        return newest


class _Newest(NamedTuple):
    """The newest marker of a producer in a partition."""

    numbers: tuple[Epoch, int]
    leader_epoch: Epoch
    offset: Offset
    commits: bool


class _Written:
    """Awaits one marker."""

    __slots__ = ("_settled", "deadline", "then")

    def __init__(self, settled: Callable[[BrokerError | None], None], deadline: float) -> None:
        self._settled = settled
        self.deadline = deadline
        self.then: Callable[[], None] | None = None

    def settled(self, error: BrokerError | None) -> None:
        if error is None and self.then is not None:
            self.then()
        self._settled(error)


class _Work:
    """A request whose markers are on their way to the disks."""

    def __init__(self, asked: WriteMarkers, answer: Answer) -> None:
        self._answer = answer
        self._codes = [[0] * len(end.places) for end in asked.ends]
        self._left = 1 + sum(len(end.places) for end in asked.ends)

    def settled(self, at: int, number: int, error: BrokerError | None) -> None:
        self._codes[at][number] = 0 if error is None else error.code
        self.begun()

    def begun(self) -> None:
        """One less to wait for."""
        self._left -= 1
        if self._left == 0:
            self._answer.send(WriteMarkersAnswer(codes=tuple(map(tuple, self._codes))))
