"""Folds what coordinators of groups commit, as it is committed, and judges generations by it.

| invariant                        | meaning                                                       |
|----------------------------------|---------------------------------------------------------------|
| generations only rise            | from one record of a group to the next, within one of its     |
|                                  | lives                                                         |
| an assignment is stored first    | what a member is told is what the log has of it, in that      |
|                                  | generation                                                    |
| one owner in a generation        | no two members are ever given a partition in one generation   |
|                                  | of one life                                                   |

A group that is deleted, or that is empty and has no offset left, is removed. What comes under its
name is another group, with other members, and counts its generations from the beginning.

Rule 1: the truth is what leaders have committed. A life ends with the record that says so, and with
        nothing else.
Rule 2: where records were compacted away before they were looked at, a life may have ended among
        them. Nothing is compared across such a gap.
"""

from dataclasses import dataclass
from typing import Final

from tidelog.errors import StorageError
from tidelog.groups.records import GroupWritten, decode
from tidelog.model import OFFSETS_TOPIC, Offset
from tidelog.partition.driver import Partition
from tidelog.records import CONTROL, BatchHeader, decode_batch
from tidelog.simulation.machine import Machine
from tidelog.simulation.replica_watch import ReplicaWatch
from tidelog.simulation.world import World

RISES: Final = "generations only rise"
STORED: Final = "an assignment is stored first"
OWNER: Final = "one owner in a generation"


@dataclass(slots=True)
class _Life:
    """A group from its first record until it is removed."""

    number: int
    generation: int = -1


@dataclass(slots=True)
class _Truth:
    """How far a partition of the groups' log was looked at."""

    end: Offset = 0
    is_behind: bool = False
    """A disk could not be read; so nobody knows yet what was committed last."""


class GroupWatch:
    """Looks at all that the coordinators of a world commit of their groups."""

    def __init__(self, world: World, replicas: ReplicaWatch) -> None:
        self._world = world
        self._truths: dict[int, _Truth] = {}
        self._lives: dict[str, _Life] = {}
        self._groups_of: dict[int, set[str]] = {}
        """By partition, the groups that were found in it."""
        self._shares: dict[tuple[str, int, str], tuple[int, bytes]] = {}
        """By group, generation and member: the life of the group, and the member's share."""
        self._owners: dict[tuple[str, int, int, int], str] = {}
        replicas.on_committed.append(self._on_committed)

    # What is asked by those who know what members were told.

    def told(self, group: str, generation: int, member: str, share: bytes) -> None:
        """A member was given a share, each byte of it the number of a partition."""
        self._refresh()
        known = self._shares.get((group, generation, member))
        if known is None and any(truth.is_behind for truth in self._truths.values()):
            return
        if known is None or known[1] != share:
            was = None if known is None else known[1]
            who = f"{group}: {member} in {generation}"
            self._world.fail(STORED, f"{who} is told {share!r}, and stored is {was!r}")
            return
        for number in share:
            key = (group, known[0], generation, number)
            owner = self._owners.setdefault(key, member)
            if owner != member:
                self._world.fail(OWNER, f"{key}: {owner} and {member}")

    # What leaders commit.

    def _on_committed(self, machine: Machine, partition: Partition, end: Offset) -> None:
        if partition.name.topic != OFFSETS_TOPIC:
            return
        number = partition.name.partition
        truth = self._truths.setdefault(number, _Truth())
        if machine.is_damaged:
            truth.is_behind = True
            return
        try:
            for header, batch in machine.sound_batches(partition.log, truth.end, end):
                self._take(number, truth, header, batch)
            truth.is_behind = False
        except (OSError, StorageError):
            truth.is_behind = True  # a fault of its disk: another time

    def _refresh(self) -> None:
        for machine in self._world.machines.values():
            replicas = getattr(getattr(machine.node, "broker", None), "replicas", None)
            for partition in () if replicas is None else replicas.of(OFFSETS_TOPIC):
                truth, leader = self._truths.get(partition.name.partition), partition.leader
                seen = 0 if truth is None else truth.end
                if leader is not None and leader.high_watermark > seen:
                    self._on_committed(machine, partition, leader.high_watermark)

    def _take(self, number: int, truth: _Truth, header: BatchHeader, batch: memoryview) -> None:
        expected, truth.end = truth.end, header.next_offset
        if header.attributes & CONTROL:
            self._meet(number, header.base_offset, expected)
            return
        for record in decode_batch(batch):
            self._meet(number, record.offset, expected)
            expected = record.offset + 1
            written = decode(record)
            if isinstance(written, GroupWritten):
                self._groups_of.setdefault(number, set()).add(written.group_id)
                self.written(written)
        self._meet(number, header.next_offset, expected)

    def _meet(self, number: int, offset: Offset, expected: Offset) -> None:
        if offset > expected:
            for group in self._groups_of.get(number, ()):
                self._end(group)

    def written(self, written: GroupWritten) -> None:
        """The log of the groups has committed a record of a group."""
        group, record = written.group_id, written.value
        if record is None:
            self._end(group)
            return
        life = self._lives.setdefault(group, _Life(0))
        if record.generation <= life.generation:
            before = f"{life.generation} in life {life.number}"
            self._world.find(RISES, f"{group}: {record.generation} after {before}")
        life.generation = record.generation
        for member in record.members:
            key = (group, record.generation, member.member_id)
            self._shares[key] = (life.number, member.assignment)

    def _end(self, group: str) -> None:
        if (life := self._lives.get(group)) is not None:
            self._lives[group] = _Life(life.number + 1)
