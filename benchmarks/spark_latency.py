"""Micro-batches of a few rows, from topic to topic, by the parts that Spark and we spend time in.

Rule 1: sources take turns, a few batches each, in one session: whatever else the machine does meets
        all of them. A query that is not measured is stopped, since an idle one asks all the time.
Rule 2: the first batches after each start warm up and are not counted.
Rule 3: all are measured with the checkpoint files of Spark's default and with those of pipelines.
Rule 4: the time of the processor is measured, too, of Spark, its Python processes and the node. Who waits
        for a core on a busy machine does so once for each process that a batch goes through, and the
        two go through different numbers of them; that time is no such wait.
"""

import json
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from benchmarks.process import cpu_seconds_below
from benchmarks.report import Measured, Result, result
from tidelog.spark.pipelines.running import FILE_MANAGER

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

TRACED: Final = Path(__file__).parent / "traced"
MANAGER: Final = "spark.sql.streaming.checkpointFileManagerClass"
MANAGERS: Final = {"": None, ", pipeline checkpoint": FILE_MANAGER}
TOTAL: Final = "triggerExecution"
PARTS: Final = ("latestOffset", "queryPlanning", "walCommit", "addBatch", "commitOffsets")
CPU: Final = "CPU of all processes"
WARM_BATCHES: Final = 4
COUNTED_BATCHES: Final = 8
TURNS: Final = 4


class Latency:
    """The queries that take turns."""

    def __init__(
        self,
        spark: "SparkSession",
        directory: Path,
        formats: Mapping[str, tuple[str, Mapping[str, str]]],
        new_topic: Callable[[], str],
        put: Callable[[str], None],
        bootstrap: str,
    ) -> None:
        """`formats` are sources by name: what Spark calls it, and its options. `put` writes a few
        records to a topic, beside Spark."""
        self._spark = spark
        self._directory = directory
        self._formats = formats
        self._new_topic = new_topic
        self._put = put
        self._cluster = {"kafka.bootstrap.servers": bootstrap}
        self._topics: dict[str, tuple[str, str]] = {}

    def turns(self, count: int) -> Iterator[tuple[str, str]]:
        """What is measured next: a source, with a name for the files of its checkpoint."""
        for turn in range(count):
            for manager in MANAGERS:
                names = list(self._formats)
                for source in names if turn % 2 else reversed(names):
                    yield source, manager

    def measure(self, source: str, manager: str, measured: Measured) -> int:
        """Let one source have its turn; how many batches it was."""
        name = f"{source}{manager}"
        if name not in self._topics:
            self._topics[name] = self._new_topic(), self._new_topic()
        with self._manager(MANAGERS[manager]):
            reports, cpu_ms = self._batches(source, name)
        measured.add((CPU, name), cpu_ms)
        for report in reports[WARM_BATCHES:]:
            for part in (TOTAL, *PARTS):
                measured.add((part, name), float(report["durationMs"].get(part, 0)))
        return len(reports)

    @contextmanager
    def _manager(self, manager: str | None) -> Iterator[None]:
        if manager is not None:
            self._spark.conf.set(MANAGER, manager)
        try:
            yield
        finally:
            self._spark.conf.unset(MANAGER)

    def _batches(self, source: str, name: str) -> tuple[list[dict[str, Any]], float]:
        """What Spark reports of a turn, and the CPU time of a batch in ms."""
        format_, options = self._formats[source]
        topic, target = self._topics[name]
        checkpoint = self._directory / str(list(self._topics).index(name))
        reader = self._spark.readStream.format(format_).options(**self._cluster, **options)
        rows = reader.option("subscribe", topic).load().select("key", "value")
        writer = rows.writeStream.format(format_).options(**self._cluster, topic=target)
        query = (
            writer.option("checkpointLocation", str(checkpoint)).trigger(processingTime="0 seconds").start()
        )
        try:
            query.processAllAvailable()
            self._put_each(query, topic, WARM_BATCHES)
            before = cpu_seconds_below()
            self._put_each(query, topic, COUNTED_BATCHES)
            cpu_ms = (cpu_seconds_below() - before) / COUNTED_BATCHES * 1000
            reports = [json.loads(one.json) for one in query.recentProgress]
        finally:
            query.stop()
        return [one for one in reports if one["numInputRows"]], cpu_ms

    def _put_each(self, query: "StreamingQuery", topic: str, batches: int) -> None:
        for _ in range(batches):
            self._put(topic)
            query.processAllAvailable()

    def close(self) -> None:
        shutil.rmtree(self._directory, ignore_errors=True)


def latency_results(
    benchmark: str, measured: Measured, ours: str, beside: Mapping[str, str], target: str
) -> list[Result]:
    """Totals beside each of the others, and the parts beside the last, which the target means."""
    last = list(beside)[-1:]

    def row(case: str, part: str, manager: str, others: list[str], **how: Any) -> Result:
        mine = measured.of((part, f"{ours}{manager}"))
        limits = [ms for other in others for ms in measured.of((part, f"{other}{manager}"))]
        named = "".join(f"{beside[other]}, p50" for other in others)
        return result(benchmark, case, mine, "ms", limits=limits, limit_name=named, **how)

    found = []
    for manager in MANAGERS:
        for others in [[other] for other in beside] or [[]]:
            aim = target if others == last else ""
            found += [
                row(f"micro-batch{manager}, p50", TOTAL, manager, others, target=aim),
                row(f"micro-batch{manager}, p95", TOTAL, manager, others, share=0.95),
            ]
        found += [row(f"  {part}{manager}", part, manager, last) for part in (*PARTS, CPU)]
    return found


def traced(path: Path) -> str:
    """What our requests and calls took, of all that were noted."""
    times: dict[str, list[float]] = defaultdict(list)
    for line in path.read_text().splitlines():
        what, milliseconds = line.split("\t")
        times[what].append(float(milliseconds))
    told = (f"{what} {median(some):.1f}" for what, some in sorted(times.items()))
    return "our calls and requests, median in ms: " + ", ".join(told)
