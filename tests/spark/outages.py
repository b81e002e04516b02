"""A pipeline and an archive that run while their catalog or their store is down, and is back."""

import json
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import yaml

from tests.spark.topics import Topics
from tests.support.cluster import wait_until
from tidelog.records import Record
from tidelog.spark.archive.archiving import Archiver, Settings
from tidelog.spark.archive.catalog import load_topic, open_catalog
from tidelog.spark.pipelines.iceberg import Catalog
from tidelog.spark.pipelines.sinks import start_all
from tidelog.spark.pipelines.spec import Pipeline, load

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SECONDS_MAX: Final = 240.0
EACH: Final = 20
OUTAGES: Final = 2


class Lake(NamedTuple):
    """A catalog with its store: what pyiceberg is told of it, and how it goes away."""

    told: dict[str, str]
    down: Callable[[], None]
    up: Callable[[], None]


class _Complaints(logging.Handler):
    """What our own code has to say while somebody is away."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.text = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.text += record.getMessage() + "\n"

    @property
    def is_missed(self) -> bool:
        """Whether the pipeline and the archive both say that somebody is away."""
        return "waiting for" in self.text and "will be tried again:" in self.text


@contextmanager
def complaints() -> Iterator[_Complaints]:
    found, logger = _Complaints(), logging.getLogger("tidelog.spark")
    logger.addHandler(found)
    try:
        yield found
    finally:
        logger.removeHandler(found)


def _pipeline(folder: Path, topics: Topics, topic: str, lake: Lake) -> Pipeline:
    folder.mkdir()
    sink = {"from": "rows", "iceberg": "shop.rows", "partition_by": ["bucket(2, id)"], "catalog": lake.told}
    document = {
        "bootstrap": topics.bootstrap,
        "trigger": "500 milliseconds",
        "sources": {"rows": {"topic": topic, "json": "id long"}},
        "sinks": {"table": sink},
    }
    (folder / "pipeline.yaml").write_text(yaml.safe_dump(document))
    return load(folder)


def check_nothing_is_missing_or_twice(
    spark: "SparkSession", topics: Topics, topic: str, folder: Path, lake: Lake
) -> None:
    """Write before, during and after outages; then look for every record, in both tables."""
    topics.make(topic, 1)
    pipeline = _pipeline(folder, topics, topic, lake)
    catalog = Catalog.of(pipeline, pipeline.sinks["table"].catalog)
    named = ",".join(f"{key}={value}" for key, value in lake.told.items())
    stopping = threading.Event()

    def put(first: int) -> None:
        numbers = range(first, first + EACH)
        topics.put(topic, [Record(value=json.dumps({"id": at}).encode()) for at in numbers])

    def ids() -> list[int]:
        found: list[int] = catalog.table("shop.rows").scan().to_arrow()["id"].to_pylist()
        return sorted(found)

    with open_catalog("unused", named) as archive, complaints() as heard:

        def offsets() -> list[int]:
            table = load_topic(archive, topic).table
            found: list[int] = table.scan().to_arrow()["offset"].to_pylist()
            return sorted(found)

        def is_written(count: int) -> bool:
            return len(ids()) >= count and len(offsets()) >= count

        put(0)
        archiver = Archiver(spark, archive, topics.bootstrap, [topic], Settings())
        archiving = threading.Thread(target=archiver.keep_on, args=(0.5, stopping))
        archiving.start()
        queries = start_all(spark, pipeline)
        try:
            wait_until(partial(is_written, EACH), "nothing is written", SECONDS_MAX)
            for outage in range(1, OUTAGES + 1):
                heard.text = ""
                lake.down()
                put(EACH * outage)
                wait_until(lambda: heard.is_missed, "nobody misses the lake", SECONDS_MAX)
                lake.up()
                wait_until(partial(is_written, EACH * (outage + 1)), "nobody goes on", SECONDS_MAX)
        except AssertionError as error:
            states = [(query.status, query.exception()) for query in queries]
            lately = heard.text[-2000:]
            raise AssertionError(
                f"{error}: {states}; {archiver.done}; rows {len(ids())}, {len(offsets())}; {lately}"
            ) from error
        finally:
            stopping.set()
            for query in queries:
                query.stop()
            archiving.join()

        everything = list(range(EACH * (OUTAGES + 1)))
        assert [query.exception() for query in queries] == [None]
        assert ids() == everything
        assert offsets() == everything
