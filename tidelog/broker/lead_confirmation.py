"""Whether this node still leads a partition, said by those who would have to know otherwise.

Rule 1: a read at a leader is as new as any acknowledged write only if nobody leads in a later
        epoch. Another leader is one of those in sync, and commits nothing before all in sync have
        left this epoch. So every one of them, asked after the read came, must still follow here.
Rule 2: all who may be elected count: the committed set, all that was proposed, and those who are
        eligible though they left it.
Rule 3: a leader that is alone among them has nobody to ask, and needs nobody: none but itself can
        be elected without loss. It answers while it has its lease. So does one of a topic whose
        `unclean.leader.election.enable` lets anybody lead.
Rule 4: questions to one node go together; a question never joins one that was sent before it.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from tidelog.broker.broker import Broker
from tidelog.broker.outboxes import Outboxes
from tidelog.cluster.answering import answered
from tidelog.cluster.messages import ConfirmLeads, ConfirmLeadsAnswer, Lead
from tidelog.controller.image import PartitionImage
from tidelog.errors import BrokerError, NotLeader, RequestTimedOut
from tidelog.model import NO_NODE, NodeId
from tidelog.partition.driver import Partition
from tidelog.partition.leader import Leader
from tidelog.peers.listener import Answer
from tidelog.peers.stream import PeerUnreachable
from tidelog.peers.wire import PeerRefused

_ASK_SECONDS_MAX: Final = 1.0
_RETRY_SECONDS: Final = 0.02


class _Question(NamedTuple):
    lead: Lead
    answer: "asyncio.Future[bool | None]"
    """None if nothing was heard."""


class Confirming:
    """What this node asks its followers, and answers its leaders."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._outboxes: Outboxes[_Question] = Outboxes(broker, self._ask)
        broker.on_confirm = self._on_confirm

    async def confirm(self, partition: Partition, leader: Leader, deadline: float) -> None:
        """Return once it is certain that `leader` led at some moment since the call.

        NotLeader if another does, RequestTimedOut if that cannot be found out in time.
        """
        clock = self._broker.host.clock
        while True:
            if partition.leader is not leader:
                raise NotLeader(leader=None)
            known = self._known(partition, leader)
            others = sorted((leader.maximal | known.eligible) - {leader.me})
            needs_lease = not others or partition.config.unclean_leader_election_enable
            if needs_lease and len(leader.replicas) > 1 and not partition.has_lease():
                raise NotLeader(leader=None)
            if not others:
                return
            lead = Lead(known.cluster_id, leader.epoch)
            told = await self._ask_all(others, lead, deadline - clock.monotonic())
            if partition.leader is not leader or False in told:
                raise NotLeader(leader=None)
            if all(told):
                return
            if clock.monotonic() + _RETRY_SECONDS >= deadline:
                nodes = ", ".join(map(str, others))
                raise RequestTimedOut(f"nodes {nodes} did not confirm who leads {partition.name}")
            await asyncio.sleep(_RETRY_SECONDS)

    def _known(self, partition: Partition, leader: Leader) -> PartitionImage:
        topic = self._broker.image.topics_by_id.get(partition.topic_id)
        known = None if topic is None else topic.partitions[partition.name.partition]
        if known is None or known.epoch > leader.epoch:
            raise NotLeader(leader=None)
        return known

    # Asking.

    async def _ask_all(self, nodes: Sequence[NodeId], lead: Lead, seconds: float) -> list[bool | None]:
        """What each of them says; None for who says nothing in time."""
        loop = asyncio.get_running_loop()
        answers: list[asyncio.Future[bool | None]] = [loop.create_future() for _ in nodes]
        for node, answer in zip(nodes, answers, strict=True):
            self._outboxes.put(node, _Question(lead, answer))
        with suppress(TimeoutError):
            async with asyncio.timeout(max(min(seconds, _ASK_SECONDS_MAX), 0)):
                for answer in answers:
                    await answer
        return [answer.result() if _is_told(answer) else None for answer in answers]

    async def _ask(self, node: NodeId, waiting: list[_Question]) -> None:
        told: tuple[bool | None, ...] = (None,) * len(waiting)
        with suppress(PeerUnreachable, PeerRefused):
            answer = await self._broker.member.hub.ask(
                node,
                ConfirmLeads(leads=tuple(one.lead for one in waiting)),
                ConfirmLeadsAnswer,
                seconds_max=_ASK_SECONDS_MAX,
            )
            told = answer.confirmed
        for question, one in zip(waiting, told, strict=True):
            if not question.answer.done():
                question.answer.set_result(one)

    # Answering.

    def _on_confirm(self, source: NodeId, asked: ConfirmLeads, place: Answer | None) -> None:
        assert place is not None, "it is a question"
        if asked.of != NO_NODE:
            if asked.of in self._broker.image.brokers:
                self._broker.spawn(answered(place, self._pass_on, asked.of, place))
            else:
                place.fail(f"there is no node {asked.of}")
            return
        confirmed = tuple(self._follows(source, lead) for lead in asked.leads)
        place.send(ConfirmLeadsAnswer(confirmed=confirmed, acted_on=self._broker.acted_on, of=asked.of))

    async def _pass_on(self, node: NodeId, place: Answer) -> None:
        """Ask a node how far it has acted, for another node that does not reach it."""
        try:
            answer = await self._broker.member.hub.ask(
                node, ConfirmLeads(leads=()), ConfirmLeadsAnswer, seconds_max=_ASK_SECONDS_MAX
            )
        except (PeerUnreachable, PeerRefused) as error:
            place.fail(str(error))
        else:
            place.send(ConfirmLeadsAnswer(confirmed=(), acted_on=answer.acted_on, of=node))

    def _follows(self, source: NodeId, lead: Lead) -> bool | None:
        """Whether this node follows `source` in that epoch; None if it has not heard of it yet."""
        try:
            partition = self._broker.replication.feeding.find(lead.cluster_id)
        except BrokerError:
            return None
        follower = partition.follower
        role = partition.leader or follower
        if role is None or role.epoch < lead.epoch:
            return None  # nobody leads, as far as is known here, or somebody did once
        if follower is None or role.epoch > lead.epoch:
            return False
        return follower.leader == source


def _is_told(answer: "asyncio.Future[bool | None]") -> bool:
    return answer.done() and not answer.cancelled()
