"""How often the seeds of a run have met what.

Rule: nothing of a node is imported here, so that a process that only adds up what others have met
      starts at once. `coverage.py` counts, and knows what there is.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import Final

SECTIONS: Final = {
    "apis": "requests of Kafka's protocol",
    "peers": "messages between nodes",
    "work": "work for the leader of a partition",
    "verbs": "operators' verbs",
    "faults": "faults and orders",
    "situations": "situations",
    "roles": "faults, by the role that they hit",
    "pairs": "pairs of faults",
}
"""The sections of the table, and their titles; `coverage.py` says what a name of each is."""


@dataclass(frozen=True, slots=True)
class Met:
    """How often one seed, or many, met what: by section, and by name."""

    counts: dict[str, Counter[str]] = field(
        default_factory=lambda: {section: Counter() for section in SECTIONS}
    )
    tables: dict[str, set[str]] = field(default_factory=lambda: {"peers": set(), "work": set()})
    """The names in the tables that a node makes when it starts."""

    def add(self, other: "Met") -> None:
        for section, counts in other.counts.items():
            self.counts[section].update(counts)
        for section, names in other.tables.items():
            self.tables[section] |= names

    def count(self, section: str, name: str) -> None:
        self.counts[section][name] += 1
