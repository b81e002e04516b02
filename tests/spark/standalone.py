"""A Spark cluster of its own: a master and workers, started from the installed Spark.

Everything binds to the loopback and to free ports; leaving ends all of it.
"""

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Final, NamedTuple

from tests.support.cluster import wait_until
from tidelog.spark.java import find_java

HOST: Final = "127.0.0.1"
START_SECONDS_MAX: Final = 120.0
URL: Final = re.compile(r"Starting Spark master at (spark://\S+)")


class Standalone(NamedTuple):
    """A cluster that runs."""

    url: str
    sessions: list[int]
    """Of the processes, their children too: executors, and their Python workers."""


@contextmanager
def standalone(
    directory: Path, *, workers: int = 2, memory: str = "700m", hidden: Path | None = None
) -> Iterator[Standalone]:
    """Workers of one core each, and their master. They see an empty directory at `hidden`, each one
    of its own, as machines do that share nothing."""
    directory.mkdir(parents=True, exist_ok=True)
    started: list[subprocess.Popen[bytes]] = []
    log = directory / "standalone.log"
    try:
        started.append(_launch("master.Master", ["--port", "0", "--webui-port", "0"], directory, log))
        wait_until(lambda: bool(_urls(log)), "the master does not start", START_SECONDS_MAX)
        (url,) = _urls(log)
        for number in range(workers):
            work = str(directory / f"worker-{number}")
            arguments = [
                "--port",
                "0",
                "--webui-port",
                "0",
                "--cores",
                "1",
                "--memory",
                memory,
                "--work-dir",
                work,
                url,
            ]
            started.append(_launch("worker.Worker", arguments, directory, log, hidden))
        wait_until(
            lambda: log.read_text().count("Registering worker") >= workers,
            "the workers do not join",
            START_SECONDS_MAX,
        )
        yield Standalone(url, [process.pid for process in started])
    finally:
        for process in started:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _launch(
    kind: str, arguments: list[str], directory: Path, log: Path, hidden: Path | None = None
) -> subprocess.Popen[bytes]:
    found = find_spec("pyspark")
    assert found is not None
    assert found.origin is not None
    home = Path(found.origin).parent
    logging = directory / "log4j2.properties"
    logging.write_text(LOGGING)
    environment = {
        **os.environ,
        "JAVA_HOME": str(find_java().home),
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": HOST,
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_CONF_DIR": str(directory),
    }
    with log.open("ab") as output:
        return subprocess.Popen(
            [
                *_apart(hidden),
                home / "bin" / "spark-class",
                f"org.apache.spark.deploy.{kind}",
                "--host",
                HOST,
                *arguments,
            ],
            stdout=output,
            stderr=output,
            env=environment,
            start_new_session=True,
        )


def _apart(hidden: Path | None) -> list[str]:
    """Begins a command that has mounts of its own."""
    if hidden is None:
        return []
    hidden.mkdir(parents=True, exist_ok=True)
    mount = 'mount -t tmpfs tmpfs "$1" && shift && exec "$@"'
    return ["unshare", "-m" if os.geteuid() == 0 else "-rm", "sh", "-c", mount, "sh", str(hidden)]


def _urls(log: Path) -> list[str]:
    return URL.findall(log.read_text())


LOGGING: Final = """\
rootLogger.level = info
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d %p %c{1}: %m%n%ex
"""
