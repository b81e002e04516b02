"""Every verb, written down for people."""

import re
from collections.abc import Iterable
from typing import Final

import msgspec

from tidelog.operators.table import VERBS
from tidelog.operators.verbs import Verb

PLACE: Final = re.compile(r"\{(\w+):\w+\}")


def reference() -> str:
    """Every verb as Markdown: `docs/verbs.md`, which a test holds to this."""
    lines = [
        "# Operators' verbs",
        "",
        "Made from the code: `python -m tidelog.operators > docs/verbs.md`.",
        "",
        "What operators ask of a cluster, whichever node they ask. The HTTP operations and their description",
        "(`/openapi.json`) come from the same table; [http.md](http.md) has examples, and",
        "[decision 024](decisions/024-one-table-of-verbs.md) says why there is one table. The permission",
        "is the one of Kafka's ACLs. A verb marked with ! may cost records, offsets or availability.",
    ]
    offered = [verb for verb in VERBS.values() if not verb.is_internal]
    for family in dict.fromkeys(verb.family for verb in offered):
        lines += ["", f"## {family.capitalize()}", ""]
        lines += ["| verb | over HTTP | parameters | permission | what it does |", "|---|---|---|---|---|"]
        lines += map(_row, (verb for verb in offered if verb.family == family))
    return "\n".join([*lines, ""])


def _row(verb: Verb) -> str:
    http = verb.http
    cells: Iterable[str] = (
        f"`{verb.name}`{' !' if verb.is_dangerous else ''}",
        "-" if http is None else f"`{http.method} {_path(http.path)}`",
        ", ".join(f"`{one.encode_name}`" for one in msgspec.structs.fields(verb.asks)) or "none",
        ", ".join(map(str, verb.permissions)),
        verb.summary,
    )
    return f"| {' | '.join(cells)} |"


def _path(path: str) -> str:
    return PLACE.sub(r"{\1}", path)
