"""One seed, one plan: which faults there may be, when each comes, and how everything is tuned.

Rule: each seed enables only some kinds of faults and some situations. Where all of them happen at
      once, most histories look alike, and some bugs need a long time without a certain fault
      (swarm testing).

Phases: chaos -> heal -> everybody gets on within a deadline -> everything is compared.
"""

import random
import traceback
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from tidelog.config import TopicConfig
from tidelog.simulation import layout
from tidelog.simulation.coverage import Coverage
from tidelog.simulation.disk import SimulatedDisk
from tidelog.simulation.faults import DAMAGING, KINDS, Draw
from tidelog.simulation.groups import GroupLoad
from tidelog.simulation.http_story import HttpLoad
from tidelog.simulation.keyvalue import KvLoad
from tidelog.simulation.met import Met
from tidelog.simulation.plan import Fault, Plan
from tidelog.simulation.queues import QueueLoad
from tidelog.simulation.quorum import AdminPace, QuorumLoad
from tidelog.simulation.replicated import ReplicatedLoad
from tidelog.simulation.rot import check_healed
from tidelog.simulation.situations import situate
from tidelog.simulation.stories import STORIES, detail
from tidelog.simulation.transactions import TransactionLoad
from tidelog.simulation.workload import Pace, Workload
from tidelog.simulation.world import NodeFactory, Violation, World

LIVENESS_SECONDS: Final = 120.0
UNFORESEEN: Final = "nobody stumbles"
"""Broken when whoever looks on fails by what it sees."""
START_SECONDS: Final = 60.0
HEALED_WINDOW_BYTES: Final = 256 * 1024
"""A narrow network is a hardship, too: reading everything through it would take hours."""


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
    met: Met = field(default_factory=Met)


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
    elif drawn == "replicated" and random.Random(f"{seed} http client").random() < 0.4:
        drawn = "http"
    story = drawn if story is None else story
    sizes = {"alone": (1, 2, 2, 3), "cluster": (1, 3, 3, 5), "http": (3,)}.get(story, (3, 3, 3, 5))
    drawn_nodes = choose.choice(sizes)
    nodes = drawn_nodes if nodes is None else nodes
    enabled = [kind for kind in KINDS if choose.random() < 0.4]
    # In a cluster any minority of the disks may rot: a situation draws whose do.
    if choose.random() < 0.8 or story != "alone":
        enabled = [kind for kind in enabled if kind not in DAMAGING]
    if kinds is not None:
        enabled = [kind for kind in KINDS if kind in kinds]
    rate = choose.choice((1.0, 1.5, 3.0))  # per simulated second
    draw = Draw(choose, nodes, story)
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
        disk={"sector_bytes": choose.choice((32, 128, 512)), "cache_miss": choose.choice((0.0, 0.3))},
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
    return situate(detail(plan, enabled), enabled, kinds)


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
    with (
        World(
            plan.seed,
            nodes=plan.nodes,
            keep_trace=keep_trace,
            restart_after_seconds=1.0,
            node_factory=node_factory or layout.node_factory(plan),
            disk_factory=partial(disk_factory, **plan.disk),
            replay=replay,
            **plan.network,
        ) as world,
        Coverage(world, plan) as coverage,
    ):
        for machine in world.machines.values():
            machine.pace.seconds = (0.00002, plan.disk_seconds_max)
        workload = _load(world, plan)
        try:
            world.start(START_SECONDS)
            workload.start()
            for fault in plan.faults:
                world.after(fault.at, coverage.befall, fault)
            world.run(plan.chaos_seconds)
            world.heal()
            world.network.window_bytes = HEALED_WINDOW_BYTES
            world.keep_everyone_running()
            if plan.node.get("scrub_bytes_per_second"):
                check_healed(world, LIVENESS_SECONDS)
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
            met=coverage.end(),
        )


def _load(world: World, plan: Plan) -> Workload | QuorumLoad | ReplicatedLoad | GroupLoad | QueueLoad:
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
        case "http":
            return HttpLoad(world, plan.pace, plan.kv_pace, plan.queue_pace, plan.http_pace)
        case _:
            return Workload(world, plan.pace)
