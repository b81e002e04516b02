"""This Python with all that our tasks need, as one archive for executors elsewhere.

    bin/python          starts bin/pythonX.Y with the libraries beside it
    bin/pythonX.Y       the interpreter that runs this process
    lib/libpython*.so   if it is apart from that
    lib/pythonX.Y/      its standard library; site-packages with Tidelog and what it requires

Rule 1: nothing in it names a place of this machine: it runs wherever it is unpacked, on a system of
        the same kind.
Rule 2: pyspark is left out. Executors have that of their own Spark, which must be as new as ours.
"""

import io
import os
import re
import sys
import sysconfig
import tarfile
from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
from typing import Final, NamedTuple

from tidelog.errors import TidelogError

ROOT: Final = "tidelog"
EXTRAS: Final = frozenset({"spark", "sql-sqlite"})
LEFT_OUT: Final = frozenset({"pyspark", "py4j"})
OURS: Final = ("tidelog", "pyspark_tidelog")
NEEDLESS: Final = re.compile(
    r"__pycache__|site-packages|tests?|idlelib|tkinter|turtledemo|ensurepip|lib2to3|config-.*"
)
"""Folders of a standard library that no task uses; site-packages has its own place."""
REQUIREMENT: Final = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)")
EXTRA: Final = re.compile(r"""extra\s*==\s*['"]([^'"]+)['"]""")
COMPRESSION: Final = 3
"""Of nine: the archive travels to a few machines, and whoever packs it waits."""

STARTER: Final = """\
#!/bin/sh
here=$(dirname "$(readlink -f "$0")")
LD_LIBRARY_PATH="$here/../lib${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}" exec "$here/{python}" "$@"
"""


class CannotPack(TidelogError):
    """This Python lacks something that has to go into the archive; the message says what."""


class PackedFile(NamedTuple):
    """A file, and what it is called in the archive."""

    source: Path
    name: str


def pack(target: Path, *, also: Iterable[str] = (), on_file: Callable[[int, int], None] | None = None) -> int:
    """Write the archive; how many files it has. `also` names packages beside our own."""
    wanted = sorted(set(members(also)), key=lambda member: member.name)
    unfinished = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        with tarfile.open(unfinished, "w:gz", compresslevel=COMPRESSION) as archive:
            _add_starter(archive)
            for number, member in enumerate(wanted, 1):
                archive.add(member.source.resolve(), member.name, recursive=False)
                if on_file is not None:
                    on_file(number, len(wanted))
        unfinished.replace(target)
    finally:
        unfinished.unlink(missing_ok=True)
    return len(wanted) + 1


def members(also: Iterable[str] = ()) -> Iterator[PackedFile]:
    """Every file that goes in, but the starter."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    yield PackedFile(Path(sys._base_executable), f"bin/{version}")  # type: ignore[attr-defined]
    library = str(sysconfig.get_config_var("INSTSONAME") or "")
    found = Path(str(sysconfig.get_config_var("LIBDIR"))) / library
    if ".so" in library and found.is_file():
        yield PackedFile(found, f"lib/{library}")
    yield from _tree(Path(sysconfig.get_path("stdlib")), f"lib/{version}")
    packages = f"lib/{version}/site-packages"
    for package in OURS:
        spec = find_spec(package)
        assert spec is not None, f"{package} is part of this"
        assert spec.origin is not None, f"{package} has a file"
        yield from _tree(Path(spec.origin).parent, f"{packages}/{package}")
    for one in required([ROOT, *also]).values():
        for file in one.files or ():
            if ".." not in file.parts and "__pycache__" not in file.parts:
                source = Path(str(one.locate_file(file)))
                if source.is_file() and source.suffix != ".pth":
                    yield PackedFile(source, f"{packages}/{file.as_posix()}")


def required(names: Iterable[str]) -> dict[str, Distribution]:
    """These packages and all that they require, as far as it is installed."""
    found: dict[str, Distribution] = {}
    waiting = [(name, True) for name in names]
    while waiting:
        name, is_asked = waiting.pop()
        key = _key(name)
        if key in found or key in LEFT_OUT:
            continue
        try:
            one = distribution(name)
        except PackageNotFoundError:
            if is_asked:
                raise CannotPack(f"{name} is not installed here: pip install {name}") from None
            continue  # for another system, or another Python
        found[key] = one
        waiting += [(text, False) for text in map(_wanted, one.requires or ()) if text]
    return found


def _wanted(requirement: str) -> str:
    """The name of what is required; "" if an extra requires it that we do not need."""
    extra = EXTRA.search(requirement)
    if extra is not None and extra[1] not in EXTRAS:
        return ""
    name = REQUIREMENT.match(requirement)
    return name[1] if name is not None else ""


def _key(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _tree(directory: Path, name: str) -> Iterator[PackedFile]:
    for where, folders, files in os.walk(directory):
        folders[:] = [one for one in folders if not NEEDLESS.fullmatch(one)]
        below = Path(where).relative_to(directory)
        for file in files:
            if not file.endswith(".pyc"):
                yield PackedFile(Path(where) / file, f"{name}/{(below / file).as_posix()}")


def _add_starter(archive: tarfile.TarFile) -> None:
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    text = STARTER.format(python=version).encode()
    entry = tarfile.TarInfo("bin/python")
    entry.size, entry.mode = len(text), 0o755
    archive.addfile(entry, io.BytesIO(text))
