"""Long lists, page by page (`tidelog.operators.values`): the parameters that say which page."""

from collections.abc import Iterable
from typing import Final

from tidelog.faces.http.api import Call, Param
from tidelog.model import TopicPartition
from tidelog.operators import values
from tidelog.operators.values import page as page

LIMIT: Final = Param(name="limit", kind=int, default=100, least=1, most=1000, doc="How many at most.")
AFTER: Final = Param(name="after", doc="Begin after this name: the `next` of the page before.")
AFTER_PLACE: Final = Param(
    name="after", doc="Begin after this partition, such as `orders-3`: the `next` of the page before."
)


def page_places(places: Iterable[TopicPartition], call: Call) -> tuple[list[TopicPartition], str | None]:
    """The next page of partitions, in order; and what to give as `after`, if there are more."""
    return values.page_places(places, limit=call["limit"], after=call["after"])
