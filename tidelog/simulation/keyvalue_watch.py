"""Folds what is committed to buckets, as it is committed, and holds every view to it.

| invariant                        | meaning                                                       |
|----------------------------------|---------------------------------------------------------------|
| a view is a fold of its log      | of what is committed, up to where the view says it is; on     |
|                                  | every node, whenever it is looked at and may be shown         |
| a view never goes back           | within a life of its node, unless it is being made again      |
| a request is done once           | no Idempotency-Key has two batches in a log                   |
| only what has expired is deleted | by a leader of its own accord                                 |
| a compacted log keeps the newest | of every key, on every replica                                |

Rule 1: the truth is what leaders have committed, batch by batch, when they did. What any view, or a
        log that was compacted since, says of it counts for nothing here.
Rule 2: a bucket is known by its topic's id. Another that has its name later is another bucket.
"""

import sqlite3
from bisect import bisect_left, insort
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from tidelog.broker.broker import Broker
from tidelog.copies.node.views import View
from tidelog.copies.views.kv import entry_of, scan
from tidelog.copies.views.store import position_in
from tidelog.errors import StorageError
from tidelog.log.transactions import find_marker
from tidelog.model import NO_PRODUCER, ONCE_PRODUCER_MIN, Offset, ProducerId, TopicPartition
from tidelog.partition.driver import Partition
from tidelog.records import BatchHeader, Record, decode_batch
from tidelog.services.services import Services
from tidelog.simulation.machine import Machine
from tidelog.simulation.registers import Key, Logged
from tidelog.simulation.replica_watch import ReplicaWatch
from tidelog.simulation.world import World

VIEW: Final = "a view is a fold of its log"
VIEW_FALLS: Final = "a view never goes back"
ONCE: Final = "a request is done once"
EXPIRED: Final = "only what has expired is deleted"
NEWEST: Final = "a compacted log keeps the newest"

_CHECK_EVERY_EVENTS: Final = 200

Home: TypeAlias = tuple[str, int]
"""A partition, by its topic's id in hex and its number."""


@dataclass(frozen=True, slots=True, order=True)
class Committed:
    """A record that counts."""

    version: Offset
    value: bytes | None = field(compare=False)
    expires_at_ms: int | None = field(compare=False)
    timestamp_ms: int = field(compare=False)
    producer_id: ProducerId = field(compare=False)


@dataclass(slots=True)
class Truth:
    """One partition, as its committed batches have it."""

    end: Offset = 0
    keys: dict[bytes, list[Committed]] = field(default_factory=dict)
    open: dict[ProducerId, list[tuple[bytes, Committed]]] = field(default_factory=dict)
    once: dict[ProducerId, Offset] = field(default_factory=dict)
    is_behind: bool = False
    """A disk could not be read; so nobody knows yet what was committed last."""

    def at(self, position: Offset) -> dict[bytes, tuple[Offset, bytes]]:
        """What every key was when the log was `position` long."""
        found: dict[bytes, tuple[Offset, bytes]] = {}
        for key, records in self.keys.items():
            before = bisect_left(records, position, key=lambda each: each.version)
            if before and (value := records[before - 1].value) is not None:
                found[key] = (records[before - 1].version, value)
        return found


class KeyWatch:
    """Looks at all that is committed to buckets, and at all views."""

    def __init__(
        self, world: World, replicas: ReplicaWatch, topics: Collection[str], remade: Collection[str] = ()
    ) -> None:
        """`remade` are those of the topics that are deleted and made anew."""
        self._world = world
        self._topics = frozenset(topics)
        self._remade = frozenset(remade)
        self._truths: dict[Home, Truth] = {}
        self._homes: dict[TopicPartition, Home] = {}
        """Of each partition, that of the topic that was seen last."""
        self._names: dict[str, str] = {}
        """Of topics, by their ids."""
        self._find = world.find
        self._seen: dict[int, tuple[int, dict[View, tuple[int, Offset]]]] = {}
        replicas.on_committed.append(self._on_committed)
        world.invariant("views", self._check, every=_CHECK_EVERY_EVENTS)

    # The truth.

    def truth(self, place: TopicPartition) -> Truth:
        """Of the topic that has the name, as far as was seen."""
        home = self._homes.get(place)
        return Truth() if home is None else self._truths[home]

    def truth_of(self, topic_id: str, number: int) -> Truth:
        """Of a topic by its id in hex, whatever has its name now."""
        return self._truths.get((topic_id, number)) or Truth()

    def topics_of(self, bucket: str) -> list[str]:
        """The ids of the topics of this name to which anything was committed, or that are held."""
        return [topic_id for topic_id, name in self._names.items() if name == bucket]

    def truths_of(self, topic_id: str) -> list[Truth]:
        return [truth for home, truth in self._truths.items() if home[0] == topic_id]

    def is_behind(self, bucket: str) -> bool:
        """Whether a disk could not be read; so nobody knows yet what was committed last."""
        known = self.topics_of(bucket)
        return any(truth.is_behind for one in known for truth in self.truths_of(one))

    def may_lack_deletions(self, topic_id: str, positions: Mapping[int, Offset]) -> bool:
        """Whether a log, beyond these positions, may lack what was there: deletions, or all."""
        for machine in self._world.machines.values():
            if not machine.is_up:
                return True  # nobody knows
            for partition in _partitions(machine):
                position = positions.get(partition.name.partition, 0)
                gone = max(partition.purges.floor, partition.log.start)
                if partition.topic_id.hex == topic_id and gone > position:
                    return True
        return False

    def _of(self, partition: Partition) -> Truth:
        home = (partition.topic_id.hex, partition.name.partition)
        if home not in self._truths:
            self._homes[partition.name] = home
            self._names[home[0]] = partition.name.topic
            self._truths[home] = Truth()
        return self._truths[home]

    def _kept(self) -> Iterator[tuple[TopicPartition, Truth]]:
        """The partitions of buckets that nobody makes anew."""
        for place, home in self._homes.items():
            if place.topic not in self._remade:
                yield place, self._truths[home]

    def log(self) -> dict[Key, list[Logged]]:
        """Everything that was ever committed of each key."""
        return {
            (str(place), key): [Logged(each.version, each.value) for each in records]
            for place, truth in self._kept()
            for key, records in truth.keys.items()
        }

    def _on_committed(self, machine: Machine, partition: Partition, end: Offset) -> None:
        if machine.is_damaged or partition.name.topic not in self._topics:
            return
        truth = self._of(partition)
        try:
            for header, batch in machine.sound_batches(partition.log, truth.end, end):
                self._take(partition.name, truth, header, batch)
            truth.is_behind = False
        except (OSError, StorageError):
            truth.is_behind = True  # a fault of its disk: another time

    def _take(self, place: TopicPartition, truth: Truth, header: BatchHeader, batch: memoryview) -> None:
        if header.base_offset > truth.end:
            self._find(VIEW, f"{place}: {truth.end} to {header.base_offset} was never seen")
        truth.end = header.next_offset
        if header.is_control:
            opened = truth.open.pop(header.producer_id, [])
            marker = find_marker(header, batch)
            if marker is not None and marker.commits:
                for key, one in opened:
                    insort(truth.keys.setdefault(key, []), one)
            return
        if header.producer_id >= ONCE_PRODUCER_MIN:
            known = truth.once.setdefault(header.producer_id, header.base_offset)
            if known != header.base_offset:
                self._find(ONCE, f"{place}: one request is at {known} and {header.base_offset}")
        for record in decode_batch(batch):
            key, one = _committed(record, header.producer_id)
            if header.is_transactional:
                truth.open.setdefault(header.producer_id, []).append((key, one))
            else:
                insort(truth.keys.setdefault(key, []), one)

    def refresh(self) -> None:
        """Take what leaders have committed by now."""
        for machine in self._world.machines.values():
            for partition in _partitions(machine):
                if partition.name.topic not in self._topics:
                    continue
                leader = partition.leader
                if leader is not None and leader.high_watermark > self._of(partition).end:
                    self._on_committed(machine, partition, leader.high_watermark)

    # Views.

    def _check(self) -> str | None:
        for machine in self._world.machines.values():
            if machine.is_damaged or not machine.is_running:
                continue
            lives, seen = self._seen.get(machine.number, (0, {}))
            if lives != machine.lives:
                seen = {}
                self._seen[machine.number] = (machine.lives, seen)
            for view in views_of(machine):
                is_ours = view.partition.name.topic in self._topics
                if is_ours and view.is_whole and view.is_fresh:  # else nobody is shown what it has
                    self._look(machine, view, seen)
        return None

    def _look(self, machine: Machine, view: View, seen: dict[View, tuple[int, Offset]]) -> None:
        place = view.partition.name
        try:
            (position, start), entries = read_view(view.reader)
        except sqlite3.DatabaseError as error:
            if not machine.is_rotten:
                self._find(VIEW, f"{machine.name} {place}: {error}")
            return  # whoever is shown something of it finds that, too
        who = f"{machine.name} {place} at {position}"
        doubts, before = seen.get(view, (0, 0))
        if position < before and doubts == view.doubts:
            self._find(VIEW_FALLS, f"{who}: it was at {before}")
        seen[view] = (view.doubts, position)
        truth = self._of(view.partition)
        if position > truth.end:
            self.refresh()
        if truth.is_behind or start:
            return
        if position > truth.end:
            self._find(VIEW, f"{who}: only {truth.end} is committed")
            return
        wanted = truth.at(position)
        if entries != wanted:
            wrong = [
                f"{key!r} is {entries.get(key)}, not {wanted.get(key)}"
                for key in sorted(entries.keys() | wanted.keys())
                if entries.get(key) != wanted.get(key)
            ]
            self._find(VIEW, f"{who}: {'; '.join(wrong)}")

    def unfolded(self) -> str | None:
        """Which view does not have all that is decided."""
        for machine in self._world.machines.values():
            if machine.is_damaged or not machine.is_up:
                continue
            views = {view.partition: view for view in views_of(machine)}
            for partition in _partitions(machine):
                if partition.name.topic not in self._topics:
                    continue
                view, stable = views.get(partition), partition.last_stable_offset
                if view is None or not view.is_whole or view.applied < stable:
                    return f"{machine.name} {partition.name}: {view}, and {stable} is decided"
        return None

    # At the end.

    def unexpired(self, wall_ms: int) -> str | None:
        """Which key is there whose time is up."""
        self.refresh()
        for place, truth in self._kept():
            for key, records in truth.keys.items():
                expires = records[-1].expires_at_ms
                if records[-1].value is not None and expires is not None and expires <= wall_ms:
                    return f"{place} {key!r} has expired {wall_ms - expires} ms ago"
        return None

    def check_expiry(self, known: Collection[tuple[Key, Offset]], unsure: Collection[Key]) -> None:
        """Judge every deletion that no client asked for.

        `known` are those that clients were told of; of the keys in `unsure` nobody can tell.
        """
        for place, truth in self._kept():
            for key, records in truth.keys.items():
                at = (str(place), key)
                for number, record in enumerate(records):
                    is_ours = record.value is None and record.producer_id == NO_PRODUCER
                    if not is_ours or at in unsure or (at, record.version) in known:
                        continue
                    before = records[number - 1] if number else None
                    expires = None if before is None else before.expires_at_ms
                    if expires is None or expires > record.timestamp_ms:
                        self._world.fail(EXPIRED, f"{place} {key!r}: {record} after {before}")

    def check_logs(self) -> None:
        """See that every replica's log, compacted or not, has the newest of every key."""
        for machine in self._world.machines.values():
            if machine.is_damaged or not machine.is_up:
                continue
            for partition in _partitions(machine):
                if partition.name.topic in self._topics and not partition.log.start:
                    truth, folded = self._of(partition), Truth()
                    for header, batch in machine.batches(partition.log, 0, partition.high_watermark):
                        folded.end = header.base_offset
                        self._take(partition.name, folded, header, batch)
                    if folded.at(truth.end) != truth.at(truth.end):
                        self._world.fail(
                            NEWEST,
                            f"{machine.name} {partition.name}: {folded.at(truth.end)}, not "
                            f"{truth.at(truth.end)}",
                        )


def views_of(machine: Machine) -> list[View]:
    """The key-value views of a node."""
    services: Services | None = getattr(machine.node, "services", None)
    return [] if services is None else services.kv.views.all()


def _partitions(machine: Machine) -> list[Partition]:
    broker: Broker | None = getattr(machine.node, "broker", None)
    return [] if broker is None or not hasattr(broker, "replicas") else broker.partitions()


def read_view(
    database: sqlite3.Connection,
) -> tuple[tuple[Offset, Offset], dict[bytes, tuple[Offset, bytes]]]:
    """How far a view, or a copy of one, is, where its log began, and all of its entries."""
    at = position_in(database)
    rows = scan(database, b"", None)
    entries = {row.key: (row.version, row.value or b"") for row in rows}
    return (at.applied, at.start), entries


def _committed(record: Record, producer_id: ProducerId) -> tuple[bytes, Committed]:
    entry = entry_of(record)
    return entry.key, Committed(
        entry.version, entry.value, entry.expires_at_ms, entry.timestamp_ms, producer_id
    )
