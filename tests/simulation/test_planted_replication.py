"""Bugs planted in replication (`RELIABILITY.md`, by their numbers), each found by its invariant.

Rule 1: a bug is planted by replacing a part of the product, never by a switch in it.
Rule 2: the same plan passes without the bug; so it is the bug that was found.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import Context
from dataclasses import dataclass
from functools import partial
from typing import Any, Final
from uuid import UUID

import pytest

from tidelog.client.admin import AdminClient
from tidelog.cluster.membership import Membership
from tidelog.cluster.messages import Progress
from tidelog.controller import elections, in_sync
from tidelog.controller.image import ClusterImage, PartitionImage, Place
from tidelog.controller.in_sync import WantedInSync, change_in_sync
from tidelog.controller.records import PartitionChanged
from tidelog.controller.reports import ReplicaReports
from tidelog.errors import BrokerError, TidelogError
from tidelog.log.epochs import EpochHistory
from tidelog.log.log import WriteJob
from tidelog.log.rounds import Rounds
from tidelog.log.steps import DiskFull, Write, Written
from tidelog.model import Epoch, NodeId, Offset, TopicPartition
from tidelog.partition.driver import Partition
from tidelog.partition.follower import Cut, Follower
from tidelog.partition.leader import Leader
from tidelog.partition.mending import Mending
from tidelog.records import Record, encode_batch
from tidelog.replication import follower_sessions as feeding
from tidelog.replication.follower_sessions import FollowerSessions
from tidelog.replication.leader_fetchers import Fetcher
from tidelog.simulation import replica_watch as watch
from tidelog.simulation.losses import Losses
from tidelog.simulation.machine import Machine
from tidelog.simulation.nodes import bootstrap, real_node
from tidelog.simulation.quorum import QuorumWatch, quorum_of
from tidelog.simulation.replicated import OneTryClient
from tidelog.simulation.swarm import make_plan, play
from tidelog.simulation.world import Violation, World
from tidelog.wire.apis import Api

# The bugs.


def plant_truncation_to_the_watermark(patch: pytest.MonkeyPatch) -> None:
    """1: whoever follows anew cuts its log to its own high watermark (before KIP-101)."""
    add = Fetcher.add

    def add_and_cut(self: Fetcher, cluster_id: int, partition: Partition) -> None:
        add(self, cluster_id, partition)
        follower = partition.follower
        if follower is not None and partition.log.end > partition.high_watermark:
            self._to_list.pop(cluster_id, None)
            self._change(partition, follower, cluster_id, Cut(partition.high_watermark))

    patch.setattr(Fetcher, "add", add_and_cut)


def plant_lost_epochs(patch: pytest.MonkeyPatch) -> None:
    """2: an epoch that the leader does not have is taken for the one before (before KIP-279)."""

    def disagreement(
        history: EpochHistory, log_end: Offset, offset: Offset, last_epoch: Epoch
    ) -> tuple[Epoch, Offset] | None:
        known, end = history.not_above(last_epoch, log_end)
        return None if offset <= end else (known, end)

    def differs(self: Follower, epoch: Epoch, end: Offset, **mine: Any) -> Cut:
        self.is_aligned = False
        return Cut(end)

    patch.setattr(feeding, "disagreement", disagreement)
    patch.setattr(Follower, "differs", differs)


def plant_zombie_progress(patch: pytest.MonkeyPatch) -> None:
    """3: what a follower tells counts in any epoch, session and life."""

    def on_progress(self: FollowerSessions, source: NodeId, told: Progress, place: object) -> None:
        for progress in told.replicas:
            partition = self.find(progress.cluster_id)
            if (leader := partition.leader) is not None:
                life = leader.followers[source].broker_epoch
                end = min(progress.end, partition.log.end)
                partition._settle(leader.holds(source, end, life))

    patch.setattr(FollowerSessions, "_on_progress", on_progress)


def plant_an_unknown_watermark_shown(patch: pytest.MonkeyPatch) -> None:
    """4: a new leader tells its watermark before it knows that none was higher."""
    patch.setattr(Leader, "knows_watermark", True)


def plant_an_early_shrink(patch: pytest.MonkeyPatch) -> None:
    """5: a smaller in-sync set counts as soon as it is proposed."""
    propose = Leader.propose

    def propose_and_count(self: Leader, *args: Any) -> Mapping[NodeId, int] | None:
        members = propose(self, *args)
        if members is not None:
            self.maximal = frozenset(members)
        return members

    patch.setattr(Leader, "propose", propose_and_count)


def plant_a_short_set_that_commits(patch: pytest.MonkeyPatch) -> None:
    """6: the last replica standing goes on alone."""
    patch.setattr(Leader, "is_short", False)


def plant_a_stale_join(patch: pytest.MonkeyPatch) -> None:
    """7: whoever joins may be in another life than the one that leader and controller heard."""
    patch.setattr(in_sync, "_check_member", lambda *_: None)
    patch.setattr(in_sync, "_check_health", lambda *_: None)


def plant_a_lease_without_end(patch: pytest.MonkeyPatch) -> None:
    """8: a leader that nobody counts on goes on by itself."""
    patch.setattr(Membership, "has_lease", True)


def plant_acknowledged_unsynced(patch: pytest.MonkeyPatch) -> None:
    """9: what is written counts as held, on every replica."""
    patch.setattr(Partition, "is_held_when_synced", False)


def plant_a_swallowed_sync_error(patch: pytest.MonkeyPatch) -> None:
    """10: a sync that failed counts as one that did not."""
    sync = Rounds._sync

    def swallow(self: Rounds, targets: Any) -> None:
        try:
            sync(self, targets)
        except OSError:
            sync(self, targets)

    patch.setattr(Rounds, "_sync", swallow)


def plant_producers_not_rebuilt(patch: pytest.MonkeyPatch) -> None:
    """12: after a cut the log knows its producers as they were before it."""
    change = Mending._change

    async def keep_producers(self: Mending, *work: Any) -> None:
        producers = self._partition.log.producers
        await change(self, *work)
        self._partition.log.producers = producers

    patch.setattr(Mending, "_change", keep_producers)


def plant_a_partial_append(patch: pytest.MonkeyPatch) -> None:
    """16: what did not fit on a full disk stays in the log."""
    note = Rounds._note_written

    def note_all(self: Rounds, member: Any, job: WriteJob, outcome: Written | DiskFull) -> bool:
        if isinstance(outcome, DiskFull):
            ends = [step.end for step in job.steps if isinstance(step, Write)]
            outcome = Written(max(ends, default=outcome.end))
        return note(self, member, job, outcome)

    patch.setattr(Rounds, "_note_written", note_all)


# Found by seeds.


@dataclass(frozen=True, kw_only=True)
class Swarm:
    """A bug, seeds of which one at least must find it, and as what."""

    plant: Callable[[pytest.MonkeyPatch], None]
    kinds: str
    seeds: tuple[int, ...]
    chaos_seconds: float
    finds: tuple[str, ...]


SWARMS: Final = [
    Swarm(
        plant=plant_an_early_shrink,
        kinds="cut,pause",
        seeds=(0, 3, 4, 12),
        chaos_seconds=10,
        finds=(watch.HELD, watch.ENOUGH),
    ),
    Swarm(
        plant=plant_a_short_set_that_commits,
        kinds="crash,isolate",
        seeds=(5, 0, 13, 22),
        chaos_seconds=10,
        finds=(watch.SHORT,),
    ),
    Swarm(
        plant=plant_acknowledged_unsynced,
        kinds="lose_power_everywhere",
        seeds=(0, 1, 2),
        chaos_seconds=3,
        finds=(watch.ENOUGH,),
    ),
    Swarm(
        plant=plant_a_swallowed_sync_error,
        kinds="fail_syncs,lose_power",
        seeds=(1, 6, 2),
        chaos_seconds=4,
        finds=(watch.DURABLE,),
    ),
    Swarm(
        plant=plant_producers_not_rebuilt,
        kinds="crash,isolate,pause,cut",
        seeds=(0, 6, 1),
        chaos_seconds=6,
        finds=(watch.PRODUCERS,),
    ),
    Swarm(
        plant=plant_a_partial_append,
        kinds="fill_disk,crash",
        seeds=(1, 2, 3),
        chaos_seconds=5,
        finds=(watch.DURABLE,),
    ),
]


@pytest.mark.parametrize("swarm", SWARMS, ids=lambda swarm: swarm.plant.__name__)
def test_seeds_find_what_is_planted(swarm, monkeypatch):
    plans = [
        make_plan(
            seed, story="replicated", nodes=3, kinds=swarm.kinds.split(","), chaos_seconds=swarm.chaos_seconds
        )
        for seed in swarm.seeds
    ]
    found = []
    with monkeypatch.context() as patch:
        swarm.plant(patch)
        for plan in plans:
            violation = play(plan).violation
            found.append(None if violation is None else violation.name)
            if found[-1] in swarm.finds:
                break

    assert found[-1] in swarm.finds, f"seeds {swarm.seeds} found {found}"
    assert play(plans[len(found) - 1]).violation is None


# Found by stories.

NODES: Final = 5
TOPIC: Final = "tide"
PLACE: Final = TopicPartition(TOPIC, 0)
SECONDS_MAX: Final = 20.0


class Stage:
    """Five nodes; a partition on three of them, none of which decides for the cluster."""

    def __init__(self, world: World, losses: Losses | None = None) -> None:
        self.world = world
        QuorumWatch(world)
        self.watch = watch.ReplicaWatch(world, losses)
        world.start()
        self.controller = next(n for n, m in world.machines.items() if _decides(m))
        self.nodes = [n for n in world.machines if n != self.controller][:3]
        world.do(self._create())
        world.run_until(lambda: self.state.in_sync == set(self.nodes), SECONDS_MAX)
        for node in self.nodes:
            world.run_until(partial(self.partition, node), SECONDS_MAX)

    async def _create(self) -> None:
        assignments = [{"partition_index": 0, "broker_ids": self.nodes}]
        topic = {
            "name": TOPIC,
            "num_partitions": -1,
            "replication_factor": -1,
            "assignments": assignments,
            "configs": [],
        }
        async with self.client(AdminClient, self.controller) as client:
            connection = await client.any_connection()
            await connection.call(Api.CREATE_TOPICS, topics=[topic], timeout=10_000, validate_only=False)

    def client(self, kind: type[Any], node: int) -> Any:
        network = self.world.client("story").network
        return kind(bootstrap(node), network=network, timeout_seconds=5.0)

    @property
    def image(self) -> ClusterImage:
        image: ClusterImage = self.world.node(self.controller).broker.image
        return image

    @property
    def place(self) -> Place:
        return Place(self.image.topics[TOPIC], 0)

    @property
    def state(self) -> PartitionImage:
        return self.place.partition

    @property
    def topic_id(self) -> UUID:
        return self.place.topic.id

    def partition(self, node: int) -> Partition | None:
        found: Partition | None = self.world.node(node).broker.replicas.get(self.topic_id, 0)
        return found

    def watermark(self, node: int) -> Offset | None:
        partition = self.partition(node)
        return None if partition is None else partition.high_watermark

    def has(self, node: int, end: Offset) -> bool:
        """Whether its log ends there, on its disk."""
        partition = self.partition(node)
        return partition is not None and partition.log.synced_end == partition.log.end == end

    def leads(self, node: int) -> bool:
        if not self.world.is_up(node):
            return False
        partition = self.partition(node)
        return (
            partition is not None
            and partition.leader is not None
            and partition.leader.epoch == self.state.epoch
        )

    def run_until(self, condition: Callable[[], object]) -> None:
        self.world.run_until(condition, SECONDS_MAX)

    def part(self, *nodes: int) -> None:
        """Let these hear nothing of each other."""
        for source in nodes:
            for target in nodes:
                if source != target:
                    self.world.cut(source, target)

    def send(self, node: int, count: int = 1, acks: int = -1) -> Any:
        """Begin to send records to the leader, as `node` knows it; the task that waits."""
        records = [Record(value=b"%d" % n, timestamp_ms=1) for n in range(count)]

        async def work() -> Offset | None:
            async with self.client(OneTryClient, node) as client:
                try:
                    found: Offset | None = await client.produce(TOPIC, 0, encode_batch(records), acks=acks)
                except TidelogError:
                    return None
                return found

        return self.world.client("story").spawn(work())

    def commit(self, count: int = 1) -> None:
        """Send records until they are acknowledged."""
        sent = self.send(self.controller, count)
        self.run_until(sent.done)
        assert sent.result() is not None

    def decide(self, node: int, change: Callable[[ClusterImage], list[Any]]) -> bool:
        """Let a node have something decided; whether it was."""

        async def work() -> bool:
            try:
                await self.world.node(node).broker.metadata.change(change)
            except BrokerError:
                return False
            return True

        task = self.world.loop.create_task(work(), context=self._context(node))
        self.run_until(task.done)
        return task.result()

    def inside(self, node: int, call: Callable[..., object], *args: Any) -> None:
        """Let it happen in the node's own process, as if a message had come."""
        self.world.loop.call_soon(call, *args, context=self._context(node))

    def _context(self, node: int) -> Context:
        process = self.world.machines[node].process
        assert process is not None
        return process.context.copy()

    def promote(self, node: int) -> None:
        """Let another member of the in-sync set lead; nobody leaves the set."""

        def change(image: ClusterImage) -> list[PartitionChanged]:
            place = Place(image.topics[TOPIC], 0)
            return [elections.promote(place, node, _electorate(image), force=False)]

        assert self.decide(self.controller, change)
        self.run_until(lambda: self.leads(node))


def _decides(machine: Machine) -> bool:
    quorum = quorum_of(machine)
    return quorum is not None and quorum.leads


def _electorate(image: ClusterImage) -> elections.Electorate:
    return elections.Electorate.of(image, ReplicaReports(), elections.min_in_sync())


@contextmanager
def a_stage(losses: Losses | None = None, seed: int = 8, **settings: Any) -> Iterator[Stage]:
    quorum = ",".join(f"{n}@node-{n}:9192" for n in range(1, NODES + 1))
    factory = partial(real_node, quorum=quorum, **settings)
    with World(seed, nodes=NODES, node_factory=factory) as world:
        yield Stage(world, losses)


def tell_truncation() -> None:
    """1: the second leader dies before the third replica has read again what it had cut."""
    with a_stage() as stage:
        first, second, third = stage.nodes
        stage.commit(3)
        stage.part(second, third)
        stage.send(first)
        stage.run_until(lambda: stage.watermark(first) == 4)
        stage.world.crash(first)  # nobody has told the others that it is committed
        stage.run_until(lambda: stage.leads(second) or stage.leads(third))
        leader, follower = (second, third) if stage.leads(second) else (third, second)
        stage.world.run(0.3)
        stage.world.crash(leader)
        stage.run_until(lambda: stage.leads(follower))


def tell_lost_epochs() -> None:
    """2: three leaders, the first of which also is the last."""
    with a_stage() as stage:
        first, second, third = stage.nodes
        world = stage.world
        stage.commit(10)
        stage.part(first, second, third)
        stage.send(first, 2)
        stage.run_until(lambda: stage.has(first, 12))
        stage.promote(second)
        stage.send(second, 2)
        stage.run_until(lambda: stage.has(second, 12))
        world.crash(second)
        stage.run_until(lambda: stage.leads(first))  # it has the longest log of an older epoch
        world.heal()
        stage.commit(1)
        world.restart(second)
        stage.run_until(lambda: second in stage.state.in_sync)
        stage.commit(1)


def tell_zombie_progress() -> None:
    """3: what a follower told in an epoch arrives two epochs later."""
    with a_stage() as stage:
        first, second, third = stage.nodes
        world = stage.world
        told: list[object] = []
        hub = world.node(second).broker.member.hub
        note = hub.note

        def tell(node: NodeId, message: object) -> None:
            told.append(message)
            note(node, message)

        hub.note = tell
        stage.commit(10)
        stage.part(first, third)
        stage.send(first, 2)
        stage.run_until(lambda: stage.has(second, 12))
        world.run(0.1)
        late = [message for message in told if isinstance(message, Progress)][-1]
        stage.promote(third)
        stage.run_until(lambda: stage.has(second, 10))
        world.heal()
        stage.run_until(lambda: stage.has(first, 10))
        stage.promote(first)
        stage.part(first, second)
        stage.send(first, 2)
        stage.run_until(lambda: stage.has(third, 12))
        world.run(0.1)
        stage.inside(first, world.node(first).broker.replication.feeding._on_progress, second, late, None)
        world.run(0.1)


def tell_a_failover() -> None:
    """4: the next leader has not heard yet of what the last one has shown."""
    with a_stage() as stage:
        first, *others = stage.nodes
        stage.commit(3)
        sent = stage.send(stage.controller)
        stage.run_until(lambda: all(stage.has(node, 4) for node in others))
        for node in others:
            stage.world.cut(first, node)
        stage.run_until(sent.done)
        assert sent.result() == 3
        stage.world.crash(first)
        stage.run_until(lambda: any(stage.leads(node) for node in others))
        stage.commit()


def tell_a_stale_join() -> None:
    """7: a node comes back with an empty disk, and the word that it may join is an old one."""
    with a_stage() as stage:
        leader, other, lost = stage.nodes
        world = stage.world
        stage.commit(10)
        old = {node: broker.broker_epoch for node, broker in stage.image.brokers.items()}
        world.lose_power(lost)
        world.replace_disk(lost)
        stage.run_until(lambda: lost not in stage.state.in_sync)
        world.run(3)
        for node in (leader, other):
            world.cut(node, lost)
        world.restart(lost)
        stage.run_until(lambda: world.is_up(lost))
        wanted = WantedInSync(
            topic_id=stage.topic_id,
            partition=0,
            leader=leader,
            broker_epoch=old[leader],
            epoch=stage.state.epoch,
            partition_epoch=stage.state.partition_epoch,
            in_sync={node: old[node] for node in (leader, other, lost)},
        )
        stage.decide(leader, lambda image: [change_in_sync(image, wanted, _electorate(image))])
        world.run(0.5)


def tell_a_zombie_leader() -> None:
    """8: a leader sleeps past its lease, wakes, and hears of nobody but a producer."""
    with a_stage() as stage:
        leader = stage.nodes[0]
        world = stage.world
        stage.commit(10)
        world.pause(leader)
        stage.run_until(lambda: stage.state.leader not in (leader, -1))
        stage.part(*world.machines)
        epoch = stage.watch.epoch_of(PLACE)
        assert leader in stage.watch.fenced()
        world.resume(leader)
        sent = stage.send(leader, acks=1)
        stage.run_until(sent.done)
        if sent.result() is not None:
            stage.watch.acknowledged_alone(PLACE, leader, sent.result(), epoch)


@pytest.mark.parametrize(
    ("plant", "tell", "finds"),
    [
        (plant_truncation_to_the_watermark, tell_truncation, watch.JOINED),
        (plant_lost_epochs, tell_lost_epochs, watch.AGREE),
        (plant_zombie_progress, tell_zombie_progress, watch.HELD),
        (plant_an_unknown_watermark_shown, tell_a_failover, watch.SHOWN),
        (plant_a_stale_join, tell_a_stale_join, watch.JOINED),
        (plant_a_lease_without_end, tell_a_zombie_leader, watch.ALONE),
    ],
)
def test_stories_find_what_is_planted(plant, tell, finds, monkeypatch):
    tell()

    plant(monkeypatch)

    with pytest.raises(Violation) as found:
        tell()
    assert found.value.name == finds
