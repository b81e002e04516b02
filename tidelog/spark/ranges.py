"""Offsets as Spark keeps them, and ranges of them: parsed, limited, cut into tasks.

Rule 1: nothing here asks a cluster; every function is pure.
Rule 2: offsets travel as {"topic": {"partition": offset}}, the JSON of Spark's Kafka source, so
        that every option and every checkpoint has one form. What a checkpoint says beyond that
        is under "@", which is no topic's name (`positions.py`); nobody else looks at it.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Final, TypeAlias
from uuid import UUID

from tidelog.errors import ConfigError
from tidelog.model import Offset, TopicPartition

EARLIEST: Final = -2
LATEST: Final = -1
RESERVED: Final = "@"

Offsets: TypeAlias = dict[TopicPartition, Offset]
OffsetsJson: TypeAlias = dict[str, dict[str, int]]


@dataclass(frozen=True, slots=True, order=True)
class OffsetRange:
    """[start, end) of one partition."""

    topic: str
    partition: int
    start: Offset
    end: Offset
    topic_id: UUID | None = field(default=None, compare=False, kw_only=True)
    """Whose offsets these are; None if nobody knows."""

    @property
    def place(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    @property
    def count(self) -> int:
        """How many offsets it has; records may be fewer."""
        return max(0, self.end - self.start)

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} [{self.start}, {self.end})"


def to_json(offsets: Mapping[TopicPartition, Offset]) -> OffsetsJson:
    out: OffsetsJson = {}
    for place in sorted(offsets):
        out.setdefault(place.topic, {})[str(place.partition)] = offsets[place]
    return out


def from_json(document: object, what: str) -> Offsets:
    """Read {"topic": {"partition": number}}; ConfigError names `what` and the form."""
    form = f'{what} must be JSON like {{"topic": {{"0": 23, "1": -2}}}}'
    if isinstance(document, str):
        try:
            document = json.loads(document)
        except ValueError as error:
            raise ConfigError(f"{form}: {error}") from None
    offsets: Offsets = {}
    if not isinstance(document, dict):
        raise ConfigError(f"{form}, not {document!r}")
    for topic, partitions in document.items():
        if topic == RESERVED:
            continue
        if not isinstance(partitions, dict):
            raise ConfigError(f"{form}; {topic!r} has {partitions!r}")
        for name, number in partitions.items():
            if not (isinstance(name, str) and name.isascii() and name.isdigit()):
                raise ConfigError(f"{form}; {topic!r} has a partition {name!r}")
            if isinstance(number, bool) or not isinstance(number, int):
                raise ConfigError(f"{form}; {topic}-{name} has {number!r}")
            offsets[TopicPartition(topic, int(name))] = number
    return offsets


def limit(start: Mapping[TopicPartition, Offset], end: Offsets, rows_max: int) -> Offsets:
    """Ends that leave at most about `rows_max` offsets, shared out in proportion to what waits.

    Every partition that has something gets at least one, so that none starves.
    """
    waiting = _waiting(start, end)
    total = sum(waiting.values())
    return dict(end) if total <= rows_max else _shared(end, waiting, rows_max, total)


def limit_bytes(
    start: Mapping[TopicPartition, Offset],
    end: Offsets,
    sizes: Mapping[TopicPartition, float],
    bytes_max: int,
) -> Offsets:
    """Ends that leave about `bytes_max` bytes, if an offset of a partition has `sizes` bytes.

    Each partition gives the same part of what waits there, and at least one offset. Offsets of
    unknown size are taken to be as large as the others are on average.
    """
    waiting = _waiting(start, end)
    mean = sum(sizes.values()) / len(sizes) if sizes else 0.0
    total = sum(count * sizes.get(place, mean) for place, count in waiting.items())
    return dict(end) if total <= bytes_max else _shared(end, waiting, bytes_max, total)


def _waiting(start: Mapping[TopicPartition, Offset], end: Offsets) -> dict[TopicPartition, int]:
    return {place: max(0, end[place] - start.get(place, 0)) for place in end}


def _shared(end: Offsets, waiting: Mapping[TopicPartition, int], most: int, total: float) -> Offsets:
    """Of what waits, `most` of `total`, the same part of every partition."""
    shares = {place: max(1, int(most * count // total)) if count else 0 for place, count in waiting.items()}
    return {place: min(end[place], end[place] - count + shares[place]) for place, count in waiting.items()}


def split(
    ranges: Iterable[OffsetRange], *, tasks_min: int | None = None, rows_max: int | None = None
) -> list[OffsetRange]:
    """Cut ranges so that there are about `tasks_min` of them, each of at most `rows_max` offsets.

    Empty ranges are dropped. Without limits, a partition is a task.
    """
    whole = [one for one in ranges if one.count]
    total = sum(one.count for one in whole)
    parts: list[OffsetRange] = []
    for one in whole:
        pieces = 1
        if tasks_min is not None and tasks_min > len(whole):
            pieces = max(pieces, round(tasks_min * one.count / total))
        if rows_max is not None:
            pieces = max(pieces, -(-one.count // rows_max))
        parts += _cut(one, min(pieces, one.count))
    return parts


def _cut(one: OffsetRange, pieces: int) -> Sequence[OffsetRange]:
    cuts = [one.start + one.count * n // pieces for n in range(pieces + 1)]
    return [replace(one, start=start, end=end) for start, end in pairwise(cuts)]
