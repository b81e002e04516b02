"""Produce while the scrubber reads old segments again, beside the same node with the scrubber off.

Rule 1: a round measures the same load without the scrubber, at the default rate and at a high one,
        one after the other on the same node; the first is the limit of the others.
Rule 2: the scrubber never rests: a cycle follows the last at once. What it has read is asked for,
        so that a run in which it read nothing is not taken for a cheap one.
"""

import json
import urllib.request
from typing import Final

from benchmarks.bench import MIB, Bench, Steps, ask_node, run_fast
from benchmarks.process import cpu_seconds
from benchmarks.report import Measured, Report, Result, result
from tests.support.node import NodeProcess
from tidelog.client.admin import AdminClient, ConfigChange, Resource
from tidelog.client.kafka import KafkaClient
from tidelog.client.load import Load, LoadGenerator

NAME: Final = "scrub"

RECORD_BYTES: Final = 100
BATCH_BYTES: Final = 100_000
OLD: Final = "old"
NEW: Final = "new"
OFF: Final = "off"
RATES: Final = {OFF: 0, "4 MiB/s, the default": 4 * MIB, "64 MiB/s": 64 * MIB}
UNITS: Final = ("records/s", "CPU s/s")


def run(bench: Bench) -> Report:
    measured = Measured()
    size = (100 if bench.quick else 400) * MIB
    settings = {
        "http": "127.0.0.1:0",
        "scrub.interval.ms": 1,
        "scrub.bytes.per.second": 0,
        "log.segment.bytes": 16 * MIB,
    }
    with bench.node(settings) as node, Steps(NAME, 1 + bench.rounds * len(RATES)) as steps:
        steps.begin("writing what is scrubbed")
        ask_node(node, lambda client: _fill(client, size))
        for _ in range(bench.rounds):
            for name, rate in RATES.items():
                bench.settle()
                steps.begin(f"produce, scrubber {name}")
                run_fast(_set_rate(node, rate))
                _produce(bench, node, name, measured)
    return Report(
        title="produce while sealed segments are read again",
        results=_results(measured),
        notes=[f"{RECORD_BYTES} B records in batches of {BATCH_BYTES} bytes, acks=all"],
    )


def _results(measured: Measured) -> list[Result]:
    rows = [
        result(
            NAME,
            f"scrubber {name}",
            measured.of((unit, name)),
            unit,
            limits=measured.of((unit, OFF)) if name != OFF else (),
            limit_name="scrubber off",
        )
        for unit in UNITS
        for name in RATES
    ]
    return rows + [
        result(NAME, f"read again, {name}", measured.of(("scrubbed", name)), "MB/s") for name in RATES
    ]


async def _fill(client: KafkaClient, size: int) -> None:
    await client.create_topic(OLD, partitions=1, replication=1)
    await client.create_topic(NEW, partitions=1, replication=1)
    load = Load(topic=OLD, record_bytes=RECORD_BYTES, batch_bytes=BATCH_BYTES)
    generator = LoadGenerator(client, load)
    written = 0
    while written < size:
        written += (await generator.produce(0.5)).records * RECORD_BYTES


async def _set_rate(node: NodeProcess, rate: int) -> None:
    async with AdminClient(node.bootstrap) as client:
        change = ConfigChange(name="scrub.bytes.per.second", value=str(rate))
        await client.alter_configs(Resource.BROKER, "", [change])


def _produce(bench: Bench, node: NodeProcess, name: str, measured: Measured) -> None:
    async def work(client: KafkaClient) -> None:
        load = Load(topic=NEW, record_bytes=RECORD_BYTES, batch_bytes=BATCH_BYTES)
        before, cpu = _scrubbed(node), cpu_seconds(node.pid)
        produced = await LoadGenerator(client, load).produce(bench.subject_seconds)
        seconds = produced.seconds
        measured.add(("records/s", name), produced.records_per_second)
        measured.add(("CPU s/s", name), (cpu_seconds(node.pid) - cpu) / seconds)
        measured.add(("scrubbed", name), (_scrubbed(node) - before) / seconds / 1e6)

    ask_node(node, work)


def _scrubbed(node: NodeProcess) -> int:
    with urllib.request.urlopen(f"http://{node.http}/v1/replication", timeout=10) as answer:
        return int(json.load(answer)["scrub"]["bytes_total"])
