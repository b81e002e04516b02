"""Rot on real disks: a byte of a sealed segment changes, and comes back from another replica."""

import io
import json
import urllib.request
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.clients import ALL, OK, create_topic, write
from tests.support.nodes import Nodes
from tidelog.faces.cli import main
from tidelog.faces.cli.segments import segment_files

pytestmark = pytest.mark.slow

TRIO = (101, 102, 103)
SETTINGS = {
    "http": "127.0.0.1:0",
    "offsets.topic.num.partitions": 2,
    "scrub.interval.ms": 200,
    "scrub.bytes.per.second": 50_000_000,
}


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    with Nodes(tmp_path_factory.mktemp("trio"), TRIO, SETTINGS) as nodes:
        nodes.until_active(*TRIO)
        yield nodes
        for node in TRIO:
            log = nodes[node].log.read_text()
            assert "Traceback" not in log, log


def make_topic(nodes: Nodes, topic: str, *replicas: int) -> None:
    """A topic of one partition, some of whose segments are sealed on every replica."""
    create_topic(nodes.bootstrap, topic, [replicas], segment_bytes="1000")
    nodes.until_all_in_sync(topic)
    for number in range(30):
        assert write(nodes[replicas[0]].port, topic, b"%d" % number * 50, acks=ALL)[0] == OK
    nodes.until(lambda: all(nodes.log_end(node, topic) == 30 for node in replicas), "they differ in length")


def flip(nodes: Nodes, node: int, topic: str, byte: int = 100) -> Path:
    """Change a byte of the first segment, behind the node's back."""
    path = segment_files(nodes[node].data / f"{topic}-0")[0]
    with path.open("r+b") as file:
        file.seek(byte)
        (found,) = file.read(1)
        file.seek(byte)
        file.write(bytes([found ^ 0x20]))
    return path


def get(nodes: Nodes, node: int, path: str) -> bytes:
    with urllib.request.urlopen(f"http://{nodes[node].http}{path}", timeout=10) as answer:
        found: bytes = answer.read()
        return found


def scrub(nodes: Nodes, node: int) -> Any:
    return json.loads(get(nodes, node, "/v1/replication"))["scrub"]


def status(nodes: Nodes, *options: str) -> str:
    out = io.StringIO()
    with redirect_stdout(out):
        assert main(["replication", "status", "--bootstrap", nodes.bootstrap, *options]) == 0
    return out.getvalue()


@pytest.mark.parametrize("role", ["follower", "leader"])
@pytest.mark.parametrize("byte", [5, 14, 100])
def test_a_byte_that_changes_on_disk_is_told_and_healed(nodes, role, byte):
    topic = f"{role}-{byte}"
    make_topic(nodes, topic, *TRIO)
    node = 101 if role == "leader" else 102
    before, epoch = nodes.log_bytes(node, topic), nodes.partition(topic).epoch
    healed = scrub(nodes, node)["healed"]

    flip(nodes, node, topic, byte)

    nodes.until(lambda: scrub(nodes, node)["healed"] > healed, "nobody has healed it")
    assert {nodes.log_bytes(one, topic) for one in TRIO} == {before}
    [rot] = [one for one in scrub(nodes, node)["recent"] if one["topic"] == topic]
    assert rot["state"] == "healed"
    assert rot["source"] in set(TRIO) - {node}
    log = nodes[node].log.read_text()
    assert f"{topic}-0 is rotten at offset 0" in log
    assert f"{topic}-0 is healed at offset 0" in log
    assert f"tidelog_scrub_rot_healed_total {healed + 1}" in get(nodes, node, "/metrics").decode()
    found = nodes.partition(topic)
    assert (found.epoch, found.in_sync) == (epoch, set(TRIO)), "nobody had to leave"


def test_a_sole_replica_is_told_of_and_left_as_it_is(nodes):
    make_topic(nodes, "sole", 103)

    path = flip(nodes, 103, "sole")
    rotten = path.read_bytes()

    nodes.until(lambda: scrub(nodes, 103)["rotten"] == 1, "nobody has found it")
    [rot] = json.loads(status(nodes, "--json"))["scrubs"][-1]["rot"]
    assert (rot["topic"], rot["offset"], rot["why"]) == ("sole", 0, "there is no other replica")
    assert "sole-0 is rotten at offset 0" in status(nodes)
    assert json.loads(get(nodes, 103, "/health/replication"))["rotten"] == 1
    assert path.read_bytes() == rotten
    assert write(nodes[103].port, "sole", b"more", acks=ALL)[0] == OK
