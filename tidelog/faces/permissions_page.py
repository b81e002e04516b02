"""Everything that can be asked of a node, and what who asks must be allowed: `docs/permissions.md`."""

from collections.abc import Iterable
from typing import Final

from tidelog.faces.http.app import all_operations
from tidelog.kafka.permissions import EITHER, FREE, NEEDS, REMARKS
from tidelog.operators.table import VERBS
from tidelog.wire.apis import APIS, Api

HEAD: Final = """# Permissions, by request

Made from the code: `python -m tidelog.faces.permissions_page > docs/permissions.md`.
[security.md](security.md) says how
permissions are given; [decision 027](decisions/027-permissions.md) why they are as they are.

Whoever may Read, Write, Delete or Alter may Describe; whoever may AlterConfigs may DescribeConfigs.
"""


def page() -> str:
    """The page, which a test holds to the tables."""
    lines = [HEAD, "## Kafka's APIs", "", "| API | needs | notes |", "|---|---|---|"]
    lines += [_row((api.title, _needed(api), REMARKS.get(api, FREE.get(api, "")))) for api in APIS]
    lines += ["", "## HTTP", ""]
    lines += ["Operators' verbs need the same over HTTP and by their commands: [verbs.md](verbs.md).", ""]
    lines += ["| operation | needs |", "|---|---|"]
    shown = [one for one in all_operations() if not one.is_hidden]
    for one in shown:
        needs = VERBS[one.verb].permissions if one.verb is not None else one.needs or ()
        path = one.path.replace(":int}", "}").replace(":path}", "}")
        lines.append(_row((f"`{one.method} {path}`", ", ".join(map(str, needs)) or "nothing")))
    return "\n".join([*lines, ""])


def _needed(api: Api) -> str:
    needs = [f"{operation.value} on {kind.value}" for kind, operation in NEEDS.get(api, {}).items()]
    return (" or " if api in EITHER else ", ").join(needs) or "nothing"


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    print(page(), end="")
