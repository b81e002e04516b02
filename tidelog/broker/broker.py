"""One node's partitions, and the life that they share: start, housekeeping, stop.

Rule 1: the broker owns the partitions; handlers only borrow them for a request.
Rule 2: nothing is served before all of it is recovered and its epoch opened.
Rule 3: a disk that fails is the end of the process, without a clean marker; the next start knows.
"""

import asyncio
import logging
import math
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeVar
from uuid import UUID

from tidelog.broker.catching_up import CatchingUp
from tidelog.broker.checkpoints import GATHERED_AT_ONCE, Checkpoint
from tidelog.broker.feeding import Feeding
from tidelog.broker.fetching import Fetching
from tidelog.broker.following import Following
from tidelog.broker.in_sync import InSyncProposals
from tidelog.broker.log_starts import LogStarts
from tidelog.broker.removal import Removal
from tidelog.broker.replicas import Replicas
from tidelog.broker.reporting import Reporting
from tidelog.broker.room import DiskRoom
from tidelog.broker.scrubbing import TEND_SECONDS, Scrubber
from tidelog.broker.serving import Serving
from tidelog.broker.writing import Fate
from tidelog.cluster.active import ActiveController
from tidelog.cluster.asking import ControllerLine
from tidelog.cluster.electorate import Electorate
from tidelog.cluster.hub import Handler
from tidelog.cluster.member import Member
from tidelog.cluster.membership import Membership
from tidelog.cluster.messages import (
    AddToTransactions,
    ConfirmLeads,
    FanOut,
    FindOpenTransaction,
    ForgetReplica,
    ForgetReplicaAnswer,
    Serve,
    StopAnswer,
    StopNode,
    WriteMarkers,
)
from tidelog.cluster.metadata import Metadata
from tidelog.cluster.quorum_log import METADATA_PARTITION, QuorumLog
from tidelog.config import NodeConfig, TopicConfig, topic_config, with_node_changes
from tidelog.config.topic import BY_REPLICAS
from tidelog.controller.image import ClusterImage, TopicImage
from tidelog.controller.records import (
    MetadataRecord,
    TopicCreated,
    TopicDeleted,
    decode,
)
from tidelog.controller.registration import Registration
from tidelog.errors import (
    BrokerError,
    NotLeader,
    StorageError,
    StorageErrorAfterAppend,
    UnknownTopicOrPartition,
)
from tidelog.host import Host, Path, in_turns, unbroken
from tidelog.log import directory
from tidelog.log.cleaner import Cleaner
from tidelog.log.closing import close_logs
from tidelog.log.directory import DataDirectory, Identity
from tidelog.log.log import ColdRead, Log
from tidelog.log.recovery import find_damage
from tidelog.log.retention import has_deleted_segments, load_ages, new_start
from tidelog.log.rounds import Rounds
from tidelog.log.steps import is_short, shortage
from tidelog.log.tail import TailBudget
from tidelog.model import (
    INTERNAL_TOPICS,
    METADATA_TOPIC_ID,
    OFFSETS_TOPIC,
    QUEUES_TOPIC,
    TRANSACTIONS_TOPIC,
    Endpoint,
    NodeId,
    Offset,
    TopicPartition,
)
from tidelog.partition.driver import Partition
from tidelog.partition.follower import BeginAnew, Cut, Follower, LearnProducers, LogChange
from tidelog.peers.listener import Answer
from tidelog.peers.stream import PeerUnreachable
from tidelog.peers.wire import PeerRefused
from tidelog.raft.machine import Raft
from tidelog.raft.state import Timing
from tidelog.records import decode_batch, iterate_batches

_log = logging.getLogger(__name__)

T = TypeVar("T")

INTERNAL_TOPIC_CONFIG: Final = TopicConfig(
    retention_ms=-1, max_message_bytes=64 * 1024 * 1024, segment_bytes=100 * 1024 * 1024
)
"""Always synced, never deleted by age."""

COMPACTED_TOPIC_CONFIG: Final = replace(INTERNAL_TOPIC_CONFIG, cleanup_policy="compact")

_SILENT_SECONDS: Final = 3600.0
"""A producer that has written within this time is not forgotten, whatever the times of its records:
it may send again what it has had no answer to."""
_MIN_IN_SYNC_DEFAULT: Final = "log.min.insync.replicas"
_METADATA_READ_BYTES: Final = 8 * 1024 * 1024
_TOPICS_AT_ONCE = _TENDED_AT_ONCE = 100
"""How many are looked at in one turn of the loop."""
_EXPIRE_WAITS_SECONDS: Final = 0.5
_LEVEL_SECONDS_MAX: Final = 2.5
"""How often it is seen who waits, at the latest: tombstones wait for no others for long."""
_DRAIN_SECONDS_MAX: Final = 30.0
_ASK_AGAIN_SECONDS: Final = 0.1
_FORGET_SECONDS_MAX: Final = 2.0


def _not_yet(source: NodeId, asked: object, answer: Answer | None) -> None:
    """The node is still starting; whoever asks tries again."""
    if answer is not None:
        answer.fail("this node is not ready yet")


class Broker:
    """A node: its data directory, its metadata and its partitions."""

    def __init__(
        self, host: Host, config: NodeConfig, on_fatal: Callable[[BaseException], None]
    ) -> None:
        self.host = host
        self.config = config
        self.started_with = config
        self._configured_by: tuple[NodeConfig, dict[str, str]] | None = None
        """What `config` was last made of."""
        """The settings from the file, the environment and the flags; `config` may go beyond."""
        self.node_id = config.node_id
        self.endpoint = config.kafka_endpoint
        """Where clients reach this node; the face replaces it once it knows its port."""
        self.http: Endpoint | None = None
        """Where others reach this node's HTTP face; set by it."""
        self.budget = TailBudget(config.tail_max_bytes)
        self._on_fatal = on_fatal
        self._directory = DataDirectory(
            host, Path(config.data), reserve_bytes=config.disk_reserve_bytes
        )
        self.rounds = Rounds(host, self._directory.root, on_fatal)
        self.room = DiskRoom(on_change=lambda: self.membership.nudge())
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._inspecting: dict[Partition, None] = {}
        self.unserved: dict[TopicPartition, str] = {}
        """Partitions that this node leads and whose content it cannot serve, and why."""
        self._stop_calls: list[Callable[[], None]] = []
        self._closing_calls: list[Callable[[], Coroutine[Any, Any, None]]] = []
        self._deleted_calls: list[Callable[[str], None]] = []
        self._restoring_calls: list[Callable[[TopicPartition], None]] = []
        self._restored_calls: list[Callable[[TopicPartition, bool], None]] = []
        self._topic_configs: dict[str, tuple[object, TopicConfig]] = {}
        """What topics' settings came to when they were last looked at, and of what."""
        self.on_markers: Handler = _not_yet
        """Called when a coordinator ends transactions here; set by whoever writes markers."""
        self.on_places_to_add: Handler = _not_yet
        """Called when a leader has something to add to a transaction that is coordinated here."""
        self.on_find_open: Handler = _not_yet
        """Called when a leader asks whether a producer's transaction is open here."""
        self.on_confirm: Handler = _not_yet
        """Called when a leader asks whether it is still followed here."""
        self.on_stop_asked: Callable[[], None] = lambda: None
        """Called when an operator wants this node to stop; set by whoever runs it."""
        self.on_fan_out: Handler = _not_yet
        """Called when another node has a message for who listens here."""
        self.serving = Serving(self)
        self._moved_calls: list[Callable[[list[tuple[TopicPartition, bool]]], None]] = []
        self.identity: Identity
        self.member: Member
        self.metadata: Metadata
        self.membership: Membership
        self.controller: ActiveController
        self.electorate: Electorate
        self.replicas: Replicas
        self.cleaner: Cleaner
        self._following: Following
        self._removal: Removal
        self.log_starts: LogStarts
        self._reporting: Reporting
        self.catching_up: CatchingUp
        self.feeding: Feeding
        self.fetching: Fetching
        self.in_sync: InSyncProposals
        self.scrubber: Scrubber

    # Starting.

    async def start(self) -> None:
        """Recover everything, open this incarnation's epochs, and begin to lead."""
        await self.open()
        await self.begin()

    async def open(self) -> None:
        """Find what is on disk, and the quorum; nothing is served yet."""
        self.identity = await self.host.offload.run(
            partial(self._directory.open, self.config.node_id)
        )
        if not self._directory.was_clean and self._directory.durable_marks:
            _log.warning("the last stop was not clean; active segments are scanned")
        self.cleaner = Cleaner(
            self.host, self.rounds, self._directory,
            first_dirty=self._directory.read_checkpoint(directory.FIRST_DIRTY),
            key_bytes_max=self.config.log_cleaner_dedupe_buffer_size,
            bytes_per_second_max=self.config.log_cleaner_io_max_bytes_per_second,
        )  # fmt: skip
        self.replicas = Replicas(
            node_id=self.node_id, host=self.host, directory=self._directory, rounds=self.rounds,
            budget=self.budget, cleaner=self.cleaner, config_of=self.topic_config,
            change_disk=self._change_disk, has_lease=lambda: self.membership.has_lease,
            on_role=self._on_role, on_closed=self._on_closed,
            on_spent=lambda partition: self.spawn(self.in_sync.step_down(partition)),
            on_short=self.room.ran_out,
        )  # fmt: skip
        self._removal = Removal(
            self.host, self.rounds, self.replicas, directory=self._directory,
            change_disk=self._change_disk,
        )  # fmt: skip
        self.log_starts = LogStarts(
            self._directory, self.replicas, self._removal, change_disk=self._change_disk,
            spawn=self.spawn,
        )  # fmt: skip
        self.replicas.on_start_agreed = self.log_starts.agreed
        await self._join_cluster()

    async def _join_cluster(self) -> None:
        config = self.config
        self.member = Member(
            self.host, self._directory, self.identity, self.rounds, self.budget,
            quorum=config.quorum_nodes, timing=timing_of(config), on_fatal=self._on_fatal,
            snapshot_records=config.metadata_snapshot_records,
            segment_bytes=config.metadata_log_segment_bytes,
        )  # fmt: skip
        self.metadata = self.member.metadata
        lease_seconds = config.broker_session_timeout_ms / 1000
        self.controller = ActiveController(
            self.host, self.member, self._min_in_sync, self.topic_config,
            lease_seconds=lease_seconds,
        )  # fmt: skip
        self.electorate = Electorate(self.host, self.member)
        reporting = self._reporting = Reporting(self.node_id, self.metadata, self.replicas)
        self.replicas.on_decided, self.replicas.on_changed = reporting.repeat, reporting.mark
        self.membership = Membership(
            self.host, self.member, lease_seconds=lease_seconds,
            interval_seconds=config.broker_heartbeat_interval_ms / 1000, reporting=reporting,
            room=self.room, on_fatal=self._on_fatal,
        )  # fmt: skip
        self._following = Following(
            self.node_id, self.metadata, self.replicas, apply_configs=self.apply_configs,
            tell_deleted=self.tell_deleted, tell_moved=self._tell_moved,
        )  # fmt: skip
        self._replicate()
        await self.member.open()
        if config.peer_endpoint is not None:
            await self.member.listen(config.peer_endpoint)
        await self.member.join()
        self.controller.start()
        self.identity = self.member.identity

    def _replicate(self) -> None:
        """What this node's leaders and followers say to those of other nodes."""
        self.catching_up = CatchingUp(
            self.host, self.replicas, config=lambda: self.config, image=lambda: self.image,
            reports=lambda: self.controller.controller.reports,
        )  # fmt: skip
        self.member.handle(WriteMarkers, lambda *heard: self.on_markers(*heard))
        self.member.handle(AddToTransactions, lambda *heard: self.on_places_to_add(*heard))
        self.member.handle(FindOpenTransaction, lambda *heard: self.on_find_open(*heard))
        self.member.handle(Serve, self.serving.on_serve)
        self.member.handle(StopNode, self._on_stop_asked)
        self.member.handle(FanOut, lambda *heard: self.on_fan_out(*heard))
        self.member.handle(ConfirmLeads, lambda *heard: self.on_confirm(*heard))
        self.feeding = Feeding(self.host, self.member, self.replicas, self.catching_up)
        self.fetching = Fetching(
            self.host, self.member, self.replicas,
            broker_epoch=lambda: self.membership.broker_epoch, spawn=self.spawn,
            change_log=self._change_log, log_starts=self.log_starts,
            threshold=lambda: self.config.catchup_threshold_records,
        )  # fmt: skip
        self.in_sync = InSyncProposals(
            self.host, self.node_id, self.metadata, self.replicas, ControllerLine(self.member),
            lag_seconds_max=lambda: self.config.replica_lag_time_max_ms / 1000,
            acted=self._following.done,
        )  # fmt: skip
        self.scrubber = Scrubber(
            self.host, self.member, self.replicas, self.rounds, node_id=self.node_id,
            root=self.root, config=lambda: self.config, change_disk=self._change_disk,
            declare=self._declare,
        )  # fmt: skip
        self.feeding.on_may_join = self.in_sync.look_at
        self.feeding.on_suspect = self._suspect

    async def begin(self) -> None:
        """Register, recover this node's partitions, and lead what it is given to lead."""
        await self.membership.register(self._registration())
        await self._remove_leftovers()
        await self._following.catch_up()
        await self._remove_leftovers()  # what was moved away meanwhile was never opened
        await self._remove_half_made()
        for stranger in self._directory.strangers([*self._known(), METADATA_PARTITION]):
            _log.warning("%s is unknown to the cluster; it is kept and not served", stranger)
        self.spawn(self._following.run())
        self.spawn(self.in_sync.run())
        self.spawn(self.scrubber.run())
        self.membership.start()
        await self.membership.unfenced()
        await self.acted()
        self.repeat(self.config.log_cleaner_backoff_ms / 1000, self._compact)
        self.repeat(self.config.checkpoint_ms / 1000, self._checkpoint)
        self.repeat(self.config.retention_check_ms / 1000, self._delete_old)
        self.repeat(_EXPIRE_WAITS_SECONDS, self.replicas.expire_waits)
        lag_seconds_max = self.config.replica_lag_time_max_ms / 1000
        self.repeat(min(lag_seconds_max / 4, _LEVEL_SECONDS_MAX), self._drop_laggards)
        self.repeat(self.config.catchup_scan_ms / 1000, self.catching_up.look)
        self.repeat(self.config.catchup_check_ms / 1000, self.fetching.look)
        self.repeat(TEND_SECONDS, self.scrubber.tend)

    def _registration(self) -> Registration:
        me = self.member.me
        return Registration(
            cluster_id=self.identity.cluster_id, node=self.node_id,
            incarnation=self.host.new_id().hex, directory=me.key.directory,
            kafka=self.advertised, peer=me.endpoint,
            http=self.http, rack=self.config.rack or None, clean=self._directory.was_clean,
        )  # fmt: skip

    def _min_in_sync(self, topic: TopicImage) -> int:
        return self.topic_config(topic).min_insync_replicas

    def _known(self) -> list[TopicPartition]:
        return [name for _, name in self.image.partitions_on(self.node_id)]

    async def _remove_leftovers(self) -> None:
        held = {name: topic.id for topic, name in self.image.partitions_on(self.node_id)}
        held |= {partition.name: partition.topic_id for partition in self.replicas.all()}
        partitions = {topic.id: len(topic.partitions) for topic in self.image.topics.values()}
        await self.host.offload.run(partial(self._finish_removals, held, partitions))

    def _finish_removals(
        self, held: dict[TopicPartition, UUID], partitions: dict[UUID, int]
    ) -> None:
        """Remove what is left of replicas whose removal was committed while this node was away.

        Only with proof. A topic that the image does not know may be one that it does not know
        yet, and a directory that the log knows nothing of all that is left of lost metadata. Of
        one that it knows (`partitions`: how many they have), it knows who holds it: it has all
        that was committed before this node registered. Taken for a replica again one day, such a
        log would be one of long ago.
        """
        left = self._directory.leftovers({**held, METADATA_PARTITION: METADATA_TOPIC_ID})
        moved = [
            name for name, topic_id in left.items() if name.partition < partitions.get(topic_id, 0)
        ]
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

    async def _remove_half_made(self) -> None:
        """Remove what a crash left of directories before they said whose they are.

        Only if others hold the partition of that name; and only if nothing else is there.
        """
        half_made = []
        for stranger in self._directory.strangers([*self._known(), METADATA_PARTITION]):
            topic, _, number = stranger.rpartition("-")
            known, name = self.image.topics.get(topic), TopicPartition(topic, int(number))
            is_known = known is not None and name.partition < len(known.partitions)
            if is_known and str(name) == stranger and self._directory.topic_id_of(name) is None:
                half_made.append(name)
        try:
            await self.replicas.remove_half_made(half_made)
        except StorageError as error:  # each checkpoint tries again
            _log.info("half-made directories stay for now: %s", error)

    def _committed_changes(self) -> Iterator[MetadataRecord]:
        """What the metadata log holds and nobody can undo; at start only."""
        log, limit = self.member.log.log, self.metadata.applied
        offset = log.start
        while offset < limit:
            read = log.read(offset, _METADATA_READ_BYTES, limit)
            data = read.perform(self.host.disk) if isinstance(read, ColdRead) else b"".join(read[0])
            for header, batch in iterate_batches(data):
                for record in decode_batch(batch):
                    if record.value is not None:
                        yield decode(record.value)
                offset = header.next_offset

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
                self.image.topics.get(topic)
                if isinstance(topic, str)
                else self.image.topics_by_id.get(topic)
            )
            if found is None or not 0 <= number < len(found.partitions):
                raise
            if self.node_id in (known := found.partitions[number]).replicas:
                raise  # it is being opened, or could not be
            raise NotLeader(leader=known.leader) from None

    def partitions(self) -> list[Partition]:
        return self.replicas.all()

    def topic_config(self, topic: TopicImage) -> TopicConfig:
        if topic.name in (OFFSETS_TOPIC, TRANSACTIONS_TOPIC, QUEUES_TOPIC):
            return COMPACTED_TOPIC_CONFIG
        if topic.name in INTERNAL_TOPICS:
            return INTERNAL_TOPIC_CONFIG
        # Never by this node's own file: leaders and controllers must not differ in it.
        common = self.image.node_configs.get(None, {}).get(_MIN_IN_SYNC_DEFAULT, BY_REPLICAS)
        settings = (topic.config, self.config.topic_defaults, common)
        known = self._topic_configs.get(topic.name)
        if known is None or known[0] != settings:
            config = topic_config(topic.config, self.config.topic_defaults)
            if "min.insync.replicas" not in topic.config:
                config = replace(config, min_insync_replicas=int(common))
            known = self._topic_configs[topic.name] = settings, config
        return known[1]

    @property
    def advertised(self) -> Endpoint:
        if self.config.kafka_advertised:
            return Endpoint.parse(self.config.kafka_advertised)
        return self.endpoint

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
        changes: dict[str, str] = {}
        for node in (None, self.node_id):
            changes |= self.image.node_configs.get(node, {})
        if self._configured_by != (self.started_with, changes):
            self.config = with_node_changes(self.started_with, changes)
            self._configured_by = (self.started_with, changes)
        self.cleaner.configure(
            key_bytes_max=self.config.log_cleaner_dedupe_buffer_size,
            bytes_per_second_max=self.config.log_cleaner_io_max_bytes_per_second,
        )
        self.catching_up.configure()
        self.scrubber.configure()

    # Following the metadata.

    @property
    def acted_on(self) -> Offset:
        """Everything that the metadata has below it was acted on here."""
        return self._following.acted_on

    async def acted(self) -> None:
        """Wait until all that the image has by now was acted on here."""
        await self._following.done(self.metadata.applied)

    def on_moved(self, call: Callable[[list[tuple[TopicPartition, bool]]], None]) -> None:
        """Call `call` when partitions here are led anew, or are here no more; whether led here."""
        self._moved_calls.append(call)

    def _tell_moved(self, moved: list[tuple[TopicPartition, bool]]) -> None:
        for call in self._moved_calls:
            call(moved)

    def on_restored(
        self,
        before: Callable[[TopicPartition], None],
        call: Callable[[TopicPartition, bool], None],
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
        self._topic_configs.pop(name, None)
        for call in self._deleted_calls:
            call(name)

    async def _change_disk(self, work: Callable[[], T]) -> T:
        """Change files in a disk's thread. What is short is refused, any other failure is fatal."""
        try:
            return await self.host.offload.run(work)
        except OSError as error:
            if is_short(error):
                self.room.ran_out(error)
                raise StorageError(shortage(error)) from error
            self._on_fatal(error)
            raise

    # Replicating.

    def _on_role(self, cluster_id: int, partition: Partition) -> None:
        self.fetching.follow(cluster_id, partition)
        if partition.leader is not None and len(partition.leader.replicas) > 1:
            self.in_sync.look_at(partition)

    def _on_closed(self, partition: Partition) -> None:
        self.fetching.forget(partition)
        self._reporting.mark(partition)

    async def _change_log(
        self, partition: Partition, follower: Follower, change: LogChange
    ) -> None:
        """Do to a follower's log what its leader's history asks for.

        Not if the partition has another leader by then, who may ask for something else. A leader
        that tells of producers counts on this replica no more; otherwise it must be asked.
        """
        directory, name = self._directory, partition.name
        is_let_go = not isinstance(change, BeginAnew) or bool(change.producers)
        if partition.log.damaged_at is not None or not is_let_go:
            await self._leave_sets(partition, follower)

        def lower(mark: Offset, synced_end: Offset = 0) -> None:
            self.cleaner.unnote(name)
            directory.lower_mark(name, mark, synced_end)
            end = change.end if isinstance(change, Cut) else change.start
            directory.lower_watermark(name, end)

        def note(change: BeginAnew) -> None:
            lower(0)
            directory.raise_start(name, change.start)
            directory.note_purge(name, change.purged)

        async with partition.files, directory.noting:
            if partition.follower is not follower or not self.replicas.holds(partition):
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
                self.rounds.fail(error)  # half done: nothing may be called clean any more
                raise
            self.cleaner.forget(name)

    def _is_compacted_past(self, partition: Partition, end: Offset) -> bool:
        """Whether what lies before `end` may lack values for the sake of what lies behind it.

        Only what was committed is compacted: so that is cut off, by an operator's will, and nobody
        counts on this replica.
        """
        log = partition.log
        if not (partition.has_gaps or partition.purges.floor or log.swaps):
            return False
        cleaned_end = self.cleaner.first_dirty(partition.name) or 0
        return end < max(partition.high_watermark, cleaned_end)

    async def _leave_sets(self, partition: Partition, follower: Follower) -> None:
        """Wait until nobody counts on what is here; only then may it be discarded.

        The metadata must say so, and the leader must have acted on it: it knows what this replica
        told before, and would propose it for the in-sync set again by that.
        """
        self.membership.nudge()
        while self.replicas.holds(partition) and partition.follower is follower:
            topic = self.image.topics_by_id.get(partition.topic_id)
            known = None if topic is None else topic.partitions[partition.name.partition]
            if known is None:
                return
            if self.node_id in known.in_sync | known.eligible:
                await self.metadata.reached(self.metadata.applied + 1)
            else:
                asked = ForgetReplica(cluster_id=known.cluster_id, epoch=follower.epoch)
                answer = await self._ask_to_forget(follower.leader, asked)
                if answer.is_forgotten and answer.partition_epoch <= known.partition_epoch:
                    return
                await asyncio.sleep(_ASK_AGAIN_SECONDS)

    async def _ask_to_forget(self, leader: NodeId, asked: ForgetReplica) -> ForgetReplicaAnswer:
        try:
            return await self.member.hub.ask(
                leader, asked, ForgetReplicaAnswer, seconds_max=_FORGET_SECONDS_MAX
            )
        except (PeerUnreachable, PeerRefused):
            return ForgetReplicaAnswer()

    def _suspect(self, partition: Partition, offset: Offset) -> None:
        if partition not in self._inspecting:
            self._inspecting[partition] = None
            self.spawn(self._inspect(partition, offset))

    async def _inspect(self, partition: Partition, offset: Offset) -> None:
        """A follower got batches from `offset` on that do not check out: is it this disk?"""
        log = partition.log
        try:
            work = partial(find_damage, self.host.disk, log, offset)
            damaged_at, has_gap = await self.host.offload.run(work)
            if partition.log is not log:
                return
            if damaged_at is None:
                partition.is_sparse |= has_gap  # what the follower missed is not there
            elif not await self.scrubber.inspect(partition, damaged_at):
                self._declare(partition, log, damaged_at)
        except FileNotFoundError:
            return  # deleted or compacted meanwhile
        finally:
            del self._inspecting[partition]

    def _declare(self, partition: Partition, log: Log, offset: Offset) -> None:
        """A log cannot be read from `offset` on, nor mended: let others lead, and hold it."""
        if partition.log is not log or log.damaged_at is not None:
            return
        partition.note_damage(offset)
        _log.error("%s", log.refusal)
        self.membership.nudge()
        partition.on_reopened(partition)  # a follower reads it again, and not only when more comes

    async def _drop_laggards(self) -> None:
        """See who has fallen behind, and who waits at the end of what it follows."""
        await self.feeding.note_level()
        await self.in_sync.look_at_all()

    # Housekeeping.

    def spawn(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Run `work` beside everything else, no longer than the node."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            if not isinstance(error, OSError | StorageError):  # else the disk has failed
                _log.error("a part of the node failed", exc_info=error)
            self._on_fatal(error)

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

    async def _checkpoint(self) -> None:
        """Note durable ends, watermarks and starts; see whether a full disk has room again."""
        partitions = self.partitions()
        # That lets go of what ended below; nobody asks a follower.
        await in_turns(partitions, lambda partition: partition.last_stable_offset)
        if self.room.is_short:
            free = await self._change_disk(self._directory.find_room)
            await in_turns(partitions, partial(Partition.retry_full_disk, free_bytes=free))
            if not any(partition.disk_full for partition in partitions):
                self.room.has_again(free)
        self._following.retry()
        await self._removal.retry()
        self.log_starts.retry()
        await self._note_checkpoints()
        if not self._directory.reserve.is_whole:
            await self._change_disk(self._directory.reserve.fill)
        await self.scrubber.note()

    def _all_logs(self) -> list[Partition | QuorumLog]:
        return [*self.partitions(), self.member.log]

    async def _delete_old(self) -> None:
        """Retention, and forgetting producers that have gone."""
        now_ms, now = self.host.clock.wall_ms(), self.host.clock.monotonic()
        expiration_ms = self.config.producer_id_expiration_ms
        window_ms = self.config.idempotency_window_ms
        for count, partition in enumerate(self.partitions(), 1):
            if count % _TENDED_AT_ONCE == 0:
                await asyncio.sleep(0)  # others get their turn
            if not self.replicas.holds(partition):
                continue
            log, config = partition.log, partition.config
            log.producers.expire(
                now_ms - expiration_ms, end=log.end, now=now,
                seconds=min(expiration_ms / 1000, _SILENT_SECONDS),
            )  # fmt: skip
            log.producers.expire_once(now_ms - window_ms, now=now, seconds=window_ms / 1000)
            if has_deleted_segments(log) and self.replicas.holds(partition):
                await self._remove_deleted(partition)
                log = partition.log
            if not partition.leads():
                continue  # a follower's log begins where its leader's does
            if not config.deletes or (log.refusal is not None and not partition.disk_full):
                continue
            if len(sealed := log.segments[:-1]):
                await self.host.offload.run(partial(load_ages, self.host.disk, list(sealed)))
            if partition.log is not log or not self.replicas.holds(partition):
                continue  # opened again, or deleted, meanwhile
            if not partition.leads():
                continue  # another leads by now
            start = new_start(log, config, partition.high_watermark, now_ms)
            if start == log.end and log.active.size and start > log.start:
                log.roll()  # even the active segment is too old
                self.rounds.mark(partition)
            if start > log.start:
                _log.info(
                    "%s: retention moves the start from %d to %d", partition.name, log.start, start
                )
                partition.want_start(start)

    async def _remove_deleted(self, partition: Partition) -> None:
        """Remove files below the log's start that an earlier process has left."""
        try:
            await self._removal.advance_start(partition, partition.log.start)
        except UnknownTopicOrPartition:
            return  # deleted while this waited its turn
        except StorageError as error:
            _log.warning("%s: what is deleted is not all gone: %s", partition.name, error)

    async def _compact(self) -> None:
        """Compaction, until no log is due."""
        try:
            while await self.cleaner.clean_due(await self._compacted()):
                _log.debug("a log was compacted; others may be due")
        except OSError as error:
            if is_short(error):
                raise StorageError(shortage(error)) from error
            self._on_fatal(error)
            raise

    async def _compacted(self) -> list[Partition]:
        """Those whose policy is to compact; an active segment that must be compacted is sealed."""
        now_ms = self.host.clock.wall_ms()
        found: list[Partition] = []

        def look_at(partition: Partition) -> None:
            log, config = partition.log, partition.config
            if not config.compacts or not self.replicas.holds(partition):
                return
            found.append(partition)
            is_old = 0 <= log.active.first_timestamp_ms < now_ms - config.max_compaction_lag_ms
            if log.active.size and is_old and log.refusal is None:
                log.roll()
                self.rounds.mark(partition)

        await in_turns(self.partitions(), look_at, at_once=1000)
        return found

    async def advance_start(
        self, partition: Partition, start: Offset, deadline: float = math.inf
    ) -> None:
        """Delete what lies before `start`, or with -1 all that is committed.

        This node must lead. Returns once no later leader can have it again.
        """
        fate = Fate(deadline)
        if not partition.delete_before(start, fate) and (refusal := await fate.future) is not None:
            raise refusal

    async def _note_checkpoints(self) -> None:
        async with self._directory.noting:  # an older state must not be written after a newer one
            checkpoint = Checkpoint(self._directory)
            await in_turns(self._all_logs(), checkpoint.add, at_once=GATHERED_AT_ONCE)
            # Nor after a cut: a thread that still writes holds what was promised before it.
            await unbroken(self._change_disk(checkpoint.write))

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
        self.feeding.close()
        self.membership.end()
        await self.member.stop()
        clean = await self.finish_writes()
        error = StorageErrorAfterAppend("the node is stopping")
        await in_turns(self.partitions(), partial(Partition.resign, error=error))
        await self.host.offload.run(partial(self._close, self._all_logs(), clean))

    async def _stop_housekeeping(self) -> None:
        for call in self._stop_calls:
            call()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _close(self, partitions: Sequence[Partition | QuorumLog], clean: bool) -> None:
        if clean:
            logs = [p.log for p in partitions]
            close_logs(self.host.disk, self._directory.root, logs)
            for log in logs:
                log.synced(log.written_end)
            Checkpoint(self._directory).add_all(partitions).write()
        self._directory.close(clean=clean)

    async def abandon(self) -> None:
        """Stop without another word to the disk, which has failed: the next start is unclean."""
        await self._stop_housekeeping()
        for partition in self.partitions():
            partition.resign(StorageErrorAfterAppend("the disk has failed; the node is stopping"))


def timing_of(config: NodeConfig) -> Timing:
    """How long a member of the quorum waits for what."""
    election = config.quorum_election_timeout_ms / 1000
    fetch = config.quorum_fetch_timeout_ms / 1000
    return Timing(
        election_timeout_min=election, election_timeout_max=2 * election, fetch_timeout=fetch,
        fetch_wait=min(0.5, fetch / 4),
    )  # fmt: skip


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
