import random
import sqlite3
from pathlib import PurePosixPath

import pytest

from tidelog.host import DiskDatabases, SystemDatabases
from tidelog.simulation.disk import SimulatedDisk


@pytest.mark.parametrize("kind", ["files", "memory"])
def test_a_copy_of_a_database_is_what_it_was_and_has_no_name(tmp_path, kind):
    root = PurePosixPath(tmp_path if kind == "files" else "/data")
    disk = SimulatedDisk(random.Random(1))
    databases = SystemDatabases() if kind == "files" else DiskDatabases(disk)
    database = databases.open(root / "one.db")
    database.writer.execute("CREATE TABLE t (n INTEGER)")
    database.writer.execute("INSERT INTO t VALUES (7)")
    checked = []

    databases.copy(
        database.writer,
        root / "one.copy",
        lambda copy: checked.append(copy.execute("SELECT n FROM t").fetchall()),
    )
    database.writer.execute("INSERT INTO t VALUES (8)")
    with databases.seize(root / "one.copy") as file:
        data = file.read()

    copy = sqlite3.connect(":memory:")
    copy.deserialize(data)
    assert copy.execute("SELECT n FROM t").fetchall() == checked[0] == [(7,)]
    assert not disk.exists(root / "one.copy") and not (tmp_path / "one.copy").exists()
    copy.close()
    database.close()
