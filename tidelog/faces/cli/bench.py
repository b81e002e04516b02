"""`tidelog bench`: how fast is this cluster from here?"""

import contextlib
import sys
from typing import Annotated, Any

import typer

from tidelog.errors import TidelogError
from tidelog.faces.cli.common import (
    DEFAULT_BOOTSTRAP,
    AsJson,
    Bootstrap,
    UserError,
    note,
    number,
    print_json,
    print_table,
    run,
)
from tidelog.faces.cli.produce import Acks

LATENCY_SAMPLES = 2000
CLEANUP_SECONDS = 5


def bench(
    seconds: Annotated[
        float, typer.Option("--seconds", metavar="S", min=0.1, help="Seconds to produce for.")
    ] = 5.0,
    size: Annotated[
        int, typer.Option("--size", metavar="BYTES", min=0, help="Bytes of a record's value.")
    ] = 100,
    batch_bytes: Annotated[
        int, typer.Option("--batch-bytes", metavar="BYTES", min=1, help="Bytes of a batch.")
    ] = 1_000_000,
    partitions: Annotated[int, typer.Option("--partitions", metavar="P", min=1, help="Of the topic.")] = 1,
    replication: Annotated[
        int | None, typer.Option("--replication", metavar="R", min=1, help="Of the topic.")
    ] = None,
    acks: Annotated[
        Acks, typer.Option("--acks", help="Replicas that must have a batch before it is written.")
    ] = Acks.ALL,
    connections: Annotated[
        int, typer.Option("--connections", metavar="N", min=1, help="Connections to each broker.")
    ] = 1,
    pipeline: Annotated[
        int, typer.Option("--pipeline", metavar="N", min=1, help="Requests in flight on each connection.")
    ] = 5,
    topic: Annotated[
        str | None, typer.Option("--topic", metavar="NAME", help="Name of the topic; it must not exist.")
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Measure throughput and latency.

    Creates a topic and deletes it at the end. Batches are encoded once and
    sent repeatedly, so that the cluster is measured and not this client. Then
    everything is read back, and single records are timed from the producer to
    a waiting consumer. A MB is a million bytes of values.

    \b
    Examples:
      tidelog bench
      tidelog bench --size 1000 --partitions 10 --acks 1 --json
    """
    settings = {
        "seconds": seconds,
        "size": size,
        "batch_bytes": batch_bytes,
        "partitions": partitions,
        "acks": acks.value,
        "connections": connections,
        "pipeline": pipeline,
    }
    result = run(_bench(bootstrap, topic, replication or -1, settings, quiet=as_json), fast=True)
    if as_json:
        print_json(result)
    else:
        _print(result)


async def _bench(
    bootstrap: str, name: str | None, replication: int, settings: dict[str, Any], *, quiet: bool
) -> dict[str, Any]:
    import asyncio
    import uuid

    from tidelog.client.kafka import KafkaClient
    from tidelog.client.load import Load, LoadGenerator

    topic = name or f"bench-{uuid.uuid4().hex[:12]}"
    acks = settings["acks"]
    load = Load(
        topic=topic,
        record_bytes=settings["size"],
        batch_bytes=settings["batch_bytes"],
        acks=-1 if acks == "all" else int(acks),
        connections=settings["connections"],
        pipeline=settings["pipeline"],
    )

    def tell(what: str) -> None:
        if not quiet and sys.stderr.isatty():
            note(what)

    async with KafkaClient(bootstrap) as client:
        await client.create_topic(topic, partitions=settings["partitions"], replication=replication)
        try:
            generator = LoadGenerator(client, load)
            tell(f"producing for {settings['seconds']:g} s ...")
            produced = await generator.produce(settings["seconds"])
            tell(f"reading {number(produced.records)} records back ...")
            ends = await generator.ends(records=produced.records)
            consumed = await generator.consume(ends)
            if consumed.records != produced.records:
                raise UserError(
                    f"{number(produced.records)} records were sent, but the log has "
                    f"{number(consumed.records)}; look at the broker's log"
                )
            tell("timing single records ...")
            latency = await generator.latency(
                samples=LATENCY_SAMPLES, seconds_max=min(5.0, max(1.0, settings["seconds"]))
            )
        except BaseException:
            # Interrupted or failed: that is what to report, even if cleaning up fails as well.
            with contextlib.suppress(TidelogError, TimeoutError):
                async with asyncio.timeout(CLEANUP_SECONDS):
                    await client.delete_topic(topic)
            raise
        await client.delete_topic(topic)
    return {
        "topic": topic,
        "settings": settings,
        "produce": _numbers(produced),
        "consume": _numbers(consumed),
        "end_to_end_ms": _rounded(latency),
    }


def _numbers(throughput: Any) -> dict[str, Any]:
    return {
        "records": throughput.records,
        "bytes": throughput.payload_bytes,
        "requests": throughput.requests,
        "seconds": round(throughput.seconds, 6),
        "records_per_second": round(throughput.records_per_second),
        "mb_per_second": round(throughput.megabytes_per_second, 1),
        "request_ms": _rounded(throughput.latency_ms),
    }


def _rounded(values: Any) -> dict[str, float]:
    return {name: round(value, 3) for name, value in values.items()}


def _print(result: dict[str, Any]) -> None:
    rows = []
    for name in ("produce", "consume"):
        one = result[name]
        rows.append(
            (
                name,
                number(one["records_per_second"]),
                f"{one['mb_per_second']:,.1f}",
                number(one["records"]),
                f"{one['seconds']:.2f}",
                _milliseconds(one["request_ms"], "p50"),
                _milliseconds(one["request_ms"], "p99"),
            )
        )
    print_table(["", "records/s#", "MB/s#", "records#", "seconds#", "request p50 ms#", "p99 ms#"], rows)
    latency = result["end_to_end_ms"]
    print_table(
        ["one record", "p50 ms#", "p99 ms#", "max ms#", "samples#"],
        [
            [
                name,
                *(_milliseconds(latency, prefix + part) for part in ("p50", "p99", "max")),
                number(latency["samples"]),
            ]
            for name, prefix in (("to the consumer", ""), ("acknowledged", "acknowledged_"))
        ],
    )


def _milliseconds(values: dict[str, float], name: str) -> str:
    return f"{values[name]:.2f}" if name in values else "-"
