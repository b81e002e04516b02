"""Work that the leader of a partition does, whichever node was asked for it.

Rule 1: a piece of work is a value. The node that was asked sends it to whoever leads, over the link
        that the two have anyway, and tries again while nobody does.
Rule 2: work that may have been done is sent again only if doing it twice is as good as once
        (`is_repeatable`); otherwise its outcome is unknown, and whoever asked is told so.
Rule 3: once it is not known whether work was done, a refusal of the next try does not make it
        known: only an answer does that speaks for all tries (`is_settled_by`).
Rule 4: a refusal crosses by its code and its words; an outcome that is not known stays that.
Rule 5: metadata here may be old, or on its way from a topic that was deleted to one that was made
        anew. So it is asked for all that was decided before a topic is said to be missing.
Rule 6: work was sent to a partition because of how many there are. If there are more or fewer now,
        it may belong elsewhere, and is not tried again: whoever asked has to choose anew.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self, TypeVar, Union
from uuid import UUID

import msgspec

from tidelog.cluster.messages import Serve, ServeAnswer
from tidelog.controller.image import TopicImage
from tidelog.errors import (
    BrokerError,
    CoordinatorLoadInProgress,
    FencedLeaderEpoch,
    LeaderNotAvailable,
    NotLeader,
    OffsetNotAvailable,
    OutcomeUnknown,
    UnknownLeaderEpoch,
    UnknownTopicId,
    UnknownTopicOrPartition,
    error_of,
)
from tidelog.model import NO_NODE, NodeId, TopicPartition
from tidelog.partition.driver import Partition
from tidelog.peers.listener import Answer
from tidelog.peers.stream import PeerUnreachable
from tidelog.peers.wire import PeerRefused

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker

_log = logging.getLogger(__name__)

_PAUSE_SECONDS: Final = 0.02
_PAUSE_SECONDS_MAX: Final = 0.25
_TRAVEL_SECONDS: Final = 0.25
"""How much longer the asking node waits, so that the leader's own word of a timeout arrives."""
ELSEWHERE: Final = (
    NotLeader,
    LeaderNotAvailable,
    FencedLeaderEpoch,
    UnknownLeaderEpoch,
    UnknownTopicId,
    OffsetNotAvailable,
    CoordinatorLoadInProgress,
)
"""Nothing was done; another node, or this one in a moment, may do it."""


class _OtherPartitions(LeaderNotAvailable):
    """The topic has another number of partitions than when the work began."""


_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.decode


class Work(msgspec.Struct, frozen=True, kw_only=True, tag_field="work", tag=True, omit_defaults=True):
    """Something to do with one partition; the tag is the class's name."""

    is_read: ClassVar[bool] = False
    """Whether it changes nothing, so that nobody minds what became of an earlier try."""

    def is_settled_by(self, answer: Any) -> bool:
        """Whether an answer tells what became of earlier tries as well."""
        return True

    def repeated(self) -> Self:
        """The same work, for a try after one of which nobody knows whether it was done."""
        return self


T = TypeVar("T")
W = TypeVar("W", bound=Work)
A = TypeVar("A", bound=msgspec.Struct)

Server = Callable[[Partition, W, float], Awaitable[A]]
"""Does a piece of work with a partition of this node, until a moment of the monotonic clock."""


async def side_by_side(*works: Coroutine[Any, Any, T]) -> list[T]:
    """What all of them return, in order. A sole one, as most are, needs no task of its own."""
    return [await works[0]] if len(works) == 1 else await asyncio.gather(*works)


class Serving:
    """What this node does for others, and has others do for it."""

    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self._servers: dict[type[Work], Server[Any, Any]] = {}
        self._works: msgspec.msgpack.Decoder[Any] | None = None

    def offer(self, kind: type[W], serve: "Server[W, A]") -> None:
        """Let `serve` do the work of this kind; it checks itself that this node may."""
        self._servers[kind] = serve
        self._works = None

    def led_here(self, place: TopicPartition) -> Partition | None:
        """The partition, if this node leads it, as far as it knows."""
        broker = self._broker
        topic = broker.image.topics.get(place.topic)
        if topic is None or topic.partitions[place.partition].leader != broker.node_id:
            return None
        try:
            partition: Partition = broker.partition(topic.id, place.partition)
        except BrokerError:
            return None  # it is being opened
        return partition if partition.leader is not None else None

    # Asking.

    async def call(
        self,
        place: TopicPartition,
        work: Work,
        answer: type[A],
        *,
        seconds_max: float,
        is_repeatable: bool = False,
        node: NodeId | None = None,
    ) -> A:
        """The answer of the partition's leader, or of `node`; a refusal is raised.

        Tried until `seconds_max` have passed while nobody leads, and, if `is_repeatable`, while
        it is not known whether it was done.
        """
        clock = self._broker.host.clock
        deadline = clock.monotonic() + seconds_max
        known = self._broker.image.topics.get(place.topic)
        count = None if known is None else len(known.partitions)
        pause = _PAUSE_SECONDS
        unknown: OutcomeUnknown | None = None
        while True:
            try:
                topic = await self._topic(place, count, deadline)
                told = await self._try(topic, place, work, answer, deadline, node)
            except _OtherPartitions as error:
                raise unknown or error from None
            except ELSEWHERE as error:
                failure: BrokerError = error
            except OutcomeUnknown as error:
                if not is_repeatable:
                    raise
                failure = error
                unknown = None if work.is_read else error
                work = work.repeated()
            except BrokerError as error:
                if unknown is None:
                    raise
                raise unknown from error
            else:
                if unknown is None or work.is_settled_by(told):
                    return told
                raise unknown
            if clock.monotonic() + pause >= deadline:
                raise unknown or failure
            await self._news(pause)
            pause = min(2 * pause, _PAUSE_SECONDS_MAX)

    async def _topic(self, place: TopicPartition, count: int | None, deadline: float) -> TopicImage:
        """The topic that has the partition; UnknownTopicOrPartition if certainly none has."""
        broker = self._broker
        topic = broker.image.topics.get(place.topic)
        if topic is None or not 0 <= place.partition < len(topic.partitions):
            try:
                async with asyncio.timeout(max(deadline - broker.host.clock.monotonic(), 0.001)):
                    await broker.metadata.caught_up()
            except TimeoutError:
                raise LeaderNotAvailable(f"it is not known now whether {place} exists") from None
            topic = broker.image.topics.get(place.topic)
        if topic is not None and count not in (None, len(topic.partitions)):
            raise _OtherPartitions(
                f"{place.topic} had {count} partitions, and has {len(topic.partitions)} now; retry"
            )
        if topic is None or not 0 <= place.partition < len(topic.partitions):
            raise UnknownTopicOrPartition(place)
        return topic

    async def _try(
        self,
        topic: TopicImage,
        place: TopicPartition,
        work: Work,
        answer: type[A],
        deadline: float,
        node: NodeId | None,
    ) -> A:
        broker = self._broker
        target = topic.partitions[place.partition].leader if node is None else node
        if target == NO_NODE:
            raise LeaderNotAvailable(f"{place} has no leader now")
        if target == broker.node_id:
            return await self._serve(topic.id, place.partition, work, deadline)  # type: ignore[no-any-return]
        left = deadline - broker.host.clock.monotonic()
        asked = Serve(
            topic=topic.id.hex,
            partition=place.partition,
            seconds=max(left, 0.001),
            work=msgspec.Raw(_encode(work)),
        )
        try:
            told = await broker.member.hub.ask(
                target, asked, ServeAnswer, seconds_max=max(left, 0.001) + _TRAVEL_SECONDS
            )
        except (PeerUnreachable, PeerRefused) as error:
            raise OutcomeUnknown(f"node {target}, which leads {place}, did not answer") from error
        if told.code:
            if told.is_unknown:
                raise OutcomeUnknown(told.detail, **told.known)
            raise error_of(told.code, told.detail)
        return _decode(told.result, type=answer)

    async def _news(self, seconds: float) -> None:
        """Wait for the metadata to change, but not longer."""
        metadata = self._broker.metadata
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await metadata.reached(metadata.applied + 1)

    # Serving.

    async def _serve(self, topic: UUID, number: int, work: Work, deadline: float) -> Any:
        try:
            partition: Partition = self._broker.partition(topic, number)
        except (UnknownTopicOrPartition, UnknownTopicId) as error:
            # It is being opened, or whoever asks has not heard that another has the name.
            raise LeaderNotAvailable(f"{error}, or not yet") from None
        return await self._servers[type(work)](partition, work, deadline)

    def on_serve(self, source: NodeId, asked: Serve, place: Answer | None) -> None:
        """A peer has sent work."""
        assert place is not None, "work is answered"
        self._broker.spawn(self._do(asked, place))

    async def _do(self, asked: Serve, place: Answer) -> None:
        try:
            work = self._read(asked.work)
            deadline = self._broker.host.clock.monotonic() + asked.seconds
            result = await self._serve(UUID(asked.topic), asked.partition, work, deadline)
        except OutcomeUnknown as error:
            place.send(
                ServeAnswer(code=error.code, detail=str(error), is_unknown=True, known=dict(error.known))
            )
        except BrokerError as error:
            place.send(ServeAnswer(code=error.code, detail=str(error)))
        except (msgspec.MsgspecError, ValueError) as error:
            place.fail(f"this node does not know such work: {error}")
        except asyncio.CancelledError:
            place.fail("this node is stopping")
            raise
        except Exception:
            _log.exception("work that another node sent failed")
            place.fail("the work failed; see the node's log")
        else:
            place.send(ServeAnswer(result=msgspec.Raw(_encode(result))))

    def _read(self, work: msgspec.Raw) -> Work:
        if self._works is None:
            if not self._servers:
                raise LeaderNotAvailable("this node is not ready yet")
            self._works = msgspec.msgpack.Decoder(Union[tuple(self._servers)])  # noqa: UP007
        found: Work = self._works.decode(work)
        return found
