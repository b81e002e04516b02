"""Changes a follower's log as its leader's history asks: cuts it, begins it anew, learns producers.

Rule 1: not if the partition has another leader by then, who may ask for something else.
Rule 2: what somebody counts on is not discarded: the follower leaves its sets first.
Rule 3: a change that is half done ends the process: nothing may be called clean any more.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from tidelog.cluster.member import ClusterMember
from tidelog.cluster.messages import ForgetReplica, ForgetReplicaAnswer
from tidelog.log.cleaner import Cleaner
from tidelog.log.directory import DataDirectory
from tidelog.log.rounds import Rounds
from tidelog.model import NodeId, Offset
from tidelog.partition.driver import Partition
from tidelog.partition.follower import BeginAnew, Cut, Follower, LearnProducers, LogChange
from tidelog.peers.stream import PeerUnreachable
from tidelog.peers.wire import PeerRefused
from tidelog.replication.replicas import Replicas

_ASK_AGAIN_SECONDS: Final = 0.1
_FORGET_SECONDS_MAX: Final = 2.0


class LogChanges:
    """The changes of followers' logs on this node."""

    def __init__(
        self,
        member: ClusterMember,
        replicas: Replicas,
        rounds: Rounds,
        *,
        node_id: NodeId,
        directory: DataDirectory,
        cleaner: Cleaner,
        nudge: Callable[[], None],
    ) -> None:
        """`nudge` lets the controller hear at once how the replicas here are."""
        self._member = member
        self._metadata = member.metadata
        self._replicas = replicas
        self._rounds = rounds
        self._node_id = node_id
        self._directory = directory
        self._cleaner = cleaner
        self._nudge = nudge

    async def change(self, partition: Partition, follower: Follower, change: LogChange) -> None:
        """Do to a follower's log what its leader's history asks for.

        Not if the partition has another leader by then, who may ask for something else. A leader
        that tells of producers counts on this replica no more; otherwise it must be asked.
        """
        directory, name = self._directory, partition.name
        is_let_go = not isinstance(change, BeginAnew) or bool(change.producers)
        if partition.log.damaged_at is not None or not is_let_go:
            await self._leave_sets(partition, follower)

        def lower(mark: Offset, synced_end: Offset = 0) -> None:
            self._cleaner.unnote(name)
            directory.lower_mark(name, mark, synced_end)
            end = change.end if isinstance(change, Cut) else change.start
            directory.lower_watermark(name, end)

        def note(change: BeginAnew) -> None:
            lower(0)
            directory.raise_start(name, change.start)
            directory.note_purge(name, change.purged)

        async with partition.files, directory.noting:
            if partition.follower is not follower or not self._replicas.holds(partition):
                return
            if isinstance(change, Cut) and self._is_compacted_past(partition, change.end):
                change = BeginAnew(partition.log.start)
            try:
                match change:
                    case Cut():
                        await partition.mending.cut(change.end, lower)
                    case BeginAnew():
                        await partition.mending.begin_anew(change, note)
                    case LearnProducers():
                        await partition.mending.learn(change)
            except OSError as error:
                self._rounds.fail(error)  # half done: nothing may be called clean any more
                raise
            self._cleaner.forget(name)

    def _is_compacted_past(self, partition: Partition, end: Offset) -> bool:
        """Whether what lies before `end` may lack values for the sake of what lies behind it.

        Only what was committed is compacted: so that is cut off, by an operator's will, and nobody
        counts on this replica.
        """
        log = partition.log
        if not (partition.has_gaps or partition.purges.floor or log.swaps):
            return False
        cleaned_end = self._cleaner.first_dirty(partition.name) or 0
        return end < max(partition.high_watermark, cleaned_end)

    async def _leave_sets(self, partition: Partition, follower: Follower) -> None:
        """Wait until nobody counts on what is here; only then may it be discarded.

        The metadata must say so, and the leader must have acted on it: it knows what this replica
        told before, and would propose it for the in-sync set again by that.
        """
        self._nudge()
        while self._replicas.holds(partition) and partition.follower is follower:
            topic = self._metadata.image.topics_by_id.get(partition.topic_id)
            known = None if topic is None else topic.partitions[partition.name.partition]
            if known is None:
                return
            if self._node_id in known.in_sync | known.eligible:
                await self._metadata.reached(self._metadata.applied + 1)
            else:
                asked = ForgetReplica(cluster_id=known.cluster_id, epoch=follower.epoch)
                answer = await self._ask_to_forget(follower.leader, asked)
                if answer.is_forgotten and answer.partition_epoch <= known.partition_epoch:
                    return
                await asyncio.sleep(_ASK_AGAIN_SECONDS)

    async def _ask_to_forget(self, leader: NodeId, asked: ForgetReplica) -> ForgetReplicaAnswer:
        try:
            return await self._member.hub.ask(
                leader, asked, ForgetReplicaAnswer, seconds_max=_FORGET_SECONDS_MAX
            )
        except (PeerUnreachable, PeerRefused):
            return ForgetReplicaAnswer()
