import json
from pathlib import Path

import pytest

from tests.unit.copies.embedded.copying import put
from tests.unit.copies.embedded.test_files import fill
from tests.unit.faces.cli.http_node import HttpNode
from tidelog.copies.embedded.files import About, Layout
from tidelog.copies.stream.kinds import QueueView
from tidelog.copies.stream.protocol import Source
from tidelog.queues.records import About as Said
from tidelog.queues.records import PlaceOf, job_record

COMMANDS = ["run", "status", "get", "list"]


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> HttpNode:
    return HttpNode(monkeypatch)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A copy of a bucket with two keys."""
    layout = Layout(tmp_path / "settings.db")
    layout.write_about(About(replica_id="r1", source=Source(bucket="settings"), partitions=1))
    fill(layout.file(0), put("limits", b'{"rate":100}', 0), put("theme", b"dark", 1))
    return layout.path


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself_with_examples(tidelog, command):
    result = tidelog("replica", command, "--help")

    assert result.code == 0
    assert "Examples:" in result.out and f"tidelog replica {command}" in result.out


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["run", "--path", "x.db"], "--bucket NAME or --queue NAME"),
        (["run", "--path", "x.db", "--bucket", "a", "--queue", "b"], "--bucket NAME"),
        (["run", "--bucket", "a"], "--path"),
        (["run", "--path", "x.db", "--bucket", "a", "--http", "x:y"], "HOST:PORT"),
        (["run", "--path", "x.db", "--bucket", "a", "--once", "now"], "--once"),
        (["get", "k", "--path", "x.db"], "tidelog replica run"),
        (["status", "--path", "x.db"], "tidelog replica run"),
    ],
)
def test_a_wrong_command_line_is_one_line(tidelog, node, arguments, expected, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = tidelog("replica", *arguments)

    assert result.code in (1, 2)
    assert result.err.count("\n") == 1 and expected in result.err
    assert result.out == ""


def test_a_key_is_read_from_the_file_without_asking_anybody(tidelog, node, path):
    node.goes_away()

    assert tidelog("replica", "get", "theme", "--path", path).out == "dark\n"
    found = json.loads(tidelog("replica", "get", "limits", "--path", path, "--json").out)
    assert found == {"key": "limits", "value": {"rate": 100}, "version": 0}
    assert "no key 'none'" in tidelog("replica", "get", "none", "--path", path).err
    assert node.asked == []


def test_keys_are_listed(tidelog, path):
    table = tidelog("replica", "list", "--path", path).out
    found = json.loads(tidelog("replica", "list", "--path", path, "--prefix", "th", "--json").out)

    assert "limits" in table and "theme" in table
    assert found == {"entries": [{"key": "theme", "value": "dark", "version": 1}]}


def test_messages_of_a_queue_s_copy_are_listed_and_it_has_no_keys(tidelog, tmp_path):
    layout = Layout(tmp_path / "jobs")
    (tmp_path / "jobs").mkdir()
    layout.write_about(About(replica_id="r1", source=Source(queue="q"), partitions=1))
    fill(layout.file(0), job_record(PlaceOf("q", 0), b'"x"', Said(), now_ms=1), kind=QueueView())

    assert "x" in tidelog("replica", "list", "--path", layout.path).out
    found = json.loads(tidelog("replica", "list", "--path", layout.path, "--json").out)
    assert [one["value"] for one in found["messages"]] == ["x"]
    assert "no keys" in tidelog("replica", "get", "k", "--path", layout.path).err


def test_how_far_a_copy_is_behind_is_shown(tidelog, node, path):
    node.describes("settings", [9])

    table = tidelog("replica", "status", "--path", path)
    found = json.loads(tidelog("replica", "status", "--path", path, "--json").out)

    assert "r1 is a copy of bucket settings" in table.out
    assert (found["replica_id"], found["bucket"]) == ("r1", "settings")
    (partition,) = found["partitions"]
    assert (partition["applied_offset"], partition["current_offset"]) == (2, 9)
    assert partition["lag_entries"] == 7 and partition["bytes"] > 0


def test_without_a_node_a_copy_shows_what_it_knows(tidelog, node, path):
    node.goes_away()

    result = tidelog("replica", "status", "--path", path, "--json")

    assert result.code == 0 and "no node answers" in result.err
    (partition,) = json.loads(result.out)["partitions"]
    assert (partition["applied_offset"], partition["lag_entries"]) == (2, None)


def test_a_copy_of_a_cluster_that_is_not_there_is_one_line(tidelog, tmp_path):
    result = tidelog(
        "replica",
        "run",
        "--bucket",
        "b",
        "--path",
        tmp_path / "c.db",
        "--once",
        "1s",
        "--http",
        "127.0.0.1:1",
    )

    assert (result.code, result.out) == (1, "")
    assert result.err.count("\n") == 1 and "disconnected" in result.err
