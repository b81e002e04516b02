"""Files: written, read, found damaged."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.unit.spark.archive.rows import batch_of
from tidelog.spark.archive import files
from tidelog.spark.archive.files import (
    ArchivedFile,
    ArchivedRange,
    Destination,
    FileDamaged,
    WrittenFile,
    read_archived,
    tag_of,
    verify_file,
    write_range,
)
from tidelog.spark.archive.storage import Storage
from tidelog.spark.ranges import OffsetRange

STORAGE = Storage()
WANTED = OffsetRange("orders", 0, 0, 1000)


def to(directory: Path, bytes_max: int = 1_000_000) -> Destination:
    return Destination(storage=STORAGE, directory=directory.as_uri(), tag="77", bytes_max=bytes_max)


def part(file: WrittenFile, start: int, end: int) -> ArchivedRange:
    return ArchivedRange(
        storage=STORAGE, topic="orders", partition=0, start=start, end=end, paths=(file.path,)
    )


def described(file: WrittenFile, **changes: Any) -> ArchivedFile:
    facts: dict[str, Any] = {
        "path": file.path,
        "partition": 0,
        "first": 10,
        "last": 509,
        "first_us": 0,
        "last_us": 0,
        "rows": 500,
        "bytes": file.bytes,
    }
    return ArchivedFile(**facts | changes)


@pytest.fixture
def file(tmp_path, monkeypatch) -> WrittenFile:
    """Offsets 10 to 509, in row groups of 100."""
    monkeypatch.setattr(files, "GROUP_ROWS", 100)
    batches = [batch_of(range(start, start + 50)) for start in range(10, 510, 50)]
    (written,) = write_range(batches, WANTED, to(tmp_path))
    return written


def test_rows_come_back_as_they_went_in(file):
    got = pa.Table.from_batches(read_archived(part(file, 0, 1000), files.NAMES))

    assert got.equals(pa.Table.from_batches([batch_of(range(10, 510))]))
    assert (file.start, file.end, file.rows) == (0, 1000, 500)


def test_a_slice_is_cut_by_offset_and_reads_no_other_row_group(file, monkeypatch):
    asked: list[list[int]] = []
    real = pq.ParquetFile.iter_batches

    def iter_batches(self: Any, *args: Any, **options: Any) -> Any:
        asked.append(options["row_groups"])
        return real(self, *args, **options)

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", iter_batches)

    got = pa.Table.from_batches(read_archived(part(file, 105, 215), ("value",)))

    assert got.equals(pa.table({"value": batch_of(range(105, 215)).column("value")}))
    assert asked == [[0, 1, 2]]


def test_a_range_without_rows_makes_no_file(tmp_path):
    assert write_range([], WANTED, to(tmp_path)) == []
    assert list(tmp_path.rglob("*")) == []


def test_a_range_that_is_large_makes_several_files_without_a_gap(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "GROUP_ROWS", 100)
    batches = [batch_of(range(start, start + 100)) for start in range(0, 500, 100)]

    written = write_range(batches, WANTED, to(tmp_path, bytes_max=1))

    spans = [(one.start, one.end) for one in written]
    assert spans == [(0, 100), (100, 200), (200, 300), (300, 400), (400, 500)]
    assert sum(one.rows for one in written) == 500


def test_a_task_that_fails_leaves_no_file(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "GROUP_ROWS", 100)

    def batches() -> Any:
        yield batch_of(range(100))
        yield batch_of(range(100, 150))
        raise RuntimeError("the broker is gone")

    with pytest.raises(RuntimeError):
        write_range(batches(), WANTED, to(tmp_path, bytes_max=1))

    assert list(tmp_path.rglob("*.parquet")) == []


def test_rows_out_of_order_are_not_archived(tmp_path):
    with pytest.raises(FileDamaged, match="do not rise after 49"):
        write_range([batch_of(range(50)), batch_of(range(49, 60))], WANTED, to(tmp_path))


def test_a_name_tells_the_round_and_no_other_name_does(file):
    assert tag_of(file.path) == "77"
    assert tag_of("a/b/part-00000-123.parquet") is None
    assert tag_of("a/b/mine.parquet") is None


def test_a_file_that_is_whole_verifies(file):
    verify_file(described(file), STORAGE)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"rows": 499}, "500 rows up to offset 509, not 499"),
        ({"last": 510}, "not 500 up to 510"),
        ({"first": 11}, "do not rise after 10"),
        ({"partition": 3}, "rows of others than 3"),
    ],
)
def test_a_file_with_other_rows_than_the_table_says_is_damaged(file, changes, complaint):
    with pytest.raises(FileDamaged, match=complaint):
        verify_file(described(file, **changes), STORAGE)


def test_a_byte_that_changed_is_found(file):
    path = Path(file.path.removeprefix("file://"))
    content = bytearray(path.read_bytes())
    content[content.index(b"value 1") if b"value 1" in content else 400] ^= 1
    path.write_bytes(content)

    with pytest.raises(FileDamaged):
        verify_file(described(file), STORAGE)


def test_a_file_that_is_gone_is_damaged(file):
    Path(file.path.removeprefix("file://")).unlink()

    with pytest.raises(FileDamaged, match="No such file"):
        verify_file(described(file), STORAGE)
