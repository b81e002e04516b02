"""One Spark and one node for all of these tests: a JVM takes longer to start than a test to run.

Rule 1: tests keep apart by the names of their topics, and by directories of their own.
Rule 2: a query that a test started ends with the test, whatever became of it.
"""

import itertools
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.clients.nodes import no_complaints
from tests.spark.topics import Topics
from tests.support.node import NodeProcess
from tidelog.spark.session import spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HERE = Path(__file__).parent
SECONDS_MAX = 600

LONGEST = ("test_exactly_once.py", "test_pipelines.py", "test_standalone.py", "test_declarative.py")
"""These first, so that at the end there is no long one that one process has to itself."""

CONNECT = {
    "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
    "spark.connect.grpc.binding.address": "127.0.0.1",
    "spark.connect.grpc.binding.port": "0",
}
"""The one Spark is a server of Spark Connect, too."""

_numbers = itertools.count(1)


def pytest_configure(config: pytest.Config) -> None:
    # Most of these JVMs and workers live for seconds: they should start fast, not run fast.
    os.environ["JAVA_TOOL_OPTIONS"] = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    os.environ["PYTHONPATH"] = str(HERE / "lean")
    # Whatever pandas is there: our jobs use none.
    config.addinivalue_line(
        "filterwarnings", "ignore:PySpark does not yet fully support pandas:FutureWarning"
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # The first test of a session pays for everything that is started. A signal in the middle of an
    # answer from the JVM would spoil all tests after it.
    for item in items:
        if item.path.is_relative_to(HERE) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(SECONDS_MAX))
    items.sort(key=lambda item: item.path.parent != HERE or item.path.name not in LONGEST)


@pytest.fixture(scope="session")
def shared_spark(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[SparkSession]":
    log = tmp_path_factory.mktemp("spark") / "spark.log"
    conf = {"spark.driver.memory": "1g", "spark.sql.shuffle.partitions": "2"} | CONNECT
    with spark_session("tests", master="local[2]", conf=conf, log=log) as session:
        yield session


@pytest.fixture
def spark(shared_spark: "SparkSession") -> "Iterator[SparkSession]":
    """A real Spark: two threads, two shuffle partitions."""
    yield shared_spark
    for query in shared_spark.streams.active:
        query.stop()
    shared_spark.catalog.clearCache()


@pytest.fixture
def connect_url(spark: "SparkSession") -> str:
    """Where clients of Spark Connect reach the same Spark."""
    jvm: Any = spark._jvm
    service = jvm.java.lang.Class.forName("org.apache.spark.sql.connect.service.SparkConnectService$")
    port = service.getField("MODULE$").get(None).localPort()
    return f"sc://127.0.0.1:{port}"


@pytest.fixture(scope="session")
def shared_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    with NodeProcess(tmp_path_factory.mktemp("shared") / "data") as node:
        yield node
        assert node.stop() == 0, node.log.read_text()


@pytest.fixture
def node(shared_node: NodeProcess) -> Iterator[NodeProcess]:
    """A real node with all defaults, at `node.bootstrap`; it may find no fault of its own."""
    with no_complaints(shared_node):
        yield shared_node


@pytest.fixture
def topics(node: NodeProcess) -> Topics:
    return Topics(node.bootstrap)


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A name that no other test uses; nobody has made the topic yet."""
    words = re.sub(r"[^A-Za-z0-9-]+", "-", request.node.name.removeprefix("test_"))
    return f"{words[:200].strip('-')}-{next(_numbers)}"
