"""What clients asked for and were told, and whether a correct log could have told them so.

Rule 1: nothing here reads a clock, file or socket. Times are the recorder's own count, or come
        from the caller; a dump is an iterator of lines.
Rule 2: every writer of a partition is recorded, and a value is sent once per partition, ever. Who
        tries again after `info` takes a new value.
Rule 3: a process polls one thing after another, and sends in order. What sends out of order (two
        producers, no idempotence) is two processes.
Rule 4: `fail` means that it did not happen and never will; who is not sure says `info`.

A record is committed if its operation was ok, or was `info` and any value of it was read.

| anomaly                      | meaning                                                          |
|------------------------------|------------------------------------------------------------------|
| inconsistent offsets         | an offset holds more than one value                              |
| duplicate                    | a value is at two offsets                                        |
| aborted read                 | somebody read what failed                                        |
| phantom read                 | somebody read what nobody sent                                   |
| lost write                   | committed, below the highest offset read, and read by nobody     |
| unseen                       | committed, and not seen by one who read everything after healing |
| skipping poll                | a process polled past a record                                   |
| non-monotonic poll           | a process polled the same again, or went back                    |
| non-monotonic send           | of one process: sent later, acknowledged at a lower offset       |
| acknowledged offset is stale | not above what was acknowledged before the send began            |
| group offset regressed       | a committed offset is below one that was known before            |
| write-read cycle             | transactions that each read what the next one wrote              |
| replicas differ              | two copies are not the same bytes below the watermark            |

After Jepsen's checker for Kafka. Compacted partitions are not for it: their gaps look like losses.
"""

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import count
from types import MappingProxyType
from typing import Any, ClassVar, Final, Literal, TypeAlias, TypeVar

from tidelog.model import Offset

Type: TypeAlias = Literal["ok", "fail", "info"]

NEVER: Final = 2**63 - 1
"""When an operation completed of which nobody heard again."""


# What is recorded.


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """One batch for a partition: `offset` is that of the first value, and the others follow it."""

    partition: str
    values: tuple[bytes, ...]
    offset: Offset | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """What one poll returned of one partition, in its order.

    Offsets without a gap are a range: a long history is mostly these.
    """

    partition: str
    offsets: Sequence[Offset]
    values: tuple[bytes, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Timed:
    """What every operation has; times only compare, and what overlaps has no order."""

    process: str
    type: Type
    invoked: int
    completed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Send(_Timed):
    """A `Write` by itself; flat, for there are millions."""

    f: ClassVar = "send"
    partition: str
    values: tuple[bytes, ...]
    offset: Offset | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Poll(_Timed):
    """What a process asked for and got, of every partition it is assigned."""

    f: ClassVar = "poll"
    reads: tuple[Read, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Assign(_Timed):
    """The process now reads these partitions and no others; it goes on where it was in those kept.

    To seek is to give a partition up and to take it again.
    """

    f: ClassVar = "assign"
    partitions: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit(_Timed):
    """The offsets of a group, as they were written or looked up; -1 is none."""

    f: ClassVar = "commit"
    group: str
    offsets: tuple[tuple[str, Offset], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Txn(_Timed):
    """Sends and polls of one transaction: ok is committed, fail aborted.

    What an aborted one polled is polled again, so its process has no position afterwards.
    """

    f: ClassVar = "txn"
    writes: tuple[Write, ...] = ()
    reads: tuple[Read, ...] = ()


Operation: TypeAlias = Send | Poll | Assign | Commit | Txn


class History:
    """What happened, in the order in which it was over; it is only ever added to.

        sending = history.begin_send("producer-1", "orders-0", [b"1", b"2"])
        try:
            sending.ok(await client.produce(...))
        except Refused:
            sending.fail()
        except TimeoutError:
            sending.info()

    What was begun and not completed counts as `info`. `tick` says what time it is, and never says
    less than before; histories of several processes can be put together if they share one clock.
    """

    def __init__(self, tick: Callable[[], int] | None = None) -> None:
        self.tick: Final = tick or count().__next__
        self._done: list[Operation] = []
        self._begun: dict[_Handle, None] = {}  # in order, so that a seed has one history

    def __len__(self) -> int:
        return len(self._done) + len(self._begun)

    def __iter__(self) -> Iterator[Operation]:
        yield from self._done
        for handle in self._begun:
            yield handle.operation("info", NEVER)

    def extend(self, operations: Iterable[Operation]) -> None:
        """Add what others recorded."""
        self._done.extend(operations)

    def begin_send(self, process: str, partition: str, values: Iterable[bytes]) -> "Sending":
        """One batch is sent, until it is acknowledged or given up."""
        facts = {"partition": sys.intern(partition), "values": tuple(values)}
        return self._begin(Sending(self, Send, process, facts))

    def begin_poll(self, process: str) -> "Polling":
        return self._begin(Polling(self, Poll, process, {}))

    def begin_assign(self, process: str, partitions: Iterable[str]) -> "Assigning":
        return self._begin(Assigning(self, Assign, process, {"partitions": tuple(partitions)}))

    def begin_commit(
        self, process: str, group: str, offsets: Mapping[str, Offset] = MappingProxyType({})
    ) -> "Committing":
        """Offsets are written; or looked up, and then `ok` says which they are."""
        facts = {"group": group, "offsets": tuple(offsets.items())}
        return self._begin(Committing(self, Commit, process, facts))

    def begin_txn(self, process: str) -> "Transacting":
        return self._begin(Transacting(self, Txn, process, {"writes": (), "reads": ()}))

    def _begin(self, handle: "_H") -> "_H":
        self._begun[handle] = None
        return handle

    def _complete(self, handle: "_Handle", outcome: Type) -> None:
        assert handle in self._begun, "an operation is over only once"
        del self._begun[handle]
        self._done.append(handle.operation(outcome, self.tick()))


class _Handle:
    """An operation that was begun; whoever began it says once how it ended."""

    __slots__ = ("_facts", "_history", "_invoked", "_kind", "_process")

    def __init__(self, history: History, kind: type[Operation], process: str, facts: dict[str, Any]) -> None:
        self._history = history
        self._kind = kind
        self._process = sys.intern(process)  # the same few names, a million times
        self._facts = facts
        self._invoked = history.tick()

    @property
    def invoked(self) -> int:
        """When it was begun; no other operation of this history was begun then."""
        return self._invoked

    def fail(self) -> None:
        """It did not happen, and never will."""
        self._history._complete(self, "fail")

    def info(self) -> None:
        """It may have happened, or may still."""
        self._history._complete(self, "info")

    def operation(self, outcome: Type, completed: int) -> Operation:
        return self._kind(
            process=self._process, type=outcome, invoked=self._invoked, completed=completed, **self._facts
        )

    def _ok(self, **facts: Any) -> None:
        self._facts.update(facts)
        self._history._complete(self, "ok")


_H = TypeVar("_H", bound=_Handle)


class Sending(_Handle):
    __slots__ = ()

    def ok(self, offset: Offset | None) -> None:
        """Acknowledged, the first value at `offset`, or nobody said where."""
        self._ok(offset=offset)


class Polling(_Handle):
    __slots__ = ()

    def ok(self, records: Iterable[tuple[str, Offset, bytes]]) -> None:
        """These came, as (partition, offset, value), in this order."""
        self._ok(reads=_group(records))


class Assigning(_Handle):
    __slots__ = ()

    def ok(self) -> None:
        self._ok()


class Committing(_Handle):
    __slots__ = ()

    def ok(self, offsets: Mapping[str, Offset] | None = None) -> None:
        """Written; or looked up, and found to be `offsets`."""
        if offsets is None:
            self._ok()
        else:
            self._ok(offsets=tuple(offsets.items()))


class Transacting(_Handle):
    """A transaction, which is told what it sends and polls as it goes along."""

    __slots__ = ()

    def send(self, partition: str, values: Iterable[bytes], offset: Offset | None = None) -> None:
        write = Write(partition=partition, values=tuple(values), offset=offset)
        self._facts["writes"] = (*self._facts["writes"], write)

    def poll(self, records: Iterable[tuple[str, Offset, bytes]]) -> None:
        self._facts["reads"] = (*self._facts["reads"], *_group(records))

    def ok(self) -> None:
        self._ok()


def _group(records: Iterable[tuple[str, Offset, bytes]]) -> tuple[Read, ...]:
    found: dict[str, tuple[list[Offset], list[bytes]]] = {}
    for partition, offset, value in records:
        lists = found.get(partition)
        if lists is None:
            lists = found[partition] = ([], [])
        lists[0].append(offset)
        lists[1].append(value)
    return tuple(
        Read(partition=sys.intern(partition), offsets=_compact(offsets), values=tuple(values))
        for partition, (offsets, values) in found.items()
    )


def _compact(offsets: list[Offset]) -> Sequence[Offset]:
    run = range(offsets[0], offsets[0] + len(offsets)) if offsets else range(0)
    return run if offsets == list(run) else tuple(offsets)


# How it is kept. A line is one operation; a value is text in latin-1, where every byte is a letter.

_OPERATIONS: Final = {kind.f: kind for kind in (Send, Poll, Assign, Commit, Txn)}
_NAMES: Final = {
    kind: tuple(part.name for part in fields(kind)) for kind in (*_OPERATIONS.values(), Write, Read)
}


def dump(history: Iterable[Operation]) -> Iterator[str]:
    """The history as lines of JSON."""
    encoder = json.JSONEncoder(separators=(",", ":"), default=_plain)
    for operation in history:
        yield encoder.encode({"f": operation.f, **_plain(operation)}) + "\n"


def _plain(part: Any) -> Any:
    if isinstance(part, bytes):
        return part.decode("latin-1")
    if isinstance(part, range):
        return list(part)
    return {name: getattr(part, name) for name in _NAMES[type(part)]}


def load(lines: Iterable[str]) -> History:
    """A history that was dumped; nothing more is recorded in it."""
    history = History()
    history.extend(_operation(json.loads(line)) for line in lines if line.strip())
    return history


def _operation(facts: dict[str, Any]) -> Operation:
    kind = _OPERATIONS[facts.pop("f")]
    match facts:
        case {"values": values}:
            facts["values"] = _bytes(values)
        case {"partitions": partitions}:
            facts["partitions"] = tuple(partitions)
        case {"offsets": offsets}:
            facts["offsets"] = tuple((partition, offset) for partition, offset in offsets)
    if "writes" in facts:
        facts["writes"] = tuple(
            Write(partition=part["partition"], values=_bytes(part["values"]), offset=part["offset"])
            for part in facts["writes"]
        )
    if "reads" in facts:
        facts["reads"] = tuple(
            Read(
                partition=part["partition"], offsets=_compact(part["offsets"]), values=_bytes(part["values"])
            )
            for part in facts["reads"]
        )
    return kind(**facts)


def _bytes(values: list[str]) -> tuple[bytes, ...]:
    return tuple(value.encode("latin-1") for value in values)


# What must hold.


def invoked_at(operation: Operation) -> int:
    return operation.invoked
