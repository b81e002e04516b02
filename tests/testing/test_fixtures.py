"""The fixtures as users have them: in projects of their own, run by their own pytest."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tidelog.testing import Cluster, Faults

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "pytest_project"
SECONDS_MAX = 100

PROJECT = """
import pytest

pytestmark = pytest.mark.tidelog(nodes=1, settings={"connections.max": 77})
seen = []

@pytest.mark.parametrize("time", [1, 2])
def test_a_cluster_is_shared(tidelog_cluster, tidelog_faults, time):
    seen.append(tidelog_cluster)
    assert len(tidelog_cluster) == 1
    assert all(cluster is tidelog_cluster for cluster in seen)
    assert tidelog_faults.history == [] and not tidelog_faults.active
    tidelog_faults.slow_disk(1, 0.001)

def test_settings_come_from_the_file_and_from_the_marker(tidelog_cluster):
    config = tidelog_cluster[1].node.config
    assert (config.num_partitions, config.connections_max) == (4, 77)

def test_that_fails(tidelog_cluster, tidelog_faults):
    with tidelog_faults.skew_clock(1, 2.0):
        assert not "a reason"

def test_without_faults_that_fails():
    assert not "a reason"
"""


def run(project: Path, *options: str) -> "subprocess.CompletedProcess[str]":
    """pytest on a project that is not ours: no settings of ours, and warnings are errors."""
    return subprocess.run(
        [
            sys.executable,
            "-W",
            "error",
            "-m",
            "pytest",
            str(project),
            "-q",
            *options,
            "-p",
            "no:cacheprovider",
            "-p",
            "no:schemathesis",
        ],
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
        cwd=ROOT,
        env={**os.environ, "PYTEST_ADDOPTS": ""},
    )


@pytest.mark.slow
def test_the_tests_of_the_example_project_pass():
    done = run(EXAMPLE)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 passed" in done.stdout
    assert "warning" not in done.stdout


@pytest.mark.slow
def test_a_project_configures_its_clusters_and_a_failure_says_how_to_draw_the_same_again(tmp_path):
    (tmp_path / "pytest.ini").write_text("[pytest]\ntidelog_settings = num.partitions = 4\n")
    (tmp_path / "test_it.py").write_text(PROJECT)

    done = run(tmp_path, "--tidelog-cluster-scope=module", "--tidelog-seed=7")

    said = done.stdout
    assert "2 failed, 3 passed" in said, said + done.stderr
    assert said.count("drawn from --tidelog-seed=7") == 1
    assert "clock of node 1 at 2 times" in said
    assert "to draw the same again: pytest --tidelog-seed=7 'test_it.py::test_that_fails'" in said


# In our own suite they work as in any other.


def test_a_broker_is_shared_and_its_topics_are_not(tidelog_broker, tidelog_topic):
    one, two = tidelog_topic("orders"), tidelog_topic("orders", partitions=2)

    assert isinstance(tidelog_broker, Cluster)
    assert one != two
    assert [len(tidelog_broker.partitions(name)) for name in (one, two)] == [1, 2]


def test_topics_go_with_the_test_that_has_made_them(tidelog_broker):
    names = {f"orders-{number}" for number in range(1, 100)}

    assert not any(tidelog_broker.partitions(name) for name in names)


@pytest.mark.tidelog(settings={"num.partitions": 5})
def test_a_fresh_broker_is_the_test_s_own(tidelog_broker_fresh, tidelog_broker):
    assert tidelog_broker_fresh is not tidelog_broker
    assert tidelog_broker_fresh[1].node.config.num_partitions == 5
    tidelog_broker_fresh[1].kill()


def test_faults_are_those_of_the_cluster(tidelog_cluster, tidelog_faults):
    assert isinstance(tidelog_faults, Faults)
    assert tidelog_faults is tidelog_cluster.faults
    assert len(tidelog_cluster) == 3
