"""One seed, one plan: which faults there may be, when each comes, and how everything is tuned.

Rule 1: the plan is made up front from the seed alone. A fault is a value, so that a plan can be
        shown, and shrunk by leaving some out.
Rule 2: a fault that lasts carries its own end.
Rule 3: each seed enables only some kinds. Where all of them happen at once, most histories look
        alike, and some bugs need a long time without a certain fault (swarm testing).

Phases: chaos -> heal -> everybody gets on within a deadline -> everything is compared.
"""

import random
import traceback
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, TypeAlias

from tidelog.config import TopicConfig
from tidelog.model import OFFSETS_TOPIC, QUEUES_TOPIC
from tidelog.simulation.disk import SimulatedDisk
from tidelog.simulation.groups import GroupLoad, GroupPace
from tidelog.simulation.keyvalue import KvLoad, KvPace
from tidelog.simulation.moves import draw_move, move
from tidelog.simulation.nodes import real_node
from tidelog.simulation.queues import QueueLoad, QueuePace
from tidelog.simulation.quorum import AdminPace, QuorumLoad
from tidelog.simulation.replicated import ReplicatedLoad
from tidelog.simulation.transactions import TransactionLoad, TransactionPace
from tidelog.simulation.workload import Pace, Workload
from tidelog.simulation.world import NodeFactory, Violation, World

STORIES: Final = ("alone", "cluster", "replicated", "groups", "transactions", "kv", "queues")
LIVENESS_SECONDS: Final = 120.0
UNFORESEEN: Final = "nobody stumbles"
"""Broken when whoever looks on fails by what it sees."""
START_SECONDS: Final = 60.0
HEALED_WINDOW_BYTES: Final = 256 * 1024
"""A narrow network is a hardship, too: reading everything through it would take hours."""

Arguments: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that befalls the world at `at` seconds after it has started."""

    at: float
    kind: str
    arguments: Arguments

    def __str__(self) -> str:
        arguments = ", ".join(f"{name}={_short(value)}" for name, value in self.arguments.items())
        return f"{self.at:8.3f} s  {self.kind}({arguments})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything that one seed decides before it is played."""

    seed: int
    nodes: int
    chaos_seconds: float
    faults: tuple[Fault, ...]
    network: Arguments = field(default_factory=dict)
    disk: Arguments = field(default_factory=dict)
    disk_seconds_max: float = 0.001
    node: Arguments = field(default_factory=dict)
    story: str = "alone"
    """`alone`: each node is a cluster of its own. `cluster`: all of them keep one metadata log.
    `replicated`: they also keep copies of each other's partitions. `groups`: consumers share out
    partitions, and commit how far they are. `transactions`: producers commit and abort, over many
    partitions, with offsets, and by decisions of groups. `kv`: clients put and get keys at any
    node."""
    pace: Pace = field(default_factory=Pace)
    group_pace: GroupPace = field(default_factory=GroupPace)
    transaction_pace: TransactionPace = field(default_factory=TransactionPace)
    kv_pace: KvPace = field(default_factory=KvPace)
    queue_pace: QueuePace = field(default_factory=QueuePace)
    admin_pace: AdminPace = field(default_factory=AdminPace)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of a plan."""

    seed: int
    violation: Violation | None
    events: int
    simulated_seconds: float
    operations: int
    acknowledged: int
    faults: Counter[str]
    effects: Counter[str]
    trace_hash: str
    trace: list[str]


# The kinds of faults: how to draw one, and how to let it happen.


class _Draw:
    """Draws the arguments of faults for one seed."""

    def __init__(self, generator: random.Random, nodes: int, story: str) -> None:
        self.random = generator
        self.nodes = nodes
        self.rotten = {
            "replicated": "tide-", "groups": OFFSETS_TOPIC, "transactions": "tide-", "kv": "tide-",
            "queues": QUEUES_TOPIC,
        }.get(story, "")  # fmt: skip
        """What the paths of files that rot have in common; where it is known to be bearable."""
        self.moves: dict[str, Any] = {}
        """What an operator who moves replicas chooses from."""

    def node(self) -> int:
        return self.random.randint(1, self.nodes)

    def seconds(self, low: float, high: float) -> float:
        """Mostly short, at times long."""
        return round(low + (high - low) * self.random.random() ** 2, 3)

    def hosts(self) -> tuple[int | str, int | str]:
        """Two that talk: a node and its client, in either direction, or two nodes."""
        node = self.node()
        other: int | str = f"client-{node}"
        if self.nodes > 1 and self.random.random() < 0.3:
            other = self.random.choice([n for n in range(1, self.nodes + 1) if n != node])
        return (node, other) if self.random.random() < 0.5 else (other, node)


def _crash(world: World, node: int, down_seconds: float) -> None:
    world.crash(node)
    world.after(down_seconds, world.restart, node)


def _stop(world: World, node: int, down_seconds: float) -> None:
    world.count("stop")
    world.stop(node)
    world.after(down_seconds, world.restart, node)


def _lose_power(world: World, node: int, down_seconds: float) -> None:
    world.lose_power(node)
    world.after(down_seconds, world.restart, node)


def _lose_power_everywhere(world: World, down_seconds: float) -> None:
    world.lose_power_everywhere()
    world.after(down_seconds, world.restart_everyone)


def _isolate_for(world: World, node: int, seconds: float) -> None:
    world.isolate(node, seconds)


_Kind: TypeAlias = tuple[Callable[[_Draw], dict[str, Any]], Callable[..., None]]

KINDS: Final[dict[str, _Kind]] = {
    "crash": (lambda d: {"node": d.node(), "down_seconds": d.seconds(0, 5)}, _crash),
    "stop": (lambda d: {"node": d.node(), "down_seconds": d.seconds(0.5, 5)}, _stop),
    "lose_power": (lambda d: {"node": d.node(), "down_seconds": d.seconds(0, 5)}, _lose_power),
    "lose_power_everywhere": (
        lambda d: {"down_seconds": d.seconds(0, 5)},
        _lose_power_everywhere,
    ),
    "lose_power_in_write": (
        lambda d: {"node": d.node(), "changes": d.random.randint(1, 60)},
        World.lose_power_in_write,
    ),
    "pause": (lambda d: {"node": d.node(), "seconds": d.seconds(0.1, 8)}, World.pause),
    "cut": (
        lambda d: dict(
            zip(("source", "target"), d.hosts(), strict=True), seconds=d.seconds(0.1, 8)
        ),
        World.cut,
    ),
    "isolate": (lambda d: {"node": d.node(), "seconds": d.seconds(0.1, 8)}, _isolate_for),
    "clog": (
        lambda d: dict(
            zip(("source", "target"), d.hosts(), strict=True),
            delay_seconds=d.seconds(0.05, 3), seconds=d.seconds(0.5, 8),
        ),
        World.clog,
    ),
    "reset": (
        lambda d: {"node": d.node(), "chance": round(d.random.uniform(0.2, 1), 2)},
        World.reset,
    ),
    "spike": (
        lambda d: {"chance": round(d.random.random(), 2), "seconds": d.seconds(0.5, 5)},
        World.spike,
    ),
    "stall_disk": (lambda d: {"node": d.node(), "seconds": d.seconds(0.05, 5)}, World.stall_disk),
    "slow_disk": (
        lambda d: {"node": d.node(), "factor": d.random.choice((10, 100)),
                   "seconds": d.seconds(0.5, 5)},
        World.slow_disk,
    ),
    "fill_disk": (
        lambda d: {"node": d.node(), "left_bytes": d.random.choice((0, 10, 500, 5000)),
                   "seconds": d.seconds(0.1, 5)},
        World.fill_disk,
    ),
    "fail_reads": (
        lambda d: {"node": d.node(), "what": "reads", "times": d.random.randint(1, 3)},
        World.fail_disk,
    ),
    "fail_writes": (lambda d: {"node": d.node(), "what": "writes"}, World.fail_disk),
    "fail_syncs": (lambda d: {"node": d.node(), "what": "syncs"}, World.fail_disk),
    "write_back": (lambda d: {"node": d.node()}, World.write_back),
    "skew_clock": (
        lambda d: {"node": d.node(), "rate": round(d.random.choice((0.5, 0.99, 1.01, 2.0)), 3)},
        World.skew_clock,
    ),
    "jump_clock": (
        lambda d: {"node": d.node(), "seconds": d.random.choice((-3600, -1, 1, 60, 3600))},
        World.jump_clock,
    ),
    # Damage a lone node cannot mend; only the last one gets any, and is then judged less hard.
    "flip_bits": (
        lambda d: {"node": d.nodes, "count": d.random.choice((1, 1, 5, 50)), "inside": d.rotten},
        World.flip_bits,
    ),
    "misdirect_write": (lambda d: {"node": d.nodes}, World.misdirect_write),
    "move": (lambda d: draw_move(d.random, **d.moves), move),
}  # fmt: skip

DAMAGING: Final = ("flip_bits", "misdirect_write")
APART: Final = ("move",)
"""Drawn by themselves, and only where there are replicas: other plans stay as they are."""
FORGETTING: Final = frozenset(
    ("lose_power", "lose_power_everywhere", "lose_power_in_write", "fail_syncs")
)
"""After these a disk lacks what was written and not synced, on many nodes at once."""


def make_plan(
    seed: int,
    *,
    kinds: Collection[str] | None = None,
    nodes: int | None = None,
    chaos_seconds: float = 20.0,
    story: str | None = None,
) -> Plan:
    """The plan of a seed. `kinds` limits the faults to some; all of those are then enabled."""
    choose = random.Random(f"{seed} plan")
    drawn = choose.choice(STORIES[:3])
    if random.Random(f"{seed} groups").random() < 0.25:  # drawn apart: the others stay as they are
        drawn = "groups"
    elif random.Random(f"{seed} transactions").random() < 0.25:
        drawn = "transactions"
    elif drawn == "replicated" and random.Random(f"{seed} kv").random() < 0.5:
        drawn = "kv"
    elif drawn == "replicated" and random.Random(f"{seed} queues").random() < 0.5:
        drawn = "queues"
    story = drawn if story is None else story
    sizes = {"alone": (1, 2, 2, 3), "cluster": (1, 3, 3, 5)}.get(story, (3, 3, 3, 5))
    drawn_nodes = choose.choice(sizes)
    nodes = drawn_nodes if nodes is None else nodes
    enabled = [kind for kind in KINDS if kind not in APART and choose.random() < 0.4]
    # A voter that loses synced bytes without noticing may vote for a log that lacks what it had
    # acknowledged; no quorum survives that yet, so a cluster's disks keep what they promised.
    if choose.random() < 0.8 or story != "alone":
        enabled = [kind for kind in enabled if kind not in DAMAGING]
    if kinds is not None:
        enabled = [kind for kind in KINDS if kind in kinds and kind not in APART]
    rate = choose.choice((1.0, 1.5, 3.0))  # per simulated second
    draw = _Draw(choose, nodes, story)
    faults: list[Fault] = []
    at = 0.0
    while enabled and (at := at + choose.expovariate(rate)) < chaos_seconds:
        kind = choose.choice(enabled)
        faults.append(Fault(round(at, 6), kind, KINDS[kind][0](draw)))
    plan = Plan(
        seed=seed,
        nodes=nodes,
        chaos_seconds=chaos_seconds,
        faults=tuple(faults),
        network={
            "latency_seconds": choose.choice(((0.00005, 0.0005), (0.0001, 0.002), (0.001, 0.03))),
            "spike_chance": choose.choice((0.0, 0.0, 0.01)),
            "split_chance": choose.choice((0.0, 0.05, 0.5)),
            "window_bytes": choose.choice((2000, 16 * 1024, 256 * 1024)),
        },
        disk={
            "sector_bytes": choose.choice((32, 128, 512)),
            "cache_miss": choose.choice((0.0, 0.3)),
        },
        disk_seconds_max=choose.choice((0.0002, 0.002, 0.02)),
        node={
            "checkpoint_ms": choose.choice((50, 500, 5000)),
            "retention_check_ms": choose.choice((500, 300_000)),
            "quorum_election_timeout_ms": choose.choice((300, 1000)),
            "quorum_fetch_timeout_ms": choose.choice((600, 2000)),
            "broker_heartbeat_interval_ms": choose.choice((100, 500)),
            "broker_session_timeout_ms": choose.choice((800, 2000)),
            "topic_defaults": TopicConfig(
                segment_bytes=choose.choice((5_000, 50_000, 1 << 30)),
                index_interval_bytes=choose.choice((200, 4096)),
            ),
        },
        story=story,
        admin_pace=AdminPace(
            clients=choose.randint(2, 5),
            think_seconds=choose.choice((0.01, 0.03, 0.1)),
            topics_each_max=choose.choice((2, 5)),
            timeout_seconds=choose.choice((2.0, 5.0)),
        ),
        pace=Pace(
            partitions=choose.randint(1, 3),
            producers=choose.randint(2, 6),
            consumers=choose.randint(1, 3),
            think_seconds=choose.choice((0.01, 0.03, 0.1)),
            batch_records_max=choose.choice((1, 3, 10)),
            value_bytes_max=choose.choice((10, 200, 2000)),
            timeout_seconds=choose.choice((0.5, 2.0, 5.0)),
        ),
    )
    if story == "groups":
        return _gather(plan)
    if story == "queues":
        return _line_up(plan)
    if story not in ("replicated", "transactions", "kv"):
        return plan
    apart = random.Random(f"{seed} moves")
    plan = _replicate(plan, enabled)
    if story == "transactions":
        plan = _transact(plan)
    elif story == "kv":
        plan = _keep(plan)
    moves = apart.random() < 0.5 if kinds is None else "move" in kinds
    return _with_moves(plan, apart, enabled) if moves else plan


def _with_moves(plan: Plan, choose: random.Random, enabled: Collection[str]) -> Plan:
    """The plan with an operator who moves replicas."""
    draw = _Draw(choose, plan.nodes, plan.story)
    is_damaged = not set(DAMAGING).isdisjoint(enabled)
    draw.moves = {
        "nodes": plan.nodes, "topics": plan.pace.topics, "partitions": plan.pace.partitions,
        "sizes": (3,) if is_damaged else (2, 3, 3, 3, 4),
    }  # fmt: skip
    rate = choose.choice((0.3, 1.0, 3.0))  # per simulated second
    faults = list(plan.faults)
    at = 0.0
    while (at := at + choose.expovariate(rate)) < plan.chaos_seconds:
        faults.append(Fault(round(at, 6), "move", KINDS["move"][0](draw)))
    return replace(plan, faults=tuple(sorted(faults, key=lambda fault: fault.at)))


def _line_up(plan: Plan) -> Plan:
    """What only queues need."""
    choose = random.Random(f"{plan.seed} lines up")
    pace = QueuePace(
        writers=choose.randint(1, 3),
        readers=choose.randint(1, 3),
        workers=choose.randint(2, 4),
        think_seconds=choose.choice((0.02, 0.05, 0.1)),
        patience_seconds=choose.choice((0.5, 2.0)),
        visibility_ms=choose.choice((500, 1500, 3000)),
        max_deliveries=choose.choice((0, 2, 5)),
        is_ordered=choose.random() < 0.5,
        forget_chance=choose.choice((0.0, 0.1, 0.3)),
        late_chance=choose.choice((0.0, 0.05)),
    )
    node = {
        **plan.node, "queues_topic_num_partitions": choose.choice((1, 2, 4)),
        "replica_lag_time_max_ms": choose.choice((1000, 3000, 10_000)),
    }  # fmt: skip
    return replace(plan, queue_pace=pace, node=node)


def _gather(plan: Plan) -> Plan:
    """What only groups need."""
    choose = random.Random(f"{plan.seed} gathers")
    pace = GroupPace(
        groups=choose.randint(1, 3),
        members=choose.randint(2, 4),
        partitions=choose.randint(1, 3),
        think_seconds=choose.choice((0.01, 0.03, 0.1)),
        nap_chance=choose.choice((0.0, 0.01, 0.05)),
        late_chance=choose.choice((0.0, 0.01, 0.05)),
        session_timeout_ms=choose.choice((500, 1000, 3000)),
        rebalance_timeout_ms=choose.choice((500, 1000, 3000)),
        timeout_seconds=choose.choice((0.2, 1.0, 3.0)),
    )
    node = {
        **plan.node, "group_min_session_timeout_ms": 100, "offsets_topic_num_partitions": 2,
        "group_initial_rebalance_delay_ms": choose.choice((0, 300)),
        "replica_lag_time_max_ms": choose.choice((1000, 3000, 10_000)),
    }  # fmt: skip
    return replace(plan, group_pace=pace, node=node)


def _transact(plan: Plan) -> Plan:
    """What only transactions need."""
    choose = random.Random(f"{plan.seed} transacts")
    pace = replace(
        plan.pace, topics=choose.choice((1, 2)), partitions=choose.randint(1, 3),
        consumers=choose.choice((1, 2)), lone_producers=0,
        batch_records_max=choose.choice((1, 3)), value_bytes_max=choose.choice((10, 200)),
        think_seconds=choose.choice((0.02, 0.05, 0.15)),
        timeout_seconds=choose.choice((0.5, 1.0, 3.0)),
    )  # fmt: skip
    transaction_pace = TransactionPace(
        ids=choose.randint(1, 3),
        rivals=choose.choice((1, 1, 2)),
        movers=choose.randint(1, 2),
        queries=choose.choice((0, 1, 2)),
        drivers=choose.choice((1, 2)),
        sends_max=choose.choice((1, 4, 8)),
        abort_chance=choose.choice((0.05, 0.3)),
        nap_chance=choose.choice((0.0, 0.01, 0.05)),
        late_chance=choose.choice((0.0, 0.05, 0.2)),
        timeout_ms=choose.choice((1000, 2000, 5000)),
        patience_seconds=choose.choice((1.0, 3.0, 10.0)),
        new_protocol_chance=choose.choice((0.0, 0.5, 0.5, 1.0)),
    )
    node = {
        **plan.node, "transaction_state_log_num_partitions": choose.choice((1, 2)),
        "offsets_topic_num_partitions": 2,
    }  # fmt: skip
    return replace(plan, pace=pace, transaction_pace=transaction_pace, node=node)


def _keep(plan: Plan) -> Plan:
    """What only keys and values need."""
    choose = random.Random(f"{plan.seed} keeps")
    configs = {**dict(plan.pace.topic_configs), "cleanup.policy": "compact", "kv.view": "true"}
    segment_bytes = plan.node["topic_defaults"].segment_bytes
    if choose.random() < 0.5:  # compacted all the while
        segment_bytes = choose.choice((1000, 5000, 20_000))
        configs |= {
            "min.cleanable.dirty.ratio": "0.01",
            "delete.retention.ms": choose.choice(("0", "1000", "60000")),
        }
    pace = replace(
        plan.pace, topics=choose.choice((1, 1, 2)), partitions=choose.randint(1, 3),
        topic_configs=tuple(configs.items()), lone_producers=0,
        timeout_seconds=choose.choice((0.5, 1.0, 3.0)),
    )  # fmt: skip
    kafka = choose.choice(((0, 0), (0, 0), (1, 0), (0, 1), (1, 2)))
    kv_pace = KvPace(
        clients=choose.randint(3, 6),
        keys=choose.choice((2, 4, 8)),
        think_seconds=choose.choice((0.005, 0.02, 0.05)),
        patience_seconds=choose.choice((0.5, 2.0, 5.0)),
        once_chance=choose.choice((0.2, 0.5)),
        producers=kafka[0],
        transactions=kafka[1],
        abort_chance=choose.choice((0.1, 0.5)),
        nap_chance=choose.choice((0.0, 0.05)),
    )
    node = {
        **plan.node, "log_cleaner_backoff_ms": choose.choice((100, 1000)),
        "transaction_state_log_num_partitions": 1,
        "topic_defaults": replace(plan.node["topic_defaults"], segment_bytes=segment_bytes),
    }  # fmt: skip
    return replace(plan, pace=pace, kv_pace=kv_pace, node=node)


def _replicate(plan: Plan, enabled: Collection[str]) -> Plan:
    """What only replicas need, drawn apart, so that other stories stay as they are."""
    choose = random.Random(f"{plan.seed} replicas")
    configs: dict[str, str] = {}
    if choose.random() < 0.3 and not FORGETTING.union(DAMAGING).intersection(enabled):
        configs["durability"] = "replicated"
    pace = replace(
        plan.pace, topics=choose.choice((1, 1, 2)), partitions=choose.randint(1, 2),
        replication=choose.choice((3, 3, 3, 2)), topic_configs=tuple(configs.items()),
        lone_producers=choose.choice((0, 0, 1)),
    )  # fmt: skip
    if not set(DAMAGING).isdisjoint(enabled):  # of two replicas the damaged one may be all there is
        pace = replace(pace, replication=3)
    pace = replace(pace, replication=min(pace.replication, plan.nodes))
    node = {
        **plan.node, "replica_lag_time_max_ms": choose.choice((1000, 3000, 10_000)),
        "catchup_threshold_records": choose.choice((0, 5, 100)),
        "catchup_bytes_per_second": choose.choice((0, 0, 1_000_000, 4_000_000)),
        "catchup_concurrent_max": choose.choice((1, 2, 8)),
        "catchup_scan_ms": choose.choice((200, 1000, 5000)),
        "catchup_check_ms": choose.choice((500, 10_000)),
    }  # fmt: skip
    return replace(plan, pace=pace, node=node)


def play(
    plan: Plan,
    *,
    keep_trace: bool = False,
    node_factory: NodeFactory | None = None,
    disk_factory: Callable[..., SimulatedDisk] = SimulatedDisk,
    replay: str | None = None,
) -> Outcome:
    """Run a plan to its end, or to the first violation."""
    violation: Violation | None = None
    with World(
        plan.seed, nodes=plan.nodes, keep_trace=keep_trace, restart_after_seconds=1.0,
        node_factory=node_factory or partial(real_node, **plan.node, **_quorum(plan)),
        disk_factory=partial(disk_factory, **plan.disk), replay=replay, **plan.network,
    ) as world:  # fmt: skip
        for machine in world.machines.values():
            machine.pace.seconds = (0.00002, plan.disk_seconds_max)
        workload = _load(world, plan)
        try:
            world.start(START_SECONDS)
            workload.start()
            for fault in plan.faults:
                befall = KINDS[fault.kind][1]
                world.after(fault.at, partial(befall, world, **fault.arguments))
            world.run(plan.chaos_seconds)
            world.heal()
            world.network.window_bytes = HEALED_WINDOW_BYTES
            world.restart_everyone()
            workload.get_on(LIVENESS_SECONDS)
        except Violation as error:
            violation = error
        except Exception as error:  # a watch stumbled over it: the seed must not be lost
            where = traceback.extract_tb(error.__traceback__)[-1]
            problem = f"{type(error).__name__}: {error} ({where.name}, line {where.lineno})"
            try:
                world.fail(UNFORESEEN, problem)
            except Violation as unforeseen:
                violation = unforeseen
        return Outcome(
            seed=plan.seed,
            violation=violation,
            events=world.loop.events,
            simulated_seconds=world.now,
            operations=workload.operations,
            acknowledged=workload.acknowledged,
            faults=world.faults,
            effects=world.network.effects,
            trace_hash=world.trace.digest,
            trace=world.trace.lines() if keep_trace else [],
        )


def _load(
    world: World, plan: Plan
) -> Workload | QuorumLoad | ReplicatedLoad | GroupLoad | QueueLoad:
    match plan.story:
        case "cluster":
            return QuorumLoad(world, plan.admin_pace)
        case "replicated":
            return ReplicatedLoad(world, plan.pace)
        case "groups":
            return GroupLoad(world, plan.group_pace)
        case "transactions":
            return TransactionLoad(world, plan.pace, plan.transaction_pace)
        case "kv":
            return KvLoad(world, plan.pace, plan.kv_pace)
        case "queues":
            return QueueLoad(world, plan.queue_pace)
        case _:
            return Workload(world, plan.pace)


def _quorum(plan: Plan) -> dict[str, Any]:
    if plan.story == "alone":
        return {}
    return {"quorum": ",".join(f"{n}@node-{n}:9192" for n in range(1, plan.nodes + 1))}


def without(plan: Plan, faults: Collection[int]) -> Plan:
    """The plan with only the faults at these indexes."""
    kept = tuple(fault for index, fault in enumerate(plan.faults) if index in faults)
    return replace(plan, faults=kept)


def _short(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
