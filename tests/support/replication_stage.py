"""One replicated partition on a stage: one command, then all that follows from it, line by line.

The machines `Leader` and `Follower` are the real ones; their logs are lists of epochs. A follower
asks when it is told to, once, and what it gets is synced and told at once unless its disk is slow.
Metadata is what the commands say: nobody elects here, and a proposal waits until it is decided on.

    brokers 101 102 103             these hold the partition; their logs are empty
    needs COUNT                     min.insync.replicas; 1 unless it is said
    log N 1x3,2x1 [watermark=W]     N holds 3 records of epoch 1 and one of 2, all synced
    lead N EPOCH [101,102 ...]      N leads in EPOCH, with that in-sync set; the others follow it
    write N COUNT                   N, a leader, appends; a producer waits with acks=all
    fetch N ...                     each of them asks its leader once
    progress N                      N tells again what it holds
    slow N / sync N                 N's disk syncs nothing more; it syncs all, and tells
    kill N / wipe N / start N       its process dies, unsynced records with it; so does its disk; it
                                    follows again
    consume N OFFSET / latest N     a consumer's fetch; ListOffsets
    wait SECONDS                    time passes
    propose N                       leader N looks at its in-sync set
    commit N / refuse N / lose N    the metadata shows it taken; it is refused; its reply is lost
    state                           who is what
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from tests.support.waiting import Waiting
from tidelog.log.epochs import EpochHistory
from tidelog.model import Epoch, NodeId, Offset
from tidelog.partition.follower import BeginAnew, Cut, Follower, disagreement
from tidelog.partition.leader import Leader, Settled

LAG_SECONDS_MAX = 10.0


@dataclass(slots=True)
class _Broker:
    node: NodeId
    life: int = 1
    is_alive: bool = True
    is_slow: bool = False
    log: list[Epoch] = field(default_factory=list)
    """Of each record the epoch that it was written in."""
    synced: Offset = 0
    watermark: Offset = 0
    leader: Leader | None = None
    follower: Follower | None = None

    @property
    def end(self) -> Offset:
        return len(self.log)

    @property
    def epochs(self) -> EpochHistory:
        history = EpochHistory()
        for offset, epoch in enumerate(self.log):
            history.assign(epoch, offset)
        return history

    @property
    def shown(self) -> Offset:
        return self.watermark if self.leader is None else self.leader.high_watermark


@dataclass(slots=True)
class Stage:
    """Takes commands, tells what happens."""

    now: float = 0.0
    lines: list[str] = field(default_factory=list)
    _brokers: dict[NodeId, _Broker] = field(default_factory=dict)
    _needs: int = 1
    _partition_epoch: int = 0
    _proposed: frozenset[NodeId] = frozenset()

    def command(self, line: str) -> str:
        """Do what `line` says; what happened, told."""
        self.lines = []
        name, *words = line.split()
        getattr(self, f"_do_{name}")(*words)
        return "\n".join(self.lines)

    # The scene.

    def _do_brokers(self, *nodes: str) -> None:
        self._brokers = {int(node): _Broker(int(node)) for node in nodes}

    def _do_needs(self, count: str) -> None:
        self._needs = int(count)

    def _do_log(self, node: str, runs: str, *settings: str) -> None:
        broker = self._brokers[int(node)]
        for run in runs.split(","):
            epoch, _, count = run.partition("x")
            broker.log += [int(epoch)] * int(count)
        broker.synced = broker.end
        for setting in settings:
            broker.watermark = int(setting.removeprefix("watermark="))

    def _do_lead(self, node: str, epoch: str, in_sync: str = "") -> None:
        leader = self._brokers[int(node)]
        chosen = in_sync.split(",") if in_sync else self._brokers
        members = sorted(int(member) for member in chosen)
        for broker in self._brokers.values():
            if broker.is_alive:
                self._resign(broker)
        leader.leader = Leader(
            me=leader.node,
            epoch=int(epoch),
            log_end=leader.end,
            held=leader.synced,
            high_watermark=min(leader.watermark, leader.end),
            in_sync=members,
            replicas=self._brokers,
            partition_epoch=self._partition_epoch,
            min_in_sync=self._needs,
            now=self.now,
        )
        self._tell(
            f"{node} leads {epoch} from {leader.end} on, watermark {leader.shown}, in sync {_names(members)}"
        )
        for broker in self._brokers.values():
            if broker is not leader and broker.is_alive:
                broker.follower = Follower(epoch=int(epoch), leader=leader.node)

    def _resign(self, broker: _Broker) -> None:
        if broker.leader is not None:
            broker.watermark = broker.leader.high_watermark
        broker.leader = broker.follower = None

    def _do_kill(self, node: str) -> None:
        broker = self._brokers[int(node)]
        self._resign(broker)
        broker.is_alive = False
        if broker.end > broker.synced:
            self._tell(f"{node} loses {broker.synced}..{broker.end}, which it had not synced")
            del broker.log[broker.synced :]

    def _do_wipe(self, node: str) -> None:
        self._do_kill(node)
        broker = self._brokers[int(node)]
        broker.log, broker.synced, broker.watermark = [], 0, 0

    def _do_start(self, node: str) -> None:
        broker, leader = self._brokers[int(node)], self._leader()
        broker.is_alive, broker.life = True, broker.life + 1
        assert leader.leader is not None
        broker.follower = Follower(epoch=leader.leader.epoch, leader=leader.node)
        self._tell(f"{node} follows {leader.node} in {leader.leader.epoch}, its log is {_of(broker)}")

    def _do_wait(self, seconds: str) -> None:
        self.now += float(seconds)

    # Records.

    def _do_write(self, node: str, count: str) -> None:
        broker = self._brokers[int(node)]
        leader = broker.leader
        assert leader is not None, "only leaders write"
        broker.log += [leader.epoch] * int(count)
        self._tell(f"{node} appends {broker.end - int(count)}..{broker.end} of epoch {leader.epoch}")
        if not leader.wait_committed(broker.end, Waiting(broker.end)):
            self._tell(f"{node} keeps the producer of ..{broker.end} waiting")
        leader.written(broker.end)
        self._sync(broker)

    def _do_slow(self, node: str) -> None:
        self._brokers[int(node)].is_slow = True

    def _do_sync(self, node: str) -> None:
        broker = self._brokers[int(node)]
        broker.is_slow = False
        self._sync(broker)

    def _sync(self, broker: _Broker) -> None:
        if broker.is_slow or not broker.is_alive:
            return
        broker.synced = broker.end
        if broker.leader is not None:
            self._settle(broker, broker.leader.holds(broker.node, broker.synced))
        elif broker.follower is not None and broker.follower.news(broker.synced):
            self._told(broker)

    def _do_progress(self, node: str) -> None:
        self._told(self._brokers[int(node)])

    def _told(self, broker: _Broker) -> None:
        follower = broker.follower
        assert follower is not None
        there = self._brokers[follower.leader]
        self._tell(f"{broker.node}->{there.node} I hold all below {broker.synced}")
        if there.leader is not None and there.leader.epoch == follower.epoch:
            held = min(broker.synced, there.end)
            self._settle(there, there.leader.holds(broker.node, held, broker.life))

    def _settle(self, broker: _Broker, settled: Settled) -> None:
        if settled.advanced:
            self._tell(f"{broker.node} watermark {broker.shown}")
        for waiter in settled.waiters:
            assert isinstance(waiter, Waiting)
            self._tell(f"{broker.node} answers the producer of ..{waiter.end}")

    # Fetching.

    def _do_fetch(self, *nodes: str) -> None:
        for node in nodes:
            self._fetch(self._brokers[int(node)])

    def _fetch(self, broker: _Broker) -> None:
        follower = broker.follower
        assert follower is not None, "only followers fetch"
        there = self._brokers[follower.leader]
        offset, last_epoch = broker.end, broker.epochs.latest
        self._tell(
            f"{broker.node}->{there.node} from {offset} in {follower.epoch}? (my last epoch: {last_epoch})"
        )
        leader = there.leader
        if leader is None or leader.epoch != follower.epoch:
            self._tell(f"{there.node}->{broker.node} I do not lead {follower.epoch}")
            return
        found = disagreement(there.epochs, there.end, offset, last_epoch)
        if found is not None:
            self._tell(f"{there.node}->{broker.node} epoch {found[0]} ends at {found[1]}")
            self._cut(broker, follower, found)
            return
        leader.fetched(broker.node, broker.life, offset, there.end, self.now)
        records = there.log[offset:]
        what = f"records {offset}..{there.end} of {_runs(records)}" if records else "nothing new"
        watermark = leader.high_watermark
        self._tell(f"{there.node}->{broker.node} {what}, watermark {watermark}")
        broker.log += records
        broker.watermark = max(broker.watermark, min(watermark, broker.end))
        if follower.agreed() and follower.news(broker.synced):
            self._told(broker)
        self._sync(broker)

    def _cut(self, broker: _Broker, follower: Follower, found: tuple[Epoch, Offset]) -> None:
        change = follower.differs(found[0], found[1], mine=broker.epochs, start=0, log_end=broker.end)
        match change:
            case Cut():
                self._tell(f"{broker.node} cuts {change.end}..{broker.end}")
                del broker.log[change.end :]
                broker.synced = min(broker.synced, broker.end)
            case BeginAnew():
                raise AssertionError("no log here begins after 0")

    # Consumers.

    def _do_consume(self, node: str, offset: str) -> None:
        broker = self._brokers[int(node)]
        assert broker.leader is not None
        if not broker.leader.knows_watermark:
            self._tell(f"{node} waits: its watermark may be lower than one that was shown")
        elif int(offset) >= broker.shown:
            self._tell(f"{node} waits: nothing is committed from {offset} on")
        else:
            self._tell(f"{node} gives {offset}..{broker.shown}")

    def _do_latest(self, node: str) -> None:
        broker = self._brokers[int(node)]
        assert broker.leader is not None
        is_known = broker.leader.knows_watermark
        self._tell(f"{node} latest: {broker.shown if is_known else 'OFFSET_NOT_AVAILABLE'}")

    # The in-sync set.

    def _do_propose(self, node: str) -> None:
        leader = self._brokers[int(node)].leader
        assert leader is not None
        lives = {broker.node: broker.life for broker in self._brokers.values() if broker.is_alive}
        members = leader.propose(self.now, LAG_SECONDS_MAX, lives)
        if members is None:
            self._tell(f"{node} has nothing to propose")
            return
        self._proposed = frozenset(members)
        self._tell(f"{node} proposes {_names(members)}; meanwhile {_names(leader.maximal)} count")

    def _do_commit(self, node: str) -> None:
        broker = self._brokers[int(node)]
        assert broker.leader is not None
        self._partition_epoch += 1
        self._tell(f"{node} hears: in sync are {_names(self._proposed)}")
        self._settle(broker, broker.leader.decided(self._proposed, self._partition_epoch))
        broker.leader.proposal_ended()

    def _do_refuse(self, node: str) -> None:
        self._refused(node, certain=True)

    def _do_lose(self, node: str) -> None:
        self._refused(node, certain=False)

    def _refused(self, node: str, *, certain: bool) -> None:
        broker = self._brokers[int(node)]
        assert broker.leader is not None
        settled = broker.leader.refused(certain=certain)
        self._tell(f"{node} counts {_names(broker.leader.maximal)}")
        self._settle(broker, settled)

    # Telling.

    def _do_state(self) -> None:
        for broker in self._brokers.values():
            role = "waits"
            if not broker.is_alive:
                role = "is dead"
            elif broker.leader is not None:
                role = f"leads {broker.leader.epoch}, in sync {_names(broker.leader.in_sync)}"
            elif broker.follower is not None:
                aligned = "follows" if broker.follower.is_aligned else "aligns with"
                role = f"{aligned} {broker.follower.leader} in {broker.follower.epoch}"
            self._tell(f"{broker.node} {role}; log {_of(broker)}, watermark {broker.shown}")

    def _leader(self) -> _Broker:
        return next(broker for broker in self._brokers.values() if broker.leader is not None)

    def _tell(self, line: str) -> None:
        self.lines.append(line)


def _names(nodes: Iterable[NodeId]) -> str:
    return ",".join(str(node) for node in sorted(nodes))


def _runs(log: list[Epoch]) -> str:
    epochs = dict.fromkeys(log)
    return ",".join(f"{epoch}x{log.count(epoch)}" for epoch in epochs) or "nothing"


def _of(broker: _Broker) -> str:
    return f"0..{broker.end} ({_runs(broker.log)})"
