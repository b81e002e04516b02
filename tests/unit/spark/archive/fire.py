"""An archive that is killed again and again while its log grows: `python -m` this, with a seed.

Every run is a process of its own, killed with SIGKILL after a part of the time that a whole run
takes. At the end one may finish; then every offset must be archived once, in order.
"""

import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.unit.spark.archive.loop import Cluster, LoopSpark
from tidelog.spark.archive import archiving, spans
from tidelog.spark.archive.archiving import Archiver, Settings
from tidelog.spark.archive.catalog import load_topic, open_catalog
from tidelog.spark.archive.files import read_archived
from tidelog.spark.archive.spans import Span
from tidelog.spark.ranges import OffsetRange

KILLS = 12
SETTINGS = Settings(file_bytes=2000)


def run(warehouse: str) -> None:
    spark: Any = LoopSpark()
    with open_catalog(warehouse, create=True) as catalog:
        Archiver(spark, catalog, "nowhere:1", ["orders"], SETTINGS).once()


def check(warehouse: str, ends: dict[int, int]) -> None:
    with open_catalog(warehouse) as catalog:
        table = load_topic(catalog, "orders")
        for partition, end in ends.items():
            wanted = OffsetRange("orders", partition, 0, end + 1)
            offsets = [
                offset
                for part in table.ranges([wanted])
                for batch in read_archived(part, ("offset",))
                for offset in batch.column("offset").to_pylist()
            ]
            assert offsets == list(range(end)), f"partition {partition}: {len(offsets)} of {end}"
        left = list(Path(table.directory.removeprefix("file://")).rglob("*.parquet"))
        assert len(left) == len(table.files()), "files are left that no snapshot names"


def in_child(work: Callable[[], None], killed_after: float | None = None) -> bool:
    """Do something in a process of its own; whether it was done before the kill came."""
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    if killed_after is not None:
        time.sleep(killed_after)  # a moment of chance, not an event to wait for
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, "a run failed by itself"
    return not os.WIFSIGNALED(status)


def main(seed: int) -> None:
    chance = random.Random(seed)
    cluster = Cluster()
    vars(archiving).update(look_at=cluster.look_at, read_range=cluster.read_range)
    vars(spans).update(FIRST_ROWS=50, ROWS_MIN=50)
    end, kills = 300, 0
    with tempfile.TemporaryDirectory() as warehouse:
        cluster.topics["orders"] = {0: Span(0, end), 1: Span(0, end // 3)}
        began = time.monotonic()
        in_child(lambda: run(warehouse))
        whole = time.monotonic() - began
        for _ in range(KILLS):
            end += chance.randrange(300)
            cluster.topics["orders"] = {0: Span(0, end), 1: Span(0, end // 3)}
            kills += not in_child(lambda: run(warehouse), chance.uniform(0, whole))
        end += 1
        cluster.topics["orders"] = {0: Span(0, end), 1: Span(0, end // 3)}
        in_child(lambda: run(warehouse))
        in_child(lambda: check(warehouse, {0: end, 1: end // 3}))
    print(f"{kills} of {KILLS} runs were killed; {end + end // 3} records are archived once")


if __name__ == "__main__":
    main(int(sys.argv[1]))
