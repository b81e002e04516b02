"""Folders of pipelines: made of the sample, and found.

Rule: a folder that holds something is never written into.
"""

from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Final

from tidelog.spark.pipelines.spec import FILE_NAME, NAME, SpecError

SAMPLE: Final = (
    "pipeline.yaml",
    "revenue.sql",
    "valid.py",
    "tests/windows/orders.jsonl",
    "tests/windows/orders.dead_letter.jsonl",
    "tests/windows/revenue.jsonl",
)
DEPTH_MAX: Final = 3
PASSED_OVER: Final = ("state", "warehouse", "node_modules")


def create(folder: Path, *, bootstrap: str) -> list[Path]:
    """Make the sample's folder; its files."""
    folder = folder.absolute()
    if not NAME.fullmatch(folder.name):
        raise SpecError(
            f"{folder.name!r} is no name for a pipeline; it must be letters, digits, - and _, and "
            "begin with a letter"
        )
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise SpecError(f"{folder} exists already, and holds something; name a new folder")
    folder.mkdir(parents=True, exist_ok=True)
    made = []
    for name in SAMPLE:
        text = (files("tidelog.spark.pipelines") / "sample" / name).read_text()
        if name == FILE_NAME:
            text = Template(text).substitute(name=folder.name, bootstrap=bootstrap)
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
        made.append(folder / name)
    return made


def find(directory: Path) -> list[Path]:
    """Every folder with a pipeline in a directory or not far below it."""
    return sorted(_find(directory.absolute(), DEPTH_MAX))


def _find(directory: Path, depth: int) -> Iterator[Path]:
    if (directory / FILE_NAME).is_file():
        yield directory
        return
    if depth == 0:
        return
    try:
        below = [entry for entry in directory.iterdir() if entry.is_dir()]
    except PermissionError:
        return
    for entry in below:
        if not entry.name.startswith(".") and entry.name not in PASSED_OVER:
            yield from _find(entry, depth - 1)
