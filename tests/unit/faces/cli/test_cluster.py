import os

import pytest

from tidelog.client.members import View
from tidelog.faces.cli.brokers import NoAnswer, get_json, state_of
from tidelog.faces.cli.cluster import describe, newest
from tidelog.faces.cli.quorum import ago
from tidelog.faces.local.layout import ClusterFile, NodeEntry, State
from tidelog.model import Endpoint


def entry(**fields):
    defaults = {"id": 2, "kafka": "h:1", "http": "h:2", "peer": "h:3"}
    return NodeEntry(**defaults | fields)  # type: ignore[arg-type]


CONTENT = ClusterFile(quorum="1@h:1,2@h:3,3@h:5", nodes=[])


def test_a_node_is_shown_as_its_process_is():
    running = describe(entry(pid=os.getpid(), state=State.RUNNING), CONTENT, is_up=True)
    killed = describe(entry(state=State.KILLED), CONTENT, is_up=True)

    assert (running["state"], running["alive"], running["role"]) == ("running", True, "voter")
    assert (killed["state"], killed["alive"], killed["pid"]) == ("killed", False, None)


def test_pids_in_the_file_of_a_cluster_that_is_gone_mean_nothing():
    found = describe(entry(id=4, pid=os.getpid(), state=State.RUNNING), CONTENT, is_up=False)

    assert (found["state"], found["alive"], found["pid"]) == ("stopped", False, None)
    assert found["role"] == "observer"


def test_the_view_with_the_latest_election_counts():
    def view(leader, epoch):
        return View(leader=leader, epoch=epoch, brokers={})

    assert newest([view(1, 4), view(3, 5), view(None, 5)]) == view(3, 5)
    assert newest([view(1, 4), view(None, 5)]) == view(None, 5)
    assert newest([]) is None


@pytest.mark.parametrize(
    ("fenced", "shutting_down", "state"),
    [
        (True, True, "fenced"),
        (False, True, "shutting down"),
        (False, False, "active"),
        (False, None, "active"),
    ],
)
def test_a_broker_has_one_state(fenced, shutting_down, state):
    assert state_of({"fenced": fenced, "shutting_down": shutting_down}) == state


def test_what_a_broker_is_short_of_is_its_state():
    broker = {"fenced": False, "shutting_down": False}

    assert state_of({**broker, "disk_full": True, "out_of_files": False}) == "disk full"
    assert state_of({**broker, "disk_full": False, "out_of_files": True}) == "out of files"


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [
        (-50, "0.0 s ago"),
        (240, "0.2 s ago"),
        (45_000, "45 s ago"),
        (600_000, "10 min ago"),
        (36_000_000, "10 h ago"),
    ],
)
def test_spans_of_time_are_for_people(milliseconds, text):
    assert ago(milliseconds) == text


def test_an_http_face_that_does_not_answer_is_named(broker):
    at = Endpoint.parse(broker.address)  # it speaks Kafka

    with pytest.raises(NoAnswer, match=f"http://{broker.address}/v1"):
        get_json(at, "/v1/cluster")


@pytest.mark.parametrize("command", [["status"], ["kill", "1"], ["start", "1"]], ids=" ".join)
def test_where_no_cluster_is_the_commands_say_how_to_make_one(tidelog, tmp_path, command):
    result = tidelog("cluster", *command, "--data", tmp_path)

    assert (result.code, result.out) == (1, "")
    assert result.err.count("\n") == 1 and "tidelog cluster up" in result.err


def test_a_single_nodes_directory_is_not_taken_for_a_clusters(tidelog, tmp_path):
    (tmp_path / "meta.properties").touch()

    result = tidelog("cluster", "up", "--data", tmp_path)

    assert result.code == 1 and "NODES=1" in result.err
    assert [path.name for path in tmp_path.iterdir()] == ["meta.properties"]


def test_a_clusters_directory_is_not_taken_for_a_single_nodes(tidelog, tmp_path):
    (tmp_path / "cluster.json").touch()

    result = tidelog("start", "--data", tmp_path)

    assert result.code == 1 and "tidelog cluster up" in result.err
