"""Performs verbs: checks who asks, finds the node that can do it, and has it done there.

Rule 1: every verb of every face passes `perform`, once, at the node that was asked. A verb that a
        peer sends was checked there.
Rule 2: a refusal that another node, or this one in a moment, may not give is no answer: the verb is
        tried again for `PATIENCE_SECONDS`. A verb can be repeated: done twice is as good as once.
Rule 3: metadata here may be old. Before something is said to be missing, this node catches up.
Rule 4: what another node has done is told once this node has acted on all metadata that the
        other had acted on: what is shown next has it. And the other does it once it has acted on all
        that this node knows, such as a topic that was just made.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from copy import copy
from typing import Any, Final, TypeVar

import msgspec

from tidelog.broker.broker import Broker
from tidelog.cluster.messages import Perform, Performed
from tidelog.coordinators.groups import GroupCoordinator
from tidelog.coordinators.transactions import TransactionCoordinator
from tidelog.errors import (
    BrokerError,
    BrokerIdNotRegistered,
    ConcurrentTransactions,
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    InvalidRequest,
    LeaderNotAvailable,
    NotController,
    NotCoordinator,
    NotLeader,
    OutcomeUnknown,
    StorageError,
    UnknownTopicOrPartition,
    error_of,
)
from tidelog.kafka.requests import Requests
from tidelog.kafka.transactions import TransactionApis
from tidelog.model import NodeId, Offset
from tidelog.operators.table import VERBS
from tidelog.operators.verbs import Permission, Verb
from tidelog.peers.listener import Answer
from tidelog.peers.stream import PeerUnreachable
from tidelog.peers.wire import PeerRefused
from tidelog.raft.changes import VotersNotSettled
from tidelog.security.authorizer import Access
from tidelog.security.permissions import Kind

T = TypeVar("T")

_log = logging.getLogger(__name__)

PATIENCE_SECONDS: Final = 10.0
"""An election takes a second or two; what has no leader for longer will not get one soon."""
CATCH_UP_SECONDS: Final = 1.0
_PAUSE_SECONDS: Final = 0.02
_PAUSE_SECONDS_MAX: Final = 0.5
_ELSEWHERE: Final = (
    ConcurrentTransactions,
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    LeaderNotAvailable,
    NotController,
    NotCoordinator,
    NotLeader,
    VotersNotSettled,
)
"""Nothing was done; another node, or this one in a moment, may do it."""

_encode: Final = msgspec.msgpack.Encoder().encode


class Desk:
    """Where one node takes verbs, from its faces and from other nodes."""

    def __init__(self, broker: Broker, verbs: Mapping[str, Verb] = VERBS) -> None:
        self.broker = broker
        self.coordinator: GroupCoordinator
        """Of groups; it and the others are there once all verbs are performed."""
        self.transactions: TransactionCoordinator
        self.producers: TransactionApis
        self.access: Access | None = None
        """What the sender of the verb that is being performed may do; None for a part of one, which
        another node asks for: that was judged there."""
        self._verbs = verbs

    def open(self, requests: Requests) -> None:
        """Perform all verbs, for other nodes, too; before, only those that need no cluster."""
        self.coordinator, self.transactions = requests.coordinator, requests.transactions
        self.producers = requests.producers
        self.broker.on_perform = self._on_perform

    # Asking.

    async def perform(self, name: str, asked: msgspec.Struct, *, access: Access) -> Any:
        """What the verb answers to who has that access; an error of the broker is raised."""
        verb = self._offered(name)
        for needed in verb.permissions:
            needed.require(access, asked)
        desk = copy(self)
        desk.access = access
        return await desk.call(verb, asked)

    def shows(self, needed: Permission, name: str) -> bool:
        """Whether a list may show the thing of that name to who asks."""
        access = self.access
        if access is None or (needed.or_cluster and access.may(needed.operation, Kind.CLUSTER)):
            return True
        return access.may(needed.operation, needed.kind, name)

    async def perform_json(self, name: str, asked: bytes, access: Access) -> bytes:
        """The same, for who speaks JSON."""
        verb = self._offered(name)
        try:
            parameters = msgspec.json.decode(asked, type=verb.asks)
            given = msgspec.json.decode(asked, type=dict[str, msgspec.Raw])
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise InvalidRequest(f"{name}: {error}") from None
        known = verb.asks.__struct_encode_fields__
        for other in given.keys() - set(known):  # a parameter that is misspelt must not be ignored
            raise InvalidRequest(f"{name} takes no {other!r}; it takes {', '.join(known) or 'nothing'}")
        return msgspec.json.encode(await self.perform(name, parameters, access=access))

    def _offered(self, name: str) -> Verb:
        """The row of a verb that operators may ask for."""
        verb = self.verb(name)
        if verb.is_internal:
            raise InvalidRequest(f"{name} is a part of other verbs, and nodes alone ask for it")
        return verb

    def verb(self, name: str) -> Verb:
        """The row of that name; InvalidRequest if there is none."""
        found = self._verbs.get(name)
        if found is None:
            raise InvalidRequest(f"there is no verb {name!r}; this node has {', '.join(self._verbs)}")
        return found

    async def call(self, verb: Verb, asked: msgspec.Struct, *, node: NodeId | None = None) -> Any:
        """What the verb answers, done by `node` or by the node that can; nobody is checked."""

        async def attempt(deadline: float) -> Any:
            target = node
            if target is None and verb.where is not None:
                target = verb.where(self.broker, asked)
            if target is None:
                return await verb.do(self, asked)
            return await self.send(target, verb, asked, deadline)

        return await self.patiently(attempt)

    async def ask(self, name: str, asked: msgspec.Struct, *, node: NodeId | None = None) -> Any:
        """Have another verb done, as part of one; nobody is checked."""
        return await self.call(self.verb(name), asked, node=node)

    async def ask_all(self, name: str, asked: msgspec.Struct, *, of: str | None = None) -> list[Any]:
        """What every broker that is there answers. `of` is a topic that coordinators keep: the answers,
        which say what they `served`, have to be of all its partitions."""
        verb = self.verb(name)

        async def attempt(deadline: float) -> list[Any]:
            brokers = self.broker.image.brokers  # looked at each time: a broker that died is fenced soon
            there = [node for node, known in brokers.items() if not known.fenced]
            answers = await asyncio.gather(*(self.send(node, verb, asked, deadline) for node in there))
            if of is not None and (topic := self.broker.image.topics.get(of)) is not None:
                missing = set(range(len(topic.partitions))).difference(*(one.served for one in answers))
                if missing:
                    raise CoordinatorNotAvailable(
                        f"{of}-{min(missing)} has no leader now, so its content is not known"
                    )
            return answers

        return await self.patiently(attempt)

    async def patiently(self, attempt: Callable[[float], Awaitable[T]]) -> T:
        """What an attempt comes to, repeated while that may help, until its deadline."""
        clock = self.broker.host.clock
        deadline, pause = clock.monotonic() + PATIENCE_SECONDS, _PAUSE_SECONDS
        is_newest = False
        while True:
            try:
                return await attempt(deadline)
            except (UnknownTopicOrPartition, BrokerIdNotRegistered) as error:
                if is_newest:
                    raise
                if is_newest := await self._catches_up():
                    continue
                failure: BrokerError = LeaderNotAvailable(f"{error}, as far as is known without a quorum")
            except _ELSEWHERE as error:
                failure = error
            if clock.monotonic() + _PAUSE_SECONDS_MAX >= deadline:  # else nested patience adds up
                raise failure
            await self._news(pause)
            pause = min(2 * pause, _PAUSE_SECONDS_MAX)

    async def send(self, node: NodeId, verb: Verb, asked: msgspec.Struct, deadline: float) -> Any:
        """What the verb answers, done by that node, once."""
        if node == self.broker.node_id:
            return await verb.do(self, asked)
        seconds_max = max(deadline - self.broker.host.clock.monotonic(), 0.001)
        try:
            encoded = msgspec.Raw(_encode(asked))
        except OverflowError as error:
            raise InvalidRequest(f"{verb.name}: {error}") from None
        message = Perform(verb=verb.name, asked=encoded, applied=self.broker.metadata.applied)
        try:
            told = await self.broker.member.hub.ask(node, message, Performed, seconds_max=seconds_max)
        except (PeerUnreachable, PeerRefused) as error:
            raise LeaderNotAvailable(
                f"node {node}, which has to do this, does not answer: {error}"
            ) from error
        if told.code:
            if told.is_unknown:
                raise OutcomeUnknown(told.detail)
            raise error_of(told.code, told.detail)
        await self._act_on(told.acted_on)
        return msgspec.msgpack.decode(told.answer, type=verb.answers)

    async def _act_on(self, offset: Offset) -> None:
        """Act on all metadata below `offset`, if it comes soon."""
        with suppress(TimeoutError, StorageError):  # what this node's disk refuses is no verb's concern
            async with asyncio.timeout(CATCH_UP_SECONDS):
                await self.broker.metadata.reached(offset)
                await self.broker.acted()

    async def _catches_up(self) -> bool:
        """Whether the metadata here is as new as any, now."""
        try:
            async with asyncio.timeout(CATCH_UP_SECONDS):
                await self.broker.metadata.caught_up()
        except TimeoutError:
            return False
        return True

    async def _news(self, seconds: float) -> None:
        """Wait for the metadata to change, but not longer."""
        metadata = self.broker.metadata
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await metadata.reached(metadata.applied + 1)

    # Doing it for others.

    def _on_perform(self, source: NodeId, message: Perform, place: Answer | None) -> None:
        assert place is not None, "a verb is answered"
        self.broker.spawn(self._do(message, place))

    async def _do(self, message: Perform, place: Answer) -> None:
        try:
            verb = self.verb(message.verb)
            asked = msgspec.msgpack.decode(message.asked, type=verb.asks)
            await self._act_on(message.applied)
            done = Performed(answer=msgspec.Raw(_encode(await verb.do(self, asked))))
        except BrokerError as error:
            is_unknown = isinstance(error, OutcomeUnknown)
            done = Performed(code=error.code, detail=str(error), is_unknown=is_unknown)
        except (msgspec.MsgspecError, ValueError) as error:
            place.fail(f"this node does not know such a verb: {error}")
            return
        except asyncio.CancelledError:
            place.fail("this node is stopping")
            raise
        except Exception:
            _log.exception("%s, which another node asked for, failed", message.verb)
            place.fail("the verb failed; see the node's log")
            return
        place.send(msgspec.structs.replace(done, acted_on=self.broker.acted_on))
