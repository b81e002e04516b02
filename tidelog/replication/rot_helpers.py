"""The other replicas of what has rotted: whom to ask, asking them, and answering them.

Rule 1: bytes that are given to another node are checked first. What is rotten here heals nobody.
Rule 2: whoever knows of rot, of damage, or of a change under way does not say that it is whole.
"""

import asyncio
from contextlib import suppress
from functools import partial
from typing import Final

from tidelog.cluster.member import ClusterMember
from tidelog.cluster.messages import ConfirmWhole, ConfirmWholeAnswer, FetchRange, FetchRangeAnswer
from tidelog.controller.image import PartitionImage
from tidelog.errors import BrokerError, StorageError, UnknownTopicOrPartition
from tidelog.host import Bytes, Host
from tidelog.log.reading import Read
from tidelog.log.scrub_cycle import ScrubCycle
from tidelog.model import NO_NODE, NodeId
from tidelog.partition.driver import Partition
from tidelog.peers.listener import Answer
from tidelog.peers.stream import PeerUnreachable
from tidelog.peers.wire import PeerRefused
from tidelog.replication.replicas import Replicas
from tidelog.replication.scrub_visits import Visit

_ASK_SECONDS_MAX: Final = 2.0
_RANGE_BYTES_MAX: Final = 1024 * 1024


class RotHelpers:
    """Those who may help this node, and what it does for them."""

    def __init__(
        self, host: Host, member: ClusterMember, replicas: Replicas, cycle: ScrubCycle, *, node_id: NodeId
    ) -> None:
        self._host = host
        self._member = member
        self._metadata = member.metadata
        self._replicas = replicas
        self._cycle = cycle
        self._node_id = node_id
        member.handle(FetchRange, self._on_fetch)
        member.handle(ConfirmWhole, self._on_confirm_whole)

    def known(self, partition: Partition) -> PartitionImage | None:
        topic = self._metadata.image.topics_by_id.get(partition.topic_id)
        return None if topic is None else topic.partitions[partition.name.partition]

    def others(self, known: PartitionImage | None) -> list[NodeId]:
        """Those that are there and hold the partition: the leader first, then who is in sync."""
        if known is None:
            return []
        nodes = [known.leader, *sorted(known.in_sync), *known.replicas]
        image = self._metadata.image
        return [
            node
            for node in dict.fromkeys(nodes)
            if node not in (NO_NODE, self._node_id) and image.is_alive(node)
        ]

    # Asking them.

    async def ask(self, source: NodeId, cluster_id: int, visit: Visit) -> Bytes:
        asked = FetchRange(
            cluster_id=cluster_id,
            offset=visit.scrub.live_offset,
            end=visit.scrub.end,
            bytes_max=_RANGE_BYTES_MAX,
            uncommitted=not visit.is_committed,
        )
        answer, data = await self._member.hub.ask_data(
            source, asked, FetchRangeAnswer, seconds_max=_ASK_SECONDS_MAX
        )
        if answer.problem or not data:
            raise StorageError(answer.problem or "it has nothing there")
        return data

    async def is_another_whole(self, known: PartitionImage) -> bool:
        asked = ConfirmWhole(cluster_id=known.cluster_id, partition_epoch=known.partition_epoch)
        for node in self.others(known):
            with suppress(PeerUnreachable, PeerRefused):
                answer = await self._member.hub.ask(
                    node, asked, ConfirmWholeAnswer, seconds_max=_ASK_SECONDS_MAX
                )
                if answer.is_whole:
                    return True
        return False

    # Answering them.

    def _on_fetch(self, source: NodeId, asked: FetchRange, place: Answer | None) -> None:
        assert place is not None, "it waits for the bytes"
        try:
            found = self._read(asked)
        except BrokerError as error:
            place.send_with(FetchRangeAnswer(problem=str(error) or type(error).__name__), ())
            return
        if found.cold is None:
            place.send_with(FetchRangeAnswer(), found.buffers)
            return
        loaded = self._host.offload.run(partial(found.load, self._host.disk))
        loaded.add_done_callback(partial(_answer, place))

    def _on_confirm_whole(self, source: NodeId, asked: ConfirmWhole, place: Answer | None) -> None:
        assert place is not None, "it is a question"
        place.send(ConfirmWholeAnswer(is_whole=self._is_whole(asked)))

    def _is_whole(self, asked: ConfirmWhole) -> bool:
        at = self._metadata.image.places.get(asked.cluster_id)
        if at is None or at.partition.partition_epoch != asked.partition_epoch:
            return False
        try:
            partition = self._replicas.find(at.topic.id, at.number)
        except UnknownTopicOrPartition:
            return False
        return (
            self._node_id in at.partition.in_sync
            and partition.log.damaged_at is None
            and not partition.mending.is_busy
            and not any(rot.name == partition.name for rot in self._cycle.state.open)
        )

    def _read(self, asked: FetchRange) -> Read:
        at = self._metadata.image.places.get(asked.cluster_id)
        if at is None:
            raise UnknownTopicOrPartition(f"partition {asked.cluster_id:#x}")
        partition = self._replicas.find(at.topic.id, at.number)
        if partition.mending.is_busy:
            raise StorageError("its log is being brought in line")
        last = partition.log.end if asked.uncommitted else partition.high_watermark
        limit = min(last, asked.end)
        return partition.read(asked.offset, asked.bytes_max, limit)


def _answer(place: Answer, future: "asyncio.Future[Bytes]") -> None:
    if future.cancelled():
        place.fail("this node is stopping")
    elif (error := future.exception()) is not None:
        place.send_with(FetchRangeAnswer(problem=str(error) or type(error).__name__), ())
    else:
        place.send_with(FetchRangeAnswer(), (future.result(),))
