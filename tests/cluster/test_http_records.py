"""Records over HTTP while the leader of their partitions is killed: none lost, none twice."""

import json
import os
import signal
import threading
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

import pytest

from tests.support.cluster import ClusterProcess, wait_until

WRITERS = 3
BEFORE = 60
"""Requests that are answered before the kill."""
AFTER = 60
REPEATED_EVERY = 5
"""So often a request that was answered is sent once more."""


def connect(address: str) -> HTTPConnection:
    host, _, port = address.rpartition(":")
    return HTTPConnection(host, int(port), timeout=60)


def ask(address: str, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
    connection = connect(address)
    try:
        data = None if body is None else json.dumps(body)
        connection.request(method, path, data, {"content-type": "application/json", **headers})
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


class Writers:
    """Several at once send requests with a key each, and send again what was not answered."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._lock = threading.Lock()
        self._next = 0
        self._is_over = False
        self.answers: dict[int, Any] = {}
        self.failures: list[object] = []
        self._threads = [threading.Thread(target=self._write) for _ in range(WRITERS)]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._is_over = True
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive()

    def _write(self) -> None:
        while not self._is_over:
            with self._lock:
                number, self._next = self._next, self._next + 1
            answer = self._send(number)
            if number % REPEATED_EVERY == 0 and (again := self._send(number)) != answer:
                self.failures.append((number, answer, again))
            self.answers[number] = answer

    def _send(self, number: int) -> Any:
        records = [{"value": [number, part], "partition": part} for part in (0, 1)]
        while True:
            try:
                status, answer = ask(
                    self._address,
                    "POST",
                    "/v1/topics/t/records?sync_timeout_ms=3000",
                    {"records": records},
                    **{"idempotency-key": f"request {number}"},
                )
            except (OSError, HTTPException) as error:
                self.failures.append(error)  # this node lives: it must answer
                raise
            if status == 200:
                return answer
            if status not in (503, 504):
                self.failures.append((status, answer))
                return None


class Listener:
    """Hears a stream of server-sent events from its beginning."""

    def __init__(self, address: str) -> None:
        self._connection = connect(address)
        self._connection.request("GET", "/v1/topics/t/stream?from=earliest")
        self._answer = self._connection.getresponse()
        assert self._answer.status == 200
        self.records: list[dict[str, Any]] = []
        self.others: list[str] = []
        self._thread = threading.Thread(target=self._listen)
        self._thread.start()

    def _lines(self) -> Iterator[str]:
        while line := self._answer.readline():
            yield line.decode().rstrip("\n")

    def _listen(self) -> None:
        kind = ""
        for line in self._lines():
            name, _, value = line.partition(": ")
            if name == "event":
                kind = value
            elif name == "data" and kind:
                self.others.append(f"{kind}: {value}")
            elif name == "data":
                self.records.append(json.loads(value))

    def hang_up(self) -> None:
        if self._connection.sock is not None:
            self._connection.sock.shutdown(2)
        self._thread.join(60)
        assert not self._thread.is_alive()
        self._connection.close()

    def wait_heard(self, partition: int, count: int) -> list[tuple[int, Any]]:
        wait_until(
            lambda: len(self.heard(partition)) >= count or bool(self.others), "the stream stands still"
        )
        assert self.others == []
        return self.heard(partition)

    def heard(self, partition: int) -> list[tuple[int, Any]]:
        return [(one["offset"], one["value"]) for one in self.records if one["partition"] == partition]


def read_all(address: str, partition: int) -> list[tuple[int, Any]]:
    found: list[tuple[int, Any]] = []
    offset = 0
    while True:
        path = f"/v1/topics/t/partitions/{partition}/records?offset={offset}&limit=50"
        status, page = ask(address, "GET", path)
        assert status == 200, page
        found += [(one["offset"], one["value"]) for one in page["records"]]
        if page["next_offset"] == page["high_watermark"]:
            return found
        offset = page["next_offset"]


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_what_was_answered_is_there_once_and_a_stream_has_no_gap_though_the_leader_is_killed(
    tmp_path: Path,
) -> None:
    with ClusterProcess(tmp_path / "data") as cluster:
        http = dict(enumerate(cluster.ready["http"].split(","), 1))
        wanted = {"name": "t", "partitions": 2, "replication": 3}
        status, topic = ask(http[1], "POST", "/v1/topics", wanted)
        assert status == 201, topic
        leader = topic["partitions"][0]["leader"]
        through = http[leader % 3 + 1]  # neither leads the first partition nor is killed

        writers, listener = Writers(through), Listener(through)
        try:
            try:
                wait_until(lambda: len(writers.answers) >= BEFORE, "nothing was written")
                nodes = json.loads((cluster.data / "cluster.json").read_text())["nodes"]
                os.kill(nodes[leader - 1]["pid"], signal.SIGKILL)
                enough = len(writers.answers) + AFTER
                wait_until(
                    lambda: len(writers.answers) >= enough or bool(writers.failures),
                    "nothing was written after the kill",
                )
            finally:
                writers.stop()
            assert writers.failures == []

            _, now = ask(through, "GET", "/v1/topics/t")
            assert now["partitions"][0]["leader"] not in (None, leader)
            for partition in (0, 1):
                check_partition(through, partition, writers, listener)
        finally:
            listener.hang_up()


def check_partition(address: str, partition: int, writers: Writers, listener: Listener) -> None:
    stored = read_all(address, partition)
    numbers = sorted(value[0] for _, value in stored)
    assert numbers == sorted(writers.answers), "lost, or there twice"
    where = {value[0]: offset for offset, value in stored}
    for number, answer in writers.answers.items():
        place = {"partition": partition, "offset": where[number]}
        assert answer["records"][partition] == place
    assert listener.wait_heard(partition, len(stored)) == stored
