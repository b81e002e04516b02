"""Rows per second through Spark, beside Spark's own Kafka connector and beside Spark alone.

Rule 1: one core: `local[1]`. Node and Spark share the machine, as they do for both connectors.
Rule 2: everything is measured in one Spark session, in turn, on the same topics; the first round
        is not counted, since a JVM that is warm is what users have.
Rule 3: Spark alone, which makes as many rows as large and drops them, is what no source can pass.
Rule 4: the connector's sink is at least once; ours is measured as that, and exactly once.
Rule 5: in every task the connector waits for records that do not come, half a second by default,
        at Kafka's nodes as at ours. So it is also measured with waits of 10 ms, and the target of
        reading is held against that.
"""

import asyncio
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Final

from benchmarks.bench import Bench, Steps, run_fast
from benchmarks.report import Measured, Report, Result, result
from benchmarks.spark_latency import TRACED, TURNS, Latency, latency_results, traced
from benchmarks.spark_memory import watched
from benchmarks.spark_tables import COMMITS, COMMITS_QUICK, commit_result, commit_times
from tests.suites.tools import InstallFailed, Missing, spark_connector_jars
from tidelog.client.kafka import KafkaClient
from tidelog.records import Record, encode_batch
from tidelog.spark.session import spark_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NAME: Final = "spark"

KEY_BYTES: Final = 8
VALUE_BYTES: Final = 100
PARTITIONS: Final = 4
ROWS: Final = 4_000_000
ROWS_QUICK: Final = 500_000
FEW_ROWS: Final = 100
MEMORY_ROWS: Final = 10_000_000
MEMORY_ROWS_QUICK: Final = 500_000
OURS: Final = "tidelog"
THEIRS: Final = "kafka"
THEIRS_HASTY: Final = "kafka, waits of 10 ms"
ALONE: Final = "Spark alone (range -> noop)"
CONNECTOR: Final = "Spark's Kafka connector"
TITLES: Final = {THEIRS: CONNECTOR, THEIRS_HASTY: f"{CONNECTOR}, waits of 10 ms"}
OPTIONS: Final = {THEIRS_HASTY: {"kafka.fetch.max.wait.ms": "10"}}

_numbers: Final = count()


def run(bench: Bench) -> Report:
    measured = Measured()
    notes: list[str] = []
    rows = ROWS_QUICK if bench.quick else ROWS
    rounds = 1 if bench.quick else 3
    trace = bench.fresh("trace")
    load = os.getloadavg()[0]
    with bench.node() as node, _session(bench, notes, trace) as (spark, sources):
        work = _Work(bench, spark, node.bootstrap, sources, rows)
        cases = work.cases()
        latency = work.latency()
        turns = list(latency.turns(1 if bench.quick else TURNS))
        with Steps(NAME, (rounds + 1) * len(cases) + len(turns) + 2) as steps:
            for round_ in range(rounds + 1):
                for (case, source), once in cases.items():
                    steps.begin(f"{case}, {source}")
                    bench.settle()
                    seconds = once()
                    if round_:
                        measured.add((case, source), rows / seconds)
            trace.write_text("")
            for source, manager in turns:
                steps.begin(f"micro-batches, {source}{manager}")
                latency.measure(source, manager, measured)
            latency.close()
            notes.append(traced(trace))
            steps.begin("memory")
            memory = [
                result(NAME, f"memory to {what}, {whose}", [mebibytes], "MiB")
                for (what, whose), mebibytes in work.memory(MEMORY_ROWS_QUICK if bench.quick else MEMORY_ROWS)
            ]
            steps.begin("commits to a table")
            warehouse = bench.fresh("warehouse")
            warehouse.mkdir()
            commits = commit_times(warehouse, COMMITS_QUICK if bench.quick else COMMITS)
            bench.remove(warehouse)
    return Report(
        title=f"rows of {KEY_BYTES} + {VALUE_BYTES} bytes, one core",
        results=[*_results(measured, sources), *memory, commit_result(NAME, commits)],
        notes=[*notes, _load(load)],
    )


def _load(at_start: float) -> str:
    return (
        f"load of the machine: {at_start:.1f} at the beginning, {os.getloadavg()[0]:.1f} at the "
        f"end, {os.cpu_count()} cores"
    )


@contextmanager
def _session(bench: Bench, notes: list[str], trace: Path) -> "Iterator[tuple[SparkSession, tuple[str, ...]]]":
    """A Spark of one core, and the sources that it knows."""
    sources: tuple[str, ...] = (OURS,)
    conf = {"spark.driver.memory": "2g", "spark.sql.shuffle.partitions": "1"}
    try:
        conf["spark.jars"] = ",".join(map(str, spark_connector_jars()))
        sources = (OURS, THEIRS, THEIRS_HASTY)
    except (Missing, InstallFailed) as error:
        notes.append(f"{CONNECTOR} was not measured: {error}")
    log = bench.fresh("spark-log")
    path = os.pathsep.join(filter(None, (str(TRACED), os.environ.get("PYTHONPATH"))))
    with (
        _environment(PYTHONPATH=path, TIDELOG_TRACE=str(trace)),
        spark_session("bench", master="local[1]", conf=conf, log=log) as spark,
    ):
        yield spark, sources


@contextmanager
def _environment(**told: str) -> Iterator[None]:
    """What the JVM's Python processes find in their environment."""
    before = {name: os.environ.get(name) for name in told}
    os.environ.update(told)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


class _Work:
    """What is timed. Every call of a case does all rows once, and says how long it took."""

    def __init__(
        self, bench: Bench, spark: "SparkSession", bootstrap: str, sources: tuple[str, ...], rows: int
    ) -> None:
        self._bench = bench
        self._spark = spark
        self._sources = sources
        self._rows = rows
        self._options = {"kafka.bootstrap.servers": bootstrap}
        self._bootstrap = bootstrap
        self._source = self._new_topic()
        self._append(OURS, self._made(), self._source)

    def cases(self) -> dict[tuple[str, str], Callable[[], float]]:
        cases: dict[tuple[str, str], Callable[[], float]] = {("read", ALONE): self._alone}
        for one in self._sources:
            cases["read", one] = partial(self._reads, one)
        cases["read, value and offset", OURS] = partial(
            self._reads, OURS, schema="value binary, offset bigint"
        )
        for one in self._sources:
            if one != THEIRS_HASTY:  # who writes waits for nothing
                cases["write", one] = partial(self._writes, one, self._made())
        cases["write, at least once", OURS] = partial(
            self._writes, OURS, self._made(), delivery="at-least-once"
        )
        for one in self._sources:
            copied = self._read(one).select("key", "value")
            cases["read to write", one] = partial(self._writes, one, copied)
        cases["archive", OURS] = self._archive
        return cases

    def latency(self) -> Latency:
        """Micro-batches of a few rows, which take turns."""
        formats = {one: (_format(one), OPTIONS.get(one, {})) for one in self._sources}
        return Latency(
            self._spark,
            self._bench.fresh("checkpoints"),
            formats,
            new_topic=partial(self._new_topic, 1),
            put=self._put_few,
            bootstrap=self._bootstrap,
        )

    def _put_few(self, topic: str) -> None:
        now_ms = time.time_ns() // 1_000_000
        records = [Record(key=b"%d" % n, value=b"%d" % n, timestamp_ms=now_ms) for n in range(FEW_ROWS)]
        self._ask(lambda client: client.produce(topic, 0, encode_batch(records)))

    def memory(self, count: int) -> Iterator[tuple[tuple[str, str], float]]:
        """Most that Spark's processes take while they write so many rows, and read them."""
        topic = self._new_topic()
        rows = self._spark.read.format(OURS).options(**self._options, subscribe=topic).load()
        for what, work in (
            ("write", partial(self._append, OURS, self._made(count), topic)),
            ("read", partial(self._timed, rows)),
        ):
            with watched() as memory:
                work()
            yield from (((f"{what} {count:,} rows", whose), size) for whose, size in memory.most.items())
        self._ask(lambda client: client.delete_topic(topic))

    def _made(self, count: int | None = None) -> "DataFrame":
        """Rows of no source."""
        return self._spark.range(0, count or self._rows, 1, PARTITIONS).selectExpr(
            f"lpad(cast(id as string), {KEY_BYTES}, '0') key",
            f"rpad(cast(id as string), {VALUE_BYTES}, 'x') value",
        )

    def _alone(self) -> float:
        rows = self._spark.range(0, self._rows, 1, PARTITIONS).selectExpr(
            "cast('12345678' as binary) key",
            f"cast(repeat('x', {VALUE_BYTES}) as binary) value",
            "'topic' topic",
            "cast(0 as int) partition",
            "id offset",
            "timestamp_millis(id) timestamp",
            "cast(0 as int) timestampType",
        )
        return self._timed(rows)

    def _read(self, source: str, *, schema: str | None = None) -> "DataFrame":
        reader = self._spark.read.format(_format(source))
        reader = reader.options(**self._options, **OPTIONS.get(source, {}), subscribe=self._source)
        return (reader if schema is None else reader.schema(schema)).load()

    def _reads(self, source: str, *, schema: str | None = None) -> float:
        return self._timed(self._read(source, schema=schema))

    def _timed(self, rows: "DataFrame") -> float:
        began = perf_counter()
        rows.write.format("noop").mode("overwrite").save()
        return perf_counter() - began

    def _writes(self, sink: str, rows: "DataFrame", **options: str) -> float:
        topic = self._new_topic()
        began = perf_counter()
        self._append(sink, rows, topic, **options)
        seconds = perf_counter() - began
        self._ask(lambda client: client.delete_topic(topic))
        return seconds

    def _append(self, sink: str, rows: "DataFrame", topic: str, **options: str) -> None:
        writer = rows.write.format(_format(sink)).mode("append")
        writer.options(**self._options, topic=topic, **options).save()

    def _archive(self) -> float:
        from tidelog.spark.archive.archiving import Archiver, Settings
        from tidelog.spark.archive.catalog import open_catalog

        warehouse = self._bench.fresh("warehouse")
        try:
            began = perf_counter()
            with open_catalog(str(warehouse), create=True) as catalog:
                archiver = Archiver(self._spark, catalog, self._bootstrap, [self._source], Settings())
                archiver.once()
            return perf_counter() - began
        finally:
            shutil.rmtree(warehouse, ignore_errors=True)

    def _new_topic(self, partitions: int = PARTITIONS) -> str:
        topic = f"spark-{next(_numbers)}"
        self._ask(lambda client: client.create_topic(topic, partitions=partitions))
        return topic

    def _ask(self, question: Callable[[KafkaClient], object]) -> None:
        async def work() -> None:
            async with KafkaClient(self._bootstrap) as client:
                answer = question(client)
                assert asyncio.iscoroutine(answer)
                await answer

        run_fast(work())


def _format(source: str) -> str:
    return THEIRS if source == THEIRS_HASTY else source


def _results(measured: Measured, sources: tuple[str, ...]) -> list[Result]:
    def rate(case: str, limit: tuple[str, str] | None, target: str = "") -> Result:
        limits = measured.of(limit) if limit is not None and limit[1] in (*sources, ALONE) else []
        return result(
            NAME,
            f"{case}, {OURS}",
            measured.of((case, OURS)),
            "rows/s",
            limits=limits,
            limit_name=TITLES.get(limit[1], limit[1]) if limit is not None else "",
            target=target,
        )

    results = [
        rate("read", ("read", THEIRS)),
        rate("read", ("read", THEIRS_HASTY), ">= 1.0"),
        rate("read", ("read", ALONE)),
        rate("read, value and offset", ("read", THEIRS_HASTY)),
        rate("write", ("write", THEIRS), ">= 1.0"),
        rate("write, at least once", ("write", THEIRS)),
        rate("read to write", ("read to write", THEIRS)),
        rate("read to write", ("read to write", THEIRS_HASTY)),
        rate("archive", None, ">= 500,000 rows/s"),
    ]
    beside = {name: TITLES[name] for name in sources if name != OURS}
    return results + latency_results(NAME, measured, OURS, beside, "<= 1.0")
