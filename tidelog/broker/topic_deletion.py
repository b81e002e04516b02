"""Waits until no node confirms a read of a deleted topic, or acknowledges a write to it.

Rule 1: a leader that has not heard of the deletion commits no record, and is confirmed by nobody
        (`lead_confirmation.py`), without every replica that may be elected. So for each partition it is
        enough that one of them has acted on the deletion.
Rule 2: nobody waits for replicas that are all fenced, or nothing could be deleted without them.
        A fenced leader that has its followers may tell of the topic until it hears of its end.
Rule 3: whoever is told that a topic is not there may have deleted it, by a request that was not
        answered. Nobody knows which replicas it had. So every node that is there must have acted.
Rule 4: a node that is not fenced is in touch with the controller. So whoever does not reach it has
        the controller ask it.
"""

import asyncio
from contextlib import suppress
from typing import Final

from tidelog.broker.broker import Broker
from tidelog.broker.serving import side_by_side
from tidelog.cluster.messages import ConfirmLeads, ConfirmLeadsAnswer
from tidelog.cluster.metadata import CHANGE_SECONDS_MAX
from tidelog.controller.image import TopicImage
from tidelog.errors import RequestTimedOut
from tidelog.host import in_turns
from tidelog.model import NO_OFFSET, NodeId, Offset
from tidelog.peers.stream import PeerUnreachable
from tidelog.peers.wire import PeerRefused

_ASK_SECONDS_MAX: Final = 1.0
_RETRY_SECONDS: Final = 0.02


async def gone_everywhere(broker: Broker, topic: TopicImage, offset: Offset) -> None:
    """Return once no leader can serve a topic whose deletion lies below `offset` of the metadata.

    This node has acted on it. RequestTimedOut if that cannot be found out: it is deleted then, too.
    """
    electable: dict[frozenset[NodeId], None] = {}
    await in_turns(
        topic.partitions, lambda one: electable.setdefault(one.in_sync | one.eligible), at_once=1000
    )
    problem = f"{topic.name} is deleted, but its replicas have not said that they know"
    await _one_of_each_acted(broker, list(electable), offset, problem)


async def missing_everywhere(broker: Broker, name: object) -> None:
    """Return once no leader can serve a topic that the newest metadata, as it is here, lacks."""
    offset = broker.metadata.applied
    await broker.acted()
    problem = f"{name} does not exist, but not every node has said that it knows"
    await _one_of_each_acted(broker, [frozenset({n}) for n in broker.image.nodes], offset, problem)


async def _one_of_each_acted(
    broker: Broker, waiting: list[frozenset[NodeId]], offset: Offset, problem: str
) -> None:
    """Return once one node of each set, or this one, has acted on the metadata below `offset`."""
    acted = {broker.node_id}
    clock = broker.host.clock
    deadline = clock.monotonic() + CHANGE_SECONDS_MAX
    while True:
        alive = {n for nodes in waiting for n in nodes if broker.image.is_alive(n)}
        waiting = [n for n in waiting if acted.isdisjoint(n) and not alive.isdisjoint(n)]
        if not waiting:
            return
        if clock.monotonic() >= deadline:
            raise RequestTimedOut(problem)
        asked = sorted(alive.intersection(node for nodes in waiting for node in nodes))
        told = await side_by_side(*(_has_acted(broker, node, offset) for node in asked))
        acted.update(node for node, has_acted in zip(asked, told, strict=True) if has_acted)
        if not any(told):
            await asyncio.sleep(_RETRY_SECONDS)


async def _has_acted(broker: Broker, node: NodeId, offset: Offset) -> bool:
    """Whether a node says that it has acted: to this one, or to the controller if this does not
    reach it."""
    controller = broker.member.quorum.raft.leader
    answer = await _ask(broker, node, ConfirmLeads(leads=()))
    if answer is None and controller not in (None, node, broker.node_id):
        answer = await _ask(broker, controller, ConfirmLeads(leads=(), of=node))
    return answer is not None and (answer.acted_on == NO_OFFSET or answer.acted_on >= offset)


async def _ask(broker: Broker, node: NodeId, question: ConfirmLeads) -> ConfirmLeadsAnswer | None:
    """What it says; None if it says nothing, or speaks of another node."""
    with suppress(PeerUnreachable, PeerRefused):
        answer = await broker.member.hub.ask(node, question, ConfirmLeadsAnswer, seconds_max=_ASK_SECONDS_MAX)
        return answer if answer.of == question.of else None
    return None
