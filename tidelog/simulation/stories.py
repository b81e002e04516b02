"""What a seed decides for one story alone: its pace, and the settings that only it needs.

Each is drawn by a generator of its own, so that the plans of other stories stay as they are.
"""

import random
from collections.abc import Collection
from dataclasses import replace
from typing import Final

from tidelog.simulation.faults import DAMAGING, FORGETTING
from tidelog.simulation.groups import GroupPace
from tidelog.simulation.http_story import HttpPace
from tidelog.simulation.keyvalue import KvPace
from tidelog.simulation.plan import Plan
from tidelog.simulation.queues import QueuePace
from tidelog.simulation.transactions import TransactionPace

STORIES: Final = ("alone", "cluster", "replicated", "groups", "transactions", "kv", "queues", "http")
CLUSTERS: Final = frozenset(STORIES) - {"alone"}
"""The stories whose nodes keep one metadata log."""
WITH_REPLICAS: Final = frozenset(("replicated", "transactions", "kv", "http"))
"""The stories whose users' topics have several replicas."""


def detail(plan: Plan, enabled: Collection[str]) -> Plan:
    """The plan with what its story needs; `enabled` are the kinds of faults that it may have."""
    match plan.story:
        case "groups":
            return _gather(plan)
        case "queues":
            return _line_up(plan)
        case "replicated":
            return _replicate(plan, enabled)
        case "transactions":
            return _transact(_replicate(plan, enabled))
        case "kv":
            return _keep(_replicate(plan, enabled))
        case "http":
            return _serve(_line_up(_keep(_replicate(plan, enabled))))
        case _:
            return plan


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
        anonymous_chance=choose.choice((0.0, 0.1, 0.3)),
        repeat_chance=choose.choice((0.0, 0.1, 0.3)),
        delay_chance=choose.choice((0.0, 0.2)),
        has_operators=choose.random() < 0.7,
    )
    node = {
        **plan.node,
        "queues_topic_num_partitions": choose.choice((1, 2, 4)),
        "replica_lag_time_max_ms": choose.choice((1000, 3000, 10_000)),
    }
    if choose.random() < 0.5:  # compacted all the while
        node["log_cleaner_backoff_ms"] = choose.choice((100, 1000))
        node["topic_defaults"] = replace(
            plan.node["topic_defaults"],
            segment_bytes=choose.choice((1000, 5000, 20_000)),
            min_cleanable_dirty_ratio=0.01,
            delete_retention_ms=choose.choice((0, 1000, 60_000)),
        )
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
        **plan.node,
        "group_min_session_timeout_ms": 100,
        "offsets_topic_num_partitions": 2,
        "group_initial_rebalance_delay_ms": choose.choice((0, 300)),
        "replica_lag_time_max_ms": choose.choice((1000, 3000, 10_000)),
    }
    return replace(plan, group_pace=pace, node=node)


def _serve(plan: Plan) -> Plan:
    """What only clients of HTTP need: each of their requests costs as much as several others."""
    choose = random.Random(f"{plan.seed} serves")
    timeout_seconds = choose.choice((0.5, 1.0, 3.0))
    http_pace = HttpPace(
        timeout_seconds=timeout_seconds,
        retries=choose.choice((0, 1, 3, 3)),
        writers=choose.randint(1, 2),
        partitions=choose.choice((1, 1, 2)),
        queue_partitions=plan.node["queues_topic_num_partitions"],
        unknown_chance=choose.choice((0.2, 0.5, 1.0)),
        backups_at=(choose.uniform(2, 8), choose.uniform(8, 16)),
        restores=choose.random() < 0.5,
    )
    kv_pace = replace(
        plan.kv_pace,
        clients=choose.randint(2, 3),
        keys=choose.choice((2, 4)),
        think_seconds=choose.choice((0.15, 0.3, 0.5)),
    )
    queue_pace = replace(
        plan.queue_pace,
        writers=1,
        readers=1,
        workers=choose.randint(1, 2),
        think_seconds=choose.choice((0.3, 0.6)),
        patience_seconds=timeout_seconds,
        has_operators=choose.random() < 0.1,
    )
    return replace(plan, http_pace=http_pace, kv_pace=kv_pace, queue_pace=queue_pace)


def _transact(plan: Plan) -> Plan:
    """What only transactions need."""
    choose = random.Random(f"{plan.seed} transacts")
    pace = replace(
        plan.pace,
        topics=choose.choice((1, 2)),
        partitions=choose.randint(1, 3),
        consumers=choose.choice((1, 2)),
        lone_producers=0,
        batch_records_max=choose.choice((1, 3)),
        value_bytes_max=choose.choice((10, 200)),
        think_seconds=choose.choice((0.02, 0.05, 0.15)),
        timeout_seconds=choose.choice((0.5, 1.0, 3.0)),
    )
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
        **plan.node,
        "transaction_state_log_num_partitions": choose.choice((1, 2)),
        "offsets_topic_num_partitions": 2,
    }
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
        plan.pace,
        topics=choose.choice((1, 1, 2)),
        partitions=choose.randint(1, 3),
        topic_configs=tuple(configs.items()),
        lone_producers=0,
        timeout_seconds=choose.choice((0.5, 1.0, 3.0)),
    )
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
        **plan.node,
        "log_cleaner_backoff_ms": choose.choice((100, 1000)),
        "transaction_state_log_num_partitions": 1,
        "topic_defaults": replace(plan.node["topic_defaults"], segment_bytes=segment_bytes),
    }
    return replace(plan, pace=pace, kv_pace=kv_pace, node=node)


def _replicate(plan: Plan, enabled: Collection[str]) -> Plan:
    """What only replicas need, drawn apart, so that other stories stay as they are."""
    choose = random.Random(f"{plan.seed} replicas")
    configs: dict[str, str] = {}
    if choose.random() < 0.3 and not FORGETTING.union(DAMAGING).intersection(enabled):
        configs["durability"] = "replicated"
    pace = replace(
        plan.pace,
        topics=choose.choice((1, 1, 2)),
        partitions=choose.randint(1, 2),
        replication=choose.choice((3, 3, 3, 2)),
        topic_configs=tuple(configs.items()),
        lone_producers=choose.choice((0, 0, 1)),
    )
    if not set(DAMAGING).isdisjoint(enabled):  # of two replicas the damaged one may be all there is
        pace = replace(pace, replication=3)
    pace = replace(pace, replication=min(pace.replication, plan.nodes))
    node = {
        **plan.node,
        "replica_lag_time_max_ms": choose.choice((1000, 3000, 10_000)),
        "catchup_threshold_records": choose.choice((0, 5, 100)),
        "catchup_bytes_per_second": choose.choice((0, 0, 1_000_000, 4_000_000)),
        "catchup_concurrent_max": choose.choice((1, 2, 8)),
        "catchup_scan_ms": choose.choice((200, 1000, 5000)),
        "catchup_check_ms": choose.choice((500, 10_000)),
    }
    return replace(plan, pace=pace, node=node)
