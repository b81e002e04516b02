"""`tidelog simulate --coverage`: what the seeds of a run have met, and what they have not."""

from collections import defaultdict
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from tidelog.faces.cli.common import number, print_table

if TYPE_CHECKING:
    from tidelog.simulation.coverage import Met


def coverage_document(met: "Met") -> dict[str, Any]:
    """By section: how often each name was met, and the names that never were."""
    from tidelog.simulation.coverage import SECTIONS

    return {
        section: {"met": dict(sorted(met.counts[section].items())), "never": met.never(section)}
        for section in SECTIONS
    }


def print_coverage(met: "Met") -> None:
    """A table of each section, and below it what was never met."""
    from tidelog.simulation.coverage import SECTIONS

    for section, title in SECTIONS.items():
        names, counts, never = met.names(section), met.counts[section], met.never(section)
        print(f"{title}: {len(names) - len(never)} of {len(names)} met")
        if section == "roles":
            _print_roles(met)
        elif section == "pairs":
            for line in _grouped(never):
                print(f"  never met: {line}")
        else:
            rows = [(name, number(counts[name])) for name in names if counts[name]]
            print_table([section, "met#"], rows)
            if never:
                print(f"  never met: {', '.join(never)}")
        print()


def _print_roles(met: "Met") -> None:
    """Kinds of faults by roles; a dot for what was never met."""
    from tidelog.simulation.coverage import Role, cell, hits_nodes

    counts = met.counts["roles"]
    kinds = [kind for kind in met.names("faults") if hits_nodes(kind)]
    rows = [[kind, *(counts[cell(kind, role)] or "." for role in Role)] for kind in kinds]
    print_table(["roles", *(f"{role}#" for role in Role)], rows)


def _grouped(pairs: Iterable[str]) -> list[str]:
    """`a + b`, `a + c` as one line: `a + b, c`."""
    others = defaultdict(list)
    for pair in pairs:
        one, _, other = pair.partition(" + ")
        others[one].append(other)
    return [f"{one} + {', '.join(more)}" for one, more in others.items()]
