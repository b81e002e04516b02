"""Partitions that the controller has yet to look at, some at a time.

A broker may hold tens of thousands of partitions. One batch with all of them takes most of a second
to decide, to apply and to act on, and every node does so in one turn of its loop.

Rule 1: one look takes up to `LOOKED_AT` partitions and finds up to `CHANGED` changes.
Rule 2: a partition leaves the list once a look finds nothing to change. One with a change stays:
        should the proposal be lost, the next look finds the same.
Rule 3: the list is in no log. A new controller fills it from the image.
"""

from collections.abc import Callable, Mapping
from typing import Final

from tidelog.controller.image import ClusterImage, Place
from tidelog.controller.records import PartitionChanged

CHANGED: Final = 50
LOOKED_AT: Final = 1000


class Worklist:
    """Partitions in the order in which they are to be looked at."""

    __slots__ = ("_places",)

    def __init__(self) -> None:
        self._places: dict[int, Place] = {}

    def __bool__(self) -> bool:
        return bool(self._places)

    def add(self, places: Mapping[int, Place]) -> None:
        """Look at these, too; by their cluster ids, as the image's indexes have them."""
        self._places |= places

    def clear(self) -> None:
        self._places.clear()

    def look(
        self, image: ClusterImage, decide: Callable[[Place], PartitionChanged | None]
    ) -> list[PartitionChanged]:
        """The next changes. None, though the list is not empty: ask again."""
        changes: list[PartitionChanged] = []
        done: list[int] = []
        for count, (cluster_id, place) in enumerate(self._places.items()):
            if len(changes) == CHANGED or count == LOOKED_AT:
                break
            is_there = image.places.get(cluster_id) is place
            change = decide(place) if is_there else None
            if change is None:
                done.append(cluster_id)
            else:
                changes.append(change)
        for cluster_id in done:
            del self._places[cluster_id]
        return changes
