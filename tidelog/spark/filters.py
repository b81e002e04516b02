"""Filters of a query that the log itself can answer.

Rule 1: a filter that is taken is met exactly; Spark does not look again.
Rule 2: a filter on time only tells where to begin: offsets before the first record of that time
        need not be read, but times behind it may go back. So Spark looks again.
Rule 3: what is not understood is left to Spark; that is slower, and never wrong.
"""

import datetime
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

from tidelog.spark.ranges import OffsetRange

T = TypeVar("T", str, bytes)

NEVER_NULL: Final = frozenset({"topic", "partition", "offset", "timestamp", "timestampType"})
NO_LIMIT: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Numbers:
    """Whole numbers that a column may have: some that are named, or all between two."""

    least: int = 0
    most: int = NO_LIMIT
    named: frozenset[int] | None = None

    def has(self, number: int) -> bool:
        is_named = self.named is None or number in self.named
        return is_named and self.least <= number <= self.most


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What the filters that were taken leave."""

    offsets: Numbers = field(default_factory=Numbers)
    partitions: Numbers = field(default_factory=Numbers)
    topics: frozenset[str] | None = None
    keys: frozenset[bytes] | None = None
    from_time_ms: int | None = None

    def narrow(self, ranges: Iterable[OffsetRange]) -> list[OffsetRange]:
        """The parts of ranges in which something may be wanted."""
        return [
            self._narrowed(one)
            for one in ranges
            if (self.topics is None or one.topic in self.topics) and self.partitions.has(one.partition)
        ]

    def _narrowed(self, one: OffsetRange) -> OffsetRange:
        offsets = self.offsets
        least, end = offsets.least, min(one.end, offsets.most + 1)
        if offsets.named is not None:
            inside = [at for at in offsets.named if max(one.start, least) <= at < end]
            least, end = (min(inside), max(inside) + 1) if inside else (end, end)
        start = max(one.start, least)
        return replace(one, start=start, end=max(start, end))

    def rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Of a batch, the rows that are wanted."""
        if self.offsets.named is not None:
            named = pa.array(sorted(self.offsets.named), pa.int64())
            batch = batch.filter(pc.is_in(batch.column("offset"), named))
        if self.keys is not None:
            named = pa.array(sorted(self.keys), pa.binary())
            batch = batch.filter(pc.is_in(batch.column("key"), named))
        return batch


def take(filters: Iterable[Filter]) -> tuple[Wanted, list[Filter]]:
    """What the filters ask for, and those that Spark must look at again."""
    wanted, left = Wanted(), []
    for one in filters:
        taken, is_exact = _take(wanted, one)
        if taken is not None:
            wanted = taken
        if not is_exact:
            left.append(one)
    return wanted, left


def _take(wanted: Wanted, one: Filter) -> tuple[Wanted | None, bool]:
    """What is wanted with one filter more (None: it was not understood), and whether exactly."""
    (column, *inner) = getattr(one, "attribute", ("",))
    value = getattr(one, "value", None)
    if inner:
        return None, False
    match column, one:
        case name, IsNotNull() if name in NEVER_NULL:
            return wanted, True
        case "offset", _ if (numbers := _numbers(wanted.offsets, one, value)) is not None:
            return replace(wanted, offsets=numbers), True
        case "partition", _ if (numbers := _numbers(wanted.partitions, one, value)) is not None:
            return replace(wanted, partitions=numbers), True
        case "topic", _ if (topics := _named(wanted.topics, one, value, str)) is not None:
            return replace(wanted, topics=topics), True
        case "key", _ if (keys := _named(wanted.keys, one, value, bytes)) is not None:
            return replace(wanted, keys=keys), True
        case "timestamp", EqualTo() | EqualNullSafe() | GreaterThan() | GreaterThanOrEqual():
            if not isinstance(value, datetime.datetime):
                return None, False
            if (time_ms := _ms(value)) < 0:
                return None, False  # no log is asked for a time before 1970
            return replace(wanted, from_time_ms=max(time_ms, wanted.from_time_ms or 0)), False
        case _:
            return None, False


def _numbers(numbers: Numbers, one: Filter, value: Any) -> Numbers | None:
    values = value if isinstance(one, In) else (value,)
    if not all(type(each) is int for each in values):
        return None
    match one:
        case EqualTo() | EqualNullSafe() | In():
            named = frozenset(values)
            known = numbers.named
            return replace(numbers, named=named if known is None else named & known)
        case GreaterThan():
            return replace(numbers, least=max(numbers.least, value + 1))
        case GreaterThanOrEqual():
            return replace(numbers, least=max(numbers.least, value))
        case LessThan():
            return replace(numbers, most=min(numbers.most, value - 1))
        case LessThanOrEqual():
            return replace(numbers, most=min(numbers.most, value))
        case _:
            return None


def _named(known: frozenset[T] | None, one: Filter, value: Any, kind: type[T]) -> frozenset[T] | None:
    if not isinstance(one, EqualTo | EqualNullSafe | In):
        return None
    values = value if isinstance(one, In) else (value,)
    if not all(isinstance(each, kind) for each in values):
        return None
    named = frozenset(values)
    return named if known is None else named & known


def _ms(time: datetime.datetime) -> int:
    """Milliseconds since 1970, rounded down: a record's time has no finer ones."""
    aware = time if time.tzinfo else time.replace(tzinfo=datetime.UTC)
    return (aware - datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)) // datetime.timedelta(milliseconds=1)
