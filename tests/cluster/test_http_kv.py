"""Keys over HTTP at all nodes while their leader is killed, frozen and started again.

Clients increment counters by compare-and-set, and read them. What they were told must be what
registers could have told, a counter must be as high as it was raised, and nobody who carries a
token along is shown less than before.
"""

import json
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.support.cluster import ClusterProcess, wait_until
from tidelog.simulation.registers import ABSENT, NOTHING, Key, Registers, Shown, Write, check, log_of

CLIENTS = 5
KEYS = ("a", "b")
SECONDS_MAX = 3
"""Of one request: who was sent to a frozen node asks another then."""
STEPS = 25
"""Increments that are acknowledged between one fault and the next."""
FROZEN_SECONDS = 3.0
"""Longer than a lease: another leads by then."""


class Answer(NamedTuple):
    status: int
    json: Any


class Unanswered(Exception):
    """Nobody knows what became of it."""


class Client:
    """One that asks any node, over connections that it keeps."""

    def __init__(self, name: str, nodes: list[str], history: Registers) -> None:
        self.name = name
        self._nodes = nodes
        self._connections: dict[str, HTTPConnection] = {}
        self.shunned: str | None = None
        """The node that last left it without an answer: the others are asked."""
        self._random = random.Random(name)
        self._history = history
        self._token = 0
        self._writes = 0
        self.raised = dict.fromkeys(KEYS, 0)
        """How often it was told that it has incremented a key."""
        self.failures: list[object] = []

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Answer:
        address = self._random.choice([one for one in self._nodes if one != self.shunned])
        connection = self._connections.pop(address, None)
        if connection is None:
            host, _, port = address.rpartition(":")
            connection = HTTPConnection(host, int(port), timeout=SECONDS_MAX + 1)
        data = None if body is None else json.dumps(body)
        try:
            connection.request(method, path, data, {"content-type": "application/json", **headers})
            answer = connection.getresponse()
            found = Answer(answer.status, json.loads(answer.read()))
        except (OSError, HTTPException, ValueError) as error:
            connection.close()
            self.shunned = address
            raise Unanswered(str(error)) from error
        self._connections[address] = connection
        return found

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()

    # What it does.

    def step(self) -> None:
        key = self._random.choice(KEYS)
        try:
            if self._random.random() < 0.3:
                self._read_nearby(key)
            else:
                self._increment(key, self._read(key))
        except Unanswered:
            time.sleep(0.05 * self._random.random())

    def _read(self, key: str) -> Shown:
        reading = self._history.begin_read(self.name, at(key))
        answer = self.ask("GET", f"/v1/kv/b/{key}")
        shown = self._shown(answer)
        reading.ok(shown)
        return shown

    def _read_nearby(self, key: str) -> None:
        reading = self._history.begin_local(self.name, at(key), self._token)
        answer = self.ask("GET", f"/v1/kv/b/{key}?consistency=local&token=0:{self._token}")
        reading.ok(self._shown(answer), self._token)

    def _shown(self, answer: Answer) -> Shown:
        if answer.status not in (200, 404):
            self._note_failure(answer)
            raise Unanswered(answer)
        self._saw(answer)
        if answer.status == 404:
            return NOTHING
        return Shown(answer.json["version"], json.dumps(answer.json["value"]).encode())

    def _saw(self, answer: Answer) -> None:
        self._token = max(self._token, int(answer.json["token"].split(":")[1]))

    def _increment(self, key: str, before: Shown) -> None:
        """Write a greater number, if the key is still what it was; until somebody says what is."""
        self._writes += 1
        count = 0 if before is NOTHING else json.loads(before.value or b"")["count"]
        name = f"{self.name} {self._writes}"
        value = {"count": count + 1, "by": name}
        writing = self._history.begin_write(
            self.name, at(key), json.dumps(value).encode(), expects=before.version
        )
        headers = {"idempotency-key": name} if self._random.random() < 0.5 else {}
        is_unsure = False
        while True:
            body = {"value": value, "if_version": before.version}
            path = f"/v1/kv/b/{key}?sync_timeout_ms={SECONDS_MAX * 1000}"
            try:
                answer = self.ask("PUT", path, body, **headers)
            except Unanswered:
                answer = Answer(504, {"outcome": "unknown"})
            if answer.status == 200:
                self._saw(answer)
                writing.ok(answer.json["version"])
                self.raised[key] += 1
                return
            self._note_failure(answer)
            is_unsure |= answer.json.get("outcome") == "unknown"
            if not is_unsure:
                self._refused(writing, answer)
                return
            if answer.status == 409 or not headers:
                return  # it may have been done, or may yet be

    def _refused(self, writing: Write, answer: Answer) -> None:
        if answer.status == 409:
            found = answer.json["version"]
            writing.refused(ABSENT if found is None else found)
        else:
            writing.fail()

    def _note_failure(self, answer: Answer) -> None:
        if answer.status not in (404, 409, 503, 504):
            self.failures.append(answer)


def at(key: str) -> Key:
    return ("b-0", key.encode())


@contextmanager
def busy(clients: list[Client]) -> Iterator[Callable[[int], None]]:
    """Let clients step until this is left; what it gives waits for so many increments more."""
    is_over = threading.Event()

    def run(client: Client) -> None:
        while not is_over.is_set():
            client.step()

    threads = [threading.Thread(target=run, args=(client,)) for client in clients]

    def raised() -> int:
        assert all(thread.is_alive() for thread in threads)
        return sum(sum(client.raised.values()) for client in clients)

    def wait_raised(count: int) -> None:
        enough = raised() + count
        wait_until(lambda: raised() >= enough, "nobody increments any more")

    for thread in threads:
        thread.start()
    try:
        yield wait_raised
    finally:
        is_over.set()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()


def leader_of(client: Client) -> int:
    """Who leads the bucket's partition, by the word of any node."""
    found: list[int] = []

    def look() -> bool:
        try:
            answer = client.ask("GET", "/v1/topics/b")
        except Unanswered:
            return False
        leader = answer.json["partitions"][0]["leader"] if answer.status == 200 else None
        found[:] = [] if leader is None else [leader]
        return bool(found)

    wait_until(look, "nobody leads")
    return found[0]


def read_log(client: Client) -> list[tuple[Key, int, bytes | None]]:
    """Everything that was committed."""
    records: list[tuple[Key, int, bytes | None]] = []
    offset = 0
    while True:
        path = f"/v1/topics/b/partitions/0/records?offset={offset}&limit=500&encoding=text"
        page = client.ask("GET", path).json
        records += [(at(one["key"]), one["offset"], one["value"].encode()) for one in page["records"]]
        offset = page["next_offset"]
        if offset == page["high_watermark"]:
            return records


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_registers_hold_while_their_leader_is_killed_frozen_and_started_again(tmp_path: Path) -> None:
    history = Registers()
    with ClusterProcess(tmp_path / "data") as cluster:
        nodes = cluster.ready["http"].split(",")
        operator = Client("operator", nodes, history)
        made = operator.ask("PUT", "/v1/kv/b", {"partitions": 1, "replication": 3})
        assert made.status == 201, made
        clients = [Client(f"client-{number}", nodes, history) for number in range(CLIENTS)]

        with busy(clients) as wait_raised:
            wait_raised(STEPS)
            killed = leader_of(operator)
            os.kill(pid_of(cluster, killed), signal.SIGKILL)
            wait_raised(STEPS)
            frozen = leader_of(operator)
            assert frozen != killed
            cluster.cluster("start", killed)
            wait_raised(STEPS)
            cluster.cluster("pause", frozen)
            time.sleep(FROZEN_SECONDS)  # nothing tells that its lease is over but time
            wait_raised(STEPS)
            cluster.cluster("resume", frozen)
            for client in clients:
                client.shunned = None
            wait_raised(STEPS)

        for client in clients:
            client.close()
            assert client.failures == []
        log = log_of(read_log(operator))
        assert check(history, log) == []
        for key in KEYS:
            told = sum(client.raised[key] for client in clients)
            counts = [json.loads(one.value or b"")["count"] for one in log[at(key)]]
            assert counts == list(range(1, len(counts) + 1))
            assert len(counts) >= told > 0
            found = operator.ask("GET", f"/v1/kv/b/{key}")
            assert found.json["value"]["count"] == len(counts)
        operator.close()


def pid_of(cluster: ClusterProcess, node: int) -> int:
    nodes = json.loads((cluster.data / "cluster.json").read_text())["nodes"]
    return int(nodes[node - 1]["pid"])
