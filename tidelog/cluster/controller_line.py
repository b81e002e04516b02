"""How any node asks the active controller to decide, when only the controller has heard enough.

Rule 1: nothing is repeated here. Whoever asks learns one of three things: the answer, that it may
        have been done and nobody said so, or that nothing was sent (NotController).
Rule 2: no answer is awaited of a node that leads the quorum no more.
"""

import asyncio
from typing import Final

from tidelog.cluster.member import ClusterMember
from tidelog.cluster.messages import ChangeInSync, Judged, StepDown
from tidelog.errors import NotController
from tidelog.model import NodeId
from tidelog.peers.stream import PeerUnreachable
from tidelog.peers.wire import PeerRefused

_ASK_SECONDS_MAX: Final = 5.0


class ControllerLine:
    """One question at a time to whoever leads the quorum."""

    def __init__(self, member: ClusterMember) -> None:
        self._member = member
        self._asking: dict[asyncio.Task[Judged], NodeId] = {}
        member.on_lead(lambda epoch: self._leader_changed(member.me.key.id))
        member.on_follow(lambda epoch, leader: self._leader_changed(leader))

    async def ask(self, message: ChangeInSync | StepDown) -> Judged | None:
        """What became of it; None if that is not known. NotController: nothing was sent."""
        leader = self._member.quorum.raft.leader
        if leader is None:
            raise NotController("the quorum has no leader now")
        asking = asyncio.get_running_loop().create_task(
            self._member.hub.ask(leader, message, Judged, seconds_max=_ASK_SECONDS_MAX)
        )
        self._asking[asking] = leader
        try:
            answer = await asking
        except (PeerUnreachable, PeerRefused):
            return None
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            return None  # another leads by now
        finally:
            del self._asking[asking]
            asking.cancel()
        return answer if answer.is_decided else None

    def _leader_changed(self, leader: NodeId | None) -> None:
        for asking, asked in self._asking.items():
            if asked != leader:
                asking.cancel()
