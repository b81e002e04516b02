"""`tidelog simulate --coverage`: what the seeds of a run have met, and what they have not."""

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from tidelog.faces.cli.common import number, print_table
from tidelog.simulation.met import SECTIONS, Met


def coverage_document(met: Met) -> dict[str, Any]:
    """By section: how often each name was met, and the names that never were."""
    from tidelog.simulation.coverage import never

    return {
        section: {"met": dict(sorted(met.counts[section].items())), "never": never(met, section)}
        for section in SECTIONS
    }


def print_coverage(met: Met) -> None:
    """A table of each section, and below it what was never met."""
    from tidelog.simulation.coverage import names, never

    for section, title in SECTIONS.items():
        there_is, counts, unmet = names(met, section), met.counts[section], never(met, section)
        print(f"{title}: {len(there_is) - len(unmet)} of {len(there_is)} met")
        if section == "roles":
            _print_roles(met)
        elif section == "pairs":
            for line in _grouped(unmet):
                print(f"  never met: {line}")
        else:
            rows = [(name, number(counts[name])) for name in there_is if counts[name]]
            print_table([section, "met#"], rows)
            if unmet:
                print(f"  never met: {', '.join(unmet)}")
        print()


def _print_roles(met: Met) -> None:
    """Kinds of faults by roles; a dot for what was never met."""
    from tidelog.simulation.coverage import Role, cell, hits_nodes, names

    counts = met.counts["roles"]
    kinds = [kind for kind in names(met, "faults") if hits_nodes(kind)]
    rows = [[kind, *(counts[cell(kind, role)] or "." for role in Role)] for kind in kinds]
    print_table(["roles", *(f"{role}#" for role in Role)], rows)


def _grouped(pairs: Iterable[str]) -> list[str]:
    """`a + b`, `a + c` as one line: `a + b, c`."""
    others = defaultdict(list)
    for pair in pairs:
        one, _, other = pair.partition(" + ")
        others[one].append(other)
    return [f"{one} + {', '.join(more)}" for one, more in others.items()]
