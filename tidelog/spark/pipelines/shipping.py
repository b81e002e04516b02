"""The Python files of a pipeline's folder, sent to where functions of its steps run.

Rule: an archive is named by its content, and has no times in it. So Spark, which refuses another
file of the same name, takes the same one any number of times.
"""

import hashlib
import io
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tidelog.spark.connect import is_connect
from tidelog.spark.pipelines.folders import PASSED_OVER
from tidelog.spark.pipelines.spec import Pipeline
from tidelog.spark.pipelines.state import DIRECTORY

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NOT_SENT: Final = frozenset({*PASSED_OVER, "tests"})


def modules(pipeline: Pipeline) -> list[Path]:
    """What steps can import: every Python file but the steps themselves, as paths in the folder."""
    steps = {Path(step.file) for step in pipeline.steps}
    return sorted(file for file in _python(pipeline.folder, Path()) if file not in steps)


def _python(folder: Path, below: Path) -> Iterator[Path]:
    for entry in (folder / below).iterdir():
        if entry.name.startswith(".") or entry.name in NOT_SENT:
            continue
        if entry.is_dir():
            yield from _python(folder, below / entry.name)
        elif entry.suffix == ".py":
            yield below / entry.name


def pack(pipeline: Pipeline) -> Path | None:
    """The archive of these files, in the folder's state; None if there are none."""
    files = modules(pipeline)
    if not files:
        return None
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for file in files:
            archive.writestr(zipfile.ZipInfo(str(file)), (pipeline.folder / file).read_bytes())
    digest = hashlib.sha256(buffer.getvalue()).hexdigest()[:12]
    path = pipeline.folder / DIRECTORY / f"modules-{digest}.zip"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        for former in path.parent.glob("modules-*.zip"):
            former.unlink()
        path.write_bytes(buffer.getvalue())
    return path


def ship(session: "SparkSession", pipeline: Pipeline) -> None:
    """Let the functions of steps import the files, wherever they run."""
    path = pack(pipeline)
    if path is None:
        return
    if is_connect(session):
        session.addArtifacts(str(path), pyfile=True)
    else:
        session.sparkContext.addPyFile(str(path))
