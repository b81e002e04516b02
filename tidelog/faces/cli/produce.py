"""`tidelog produce`: lines in, records out."""

import os
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from tidelog.faces.cli.common import (
    DEFAULT_BOOTSTRAP,
    AsJson,
    Bootstrap,
    Format,
    UsageError,
    UserError,
    key_values,
    note,
    number,
    print_json,
    progress_bar,
    run,
)
from tidelog.faces.cli.completing import topic_names
from tidelog.faces.cli.schemas import (
    BYTES,
    KeyFormat,
    SchemaRegistry,
    SchemaRegistryUser,
    ValueFormat,
    part_format,
)
from tidelog.schemas.problems import SchemaProblem

if TYPE_CHECKING:
    from tidelog.client.producer import Producer
    from tidelog.records import Record
    from tidelog.schemas.formats import PartFormat
    from tidelog.schemas.values import ValueWriter

CHUNK_BYTES: Final = 256 * 1024
LINE_BYTES_MAX: Final = 64 * 1024 * 1024
"""Input without line ends must not fill the memory."""


class Acks(StrEnum):
    ALL = "all"
    ONE = "1"
    NONE = "0"


class Compression(StrEnum):
    NONE = "none"
    GZIP = "gzip"
    SNAPPY = "snappy"
    LZ4 = "lz4"
    ZSTD = "zstd"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducePlan:
    """What the options ask for."""

    topic: str
    partition: int | None
    acks: int
    codec: str
    rate: float | None
    key: bytes | None
    headers: tuple[tuple[str, bytes], ...]
    parse: "Callable[[bytes, int], tuple[Record, int | None]]"
    """A line at a time to a record, and its partition if the line names one."""
    values: tuple[bytes, ...] | None
    """Records given on the command line; None to read lines."""
    tombstone: bool
    file: Path | None
    writers: "Mapping[str, ValueWriter]"
    """Of keys and values that a schema registry knows."""

    def written(self, record: "Record") -> "Record":
        """A record as its schemas have it."""
        if not self.writers:
            return record
        try:
            parts: dict[str, Any] = {
                part: writer.bytes_of(getattr(record, part)) for part, writer in self.writers.items()
            }
        except SchemaProblem as problem:
            raise UserError(str(problem)) from None
        return replace(record, **parts)


def produce(
    topic: Annotated[
        str, typer.Argument(metavar="TOPIC", help="Topic to write to.", autocompletion=topic_names)
    ],
    key: Annotated[str | None, typer.Option("--key", metavar="K", help="Key of every record.")] = None,
    value: Annotated[
        list[str] | None,
        typer.Option(
            "--value", metavar="V", help="Value of one record, instead of reading lines; repeatable."
        ),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option("--file", metavar="F", help="Read lines from a file instead of standard input."),
    ] = None,
    key_separator: Annotated[
        str | None,
        typer.Option(
            "--key-separator", metavar="SEP", help="Split each line at this text into key and value."
        ),
    ] = None,
    header: Annotated[
        list[str] | None, typer.Option("--header", metavar="K=V", help="Header of every record; repeatable.")
    ] = None,
    partition: Annotated[
        int | None,
        typer.Option(
            "--partition", metavar="N", min=0, help="Write to this partition instead of choosing by key."
        ),
    ] = None,
    acks: Annotated[
        Acks,
        typer.Option(
            "--acks",
            help="Replicas that must have a record before it is written: all in sync, the leader, or none.",
        ),
    ] = Acks.ALL,
    compression: Annotated[
        Compression, typer.Option("--compression", help="Compression of batches.")
    ] = Compression.NONE,
    form: Annotated[Format, typer.Option("--format", help="Format of lines and keys.")] = Format.TEXT,
    tombstone: Annotated[
        bool, typer.Option("--tombstone", help="Write one record with --key and no value: a deletion.")
    ] = False,
    rate: Annotated[
        float | None,
        typer.Option("--rate", metavar="N", min=0.001, help="Write at most N records per second."),
    ] = None,
    value_format: ValueFormat = BYTES,
    value_schema: Annotated[
        Path | None,
        typer.Option(
            "--value-schema",
            metavar="F",
            help="Schema file to register and use (default: the latest one registered).",
        ),
    ] = None,
    key_format: KeyFormat = BYTES,
    key_schema: Annotated[
        Path | None,
        typer.Option(
            "--key-schema",
            metavar="F",
            help="Schema file to register and use (default: the latest one registered).",
        ),
    ] = None,
    value_message: Annotated[
        str | None,
        typer.Option(
            "--value-message", metavar="NAME", help="Message of the Protobuf schema (default: its first)."
        ),
    ] = None,
    key_message: Annotated[
        str | None,
        typer.Option(
            "--key-message", metavar="NAME", help="Message of the Protobuf schema (default: its first)."
        ),
    ] = None,
    schema_registry: SchemaRegistry = "",
    schema_registry_user: SchemaRegistryUser = "",
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Write records: one per line of standard input, until its end.

    Lines are bytes: only the line end is removed. A topic that does not
    exist is created if the cluster allows it. Delivery is at least once:
    after a lost connection a batch may be stored twice. With
    --format json a line is an object with key, value, headers, partition and
    timestamp, as `consume --format json` prints it.

    \b
    Examples:
      echo hello | tidelog produce greetings
      tidelog produce users --key 42 --value Ada --header source=cli
      tidelog produce users --key 42 --tombstone
      tidelog produce events --file events.txt --key-separator :
      tidelog produce orders --value-format avro --value-schema order.avsc --schema-registry URL
      tidelog produce orders --value-format protobuf --value-schema order.proto
      tidelog consume old --no-follow --json | tidelog produce new --format json
    """
    if sum((value is not None, file is not None, tombstone)) > 1:
        raise UsageError("--value, --file and --tombstone exclude each other; keep one")
    if tombstone and key is None:
        raise UsageError("--tombstone needs --key: it deletes what was stored under that key")
    if key_separator == "":
        raise UsageError("--key-separator cannot be empty; for example --key-separator :")

    from tidelog.faces.cli.lines import decode_text, line_parser

    key_form = Format.TEXT if form is Format.JSON else form
    key_bytes = None if key is None else decode_text(os.fsencode(key), key_form)
    named = key_values(header or [], "--header")
    headers = tuple((name, os.fsencode(text)) for name, text in named)
    forms = {
        part: part_format(part, form, schema_registry, schema_registry_user, message)
        for part, form, message in (("key", key_format, key_message), ("value", value_format, value_message))
    }
    writers = _writers(topic, forms, {"key": key_schema, "value": value_schema})
    plan = ProducePlan(
        topic=topic,
        partition=partition,
        acks=-1 if acks is Acks.ALL else int(acks),
        codec=compression.name,
        rate=rate,
        key=key_bytes,
        headers=headers,
        parse=line_parser(
            form,
            key=key_bytes,
            separator=None if key_separator is None else os.fsencode(key_separator),
            headers=headers,
        ),
        values=None if value is None else tuple(os.fsencode(text) for text in value),
        tombstone=tombstone,
        file=file,
        writers=writers,
    )
    summary = run(_produce(bootstrap, plan))
    if as_json:
        print_json(summary)
    else:
        seconds = summary["seconds"]
        note(
            f"{_records(summary['records'])}, {summary['bytes'] / 1e6:,.1f} MB in "
            f"{seconds:.2f} s ({number(summary['records'] / seconds)} records/s, "
            f"{summary['bytes'] / 1e6 / seconds:,.1f} MB/s)"
        )


def _writers(
    topic: str, forms: "Mapping[str, PartFormat | None]", schemas: Mapping[str, Path | None]
) -> "dict[str, ValueWriter]":
    """Who writes keys and values that a schema registry knows."""
    writers = {}
    for part, form in forms.items():
        file = schemas[part]
        if form is not None:
            from tidelog.schemas.values import ValueWriter

            writers[part] = ValueWriter(form, topic, None if file is None else _schema_text(file))
        elif file is not None:
            raise UsageError(f"--{part}-schema needs --{part}-format")
    return writers


def _schema_text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{file} is no UTF-8: {error}") from None


async def _produce(bootstrap: str, plan: ProducePlan) -> dict[str, Any]:
    from tidelog.client.kafka import KafkaClient
    from tidelog.client.producer import Producer
    from tidelog.errors import TidelogError
    from tidelog.records import Codec

    async with KafkaClient(bootstrap) as client:
        topic = await client.topic(plan.topic, create=True)
        _require_partition(plan.topic, plan.partition, len(topic.partitions))
        producer = Producer(
            client, plan.topic, partitions=len(topic.partitions), acks=plan.acks, codec=Codec[plan.codec]
        )
        started = time.perf_counter()
        try:
            try:
                await _feed(producer, plan, len(topic.partitions))
            except UserError:
                await producer.flush()  # what came before a bad line is good
                raise
            await producer.flush()
            if plan.acks == 0:
                await client.settle()
        except TidelogError as error:
            stored = sum(sent.records for sent in producer.sent.values())
            raise UserError(f"{error}; {_records(stored)} stored before that") from None
        finally:
            producer.cancel()
        return {
            "topic": plan.topic,
            "records": sum(sent.records for sent in producer.sent.values()),
            "bytes": sum(sent.bytes for sent in producer.sent.values()),
            "seconds": max(time.perf_counter() - started, 1e-9),
            "partitions": [
                {
                    "partition": partition,
                    "records": sent.records,
                    "first_offset": None if plan.acks == 0 else sent.first_offset,
                    "last_offset": None if plan.acks == 0 else sent.last_offset,
                }
                for partition, sent in sorted(producer.sent.items())
            ],
        }


async def _feed(producer: "Producer", plan: ProducePlan, partitions: int) -> None:
    """Hand every record of the plan to the producer."""
    from tidelog.records import Record

    if plan.tombstone:
        record = Record(key=plan.key, headers=plan.headers, timestamp_ms=time.time_ns() // 1_000_000)
        producer.add(plan.written(record), plan.partition)
    elif plan.values is not None:
        started = time.perf_counter()
        for count, value in enumerate(plan.values, 1):
            _add(producer, plan, value, partitions, "--value", count)
            if plan.rate is not None:
                await _pace(plan.rate, count, started)
            await producer.room()
    else:
        await _feed_lines(producer, plan, partitions)


async def _feed_lines(producer: "Producer", plan: ProducePlan, partitions: int) -> None:
    descriptor, size = _open(plan.file)
    is_typed = os.isatty(descriptor)
    if is_typed and sys.stderr.isatty():
        note("type one record per line; Ctrl-D ends")
    started = time.perf_counter()
    count = 0
    with progress_bar(visible=not is_typed) as progress:
        task = progress.add_task(f"to {plan.topic}", total=size)
        async for line in _lines(descriptor, lambda got: progress.advance(task, got)):
            count += 1
            _add(producer, plan, line, partitions, "line", count)
            if plan.rate is not None:
                await _pace(plan.rate, count, started)
            if not producer.has_room:
                await producer.room()
    if descriptor != 0:
        os.close(descriptor)


def _add(
    producer: "Producer", plan: ProducePlan, line: bytes, partitions: int, what: str, count: int
) -> None:
    """Hand one record over; an error says which line was bad."""
    try:
        record, partition = plan.parse(line, time.time_ns() // 1_000_000)
        if partition is not None:
            _require_partition(plan.topic, partition, partitions)
        record = plan.written(record)
    except UserError as error:
        raise UserError(f"{what} {number(count)}: {error}") from None
    producer.add(record, plan.partition if partition is None else partition)


def _records(count: int) -> str:
    return f"{number(count)} record{'s' * (count != 1)}"


def _require_partition(topic: str, partition: int | None, partitions: int) -> None:
    if partition is not None and not 0 <= partition < partitions:
        raise UserError(f"{topic!r} has no partition {partition}; it has 0 to {partitions - 1}")


async def _pace(rate: float, count: int, started: float) -> None:
    """Wait until `count` records are due at `rate` per second."""
    import asyncio

    await asyncio.sleep(max(0.0, count / rate - (time.perf_counter() - started)))


def _open(file: Path | None) -> tuple[int, int | None]:
    """A descriptor to read from, and how many bytes will come if that is known."""
    descriptor = 0 if file is None or str(file) == "-" else os.open(file, os.O_RDONLY)
    return descriptor, os.fstat(descriptor).st_size or None


async def _lines(descriptor: int, on_bytes: Callable[[int], None]) -> AsyncIterator[bytes]:
    """Every line without its end, as soon as it is there."""
    rest = b""
    while chunk := await _read(descriptor):
        on_bytes(len(chunk))
        *whole, last = chunk.split(b"\n")
        for line in whole:
            yield rest + line if rest else line
            rest = b""
        rest += last
        if len(rest) > LINE_BYTES_MAX:
            raise UserError(f"a line is longer than {number(LINE_BYTES_MAX)} bytes; is it text?")
    if rest:
        yield rest


async def _read(descriptor: int) -> bytes:
    """The next bytes, b"" at the end.

    Read in a thread of its own that nobody waits for, so that Ctrl-C works at a silent terminal.
    """
    import asyncio

    loop = asyncio.get_running_loop()
    chunk: asyncio.Future[bytes] = loop.create_future()

    def deliver(data: bytes, error: OSError | None) -> None:
        if chunk.done():
            return
        if error is not None:
            chunk.set_exception(error)
        else:
            chunk.set_result(data)

    def read() -> None:
        data, failure = b"", None
        try:
            data = os.read(descriptor, CHUNK_BYTES)
        except OSError as error:
            failure = error
        try:
            loop.call_soon_threadsafe(deliver, data, failure)
        except RuntimeError:
            pass  # the loop is gone: the command was interrupted

    threading.Thread(target=read, daemon=True).start()
    return await chunk
