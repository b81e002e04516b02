"""Long lists, page by page (`tidelog.operators.values`): the parameters that say which page."""

from collections.abc import Iterable
from functools import partial
from typing import Final

from tidelog.faces.http.api import Call, Param
from tidelog.faces.http.permissions import Need
from tidelog.model import TopicPartition
from tidelog.operators import values
from tidelog.operators.values import page as page

LIMIT: Final = Param(name="limit", kind=int, default=100, least=1, most=1000, doc="How many at most.")
AFTER: Final = Param(name="after", doc="Begin after this name: the `next` of the page before.")
AFTER_PLACE: Final = Param(
    name="after", doc="Begin after this partition, such as `orders-3`: the `next` of the page before."
)


async def shown_page(call: Call, names: Iterable[str], need: Need) -> tuple[list[str], str | None]:
    """The next page of names for which the client may do what `need` says; and what to give as `after`."""
    shows = partial(call.may, need)
    return await values.page_shown(names, limit=call["limit"], after=call["after"], shows=shows)


def page_places(places: Iterable[TopicPartition], call: Call) -> tuple[list[TopicPartition], str | None]:
    """The next page of partitions, in order; and what to give as `after`, if there are more."""
    return values.page_places(places, limit=call["limit"], after=call["after"])
