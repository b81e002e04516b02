"""The programs that suites need, installed into `.suites/` by the package managers, once."""

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
CACHE: Final = ROOT / ".suites"
PROGRAMS: Final = Path(__file__).parent / "programs"
INSTALL_SECONDS_MAX: Final = 900
APICURIO: Final = "3.0.9"


class Missing(Exception):
    """A program is not here and we may not install it; the message is the command that does."""


class InstallFailed(Exception):
    """A package manager gave up; the message is what it printed."""


def kcat() -> str:
    """The path of kcat, which only Debian packages."""
    if shutil.which("kcat") is None and os.geteuid() == 0 and shutil.which("apt-get"):
        _install(["apt-get", "install", "-y", "kcat"])
    return _need("kcat", "sudo apt-get install -y kcat")


def node_modules() -> Path:
    """A directory with `node_modules` as `package.json` pins them."""
    _need("node", "sudo apt-get install -y nodejs")
    npm = _need("npm", "sudo apt-get install -y npm")
    home = CACHE / "kafkajs"
    package = PROGRAMS / "kafkajs" / "package.json"
    if not _is_current(home, package):
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir(parents=True)
        shutil.copy(package, home)
        _install([npm, "install", "--no-package-lock", "--no-audit", "--no-fund", "--silent"], home)
        _mark_current(home, package)
    return home


def jars() -> Path:
    """A directory with Kafka's jars as `pom.xml` pins them, and those that they need."""
    return _from_maven(PROGRAMS / "java" / "pom.xml", CACHE / "jars")


def spark_connector_jars() -> list[Path]:
    """The jars of Spark's Kafka connector that Spark does not have itself."""
    home = _from_maven(PROGRAMS / "spark" / "pom.xml", CACHE / "spark-jars")
    wanted = ("spark-sql-kafka", "spark-token-provider-kafka", "kafka-clients", "commons-pool2")
    return sorted(jar for jar in home.glob("*.jar") if jar.name.startswith(wanted))


def apicurio() -> Path:
    """The jar that starts Apicurio's schema registry, of the newest version that runs on Java 17.

    It is copied alone, by the last plugin that does not read its pom: the parent need not be there.
    """
    java()
    mvn = _need("mvn", "sudo apt-get install -y maven")
    home = CACHE / f"apicurio-{APICURIO}"
    if not (home / ".done").exists():
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir(parents=True)
        _install(
            [
                mvn,
                "-q",
                "-B",
                "org.apache.maven.plugins:maven-dependency-plugin:2.10:copy",
                f"-Dartifact=io.apicurio:apicurio-registry-app:{APICURIO}:tar.gz:all",
                f"-DoutputDirectory={home}",
            ]
        )
        for archive in home.glob("*.tar.gz"):
            shutil.unpack_archive(archive, home, filter="data")
            archive.unlink()
        (home / ".done").touch()
    return next(home.glob("apicurio-registry-app-*-runner.jar"))


def java() -> str:
    """The path of a Java that runs a source file as it is."""
    return _need("java", "sudo apt-get install -y openjdk-17-jdk-headless")


def iceberg_jars() -> Path:
    """A directory with the jars of Iceberg's REST catalog, and those that they need."""
    return _from_maven(PROGRAMS / "iceberg" / "pom.xml", CACHE / "iceberg-jars")


def _from_maven(pom: Path, home: Path) -> Path:
    java()
    mvn = _need("mvn", "sudo apt-get install -y maven")
    if not _is_current(home, pom):
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir(parents=True)
        _install(
            [mvn, "-q", "-B", "-f", str(pom), "dependency:copy-dependencies", f"-DoutputDirectory={home}"]
        )
        _mark_current(home, pom)
    return home


def compiled(source: Path) -> Path:
    """A directory with the classes of one Java file, compiled against Kafka's jars."""
    javac = _need("javac", "sudo apt-get install -y openjdk-17-jdk-headless")
    home = CACHE / "classes"
    if not _is_current(home, source):
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir(parents=True)
        _install([javac, "-cp", f"{jars()}/*", "-d", str(home), str(source)])
        _mark_current(home, source)
    return home


def source_distribution(package: str, version: str) -> Path:
    """The unpacked source distribution of a package."""
    home = CACHE / f"{package}-{version}"
    if not (home / ".done").exists():
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir(parents=True)
        _install(
            [
                sys.executable,
                "-m",
                "pip",
                "--disable-pip-version-check",
                "--quiet",
                "download",
                "--no-deps",
                "--no-binary",
                ":all:",
                "--dest",
                str(home),
                f"{package}=={version}",
            ]
        )
        archive = next(home.glob("*.tar.gz"))
        shutil.unpack_archive(archive, home, filter="data")
        (home / ".done").touch()
    return next(path for path in home.iterdir() if path.is_dir())


def _need(program: str, command: str) -> str:
    path = shutil.which(program)
    if path is None:
        raise Missing(command)
    return path


def _install(command: Sequence[str], directory: Path | None = None) -> None:
    print(f"installing: {' '.join(Path(word).name for word in command[:3])}", file=sys.stderr)
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=INSTALL_SECONDS_MAX)
    if done.returncode != 0:
        raise InstallFailed(f"{' '.join(command)}\n{(done.stdout + done.stderr)[-3000:]}")


def _digest(source: Path) -> str:
    return hashlib.sha256(source.read_bytes()).hexdigest()


def _is_current(home: Path, source: Path) -> bool:
    mark = home / ".made-from"
    return mark.exists() and mark.read_text() == _digest(source)


def _mark_current(home: Path, source: Path) -> None:
    (home / ".made-from").write_text(_digest(source))
