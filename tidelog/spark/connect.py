"""A session of a Spark Connect server (`--master sc://host:15002`), and what differs there.

Rule 1: the server and its executors are somebody else's: nothing is installed there, and no
        setting is changed that is not the session's own. What cannot be is refused, with why.
Rule 2: a client has no SparkContext, so there are no RDDs, no job groups and no local properties.
        Code that needs one of these asks here instead.
"""

import logging
import os
import socket
import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import pyarrow as pa

from tidelog.errors import TidelogError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

SCHEME: Final = "sc://"
PORT: Final = 15002
REACH_SECONDS_MAX: Final = 5.0
CONNECT_MODE: Final = "SPARK_CONNECT_MODE_ENABLED"
"""PySpark's own variable."""
ON_EXECUTORS: Final = ("tidelog", "pyarrow", "numpy", "kio")
COUNTED: Final = 10_000
"""Rows that Spark shares out to see how many parts it makes of them."""


class ConnectFailed(TidelogError):
    """There is no such server, or it cannot do what is needed; the message says what to change."""


def is_remote(master: str) -> bool:
    return master.startswith(SCHEME)


def is_connect(session: "SparkSession") -> bool:
    """Whether the session is a client of Spark Connect."""
    return type(session).__module__.startswith("pyspark.sql.connect.")


def own_session(session: "SparkSession") -> "SparkSession":
    """Another session with the same settings and views of its own."""
    if is_connect(session):
        # A new one would begin with the server's settings.
        mine: Any = session
        cloned = mine.cloneSession()
        for policy in mine.client.get_retry_policies():
            if hasattr(policy, "govern"):  # it would begin with Spark's own, too
                policy.govern(cloned)
        own: SparkSession = cloned
        return own
    return session.newSession()


def parallelism(session: "SparkSession") -> int:
    """How many tasks Spark makes of anything, unless it is told."""
    if not is_connect(session):
        return session.sparkContext.defaultParallelism
    from pyspark.sql import functions as f

    parts = session.range(COUNTED).select(f.spark_partition_id().alias("part")).distinct()
    return max(1, parts.count())


@contextmanager
def connected(
    name: str,
    *,
    master: str,
    conf: Mapping[str, str],
    environment: str = "",
    stop: threading.Event | None = None,
) -> Iterator["SparkSession"]:
    """A session of the server at `master`; leaving ends the session, and not the server.

    Once `stop` is set, nobody waits for a server that is gone.
    """
    if environment:
        raise ConnectFailed(
            "--environment cannot be sent to a Spark Connect server: its executors run the Python "
            "that it was started with. Install Tidelog in that one, and leave --environment out"
        )
    with _remote_functions(), warnings.catch_warnings():
        # Whatever pandas is there: our jobs use none.
        warnings.filterwarnings("ignore", "PySpark does not yet fully support", FutureWarning)
        session = _open(name, master)
        from tidelog.spark.leaving import WhileWanted, is_unreached, left_soon

        policy = WhileWanted(stop)
        policy.govern(session)
        try:
            with left_soon(session, policy):
                for key, value in conf.items():
                    _set(session, key, value)
                _check(session, master)
                yield session
        except Exception as error:
            if not is_unreached(error):
                raise
            raise ConnectFailed(
                f"{master} does not answer any more. What was committed stays, and the next run goes "
                "on from there; queries end with their server, and go on if only the way to it broke"
            ) from error


@contextmanager
def _remote_functions() -> Iterator[None]:
    """Have `pyspark.sql.functions` make columns for a server, not for a JVM of this process."""
    before = os.environ.get(CONNECT_MODE)
    os.environ[CONNECT_MODE] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[CONNECT_MODE]


def _open(name: str, master: str) -> "SparkSession":
    try:
        from pyspark.errors import PySparkException
        from pyspark.sql.connect.session import SparkSession as ConnectSession
    except ImportError as error:
        raise ConnectFailed(f"{error}; Spark Connect needs it: pip install 'pyspark[connect]'") from None
    try:
        at = urlsplit(master)
        # The client itself would try for many minutes.
        socket.create_connection((at.hostname or "", at.port or PORT), REACH_SECONDS_MAX).close()
        made: Any = ConnectSession.builder.remote(master).appName(name).create()
        logger.info("%s is Spark %s", master, made.version)
    except (PySparkException, ValueError, OSError) as error:
        raise ConnectFailed(
            f"{master}: no Spark Connect server answers there: {_first_line(error)}. Its address "
            f"is {SCHEME}HOST:PORT, and the port is {PORT} unless somebody chose another one"
        ) from error
    session: SparkSession = made
    return session


def _set(session: "SparkSession", key: str, value: str) -> None:
    """Set what is the session's; what is the server's stays as it is there."""
    from pyspark.errors import PySparkException

    try:
        session.conf.set(key, value)
    except PySparkException:
        there = session.conf.get(key, None)
        if there != value:
            logger.warning("%s=%s is for the server to say, where it is %s", key, value, there or "not set")


def _check(session: "SparkSession", master: str) -> None:
    from pyspark.errors import PySparkException

    if str(session.conf.get("spark.speculation", "false")).lower() == "true":
        raise ConnectFailed(
            f"{master} has spark.speculation=true; it must be false: two attempts of one task at a "
            "time would fence each other's transactions"
        )

    packages = ON_EXECUTORS

    def missing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        # It is sent as it is, and needs nothing of ours there.
        problems = []
        for package in packages:
            try:
                import_module(package)
            except ImportError as error:
                problems.append(f"{error} on {os.uname().nodename}")
        for _ in batches:
            yield pa.RecordBatch.from_pydict({"problem": pa.array(problems, pa.string())})

    try:
        found = session.range(1).mapInArrow(missing, "problem string").collect()
    except PySparkException as error:
        raise ConnectFailed(
            f"executors of {master} cannot run our tasks: {_first_line(error)}. Their Python must "
            "be of the same version as this one, with pyarrow and Tidelog in it"
        ) from error
    if found:
        raise ConnectFailed(
            f"executors of {master} cannot run our tasks: {found[0].problem}. Install Tidelog in "
            "the Python of the server and of its executors: pip install 'tidelog[spark]'"
        )


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), repr(error))
