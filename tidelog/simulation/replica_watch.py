"""Looks at every replica of every partition, while whole clusters run under faults.

| invariant                        | meaning                                                       |
|----------------------------------|---------------------------------------------------------------|
| one leader in a partition's epoch| no two processes ever lead a partition in one epoch           |
| one writer in a partition's epoch| no two processes ever append in one epoch                     |
| epochs never fall                | leader, partition and broker epochs, in any log and any life  |
| the log's start never falls      | of any replica, over the lives of its node, nor of leaders    |
| deleted is not shown again       | once a client was told so                                     |
| start <= watermark <= end        | on every replica of every node                                |
| the watermark never falls        | on any replica, within a life of its node, unless its log     |
|                                  | begins anew, or was damaged: then nobody counts on it         |
| no client is shown less          | who tells a watermark tells one as high as earlier leaders'   |
| a leader lacks nothing committed | its log reaches, and agrees with, the highest watermark ever  |
| a short set commits nothing      | fewer in sync than the topic demands: no watermark moves      |
| acknowledged is on enough disks  | synced on `min.insync.replicas` when the watermark covers it  |
| committed is held by all in sync | by every member of every set that may be the committed one    |
| who is in sync has it all        | all that is committed, when the metadata says that it is so,  |
|                                  | when its log is opened, and when its log was cut; or, alone   |
|                                  | on a rotten disk, it knows, and nobody leads                  |
| committed has an intact copy     | synced, and not known to be damaged, where a leader may come  |
|                                  | from: among those in sync and the eligible                    |
| in-sync logs agree               | in who wrote what, below the watermark                        |
| acknowledged is committed        | no client is told of a record that no watermark covers        |
| a fenced leader is alone         | it acknowledges nothing that it alone has (acks=1)            |
| synced is there after a restart  | unless the log was being cut                                  |
| producers are a fold of the log  | of all batches that are there, and of no others               |

Where an election by force may lose records (`losses`), what it has lost counts no more, and nothing
else is excused.

What a topic's `durability` makes of "synced" is meant: with `replicated` it is "written". There a
machine that lost power has only what it had synced, and is counted on until it registers again.

Rule 1: what is compared is what is there: logs as they are on each node, sets as the metadata log
        has them. What a leader believes of its followers counts for nothing here.
Rule 2: watermarks are judged at the moment when they move, for a follower may sync a millisecond
        later; logs when they are opened, for a leader may have them cut a millisecond later; all
        else every few events.
Rule 3: of a node that is down, what its last process had synced is remembered.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final
from uuid import UUID

from tidelog.config.topic import min_in_sync_of
from tidelog.controller.image import PartitionImage
from tidelog.controller.records import (
    BrokerRegistered,
    MetadataRecord,
    PartitionChanged,
    PartitionsAdded,
    TopicCreated,
    TopicDeleted,
)
from tidelog.log.epochs import EpochHistory
from tidelog.log.producers import ProducerStates
from tidelog.log.transactions import Transactions, fold
from tidelog.model import Epoch, NodeId, Offset, TopicPartition
from tidelog.partition.driver import Partition
from tidelog.partition.leader import Leader
from tidelog.simulation.losses import Kept, Losses, agreement, by_force
from tidelog.simulation.machine import Machine
from tidelog.simulation.quorum import PARTITION_LEADER, quorum_of
from tidelog.simulation.replicas_seen import (
    Committed,
    Key,
    ProcessLife,
    ReplicaCopy,
    ReplicaView,
    agree,
    copy_of,
    may_hold_less,
)
from tidelog.simulation.world import World

ONE_LEADER: Final = PARTITION_LEADER
ONE_WRITER: Final = "one writer in a partition's epoch"
EPOCHS: Final = "epochs never fall"
STARTS: Final = "the log's start never falls"
DELETED: Final = "deleted is not shown again"
BOUNDS: Final = "start <= watermark <= end"
WATERMARK: Final = "the watermark never falls"
SHOWN: Final = "no client is shown less"
WHOLE: Final = "a leader lacks nothing committed"
SHORT: Final = "a short set commits nothing"
ENOUGH: Final = "acknowledged is on enough disks"
HELD: Final = "committed is held by all in sync"
JOINED: Final = "who is in sync has it all"
INTACT: Final = "committed has an intact copy"
AGREE: Final = "in-sync logs agree"
COMMITTED: Final = "acknowledged is committed"
ALONE: Final = "a fenced leader is alone"
DURABLE: Final = "synced is there after a restart"
PRODUCERS: Final = "producers are a fold of the log"

_CHECK_EVERY_EVENTS: Final = 16


class ReplicaWatch:
    """Looks at every node of a world, and remembers what was ever seen."""

    def __init__(self, world: World, losses: Losses | None = None) -> None:
        """`losses` are kept if an election by force may lose records."""
        self._world = world
        self._losses = losses
        self._lives: dict[int, ProcessLife] = {}
        self._left: dict[tuple[int, Key], ReplicaCopy] = {}
        self._topics: dict[str, UUID] = {}
        self._alive: frozenset[UUID] = frozenset()
        """The ids of the topics that are there, by the newest metadata that a node has applied."""
        self._states: dict[Key, dict[int, PartitionImage]] = {}
        self._newest: dict[Key, PartitionImage] = {}
        self._leaders: dict[tuple[Key, Epoch], tuple[int, int]] = {}
        self._writers: dict[tuple[Key, Epoch], tuple[int, int]] = {}
        self._committed: dict[Key, Committed] = {}
        self._starts: dict[Key, tuple[Epoch, Offset]] = {}
        """Where the newest leader has shown that its log begins, and its epoch."""
        self._applied: Offset = -1
        self._fenced: frozenset[NodeId] = frozenset()
        self._registered: dict[NodeId, int] = {}
        self._lost_memory: dict[NodeId, int] = {}
        """Who lost power, and in which broker epoch; nobody knows until it has a later one."""
        self._find = world.find
        self.compacted: frozenset[str] = frozenset()
        """Topics in whose logs offsets may be missing: where an epoch began, each copy may say
        otherwise."""
        self.on_committed: list[Callable[[Machine, Partition, Offset], None]] = []
        """Told, inside of a node's event, that a leader has raised its watermark to an offset."""
        world.on_new_disk.append(self._forget)
        world.on_end.append(self._leave)
        world.invariant("replicas", self._check, every=_CHECK_EVERY_EVENTS)

    # What is asked by those who know what clients were told.

    def acknowledged(self, place: TopicPartition, end: Offset) -> None:
        """A client was told that everything below `end` is committed."""
        committed = self._committed.get((self._topics[place.topic], place.partition))
        if self._losses is not None:
            return  # they know it of each record
        if committed is None or committed.end < end:
            known = None if committed is None else committed.end
            self._world.fail(COMMITTED, f"{place}: {end} was acknowledged, {known} is committed")

    def fenced(self) -> frozenset[NodeId]:
        """Those whom nobody counts on."""
        return self._fenced

    def acknowledged_alone(self, place: TopicPartition, node: NodeId, base: Offset, epoch: Epoch) -> None:
        """A node, fenced before it was asked, in or after `epoch`, has acknowledged with acks=1."""
        key = (self._topics[place.topic], place.partition)
        copy = self._copy_of(node, key)
        if copy is None or self._world.faults["skew_clock"]:
            return  # leases are kept by clocks
        if self._losses is not None and self._losses.of(str(place)).cuts:
            return  # what is there now may be what another wrote before
        wrote_in = EpochHistory(copy.epochs).epoch_at(base)
        if base < copy.written_end and wrote_in < epoch:
            self._world.fail(ALONE, f"{node}, {place} {base}: in epoch {wrote_in}, not {epoch}")

    def epoch_of(self, place: TopicPartition) -> Epoch:
        """The newest leader epoch of a partition that any node knows of."""
        newest = self._newest.get((self._topics[place.topic], place.partition))
        return -1 if newest is None else newest.epoch

    # Every few events.

    def _check(self) -> str | None:
        for machine in self._world.machines.values():
            life = self._lives.get(machine.number)
            if life is None or life.number != machine.lives:
                if not self._attach(machine):
                    continue
                life = self._lives[machine.number]
            if machine.process is None:
                continue
            seen_at = (machine.process.ran_at, self._world.deletions)
            if seen_at == life.seen_at:
                continue  # nothing of it can have changed
            life.seen_at = seen_at
            views = life.views
            for partition in machine.node.broker.partitions():
                view = views.get(partition)
                if view is None:
                    view = views[partition] = self._open(machine, partition)
                self._meet_log(view)
                if not machine.is_damaged:
                    self._look(view)
        return None

    def _look(self, view: ReplicaView) -> None:
        partition = view.partition
        log, watermark = partition.log, partition.high_watermark
        if not log.start <= watermark <= log.end:
            self._find(BOUNDS, f"{view}: {log.start}, {watermark}, {log.end}")
        if watermark < self._least(view, view.watermark):
            self._find(WATERMARK, f"{view}: from {view.watermark} to {watermark}")
        view.watermark = watermark
        if log.start < self._least(view, view.start, is_start=True):
            self._find(STARTS, f"{view}: from {view.start} to {log.start}")
        view.start = log.start
        if log.damaged_at != view.damaged_at:
            view.damaged_at = log.damaged_at
            if (state := self._newest.get(view.key)) is not None:
                self._judge_copies(view.key, state)
        if (leader := partition.leader) is not None and leader.knows_watermark:
            self._look_at_shown_start(view, log.start)
        role = partition.leader or partition.follower
        if role is not None:
            if role.epoch < view.epoch:
                self._find(EPOCHS, f"{view}: from {view.epoch} to {role.epoch}")
            view.epoch = role.epoch
        if leader is not None or (partition.follower is not None and partition.follower.is_aligned):
            view.agreed_in = view.epoch

    def _kept(self, view: ReplicaView) -> Kept | None:
        return None if self._losses is None else self._losses.of(str(view.partition.name))

    def _least(self, view: ReplicaView, offset: Offset, *, is_start: bool = False) -> Offset:
        """How much of what a replica had below `offset` no election by force has taken from it.

        Where the log began is forgotten with what is lost.
        """
        if (kept := self._kept(view)) is None:
            return offset
        role = view.partition.leader or view.partition.follower
        now_in = view.epoch if role is None else role.epoch
        least = kept.floor(view.agreed_in, now_in, offset)
        return 0 if is_start and least < offset else min(least, offset)

    def _look_at_shown_start(self, view: ReplicaView, start: Offset) -> None:
        """Clients are shown by a leader that the log begins there. One that is deposed may lag."""
        assert view.partition.leader is not None
        epoch, newest = view.partition.leader.epoch, self._newest.get(view.key)
        shown_in, shown = self._starts.get(view.key, (epoch, 0))
        if epoch < shown_in or (newest is not None and epoch < newest.epoch):
            return
        if start < shown:
            self._find(STARTS, f"{view}: {start} is shown, {shown} was shown before")
        deleted = self._world.deleted_before.get(view.partition.name, 0)
        if start < deleted:
            self._find(DELETED, f"{view}: {start} is shown, all before {deleted} was deleted")
        self._starts[view.key] = (epoch, start)

    # Processes that come and go.

    def _attach(self, machine: Machine) -> bool:
        """Hear of all that a process learns of the metadata from now on."""
        broker = getattr(machine.node, "broker", None)
        if quorum_of(machine) is None or not hasattr(broker, "replicas"):
            return False
        life = self._lives[machine.number] = ProcessLife(machine)
        metadata = machine.node.broker.metadata

        def heard(records: Sequence[MetadataRecord]) -> None:
            if not machine.is_damaged:
                self._hear(machine, life, records)

        def opened(partition: Partition) -> None:
            life.views[partition] = self._open(machine, partition)

        metadata.on_applied(heard)
        machine.node.broker.replicas.on_opened = opened
        heard(())
        return True

    def _leave(self, machine: Machine) -> None:
        """The process ends: remember what it has on its disk."""
        life = self._lives.get(machine.number)
        if life is not None and life.number == machine.lives:
            if not machine.has_power:
                self._lost_memory[machine.number] = self._registered.get(machine.number, -1)
            for view in life.views.values():
                newest = self._newest.get(view.key)
                if newest is not None and machine.number not in newest.replicas:
                    continue  # it is removed, here or at the next start
                if not machine.node.broker.replicas.holds(view.partition):
                    continue  # it was closed, and its files are gone
                copy = copy_of(view.partition.log)
                copy.start = view.partition.log_start.noted
                copy.is_changing = view.cuts.is_half_done
                if not machine.has_power:
                    copy.written_end = copy.synced_end
                self._left[machine.number, view.key] = copy

    def _forget(self, machine: Machine) -> None:
        """Whatever was on its disk is gone."""
        for at in [at for at in self._left if at[0] == machine.number]:
            del self._left[at]

    def _open(self, machine: Machine, partition: Partition) -> ReplicaView:
        view = ReplicaView(machine, (partition.topic_id, partition.name.partition), partition)
        left = self._left.pop((machine.number, view.key), None)
        if left is not None and not left.is_changing and not machine.is_damaged:
            if partition.log.start < left.start:
                self._find(STARTS, f"{view}: from {left.start} to {partition.log.start}")
            end = left.firm_end(partition.config.durability)
            if partition.log.end < end:
                self._find(DURABLE, f"{view} ends at {partition.log.end}, {end} was synced")
        self._judge_log(view)
        partition.watch(partial(self._watermark_moved, view))
        partition.watch_log(partial(self._log_moved, view))
        self._log_moved(view)
        return view

    # The metadata.

    def _hear(self, machine: Machine, life: ProcessLife, records: Sequence[MetadataRecord]) -> None:
        image = machine.node.broker.image
        if not records:  # a snapshot, or the beginning
            for place in image.places.values():
                self._topics[place.topic.name] = place.topic.id
                self._learn(machine, life, (place.topic.id, place.number), place.partition)
        for record in records:
            match record:
                case PartitionChanged():
                    key = (UUID(record.topic), record.partition)
                    self._learn(machine, life, key, PartitionImage.of(record.state))
                case TopicCreated() | PartitionsAdded():
                    name = record.name if isinstance(record, TopicCreated) else record.topic
                    if (topic := image.topics.get(name)) is None:
                        continue  # deleted by a later record
                    self._topics[name] = topic.id
                    for number, state in enumerate(topic.partitions):
                        if (topic.id, number) not in life.states:
                            self._learn(machine, life, (topic.id, number), state)
                case BrokerRegistered():
                    if record.broker_epoch <= life.broker_epoch:
                        before = f"{record.broker_epoch} after {life.broker_epoch}"
                        self._find(EPOCHS, f"broker epochs, by {machine.name}: {before}")
                    life.broker_epoch = record.broker_epoch
                    self._register(record.node, record.broker_epoch)
        life.broker_epoch = max(life.broker_epoch, image.broker_epoch_last)
        applied = machine.node.broker.metadata.applied
        if applied > self._applied:
            self._applied = applied
            self._fenced = frozenset(n for n, broker in image.brokers.items() if broker.fenced)
            if not records or any(isinstance(r, TopicCreated | TopicDeleted) for r in records):
                self._alive = frozenset(topic.id for topic in image.topics.values())

    def _register(self, node: NodeId, broker_epoch: int) -> None:
        self._registered[node] = max(broker_epoch, self._registered.get(node, -1))
        if broker_epoch > self._lost_memory.get(node, broker_epoch):
            del self._lost_memory[node]

    def _is_unsure(self, node: NodeId, durability: str) -> bool:
        """Whether others must believe that it holds what it may have lost with its memory."""
        return durability != "fsync" and node in self._lost_memory

    def _learn(self, machine: Machine, life: ProcessLife, key: Key, state: PartitionImage) -> None:
        before = life.states.get(key, (-1, -1))
        now = (state.epoch, state.partition_epoch)
        if now[0] < before[0] or now[1] < before[1]:
            self._find(EPOCHS, f"{key}, by {machine.name}: (leader's, partition's) {before}, {now}")
        life.states[key] = now
        self._states.setdefault(key, {}).setdefault(state.partition_epoch, state)
        newest = self._newest.get(key)
        if newest is None or state.partition_epoch > newest.partition_epoch:
            self._newest[key] = state
            self._look_for_force(key, newest, state)
            for node in self._world.machines:
                if node not in state.replicas:
                    self._left.pop((node, key), None)
            self._judge_members(key, state)

    def _look_for_force(self, key: Key, before: PartitionImage | None, state: PartitionImage) -> None:
        name = next((name for name, topic in self._topics.items() if topic == key[0]), None)
        if name is None or self._losses is None:
            return
        place = TopicPartition(name, key[1])
        if place in self._world.may_lose and by_force(before, state):
            self._losses.of(str(place)).pending = state.epoch

    def _judge_members(self, key: Key, state: PartitionImage) -> None:
        for node in sorted(state.in_sync):
            self._judge_member(node, key, state)
        self._judge_copies(key, state)

    def _meet_log(self, view: ReplicaView) -> None:
        """See whether the partition goes on with another log."""
        partition = view.partition
        if view.log is partition.log:
            return
        if may_hold_less(view.log, partition.log) or view.cuts.was_damaged:
            view.watermark = min(view.watermark, partition.high_watermark)
        view.log = partition.log
        self._judge_log(view)

    def _judge_log(self, view: ReplicaView) -> None:
        """A log is another one than before: opened, or opened again after it was cut."""
        state = self._newest.get(view.key)
        if state is not None and view.machine.number in state.in_sync:
            self._judge_member(view.machine.number, view.key, state)
        if state is not None:
            self._judge_copies(view.key, state)

    def _judge_copies(self, key: Key, state: PartitionImage) -> None:
        """The sets, or a log, or what is known of its damage, are others than before."""
        committed = self._counted(key)
        if committed is None or state.epoch < committed.epoch or committed.durability != "fsync":
            return
        if self._is_pending(key):
            return
        seen: dict[NodeId, ReplicaCopy | None] = {}
        for node in sorted(state.in_sync | state.eligible):
            copy = seen[node] = self._copy_of(node, key)
            if copy is not None and (copy.is_changing or copy.has_intact(committed.end)):
                return
            if self._world.machines[node].is_damaged:
                return  # a fault that was asked for took it
        self._find(INTACT, f"{key}: up to {committed.end}; there is {seen}")

    def _counted(self, key: Key) -> Committed | None:
        """What is committed of a partition that is there: what was deleted may be anywhere gone."""
        return self._committed.get(key) if key[0] in self._alive else None

    def _judge_member(self, node: NodeId, key: Key, state: PartitionImage) -> None:
        committed = self._counted(key)
        if committed is None or state.epoch < committed.epoch or self._is_pending(key):
            return
        if self._is_unsure(node, committed.durability):
            return
        machine, copy = self._world.machines[node], self._copy_of(node, key)
        is_last = state.in_sync == {node} and state.leader != node
        if machine.is_damaged and is_last and self._knows_loss(node, key):
            return  # a start may have cut what was rotten; it is the last, and waits for the others
        has = -1 if copy is None else copy.firm_end(committed.durability)
        if has < committed.end and (copy or machine.is_up):
            self._find(
                JOINED,
                f"{key}: {node} has {has}, {committed.end} is committed; in sync are "
                f"{sorted(state.in_sync)} since partition epoch {state.partition_epoch}",
            )

    def _knows_loss(self, node: NodeId, key: Key) -> bool:
        """Whether the replica says that it may lack something, or is not there to say so."""
        partition = self._partition_of(node, key)
        return partition is None or partition.is_cut or partition.log.damaged_at is not None

    def _is_pending(self, key: Key) -> bool:
        """Whether somebody is to lead by force, and nobody knows yet what that one has."""
        if self._losses is None:
            return False
        names = (name for name, topic in self._topics.items() if topic == key[0])
        return any(self._losses.of(f"{name}-{key[1]}").pending is not None for name in names)

    def _sets(self, key: Key, leader: Leader) -> list[PartitionImage]:
        """What the leader knows to be decided, and what it has not heard of yet, in its epoch."""
        known, newest = self._states.get(key, {}), self._newest.get(key)
        if newest is None:
            return []
        epochs = range(leader.partition_epoch, newest.partition_epoch + 1)
        states = [known[epoch] for epoch in epochs if epoch in known]
        return [state for state in states if state.epoch == leader.epoch]

    # The moments that count.

    def _log_moved(self, view: ReplicaView) -> None:
        partition = view.partition
        leader = partition.leader
        if leader is not view.leader:
            view.leader = leader
            if leader is not None:
                self._begins(view, leader)
        if leader is not None and view.writes_in < leader.epoch <= partition.log.epochs.latest:
            view.writes_in = leader.epoch
            other = self._writers.setdefault((view.key, leader.epoch), view.me)
            if other != view.me:
                self._find(ONE_WRITER, f"{view} {leader.epoch}: (node, life) {other}, {view.me}")

    def _begins(self, view: ReplicaView, leader: Leader) -> None:
        """A process leads in an epoch from now on."""
        other = self._leaders.setdefault((view.key, leader.epoch), view.me)
        if other != view.me:
            self._find(ONE_LEADER, f"{view} {leader.epoch}: (node, life) {other} and {view.me}")
        self._look_for_loss(view, leader)
        committed, log = self._committed.get(view.key), view.partition.log
        # One that was deposed before it knew that it leads may lack what the next one committed.
        if committed is not None and leader.epoch > committed.epoch and not view.machine.is_damaged:
            if log.end < committed.end:
                self._find(
                    WHOLE,
                    f"{view} leads in {leader.epoch} and ends at {log.end}; {committed.end} was "
                    f"committed in {committed.epoch}",
                )
            elif view.partition.name.topic not in self.compacted and not agree(
                log.epochs, log.start, committed.epochs, committed.start, committed.end
            ):
                self._find(
                    WHOLE,
                    f"{view} leads in {leader.epoch} with the epochs {list(log.epochs)}; committed "
                    f"up to {committed.end} was {list(committed.epochs)}",
                )
            elif leader.knows_watermark and leader.high_watermark < committed.end:
                self._find(SHOWN, f"{view}: {leader.high_watermark} after {committed.end}")
        self._watermark_moved(view)

    def _look_for_loss(self, view: ReplicaView, leader: Leader) -> None:
        """If it leads by force, what it has is all that is committed from now on."""
        kept = self._kept(view)
        if kept is None:
            return
        topic = view.machine.node.broker.image.topics_by_id.get(view.key[0])
        if topic is not None:  # its node may act before it tells that it has heard
            life = self._lives[view.machine.number]
            self._learn(view.machine, life, view.key, topic.partitions[view.key[1]])
        if kept.pending is None or leader.epoch < kept.pending:
            return
        partition, committed = view.partition, self._committed.get(view.key)
        log, pending = partition.log, kept.pending
        has = 0
        if committed is not None:
            has = agreement(log.epochs, log.start, partition.held_end, kept.chain, kept.end)
            self._world.trace.note(
                view.machine.name,
                f"{partition.name}: leads by force in {leader.epoch} with {has} of {committed.end}",
            )
            self._committed[view.key] = Committed(
                leader.epoch, has, log.start, tuple(log.epochs), committed.durability
            )
        assert self._losses is not None
        self._losses.begun(str(partition.name), pending, has)
        self._world.forced[partition.name] += 1
        self._starts.pop(view.key, None)
        self._world.deleted_before.pop(partition.name, None)

    def _watermark_moved(self, view: ReplicaView) -> None:
        self._meet_log(view)
        leader, watermark = view.partition.leader, view.partition.high_watermark
        if watermark == view.watermark:
            return
        if watermark < view.watermark:
            if not view.machine.is_damaged and watermark < self._least(view, view.watermark):
                self._find(WATERMARK, f"{view}: from {view.watermark} to {watermark}")
        elif leader is not None:
            self._judge(view, leader)
        view.watermark = watermark

    def _judge(self, view: ReplicaView, leader: Leader) -> None:
        """A leader has raised its watermark: was it allowed to?"""
        log, key, end = view.partition.log, view.key, leader.high_watermark
        if key[0] not in self._alive:
            # The topic is deleted: other replicas may have removed what they told of.
            self._tell_committed(view, end)
            return
        if (kept := self._kept(view)) is not None:
            self._keep(view, leader)
            if kept.is_deposed(leader.epoch):
                return  # by force: those whom it counts on may follow another by now
        if sets := self._sets(key, leader):
            self._judge_sets(view, end, sets)
        committed = self._committed.get(key)
        if committed is None or end > committed.end:
            durability = view.partition.config.durability
            self._committed[key] = Committed(leader.epoch, end, log.start, tuple(log.epochs), durability)
        self._tell_committed(view, end)

    def _tell_committed(self, view: ReplicaView, end: Offset) -> None:
        for tell in self.on_committed:
            tell(view.machine, view.partition, end)

    def _keep(self, view: ReplicaView, leader: Leader) -> None:
        """Remember all that was committed just now."""
        assert self._losses is not None
        partition, end = view.partition, leader.high_watermark
        log = partition.log
        batches = view.machine.batches(log, max(log.start, view.watermark), end)
        self._losses.committed(str(partition.name), leader.epoch, batches, end, log.epochs)

    def _judge_sets(self, view: ReplicaView, end: Offset, sets: Sequence[PartitionImage]) -> None:
        """Everything below `end` counts as committed, and each of `sets` may be the in-sync set."""
        config, log = view.partition.config, view.partition.log
        replicas, in_sync = sets[0].replicas, sets[0].in_sync
        needed = min_in_sync_of(config, sets[0].replication)
        if len(in_sync) < needed:
            self._find(SHORT, f"{view}: {sorted(in_sync)} commit up to {end}, not {needed}")
        # Of a disk that is damaged nobody knows; its node may hold it or not.
        sound = [node for node in replicas if not self._world.machines[node].is_damaged]
        copies = {node: self._copy_of(node, view.key) for node in sound}
        lacking = {
            node: copy
            for node, copy in copies.items()
            if (copy is None or copy.firm_end(config.durability) < end)
            and not self._is_unsure(node, config.durability)
        }
        # Fewer suffice where a replica was let go and the leader has not heard of it: who went may
        # have told of what it held, and deleted it since.
        enough = min(needed, min_in_sync_of(config, self._newest[view.key].replication))
        if len(replicas) - len(lacking) < enough:
            self._find(ENOUGH, f"{view}: up to {end}, and not {enough} hold it: {lacking}")
        members = {node for state in sets for node in state.in_sync}
        # Who was let go meanwhile, even if it came back, was so once those who stay had all that it
        # had told of.
        for node in sorted(members.intersection(*self._replicas_since(view.key, sets[0]))):
            if node in lacking:
                self._find(HELD, f"{view} commits up to {end}; {node} has {lacking[node]}")
            copy = copies.get(node)
            if view.partition.name.topic in self.compacted:
                continue
            if copy and not agree(log.epochs, log.start, copy.epochs, copy.start, end):
                self._find(AGREE, f"{view}: {list(log.epochs)}, and {node} has {copy} to {end}")

    def _replicas_since(self, key: Key, state: PartitionImage) -> Iterable[tuple[NodeId, ...]]:
        """The replicas of a partition in that state, and in every one after it."""
        for number, later in self._states[key].items():
            if number >= state.partition_epoch:
                yield later.replicas

    def _copy_of(self, node: NodeId, key: Key) -> ReplicaCopy | None:
        partition = self._partition_of(node, key)
        return self._left.get((node, key)) if partition is None else copy_of(partition.log)

    def _partition_of(self, node: NodeId, key: Key) -> Partition | None:
        broker = getattr(self._world.machines[node].node, "broker", None)
        replicas = getattr(broker, "replicas", None)
        return None if replicas is None else replicas.get(*key)

    # What is dear: every batch of every log is read.

    def check_producers(self) -> None:
        """Compare what every log knows of its producers with what its batches say."""
        if self._world.faults["jump_clock"]:
            return  # some may have expired
        for machine in self._world.machines.values():
            broker = getattr(machine.node, "broker", None)
            if not machine.is_up or machine.is_damaged or broker is None:
                continue
            for found in broker.partitions():
                log = found.log
                if log.start or found.mending.is_changing:
                    continue
                folded, transactions = ProducerStates(), Transactions()
                for header, batch in machine.batches(log, 0, log.end):
                    fold(folded, transactions, header, batch)
                if folded != log.producers:
                    self._world.fail(
                        PRODUCERS,
                        f"{machine.name} {found.name}: {dict(log.producers.items())} is not "
                        f"{dict(folded.items())}",
                    )
