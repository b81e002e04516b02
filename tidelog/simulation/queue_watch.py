"""What must hold of queues inside of the node that keeps them, at any moment.

| invariant                        | meaning                                                       |
|----------------------------------|---------------------------------------------------------------|
| a queue is the fold of its log   | what the leader knows is what whoever reads the log again |
|                                  | would know, also once it is compacted                         |
| a queue holds no more than it    | with what is on its way, never more than `messages_max`       |
|   may                            |                                                               |

Beside that every queue's own invariants (`WorkQueue.assert_invariants`).
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final

from tidelog.queues.message import MAIN, Message
from tidelog.queues.shard import Shard
from tidelog.records import Record, decode_batch
from tidelog.services.queues import QueuesDriver
from tidelog.shards.effects import Moment
from tidelog.simulation.machine import Machine
from tidelog.simulation.world import World

FOLD: Final = "a queue is the fold of its log"
FULL: Final = "a queue holds no more than it may"

_EVERY: Final = 2000
"""Events between two looks at what queues hold."""
_FOLD_EVERY: Final = 20_000


def compacted(log: Sequence[Record], *, tombstones: bool = True) -> list[Record]:
    """The log with the newest record of each key alone."""
    newest = {record.key: record.offset for record in log}
    return [
        record
        for record in log
        if newest[record.key] == record.offset and (tombstones or record.value is not None)
    ]


def picture(shard: Shard) -> dict[str, Any]:
    """What the log has told a shard."""
    work = {}
    for name, queue in shard.work_queues.items():
        rows = [(row.sequence, row.offset, row.size, row.key, 0, 0, MAIN, 0) for row in queue.rows()]
        messages = [_of(message) for message in queue.messages.values()]
        work[name] = (queue.settings, sorted([*rows, *messages]))
    pointers = {
        queue.id: (
            list(queue.messages),
            {client: pointer.offset for client, pointer in queue.pointers.items()},
        )
        for queue in shard.pointer_queues.values()
    }
    return {"work": work, "pointers": pointers, "requests": dict(shard.books.requests.known)}


def _of(message: Message) -> tuple[int, ...]:
    return (
        message.sequence,
        message.offset,
        message.size,
        message.key,
        message.count,
        message.count_before,
        message.lane,
        message.since,
    )


class QueueWatch:
    """Looks at the queues of all nodes."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.folds = 0
        """How often a log was read again."""
        world.invariant(FULL, self._check_held, every=_EVERY)
        world.invariant(FOLD, self._check_folds, every=_FOLD_EVERY)

    def _served(self) -> Iterator[tuple[Machine, QueuesDriver]]:
        """The queues that nodes answer for."""
        for machine in self._world.machines.values():
            node = machine.node if machine.is_up else None
            services = getattr(node, "services", None)
            if services is None:
                continue
            for driver in services.queues.drivers():
                if driver.shard.is_loaded and driver.is_counted_on:
                    yield machine, driver

    def _check_held(self) -> str | None:
        for _, driver in self._served():
            for queue in driver.shard.work_queues.values():
                held = len(queue) + queue.arriving
                if held > queue.settings.messages_max:
                    return f"{queue!r} holds {held}, and may hold {queue.settings.messages_max}"
                queue.assert_invariants()
        return None

    def _check_folds(self) -> str | None:
        for machine, driver in self._served():
            shard = driver.shard
            partition = driver._partition
            if len(shard.books.ledger) or partition.high_watermark < partition.log.end:
                continue
            log = list(_records(machine, driver))
            known = picture(shard)
            now = driver.now()
            for read in (log, compacted(log), compacted(log, tombstones=False)):
                if (problem := _difference(known, _fold(shard, read, now))) is not None:
                    return f"{partition.name} of node {machine.number}: {problem}"
            self.folds += 1
        return None


def _records(machine: Machine, driver: QueuesDriver) -> Iterator[Record]:
    log = driver._partition.log
    for header, batch in machine.batches(log, log.start, log.end):
        if not header.is_control:
            yield from decode_batch(batch)


def _fold(like: Shard, log: Sequence[Record], now: Moment) -> dict[str, Any]:
    shard = Shard(like.pointers._partition, like.pointers._partitions, like.limits)
    for record in log:
        shard.replay(record)
    shard.prepare(now)
    return picture(shard)


def _difference(known: dict[str, Any], read: dict[str, Any]) -> str | None:
    """What the log says otherwise."""
    for kind in ("work", "pointers"):
        for name in sorted({*known[kind], *read[kind]}, key=str):
            ours, theirs = known[kind].get(name), read[kind].get(name)
            if ours != theirs:
                return f"{name!r}: known are {ours}, the log says {theirs}"
    for key in sorted({*known["requests"], *read["requests"]}):
        ours, theirs = known["requests"].get(key), read["requests"].get(key)
        if ours != theirs:
            return f"request {key.hex()}: known is {ours}, the log says {theirs}"
    return None
