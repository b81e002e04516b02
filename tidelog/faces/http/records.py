"""Records over HTTP: written as JSON or as they are, and read, now or when they come.

Rule 1: a request whose records are not all right writes none of them.
Rule 2: where some partitions took their records and others did not, the answer says so for every
        record.
Rule 3: whoever waits and goes is waited for no more.
Rule 4: a record that its schema does not describe is shown in base64 with the reason, and hides no
        other one.
"""

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Annotated, Any, Final, Literal, TypeAlias, TypeVar

import msgspec

from tidelog.faces.http.api import JSON, Call, Operation, Param, tagged
from tidelog.faces.http.edge.messages import Request, Response
from tidelog.faces.http.guard import refuse_foreign_page
from tidelog.faces.http.pacing import in_turn
from tidelog.faces.http.permissions import on_topic
from tidelog.faces.http.problems import Problem, problem_of
from tidelog.faces.http.schemas import PAGE_BYTES_MAX, Form, PartShower, PartWriters, SchemaDesk, SchemaUsed
from tidelog.faces.http.values import BASE64, SHOWN, TEXT, encode_value, show_value
from tidelog.faces.http.writes import WRITE_PARAMS, wanted_of
from tidelog.records import Record
from tidelog.schemas.problems import DoesNotFit
from tidelog.schemas.table import FORMATS
from tidelog.security.permissions import Operation as Right
from tidelog.services.packing import NewRecord, Outcome, PartlyWritten, Placed
from tidelog.services.records import EARLIEST, MIB, Batches, ReadOutside

T = TypeVar("T")

_CREATES: Final = on_topic(Right.CREATE)[0]
RECORDS_MAX: Final = 10_000
WAIT_MS_MAX: Final = 30_000
RAW: Final = ("text/plain", "application/octet-stream")
NOBODY_READS: Final = 499
"""As other servers note a request whose client has gone."""

_encode: Final = msgspec.json.Encoder().encode


# Shapes.


class HeaderBytes(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The value of a header that is no text."""

    base64: str


HeaderValue: TypeAlias = str | HeaderBytes | list[str | HeaderBytes | None] | None
"""Several, if the record has more than one header of that name."""


class RecordWanted(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, gc=False):
    """A record to be written."""

    value: msgspec.Raw
    """Any JSON, which is stored as its text; or as `encoding` says. Null deletes."""
    key: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    """A string, or as `key_encoding` says."""
    headers: dict[str, HeaderValue] = msgspec.field(default_factory=dict)
    partition: int | None = None
    timestamp_ms: Annotated[int, msgspec.Meta(ge=0, lt=2**62)] | None = None
    encoding: Literal["json", "text", "base64"] | Form = "json"
    """With a format of the schema registry, `value` is JSON, and is written by a schema."""
    key_encoding: Literal["text", "base64"] | Form = "text"
    schema: SchemaUsed | None = None
    """By which schema the value is written, if its encoding has any."""
    key_schema: SchemaUsed | None = None


class RecordsWanted(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Records to be written, all or, within a partition, none."""

    records: Annotated[list[RecordWanted], msgspec.Meta(min_length=1, max_length=RECORDS_MAX)]


class RecordsPlaced(msgspec.Struct, kw_only=True):
    records: list[Placed]
    """In the order of the request."""


class RecordShown(msgspec.Struct, kw_only=True, omit_defaults=True, gc=False):
    """A record as it is read; sent back like this it would be the same bytes."""

    offset: int
    timestamp_ms: int
    key: Any
    value: Any
    headers: dict[str, Any]
    encoding: str
    key_encoding: str = TEXT
    schema: SchemaUsed | None = None
    """What the value was written by, if it was decoded."""
    key_schema: SchemaUsed | None = None
    error: str | None = None
    """Why the value could not be decoded; it is shown in base64."""
    key_error: str | None = None


class RecordsFound(msgspec.Struct, kw_only=True):
    """What a partition has from an offset on."""

    records: list[RecordShown]
    next_offset: int
    """Where to go on."""
    high_watermark: int
    log_start: int


# Writing.


async def write_records(call: Call) -> RecordsPlaced:
    service = call.node.services.records
    if call.body is None:
        records: Sequence[NewRecord] = [await _raw_record(call)]
    else:
        if call["key"] is not None or call["partition"] is not None:
            raise Problem(400, f"key and partition are for a body of {' or '.join(RAW)}")
        wanted: Sequence[RecordWanted] = call.body.records
        if any(one.encoding in FORMATS or one.key_encoding in FORMATS for one in wanted):
            desk = call.keep(SchemaDesk)
            writers = PartWriters(desk, call.path["topic"])
            records = await desk.run(partial(_new_records, wanted, writers))
        else:
            size = len(await call.request.body())
            records = await service.aside(size, partial(_new_records, wanted, None))
    how = wanted_of(call, "records")
    try:
        placed = await service.produce(
            call.path["topic"],
            records,
            once=how.once,
            copies=how.copies,
            seconds_max=how.seconds,
            creates=call.may(_CREATES, call.path["topic"]),
        )
    except PartlyWritten as error:
        raise _partly(error) from error
    return RecordsPlaced(records=placed)


async def _raw_record(call: Call) -> NewRecord:
    # A page may send text without asking first.
    refuse_foreign_page(call.node, call.request)
    key: str | None = call["key"]
    return NewRecord(
        key=None if key is None else key.encode(),
        value=await call.request.body(),
        partition=call["partition"],
    )


def _new_records(wanted: Sequence[RecordWanted], writers: PartWriters | None) -> list[NewRecord]:
    found = []
    for at, one in enumerate(wanted):
        part = "key"
        try:
            key = _encoded(part, one.key, one.key_encoding, one.key_schema, writers)
            part = "value"
            found.append(
                NewRecord(
                    key=key,
                    value=_encoded(part, one.value, one.encoding, one.schema, writers),
                    headers=tuple(_headers(one.headers)),
                    timestamp_ms=one.timestamp_ms,
                    partition=one.partition,
                )
            )
        except Problem as error:
            raise Problem(error.status, f"records[{at}]: {error.detail}") from None
        except DoesNotFit as error:
            raise Problem(422, f"records[{at}].{part}: {error}") from None
    return found


def _encoded(
    part: str,
    value: msgspec.Raw | msgspec.UnsetType,
    encoding: str,
    used: SchemaUsed | None,
    writers: PartWriters | None,
) -> bytes | None:
    if isinstance(value, msgspec.UnsetType):
        return None
    if writers is not None and encoding in FORMATS:
        return writers.encode(part, encoding, used, bytes(value))
    if used is not None:
        raise Problem(400, f"a {part} has a schema if its encoding is {' or '.join(FORMATS)}")
    try:
        return encode_value(value, encoding)
    except Problem as error:
        raise Problem(error.status, error.detail.replace("a value", f"a {part}", 1)) from None


def _headers(wanted: dict[str, HeaderValue]) -> list[tuple[str, bytes | None]]:
    found: list[tuple[str, bytes | None]] = []
    for name, values in wanted.items():
        for value in values if isinstance(values, list) else [values]:
            if isinstance(value, HeaderBytes):
                found.append((name, encode_value(value.base64, BASE64)))
            else:
                found.append((name, encode_value(value, TEXT)))
    return found


def _partly(error: PartlyWritten) -> Problem:
    """The status of the first failure, and what is known of each record."""
    first = problem_of(error.error)
    return Problem(
        first.status,
        str(error),
        headers=first.headers,
        **first.facts | {"records": [_told(one) for one in error.outcomes]},
    )


def _told(outcome: Outcome) -> dict[str, Any]:
    if outcome.error is None:
        return msgspec.to_builtins(outcome.placed)  # type: ignore[no-any-return]
    why = problem_of(outcome.error)
    return {
        "partition": outcome.partition,
        "error": {"status": why.status, "detail": why.detail, **why.facts},
    }


# Reading.


async def read_records(call: Call) -> Response:
    if call["offset"] is not None and call["time_ms"] is not None:
        raise Problem(400, "offset and time_ms both say where to begin; give one of them")
    return await (while_there(call.request, _read(call)) if call["wait_ms"] else _read(call))


async def _read(call: Call) -> Response:
    service = call.node.services.records
    limit, bytes_max = call["limit"], call["max_bytes"]
    formats = {"key": call["key_encoding"], "value": call["encoding"]}
    is_decoded = any(one in FORMATS for one in formats.values())
    if is_decoded:
        bytes_max = min(bytes_max, PAGE_BYTES_MAX)
    try:
        found = await service.read(
            call.path["topic"],
            call.path["partition"],
            offset=EARLIEST if call["offset"] is None else call["offset"],
            time_ms=call["time_ms"],
            wait_seconds=call["wait_ms"] / 1000,
            bytes_max=bytes_max,
            records_max=limit,
            committed_only=call["isolation"] == "committed",
        )
    except ReadOutside as error:
        raise outside(error) from error
    call.judge()  # it may have waited for long
    show = partial(_shown_page, found, limit, bytes_max, call["encoding"])
    if is_decoded:
        desk = call.keep(SchemaDesk)
        parts = {part: PartShower(desk, part, one) for part, one in formats.items() if one in FORMATS}
        return Response(await desk.run(partial(show, parts)), media_type=JSON)
    return Response(await service.aside(len(found.data), show), media_type=JSON)


def outside(error: ReadOutside) -> Problem:
    why = problem_of(error)
    return Problem(
        why.status, why.detail, log_start=error.log_start, high_watermark=error.high_watermark, **why.facts
    )


def _shown_page(
    found: Batches, limit: int, bytes_max: int, encoding: str, parts: Mapping[str, PartShower] | None = None
) -> bytes:
    records, next_offset = found.unpack(limit, bytes_max)
    return _encode(
        RecordsFound(
            records=[RecordShown(**show_record(record, encoding, parts)) for record in records],
            next_offset=next_offset,
            high_watermark=found.high_watermark,
            log_start=found.log_start,
        )
    )


def show_record(
    record: Record, encoding: str, parts: Mapping[str, PartShower] | None = None
) -> dict[str, Any]:
    """The fields of a `RecordShown`; `parts` decode keys and values by their schemas."""
    key, key_encoding = show_value(record.key, TEXT)
    value, value_encoding = show_value(record.value, encoding)
    found = {
        "offset": record.offset,
        "timestamp_ms": record.timestamp_ms,
        "key": key,
        "value": value,
        "headers": _show_headers(record),
        "encoding": value_encoding,
        "key_encoding": BASE64 if key_encoding == BASE64 else TEXT,
    }
    for part, shower in (parts or {}).items():
        before = "key_" if part == "key" else ""
        shown, made, used, error = shower.show(getattr(record, part))
        if shown is None and part == "key":
            made = TEXT
        found |= {part: shown, f"{before}encoding": made, f"{before}schema": used}
        found |= {f"{before}error": error}
    return found


def _show_headers(record: Record) -> dict[str, Any]:
    shown: dict[str, Any] = {}
    several = set()
    for name, data in record.headers:
        value, encoding = show_value(data, TEXT)
        if encoding == BASE64:
            value = HeaderBytes(base64=value)
        if name not in shown:
            shown[name] = value
        elif name in several:
            shown[name].append(value)
        else:
            several.add(name)
            shown[name] = [shown[name], value]
    return shown


async def while_there(request: Request, work: Coroutine[Any, Any, T]) -> T | Response:
    """What `work` answers; if its client goes first, it is cancelled, and nobody reads this."""
    loop = asyncio.get_running_loop()
    working, leaving = loop.create_task(in_turn(work)), loop.create_task(request.gone())
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if working.done() or leaving.exception() is not None:
            return await working
        return Response(status_code=NOBODY_READS)
    finally:
        for task in (working, leaving):
            task.cancel()
        with suppress(asyncio.CancelledError, Exception):
            await asyncio.gather(working, leaving, return_exceptions=True)


_TOPIC_UNKNOWN: Final = {404: "There is no such topic."}

DECODED: Final = Param(
    name="encoding",
    choices=(*SHOWN, *FORMATS),
    default="auto",
    doc="How values are shown: as JSON if they are, else as text if they are, else in base64; "
    "`text` shows JSON as text, too. Each record says which it is. With a format of the schema "
    "registry values are decoded; one that cannot be is shown in base64, with `error`.",
)
KEYS_DECODED: Final = Param(
    name="key_encoding",
    choices=(TEXT, *FORMATS),
    default=TEXT,
    doc="How keys are shown: as text if they are, else in base64; or decoded, as values are.",
)

OPERATIONS: Final = tagged(
    "records",
    Operation(
        "POST",
        "/v1/topics/{topic}/records",
        write_records,
        "Write records, or one record whose value is the body.",
        body=RecordsWanted,
        raw_body=RAW,
        params=(
            Param(name="key", doc="Of the one record, if the body is its value."),
            Param(name="partition", kind=int, least=0, doc="Of the one record, if the body is its value."),
            *WRITE_PARAMS,
        ),
        errors=_TOPIC_UNKNOWN
        | {
            413: "What goes to one partition is more than `max.message.bytes`.",
            422: "The Idempotency-Key was used for another request; or a key or a value does "
            "not fit its schema.",
        },
        needs=on_topic(Right.WRITE),
    ),
    Operation(
        "GET",
        "/v1/topics/{topic}/partitions/{partition:int}/records",
        read_records,
        "Read records of a partition, and wait for them if there are none.",
        answer=RecordsFound,
        params=(
            Param(name="offset", kind=int, least=0, doc="The first wanted; the log's start."),
            Param(name="time_ms", kind=int, least=0, doc="Begin with the first since then."),
            Param(name="limit", kind=int, default=100, least=1, most=RECORDS_MAX, doc="How many at most."),
            Param(
                name="wait_ms",
                kind=int,
                default=0,
                least=0,
                most=WAIT_MS_MAX,
                doc="How long to wait if there is none.",
            ),
            Param(
                name="max_bytes",
                kind=int,
                default=MIB,
                least=1,
                most=16 * MIB,
                doc="How many bytes of keys and values at most, but for a first record.",
            ),
            DECODED,
            KEYS_DECODED,
            Param(
                name="isolation",
                choices=("committed", "uncommitted"),
                default="committed",
                doc="Whether records of open and aborted transactions are left out.",
            ),
        ),
        errors={
            404: "There is no such partition.",
            416: "The log does not hold the offset; `log_start` and `high_watermark` are told.",
        },
        needs=on_topic(Right.READ),
    ),
)
