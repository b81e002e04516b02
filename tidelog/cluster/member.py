"""A node's membership of its cluster, put together: quorum, metadata and peers.

Rule 1: the order of a start: find the snapshot and the log, listen to peers, find the quorum, take
        part in it. Nothing is served before the metadata is.
Rule 2: a node alone is a quorum of one, and the same code.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

import msgspec

from tidelog.cluster.acknowledged import Acknowledgements
from tidelog.cluster.formation import Formation, Formed, read_formed, write_formed
from tidelog.cluster.hub import Handler, Hub
from tidelog.cluster.messages import Proposal, WhoAreYou
from tidelog.cluster.metadata import Metadata
from tidelog.cluster.quorum import Quorum
from tidelog.cluster.quorum_log import QuorumLog
from tidelog.cluster.snapshots import Snapshots
from tidelog.config import NodeConfig
from tidelog.controller.image import ClusterImage
from tidelog.controller.records import LeaderChanged, MetadataRecord, VotersChanged
from tidelog.controller.snapshot import decode_snapshot, encode_snapshot, encode_topic
from tidelog.errors import ConfigError, StorageError
from tidelog.host import Host
from tidelog.log.directory import META, DataDirectory, Identity, encode_id
from tidelog.log.rounds import Rounds
from tidelog.log.tail import TailBudget
from tidelog.model import Endpoint, Epoch, NodeId
from tidelog.peers.handshake import Trust
from tidelog.peers.wire import Hello, Welcome
from tidelog.raft.machine import Raft
from tidelog.raft.messages import SnapshotId, Synced
from tidelog.raft.state import Timing
from tidelog.raft.voters import ReplicaKey, Voter, VoterSet
from tidelog.security.secrets import Secret

_log = logging.getLogger(__name__)

NOWHERE: Final = Endpoint(host="", port=0)
"""The peer address of a node that is alone."""

_TOPICS_AT_ONCE: Final = 20


class ClusterMember:
    """This node as one of a cluster."""

    def __init__(
        self,
        host: Host,
        directory: DataDirectory,
        identity: Identity,
        rounds: Rounds,
        budget: TailBudget,
        *,
        quorum: Mapping[NodeId, Endpoint],
        timing: Timing,
        on_fatal: Callable[[BaseException], None],
        snapshot_records: int,
        segment_bytes: int,
        trust: Trust,
    ) -> None:
        """`quorum` names who forms a new cluster; nobody, if this node is alone.

        So many records after the last snapshot the next one is made.
        """
        self._snapshot_records = snapshot_records
        self._trust = trust
        self._host = host
        self._directory = directory
        self.identity = identity
        self._contacts = quorum
        key = ReplicaKey(identity.node_id, encode_id(identity.directory_id))
        at = quorum.get(identity.node_id, NOWHERE)
        self.me = Voter(key, at.host, at.port)
        self.metadata = Metadata(host)
        self._acknowledgements: Acknowledgements | None = None
        self.log = QuorumLog(
            host,
            rounds,
            directory,
            budget,
            on_synced=lambda end: self.quorum.on_synced(end),
            on_disk_full=lambda full: self.quorum.on_disk_full(full),
            segment_bytes=segment_bytes,
            before_mending=None if self._is_alone else self._note_loss,
        )
        self._snapshots = Snapshots(host.disk, self.log.path)
        if quorum:  # others may vote, though this node may be the only one to form the quorum
            self._acknowledgements = Acknowledgements(
                host,
                self.log.path,
                directory.reserve,
                on_noted=lambda end: self.quorum.post(Synced(end)),
                spawn=lambda work: self.quorum.spawn(work),
            )
        self.quorum = Quorum(
            host,
            self.log,
            self._snapshots,
            reserve=directory.reserve,
            acknowledgements=self._acknowledgements,
            me=self.me,
            timing=timing,
            contacts=list(quorum),
            on_commit=self.metadata.apply,
            on_snapshot=self._begin_from,
            on_lead=self._on_lead,
            on_follow=self._on_follow,
            on_fatal=on_fatal,
        )
        self._formation = Formation(
            host, directory.root, me=self.me, cluster=identity.cluster_id, quorum=quorum
        )
        self._is_formed = False
        self._records_since_snapshot = 0
        self._taking_snapshot = False
        self._lead_calls: list[Callable[[Epoch], None]] = []
        self._gone_calls: list[Callable[[NodeId], None]] = []
        self._down_calls: list[Callable[[NodeId], None]] = []
        self._follow_calls: list[Callable[[Epoch, NodeId | None], None]] = []
        self._handlers: dict[type[msgspec.Struct], Handler] = {
            **self.quorum.handlers(),
            WhoAreYou: self._formation.on_who_are_you,
            Proposal: self.metadata.on_proposal,
        }
        self.hub: Hub

    def handle(self, kind: type[msgspec.Struct], handler: Handler) -> None:
        """Let `handler` have the messages of this kind; before `open`."""
        self._handlers[kind] = handler

    def on_lead(self, call: Callable[[Epoch], None]) -> None:
        """Call `call` whenever this node becomes the active controller."""
        self._lead_calls.append(call)

    def on_follow(self, call: Callable[[Epoch, NodeId | None], None]) -> None:
        """Call `call` whenever this node learns of another leader, or of none."""
        self._follow_calls.append(call)

    def on_gone(self, call: Callable[[NodeId], None]) -> None:
        """Call `call` when a peer's connection to this node is lost."""
        self._gone_calls.append(call)

    def on_down(self, call: Callable[[NodeId], None]) -> None:
        """Call `call` when a peer's process is known to be gone."""
        self._down_calls.append(call)

    # Starting.

    async def open(self) -> None:
        """Find what is on disk."""
        await self.quorum.find_promises()
        found = await self._host.offload.run(self._snapshots.newest)
        self._snapshot: SnapshotId | None = None
        if found is not None:
            self._snapshot, records = found
            # In another thread: it takes a while if there are many partitions.
            image = await self._host.offload.run(partial(decode_snapshot, records))
            self._begin_from(self._snapshot, image)
        await self.log.open(self._snapshot.end if self._snapshot is not None else 0)
        self.hub = Hub(
            self._host,
            me=self._introduce,
            where=self.where,
            handlers=self._handlers,
            trust=self._trust,
            for_guests=(WhoAreYou,),
        )
        self.hub.on_hello(self._check_hello)
        for call in self._gone_calls:
            self.hub.on_gone(call)
        for call in self._down_calls:
            self.hub.on_down(call)
        self.metadata.join(self.quorum, self.hub)
        self.metadata.on_applied(self._count)

    async def listen(self, at: Endpoint) -> Endpoint:
        """Listen to peers; returns where, which is news if the port was 0."""
        heard_at = await self.hub.listen(at)
        if self.me.key.id not in self._contacts:
            self.me = Voter(self.me.key, heard_at.host, heard_at.port)
            self.quorum.me = self._formation.me = self.me
        return heard_at

    async def join(self) -> None:
        """Find or form the quorum, and take part in it; returns before anybody leads."""
        formed = await self._find_quorum()
        self.identity = await self._host.offload.run(
            partial(self._directory.adopt_cluster, self.identity, formed.cluster)
        )
        self._is_formed = True
        voters = self.metadata.image.voters
        await self.quorum.open(voters if len(voters) else VoterSet(formed.voters), self._snapshot)
        self._formation.newest_voters = self.quorum.raft.voters
        self._check_disk(self.quorum.raft.voters)
        self.quorum.start(self.hub)

    def _check_disk(self, voters: VoterSet) -> None:
        """Say what to do if the quorum knows this node with another disk."""
        known = voters.get(self.me.key.id)
        if known is None or known.key == self.me.key:
            return
        node = self.me.key.id
        if len(voters) == 1:
            raise StorageError(
                f"the metadata is kept by node {node} with the directory id {known.key.directory}, "
                f"but {META} says {self.me.key.directory}; only that directory may vote again. "
                f"Restore {META} from a backup, or put that id back"
            )
        _log.error(
            "the quorum knows node %d with another disk: this one follows, and does not vote. If "
            "the old disk is gone for good: tidelog quorum remove %d, tidelog quorum add %d",
            node,
            node,
            node,
        )

    async def _find_quorum(self) -> Formed:
        if self._is_alone or self.log.end > 0 or self._snapshot is not None:
            return await self._host.offload.run(self._form_alone)
        return await self._formation.join(self.hub)

    @property
    def _is_alone(self) -> bool:
        """Whether no other node is to be of this quorum."""
        return list(self._contacts) in ([], [self.me.key.id])

    def _note_loss(self) -> None:
        if self._acknowledgements is not None:
            self._acknowledgements.note_loss()

    def _form_alone(self) -> Formed:
        """A node that is alone, or that was before there were clusters, is a quorum of one."""
        formed = read_formed(self._host, self._directory.root)
        if formed is None:
            formed = Formed(cluster=self.identity.cluster_id, voters=(self.me,))
            write_formed(self._host, self._directory.root, formed)
        self._formation.formed = formed
        return formed

    def _introduce(self) -> Welcome:
        return Welcome(
            cluster=self.identity.cluster_id if self._is_formed else None,
            node=self.me.key.id,
            directory=self.me.key.directory,
        )

    def _check_hello(self, hello: Hello) -> str | None:
        """Refuse a second node of a number while the first one lives."""
        known = self.metadata.image.brokers.get(hello.node)
        if known is None or known.fenced or known.directory == hello.directory:
            return None
        return (
            f"two nodes have the id {hello.node}: one runs at {known.peer} with the data directory "
            f"{known.directory}, this one has {hello.directory}. Give this one another --node-id; "
            "or, if it replaces the other one, stop that first"
        )

    def where(self, node: NodeId) -> list[Endpoint]:
        """Where a peer may be: as it registered, as the quorum says, or as configured.

        Of the quorum's leader also whoever named it says where it is (`raft.messages`, rule 4).
        """
        places: dict[Endpoint, None] = {}
        if (broker := self.metadata.image.brokers.get(node)) is not None:
            places[broker.peer] = None
        if self._is_formed:
            raft = self.quorum.raft
            if raft.leader == node and (leads_at := raft.leader_endpoint) is not None:
                places[leads_at] = None
            if (voter := raft.voters.get(node)) is not None:
                places[voter.endpoint] = None
        if node in self._contacts:
            places[self._contacts[node]] = None
        places.pop(NOWHERE, None)
        return list(places)

    def waits_for(self) -> str | None:
        """Which voters must be started before anything is decided; None if enough are there.

        Voters that nobody has tried to reach yet are not counted as missing.
        """
        raft: Raft | None = getattr(self.quorum, "raft", None)
        if raft is not None and raft.leader is not None:
            return None
        voters = tuple(self._contacts) if raft is None else tuple(raft.voters.ids)
        missing = [node for node in voters if node != self.me.key.id and self.hub.is_missed(node)]
        # A quorum forms when all are there, and decides when more than half are.
        needed = len(voters) if raft is None else len(voters) // 2 + 1
        more = needed - (len(voters) - len(missing))
        if more <= 0:
            return None
        listed = ", ".join(map(str, missing))
        enough = f"; {more} more must run" if more < len(missing) else ""
        return f"waiting for {len(missing)} of {len(voters)} voters: {listed}{enough}"

    # The quorum reports back.

    def _begin_from(self, snapshot: SnapshotId, image: ClusterImage) -> VoterSet:
        self.metadata.begin_from(image, snapshot.end)
        self._records_since_snapshot = 0
        return image.voters

    def _on_lead(self, epoch: Epoch) -> None:
        self.metadata.leader_changed(self.me.key.id)
        for call in self._lead_calls:
            call(epoch)

    def _on_follow(self, epoch: Epoch, leader: NodeId | None) -> None:
        self.metadata.leader_changed(leader)
        for call in self._follow_calls:
            call(epoch, leader)

    def _count(self, records: Sequence[MetadataRecord]) -> None:
        self._records_since_snapshot += len(records)
        if any(isinstance(record, LeaderChanged | VotersChanged) for record in records):
            self._formation.newest_voters = self.metadata.image.voters
        if self._records_since_snapshot >= self._snapshot_records and not self._taking_snapshot:
            self._taking_snapshot = True
            self._records_since_snapshot = 0
            self.quorum.spawn(self._take_snapshot())

    async def _take_snapshot(self) -> None:
        """Snapshot the image as it is now; it is a value only until the next record.

        If the disk has no room for it, the next record makes this node try again.
        """
        for count, topic in enumerate(list(self.metadata.image.topics.values())):
            encode_topic(topic)  # what does not change until the snapshot is encoded by then
            if count % _TOPICS_AT_ONCE == 0:
                await asyncio.sleep(0)
        applied = self.metadata.applied
        snapshot = SnapshotId(applied, self.log.log.epochs.epoch_at(applied - 1))
        try:
            records = encode_snapshot(self.metadata.image)
            if not await self.quorum.keep_snapshot(snapshot, records):
                self._records_since_snapshot = self._snapshot_records
        finally:
            self._taking_snapshot = False

    async def stop(self) -> None:
        """Leave, handing over what this node leads."""
        await self.quorum.stop()
        self.hub.close()


def trust_of(config: NodeConfig) -> Trust:
    """By what a node believes its peers; ConfigError if it was told of a secret and given none."""
    if not config.cluster_secret:
        if config.cluster_secret_file:
            raise ConfigError("cluster.secret.file: it was not read")
        if config.cluster_secret_optional:
            raise ConfigError("cluster.secret.optional needs cluster.secret.file")
        return Trust()
    try:
        secret = Secret.parse(config.cluster_secret)
    except ValueError as error:
        raise ConfigError(f"cluster.secret.file {config.cluster_secret_file}: {error}") from None
    return Trust(secret, config.cluster_secret_optional)


def timing_of(config: NodeConfig) -> Timing:
    """How long a member of the quorum waits for what."""
    election = config.quorum_election_timeout_ms / 1000
    fetch = config.quorum_fetch_timeout_ms / 1000
    return Timing(
        election_timeout_min=election,
        election_timeout_max=2 * election,
        fetch_timeout=fetch,
        fetch_wait=min(0.5, fetch / 4),
    )
