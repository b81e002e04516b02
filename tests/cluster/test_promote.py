"""`tidelog promote` and `tidelog elect` against real nodes: planned, by force, and by hand."""

import io
import json
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from typing import Any

import pytest

from tests.cluster.clients import ALL, OK, create_topic, write
from tests.cluster.load import Load, check_account, read_back
from tests.support.nodes import Nodes
from tidelog.faces.cli import main
from tidelog.faces.cli.brokers import get_json
from tidelog.model import Endpoint

pytestmark = pytest.mark.slow

NODES = (1, 2, 3)
SEED = 20261118
STEADY = {"per_second_max": 500, "unacknowledged_max": 200}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    settings = {"offsets.topic.num.partitions": 1, "http": "127.0.0.1:0"}
    with Nodes(tmp_path_factory.mktemp("three"), NODES, settings) as nodes:
        yield nodes
        for node in NODES:
            log = nodes[node].log.read_text()
            assert "Traceback" not in log, log


@pytest.fixture
def nodes(shared: Nodes) -> Nodes:
    shared.mend()
    shared.until_active(*NODES)
    return shared


def tidelog(nodes: Nodes, *arguments: object) -> tuple[int, Any, str]:
    """The exit code, the JSON document, and what was told on the way."""
    out, err = io.StringIO(), io.StringIO()
    bootstrap = ",".join(nodes[node].bootstrap for node in NODES if nodes.can_answer(node))
    with redirect_stdout(out), redirect_stderr(err):
        code = main([*map(str, arguments), "--bootstrap", bootstrap, "--json"])
    return code, json.loads(out.getvalue() or "null"), err.getvalue()


def test_a_planned_promotion_waits_until_the_target_is_in_sync_and_loses_nothing(nodes: Nodes) -> None:
    create_topic(nodes.bootstrap, "planned", [NODES])
    nodes.until_all_in_sync("planned")
    load = Load("planned", nodes.bootstrap, "planned", 1, SEED, **STEADY)
    try:
        load.start()
        nodes.kill(3)
        nodes.until_in_sync("planned", {1, 2})
        code, found, said = tidelog(nodes, "promote", "planned", "--to", 3, "--timeout", 3)
        assert (code, found["promoted"]) == (1, [])
        assert "broker 3 is away" in said, said
        load.wait_acknowledged(300)
        nodes.start(3)

        code, found, said = tidelog(nodes, "promote", "planned", "--to", 3, "--timeout", 20)

        assert code == 0, said
        (promoted,) = found["promoted"]
        assert (promoted["leader"], promoted["previous_leader"]) == (3, 1)
        assert (promoted["clean"], promoted["replicas"]) == (True, [3, 1, 2])
        load.wait_acknowledged(300)
        code, found, said = tidelog(nodes, "promote", "--all-from", 3, "--timeout", 20)
        assert code == 0, said
        assert all(one["leader"] in (1, 2) for one in found["promoted"])
        assert "planned" in {one["topic"] for one in found["promoted"]}
        load.wait_acknowledged(100)
        load.stop()
    finally:
        load.abandon()
    check_account([load], nodes.bootstrap, "planned", 1)


def test_by_force_a_replica_leads_that_lacks_records_and_says_how_many(nodes: Nodes) -> None:
    create_topic(nodes.bootstrap, "forced", [(1, 2)], min_insync_replicas="1")
    nodes.until_all_in_sync("forced")
    for offset in range(3):
        assert write(nodes[1].port, "forced", b"%d" % offset, acks=ALL) == (OK, offset)
    nodes.kill(2)
    nodes.until_in_sync("forced", {1})
    for offset in range(3, 8):
        assert write(nodes[1].port, "forced", b"%d" % offset, acks=ALL) == (OK, offset)
    # What node 1 has it tells with its next heartbeat.
    nodes.until(lambda: known_end(nodes, 3, "forced", 1) == 8, "node 3 has not heard of 1's end")
    nodes.kill(1)
    nodes.start(2)
    nodes.until_all_see(lambda via: nodes.partition("forced", 0, via).leader == -1, "it is led")

    code, found, said = tidelog(nodes, "promote", "forced", "--to", 2)
    assert (code, found["promoted"]) == (1, [])
    assert "the partition has no leader" in said and "--force" in said, said
    code, found, said = tidelog(nodes, "promote", "forced", "--to", 2, "--force")
    assert (code, found) == (1, None)
    assert "broker 2 ends at 3" in said and "broker 1's, 8: 5 records may be lost" in said, said
    assert "--yes" in said
    assert nodes.partition("forced").leader == -1

    code, found, said = tidelog(nodes, "promote", "forced", "--to", 2, "--force", "--yes")

    assert code == 0, said
    (promoted,) = found["promoted"]
    assert (promoted["leader"], promoted["clean"], promoted["records_lost_max"]) == (2, False, 5)
    nodes.until(lambda: nodes.watermark("forced") == 3, "node 2 does not lead")
    assert write(nodes[2].port, "forced", b"new", acks=ALL) == (OK, 3)
    # Who comes back later follows the new truth.
    nodes.start(1)
    nodes.until_in_sync("forced", {1, 2})
    assert [value for _, value in read_back(nodes.bootstrap, "forced", 0)] == [b"0", b"1", b"2", b"new"]


def known_end(nodes: Nodes, via: int, topic: str, node: int) -> int | None:
    found = get_json(Endpoint.parse(nodes[via].http), f"/v1/cluster?topics={topic}")
    end = found["topics"][0]["partitions"][0]["ends"][str(node)]
    return None if end is None else int(end)


def test_where_an_operator_decides_a_promotion_or_an_election_brings_a_leader(nodes: Nodes) -> None:
    create_topic(nodes.bootstrap, "by-hand", [NODES], failover_mode="manual")
    nodes.until_all_in_sync("by-hand")
    assert write(nodes[1].port, "by-hand", b"0", acks=ALL) == (OK, 0)
    nodes.kill(1)
    nodes.until_all_see(lambda via: nodes.partition("by-hand", 0, via).leader == -1, "it is led")

    code, found, said = tidelog(nodes, "promote", "by-hand")

    assert code == 0, said
    assert found["promoted"][0]["leader"] in (2, 3)
    assert found["promoted"][0]["clean"]
    nodes.start(1)
    nodes.until_in_sync("by-hand", set(NODES))
    code, found, said = tidelog(nodes, "elect", "preferred", "--topic", "by-hand")
    assert (code, found["partitions"][0]["outcome"]) == (0, "elected"), said
    nodes.until(lambda: nodes.partition("by-hand").leader == 1, "the first does not lead")
    code, found, said = tidelog(nodes, "elect", "unclean", "--topic", "by-hand", "--yes")
    assert (code, found["partitions"][0]["outcome"]) == (0, "not needed"), said
    assert [value for _, value in read_back(nodes.bootstrap, "by-hand", 0)] == [b"0"]
