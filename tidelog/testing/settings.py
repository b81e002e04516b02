"""How nodes of tests differ from others: they wait less.

Whoever is killed or stopped is missed at once, through its closed connections. These are for what
falls silent: a node that was cut off, or hangs. They are not as short as they could be, since a
busy machine must not look like a silent one.
"""

from collections.abc import Mapping
from typing import Final

SETTINGS: Final[Mapping[str, object]] = {
    "quorum.election.timeout.ms": 200,
    "quorum.fetch.timeout.ms": 1500,
    "broker.heartbeat.interval.ms": 100,
    "broker.session.timeout.ms": 1500,
    "replica.lag.time.max.ms": 2000,
    "group.min.session.timeout.ms": 100,
    "offsets.topic.num.partitions": 3,
    "transaction.state.log.num.partitions": 3,
}
