"""Who uses buckets beside their clients, as situations draw it: watches, copies, buckets anew."""

import random
from collections.abc import Collection
from dataclasses import replace
from typing import Any

from tidelog.simulation.plan import Plan


def watches(plan: Plan, choose: random.Random, enabled: Collection[str]) -> Plan:
    """Some hear of every change, at one node after the other."""
    return _with(plan, watchers=choose.choice((1, 1, 2)))


def copies(plan: Plan, choose: random.Random, enabled: Collection[str]) -> Plan:
    """Some keep a copy outside of the cluster, and need a snapshot of it now and then."""
    node = {
        **plan.node,
        "replication_stream_full_sync_threshold": choose.choice((5, 50, 10_000)),
        "replication_stream_batch_size": choose.choice((1, 10, 100)),
        "replication_stream_compression_threshold": choose.choice((100, 1024)),
        "replication_stream_heartbeat_interval_ms": choose.choice((200, 1000)),
    }
    return _with(replace(plan, node=node), copies=choose.choice((1, 1, 2)))


def buckets_anew(plan: Plan, choose: random.Random, enabled: Collection[str]) -> Plan:
    """A bucket is deleted and made anew while it is used; none is made by itself."""
    node = {**plan.node, "auto_create_topics_enable": False}
    return _with(replace(plan, node=node), remakes=True)


def _with(plan: Plan, **pace: Any) -> Plan:
    return replace(plan, kv_pace=replace(plan.kv_pace, **pace))
