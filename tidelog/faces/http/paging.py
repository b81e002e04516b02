"""Long lists, page by page: so many names after a given one, in order.

Rule: a page begins after a name, not at a number: what is made or deleted meanwhile moves nothing
that was not listed yet, and the name itself need not be there any more.
"""

from collections.abc import Iterable
from heapq import nsmallest
from typing import Final

from tidelog.faces.http.api import Param

LIMIT: Final = Param(
    name="limit", kind=int, default=100, least=1, most=1000, doc="How many at most."
)
AFTER: Final = Param(name="after", doc="Begin after this name: the `next` of the page before.")


def page(names: Iterable[str], *, limit: int, after: str | None) -> tuple[list[str], str | None]:
    """The next `limit` of the names, in order; and what to give as `after`, if there are more."""
    wanted = names if after is None else (name for name in names if name > after)
    found = nsmallest(limit + 1, wanted)
    if len(found) <= limit:
        return found, None
    return found[:limit], found[limit - 1]
