"""Compaction beside a plain copy of the same bytes, and what clients notice of it.

Rule 1: a pass and the copy both read what memory holds, write a new file and sync it. MB are bytes
        of the log as it was; a pass reads what is dirty twice, and writes what is left.
Rule 2: what is left is counted: the latest record of each key, or the run fails.
Rule 3: clients ask for a topic's metadata at fixed times, whether or not the last answer has come,
        and the time counts from then. The limit is the same node in the same minute, idle.
Rule 4: a pass runs alone in this process. Beside clients it runs in a node, once without a limit,
        which is the default, and once at a pace (`log.cleaner.io.max.bytes.per.second`).
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import perf_counter, process_time, sleep
from typing import Final

from benchmarks.bench import MIB, Bench, Steps, ask_node, run_fast
from benchmarks.keyed import CLEAN, UNIQUE, UPDATED, Case
from benchmarks.limits import Moved, copy_synced
from benchmarks.pump import connect, metadata_request, receive_frame, send_all
from benchmarks.report import Measured, Report, Result, result
from tests.support.node import NodeProcess
from tidelog.client.admin import AdminClient, ConfigChange, Resource
from tidelog.client.frames import ProduceFrame
from tidelog.client.load import percentiles
from tidelog.config import NodeConfig, TopicConfig
from tidelog.host import Path as HostPath
from tidelog.host import SystemDisk
from tidelog.log.compaction import Cleaned, Compaction
from tidelog.log.directory import FIRST_DIRTY
from tidelog.log.segment import LOG_SUFFIX, Segment, file_stem
from tidelog.records import Codec, read_header

NAME: Final = "compaction"

VALUE_BYTES: Final = (100, 1000)
CASES: Final = [
    *(Case(size, keys) for size in VALUE_BYTES for keys in (UNIQUE, UPDATED, CLEAN)),
    *(
        Case(size, keys, codec)
        for size in VALUE_BYTES
        for codec in (Codec.LZ4, Codec.ZSTD)
        for keys in (UNIQUE, UPDATED)
    ),
]

TOPIC: Final = "keyed"
NOTICED: Final = Case(100, UPDATED)
"""What a node compacts while clients ask it: small records keep the interpreter busiest."""
PACE_BYTES: Final = 16_000_000
PACES: Final = {"no limit": 0, f"{PACE_BYTES / 1e6:g} MB/s": PACE_BYTES}
PROBES_PER_SECOND: Final = 500
PASS_SECONDS_MAX: Final = 120.0
PERCENTILES: Final = ("p50", "p99")


def run(bench: Bench) -> Report:
    measured = Measured()
    size = 16_000_000 if bench.quick else 64_000_000
    steps_total = len(CASES) * (1 + 2 * bench.rounds) + len(PACES) * bench.rounds
    with Steps(NAME, steps_total) as steps:
        for case in CASES:
            steps.begin(f"writing {case}")
            log = _Log(bench.fresh("keyed"), case, size)
            try:
                for _ in range(bench.rounds):
                    bench.settle()
                    steps.begin("a plain copy")
                    _add_copy(measured, case, log)
                    bench.settle()
                    steps.begin(f"compacting {case}")
                    _add_pass(measured, case, log)
            finally:
                bench.remove(log.directory)
        for _ in range(bench.rounds):
            for pace in PACES:
                steps.begin(f"clients of a node that compacts, {pace}")
                _add_noticed(measured, bench, pace, size)
    return Report(
        title="a pass over a log, and the delay of clients meanwhile",
        results=_results(measured),
        notes=[
            f"{size / 1e6:g} MB of records in batches of 16 KiB before compression; MB of the log",
            f"clients: {PROBES_PER_SECOND} requests/s; compacting {NOTICED}",
        ],
    )


def _results(measured: Measured) -> list[Result]:
    rows = [
        result(
            NAME,
            str(case),
            measured.of(("rate", case)),
            "MB/s",
            limits=measured.of(("copy rate", case)),
            limit_name="read + write + fdatasync",
        )
        for case in CASES
    ]
    rows += [
        result(
            NAME,
            str(case),
            measured.of(("cpu", case)),
            "CPU us/record",
            limits=measured.of(("copy cpu", case)),
            limit_name="read + write + fdatasync",
        )
        for case in CASES
    ]
    for pace in PACES:
        rows += [
            result(
                NAME,
                f"request while compacting, {pace}: {name}",
                measured.of(("noticed", pace, name)),
                "ms",
                limits=measured.of(("idle", pace, name)),
                limit_name=f"the node idle, {name}",
            )
            for name in PERCENTILES
        ]
        rows.append(result(NAME, f"the pass meanwhile, {pace}", measured.of(("beside", pace)), "MB/s"))
    return rows


# A pass alone.


class _Log:
    """A directory with one sealed segment."""

    def __init__(self, directory: Path, case: Case, size: int) -> None:
        self.directory = directory
        self.case = case
        self.records = size // case.record_bytes
        self.keys = len(set(case.keys_of(self.records)))
        directory.mkdir()
        self.path = directory / (file_stem(0) + LOG_SUFFIX)
        with self.path.open("wb") as file:
            for batch in case.batches(self.records):
                file.write(batch)
        self.size = self.path.stat().st_size

    def compaction(self) -> Compaction:
        topic, node = TopicConfig(), NodeConfig()
        return Compaction(
            disk=SystemDisk(),
            segments=[Segment(HostPath(self.directory), 0, size=self.size)],
            first_dirty=self.records // 2 if self.case.keys == CLEAN else 0,
            limit=self.records,
            producers={},
            now_ms=0,
            delete_retention_ms=topic.delete_retention_ms,
            segment_bytes=topic.segment_bytes,
            index_interval_bytes=topic.index_interval_bytes,
            key_bytes_max=node.log_cleaner_dedupe_buffer_size,
        )


def _add_copy(measured: Measured, case: Case, log: _Log) -> None:
    copied = copy_synced(log.path)
    measured.add(("copy rate", case), copied.megabytes_per_second)
    measured.add(("copy cpu", case), copied.cpu_seconds / log.records * 1e6)


def _add_pass(measured: Measured, case: Case, log: _Log) -> None:
    work, done = log.compaction(), list[Cleaned]()
    cpu, started = process_time(), perf_counter()
    for _ in work.map_keys():
        pass
    for group in work.groups():
        for _ in work.clean(group, done.append):
            pass
    moved = Moved(size=log.size, seconds=perf_counter() - started, cpu_seconds=process_time() - cpu)
    kept = work.tally.records_kept
    assert work.end == log.records, f"the keys' memory ended at {work.end} of {log.records}"
    assert kept == log.keys, f"{kept} records are left of {log.keys} keys"
    assert bool(done) == (case.keys != UNIQUE), "what does not change is not replaced"
    for path in log.directory.glob("*.cleaned"):
        path.unlink()
    measured.add(("rate", case), moved.megabytes_per_second)
    measured.add(("cpu", case), moved.cpu_seconds / log.records * 1e6)


# A pass beside clients.


def _add_noticed(measured: Measured, bench: Bench, pace: str, size: int) -> None:
    settings = {
        "log.cleaner.backoff.ms": 100,
        "log.cleaner.io.max.bytes.per.second": PACES[pace],
        "log.segment.bytes": max(MIB, size // 8),
    }
    with bench.node(settings) as node:
        written = _fill(node, size)
        bench.settle()
        idle_until = perf_counter() + bench.limit_seconds * 2
        idle = _probe(node, lambda: perf_counter() >= idle_until)
        started = perf_counter()
        run_fast(_compact(node.bootstrap))
        noticed = _probe(node, partial(_is_clean, node))
        seconds = perf_counter() - started
    for name in PERCENTILES:
        measured.add(("idle", pace, name), idle[name])
        measured.add(("noticed", pace, name), noticed[name])
    measured.add(("beside", pace), written / seconds / 1e6)


def _fill(node: NodeProcess, size: int) -> int:
    """Write the records to a topic that is not compacted yet; the bytes of its log."""
    ask_node(node, lambda client: client.create_topic(TOPIC, partitions=1))
    batches = list(NOTICED.batches(size // NOTICED.record_bytes))
    frames = [ProduceFrame.make(TOPIC, [0], bytes(batch), -1) for batch in batches]
    send_all(node.port, TOPIC, frames, depth=64)
    return sum(read_header(batch).size for batch in batches)


async def _compact(bootstrap: str) -> None:
    async with AdminClient(bootstrap) as client:
        change = ConfigChange(name="cleanup.policy", value="compact")
        await client.alter_configs(Resource.TOPIC, TOPIC, [change])


def _is_clean(node: NodeProcess) -> bool:
    """Whether a pass has come to its end: it notes how far it came."""
    path = node.data / FIRST_DIRTY
    return path.exists() and f"{TOPIC} 0 " in path.read_text()


def _probe(node: NodeProcess, is_over: Callable[[], bool]) -> dict[str, float]:
    """Ask at fixed times; percentiles of the time from when a request was due to its answer."""
    request, interval = metadata_request(TOPIC), 1 / PROBES_PER_SECOND
    samples: list[float] = []
    with connect(node.port) as connection:
        started = due = perf_counter()
        while not is_over():
            if due - started > PASS_SECONDS_MAX:
                raise RuntimeError(f"no pass has ended within {PASS_SECONDS_MAX:.0f} s")
            if (early := due - perf_counter()) > 0:
                sleep(early)
            connection.sendall(request)
            receive_frame(connection)
            samples.append(perf_counter() - due)
            due += interval
    return percentiles(samples)
