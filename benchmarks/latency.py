"""From the moment a record should be sent until a waiting consumer has it.

Rule 1: the load is open: records are due at fixed times, whether or not earlier ones have come
        through, and a record's time begins when it was due. A stall delays all that follow it, and
        all of them are counted.
Rule 2: one record per request, one connection that produces, one consumer in a long poll: nothing
        is gathered in a client.
Rule 3: `select` and nothing above it, since the timers of an event loop tick in milliseconds.
"""

import gc
from dataclasses import dataclass
from select import select
from socket import socket
from time import monotonic, time_ns
from typing import Final

from benchmarks.bench import MIB, Bench, Steps, ask_node
from benchmarks.limits import echo_latency_ms, sync_latency_ms
from benchmarks.process import Peer
from benchmarks.pump import connect
from benchmarks.report import Measured, Report, Result, result
from tests.support.node import NodeProcess
from tidelog.client.frames import ProduceFrame, fetch_frame, make_batch, read_fetched
from tidelog.client.load import percentiles
from tidelog.model import Offset
from tidelog.wire.frames import FrameBuffer

NAME: Final = "latency"

RECORD_BYTES: Final = 100
RATES: Final = (100, 1000, 10_000)
DURABILITIES: Final = ("fsync", "replicated")
PERCENTILES: Final = {"p50": "p50", "p95": "p95", "p99": "p99", "p999": "p99.9"}
WARM_UP_SECONDS: Final = 0.5
"""The first records of a topic make its files; they are sent and not counted."""
BEHIND_SECONDS_MAX: Final = 30.0
FRAME_BYTES_MAX: Final = 16 * MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """Percentiles in milliseconds, from when a record was due."""

    sent: dict[str, float]
    acknowledged: dict[str, float]
    consumed: dict[str, float]


def run(bench: Bench) -> Report:
    measured = Measured()
    seconds = 2 * bench.subject_seconds
    cases = [(durability, rate) for durability in DURABILITIES for rate in RATES]
    with bench.node() as node, Peer("echo") as echo, Steps(NAME, len(cases) * bench.rounds) as steps:
        for _ in range(bench.rounds):
            for durability, rate in cases:
                steps.begin(f"{rate:,} records/s, {durability}")
                bench.settle()
                if durability == "fsync":
                    limits = sync_latency_ms(bench.directory, bench.limit_seconds)
                else:
                    limits = echo_latency_ms(echo, bench.limit_seconds)
                bench.settle()
                timed = _measure(node, durability, rate, seconds)
                for name in PERCENTILES:
                    key = (durability, rate, name)
                    measured.add(("limit", *key), limits[name])
                    measured.add(("sent", *key), timed.sent[name])
                    measured.add(("acknowledged", *key), timed.acknowledged[name])
                    measured.add(("consumed", *key), timed.consumed[name])
    return Report(
        title="from produced to consumed, one record of 100 B per request, acks=all",
        results=_results(cases, measured),
        notes=[f"at 100/s, p99.9 is the slowest of {100 * seconds:.0f} records"],
    )


def _results(cases: list[tuple[str, int]], measured: Measured) -> list[Result]:
    rows = []
    for durability, rate in cases:
        limit_name = "append 4 KiB + fdatasync" if durability == "fsync" else "echo of 100 B"
        for what, names in (
            ("consumed", tuple(PERCENTILES)),
            ("acknowledged", ("p50", "p99")),
            ("sent", ("p99",)),
        ):
            for name in names:
                key = (durability, rate, name)
                title = PERCENTILES[name]
                of_whom = what if what != "sent" else "sent (the generator's own delay)"
                rows.append(
                    result(
                        NAME,
                        f"{rate:,}/s, {durability}: {of_whom} {title}",
                        measured.of((what, *key)),
                        "ms",
                        limits=measured.of(("limit", *key)) if what != "sent" else (),
                        limit_name=f"{limit_name}, {title}",
                    )
                )
    return rows


def _measure(node: NodeProcess, durability: str, rate: int, seconds: float) -> Timed:
    topic = f"{durability}-{rate}"

    configs = {"durability": durability}
    ask_node(node, lambda client: client.create_topic(topic, partitions=1, configs=configs))
    timed = OpenLoad(node.port, topic, rate, seconds).run()
    ask_node(node, lambda client: client.delete_topic(topic))
    return timed


class OpenLoad:
    """One loop: sends what is due, notes what is acknowledged and what arrives."""

    def __init__(self, port: int, topic: str, rate: int, seconds: float, *, first: Offset = 0) -> None:
        """`first` is where the log ends before."""
        self._topic = topic
        self._first = first
        self._interval_seconds = 1 / rate
        self._uncounted = int(rate * WARM_UP_SECONDS)
        self._count = self._uncounted + int(rate * seconds)
        batch, _ = make_batch(RECORD_BYTES, 0, now_ms=time_ns() // 1_000_000)
        self._request = ProduceFrame.make(topic, [0], batch, -1)
        self._sent: list[float] = []
        self._acknowledged: list[float] = []
        self._consumed: list[float] = []
        self._producer = Stream(connect(port))
        self._consumer = Stream(connect(port))

    def run(self) -> Timed:
        gc.disable()
        try:
            started = self._run()
        finally:
            gc.enable()
            self._producer.socket.close()
            self._consumer.socket.close()
        return Timed(
            sent=self._delays(self._sent, started),
            acknowledged=self._delays(self._acknowledged, started),
            consumed=self._delays(self._consumed, started),
        )

    def _delays(self, times: list[float], started: float) -> dict[str, float]:
        due = (started + at * self._interval_seconds for at in range(self._uncounted, self._count))
        return percentiles([time - when for time, when in zip(times[self._uncounted :], due, strict=True)])

    def _run(self) -> float:
        """Send and receive everything; when the first record was due."""
        producer, consumer, count = self._producer, self._consumer, self._count
        interval = self._interval_seconds
        streams = {producer.socket: self._on_answer, consumer.socket: self._on_fetched}
        self._fetch()
        started = monotonic() + interval
        give_up_at = started + count * interval + BEHIND_SECONDS_MAX
        while len(self._consumed) < count or len(self._acknowledged) < count:
            now = monotonic()
            if now > give_up_at:
                raise RuntimeError("records are missing: the node, or this program, fell behind")
            due = min(count, int((now - started) / interval) + 1)
            if due > len(self._sent):
                self._send(due)
            following = started + len(self._sent) * interval if due < count else give_up_at
            wait = max(0.0, following - monotonic())
            unsent = [producer.socket] if producer.unsent else []
            # select, because it alone waits for less than a millisecond.
            readable, writable, _ = select(streams, unsent, [], wait)
            if writable:
                producer.send(b"")
            for connection in readable:
                streams[connection]()
        return started

    def _send(self, due: int) -> None:
        at = len(self._sent)
        rest = b"".join(self._request.rest)
        heads = (self._request.buffers(n)[0] for n in range(at, due))
        self._producer.send(b"".join(bytes(head) + rest for head in heads))
        self._sent += [monotonic()] * (due - at)

    def _on_answer(self) -> None:
        frames = self._producer.receive()
        self._acknowledged += [monotonic()] * len(frames)
        for frame in frames:
            self._request.check(frame, self._topic)

    def _on_fetched(self) -> None:
        frames = self._consumer.receive()
        now = monotonic()
        for frame in frames:
            for _, after, _ in read_fetched(frame, self._topic):
                self._consumed += [now] * (after - self._first - len(self._consumed))
            if len(self._consumed) < self._count:
                self._fetch()

    def _fetch(self) -> None:
        at = self._first + len(self._consumed)
        self._consumer.send(
            fetch_frame(at, self._topic, {0: at}, wait_ms=500, bytes_max=1 << 20, partition_bytes_max=1 << 20)
        )


class Stream:
    """Frames over a socket that never blocks."""

    def __init__(self, connection: socket) -> None:
        connection.setblocking(False)
        self.socket = connection
        self.unsent = b""
        self._frames = FrameBuffer(FRAME_BYTES_MAX)

    def send(self, data: bytes) -> None:
        data = self.unsent + data
        try:
            self.unsent = data[self.socket.send(data) :]
        except BlockingIOError:
            self.unsent = data

    def receive(self) -> list[bytearray]:
        count = self.socket.recv_into(self._frames.space())
        if not count:
            raise ConnectionError("the node closed the connection")
        return self._frames.received(count)
