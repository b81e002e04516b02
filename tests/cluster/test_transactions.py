"""Inputs become outputs exactly once, whoever is killed meanwhile: producers, brokers, all of them.

Rule 1: a seed decides who is killed, and when; `TIDELOG_TRANSACTION_SECONDS` says for how long.
Rule 2: at the end nothing is undecided: no transaction is open, readers of committed records come
        to the end of every partition, and the groups' offsets are the inputs' ends.
"""

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition

from tests.cluster.clients import create_topic
from tests.cluster.load import QUICK, Load
from tests.cluster.transformer import ABANDONED, output
from tests.support.nodes import LATEST, Nodes
from tidelog.model import NodeId
from tidelog.wire.apis import Api

SEED: Final = 20261119
SECONDS: Final = float(os.environ.get("TIDELOG_TRANSACTION_SECONDS", "15"))
LIVE_SECONDS_MAX: Final = 60.0
NODES: Final = (1, 2, 3)
SHARED, OWN, OUT = "shared", "own", "out"
PARTITIONS: Final = {SHARED: 4, OWN: 2, OUT: 3}
INTERNAL: Final = {"__consumer_offsets": 2, "__transaction_state": 3}
GROUPS: Final = {SHARED: "members", OWN: "alone"}
TIMEOUT_MS: Final = 8000
SESSION_MS: Final = 3000
SETTINGS: Final = {
    "checkpoint.ms": 500,
    "group.initial.rebalance.delay.ms": 100,
    "group.min.session.timeout.ms": 1000,
    "log.segment.bytes": 256 * 1024,
    "offsets.topic.num.partitions": INTERNAL["__consumer_offsets"],
    "replica.lag.time.max.ms": 2000,
    "transaction.state.log.num.partitions": INTERNAL["__transaction_state"],
}
DONE: Final = {"Empty", "CompleteCommit", "CompleteAbort"}
COMMITTED: Final = 1
UNCOMMITTED: Final = 0


class Process:
    """A transformer, and its successors of the same transactional id."""

    def __init__(self, directory: Path, bootstrap: str, library: str, name: str, topic: str) -> None:
        self.name = name
        self.starts = 0
        self._log = directory / f"{name}.log"
        self._command = [
            sys.executable,
            "-m",
            "tests.cluster.transformer",
            library,
            "--bootstrap",
            bootstrap,
            "--id",
            name,
            "--group",
            GROUPS[topic],
            "--input",
            topic,
            "--output",
            OUT,
            "--partitions",
            str(PARTITIONS[OUT]),
            "--input-partitions",
            str(PARTITIONS[topic]),
            "--timeout-ms",
            str(TIMEOUT_MS),
            "--session-ms",
            str(SESSION_MS),
        ]
        self._running: list[subprocess.Popen[bytes]] = []

    @property
    def is_running(self) -> bool:
        return bool(self._running) and self._running[-1].poll() is None

    def start(self) -> None:
        """Start one more; what runs already is a zombie from now on."""
        self.starts += 1
        with self._log.open("ab") as log:
            self._running.append(subprocess.Popen(self._command, stdout=subprocess.PIPE, stderr=log))

    def wait_written(self) -> None:
        out = self._running[-1].stdout
        assert out is not None
        assert out.readline() == b"written\n", self._log.read_text()[-2000:]

    def pause(self) -> None:
        self._running[-1].send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        for process in self._running:
            process.send_signal(signal.SIGCONT)

    def kill(self, *, zombies_only: bool = False) -> None:
        last = self._running[-1:] if zombies_only else []
        for process in self._running:
            if process not in last:
                process.kill()
                process.wait(30)
                assert process.stdout is not None
                process.stdout.close()
        self._running = last


class Run:
    """Three nodes, who works on them, and who breaks them."""

    def __init__(self, directory: Path, nodes: Nodes, seed: int) -> None:
        self.nodes = nodes
        self.random = random.Random(seed)
        self.faults: Counter[str] = Counter()
        self._directory = directory
        self._abandoned = 0
        for topic, count in PARTITIONS.items():
            replicas = [self.random.sample(NODES, len(NODES)) for _ in range(count)]
            create_topic(nodes.bootstrap, topic, replicas)
        self.loads = [
            Load(f"load-{t}", nodes.bootstrap, t, PARTITIONS[t], seed, per_second_max=150) for t in GROUPS
        ]
        self.workers = [
            self._process("confluent", "first", SHARED),
            self._process("confluent", "second", SHARED),
            self._process("kafka-python", "third", SHARED),
            self._process("aiokafka", "alone", OWN),
        ]
        self.abandoning: list[Process] = []

    def _process(self, library: str, name: str, topic: str) -> Process:
        return Process(self._directory, self.nodes.bootstrap, library, name, topic)

    @contextmanager
    def working(self) -> Iterator[None]:
        try:
            for load in self.loads:
                load.start()
            for worker in self.workers:
                worker.start()
            yield
        finally:
            for load in self.loads:
                load.abandon()
            for process in (*self.workers, *self.abandoning):
                process.resume()
                process.kill()

    # What breaks.

    def break_things(self, seconds: float) -> None:
        self.until_live()
        kinds: dict[str, Callable[[], None]] = {
            "kill a broker": self._kill_broker,
            "kill a coordinator": self._kill_coordinator,
            "kill all brokers": lambda: self.nodes.kill(*NODES),
            "kill a worker": self._kill_worker,
            "replace a worker": self._replace_worker,
            "pause a worker": self._pause_worker,
            "abandon": self._abandon,
            "kill a worker and a broker": self._kill_both,
        }
        until = time.monotonic() + seconds
        while True:
            names = list(kinds)
            self.random.shuffle(names)
            for name in names:
                if time.monotonic() >= until:
                    return
                self.faults[name] += 1
                kinds[name]()
                self.nodes.mend()
                self.until_live()

    def until_live(self) -> None:
        """Wait until every topic's group has got further."""
        before = {topic: self.progress(topic) for topic in GROUPS}
        for topic in GROUPS:
            self._await(
                partial(self._is_further, topic, before[topic]), f"nobody transforms {topic} any more"
            )

    def _is_further(self, topic: str, progress: int) -> bool:
        return sum(self.offsets(topic)) > progress

    def _is_at_end(self, topic: str) -> bool:
        return self.offsets(topic) == self.ends(topic)

    def _await(self, is_so: Callable[[], bool], problem: str) -> None:
        def is_so_now() -> bool:
            for load in self.loads:
                assert load.failure is None, load.failure
            for worker in self.workers:
                if not worker.is_running:
                    worker.start()
            return is_so()

        try:
            self.nodes.until(is_so_now, problem, LIVE_SECONDS_MAX)
        except AssertionError as error:
            raise AssertionError(f"{problem}: {self._look()}") from error

    def _look(self) -> dict[str, Any]:
        """Where everybody stands."""
        seen: dict[str, Callable[[], Any]] = {
            "faults": lambda: dict(self.faults),
            "open": self.open_transactions,
            "held back": self.held_back,
            **{f"offsets of {topic}": partial(self.offsets, topic) for topic in GROUPS},
            **{f"ends of {topic}": partial(self.ends, topic) for topic in GROUPS},
        }
        found: dict[str, Any] = {}
        for name, look in seen.items():
            try:
                found[name] = look()
            except Exception as error:
                found[name] = repr(error)
        return found

    def _hold(self, most: float) -> None:
        time.sleep(self.random.uniform(0, most))

    def _kill_broker(self) -> None:
        self.nodes.kill(self.random.choice(NODES))
        self._hold(1.0)

    def _kill_coordinator(self) -> None:
        self.nodes.kill(self.coordinator(self.random.choice(self.workers).name, kind=1))
        self._hold(1.0)

    def _kill_worker(self) -> None:
        worker = self.random.choice(self.workers)
        worker.kill()
        self._hold(0.5)
        worker.start()

    def _kill_both(self) -> None:
        worker = self.random.choice(self.workers)
        node = self.random.choice(NODES)
        worker.kill()
        self.nodes.kill(node)
        self._hold(0.5)
        worker.start()

    def _replace_worker(self) -> None:
        """The successor works already when the old one still does."""
        worker = self.random.choice(self.workers)
        worker.start()
        self._hold(2.0)
        worker.kill(zombies_only=True)

    def _pause_worker(self) -> None:
        """It wakes up when others own its partitions, or its successor its id."""
        worker = self.random.choice(self.workers)
        worker.pause()
        time.sleep(SESSION_MS / 1000 * self.random.uniform(0.3, 1.5))
        worker.resume()

    def _abandon(self) -> None:
        self._abandoned += 1
        process = self._process("abandoning", f"abandoned-{self._abandoned}", SHARED)
        self.abandoning.append(process)
        process.start()
        process.wait_written()
        process.kill()

    # What there is to see.

    def coordinator(self, key: str, *, kind: int) -> NodeId:
        found = []

        def is_known() -> bool:
            answer = self.nodes.ask(Api.FIND_COORDINATOR, 3, {"key": key, "key_type": kind})
            found.append(int(answer.node_id))
            return bool(answer.error_code == 0)

        self.nodes.until(is_known, f"{key} has no coordinator")
        return found[-1]

    def offsets(self, topic: str) -> list[int]:
        """What the group has committed, as far as it is decided; raises if it is not known now."""
        numbers = list(range(PARTITIONS[topic]))
        fields = {
            "group_id": GROUPS[topic],
            "topics": [{"name": topic, "partition_indexes": numbers}],
            "require_stable": True,
        }
        coordinator = self.coordinator(GROUPS[topic], kind=0)
        answer = self.nodes.ask(Api.OFFSET_FETCH, 7, fields, coordinator)
        assert answer.error_code == 0
        parts = sorted(answer.topics[0].partitions, key=lambda part: part.partition_index)
        assert all(part.error_code == 0 for part in parts)
        return [max(int(part.committed_offset), 0) for part in parts]

    def progress(self, topic: str) -> int:
        found: list[list[int]] = []

        def is_known() -> bool:
            found.append(self.offsets(topic))
            return True

        self.nodes.until(is_known, f"the offsets of {topic} are not known", LIVE_SECONDS_MAX)
        return sum(found[-1])

    def end(self, topic: str, number: int, isolation: int) -> int:
        leader = self.nodes.partition(topic, number).leader
        asked = {"partition_index": number, "timestamp": LATEST, "current_leader_epoch": -1}
        fields = {
            "replica_id": -1,
            "isolation_level": isolation,
            "topics": [{"name": topic, "partitions": [asked]}],
        }
        found = self.nodes.ask(Api.LIST_OFFSETS, 5, fields, leader).topics[0].partitions[0]
        assert found.error_code == 0
        return int(found.offset)

    def ends(self, topic: str) -> list[int]:
        return [self.end(topic, number, UNCOMMITTED) for number in range(PARTITIONS[topic])]

    def open_transactions(self) -> dict[str, str]:
        found: list[Any] = []
        for node in NODES:
            found += self.nodes.ask(Api.LIST_TRANSACTIONS, 0, {}, node).transaction_states
        assert found, "nobody knows of any transactional id"
        return {
            one.transactional_id: one.transaction_state for one in found if one.transaction_state not in DONE
        }

    def held_back(self) -> list[str]:
        """Partitions whose end readers of committed records do not reach."""
        return [
            f"{topic}-{number}"
            for topic, count in (PARTITIONS | INTERNAL).items()
            for number in range(count)
            if self.end(topic, number, COMMITTED) != self.end(topic, number, UNCOMMITTED)
        ]

    # The end.

    def finish(self) -> None:
        for load in self.loads:
            load.stop()
        for topic in GROUPS:
            self._await(partial(self._is_at_end, topic), f"{topic} is not transformed to its end")
        for worker in self.workers:
            worker.kill()
        self.nodes.until(lambda: not self.open_transactions(), "transactions are left open")
        self.nodes.until(lambda: not self.held_back(), "readers of committed records are held back")

    def read(self, isolation: str) -> Counter[bytes]:
        """How often each value is in the outputs."""
        consumer = Consumer(
            {
                "bootstrap.servers": self.nodes.bootstrap,
                "group.id": "checking",
                "isolation.level": isolation,
                "auto.offset.reset": "error",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                **QUICK,
            }
        )
        try:
            consumer.assign([TopicPartition(OUT, number, 0) for number in range(PARTITIONS[OUT])])
            values: Counter[bytes] = Counter()
            ended: set[int | None] = set()
            deadline = time.monotonic() + LIVE_SECONDS_MAX
            while len(ended) < PARTITIONS[OUT]:
                assert time.monotonic() < deadline, f"only {ended} were read to the end"
                for message in consumer.consume(1000, 0.2):
                    error, value = message.error(), message.value()
                    if error is None:
                        assert isinstance(value, bytes)
                        values[value] += 1
                    else:
                        assert error.code() == KafkaError._PARTITION_EOF, error
                        ended.add(message.partition())
            return values
        finally:
            consumer.close()


@pytest.mark.slow
@pytest.mark.timeout(SECONDS + 240)
def test_inputs_are_transformed_once_though_producers_and_brokers_are_killed(tmp_path: Path) -> None:
    print(f"seed {SEED}")
    with Nodes(tmp_path, NODES, SETTINGS) as nodes:
        nodes.until_active(*NODES)
        run = Run(tmp_path, nodes, SEED)
        with run.working():
            run.break_things(SECONDS)
            run.finish()
        inputs = {
            output(topic, number, offset)
            for topic in GROUPS
            for number, end in enumerate(run.ends(topic))
            for offset in range(end)
        }
        committed, everything = run.read("read_committed"), run.read("read_uncommitted")

        print(f"{len(inputs)} inputs, {everything.total()} outputs, {dict(run.faults)}")
        print({worker.name: worker.starts for worker in run.workers})
        assert {value: n for value, n in committed.items() if n > 1} == {}, "transformed twice"
        assert inputs - set(committed) == set(), "never transformed"
        assert set(committed) - inputs == set()
        assert everything[ABANDONED] == len(run.abandoning) * PARTITIONS[OUT]
        assert len(inputs) > 500
        for node in NODES:
            log = nodes[node].log.read_text()
            assert "Traceback" not in log, log[log.index("Traceback") - 300 :][:3000]
