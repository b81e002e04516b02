"""The nodes, the clients and the names that these tests share."""

import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.clients.adapters import Client
from tests.clients.adapters.confluent import ConfluentClient
from tests.clients.adapters.kafka_python import KafkaPythonClient
from tests.clients.libraries import CLIENTS
from tests.clients.nodes import no_complaints
from tests.support.node import NodeProcess

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def shared_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """A node with all defaults; tests keep apart by the names of their topics."""
    with NodeProcess(tmp_path_factory.mktemp("shared") / "data") as node:
        yield node
        assert node.stop() == 0, node.log.read_text()


@pytest.fixture
def node(shared_node: NodeProcess) -> Iterator[NodeProcess]:
    with no_complaints(shared_node):
        yield shared_node


@pytest.fixture(params=CLIENTS)
def library(request: pytest.FixtureRequest) -> type[Client]:
    """Each of the three client libraries."""
    return CLIENTS[request.param]


@pytest.fixture
def client(library: type[Client], node: NodeProcess) -> Iterator[Client]:
    """Each of the three client libraries, at the shared node."""
    with library(node.bootstrap) as client:
        yield client


@pytest.fixture
def confluent(node: NodeProcess) -> Iterator[Client]:
    """For what only this library can do."""
    with ConfluentClient(node.bootstrap) as client:
        yield client


@pytest.fixture
def kafka_python(node: NodeProcess) -> Iterator[Client]:
    """For what only this library can do."""
    with KafkaPythonClient(node.bootstrap) as client:
        yield client


@pytest.fixture(scope="session")
def strict_shared_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    settings: dict[str, Any] = {"auto.create.topics.enable": "false"}
    with NodeProcess(tmp_path_factory.mktemp("strict") / "data", settings) as node:
        yield node
        assert node.stop() == 0, node.log.read_text()


@pytest.fixture
def strict_client(library: type[Client], strict_shared_node: NodeProcess) -> Iterator[Client]:
    """Each library at a node that makes no topics by itself."""
    with no_complaints(strict_shared_node), library(strict_shared_node.bootstrap) as client:
        yield client


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A name that no other test uses; nobody has made the topic yet."""
    words = re.sub(r"[^A-Za-z0-9-]+", "-", request.node.name.removeprefix("test_"))
    return f"{words[:200].strip('-')}-{next(_numbers)}"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data directory for a node of the test's own."""
    return tmp_path / "data"
