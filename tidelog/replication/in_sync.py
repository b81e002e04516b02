"""What the leaders of this node ask of the controller: other in-sync sets, or another epoch.

Rule 1: one proposal in flight per partition; those that are due go together, as many as every node
        can apply in one turn of its loop.
Rule 2: the active controller decides, by what replicas have told it themselves. A leader does not
        know whether a follower is damaged, and a node that does not vote has heard of nobody.
Rule 3: a lost reply is not a failure: until the metadata shows another set, both count.
Rule 4: a leader whose disk could not keep what followers may have read appends nothing more in its
        epoch: two different records would bear the same offset and epoch. It asks to be replaced.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final

from tidelog.cluster.controller_line import ControllerLine
from tidelog.cluster.messages import ChangeInSync, Judged, StepDown
from tidelog.cluster.metadata import Metadata
from tidelog.controller.in_sync import WantedInSync
from tidelog.controller.worklist import CHANGED
from tidelog.errors import InvalidUpdateVersion, NotController
from tidelog.host import Host, in_turns
from tidelog.model import NodeId, Offset
from tidelog.partition.driver import Partition
from tidelog.replication.replicas import Replicas

_log = logging.getLogger(__name__)

_RETRY_SECONDS: Final = 0.2
_ACTED_SECONDS_MAX: Final = 30.0
_LOOKS_AT_ONCE: Final = 200
"""How many partitions are looked at in one turn of the loop."""


class InSyncProposals:
    """Looks at the leaders of this node, and has their sets decided on."""

    def __init__(
        self,
        host: Host,
        node_id: NodeId,
        metadata: Metadata,
        replicas: Replicas,
        controller: ControllerLine,
        *,
        lag_seconds_max: Callable[[], float],
        acted: Callable[[Offset], Coroutine[Any, Any, None]],
    ) -> None:
        """`acted` waits until this node has acted on all metadata below an offset."""
        self._host = host
        self._node_id = node_id
        self._metadata = metadata
        self._replicas = replicas
        self._controller = controller
        self._lag_seconds_max = lag_seconds_max
        self._acted = acted
        self._due: dict[Partition, None] = {}
        self._wake = asyncio.Event()

    def look_at(self, partition: Partition) -> None:
        """Something has changed that may change the set."""
        self._due[partition] = None
        self._wake.set()

    async def look_at_all(self) -> None:
        """Time has passed: somebody may have fallen behind."""

        def look_at(partition: Partition) -> None:
            if partition.leader is not None and len(partition.leader.replicas) > 1:
                self.look_at(partition)

        await in_turns(self._replicas.all(), look_at, at_once=_LOOKS_AT_ONCE)

    async def run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            due, self._due = list(self._due), {}
            due.reverse()
            while due:
                wanted = await self._wanted(due)
                if wanted and not await self._propose(wanted):
                    for partition in wanted:
                        self.look_at(partition)
                    await asyncio.sleep(_RETRY_SECONDS * (0.5 + self._host.random.random()))

    async def _wanted(self, due: list[Partition]) -> dict[Partition, WantedInSync]:
        """What the next of `due` want, as far as it goes into one decision; they are taken out."""
        wanted: dict[Partition, WantedInSync] = {}
        while due and len(wanted) < CHANGED:
            brokers = self._metadata.image.brokers.values()
            lives = {broker.node: broker.broker_epoch for broker in brokers if broker.is_active}
            for _ in range(min(_LOOKS_AT_ONCE, len(due))):
                if (asked := self._look(partition := due.pop(), lives)) is not None:
                    wanted[partition] = asked
                    if len(wanted) == CHANGED:
                        return wanted
            if due:
                await asyncio.sleep(0)  # others get their turn
        return wanted

    def _look(self, partition: Partition, lives: Mapping[NodeId, int]) -> WantedInSync | None:
        leader = partition.leader
        if leader is None or not self._replicas.holds(partition):
            return None
        members = leader.propose(self._host.clock.monotonic(), self._lag_seconds_max(), lives)
        if members is None:
            return None
        return WantedInSync(
            topic_id=partition.topic_id,
            partition=partition.name.partition,
            leader=self._node_id,
            broker_epoch=members[self._node_id],
            epoch=leader.epoch,
            partition_epoch=leader.partition_epoch,
            in_sync=members,
        )

    async def step_down(self, partition: Partition) -> None:
        """Have somebody else lead, or this node in another epoch."""
        while (leader := partition.leader) is not None and partition.is_spent:
            asked = StepDown(
                topic_id=partition.topic_id,
                partition=partition.name.partition,
                leader=self._node_id,
                epoch=leader.epoch,
            )
            try:
                answer = await self._ask(asked)
            except NotController as error:
                _log.info("%s cannot be led by another yet: %s", partition.name, error)
                answer = None
            if answer is None:
                await asyncio.sleep(_RETRY_SECONDS)

    async def _ask(self, message: ChangeInSync | StepDown) -> Judged | None:
        """What the controller has decided, once it is acted on here; None if that is not known."""
        answer = await self._controller.ask(message)
        if answer is None:
            return None
        try:
            async with asyncio.timeout(_ACTED_SECONDS_MAX):
                await self._metadata.reached(answer.offset)
                await self._acted(answer.offset)
        except TimeoutError:
            return None
        return answer

    async def _propose(self, wanted: Mapping[Partition, WantedInSync]) -> bool:
        """Have them decided on; whether all were, and for certain."""
        is_sent = True
        try:
            answer = await self._ask(ChangeInSync(wanted=tuple(wanted.values())))
        except NotController as error:
            _log.info("in-sync sets are not decided on: %s", error)
            answer, is_sent = None, False
        for number, (partition, asked) in enumerate(wanted.items()):
            leader = partition.leader
            if leader is None or leader.epoch != asked.epoch:
                continue
            if answer is None:
                partition.proposal_refused(certain=not is_sent)
            elif number not in answer.refused:
                leader.proposal_ended()
                _log.info("%s: in sync are %s", partition.name, sorted(leader.in_sync))
            else:
                code, reason = answer.refused[number]
                _log.info("%s stays as it is: %s", partition.name, reason)
                # Of a version that is not known here yet, nothing is certain.
                partition.proposal_refused(certain=code != InvalidUpdateVersion.code)
        return answer is not None and not answer.refused
