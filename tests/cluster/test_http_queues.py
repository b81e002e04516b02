"""Queues and rooms over HTTP while the leaders of their logs are killed, one after another."""

import itertools
import json
import os
import signal
import threading
from collections.abc import Callable
from http.client import HTTPException
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.test_http_records import ask
from tests.support.cluster import ClusterProcess, wait_until

ROUNDS = 40
"""How often each does its work before a leader is killed, and after."""
_numbers = itertools.count()


class Worker(threading.Thread):
    """Does one kind of request again and again, at any node, until it is answered."""

    def __init__(self, http: dict[int, str], step: "Callable[[Worker], None]") -> None:
        super().__init__(daemon=True)
        self._http = http
        self._step = step
        self.done = 0
        self.is_over = False
        self.failures: list[object] = []
        self.start()

    def run(self) -> None:
        try:
            while not self.is_over:
                self._step(self)
                self.done += 1
        except Exception as error:
            self.failures.append(error)

    def post(self, path: str, body: Any, method: str = "POST") -> Any:
        """The answer, with one key at one node after the other until there is one."""
        key = f"key {next(_numbers)}"
        for node in itertools.cycle(sorted(self._http)):
            try:
                status, answer = ask(
                    self._http[node], method, f"{path}?sync_timeout_ms=3000", body, **{"idempotency-key": key}
                )
            except (OSError, HTTPException):
                continue
            if status < 300:
                return answer
            if status not in (503, 504):
                raise AssertionError((path, status, answer))
        raise AssertionError("there are nodes")


class Book:
    """What each kind was told, for the account in the end."""

    def __init__(self, queue_id: int) -> None:
        self.queue_id = queue_id
        self.appended: dict[int, int] = {}
        self.read: list[tuple[int, int]] = []
        self.published: dict[int, int] = {}
        self.deliveries: set[str] = set()
        self.acknowledged: dict[int, int] = {}
        self.events: dict[int, int] = {}

    def append(self, worker: Worker) -> None:
        value = next(_numbers)
        found = worker.post("/append", {"queue_id": self.queue_id, "value": value})
        self.appended[found["message_id"]] = value

    def read_next(self, worker: Worker) -> None:
        found = worker.post("/read", {"queue_id": self.queue_id, "client_id": "reader"})
        if found["message_id"] is not None:
            self.read.append((found["message_id"], found["value"]))

    def publish(self, worker: Worker) -> None:
        value = next(_numbers)
        found = worker.post("/v1/queues/jobs/messages", {"messages": [{"value": value}]})
        self.published[found["ids"][0]] = value

    def work(self, worker: Worker) -> None:
        wanted = {"max": 3, "wait_ms": 200, "visibility_ms": 20_000}
        found = worker.post("/v1/queues/jobs/receive", wanted)["messages"]
        for one in found:
            assert one["receipt"] not in self.deliveries, "two have one receipt"
            self.deliveries.add(one["receipt"])
        if found:
            receipts = [one["receipt"] for one in found]
            worker.post("/v1/queues/jobs/ack", {"receipts": receipts})
            for one in found:
                assert one["id"] not in self.acknowledged, "done twice"
                self.acknowledged[one["id"]] = one["value"]

    def tell(self, worker: Worker) -> None:
        value = next(_numbers)
        found = worker.post("/v1/rooms/hall/events", {"data": value})
        self.events[found["id"]] = value


def leader_of(address: str, topic: str, partition: int) -> int | None:
    _, found = ask(address, "GET", f"/v1/topics/{topic}")
    leader: int | None = found["partitions"][partition]["leader"]
    return leader


def history_of(address: str, room: str) -> dict[int, Any]:
    found: dict[int, Any] = {}
    start = 0
    while True:
        _, page = ask(address, "GET", f"/v1/rooms/{room}/events?from={start}&limit=200")
        if not page["events"]:
            return found
        found |= {one["id"]: one["data"] for one in page["events"]}
        start = page["next"]


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_nothing_is_lost_skipped_or_done_twice_though_leaders_are_killed(tmp_path: Path) -> None:
    with ClusterProcess(tmp_path / "data") as cluster:
        http = dict(enumerate(cluster.ready["http"].split(","), 1))
        queue_id = ask(http[1], "POST", "/create_queue", {})[1]["queue_id"]
        assert ask(http[1], "PUT", "/v1/queues/jobs", {})[0] == 201
        book = Book(queue_id)
        steps = [book.append, book.read_next, book.publish, book.work, book.work, book.tell]
        workers = [Worker(http, step) for step in steps]
        try:
            for topic, partition in (("__queues", queue_id % 8), ("room.hall", 0)):
                _enough(workers)
                victim = leader_of(http[1], topic, partition)
                assert victim is not None
                nodes = json.loads((cluster.data / "cluster.json").read_text())["nodes"]
                os.kill(nodes[victim - 1]["pid"], signal.SIGKILL)
                _enough(workers)
                cluster.cluster("start", victim)
                wait_until(cluster.is_whole, "it does not come back")
        finally:
            for worker in workers:
                worker.is_over = True
            for worker in workers:
                worker.join(60)
        assert [failure for worker in workers for failure in worker.failures] == []

        last = Worker(http, lambda worker: None)
        last.is_over = True
        while len(book.read) < len(book.appended):
            book.read_next(last)
        assert book.read == sorted(book.appended.items()), "a pointer skips nothing, and no order"
        while book.published.keys() - book.acknowledged.keys():
            book.work(last)
        assert book.acknowledged == book.published
        assert history_of(http[1], "hall") == book.events


def _enough(workers: list[Worker]) -> None:
    """Wait until everybody has got on."""
    goals = [worker.done + ROUNDS for worker in workers]

    def is_so() -> bool:
        done = all(worker.done >= goal for worker, goal in zip(workers, goals, strict=True))
        return done or any(worker.failures for worker in workers)

    wait_until(is_so, "somebody stands still")
