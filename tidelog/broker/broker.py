"""One node's partitions, and the life that they share: start, housekeeping, stop.

Rule 1: the broker owns the partitions; handlers only borrow them for a request.
Rule 2: nothing is served before all of it is recovered and its epoch opened.
Rule 3: a disk that fails is the end of the process, without a clean marker; the next start knows.
"""

import asyncio
import logging
import math
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Final
from uuid import UUID

from tidelog.broker.fenced_brokers import FencedBrokers
from tidelog.broker.housekeeping import Housekeeping
from tidelog.broker.leader_doubts import LeaderDoubts
from tidelog.broker.permissions import authorizer_of
from tidelog.broker.serving import Serving
from tidelog.broker.topic_configs import TopicConfigs, node_config_after
from tidelog.broker.writing import Fate
from tidelog.cluster.active import ActiveController
from tidelog.cluster.electorate import Electorate
from tidelog.cluster.hub import Handler, not_ready
from tidelog.cluster.member import ClusterMember, timing_of, trust_of
from tidelog.cluster.membership import Membership
from tidelog.cluster.messages import (
    AddToTransactions,
    ConfirmLeads,
    FanOut,
    FindOpenTransaction,
    Perform,
    Serve,
    StopAnswer,
    StopNode,
    WriteMarkers,
)
from tidelog.cluster.metadata import Metadata
from tidelog.config import NodeConfig, TopicConfig
from tidelog.controller.image import ClusterImage, TopicImage
from tidelog.controller.registration import Registration
from tidelog.errors import BrokerError, NotLeader, StorageError, StorageErrorAfterAppend
from tidelog.host import Host, Path, Tasks, in_turns
from tidelog.log import directory
from tidelog.log.cleaner import Cleaner
from tidelog.log.directory import DataDirectory, Identity
from tidelog.log.disk_room import DiskChanges, DiskRoom
from tidelog.log.rounds import Rounds
from tidelog.log.tail import TailBudget
from tidelog.model import Endpoint, NodeId, Offset, TopicPartition
from tidelog.partition.driver import Partition
from tidelog.peers.listener import Answer
from tidelog.raft.machine import Raft
from tidelog.replication.replica_reports import Reporting
from tidelog.replication.replicas import Replicas
from tidelog.replication.replication import Replication
from tidelog.replication.rot_healing import TEND_SECONDS

_log = logging.getLogger(__name__)

_TOPICS_AT_ONCE: Final = 100
"""How many are looked at in one turn of the loop."""
_EXPIRE_WAITS_SECONDS: Final = 0.5
_LEVEL_SECONDS_MAX: Final = 2.5
"""How often it is seen who waits, at the latest: tombstones wait for no others for long."""
_DRAIN_SECONDS_MAX: Final = 30.0


class Broker:
    """A node: its data directory, its metadata and its partitions."""

    def __init__(self, host: Host, config: NodeConfig, on_fatal: Callable[[BaseException], None]) -> None:
        self.host = host
        self.config = config
        self.started_with = config
        """The settings from the file, the environment and the flags; `config` may go beyond."""
        self._configured_by: tuple[NodeConfig, dict[str, str]] | None = None  # what `config` was made of
        self.node_id = config.node_id
        self.endpoint = config.kafka_endpoint
        """Where clients reach this node; the face replaces it once it knows its port."""
        self.http: Endpoint | None = None
        """Where others reach this node's HTTP face; set by it."""
        self.listeners: dict[str, Endpoint] = {}  # the same of further listeners, by name
        self.budget = TailBudget(config.tail_max_bytes)
        self._on_fatal = on_fatal
        self._directory = DataDirectory(host, Path(config.data), reserve_bytes=config.disk_reserve_bytes)
        self.rounds = Rounds(host, self._directory.root, on_fatal)
        self.room = DiskRoom(on_change=lambda: self.membership.nudge())
        self._change_disk = DiskChanges(host.offload, self.room, on_fatal)
        self._tasks = Tasks("node", on_fatal)
        self.spawn = self._tasks.spawn
        self.unserved: dict[TopicPartition, str] = {}
        """Partitions that this node leads and whose content it cannot serve, and why."""
        self._stop_calls: list[Callable[[], None]] = []
        self._closing_calls: list[Callable[[], Coroutine[Any, Any, None]]] = []
        self._deleted_calls: list[Callable[[str], None]] = []
        self._restoring_calls: list[Callable[[TopicPartition], None]] = []
        self._restored_calls: list[Callable[[TopicPartition, bool], None]] = []
        self._topic_configs = TopicConfigs()
        self.on_markers: Handler = not_ready
        """Called when a coordinator ends transactions here; set by whoever writes markers."""
        self.on_places_to_add: Handler = not_ready
        """Called when a leader has something to add to a transaction that is coordinated here."""
        self.on_find_open: Handler = not_ready
        """Called when a leader asks whether a producer's transaction is open here."""
        self.on_confirm: Handler = not_ready
        """Called when a leader asks whether it is still followed here."""
        self.on_stop_asked: Callable[[], None] = lambda: None
        """Called when an operator wants this node to stop; set by whoever runs it."""
        self.on_fan_out: Handler = not_ready
        """Called when another node has a message for who listens here."""
        self.on_perform: Handler = not_ready
        """Called when another node sends an operator's verb."""
        self.authorizer = authorizer_of(self)
        self.serving = Serving(self)
        self.fenced_brokers = FencedBrokers()
        self.leader_doubts: LeaderDoubts
        self._moved_calls: list[Callable[[list[tuple[TopicPartition, bool]]], None]] = []
        self.identity: Identity  # it and all below are there once the node is open
        self.cleaner: Cleaner
        self.member: ClusterMember
        self.metadata: Metadata
        self.membership: Membership
        self.controller: ActiveController
        self.electorate: Electorate
        self.replication: Replication
        self.replicas: Replicas
        self.housekeeping: Housekeeping

    # Starting.

    async def start(self) -> None:
        """Recover everything, open this incarnation's epochs, and begin to lead."""
        await self.open()
        await self.begin()

    async def open(self) -> None:
        """Find what is on disk, and the quorum; nothing is served yet."""
        self.identity = await self.host.offload.run(partial(self._directory.open, self.config.node_id))
        if not self._directory.was_clean and self._directory.durable_marks:
            _log.warning("the last stop was not clean; active segments are scanned")
        self.cleaner = Cleaner(
            self.host,
            self.rounds,
            self._directory,
            first_dirty=self._directory.read_checkpoint(directory.FIRST_DIRTY),
            key_bytes_max=self.config.log_cleaner_dedupe_buffer_size,
            bytes_per_second_max=self.config.log_cleaner_io_max_bytes_per_second,
        )
        await self._join_cluster()

    async def _join_cluster(self) -> None:
        config = self.config
        self.member = ClusterMember(
            self.host,
            self._directory,
            self.identity,
            self.rounds,
            self.budget,
            quorum=config.quorum_nodes,
            timing=timing_of(config),
            on_fatal=self._on_fatal,
            snapshot_records=config.metadata_snapshot_records,
            segment_bytes=config.metadata_log_segment_bytes,
            trust=trust_of(config),
        )
        self.metadata = self.member.metadata
        self.metadata.on_applied(
            lambda records: self.fenced_brokers.applied(self.image, records, self.host.clock.monotonic())
        )
        lease_seconds = config.broker_session_timeout_ms / 1000
        self.controller = ActiveController(
            self.host, self.member, self._min_in_sync, self.topic_config, lease_seconds=lease_seconds
        )
        self.electorate = Electorate(self.host, self.member)
        self._handle()
        self.replication = Replication(
            self.host,
            self.member,
            self.rounds,
            node_id=self.node_id,
            directory=self._directory,
            budget=self.budget,
            cleaner=self.cleaner,
            room=self.room,
            change_disk=self._change_disk,
            config=lambda: self.config,
            config_of=self.topic_config,
            reports=lambda: self.controller.controller.reports,
            make_membership=self._make_membership,
            spawn=self.spawn,
            apply_configs=self.apply_configs,
            tell_deleted=self.tell_deleted,
            tell_moved=self._tell_moved,
        )
        self.replicas, self.membership = self.replication.replicas, self.replication.membership
        self.housekeeping = Housekeeping(
            self.host,
            self.replication,
            self.rounds,
            config=lambda: self.config,
            directory=self._directory,
            cleaner=self.cleaner,
            room=self.room,
            change_disk=self._change_disk,
            metadata_log=lambda: self.member.log,
            on_fatal=self._on_fatal,
        )
        await self.member.open()
        self._watch_leaders()
        if config.peer_endpoint is not None:
            await self.member.listen(config.peer_endpoint)
        await self.member.join()
        self.controller.start()
        self.identity = self.member.identity

    def _watch_leaders(self) -> None:
        """Doubt leaders to which the connection breaks."""
        hub = self.member.hub
        doubts = self.leader_doubts = LeaderDoubts(
            self.node_id, image=lambda: self.image, is_connected=hub.is_connected, acted=self.acted
        )
        hub.on_broken(doubts.broke)
        hub.on_reached(doubts.reached)
        self.metadata.on_applied(lambda records: doubts.applied())

    def _make_membership(self, reporting: Reporting) -> Membership:
        return Membership(
            self.host,
            self.member,
            lease_seconds=self.config.broker_session_timeout_ms / 1000,
            interval_seconds=self.config.broker_heartbeat_interval_ms / 1000,
            reporting=reporting,
            room=self.room,
            on_fatal=self._on_fatal,
        )

    def _handle(self) -> None:
        """Hear what other nodes say; whoever acts on it may come later."""
        self.member.handle(WriteMarkers, lambda *heard: self.on_markers(*heard))
        self.member.handle(AddToTransactions, lambda *heard: self.on_places_to_add(*heard))
        self.member.handle(FindOpenTransaction, lambda *heard: self.on_find_open(*heard))
        self.member.handle(Serve, self.serving.on_serve)
        self.member.handle(StopNode, self._on_stop_asked)
        self.member.handle(Perform, lambda *heard: self.on_perform(*heard))
        self.member.handle(FanOut, lambda *heard: self.on_fan_out(*heard))
        self.member.handle(ConfirmLeads, lambda *heard: self.on_confirm(*heard))

    async def begin(self) -> None:
        """Register, recover this node's partitions, and lead what it is given to lead."""
        await self.membership.register(self._registration())
        replication, leftovers = self.replication, self.replication.leftovers
        await leftovers.remove()
        await replication.following.catch_up()
        await leftovers.remove()  # what was moved away meanwhile was never opened
        await leftovers.remove_half_made()
        for stranger in leftovers.strangers():
            _log.warning("%s is unknown to the cluster; it is kept and not served", stranger)
        self.spawn(replication.following.run())
        self.spawn(replication.in_sync.run())
        self.spawn(replication.scrubber.run())
        self.membership.start()
        await self.membership.unfenced()
        await self.acted()
        self.repeat(self.config.log_cleaner_backoff_ms / 1000, self.housekeeping.compact)
        self.repeat(self.config.checkpoint_ms / 1000, self.housekeeping.checkpoint)
        self.repeat(self.config.retention_check_ms / 1000, self.housekeeping.delete_old)
        self.repeat(_EXPIRE_WAITS_SECONDS, self.replicas.expire_waits)
        lag_seconds_max = self.config.replica_lag_time_max_ms / 1000
        self.repeat(min(lag_seconds_max / 4, _LEVEL_SECONDS_MAX), replication.drop_laggards)
        self.repeat(self.config.catchup_scan_ms / 1000, replication.catching_up.look)
        self.repeat(self.config.catchup_check_ms / 1000, replication.fetching.look)
        self.repeat(TEND_SECONDS, replication.scrubber.tend)

    def _registration(self) -> Registration:
        me = self.member.me
        return Registration(
            cluster_id=self.identity.cluster_id,
            node=self.node_id,
            incarnation=self.host.new_id().hex,
            directory=me.key.directory,
            kafka=self.advertised,
            peer=me.endpoint,
            http=self.http,
            rack=self.config.rack or None,
            listeners=self.listeners,
            clean=self._directory.was_clean,
        )

    def _min_in_sync(self, topic: TopicImage) -> int:
        return self.topic_config(topic).min_insync_replicas

    # Looking up.

    @property
    def root(self) -> Path:
        """The data directory."""
        return self._directory.root

    @property
    def image(self) -> ClusterImage:
        return self.metadata.image

    def partition(self, topic: str | UUID, number: int) -> Partition:
        """The partition on this node, or the error that a client should get."""
        try:
            return self.replicas.find(topic, number)
        except BrokerError:
            found = (
                self.image.topics.get(topic) if isinstance(topic, str) else self.image.topics_by_id.get(topic)
            )
            if found is None or not 0 <= number < len(found.partitions):
                raise
            if self.node_id in (known := found.partitions[number]).replicas:
                raise  # it is being opened, or could not be
            raise NotLeader(leader=known.leader) from None

    def partitions(self) -> list[Partition]:
        return self.replicas.all()

    def topic_config(self, topic: TopicImage) -> TopicConfig:
        return self._topic_configs.of(topic, self.image, self.config)

    @property
    def advertised(self) -> Endpoint:
        return self.config.listeners[0].advertised or self.endpoint

    @property
    def quorum(self) -> Raft | None:
        """This node's part in the quorum; None until it has found it."""
        member = getattr(self, "member", None)
        return None if member is None else getattr(member.quorum, "raft", None)

    def waits_for_voters(self) -> str | None:
        """Which voters must be started before this node gets on; None if it misses none."""
        member = getattr(self, "member", None)
        return None if member is None or not hasattr(member, "hub") else member.waits_for()

    @property
    def active_controller(self) -> NodeId:
        """Who decides; this node if nobody does, since any node takes what is to be decided."""
        leader = self.member.quorum.raft.leader
        return leader if leader is not None and self.image.is_alive(leader) else self.node_id

    async def apply_configs(self, topics: Sequence[str] | None) -> None:
        """Let the settings in the image take effect: of these topics, or of all and of the node."""
        if topics is None:
            self._apply_node_configs()
            topics = list(self.image.topics)
        for count, name in enumerate(topics, 1):
            if count % _TOPICS_AT_ONCE == 0:
                await asyncio.sleep(0)  # others get their turn
            if (topic := self.image.topics.get(name)) is not None:  # else deleted meanwhile
                work = partial(Partition.configure, config=self.topic_config(topic))
                await in_turns(self.replicas.of(name), work)

    def _apply_node_configs(self) -> None:
        configs = self.image.node_configs
        changes = {**configs.get(None, {}), **configs.get(self.node_id, {})}
        if self._configured_by != (self.started_with, changes):
            self.config = node_config_after(self.started_with, changes)
            self._configured_by = (self.started_with, changes)
        self.cleaner.configure(
            key_bytes_max=self.config.log_cleaner_dedupe_buffer_size,
            bytes_per_second_max=self.config.log_cleaner_io_max_bytes_per_second,
        )
        self.replication.catching_up.configure()
        self.replication.scrubber.configure()
        self.authorizer.configure(is_read_only=self.config.read_only)

    # Following the metadata.

    @property
    def acted_on(self) -> Offset:
        """Everything that the metadata has below it was acted on here."""
        return self.replication.following.acted_on

    async def acted(self) -> None:
        """Wait until all that the image has by now was acted on here."""
        await self.replication.following.done(self.metadata.applied)

    def on_moved(self, call: Callable[[list[tuple[TopicPartition, bool]]], None]) -> None:
        """Call `call` when partitions here are led anew, or are here no more; whether led here."""
        self._moved_calls.append(call)

    def _tell_moved(self, moved: list[tuple[TopicPartition, bool]]) -> None:
        for call in self._moved_calls:
            call(moved)

    def on_restored(
        self, before: Callable[[TopicPartition], None], call: Callable[[TopicPartition, bool], None]
    ) -> None:
        """Call `before` when batches of a backup are to be appended to a log, which it may refuse.

        Call `call` when they were, by this node as its leader, and when there are no more.
        """
        self._restoring_calls.append(before)
        self._restored_calls.append(call)

    def check_restoring(self, name: TopicPartition) -> None:
        """The error of whoever does not let the log be restored."""
        for call in self._restoring_calls:
            call(name)

    def tell_restored(self, name: TopicPartition, *, is_whole: bool) -> None:
        for call in self._restored_calls:
            call(name, is_whole)

    def on_topic_deleted(self, call: Callable[[str], None]) -> None:
        self._deleted_calls.append(call)

    def tell_deleted(self, name: str) -> None:
        """Let those know who keep something about a topic that is no more."""
        self._topic_configs.forget(name)
        for call in self._deleted_calls:
            call(name)

    # Housekeeping.

    def _on_stop_asked(self, source: NodeId, asked: StopNode, place: Answer | None) -> None:
        _log.info("an operator asks, by way of node %d, that this node stop", source)
        if place is not None:
            place.send(StopAnswer(node=self.node_id))
        self.on_stop_asked()

    def on_stop(self, call: Callable[[], None]) -> None:
        """Call `call` when the node stops, while its partitions are still open."""
        self._stop_calls.append(call)

    def on_closing(self, call: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Await `call` when the node stops, after all that ran beside everything else has ended."""
        self._closing_calls.append(call)

    def repeat(self, seconds: float, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Do `work` every so many seconds, as long as the node lives."""

        async def loop() -> None:
            while True:
                await asyncio.sleep(seconds)
                try:
                    await work()
                except StorageError as error:
                    _log.warning("%s is put off: %s", work.__name__, error)
                except OSError:
                    return  # the node is stopping

        self.spawn(loop())

    async def advance_start(self, partition: Partition, start: Offset, deadline: float = math.inf) -> None:
        """Delete what lies before `start`, or with -1 all that is committed.

        This node must lead. Returns once no later leader can have it again.
        """
        fate = Fate(deadline)
        if not partition.log_start.delete_before(start, fate) and (refusal := await fate.future) is not None:
            raise refusal

    # Stopping.

    async def finish_writes(self) -> bool:
        """Wait until everything appended is on disk, so that it is answered; whether it is."""
        try:
            async with asyncio.timeout(_DRAIN_SECONDS_MAX):
                await self.rounds.drained()
        except TimeoutError:
            _log.error("the disk did not finish in time; the next start will recover")
            return False
        return True

    async def stop(self) -> None:
        """Write and sync everything, note it, and leave a clean marker."""
        if len(self.image.nodes) > 1:
            await self.membership.leave()
        await self._stop_housekeeping()
        for call in self._closing_calls:
            await call()
        await self.cleaner.finish()
        self.replication.feeding.close()
        self.membership.end()
        await self.member.stop()
        clean = await self.finish_writes()
        error = StorageErrorAfterAppend("the node is stopping")
        await in_turns(self.partitions(), partial(Partition.resign, error=error))
        await self.host.offload.run(partial(self.housekeeping.close, self.housekeeping.all_logs(), clean))

    async def _stop_housekeeping(self) -> None:
        for call in self._stop_calls:
            call()
        await self._tasks.cancel()

    async def abandon(self) -> None:
        """Stop without another word to the disk, which has failed: the next start is unclean."""
        await self._stop_housekeeping()
        for partition in self.partitions():
            partition.resign(StorageErrorAfterAppend("the disk has failed; the node is stopping"))
