"""No batch of a transaction is taken before its coordinator has the partition in it (KIP-890).

Rule 1: a batch that no marker will end would keep readers waiting for ever. So the first one of a
        transaction in a partition waits until the coordinator has confirmed, or added, it.
Rule 2: what comes from the same producer in the same epoch meanwhile waits behind it, in order.
Rule 3: a marker that arrives meanwhile ends what was asked about: then the batch is refused. So it
        is if another node has led meanwhile, who may have written such a marker.
Rule 4: whoever waits is told: by the coordinator's answer, when it is late, or when the node stops.
Rule 5: what is refused for a moment comes again. Until then nothing that its producer sent after it
        is taken, where the log knows nothing of the producer and so would take anything.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias, TypeVar

from tidelog.broker.broker import Broker
from tidelog.broker.outboxes import Outboxes
from tidelog.cluster.messages import AddToTransactions, AddToTransactionsAnswer, Place, PlacesToAdd
from tidelog.errors import (
    BrokerError,
    ConcurrentTransactions,
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    InvalidTransactionState,
    NotCoordinator,
    NotEnoughReplicas,
    NotLeader,
    OutOfOrderSequence,
    StorageError,
    error_of,
)
from tidelog.model import NO_OFFSET, NodeId, ProducerId, TopicPartition
from tidelog.partition.driver import Partition
from tidelog.peers.stream import PeerUnreachable
from tidelog.peers.wire import PeerRefused

_log = logging.getLogger(__name__)

_ASK_SECONDS_MAX: Final = 5.0
_AGAIN_SECONDS: Final = 30.0
"""For so long what was refused is waited for; a producer that has given up goes on by then."""
_REFUSED_MAX: Final = 10_000

T = TypeVar("T")
Then: TypeAlias = Callable[[BrokerError | None], None]


class Wanted(NamedTuple):
    """Who writes in which transaction."""

    transactional_id: str
    producer_id: ProducerId
    epoch: int
    adds: bool
    """The partition joins with this very batch (KIP-890, part 2)."""
    sequence: int = 0
    """Of the batch's first record."""


class _Key(NamedTuple):
    place: TopicPartition
    producer_id: ProducerId


class _Refused(NamedTuple):
    """The first batch of a producer that has to come again."""

    epoch: int
    sequence: int
    until: float


@dataclass(slots=True, eq=False)
class _Question:
    """A partition that a coordinator is asked about, and who waits for its answer."""

    wanted: Wanted
    place: TopicPartition
    waiting: list[Then] = field(default_factory=list)
    is_spoilt: bool = False


class Verification:
    """What this node's leaders ask coordinators."""

    def __init__(self, broker: Broker, coordinator_of: Callable[[str], NodeId]) -> None:
        """`coordinator_of` is the node that coordinates a transactional id, or raises why none."""
        self._broker = broker
        self._coordinator_of = coordinator_of
        self._open: dict[_Key, dict[int, _Question]] = {}
        """What is asked now, by the epoch of the producer."""
        self._refused: dict[_Key, _Refused] = {}
        self._outboxes: Outboxes[_Question] = Outboxes(broker, self._ask)
        broker.on_stop(self.stop)

    def needs(self, partition: Partition, wanted: Wanted) -> bool:
        """Whether a batch has to wait: nothing of its transaction is known to be here.

        NotLeader if this node does not lead the partition.
        """
        partition.leading()
        producers = partition.log.producers
        state = producers.get(wanted.producer_id)
        is_open = producers.transaction_start(wanted.producer_id) != NO_OFFSET
        if state is None or state.epoch != wanted.epoch or not is_open:
            return True
        return wanted.epoch in self._open.get(_Key(partition.name, wanted.producer_id), ())

    def ask(self, partition: Partition, wanted: Wanted, then: Then) -> None:
        """Call `then` when the coordinator has answered, after those who asked before."""
        leader = partition.leader
        key = _Key(partition.name, wanted.producer_id)

        def told(error: BrokerError | None) -> None:
            if error is None and partition.leader is not leader:
                error = NotLeader(leader=None)
            is_new = partition.log.producers.get(wanted.producer_id) is None
            if error is None and is_new and (first := self._first(key, wanted)) < wanted.sequence:
                error = OutOfOrderSequence(
                    producer_id=wanted.producer_id, expected=first, received=wanted.sequence
                )
            elif error is None:
                self._refused.pop(key, None)
            elif error.retriable:
                self._note_refused(key, wanted)
            then(error)

        self._ask_about(partition.name, wanted, told)

    def _first(self, key: _Key, wanted: Wanted) -> int:
        """The first sequence that may come from a producer of whom the log knows nothing."""
        if wanted.adds:
            return 0  # every transaction has an epoch, which begins there
        refused = self._refused.get(key)
        if refused is None or refused.epoch != wanted.epoch:
            return wanted.sequence
        is_awaited = self._broker.host.clock.monotonic() < refused.until
        return refused.sequence if is_awaited else wanted.sequence

    def _note_refused(self, key: _Key, wanted: Wanted) -> None:
        until = self._broker.host.clock.monotonic() + _AGAIN_SECONDS
        known = self._refused.pop(key, None)
        sequence = wanted.sequence
        if known is not None and known.epoch == wanted.epoch:
            sequence = min(sequence, known.sequence)
        self._refused[key] = _Refused(wanted.epoch, sequence, until)
        if len(self._refused) > _REFUSED_MAX:
            del self._refused[next(iter(self._refused))]

    async def confirm(
        self,
        transactional_id: str,
        producer_id: ProducerId,
        epoch: int,
        place: TopicPartition,
        *,
        implicit: bool,
        then: Callable[[], T],
    ) -> T:
        """Call `then` as soon as `place` is known to be in the transaction, and no later: before
        any marker can end it. What it returns, or why `place` is not in it."""
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        def told(error: BrokerError | None) -> None:
            if answer.done():
                return  # nobody waits any more
            try:
                if error is not None:
                    raise error
                answer.set_result(then())
            except Exception as refused:
                answer.set_exception(refused)

        self._ask_about(place, Wanted(transactional_id, producer_id, epoch, implicit), told)
        return await answer

    def _ask_about(self, place: TopicPartition, wanted: Wanted, then: Then) -> None:
        questions = self._open.setdefault(_Key(place, wanted.producer_id), {})
        if (question := questions.get(wanted.epoch)) is not None:
            question.waiting.append(then)
            return
        question = questions[wanted.epoch] = _Question(wanted, place, [then])
        try:
            node = self._coordinator_of(wanted.transactional_id)
        except BrokerError as error:
            self._settle(question, _as_produced(error.code))
            return
        self._outboxes.put(node, question)

    def spoil(self, partition: Partition, producer_id: ProducerId, epoch: int) -> None:
        """The transaction of a producer has ended here, if it is of an epoch below `epoch`."""
        self._refused.pop(_Key(partition.name, producer_id), None)
        for question in self._open.get(_Key(partition.name, producer_id), {}).values():
            if question.wanted.epoch < epoch:
                question.is_spoilt = True

    def stop(self) -> None:
        """Ask nothing more: whoever waits is told."""
        for question in [q for questions in self._open.values() for q in questions.values()]:
            self._settle(question, StorageError("the node is stopping"))

    async def _ask(self, node: NodeId, questions: list[_Question]) -> None:
        request = AddToTransactions(
            transactions=tuple(
                PlacesToAdd(
                    q.wanted.transactional_id,
                    q.wanted.producer_id,
                    q.wanted.epoch,
                    (Place(q.place.topic, q.place.partition),),
                    q.wanted.adds,
                )
                for q in questions
            )
        )
        codes: tuple[tuple[int, ...], ...]
        try:
            answer = await self._broker.member.hub.ask(
                node, request, AddToTransactionsAnswer, seconds_max=_ASK_SECONDS_MAX
            )
            codes = answer.codes
        except (PeerUnreachable, PeerRefused) as error:
            _log.debug("node %d does not answer for its transactions: %s", node, error)
            codes = ((CoordinatorNotAvailable.code,),) * len(questions)
        for question, (code,) in zip(questions, codes, strict=True):
            self._answered(question, code)

    def _answered(self, question: _Question, code: int) -> None:
        error: BrokerError | None = None
        if code:
            error = _as_produced(code)
        elif question.is_spoilt:
            error = InvalidTransactionState("the transaction has ended meanwhile")
        self._settle(question, error)

    def _settle(self, question: _Question, error: BrokerError | None) -> None:
        """Tell everyone who waits, in order; whoever comes from now on asks anew."""
        key = _Key(question.place, question.wanted.producer_id)
        questions = self._open.get(key, {})
        if questions.get(question.wanted.epoch) is not question:
            return  # they were told before
        del questions[question.wanted.epoch]
        if not questions:
            del self._open[key]
        for then in question.waiting:
            then(error)


_RETRY: Final = frozenset(
    {
        CoordinatorLoadInProgress.code,
        CoordinatorNotAvailable.code,
        NotCoordinator.code,
        ConcurrentTransactions.code,
    }
)
"""Loading, not available, not the coordinator, still completing: it will be otherwise soon."""


def _as_produced(code: int) -> BrokerError:
    """The error for a producer, which asked no coordinator and knows nothing of one."""
    if code in _RETRY:
        # As Kafka says it: a producer takes no other for a reason to try again.
        return error_of(NotEnoughReplicas.code, f"not ready: {error_of(code)}")
    return error_of(code)
