"""Fixtures for pytest, there for whoever has Tidelog installed.

| fixture              | what it is                                        | how long          |
|----------------------|---------------------------------------------------|-------------------|
| tidelog_broker       | one node, shared                                  | the session       |
| tidelog_topic        | makes topics there with names of their own        | one test          |
| tidelog_broker_fresh | one node, empty, to be broken                     | one test          |
| tidelog_cluster      | three nodes, to be broken                         | one test, or as   |
|                      |                                                   | configured        |
| tidelog_faults       | what can happen to those three, drawn from a seed | one test          |

Rule 1: pytest imports this everywhere, also where nobody uses it. So it imports nothing but
        pytest, and a fixture imports what it needs.
Rule 2: a test that fails with faults says from which seed, and what was done to it.
"""

import random
from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import pytest

if TYPE_CHECKING:
    from tidelog.testing.cluster import Cluster
    from tidelog.testing.faults import Faults

Scope: TypeAlias = Literal["function", "class", "module", "package", "session"]
SCOPES: Final[tuple[Scope, ...]] = ("function", "class", "module", "package", "session")
NODES: Final = 3

_FAULTS: Final = pytest.StashKey["Faults"]()
_SEED: Final = pytest.StashKey[int]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("tidelog", "Tidelog")
    group.addoption(
        "--tidelog-seed",
        type=int,
        metavar="N",
        help="what tidelog_faults draws from, to repeat a run; a random number by default",
    )
    group.addoption(
        "--tidelog-cluster-scope",
        choices=SCOPES,
        help="how long a tidelog_cluster lasts; stronger than tidelog_cluster_scope in a file",
    )
    parser.addini(
        "tidelog_cluster_scope", f"how long a tidelog_cluster lasts: {', '.join(SCOPES)}", default="function"
    )
    parser.addini("tidelog_settings", "settings of all nodes, one KEY=VALUE on a line", type="linelist")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "tidelog(nodes=3, settings={}): how the tidelog_cluster or tidelog_broker_fresh of this test is made",
    )
    seed = config.getoption("tidelog_seed")
    config.stash[_SEED] = random.SystemRandom().getrandbits(32) if seed is None else seed


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, None]:
    outcome = yield
    faults = item.stash.get(_FAULTS, None)
    if faults is not None:
        report = outcome.get_result()
        if report.failed:
            report.sections.append(("tidelog faults", _describe(item, faults)))


def _describe(item: pytest.Item, faults: "Faults") -> str:
    seed = item.config.stash[_SEED]
    done = [f"    {line}" for line in faults.history] or ["    nothing"]
    return "\n".join(
        [
            f"drawn from --tidelog-seed={seed}; what was done, by seconds of the test:",
            *done,
            f"to draw the same again: pytest --tidelog-seed={seed} {item.nodeid!r}",
        ]
    )


def _cluster_scope(fixture_name: str, config: pytest.Config) -> Scope:
    scope: Scope = config.getoption("tidelog_cluster_scope") or config.getini("tidelog_cluster_scope")
    if scope not in SCOPES:
        raise pytest.UsageError(f"tidelog_cluster_scope is {scope!r}; it may be {SCOPES}")
    return scope


def _settings(config: pytest.Config) -> dict[str, object]:
    settings: dict[str, object] = {}
    for line in config.getini("tidelog_settings"):
        key, equals, value = line.partition("=")
        if not equals:
            raise pytest.UsageError(f"tidelog_settings: {line!r} is not KEY=VALUE")
        settings[key.strip()] = value.strip()
    return settings


def _make(request: pytest.FixtureRequest, nodes: int) -> "Cluster":
    """A cluster as the marker wants it, not started yet."""
    from tidelog.testing.cluster import Cluster

    marker = request.node.get_closest_marker("tidelog")
    wanted = dict(marker.kwargs) if marker is not None else {}
    if marker is not None and (marker.args or set(wanted) - {"nodes", "settings"}):
        raise pytest.UsageError("the marker tidelog takes nodes=... and settings={...}")
    settings = _settings(request.config) | wanted.get("settings", {})
    return Cluster(wanted.get("nodes", nodes), settings=settings)


@pytest.fixture(scope="session")
def tidelog_broker(pytestconfig: pytest.Config) -> Iterator["Cluster"]:
    """One node that all tests share: its `bootstrap` is for Kafka clients, its `http` for others.

    Do not stop it. Give each test topics of its own, with tidelog_topic.
    """
    from tidelog.testing.cluster import Cluster

    with Cluster(nodes=1, settings=_settings(pytestconfig)) as cluster:
        yield cluster


@pytest.fixture
def tidelog_topic(tidelog_broker: "Cluster") -> Iterator[Callable[..., str]]:
    """`tidelog_topic("orders", partitions=3)` makes a topic at tidelog_broker; its name.

    The name begins with the word and is like no other; the topic goes with the test.
    """
    made = []
    if not tidelog_broker[1].is_running:  # whatever became of it in another test
        tidelog_broker[1].start()

    def make(prefix: str = "topic", **options: Any) -> str:
        made.append(tidelog_broker.new_topic(prefix, **options))
        return made[-1]

    yield make
    for name in made if tidelog_broker[1].is_running else ():
        tidelog_broker.delete_topic(name)


@pytest.fixture
def tidelog_broker_fresh(request: pytest.FixtureRequest) -> Iterator["Cluster"]:
    """One node that is this test's own."""
    with _make(request, nodes=1) as cluster:
        yield cluster


@pytest.fixture(scope=_cluster_scope)
def tidelog_cluster(request: pytest.FixtureRequest) -> Iterator["Cluster"]:
    """Three nodes, ready; `tidelog_cluster[2].kill()`, `.leader_of("orders").kill()`, ..."""
    with _make(request, nodes=NODES) as cluster:
        yield cluster


@pytest.fixture
def tidelog_faults(request: pytest.FixtureRequest, tidelog_cluster: "Cluster") -> Iterator["Faults"]:
    """What can happen to tidelog_cluster; all is healed when the test ends.

    The seed is that of --tidelog-seed and the test's name: it draws the same in whatever company.
    """
    faults = tidelog_cluster.faults
    faults.begin(f"{request.config.stash[_SEED]} {request.node.nodeid}")
    request.node.stash[_FAULTS] = faults
    yield faults
    faults.heal()
