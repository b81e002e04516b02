"""`GET /v1/replication` and `GET /metrics`: how replicas stand, as this node knows them.

Rule 1: a leader knows its followers, and a follower knows itself; nobody speaks for others. So who
        wants all of it asks every node.
Rule 2: what is well is counted, what is not is listed; `?topics=a,b` lists these topics whole.
Rule 3: it is built in slices, and others run in between, as `/v1/cluster` is.
"""

import asyncio
from collections import Counter
from collections.abc import Iterable
from typing import Any, Final

from tidelog.broker.broker import Broker
from tidelog.faces.compatibility.replication_metrics import replication_metrics
from tidelog.faces.exposition import METRICS_TYPE, Page
from tidelog.faces.http.api import Call, Operation, tagged
from tidelog.faces.http.cluster import TOPICS, wanted_topics
from tidelog.faces.http.edge.messages import Response
from tidelog.faces.http.permissions import DESCRIBE_CLUSTER
from tidelog.faces.http.scrub import scrub_document, scrub_families
from tidelog.model import NO_OFFSET, NodeId
from tidelog.partition.catchup import CatchUp, Key, State
from tidelog.partition.driver import Partition
from tidelog.partition.follower_view import FollowerView
from tidelog.partition.leader import Leader

SLICE: Final = 50
LISTED_MAX: Final = 1000
"""Followers that are listed because they are behind, and their catch-ups; all are counted."""
LIVE: Final = (State.WAITING, State.RUNNING, State.STALLED, State.INTERRUPTED)
"""The states of those that are under way."""


async def replication_document(broker: Broker, topics: frozenset[str] | None = None) -> dict[str, Any]:
    """How the followers of this node's leaders stand, and the replicas here that follow."""
    now = broker.host.clock.monotonic()
    followers: dict[NodeId, dict[str, int]] = {}
    behind: list[dict[str, Any]] = []
    leading: list[dict[str, Any]] = []
    following: list[dict[str, Any]] = []
    led = followed = followed_behind = 0
    for at, partition in enumerate(broker.partitions()):
        if at % SLICE == SLICE - 1:
            await asyncio.sleep(0)
        is_wanted = topics is not None and partition.name.topic in topics
        if (leader := partition.leader) is not None:
            led += 1
            described = list(_followers(broker, partition, leader, now))
            for one in described:
                _count(followers.setdefault(one["node"], {}), one)
                if one["state"] != "in_sync" and len(behind) < LISTED_MAX and not is_wanted:
                    behind.append(_named(partition) | one)
            if is_wanted:
                leading.append(
                    _named(partition)
                    | {
                        "epoch": leader.epoch,
                        "end": partition.log.end,
                        "high_watermark": leader.high_watermark,
                        "in_sync": sorted(leader.in_sync),
                        "followers": described,
                    }
                )
        elif partition.follower is not None:
            followed += 1
            one = _follower(broker, partition, now)
            followed_behind += one["state"] != "following"
            if is_wanted or (one["state"] != "following" and len(following) < LISTED_MAX):
                following.append(_named(partition) | one)
    return {
        "node": broker.node_id,
        "leads": led,
        "follows": followed,
        "follows_behind": followed_behind,
        "followers": [{"node": node, **counts} for node, counts in sorted(followers.items())],
        "behind": behind,
        "leading": leading,
        "following": following,
        "catch_up": _catching_up(broker, now),
        "scrub": scrub_document(broker),
    }


def _named(partition: Partition) -> dict[str, Any]:
    return {"topic": partition.name.topic, "partition": partition.name.partition}


async def get_replication(call: Call) -> dict[str, Any]:
    topics = wanted_topics(call)
    found = await replication_document(call.broker, topics)
    return found | {"metrics": await replication_metrics(call.broker, topics)}


async def get_metrics(call: Call) -> Response:
    return Response(await metrics_text(call.broker), media_type=METRICS_TYPE)


OPERATIONS: Final = tagged(
    "replication",
    Operation(
        "GET",
        "/v1/replication",
        get_replication,
        "Report the followers of this node's leaders, its own replicas that follow, catch-ups "
        "and the scrubber.",
        params=(TOPICS,),
        needs=DESCRIBE_CLUSTER,
    ),
    Operation(
        "GET",
        "/metrics",
        get_metrics,
        "Metrics for Prometheus.",
        media_type="text/plain",
        needs=DESCRIBE_CLUSTER,
    ),
)


# A leader's side.


def _followers(broker: Broker, partition: Partition, leader: Leader, now: float) -> Iterable[dict[str, Any]]:
    place = broker.image.topics_by_id.get(partition.topic_id)
    for node, view in leader.followers.items():
        if node not in leader.replicas or place is None:
            continue
        key = Key(place.partitions[partition.name.partition].cluster_id, node)
        known = broker.replication.catching_up.all.get(key)
        is_in_sync = node in leader.in_sync
        lag = None if view.offset == NO_OFFSET else max(partition.log.end - view.offset, 0)
        yield {
            "node": node,
            "state": _state(broker, node, known, is_in_sync=is_in_sync),
            "end": None if view.offset == NO_OFFSET else view.offset,
            "held": None if view.held == NO_OFFSET else view.held,
            "lag_records": lag,
            "lag_bytes": None if lag is None else partition.log.bytes_after(view.offset),
            "lag_ms": 0 if not lag else _ms(now - view.level_at),
            "level_ms_ago": _ms(now - view.level_at),
            "asked_ms_ago": _asked(view, now),
            "in_sync": is_in_sync,
            "catch_up": None if known is None else known.id,
        }


def _state(broker: Broker, node: NodeId, known: CatchUp | None, *, is_in_sync: bool) -> str:
    if not broker.image.is_alive(node):
        return "away"
    if known is not None:
        return "catching_up"
    return "in_sync" if is_in_sync else "out_of_sync"


def _asked(view: FollowerView, now: float) -> int | None:
    return None if view.offset == NO_OFFSET else _ms(now - view.fetched_at)


def _count(counts: dict[str, int], one: dict[str, Any]) -> None:
    for name in ("replicas", "in_sync", "catching_up", "behind", "lag_records", "lag_bytes"):
        counts.setdefault(name, 0)
    counts["replicas"] += 1
    counts["in_sync"] += one["in_sync"]
    counts["catching_up"] += one["state"] == "catching_up"
    counts["behind"] += one["state"] != "in_sync"
    counts["lag_records"] += one["lag_records"] or 0
    counts["lag_bytes"] += one["lag_bytes"] or 0


# A follower's side.


def _follower(broker: Broker, partition: Partition, now: float) -> dict[str, Any]:
    follower = partition.follower
    assert follower is not None
    lag = partition.records_behind
    answered_at = broker.replication.fetching.answered_at(follower.leader)
    why = partition.log.refusal
    if not follower.is_aligned:
        state = "aligning"
    else:
        is_far = lag > broker.config.catchup_threshold_records
        state = "behind" if is_far or why is not None else "following"
    return {
        "leader": follower.leader,
        "epoch": follower.epoch,
        "state": state,
        "end": partition.log.end,
        "held": partition.held_end,
        "high_watermark": partition.high_watermark,
        "lag_records": lag,
        "answered_ms_ago": None if answered_at is None else _ms(now - answered_at),
        "why": why,
    }


# Catch-ups.


def _catching_up(broker: Broker, now: float) -> dict[str, Any]:
    found = broker.replication.catching_up.all
    pace = found.pace
    states = Counter(one.state.value for one in found)
    listed = sorted(found, key=lambda one: one.state is State.WAITING)[:LISTED_MAX]
    return {
        "bytes_per_second": round(pace.bytes_per_second) or None,
        "is_raised_above_inflow": pace.is_raised,
        "concurrent_max": found.concurrent_max,
        "begun": found.began,
        "finished": found.finished,
        "bytes_sent": found.bytes_sent,
        "states": {state.value: states[state.value] for state in LIVE},
        "running": [_catch_up(one, now) for one in listed],
        "ended": [_catch_up(one, now) for one in found.ended],
    }


def _catch_up(one: CatchUp, now: float) -> dict[str, Any]:
    rate, eta = one.rate(), one.eta_seconds()
    ended_at = one.ended_at
    return {
        "id": one.id,
        "topic": one.name.topic,
        "partition": one.name.partition,
        "node": one.key.follower,
        "epoch": one.epoch,
        "state": one.state.value,
        "why": one.why or None,
        "from": one.first,
        "at": one.at,
        "to": one.target,
        "done": round(one.done, 4),
        "records_left": one.records_left,
        "bytes_sent": one.bytes_sent,
        "bytes_left": one.bytes_left,
        "bytes_per_second": None if rate is None else round(rate),
        "eta_ms": None if eta is None else _ms(eta),
        "attempts": one.attempts,
        "began_anew": one.began_anew,
        "began_ms_ago": _ms(now - one.began_at),
        "took_ms": None if ended_at is None else _ms(ended_at - one.began_at),
        "attempt_ms": _ms((now if ended_at is None else ended_at) - one.attempt_at),
    }


def _ms(seconds: float) -> int:
    return round(seconds * 1000)


# Metrics.


async def metrics_text(broker: Broker) -> str:
    """The same for Prometheus."""
    found = await replication_document(broker)
    catch_up = found["catch_up"]
    page = Page()
    family = page.family

    def by_follower(field: str) -> list[tuple[str, object]]:
        return [(f'{{follower="{one["node"]}"}}', one[field]) for one in found["followers"]]

    family("partitions_led", "gauge", "Partitions that this node leads.", [("", found["leads"])])
    family("partitions_followed", "gauge", "Partitions that this node follows.", [("", found["follows"])])
    family(
        "partitions_followed_behind",
        "gauge",
        "Those of them that are behind here.",
        [("", found["follows_behind"])],
    )
    family("follower_replicas", "gauge", "Replicas that follow this node.", by_follower("replicas"))
    family("follower_in_sync", "gauge", "Those of them in sync.", by_follower("in_sync"))
    family("follower_lag_records", "gauge", "Records that followers lack.", by_follower("lag_records"))
    family("follower_lag_bytes", "gauge", "About as many bytes.", by_follower("lag_bytes"))
    family(
        "catch_ups",
        "gauge",
        "Catch-ups under way, by state.",
        [(f'{{state="{state}"}}', count) for state, count in catch_up["states"].items()],
    )
    family("catch_ups_begun_total", "counter", "Catch-ups begun.", [("", catch_up["begun"])])
    family("catch_ups_finished_total", "counter", "Those that were finished.", [("", catch_up["finished"])])
    family(
        "catch_up_bytes_sent_total",
        "counter",
        "Bytes sent to those who catch up.",
        [("", catch_up["bytes_sent"])],
    )
    family(
        "disk_full",
        "gauge",
        "1 while this node's disk has no room, else 0.",
        [("", int(broker.room.is_full))],
    )
    family(
        "out_of_files",
        "gauge",
        "1 while this node can open no more files, else 0.",
        [("", int(broker.room.lacks_files))],
    )
    applied, errors = broker.replication.fetching.totals()
    family("replication_applied_total", "counter", "Offsets appended of what leaders sent.", [("", applied)])
    family(
        "replication_errors_total",
        "counter",
        "Requests of followers that were not answered, and answers that could not be taken.",
        [("", errors)],
    )
    for name, kind, text, value in scrub_families(broker):
        family(name, kind, text, [("", value)])
    return page.text
