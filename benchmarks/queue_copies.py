"""Copies of a bucket in the user's process: how fast they are made, kept and read.

Rule 1: every copy is whole at the end, and came the way that is measured, or the run fails.
Rule 2: beside it stands what plain SQLite needs for the same rows: its backup beside a snapshot,
        upserts in transactions of as many rows beside entries, and a SELECT beside a read.
"""

import json
import random
import shutil
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from time import perf_counter, time_ns
from typing import Any, Final
from urllib.request import urlopen

import msgspec

from benchmarks.bench import Bench, Steps, ask_node
from benchmarks.http_requests import COMPACTED, VALUE
from benchmarks.report import Measured, Result, result
from tests.support.node import NodeProcess
from tidelog.client import EmbeddedReplica
from tidelog.client.kafka import KafkaClient
from tidelog.client.load import percentiles
from tidelog.records import Record, encode_batch

NAME: Final = "queues"
BUCKET: Final = "copied"
TOGETHER: Final = 100
"""Records of a batch in the log, and rows of a transaction: `replication.stream.batch.size`."""
ROUNDS: Final = 2
READS: Final = 20_000
OFTEN: Final = 1000
SECONDS_MAX: Final = 900.0
FORMATS: Final = ("binary", "json")
READ_CASES: Final = ("any key", f"one of {OFTEN:,} keys")
FIGURES: Final = ("p50", "p95")
SETTINGS: Final = {"replication.stream.full.sync.threshold": 100_000_000}
"""So that a copy which lacks everything can be brought up entry by entry."""


def entries(bench: Bench) -> int:
    return 50_000 if bench.quick else 1_000_000


def copy_steps(bench: Bench) -> int:
    return 1 + ROUNDS * (1 + len(FORMATS) + len(READ_CASES))


def measure_copies(bench: Bench, measured: Measured, steps: Steps) -> None:
    count = entries(bench)
    steps.begin(f"a bucket of {count:,} keys")
    directory = bench.fresh("copies")
    directory.mkdir()
    try:
        with bench.node(SETTINGS) as node:
            empty = directory / "empty"
            ask_node(node, lambda client: client.create_topic(BUCKET, partitions=1, configs=COMPACTED))
            with _replica(node, empty, "binary") as replica:
                replica.wait(SECONDS_MAX)
            ask_node(node, lambda client: _fill(client, count))
            _wait_for_view(node, count)
            for number in range(ROUNDS):
                for how in FORMATS:
                    steps.begin(f"replay {count:,} entries, {how}")
                    path = directory / f"replayed-{how}-{number}"
                    shutil.copytree(empty, path)
                    bench.settle()
                    measured.add(("replay", how), _copy(node, path, how, count, full_syncs=0))
                    bench.remove(path)
                measured.add("upserts", _upserts(directory / f"plain-{number}.db", count))
                steps.begin(f"full sync of {count:,} entries")
                bench.settle()
                path = directory / f"full-{number}"
                measured.add("full", _copy(node, path, "binary", count, full_syncs=1))
                (file,) = path.glob("*.db")
                measured.add("backup", count / _backup(file, directory / f"backup-{number}.db"))
                with _replica(node, path, "binary") as replica:
                    replica.wait(SECONDS_MAX)
                    for case in READ_CASES:
                        steps.begin(f"read {case}")
                        _measure_reads(replica, file, case, count, measured)
    finally:
        bench.remove(directory)


def _replica(node: NodeProcess, path: Path, how: str) -> EmbeddedReplica:
    return EmbeddedReplica(f"http://{node.http}", bucket=BUCKET, path=path, format=how)


async def _fill(client: KafkaClient, count: int) -> None:
    value, now_ms = json.dumps(VALUE).encode(), time_ns() // 1_000_000
    for at in range(0, count, TOGETHER):
        records = [
            Record(key=_key(number).encode(), value=value, timestamp_ms=now_ms)
            for number in range(at, at + TOGETHER)
        ]
        is_last = at + TOGETHER >= count
        await client.produce(BUCKET, 0, encode_batch(records), acks=-1 if is_last else 1)


def _wait_for_view(node: NodeProcess, count: int) -> None:
    """A read that sees every write: so the node's own view has all of them."""
    url = f"http://{node.http}/v1/kv/{BUCKET}/{_key(count - 1)}"
    with urlopen(url, timeout=SECONDS_MAX) as answer:
        assert answer.status == 200


def _key(number: int) -> str:
    return f"key-{number:07}"


def _copy(node: NodeProcess, path: Path, how: str, count: int, *, full_syncs: int) -> float:
    """Entries per second of a copy that gets everything."""
    started = perf_counter()
    with _replica(node, path, how) as replica:
        status = replica.wait(SECONDS_MAX)
        seconds = perf_counter() - started
        (partition,) = status.partitions
        assert partition.full_syncs == full_syncs, f"{partition.full_syncs} snapshots were sent"
        assert len(replica) == count, f"{len(replica)} of {count} entries came"
    return count / seconds


# Plain SQLite.


def _upserts(path: Path, count: int) -> float:
    """Rows per second, in transactions as a copy has them."""
    value, now_ms = json.dumps(VALUE).encode(), time_ns() // 1_000_000
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = NORMAL")
        database.execute("CREATE TABLE entries (key BLOB PRIMARY KEY, value, version, timestamp)")
        started = perf_counter()
        for at in range(0, count, TOGETHER):
            numbers = range(at, at + TOGETHER)
            database.execute("BEGIN IMMEDIATE")
            database.executemany(
                "INSERT OR REPLACE INTO entries VALUES (?, ?, ?, ?)",
                [(_key(number).encode(), value, number, now_ms) for number in numbers],
            )
            database.execute("COMMIT")
        seconds = perf_counter() - started
    path.unlink()
    return count / seconds


def _backup(source: Path, target: Path) -> float:
    """Seconds of a backup."""
    with closing(sqlite3.connect(source)) as whole, closing(sqlite3.connect(target)) as copy:
        started = perf_counter()
        whole.backup(copy)
        seconds = perf_counter() - started
    target.unlink()
    return seconds


# Reads.


def _measure_reads(replica: EmbeddedReplica, file: Path, case: str, count: int, measured: Measured) -> None:
    """Each case by the copy and by a SELECT, with the same keys."""
    chosen = random.Random(case)
    keys_count = count if case == READ_CASES[0] else OFTEN
    keys = [_key(chosen.randrange(keys_count)) for _ in range(READS)]
    with closing(sqlite3.connect(f"{file.as_uri()}?mode=ro", uri=True)) as database:

        def select(key: str) -> Any:
            found = database.execute("SELECT value FROM entries WHERE key = ?", (key.encode(),))
            return msgspec.json.decode(found.fetchone()[0])

        for who, get in (("plain", select), ("copy", replica.get)):
            if case != READ_CASES[0]:
                _timed(get, sorted(set(keys)))  # the first read of each is the other case
            found = _timed(get, keys)
            for figure in FIGURES:
                measured.add((who, case, figure), found[figure] * 1000)


def _timed(get: Callable[[str], Any], keys: Sequence[str]) -> dict[str, float]:
    taken = []
    for key in keys:
        started = perf_counter()
        value = get(key)
        taken.append(perf_counter() - started)
        assert value == VALUE
    return percentiles(taken)


def copy_results(measured: Measured) -> list[Result]:
    rows = [
        result(
            NAME,
            "full sync, a bucket",
            measured.of("full"),
            "entries/s",
            limits=measured.of("backup"),
            limit_name="SQLite's backup of the same file",
        ),
        *(
            result(
                NAME,
                f"replay, a bucket, {how}",
                measured.of(("replay", how)),
                "entries/s",
                limits=measured.of("upserts"),
                limit_name=f"SQLite, {TOGETHER} per transaction",
            )
            for how in FORMATS
        ),
    ]
    rows += [
        result(
            NAME,
            f"a copy reads {case}: {figure}",
            measured.of(("copy", case, figure)),
            "us",
            limits=measured.of(("plain", case, figure)),
            limit_name=f"SQLite SELECT, {figure}",
        )
        for case in READ_CASES
        for figure in FIGURES
    ]
    return rows
