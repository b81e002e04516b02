"""The commands of docs/runbooks.md, as they are written there, against real nodes under load.

The sections are run in their order, on one cluster; at the end everything acknowledged is read.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.cluster.load import Load, check_account
from tests.support.cluster import ClusterProcess, wait_until

pytestmark = pytest.mark.slow

RUNBOOKS: Final = Path(__file__).parents[2] / "docs" / "runbooks.md"
BLOCK: Final = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BLOCK_SECONDS_MAX: Final = 90.0
SEED: Final = 20261119
PARTITIONS: Final = 3
SETTING: Final = "max.message.bytes=2000000"


def sections() -> dict[str, list[str]]:
    """The blocks of commands, by the heading above them."""
    parts = re.split(r"^## (.*)$", RUNBOOKS.read_text(), flags=re.MULTILINE)
    found = dict(zip(parts[1::2], map(BLOCK.findall, parts[2::2]), strict=True))
    return {heading: blocks for heading, blocks in found.items() if blocks}


class Operator:
    """Somebody at a terminal, with a producer at work elsewhere."""

    def __init__(self, cluster: ClusterProcess) -> None:
        self.cluster = cluster
        self._background: list[int] = []
        content = json.loads((cluster.data / "cluster.json").read_text())
        self._environment = {
            **cluster.environment,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "TIDELOG_BOOTSTRAP": ",".join(cluster.bootstraps),
            "DATA": str(cluster.data),
            "QUORUM": content["quorum"],
        }

    def run(self, block: str) -> str:
        """Run the commands of a block; what they print."""
        began = time.monotonic()
        process = subprocess.Popen(
            ["sh", "-euc", block],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=self._environment,
            start_new_session=True,
        )
        if re.search(r"&$", block, re.MULTILINE):
            self._background.append(process.pid)  # what it leaves behind is of its group
        try:
            out, _ = process.communicate(timeout=BLOCK_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            out, _ = process.communicate()
            raise AssertionError(f"not done in time:\n{block}\n{out}") from None
        print(f"{time.monotonic() - began:5.1f} s\n{block}{out}")
        assert process.returncode == 0, f"{block}\n{out}"
        return out

    def leave(self) -> None:
        for group in self._background:
            try:
                os.killpg(group, signal.SIGKILL)
            except ProcessLookupError:
                pass  # the runbook has stopped it


@pytest.fixture(scope="module")
def operator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operator]:
    with ClusterProcess(tmp_path_factory.mktemp("runbooks") / "data") as cluster:
        operator = Operator(cluster)
        operator.run(
            f"tidelog topics create orders --partitions {PARTITIONS} --replication 3"
            f" --config {SETTING}\n"
            "tidelog topics create drafts --replication 3\n"
        )
        try:
            yield operator
        finally:
            operator.leave()


@pytest.fixture(scope="module")
def load(operator: Operator) -> Iterator[Load]:
    bootstrap = ",".join(operator.cluster.bootstraps)
    load = Load("orders", bootstrap, "orders", PARTITIONS, SEED, per_second_max=100)
    load.start()
    yield load
    load.abandon()


@pytest.mark.parametrize("heading", sections())
def test_the_runbook_works_under_load(operator: Operator, load: Load, heading: str) -> None:
    load.wait_acknowledged(10)

    for block in sections()[heading]:
        operator.run(block)

    load.wait_acknowledged(10)
    wait_until(operator.cluster.is_whole, "some node is missing")


def test_everything_acknowledged_meanwhile_is_read_back_and_settings_are_kept(
    operator: Operator, load: Load
) -> None:
    load.stop()

    assert load.count_acknowledged > 100
    check_account([load], ",".join(operator.cluster.bootstraps), "orders", PARTITIONS)
    settings = operator.run("tidelog configs describe --topic orders --json")
    values = {one["name"]: one["value"] for one in json.loads(settings)["configs"]}
    assert values["max.message.bytes"] == SETTING.partition("=")[2]
    described = json.loads(operator.run("tidelog topics describe orders --json"))
    assert all(sorted(one["in_sync"]) == [1, 2, 3] for one in described["partitions"])
