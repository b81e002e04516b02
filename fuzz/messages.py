"""Requests of every API and version, valid in shape and odd in content."""

import dataclasses
import datetime
import functools
import struct
import typing
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Final
from uuid import UUID

from fuzz.batches import NOW_MS, any_batch
from fuzz.mutate import NUMBERS
from tidelog.config import TOPIC_SETTINGS
from tidelog.wire.apis import APIS, Api
from tidelog.wire.entities import encode, request_entity, request_type

GOOD_NAMES: Final = ("plain", "plain", "stamped")
ODD_NAMES: Final = (
    "fresh",
    "new-1",
    "new.1",
    "new_1",
    "",
    ".",
    "..",
    "a b",
    "__cluster_metadata",
    "__consumer_offsets",
    "\N{SNOWMAN}",
    "../escape",
    "x" * 249,
    "x" * 250,
    "\0" * 40,
    "y" * 32_767,
)
ODD: Final = 0.07
"""How often a field of a request holds something that nobody sane would send."""

_OFTEN: Final = {Api.PRODUCE: 6.0, Api.FETCH: 4.0, Api.LIST_OFFSETS: 3.0, Api.DELETE_TOPICS: 0.3}


@dataclass(frozen=True, slots=True)
class Pool:
    """What exists on the node that the requests are for."""

    topic_ids: Sequence[UUID]


def any_version(random: Random) -> tuple[Api, int]:
    (api,) = random.choices(list(APIS), [_OFTEN.get(api, 1.0) for api in APIS])
    return api, random.randint(APIS[api].taken_from, APIS[api].most)


def header(api: int, version: int, correlation_id: int = 1, client: bytes | None = b"fuzz") -> bytes:
    """A request's header, tags included where the version has them."""
    head = struct.pack(">hhih", api, version, correlation_id, -1 if client is None else len(client))
    known = {key.value: versions for key, versions in APIS.items()}.get(api)
    tags = b"\0" if known is not None and version >= known.flexible_from else b""
    return head + (client or b"") + tags


def random_body(random: Random, api: Api, version: int, pool: Pool) -> bytes:
    """A request that its reader accepts."""
    return encode(_entity(random, _request_schema(api, version), pool))


def simple_produce(random: Random, version: int, pool: Pool) -> bytes:
    """A Produce of one batch to one partition, as most are, and mostly like the one before."""
    fields = {
        "acks": random.choice((-1, -1, -1, -1, 1, 0)),
        "timeout": 1000,
        "topic_data": [
            {
                "name": "plain",
                "topic_id": pool.topic_ids[0],
                "partition_data": [{"index": random.choice((0, 0, 0, 1, 9)), "records": any_batch(random)}],
            }
        ],
    }
    return encode(request_entity(Api.PRODUCE, version, fields))


@functools.cache
def _request_schema(api: int, version: int) -> Any:
    return request_type(api, version)


@functools.cache
def _fields(schema: Any) -> list[tuple[Any, Any]]:
    hints = typing.get_type_hints(schema)
    return [(field, hints[field.name]) for field in dataclasses.fields(schema)]


def _entity(random: Random, schema: Any, pool: Pool) -> Any:
    return schema(
        **{
            field.name: _value(random, field, hint, pool)
            for field, hint in _fields(schema)
            if "tag" not in field.metadata or random.random() < 0.2
        }
    )


def _value(random: Random, field: "dataclasses.Field[Any]", hint: Any, pool: Pool) -> Any:
    arguments = typing.get_args(hint)
    nullable = type(None) in arguments
    if nullable and (random.random() < ODD or field.name in _USUALLY_NULL):
        return None
    if nullable:
        hint = next(argument for argument in arguments if argument is not type(None))
    if typing.get_origin(hint) is tuple:
        item = typing.get_args(hint)[0]
        counts = (0, 0, 0, 1) if field.name in _USUALLY_EMPTY else (1, 1, 1, 1, 2, 3, 0)
        return tuple(_value(random, field, item, pool) for _ in range(random.choice(counts)))
    if dataclasses.is_dataclass(hint):
        return _entity(random, hint, pool)
    return _primitive(random, field.name, str(field.metadata["kafka_type"]), pool)


_USUALLY_NULL: Final = ("transactional_id", "cluster_id", "assignments")
_USUALLY_EMPTY: Final = ("forgotten_topics_data", "configs", "assignments")


def _primitive(random: Random, name: str, kafka_type: str, pool: Pool) -> Any:
    odd = random.random() < ODD
    match kafka_type:
        case "string":
            return _text(random, name, odd)
        case "bool":
            return random.random() < 0.5
        case "uuid":
            return random.choice((UUID(int=1), UUID(int=99)) if odd else pool.topic_ids)
        case "records" | "bytes":
            return any_batch(random)
        case "timedelta_i32" | "timedelta_i64":
            waits_ms = (-1, 2**31 - 1, -(2**31), 5000) if odd else (0, 0, 1, 10, 500)
            return datetime.timedelta(milliseconds=random.choice(waits_ms))
        case _:
            bits = int(kafka_type.strip("uint"))
            value = random.choice(NUMBERS) if odd else _number(random, name)
            if kafka_type.startswith("u"):
                return max(0, min(value, 2**bits - 1))
            return max(-(2 ** (bits - 1)), min(value, 2 ** (bits - 1) - 1))


def _text(random: Random, name: str, odd: bool) -> str:
    if name == "value":
        return random.choice(("", "-1", "9" * 400, "\0" * 9000, "fsync") if odd else ("1", "100"))
    if name == "name" and random.random() < 0.2:  # of a config, or of a topic to be made
        return random.choice((*TOPIC_SETTINGS, "fresh", "z" * 32_767))
    return random.choice(ODD_NAMES if odd else GOOD_NAMES)


def _number(random: Random, name: str) -> int:
    """A number such as a client sends in this field."""
    match name:
        case "acks":
            return random.choice((-1, -1, 1, 0))
        case "session_id":
            return random.choice((0, 0, 1, 2, 3, 4, 5, 6))
        case "session_epoch":
            return random.choice((-1, -1, 0, 0, 1, 1, 2, 3))
        case "count" | "num_partitions":
            return random.choice((-1, 1, 2, 3, 4, 5))
        case "replication_factor" | "broker_ids":
            return random.choice((-1, 1, 1, 1))
        case "partition" | "partition_index" | "index" | "partition_indexes" | "partitions":
            return random.choice((0, 0, 0, 1, 2))
        case "isolation_level":
            return random.choice((0, 1))
    if "offset" in name:
        return random.choice((0, 0, 0, 1, 2, 5, 10, -1))
    if "timestamp" in name:
        return random.choice((-1, -2, -3, -4, 0, 1, NOW_MS - 10, NOW_MS, NOW_MS + 5000))
    if "bytes" in name:
        return random.choice((1, 100, 4096, 2**20, 2**31 - 1))
    if name == "leader_epoch":
        return random.choice((-1, 0, 1))
    return -1  # replica ids, epochs, producer ids: unknown
