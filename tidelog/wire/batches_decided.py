"""How the batches of a group are counted, as clients say it and coordinators decide by it."""

from enum import Enum
from typing import Final

NO_BATCH: Final = -1
"""In place of a batch's number, where nothing was decided."""


class Counting(Enum):
    """Who counts the batches of a group, and so what may follow what."""

    APPLICATION = 0
    """An application gives each write a version; a later one is greater, by anything."""
    QUERY = 1
    """Spark counts the micro-batches of a query. Those without rows are not decided."""
    ONCE = 2
    """It is the only batch of its group, which may be forgotten."""
