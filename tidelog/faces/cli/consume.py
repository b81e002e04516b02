"""`tidelog consume`: records out, as lines."""

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from tidelog.faces.cli.common import (
    DEFAULT_BOOTSTRAP,
    Bootstrap,
    Format,
    UsageError,
    UserError,
    note,
    number,
    run,
    standard_output,
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
    from tidelog.client.consumer import Consumer
    from tidelog.client.kafka import KafkaClient
    from tidelog.records import Record
    from tidelog.schemas.values import ValueReader

OFFSET_OUT_OF_RANGE: Final = 1
POLL_MS: Final = 500


class Isolation(StrEnum):
    UNCOMMITTED = "read_uncommitted"
    COMMITTED = "read_committed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Where reading begins; at most one is set, none means at the end."""

    beginning: bool = False
    offset: int | None = None
    timestamp_ms: int | None = None
    tail: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumePlan:
    """What the options ask for."""

    topic: str
    partitions: tuple[int, ...]
    start: Start
    count_max: int | None
    follow: bool
    timeout_seconds: float | None
    read_committed: bool
    show: "Show"


@dataclass(frozen=True, slots=True, kw_only=True)
class Show:
    """What a record's line holds, in this order, separated by tabs."""

    form: Format
    timestamp: bool = False
    offset: bool = False
    headers: bool = False
    key: bool = False
    to_terminal: bool = False
    readers: "Mapping[str, ValueReader]" = field(default_factory=dict)
    """Of keys and values that a schema registry knows."""

    def line(self, record: "Record", topic: str, partition: int) -> bytes:
        if self.readers:
            try:
                return self._line(self._read(record), topic, partition)
            except SchemaProblem as problem:
                raise UserError(f"{topic}-{partition} at {record.offset}: {problem}") from None
        return self._line(record, topic, partition)

    def _read(self, record: "Record") -> "Record":
        texts: dict[str, Any] = {
            part: reader.text_of(getattr(record, part)) for part, reader in self.readers.items()
        }
        return replace(record, **texts)

    def _line(self, record: "Record", topic: str, partition: int) -> bytes:
        from tidelog.faces.cli.lines import encode_text, record_to_json

        if self.form is Format.JSON:
            import json

            document = record_to_json(record, topic, partition)
            texts = {name: json.dumps(one, ensure_ascii=False) for name, one in document.items()}
            for part in self.readers:  # JSON already, whose digits are kept
                text = getattr(record, part)
                texts[part] = "null" if text is None else text.decode()
            members = ", ".join(f'"{name}": {text}' for name, text in texts.items())
            return f"{{{members}}}\n".encode()
        parts = []
        if self.timestamp:
            parts.append(_iso(record.timestamp_ms).encode())
        if self.offset:
            parts.append(b"%d:%d" % (partition, record.offset))
        if self.headers:
            parts.append(
                b",".join(
                    name.encode() + b"=" + encode_text(value, self.form) for name, value in record.headers
                )
            )
        if self.key:
            parts.append(encode_text(record.key, self.form))
        parts.append(encode_text(record.value, self.form))
        line = b"\t".join(parts)
        return (_visible(line) if self.to_terminal else line) + b"\n"


def consume(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Topic to read.", autocompletion=topic_names)],
    partition: Annotated[
        list[int] | None,
        typer.Option("--partition", metavar="N", min=0, help="Read only this partition; repeatable."),
    ] = None,
    from_beginning: Annotated[
        bool, typer.Option("--from-beginning", help="Start with the oldest record.")
    ] = False,
    offset: Annotated[
        int | None, typer.Option("--offset", metavar="N", min=0, help="Start at this offset.")
    ] = None,
    timestamp: Annotated[
        str | None,
        typer.Option(
            "--timestamp",
            metavar="MS|ISO",
            help="Start at a time: milliseconds since 1970, or 2025-01-31T12:00 (UTC unless it "
            "names a zone).",
        ),
    ] = None,
    tail: Annotated[
        int | None,
        typer.Option("--tail", metavar="N", min=0, help="Start N records before the end of each partition."),
    ] = None,
    count_max: Annotated[
        int | None, typer.Option("--max", metavar="N", min=1, help="Stop after N records.")
    ] = None,
    follow: Annotated[
        bool,
        typer.Option(
            "--follow/--no-follow", help="Wait for new records, or stop at the present end of the log."
        ),
    ] = True,
    group: Annotated[
        str,
        typer.Option(
            "--group",
            metavar="G",
            help="Read as a member of this consumer group: continue from its offsets, share partitions "
            "with its other members, commit what was printed.",
        ),
    ] = "",
    timeout: Annotated[
        float | None,
        typer.Option("--timeout", metavar="S", min=0, help="Stop after S seconds without a record."),
    ] = None,
    form: Annotated[Format, typer.Option("--format", help="Output format of keys and values.")] = Format.TEXT,
    show_key: Annotated[bool, typer.Option("--show-key", help="Print keys.")] = False,
    show_headers: Annotated[bool, typer.Option("--show-headers", help="Print headers.")] = False,
    show_offset: Annotated[bool, typer.Option("--show-offset", help="Print partition:offset.")] = False,
    show_timestamp: Annotated[bool, typer.Option("--show-timestamp", help="Print timestamps.")] = False,
    isolation: Annotated[
        Isolation,
        typer.Option("--isolation", help="Whether records of open and aborted transactions are shown."),
    ] = Isolation.UNCOMMITTED,
    value_format: ValueFormat = BYTES,
    key_format: KeyFormat = BYTES,
    schema_registry: SchemaRegistry = "",
    schema_registry_user: SchemaRegistryUser = "",
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON document per line and record, as --format json.")
    ] = False,
) -> None:
    """Read records and print one per line.

    Starts with the next record that is written; with --no-follow, with the
    oldest. With --group, this applies to partitions without a committed offset.
    Values are printed as they are, except that a terminal gets control characters
    in a visible form. With --max and --timeout together, fewer records than --max
    are a failure.

    \b
    Examples:
      tidelog consume orders
      tidelog consume orders --from-beginning --max 10
      tidelog consume orders --tail 5 --show-key --show-offset
      tidelog consume orders --group billing --from-beginning
      tidelog consume orders --timestamp 2025-01-31T12:00 --no-follow --json
      tidelog consume orders --value-format avro --schema-registry http://127.0.0.1:8081
    """
    starts = (from_beginning, offset is not None, timestamp is not None, tail is not None)
    if sum(starts) > 1:
        raise UsageError("--from-beginning, --offset, --timestamp, --tail: keep one of them")
    if group and (partition or any(starts[1:])):
        raise UsageError(
            "--group goes on where the group is: leave out --partition, --offset, --timestamp, "
            "--tail, or move the group with `tidelog groups reset`"
        )
    plan = ConsumePlan(
        topic=topic,
        partitions=tuple(sorted(set(partition or ()))),
        start=Start(
            beginning=from_beginning or (not follow and not any(starts)),
            offset=offset,
            timestamp_ms=None if timestamp is None else parse_time(timestamp),
            tail=tail,
        ),
        count_max=count_max,
        follow=follow,
        timeout_seconds=timeout,
        read_committed=isolation is Isolation.COMMITTED,
        show=Show(
            form=Format.JSON if as_json else form,
            timestamp=show_timestamp,
            offset=show_offset,
            headers=show_headers,
            key=show_key,
            to_terminal=sys.stdout.isatty(),
            readers=value_readers(key_format, value_format, schema_registry, schema_registry_user),
        ),
    )
    if group:
        from tidelog.faces.cli.consume_group import consume_in_group

        count = run(consume_in_group(bootstrap, plan, group))
    else:
        count = run(_consume(bootstrap, plan))
    if count_max is not None and count < count_max and timeout is not None:
        raise UserError(
            f"only {number(count)} of {number(count_max)} records came before {timeout:g} s of silence"
        )


def value_readers(key: str, value: str, url: str, user: str) -> "Mapping[str, ValueReader]":
    forms = {"key": part_format("key", key, url, user), "value": part_format("value", value, url, user)}
    found = {part: form for part, form in forms.items() if form is not None}
    if not found:
        return {}
    from tidelog.schemas.values import ValueReader

    return {part: ValueReader(form) for part, form in found.items()}


async def _consume(bootstrap: str, plan: ConsumePlan) -> int:
    """Print records until the plan is done; return how many."""
    from tidelog.client.consumer import Consumer
    from tidelog.client.kafka import KafkaClient

    async with KafkaClient(bootstrap) as client:
        positions, ends = await find_start(client, plan)
        consumer = Consumer(client, plan.topic, positions, read_committed=plan.read_committed)
        out = standard_output()
        count = 0
        heard = time.monotonic()
        while True:
            if not plan.follow:
                for partition in [one for one, at in consumer.positions.items() if at >= ends[one]]:
                    del consumer.positions[partition]
            if not consumer.positions:
                return count
            for partition, records in await poll(client, consumer, plan, heard):
                heard = time.monotonic()
                for record in records:
                    if plan.follow or record.offset < ends[partition]:
                        try:
                            out.write(plan.show.line(record, plan.topic, partition))
                        except UserError:
                            out.flush()  # what came before it was read
                            raise
                        count += 1
                    if count == plan.count_max:
                        out.flush()
                        return count
            out.flush()
            silent = time.monotonic() - heard
            if plan.timeout_seconds is not None and silent >= plan.timeout_seconds:
                return count


async def poll(
    client: "KafkaClient", consumer: "Consumer", plan: ConsumePlan, heard: float
) -> "list[tuple[int, list[Record]]]":
    """The next records; where retention was faster than we are, go on at the oldest one left."""
    from tidelog.client.cluster import Refused
    from tidelog.client.kafka import EARLIEST

    wait_ms = POLL_MS
    if plan.timeout_seconds is not None:
        left = plan.timeout_seconds - (time.monotonic() - heard)
        wait_ms = max(1, min(POLL_MS, int(left * 1000)))
    try:
        return await consumer.poll(wait_ms_max=wait_ms)
    except Refused as error:
        if error.code != OFFSET_OUT_OF_RANGE:
            raise
    earliest = await client.list_offsets(plan.topic, dict.fromkeys(consumer.positions, EARLIEST))
    moved = {
        partition: found.offset
        for partition, found in earliest.items()
        if found.offset > consumer.positions[partition]
    }
    if not moved:
        raise UserError(f"{plan.topic}: the log ends before what was read; was the topic remade?")
    for partition, start in moved.items():
        lost = start - consumer.positions[partition]
        note(f"{plan.topic}-{partition}: {number(lost)} records were deleted before they were read")
        consumer.positions[partition] = start
    return []


async def find_start(client: "KafkaClient", plan: ConsumePlan) -> tuple[dict[int, int], dict[int, int]]:
    """Where each partition's reading begins, and where its log ends now."""
    from tidelog.client.kafka import EARLIEST, LATEST

    topic = await client.topic(plan.topic)
    known = [partition.partition for partition in topic.partitions]
    for partition in plan.partitions:
        if partition not in known:
            raise UserError(f"{plan.topic!r} has no partition {partition}; it has 0 to {known[-1]}")
    wanted: Sequence[int] = plan.partitions or known

    async def offsets(time_ms: int) -> dict[int, int]:
        times = dict.fromkeys(wanted, time_ms)
        found = await client.list_offsets(plan.topic, times, read_committed=plan.read_committed)
        return {partition: one.offset for partition, one in found.items()}

    earliest, latest = await offsets(EARLIEST), await offsets(LATEST)
    start = plan.start
    if start.beginning:
        return earliest, latest
    if start.offset is not None:
        return _at_offset(plan, start.offset, earliest, latest), latest
    if start.timestamp_ms is not None:
        found = await offsets(start.timestamp_ms)
        return {one: at if at >= 0 else latest[one] for one, at in found.items()}, latest
    tail = start.tail or 0
    return {one: max(earliest[one], at - tail) for one, at in latest.items()}, latest


def _at_offset(
    plan: ConsumePlan, offset: int, earliest: dict[int, int], latest: dict[int, int]
) -> dict[int, int]:
    if len(latest) > 1:
        raise UserError(
            f"{plan.topic!r} has {len(latest)} partitions; say with --partition which one "
            "--offset is meant for"
        )
    for partition, end in latest.items():
        if not earliest[partition] <= offset <= end:
            raise UserError(
                f"{plan.topic}-{partition} holds offsets {earliest[partition]} to {end}; "
                f"{offset} is not among them"
            )
    return dict.fromkeys(latest, offset)


def parse_time(text: str, option: str = "--timestamp") -> int:
    """Milliseconds since 1970, from themselves or from an ISO date and time."""
    if text.isdigit():
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(
            f"{option} {text!r} is neither milliseconds nor a time such as 2025-01-31T12:00"
        ) from None
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


def _iso(timestamp_ms: int) -> str:
    """A record's time; the number itself where no calendar has it."""
    try:
        moment = datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return str(timestamp_ms)
    return moment.isoformat(timespec="milliseconds")


def _visible(line: bytes) -> bytes:
    """Bytes for a terminal: text as it is, what the terminal would obey made visible."""
    text = line.decode("utf-8", "backslashreplace")
    return "".join(
        character
        if character.isprintable() or character == "\t"
        else character.encode("unicode_escape").decode()
        for character in text
    ).encode()
