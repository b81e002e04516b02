"""Where a query is: the document that Spark keeps in its checkpoint.

    {"orders": {"0": 23}, "@": {"query": "4fe1…", "topics": {"orders": "1b4e28ba-…"}}}

Rule 1: offsets are those of Spark's Kafka source. Under "@", which is no topic's name, is whose
        they are: the ids of the topics, and a name of the query that stays the same for good.
Rule 2: an offset counts only for the topic that had this id. One without an id, as older
        checkpoints have them, counts for whoever has the name.
Rule 3: the end of a query's first batch says where that one began. Spark asks for the beginning
        again if the first batch is repeated, and by then `latest` is elsewhere.
Rule 4: nothing here asks a cluster; every function is pure.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final
from uuid import UUID

from tidelog.errors import ConfigError
from tidelog.spark.ranges import RESERVED, Offsets, from_json, to_json

QUERY: Final = "query"
TOPICS: Final = "topics"
BEGAN: Final = "began"
WHAT: Final = "the checkpoint's offset"


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """The offsets that come next, and whose they are."""

    offsets: Offsets
    topics: Mapping[str, UUID] = field(default_factory=dict)
    query: str = ""
    began: Offsets | None = None
    """Of the end of a query's first batch: where that began."""

    def remade(self, topics: Mapping[str, UUID]) -> dict[str, tuple[UUID, UUID]]:
        """Topics that have another id by now, with both: they were deleted and made anew."""
        return {
            topic: (known, topics[topic])
            for topic, known in sorted(self.topics.items())
            if topics.get(topic, known) != known
        }

    def without(self, topics: Collection[str]) -> "Position":
        """As if the query had never heard of these topics."""
        return replace(
            self,
            offsets={place: at for place, at in self.offsets.items() if place.topic not in topics},
            topics={topic: known for topic, known in self.topics.items() if topic not in topics},
        )

    def to_json(self) -> dict[str, Any]:
        told: dict[str, Any] = {QUERY: self.query}
        told[TOPICS] = {topic: str(known) for topic, known in sorted(self.topics.items())}
        if self.began is not None:
            told[BEGAN] = to_json(self.began)
        return {**to_json(self.offsets), RESERVED: told}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> "Position":
        told = document.get(RESERVED, {})
        try:
            began = told.get(BEGAN)
            return cls(
                offsets=from_json(document, WHAT),
                topics={topic: UUID(text) for topic, text in told.get(TOPICS, {}).items()},
                query=str(told.get(QUERY, "")),
                began=None if began is None else from_json(began, WHAT),
            )
        except (AttributeError, TypeError, ValueError) as error:
            raise ConfigError(f"{WHAT} has {told!r} under {RESERVED!r}: {error}") from None
