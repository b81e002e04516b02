"""Whether this node still leads the quorum, said by the voters that would have to know otherwise.

Rule 1: another node leads only once a majority of the voters has left this epoch. So a majority
        that says it has not, asked after a moment, proves that nobody led in a later epoch then.
        A voter is a disk: another one in its node may have forgotten which epochs that left.
Rule 2: those who want to know go together; nobody joins a round that was sent before it asked.
Rule 3: no clock and no timeout is believed here: a paused node, a slow link or a voter that
        restarts delays the proof, and falsifies nothing.
"""

import asyncio
from typing import Final

from tidelog.cluster.member import ClusterMember
from tidelog.cluster.messages import ConfirmEpoch, ConfirmEpochAnswer
from tidelog.model import Epoch, NodeId
from tidelog.peers.listener import Answer
from tidelog.peers.stream import PeerUnreachable
from tidelog.peers.wire import PeerRefused
from tidelog.raft.voters import ReplicaKey

_ASK_SECONDS_MAX: Final = 0.5


class Leadership:
    """What this node asks the other voters, and answers them."""

    def __init__(self, member: ClusterMember) -> None:
        self._member = member
        self._waiting: list[asyncio.Future[bool]] = []
        self._is_asking = False
        member.handle(ConfirmEpoch, self._on_confirm)

    async def confirmed(self) -> bool:
        """Whether it is certain that this node led the quorum at some moment since the call."""
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        if not self._is_asking:
            self._is_asking = True
            self._member.quorum.spawn(self._ask_in_rounds())
        return await future

    async def _ask_in_rounds(self) -> None:
        try:
            while self._waiting:
                waiting, self._waiting = self._waiting, []
                is_confirmed = await self._ask_majority()
                for future in waiting:
                    if not future.done():
                        future.set_result(is_confirmed)
        finally:
            self._is_asking = False

    async def _ask_majority(self) -> bool:
        quorum = self._member.quorum
        if not quorum.leads:
            return False
        epoch, voters, me = quorum.raft.epoch, quorum.raft.voters, self._member.me.key.id
        others = [voter.key for voter in voters if voter.key.id != me]
        needed = voters.majority - (len(voters.ids) - len(others))
        is_confirmed = needed <= 0 or await self._ask_all(others, epoch, needed)
        return is_confirmed and self._leads_in(epoch)

    def _leads_in(self, epoch: Epoch) -> bool:
        quorum = self._member.quorum
        return quorum.leads and quorum.raft.epoch == epoch

    async def _ask_all(self, others: list[ReplicaKey], epoch: Epoch, needed: int) -> bool:
        """Whether `needed` of them say that it is their epoch; waits for no more than these."""
        loop = asyncio.get_running_loop()
        is_settled: asyncio.Future[bool] = loop.create_future()
        told: list[bool] = []

        async def ask(voter: ReplicaKey) -> None:
            told.append(await self._ask(voter, epoch))
            if not is_settled.done() and (sum(told) >= needed or len(told) == len(others)):
                is_settled.set_result(sum(told) >= needed)

        asking = [loop.create_task(ask(voter)) for voter in others]
        try:
            return await is_settled
        finally:
            for task in asking:
                task.cancel()

    async def _ask(self, voter: ReplicaKey, epoch: Epoch) -> bool:
        question = ConfirmEpoch(epoch=epoch, directory=voter.directory)
        try:
            answer = await self._member.hub.ask(
                voter.id, question, ConfirmEpochAnswer, seconds_max=_ASK_SECONDS_MAX
            )
        except (PeerUnreachable, PeerRefused):
            return False
        return answer.is_in_it

    def _on_confirm(self, source: NodeId, asked: ConfirmEpoch, place: Answer | None) -> None:
        assert place is not None, "it is a question"
        raft = getattr(self._member.quorum, "raft", None)
        if raft is None:
            place.fail("this node is starting")
        else:
            is_voter = asked.directory in ("", self._member.me.key.directory)
            place.send(ConfirmEpochAnswer(is_in_it=is_voter and raft.epoch == asked.epoch))
