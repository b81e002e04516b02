"""Records as lines, and lines as records.

Rule 1: what `consume --format X` writes, `produce --format X` reads back as the same bytes.
Rule 2: in JSON, bytes that are UTF-8 are a string; others are {"base64": "..."}; null is null.
"""

# json line := {"key": bytes?, "value": bytes?, "headers": [{"key": string, "value": bytes?}*],
#               "topic", "partition", "offset", "timestamp"}
#              In input every field may be missing, `topic` and `offset` are ignored, and a value
#              that is neither string nor null nor base64 is stored as its JSON text.

import base64
import binascii
import json
from collections.abc import Callable, Sequence
from typing import Any

from tidelog.faces.cli.common import Format, UserError
from tidelog.model import NO_TIMESTAMP
from tidelog.records import Record

JSON_FIELDS = frozenset({"topic", "partition", "offset", "timestamp", "key", "value", "headers"})


def line_parser(
    form: Format, *, key: bytes | None, separator: bytes | None, headers: Sequence[tuple[str, bytes]]
) -> Callable[[bytes, int], tuple[Record, int | None]]:
    """What makes a record of a line and the time now, and says the partition if the line does."""

    def parse(line: bytes, now_ms: int) -> tuple[Record, int | None]:
        line_key = key
        if separator is not None:
            text, found, line = line.partition(separator)
            if not found:
                shown = separator.decode("utf-8", "replace")
                raise UserError(f"there is no {shown!r} between key and value")
            line_key = decode_text(text, form)
        value = decode_text(line, form)
        return Record(key=line_key, value=value, headers=headers, timestamp_ms=now_ms), None

    def parse_json(line: bytes, now_ms: int) -> tuple[Record, int | None]:
        return record_from_json(line, key=key, headers=headers, now_ms=now_ms)

    return parse_json if form is Format.JSON else parse


def decode_text(text: bytes, form: Format) -> bytes:
    """The bytes that a piece of a line stands for."""
    try:
        if form is Format.HEX:
            return bytes.fromhex(text.decode("ascii"))
        if form is Format.BASE64:
            return base64.b64decode(text.strip(), validate=True)
    except (ValueError, binascii.Error):
        shown = text[:40].decode("utf-8", "replace")
        raise UserError(f"{shown!r} is not {form.value}; fix it or choose another --format") from None
    return text


def encode_text(data: bytes | None, form: Format) -> bytes:
    """A key or value for a line; null is empty, as Kafka's console tools have it."""
    if data is None:
        return b""
    if form is Format.HEX:
        return data.hex().encode()
    if form is Format.BASE64:
        return base64.b64encode(data)
    return data


def record_from_json(
    line: bytes, *, key: bytes | None, headers: Sequence[tuple[str, bytes]], now_ms: int
) -> tuple[Record, int | None]:
    """The record in a line of JSON, and its partition if it names one."""
    try:
        fields = json.loads(line)
    except ValueError as error:
        raise UserError(f"it is not JSON: {error}") from None
    if not isinstance(fields, dict):
        raise UserError('it must be an object such as {"key": "k", "value": "v"}')
    if unknown := sorted(fields.keys() - JSON_FIELDS):
        known = ", ".join(sorted(JSON_FIELDS))
        raise UserError(f"there is no field {unknown[0]!r}; there are {known}")
    timestamp = fields.get("timestamp")
    partition = fields.get("partition")
    for name, value in (("timestamp", timestamp), ("partition", partition)):
        if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
            raise UserError(f"{name} is {value!r}; it must be a whole number")
    record = Record(
        key=_from_json(fields["key"]) if "key" in fields else key,
        value=_from_json(fields.get("value")),
        headers=(*headers, *_headers_from_json(fields.get("headers"))),
        timestamp_ms=now_ms if timestamp in (None, NO_TIMESTAMP) else timestamp,
    )
    return record, partition


def record_to_json(record: Record, topic: str, partition: int) -> dict[str, Any]:
    return {
        "topic": topic,
        "partition": partition,
        "offset": record.offset,
        "timestamp": record.timestamp_ms,
        "key": _to_json(record.key),
        "value": _to_json(record.value),
        "headers": [{"key": name, "value": _to_json(value)} for name, value in record.headers],
    }


def _headers_from_json(headers: Any) -> list[tuple[str, bytes | None]]:
    if headers is None:
        return []
    if isinstance(headers, dict):
        return [(name, _from_json(value)) for name, value in headers.items()]
    try:
        return [(str(header["key"]), _from_json(header["value"])) for header in headers]
    except (TypeError, KeyError):
        raise UserError('headers must be {"k": "v"} or [{"key": "k", "value": "v"}]') from None


def _from_json(value: Any) -> bytes | None:
    if value is None:
        return None
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, dict) and value.keys() == {"base64"}:
        return decode_text(str(value["base64"]).encode(), Format.BASE64)
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def _to_json(data: bytes | None) -> Any:
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}
