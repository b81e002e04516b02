"""The HTTP face of a real node: what it serves, what it refuses, and what it costs."""

import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from tests.faces.raw import RawClient
from tests.support.node import NodeProcess
from tidelog.records import Record, encode_batch

SECONDS_MAX = 20.0


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    with NodeProcess(tmp_path_factory.mktemp("http") / "data") as node:
        yield node
        assert " ERROR " not in node.log.read_text()


def connect(node: NodeProcess) -> HTTPConnection:
    host, _, port = node.http.rpartition(":")
    return HTTPConnection(host, int(port), timeout=SECONDS_MAX)


def get(node: NodeProcess, path: str, **headers: str) -> tuple[int, dict[str, str], Any]:
    connection = connect(node)
    try:
        connection.request("GET", path, headers=headers)
        response = connection.getresponse()
        return response.status, dict(response.headers.items()), json.loads(response.read())
    finally:
        connection.close()


def raw(node: NodeProcess) -> socket.socket:
    host, _, port = node.http.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=SECONDS_MAX)


def read_all(connection: socket.socket) -> bytes:
    received = b""
    try:
        while chunk := connection.recv(65536):
            received += chunk
    except ConnectionResetError:
        pass
    return received


def test_a_node_that_has_said_ready_is_ready(tmp_path):
    with NodeProcess(tmp_path / "data") as node:
        assert get(node, "/health/ready")[0] == 200
        assert get(node, "/health/live")[0] == 200
        assert node.stop() == 0


def test_what_was_written_is_seen_in_the_cluster(node):
    with RawClient(node.port) as client:
        client.create_topic("orders", partitions=2)
        client.produce(bytes(encode_batch([Record(value=b"x")] * 3)), "orders")

    status, headers, found = get(node, "/v1/cluster")

    (topic,) = [one for one in found["topics"] if one["name"] == "orders"]
    assert (status, headers["content-type"]) == (200, "application/json")
    assert topic["partitions"][0]["high_watermark"] == 3
    assert topic["partitions"][0]["ends"] == {"1": 3}
    assert found["brokers"][0]["http"] == node.http


def test_one_connection_serves_many_requests(node):
    connection = connect(node)
    for path in ("/health/live", "/nothing", "/v1/cluster", "/health/ready"):
        connection.request("GET", path)
        response = connection.getresponse()
        response.read()
        assert response.getheader("x-request-id")
        assert response.getheader("date", "").endswith("GMT")
    connection.close()


@pytest.mark.parametrize(
    "junk",
    [b"nonsense\r\n\r\n", b"\x00\x00\x00\x05abcde", b"\x16\x03\x01" * 99],
    ids=["words", "kafka", "tls"],
)
def test_what_is_not_http_gets_a_problem_and_loses_its_connection(node, junk):
    with raw(node) as connection:
        connection.sendall(junk + b"\r\n\r\n")
        answer = read_all(connection)

    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"application/problem+json" in answer


def test_a_head_without_end_is_refused(node):
    with raw(node) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\n")
        try:
            for _ in range(1000):
                connection.sendall(b"x-more: " + b"y" * 1000 + b"\r\n")
        except OSError:
            return  # it has hung up
        assert read_all(connection).startswith(b"HTTP/1.1 400 ")


def test_a_long_body_is_refused_before_it_is_sent(node):
    with raw(node) as connection:
        connection.sendall(b"POST /v1/cluster HTTP/1.1\r\nhost: x\r\ncontent-length: 9999999\r\n\r\n")
        answer = read_all(connection)

    assert answer.startswith(b"HTTP/1.1 413 ")


def test_one_who_stops_half_way_is_let_go_and_others_are_served(tmp_path):
    with NodeProcess(tmp_path / "data", {"frame.timeout.ms": 100}) as node, raw(node) as slow:
        slow.sendall(b"GET /health/live HTTP/1.1\r\nhost:")
        assert get(node, "/health/live")[0] == 200

        assert read_all(slow) == b""


def test_a_stop_ends_idle_connections_and_does_not_wait_for_them(tmp_path):
    with NodeProcess(tmp_path / "data") as node:
        connection = connect(node)
        connection.request("GET", "/health/live")
        connection.getresponse().read()

        began = time.monotonic()
        assert node.stop() == 0

        assert time.monotonic() - began < SECONDS_MAX
        assert connection.sock.recv(1) == b""
        connection.close()


def test_a_node_whose_http_nobody_uses_has_imported_none_of_it():
    heavy = ["httptools", "websockets", "httpx", "tidelog.faces.http.app"]
    script = "import sys, tidelog.faces.node; print(*(set(sys.argv[1:]) & set(sys.modules)))"

    loaded = subprocess.run(
        [sys.executable, "-c", script, *heavy], capture_output=True, text=True, check=True
    )

    assert loaded.stdout.split() == []


# Those who listen.


def listening(path: str) -> bytes:
    """A request for all records of a topic, over a WebSocket if its path ends so."""
    head = f"GET {path}?from=earliest HTTP/1.1\r\nhost: x\r\n"
    if path.endswith("/ws"):
        head += "connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n"
        head += "sec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
    return (head + "\r\n").encode()


def read_until(connection: socket.socket, end: bytes) -> bytes:
    received = b""
    while end not in received:
        chunk = connection.recv(65536)
        assert chunk, received
        received += chunk
    return received


def test_a_stop_tells_those_who_listen_to_go_elsewhere_and_waits_for_no_goodbye(tmp_path):
    with NodeProcess(tmp_path / "data") as node, raw(node) as stream, raw(node) as web_socket:
        with RawClient(node.port) as client:
            client.create_topic("tide", partitions=1)
            client.produce(bytes(encode_batch([Record(value=b"risen")])), "tide")
        for connection, path in ((stream, "stream"), (web_socket, "ws")):
            connection.sendall(listening(f"/v1/topics/tide/{path}"))
            read_until(connection, b"risen")

        began = time.monotonic()
        assert node.stop() == 0

        assert time.monotonic() - began < SECONDS_MAX
        assert read_all(stream).endswith(b"0\r\n\r\n")
        goodbye = read_all(web_socket)
        at = goodbye.rindex(b"\x88")
        assert int.from_bytes(goodbye[at + 2 : at + 4], "big") == 1012
        assert " ERROR " not in node.log.read_text()


# Where it listens.


def start(data: Path, *options: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
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
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_port_that_was_asked_for_and_is_taken_is_an_error(tmp_path, node):
    process = start(tmp_path / "data", "--http", node.http)
    out, err = process.communicate(timeout=SECONDS_MAX)

    assert (process.returncode, out) == (1, "")
    assert node.http in err and "--http" in err and "Traceback" not in err


def test_with_an_empty_address_there_is_no_http(tmp_path):
    with NodeProcess(tmp_path / "data", {"http": ""}) as node:
        assert node.http == ""


def test_the_default_port_gives_way_when_it_is_taken(tmp_path):
    taken = socket.socket()
    taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        try:
            taken.bind(("127.0.0.1", 8080))
            taken.listen()
        except OSError:
            pass  # somebody else's: so it is taken all the same
        process = start(tmp_path / "data")
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
        finally:
            process.terminate()
            _, err = process.communicate(timeout=SECONDS_MAX)
    finally:
        taken.close()

    assert line.startswith("ready kafka=") and "http=" not in line
    assert "no HTTP" in err and "--http" in err
