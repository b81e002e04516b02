"""What the scrubber of this node has read, found and healed, as a document and in numbers."""

from collections.abc import Iterable
from typing import Any, Final

from tidelog.broker.broker import Broker
from tidelog.log.scrub_cycle import Rot

LISTED_MAX: Final = 1000


def scrub_document(broker: Broker) -> dict[str, Any]:
    """How far the cycle is, and what is rotten."""
    state, config = broker.replication.scrubber.state, broker.config
    now_ms = broker.host.clock.wall_ms()
    is_on = config.scrub_bytes_per_second > 0
    at = {"topic": state.topic, "partition": state.partition, "offset": state.offset}
    return {
        "state": "off" if not is_on else "running" if state.is_running else "waiting",
        "bytes_per_second": config.scrub_bytes_per_second,
        "interval_ms": config.scrub_interval_ms,
        "cycle": state.cycle,
        "began_ms_ago": now_ms - state.began_ms if state.cycle else None,
        "ended_ms_ago": now_ms - state.ended_ms if state.ended_ms else None,
        "at": at if state.is_running else None,
        "bytes_read": state.bytes_read,
        "bytes_total": state.bytes_total,
        "found": state.found,
        "healed": state.healed,
        "rotten": len(state.open),
        "rot": [_rot(one, now_ms) for one in state.open[:LISTED_MAX]],
        "recent": [_rot(one, now_ms) for one in state.recent],
    }


def _rot(one: Rot, now_ms: int) -> dict[str, Any]:
    return {
        "topic": one.topic,
        "partition": one.partition,
        "offset": one.offset,
        "what": one.what,
        "state": one.state,
        "found_ms_ago": now_ms - one.found_ms,
        "ended_ms_ago": None if one.ended_ms is None else now_ms - one.ended_ms,
        "source": one.source,
        "bytes": one.bytes,
        "why": one.why or None,
    }


def scrub_families(broker: Broker) -> Iterable[tuple[str, str, str, object]]:
    """Name, kind, meaning and value of each number."""
    state = broker.replication.scrubber.state
    yield "scrub_bytes_total", "counter", "Sealed bytes read again.", state.bytes_total
    yield "scrub_rot_found_total", "counter", "Places found rotten.", state.found
    yield "scrub_rot_healed_total", "counter", "Those healed from another replica.", state.healed
    yield "scrub_rot", "gauge", "Places that are rotten now.", len(state.open)
    yield "scrub_cycle", "gauge", "The number of the cycle.", state.cycle
    yield (
        "scrub_cycle_ended_timestamp_seconds",
        "gauge",
        "When the last cycle ended; 0 if none has.",
        state.ended_ms / 1000,
    )
