"""A table that many small commits go to, kept in order by whoever commits.

Rule 1: the work is shared by the commits: it is done once for as many as there are snapshots to
        keep, and one round of it is bounded.
Rule 2: it never fails a batch, which is committed by then: what goes wrong is logged, and tried
        again after a later commit.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tidelog.spark.tables.expiring import Expiry, expire, remove_expired
from tidelog.spark.tables.merging import FILE_BYTES, merge_small

if TYPE_CHECKING:
    from pyiceberg.table import Table

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Upkeep:
    """How a table is kept in order."""

    expiry: Expiry = field(default_factory=Expiry)
    file_bytes: int = FILE_BYTES

    def after_commit(self, table: "Table", merge: "Callable[[Table], object] | None" = None) -> bool:
        """Merge, forget and remove, if it is time; whether the table may be another now.

        `table` is as the commit has left it, and stays so.
        """
        if not self.expiry.is_due(table):
            return False
        try:
            if merge is None:
                merge_small(_anew(table), file_bytes=self.file_bytes)
            else:
                merge(_anew(table))
            expire(_anew(table), self.expiry)
            remove_expired(_anew(table), self.expiry)
        except Exception as error:
            logger.warning(
                "table %s is not kept in order, which is tried again after the next commit: %s",
                ".".join(table.name()),
                error,
            )
        return True


def _anew(table: "Table") -> "Table":
    return table.catalog.load_table(table.name())
