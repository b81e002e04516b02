"""What a watch of replicas remembers: of each log as it is or was left, of each partition in each process."""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias
from uuid import UUID

from tidelog.log.log import Log
from tidelog.model import Epoch, Offset
from tidelog.partition.driver import Partition
from tidelog.partition.leader import Leader
from tidelog.simulation.machine import Machine

Key: TypeAlias = tuple[UUID, int]
"""A partition, by its topic's id and its number."""


@dataclass(slots=True)
class ReplicaCopy:
    """One replica's log, as it is or as its last process left it."""

    start: Offset
    written_end: Offset
    synced_end: Offset
    epochs: Sequence[tuple[Epoch, Offset]]
    damaged_at: Offset | None = None
    """What it has from there on cannot be read."""
    is_changing: bool = False
    """It was being cut: what it had synced may be gone."""

    def firm_end(self, durability: str) -> Offset:
        return self.synced_end if durability == "fsync" else self.written_end

    def has_intact(self, end: Offset) -> bool:
        is_damaged = self.damaged_at is not None and self.damaged_at < end
        return self.synced_end >= end and not is_damaged


@dataclass(slots=True)
class Committed:
    """The highest watermark that a partition ever had."""

    epoch: Epoch
    end: Offset
    start: Offset
    epochs: Sequence[tuple[Epoch, Offset]]
    durability: str


class _CutLock(asyncio.Lock):
    """Remembers which log was there when somebody began to cut it."""

    def __init__(self, partition: Partition) -> None:
        super().__init__()
        self._partition = partition
        self._log: Log | None = None

    async def acquire(self) -> Literal[True]:
        self._log = self._partition.log
        return await super().acquire()

    @property
    def is_half_done(self) -> bool:
        """Whether a cut began, and the log that comes of it is not there."""
        return self._log is self._partition.log

    @property
    def was_damaged(self) -> bool:
        """Whether the log that was changed last was damaged."""
        return self._log is not None and self._log.damaged_at is not None


class ReplicaView:
    """One partition in one process, and what was last seen of it."""

    __slots__ = (
        "agreed_in",
        "cuts",
        "damaged_at",
        "epoch",
        "key",
        "leader",
        "log",
        "machine",
        "partition",
        "start",
        "watermark",
        "writes_in",
    )

    def __init__(self, machine: Machine, key: Key, partition: Partition) -> None:
        self.machine = machine
        self.key = key
        self.partition = partition
        self.leader: Leader | None = None
        self.log = partition.log
        self.start = partition.log.start
        self.damaged_at = partition.log.damaged_at
        self.watermark = partition.high_watermark
        self.epoch: Epoch = -1
        self.agreed_in: Epoch = -1
        """The last epoch in which it agreed with its leader's log, or was that."""
        self.writes_in: Epoch = -1
        self.cuts = _CutLock(partition)
        if not partition.mending.is_changing:
            partition.mending.changing = self.cuts

    @property
    def me(self) -> tuple[int, int]:
        return self.machine.number, self.machine.lives

    def __str__(self) -> str:
        return f"{self.machine.name} {self.partition.name}"


class ProcessLife:
    """One process: what it says of the metadata, and its partitions."""

    def __init__(self, machine: Machine) -> None:
        self.number = machine.lives
        self.seen_at = (-1, -1)
        """After which event of the process, and how many deletions, it was last looked at."""
        self.views: dict[Partition, ReplicaView] = {}
        self.states: dict[Key, tuple[Epoch, int]] = {}
        self.broker_epoch = -1


def may_hold_less(before: Log, after: Log) -> bool:
    """Whether a replica that goes on with another log may lack what it knew to be committed."""
    return after is not before and (after.is_anew or before.damaged_at is not None)


def copy_of(log: Log) -> ReplicaCopy:
    ends = (log.start, log.written_end, log.synced_end)
    return ReplicaCopy(*ends, tuple(log.epochs), damaged_at=log.damaged_at)


def agree(
    mine: Iterable[tuple[Epoch, Offset]],
    my_start: Offset,
    others: Iterable[tuple[Epoch, Offset]],
    other_start: Offset,
    end: Offset,
) -> bool:
    """Whether two histories name the same epochs for what both logs hold below `end`."""
    start = max(my_start, other_start)
    if start >= end:
        return True  # all of it is deleted
    return _between(mine, start, end) == _between(others, start, end)


def _between(
    epochs: Iterable[tuple[Epoch, Offset]], start: Offset, end: Offset
) -> list[tuple[Epoch, Offset]]:
    found: list[tuple[Epoch, Offset]] = []
    for epoch, first in epochs:
        if first >= end:
            break
        if (found and found[-1][1] >= first) or first <= start:
            found.clear()
        found.append((epoch, max(first, start)))
    return found
