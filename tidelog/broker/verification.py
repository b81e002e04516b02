"""No batch of a transaction is taken before its coordinator has the partition in it (KIP-890).

Rule 1: a batch that no marker will end would keep readers waiting for ever. So the first one of a
        transaction in a partition waits until the coordinator has confirmed, or added, it.
Rule 2: what comes from the same producer meanwhile waits behind it, in order.
Rule 3: a marker that arrives meanwhile ends what was asked about: then the batch is refused.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

from tidelog.broker.broker import Broker
from tidelog.cluster.messages import (
    AddToTransactions,
    AddToTransactionsAnswer,
    Place,
    PlacesToAdd,
)
from tidelog.errors import (
    BrokerError,
    ConcurrentTransactions,
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    InvalidTransactionState,
    NotCoordinator,
    NotEnoughReplicas,
    error_of,
)
from tidelog.model import NO_OFFSET, NodeId, ProducerId, TopicPartition
from tidelog.partition.driver import Partition
from tidelog.peers.stream import PeerUnreachable
from tidelog.peers.wire import PeerRefused

_log = logging.getLogger(__name__)

_ASK_SECONDS_MAX: Final = 5.0

Then: TypeAlias = Callable[[BrokerError | None], None]


class Wanted(NamedTuple):
    """Who writes in which transaction."""

    transactional_id: str
    producer_id: ProducerId
    epoch: int
    adds: bool
    """The partition joins with this very batch (KIP-890, part 2)."""


class _Key(NamedTuple):
    place: TopicPartition
    producer_id: ProducerId


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
        self._open: dict[_Key, _Question] = {}
        self._unasked: dict[NodeId, list[_Question]] = {}
        self._asking: set[NodeId] = set()

    def needs(self, partition: Partition, wanted: Wanted) -> bool:
        """Whether a batch has to wait: nothing of its transaction is known to be here."""
        producers = partition.log.producers
        state = producers.get(wanted.producer_id)
        is_open = producers.transaction_start(wanted.producer_id) != NO_OFFSET
        if state is None or state.epoch != wanted.epoch or not is_open:
            return True
        return _Key(partition.name, wanted.producer_id) in self._open

    def ask(self, partition: Partition, wanted: Wanted, then: Then) -> None:
        """Call `then` when the coordinator has answered, after those who asked before."""
        self.ask_about(partition.name, wanted, then)

    def ask_about(self, place: TopicPartition, wanted: Wanted, then: Then) -> None:
        key = _Key(place, wanted.producer_id)
        question = self._open.get(key)
        if question is not None:  # were it of another epoch, the log would refuse one of the two
            question.waiting.append(then)
            return
        question = _Question(wanted, place, [then])
        try:
            node = self._coordinator_of(wanted.transactional_id)
        except BrokerError as error:
            then(_as_produced(error.code))
            return
        self._open[key] = question
        self._unasked.setdefault(node, []).append(question)
        if node not in self._asking:
            self._asking.add(node)
            asyncio.get_running_loop().call_soon(self._ask_soon, node)

    async def confirm(
        self,
        transactional_id: str,
        producer_id: ProducerId,
        epoch: int,
        place: TopicPartition,
        *,
        implicit: bool,
    ) -> None:
        """Wait until `place` is known to be in the transaction, or raise why it is not."""
        answer: asyncio.Future[BrokerError | None] = asyncio.get_running_loop().create_future()

        def then(error: BrokerError | None) -> None:
            if not answer.done():
                answer.set_result(error)

        wanted = Wanted(transactional_id, producer_id, epoch, implicit)
        self.ask_about(place, wanted, then)
        error = await answer
        if error is not None:
            raise error

    def spoil(self, partition: Partition, producer_id: ProducerId) -> None:
        """A transaction has ended here while its coordinator is asked about it."""
        question = self._open.get(_Key(partition.name, producer_id))
        if question is not None:
            question.is_spoilt = True

    def _ask_soon(self, node: NodeId) -> None:
        self._broker.spawn(self._ask_all(node))

    async def _ask_all(self, node: NodeId) -> None:
        """One request at a time, with all that came meanwhile."""
        try:
            while questions := self._unasked.pop(node, []):
                await self._ask(node, questions)
        finally:
            self._asking.discard(node)

    async def _ask(self, node: NodeId, questions: list[_Question]) -> None:
        request = AddToTransactions(
            transactions=tuple(
                PlacesToAdd(
                    q.wanted.transactional_id, q.wanted.producer_id, q.wanted.epoch,
                    (Place(q.place.topic, q.place.partition),), q.wanted.adds,
                )
                for q in questions
            )
        )  # fmt: skip
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
        del self._open[_Key(question.place, question.wanted.producer_id)]
        error: BrokerError | None = None
        if code:
            error = _as_produced(code)
        elif question.is_spoilt:
            error = InvalidTransactionState("the transaction has ended meanwhile")
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
