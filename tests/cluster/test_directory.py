"""One data directory, one node: anybody else is turned away with words."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faces.raw import RawClient
from tests.support.node import NodeProcess
from tidelog.log.directory import DURABLE_MARKS
from tidelog.records import HEADER_BYTES, Record, encode_batch
from tidelog.wire.apis import Api

STORAGE_ERROR = 56
TOPIC = "orders"


def start_and_fail(data: Path, *options: str) -> str:
    """Start a node that must refuse to; what it tells."""
    ended = subprocess.run(
        [
            sys.executable,
            "-m",
            "tidelog.faces.cli",
            "start",
            "--data",
            str(data),
            "--kafka",
            "127.0.0.1:0",
            *options,
        ],
        capture_output=True,
        timeout=45,
        check=False,
        text=True,
        env={**os.environ, "COLUMNS": "400"},
    )
    assert ended.returncode != 0, ended.stdout
    assert "ready" not in ended.stdout
    assert "Traceback" not in ended.stderr, ended.stderr
    return ended.stderr


def batch(value: bytes) -> bytes:
    return bytes(encode_batch([Record(value=value)]))


def test_a_second_node_on_the_same_directory_is_refused(tmp_path: Path) -> None:
    with NodeProcess(tmp_path / "data") as node, RawClient(node.port) as client:
        client.create_topic(TOPIC)

        message = start_and_fail(node.data)

        assert "in use by another node" in message
        assert str(node.data) in message
        assert client.produce(batch(b"still here"), TOPIC).error_code == 0


def test_the_directory_is_free_once_its_node_was_killed(tmp_path: Path) -> None:
    with NodeProcess(tmp_path / "data") as node:
        node.kill()
        node.start()
        assert node.stop() == 0
        node.start()


def test_another_nodes_directory_is_refused(tmp_path: Path) -> None:
    with NodeProcess(tmp_path / "data") as node:
        assert node.stop() == 0
    before = {path: path.read_bytes() for path in node.data.rglob("*") if path.is_file()}

    message = start_and_fail(node.data, "--node-id", "7")

    assert "belongs to node 1" in message
    assert "--node-id 1" in message
    after = {path: path.read_bytes() for path in node.data.rglob("*") if path.is_file()}
    assert after == before


def test_a_damaged_owner_is_refused_with_the_files_name(tmp_path: Path) -> None:
    with NodeProcess(tmp_path / "data") as node:
        assert node.stop() == 0
    for content in (b"", b"\xff\xfe\xfd", b"version=1\nnode.id=one\n"):
        (node.data / "meta.properties").write_bytes(content)

        assert "meta.properties is damaged" in start_and_fail(node.data)


@pytest.mark.parametrize("clean", [True, False], ids=["stopped", "killed"])
def test_rot_below_what_was_synced_is_never_cut_off(tmp_path: Path, clean: bool) -> None:
    """Bytes that were safe once and are not any more: keep them, say so, take no writes."""
    with NodeProcess(tmp_path / "data", {"checkpoint.ms": 10}) as node:
        with RawClient(node.port) as client:
            client.create_topic(TOPIC)
            client.create_topic("healthy")
            for number in range(20):
                assert client.produce(batch(b"%d" % number), TOPIC).error_code == 0
            while f"{TOPIC} 0 20" not in _text(node.data / DURABLE_MARKS):
                client.produce(batch(b"time passes"), "healthy")
        segment = node.data / f"{TOPIC}-0" / ("0" * 20 + ".log")
        node.kill()
        rotten = bytearray(segment.read_bytes())
        rotten[10 * len(batch(b"10")) + HEADER_BYTES] ^= 4  # somewhere around the tenth batch
        segment.write_bytes(rotten)

        for _ in range(3):
            node.start()
            with RawClient(node.port) as client:
                assert client.produce(batch(b"more"), TOPIC).error_code == STORAGE_ERROR
                assert client.produce(batch(b"more"), "healthy").error_code == 0
                assert client.fetch(TOPIC).records, "what lies before the damage can be read"
                client.produce(batch(b"time passes"), "healthy")
            if clean:
                assert node.stop() == 0
            else:
                node.kill()
            assert segment.read_bytes() == rotten


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except FileNotFoundError:
        return ""


def test_a_topic_made_anew_is_no_damaged_old_one(tmp_path: Path) -> None:
    """Its namesake's marks must not outlive it."""
    with NodeProcess(tmp_path / "data", {"checkpoint.ms": 10}) as node:
        with RawClient(node.port) as client:
            client.create_topic(TOPIC)
            for number in range(20):
                client.produce(batch(b"%d" % number), TOPIC)
            while f"{TOPIC} 0 20" not in _text(node.data / DURABLE_MARKS):
                client.produce(batch(b"more"), TOPIC, 1)  # there is no such partition
        assert node.stop() == 0
    with NodeProcess(node.data, {"checkpoint.ms": 600_000}) as node:  # notes nothing any more
        with RawClient(node.port) as client:
            fields = {"topic_names": [TOPIC], "timeout": 10_000}
            answer = client.ask(Api.DELETE_TOPICS, 3, fields)
            assert answer.responses[0].error_code == 0
            client.create_topic(TOPIC)
            assert client.produce(batch(b"new"), TOPIC).base_offset == 0
        node.kill()
        node.start()

        with RawClient(node.port) as client:
            assert client.values(TOPIC) == [b"new"]
            assert client.produce(batch(b"newer"), TOPIC).base_offset == 1
