"""Files of a table as rows of Spark, where Spark itself reaches no store without a jar.

Rule 1: tasks read by pyarrow with the catalog's own settings, as they write (`writing.py`).
Rule 2: columns are found by their names, as Spark finds them: `check_names` comes first. One that a
        file lacks is null, and types become the table's.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.parquet as pq

from tidelog.spark.archive.storage import Storage
from tidelog.spark.tables.waiting import told_as_away
from tidelog.spark.tables.writing import shaped

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

FILE: Final = "_tidelog_file"


def read_files(
    session: "SparkSession", locations: Sequence[str], storage: Storage, columns: "StructType"
) -> "DataFrame":
    """The rows of Parquet files in these columns, and of each the file that it is in; a task for
    each file."""
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StringType, StructField, StructType

    nullable = StructType([StructField(one.name, one.dataType, True) for one in columns])
    work = task(tuple(locations), storage, to_arrow_schema(nullable, timezone="UTC"))
    files = session.range(0, len(locations), 1, len(locations))
    return files.mapInArrow(work, StructType([*nullable, StructField(FILE, StringType())]))


def task(
    locations: tuple[str, ...], storage: Storage, schema: pa.Schema
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """What a task does with the numbers of its files."""

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from _rows(locations[number], storage, schema)

    return read


def _rows(location: str, storage: Storage, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    filesystem, path = storage.find(location)
    with filesystem.open_input_file(path) as stream:
        file = pq.ParquetFile(stream)
        there = [name for name in schema.names if name in file.schema_arrow.names]
        for batch in file.iter_batches(columns=there):
            made = shaped(batch, schema)
            named = pa.array([location] * batch.num_rows, pa.string())
            yield pa.RecordBatch.from_arrays([*made.columns, named], [*schema.names, FILE])


@contextmanager
def store_told_as_away(what: str, storage: Storage, location: str) -> Iterator[None]:
    """Of a store that is away Spark says only that a job has failed: so it is asked."""
    try:
        yield
    except Exception:
        with told_as_away(what):
            filesystem, path = storage.find(location)
            filesystem.get_file_info(path)
        raise
