"""Files of a batch, with all of its rows.

Rule: what is found in a batch's files is compared with what its tasks have written. Executors that
      do not see the driver's warehouse write elsewhere, and Spark calls that success.
"""

from typing import TYPE_CHECKING, Final

from tidelog.errors import TidelogError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ROWS: Final = "rows"
TIMESTAMPS: Final = ("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
"""What pyiceberg can read; Spark's own default is a form that nothing else writes any more."""


class RowsMissing(TidelogError):
    """The files of a batch have other rows than were written; nothing of it was committed."""

    def __init__(self, location: str, *, written: int, found: int) -> None:
        super().__init__(
            f"the tasks of Spark wrote {written} rows below {location}, and {found} are there: the "
            "executors do not share that place with the driver. Name a warehouse that all of them "
            "reach: an object store, or a file system that every machine has mounted"
        )


def write_parquet(frame: "DataFrame", location: str) -> int:
    """Write a frame as Parquet files; how many rows its tasks have put into them."""
    from pyspark.sql import Observation
    from pyspark.sql.functions import count, lit

    # The last step before the write is in the same stage, whose finished tasks are never repeated:
    # so each row is counted once.
    seen = Observation()
    frame.sparkSession.conf.set(*TIMESTAMPS)
    frame.observe(seen, count(lit(1)).alias(ROWS)).write.parquet(location)
    return int(seen.get.get(ROWS, 0))


def check_rows(location: str, *, written: int, found: int) -> None:
    if written != found:
        raise RowsMissing(location, written=written, found=found)
