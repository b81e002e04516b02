"""Removes at start what is left of replicas that this node holds no more.

Rule 1: only with proof: the image knows who holds the partition instead, or the metadata log tells that
        its topic was deleted.
Rule 2: of directories that a crash left half made, only those go that hold no file of a log.
"""

import logging
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Final
from uuid import UUID

from tidelog.cluster.member import ClusterMember
from tidelog.cluster.quorum_log import METADATA_PARTITION
from tidelog.controller.records import MetadataRecord, TopicCreated, TopicDeleted, decode
from tidelog.errors import StorageError
from tidelog.host import Host
from tidelog.log.directory import DataDirectory
from tidelog.model import METADATA_TOPIC_ID, NodeId, TopicPartition
from tidelog.records import decode_batch, iterate_batches
from tidelog.replication.replicas import Replicas

_log = logging.getLogger(__name__)

_METADATA_READ_BYTES: Final = 8 * 1024 * 1024


class Leftovers:
    """Directories of partitions that were removed, moved or half made while this node was away."""

    def __init__(
        self,
        host: Host,
        member: ClusterMember,
        replicas: Replicas,
        *,
        node_id: NodeId,
        directory: DataDirectory,
    ) -> None:
        self._host = host
        self._member = member
        self._metadata = member.metadata
        self._replicas = replicas
        self._node_id = node_id
        self._directory = directory

    async def remove(self) -> None:
        held = {name: topic.id for topic, name in self._metadata.image.partitions_on(self._node_id)}
        held |= {partition.name: partition.topic_id for partition in self._replicas.all()}
        partitions = {topic.id: len(topic.partitions) for topic in self._metadata.image.topics.values()}
        await self._host.offload.run(partial(self._finish_removals, held, partitions))

    def _finish_removals(self, held: dict[TopicPartition, UUID], partitions: dict[UUID, int]) -> None:
        """Remove what is left of replicas whose removal was committed while this node was away.

        Only with proof. A topic that the image does not know may be one that it does not know
        yet, and a directory that the log knows nothing of all that is left of lost metadata. Of
        one that it knows (`partitions`: how many they have), it knows who holds it: it has all
        that was committed before this node registered. Taken for a replica again one day, such a
        log would be one of long ago.
        """
        left = self._directory.leftovers({**held, METADATA_PARTITION: METADATA_TOPIC_ID})
        moved = [name for name, topic_id in left.items() if name.partition < partitions.get(topic_id, 0)]
        if moved:
            _log.warning("others hold %s by now; removed here", ", ".join(map(str, moved)))
            self._directory.remove(moved)
        if len(moved) == len(left):
            return
        deleted = deleted_topics(self._committed_changes())
        gone = [name for name, topic_id in left.items() if topic_id in deleted]
        if gone:
            _log.warning("finishing the deletion of %s", ", ".join(map(str, gone)))
            self._directory.remove(gone)

    async def remove_half_made(self) -> None:
        """Remove what a crash left of directories before they said whose they are.

        Only if others hold the partition of that name; and only if nothing else is there.
        """
        half_made, image = [], self._metadata.image
        for stranger in self.strangers():
            topic, _, number = stranger.rpartition("-")
            known, name = image.topics.get(topic), TopicPartition(topic, int(number))
            is_known = known is not None and name.partition < len(known.partitions)
            if is_known and str(name) == stranger and self._directory.topic_id_of(name) is None:
                half_made.append(name)
        try:
            await self._replicas.remove_half_made(half_made)
        except StorageError as error:  # each checkpoint tries again
            _log.info("half-made directories stay for now: %s", error)

    def strangers(self) -> list[str]:
        """Directories of partitions that the cluster does not know of, or not as this node's."""
        known = [name for _, name in self._metadata.image.partitions_on(self._node_id)]
        return self._directory.strangers([*known, METADATA_PARTITION])

    def _committed_changes(self) -> Iterator[MetadataRecord]:
        """What the metadata log holds and nobody can undo; at start only."""
        log, limit = self._member.log.log, self._metadata.applied
        offset = log.start
        while offset < limit:
            data = log.read(offset, _METADATA_READ_BYTES, limit).load_unchecked(self._host.disk)
            for header, batch in iterate_batches(data):
                for record in decode_batch(batch):
                    if record.value is not None:
                        yield decode(record.value)
                offset = header.next_offset


def deleted_topics(changes: Iterable[MetadataRecord]) -> set[UUID]:
    """The ids of topics that were made and deleted in `changes`."""
    made: dict[str, str] = {}
    deleted: set[UUID] = set()
    for change in changes:
        if isinstance(change, TopicCreated):
            made[change.name] = change.id
        elif isinstance(change, TopicDeleted) and change.name in made:
            deleted.add(UUID(made.pop(change.name)))
    return deleted
