"""A Python for executors elsewhere."""

import subprocess
import tarfile
from pathlib import Path

import pytest

from tidelog.spark.packing import CannotPack, members, pack, required


def test_it_holds_what_tasks_import_and_not_what_only_developers_do() -> None:
    names = {member.name.partition("/site-packages/")[2] for member in members()}

    for needed in ("tidelog/records.py", "pyspark_tidelog/__init__.py", "pyarrow/lib.pyx"):
        assert needed in names
    tops = {name.partition("/")[0] for name in names}
    assert {"kio", "numpy", "cramjam", "pyiceberg", "sqlalchemy"} <= tops
    assert tops.isdisjoint({"pyspark", "mypy", "ruff", "hypothesis", "pytest"})


def test_no_file_is_there_twice_and_none_is_compiled() -> None:
    names = [member.name for member in set(members())]

    assert len(names) == len(set(names))
    assert not any(name.endswith(".pyc") for name in names)


def test_a_package_that_is_not_installed_is_named() -> None:
    with pytest.raises(CannotPack, match="pip install no-such-package"):
        required(["tidelog", "no-such-package"])


@pytest.mark.slow
def test_what_was_packed_runs_where_it_is_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The standard library and Tidelog; the large packages are left out, to be quick."""
    from tidelog.spark import packing

    monkeypatch.setattr(packing, "LEFT_OUT", frozenset({"pyspark", "pyarrow", "numpy", "sqlalchemy"}))
    count = pack(tmp_path / "environment.tar.gz")
    with tarfile.open(tmp_path / "environment.tar.gz") as archive:
        archive.extractall(tmp_path / "elsewhere", filter="tar")
        assert count == len(archive.getnames())

    script = "import sys, ssl, tidelog.records as r; print(sys.prefix, r.__file__)"
    ran = subprocess.run(
        [tmp_path / "elsewhere" / "bin" / "python", "-c", script],
        capture_output=True,
        text=True,
        env={},
        cwd="/",
    )

    prefix, module = ran.stdout.split()
    assert prefix == str(tmp_path / "elsewhere"), ran.stderr
    assert module.startswith(prefix)
    assert [file.name for file in tmp_path.iterdir() if file.name.startswith(".")] == []
