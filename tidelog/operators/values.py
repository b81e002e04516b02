"""Parameters and answers that several families of verbs share, and long lists page by page.

Rule: a page begins after a name, not at a number: what is made or deleted meanwhile moves nothing
that was not listed yet, and the name itself need not be there any more.
"""

import asyncio
from collections.abc import Callable, Iterable
from heapq import nsmallest
from typing import Annotated, Final, TypeAlias

import msgspec
from msgspec import Meta

from tidelog.errors import InvalidRequest
from tidelog.model import TopicPartition

LISTED_MAX: Final = 1000
"""What an answer lists beside its subject; all are counted."""

_JUDGED_AT_ONCE: Final = 100

Natural: TypeAlias = Annotated[int, Meta(ge=0, le=2**63 - 1)]
NodeNumber: TypeAlias = Annotated[int, Meta(ge=0, le=2**31 - 1)]
PartitionNumber: TypeAlias = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Nodes: TypeAlias = Annotated[list[NodeNumber], Meta(min_length=1)]
Partitions: TypeAlias = Annotated[list[PartitionNumber], Meta(min_length=1)]

Limit: TypeAlias = Annotated[int, Meta(ge=1, le=LISTED_MAX, description="How many at most.")]
LIMIT: Final = 100
After: TypeAlias = Annotated[
    str | None, Meta(description="Begin after this name: the `next` of the page before.")
]
AfterPlace: TypeAlias = Annotated[
    str | None,
    Meta(description="Begin after this partition, such as `orders-3`: the `next` of the page before."),
]
DryRun: TypeAlias = Annotated[bool, Meta(description="Check and tell the change; do not make it.")]


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """A partition."""

    topic: str
    partition: int


class RefusedPlace(msgspec.Struct, frozen=True, kw_only=True):
    """A partition for which it was refused, and why."""

    topic: str
    partition: int
    error: str


def place_of(name: TopicPartition) -> Place:
    return Place(topic=name.topic, partition=name.partition)


def refused(name: TopicPartition, error: object) -> RefusedPlace:
    return RefusedPlace(topic=name.topic, partition=name.partition, error=f"{name}: {error}")


def page(names: Iterable[str], *, limit: int, after: str | None) -> tuple[list[str], str | None]:
    """The next `limit` of the names, in order; and what to give as `after`, if there are more."""
    wanted = names if after is None else (name for name in names if name > after)
    found = nsmallest(limit + 1, wanted)
    if len(found) <= limit:
        return found, None
    return found[:limit], found[limit - 1]


async def page_shown(
    names: Iterable[str], *, limit: int, after: str | None, shows: Callable[[str], bool]
) -> tuple[list[str], str | None]:
    """As `page`, of those that the reader may see; many that it may not are passed over in slices."""
    found: list[str] = []
    for count, name in enumerate(sorted(names if after is None else (n for n in names if n > after)), 1):
        if count % _JUDGED_AT_ONCE == 0:
            await asyncio.sleep(0)  # others get their turn
        if shows(name):
            if len(found) == limit:
                return found, found[-1]
            found.append(name)
    return found, None


def page_places(
    places: Iterable[TopicPartition], *, limit: int, after: str | None
) -> tuple[list[TopicPartition], str | None]:
    """The next page of partitions, in order; and what to give as `after`, if there are more."""
    first = parse_place(after)
    wanted = places if first is None else (place for place in places if place > first)
    found = nsmallest(limit + 1, wanted)
    if len(found) <= limit:
        return found, None
    return found[:limit], str(found[limit - 1])


def parse_place(text: str | None) -> TopicPartition | None:
    """The partition that `orders-3` names."""
    if text is None:
        return None
    topic, _, number = text.rpartition("-")
    if not (topic and number.isascii() and number.isdecimal() and len(number) < 10):
        raise InvalidRequest(f"after is {text!r}; it must be TOPIC-PARTITION, such as orders-3")
    return TopicPartition(topic, int(number))
