"""A Spark session for our own jobs, on this machine or on any master.

Rule 1: nothing is left to the user's environment: the Java is found, and executors run the Python
        that runs this process, or the one in a packed environment.
Rule 2: what the JVM prints goes into a log of ours; a command's output is the command's.
Rule 3: leaving ends the JVM and removes what it left.
"""

import os
import shutil
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

from tidelog.errors import TidelogError
from tidelog.spark.java import find_java, home_for_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOCAL: Final = "local[*]"
NEEDED: Final = ("pyspark", "pyarrow", "numpy")
INSTALL: Final = "pip install 'tidelog[spark]'"
OF_SESSIONS: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
}
SOCKET_PATH_BYTES_MAX: Final = 100
"""Some systems take no more than 103."""
SOCKET_NAME_BYTES: Final = 48
"""Of the names that Spark gives to sockets, with a slash before."""
JVM_END_SECONDS_MAX: Final = 30.0
LOG_TAIL_LINES: Final = 8

LOG4J: Final = """\
rootLogger.level = {level}
rootLogger.appenderRef.file.ref = file
appender.file.type = Console
appender.file.name = file
appender.file.target = SYSTEM_ERR
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{{yyyy-MM-dd'T'HH:mm:ss.SSS}} %p %c{{1}}: %m%n%ex
"""


class SparkMissing(TidelogError):
    """Spark, or what it needs to run our jobs, is not installed; the message has the command."""


class SparkFailed(TidelogError):
    """Spark did not start; the message says where its log is, and how it ends."""


def is_local(master: str) -> bool:
    """Whether the executors are threads of the driver: `local`, `local[2]`, `local[*, 3]`."""
    return master == "local" or master.startswith("local[")


def check_installed(packages: tuple[str, ...] = NEEDED) -> None:
    """SparkMissing, if one of these cannot be imported here."""
    for package in packages:
        try:
            import_module(package)
        except ImportError as error:
            raise SparkMissing(f"{error}; Spark jobs need it: {INSTALL}") from None


@contextmanager
def spark_session(
    name: str,
    *,
    master: str = LOCAL,
    conf: Mapping[str, str] | None = None,
    environment: str = "",
    log: Path | None = None,
    log_level: str = "warn",
    stop: threading.Event | None = None,
) -> Iterator["SparkSession"]:
    """A session to work in; there is one per process, and leaving ends it and its JVM.

    `environment` is an archive with a Python in `bin/python`, for executors elsewhere (see
    `packing`); without one they must have this very Python at this very path. `log` gets what the
    JVM and its workers print. A `master` as `sc://host:15002` is a Spark Connect server, which has
    its own of all of these; once `stop` is set, nobody waits for one that is gone.
    """
    check_installed()
    from tidelog.spark.connect import connected, is_remote

    if is_remote(master):
        told = {**OF_SESSIONS, **(conf or {})}
        with connected(name, master=master, conf=told, environment=environment, stop=stop) as session:
            yield session
        return
    directory = Path(tempfile.mkdtemp(prefix="tidelog-spark-"))
    try:
        log = log or directory / "spark.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        settings = session_settings(
            name, master=master, directory=directory, conf=conf or {}, environment=environment
        )
        (directory / "log4j2.properties").write_text(LOG4J.format(level=log_level))
        with log.open("ab") as output, _environment_variables(directory, environment):
            session, process = _start(settings, output, log)
        try:
            if not is_local(master):
                check_executors(session)
            yield session
        finally:
            _end(session, process)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def session_settings(
    name: str, *, master: str, directory: Path, conf: Mapping[str, str], environment: str = ""
) -> dict[str, str]:
    """All that Spark is told; what the user says wins over what is merely sensible."""
    ours = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        **OF_SESSIONS,
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
    }
    if is_local(master):
        ours |= _python_sockets(directory)
        # A name that resolves to an address of a network that comes and goes stops the work.
        ours |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
        ours["spark.sql.shuffle.partitions"] = str(_local_threads(master))
    if environment:
        ours["spark.archives"] = f"{environment}#environment"
    settings = {**ours, **conf, "spark.app.name": name, "spark.master": master}
    if settings.get("spark.speculation", "false").lower() == "true":
        raise TidelogError(
            "spark.speculation is true; it must be false: two attempts of one task at a time "
            "would fence each other's transactions"
        )
    options = f"-Dlog4j2.configurationFile=file:{directory / 'log4j2.properties'}"
    given = settings.get("spark.driver.extraJavaOptions", "")
    settings["spark.driver.extraJavaOptions"] = f"{options} {given}".strip()
    return settings


def _python_sockets(directory: Path) -> dict[str, str]:
    """Let the JVM talk to its Python processes through sockets of the file system, if paths allow.

    Through TCP, Spark sends a request in small pieces, and the second waits until the first is
    acknowledged, 40 ms later. The directory is ours alone: whoever connects may run code.
    """
    path_bytes = len(os.fsencode(directory)) + SOCKET_NAME_BYTES
    if path_bytes > SOCKET_PATH_BYTES_MAX:
        return {}
    return {
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.python.unix.domain.socket.dir": str(directory),
    }


def _local_threads(master: str) -> int:
    threads = master.removeprefix("local").strip("[]").split(",")[0]
    return int(threads) if threads.isdigit() else (os.cpu_count() or 1) if threads else 1


def check_executors(session: "SparkSession") -> None:
    """Whether executors can run our tasks; SparkMissing, if they lack something."""

    def missing(_: object) -> Iterator[str]:
        for package in ("tidelog", "pyarrow", "numpy", "kio"):
            try:
                import_module(package)
            except ImportError as error:
                yield f"{error} on {os.uname().nodename}"

    found = session.sparkContext.parallelize([0], 1).mapPartitions(missing).collect()
    if found:
        raise SparkMissing(
            f"executors cannot run our tasks: {found[0]}. Pack an environment for them, `tidelog "
            "pipeline pack environment.tar.gz`, and add --environment environment.tar.gz"
        )


@contextmanager
def _environment_variables(directory: Path, environment: str) -> Iterator[None]:
    """What the JVM inherits, and so its Python workers."""
    java = home_for_spark(find_java(), Path(sys.prefix) / "share" / "tidelog" / "java")
    told = {
        "JAVA_HOME": str(java),
        "PYSPARK_PYTHON": "./environment/bin/python" if environment else sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_DIRS": str(directory / "scratch"),
        "PYTHONWARNINGS": "ignore::FutureWarning",
    }
    before = {name: os.environ.get(name) for name in told}
    os.environ.update(told)
    # An installation elsewhere may be of another version than this pyspark.
    home = os.environ.pop("SPARK_HOME", None)
    try:
        yield
    finally:
        for name, value in {**before, "SPARK_HOME": home}.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _start(settings: Mapping[str, str], output: IO[bytes], log: Path) -> tuple["SparkSession", Any]:
    """The session and the process of its JVM."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of pandas, which we do not use
        from pyspark import SparkConf, SparkContext, java_gateway
        from pyspark.errors import PySparkException
        from pyspark.sql import SparkSession

        if SparkContext._active_spark_context is not None:
            raise SparkFailed("this process has a Spark session already; stop that one first")
        conf = SparkConf(loadDefaults=False).setAll(list(settings.items()))
        try:
            launch: Any = java_gateway.launch_gateway
            gateway = launch(conf, {"stdout": output, "stderr": output})
        except PySparkException as error:
            raise SparkFailed(f"Spark did not start; {_tail(log)}") from error
        try:
            context = SparkContext(conf=conf, gateway=gateway)
            return SparkSession(context), gateway.proc
        except Exception as error:
            _end_process(gateway.proc)
            SparkContext._gateway = SparkContext._jvm = None
            raise SparkFailed(f"Spark did not start: {error}; {_tail(log)}") from error


def _end(session: "SparkSession", process: Any) -> None:
    from pyspark import SparkContext

    gateway: Any = SparkContext._gateway
    try:
        session.stop()
        gateway.shutdown()
    except Exception:  # the JVM may be gone already, and this is about to end it
        pass
    finally:
        _end_process(process)
        # The next session starts a JVM of its own.
        SparkContext._gateway = SparkContext._jvm = None


def _end_process(process: Any) -> None:
    process.stdin.close()  # the JVM ends with the one that it serves
    try:
        process.wait(JVM_END_SECONDS_MAX)
    except Exception:
        process.kill()
        process.wait()


def _tail(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:]
    return f"its log, {log}, ends: " + " | ".join(line.strip() for line in lines)
