"""Every API in every version: cut off, continued, and with lengths that lie."""

import struct
from random import Random
from typing import Any
from uuid import UUID

import pytest

from fuzz.messages import Pool, random_body
from tests.faces.arena import Arena
from tests.faces.raw import RawClient, body, fetch_fields, framed, header, produce_fields
from tidelog.records import Record, encode_batch
from tidelog.wire.apis import APIS, Api

CUTS_MAX = 14
LIES_MAX = 10
BATCH = bytes(encode_batch([Record(value=b"never stored", timestamp_ms=1)]))

PARTITION = {
    "partition_index": 0,
    "partition": 0,
    "timestamp": -1,
    "offset": 0,
    "leader_epoch": 0,
    "current_leader_epoch": -1,
}
FIELDS: dict[Api, dict[str, Any]] = {
    Api.PRODUCE: produce_fields(BATCH, "no-such-topic"),
    Api.FETCH: fetch_fields("no-such-topic"),
    Api.LIST_OFFSETS: {"replica_id": -1, "topics": [{"name": "no-such-topic", "partitions": [PARTITION]}]},
    Api.METADATA: {"topics": [{"name": "no-such-topic"}, {"name": "nor-this"}]},
    Api.API_VERSIONS: {"client_software_name": "raw", "client_software_version": "1"},
    Api.CREATE_TOPICS: {
        "topics": [
            {
                "name": "a/b",
                "num_partitions": 1,
                "replication_factor": 1,
                "assignments": [{"partition_index": 0, "broker_ids": [1]}],
                "configs": [{"name": "retention.ms", "value": "1"}],
            }
        ]
    },
    Api.DELETE_TOPICS: {
        "topic_names": ["no-such-topic"],
        "topics": [{"name": "no-such-topic", "topic_id": None}],
    },
    Api.DELETE_RECORDS: {"topics": [{"name": "no-such-topic", "partitions": [PARTITION]}]},
    Api.INIT_PRODUCER_ID: {"transactional_id": None, "producer_id": -1, "producer_epoch": -1},
    Api.OFFSET_FOR_LEADER_EPOCH: {
        "replica_id": -1,
        "topics": [{"topic": "no-such-topic", "partitions": [PARTITION]}],
    },
    Api.CREATE_PARTITIONS: {
        "topics": [{"name": "no-such-topic", "count": 2, "assignments": [{"broker_ids": [1]}]}]
    },
    Api.DESCRIBE_CLUSTER: {},
}

each_api = pytest.mark.parametrize("api", APIS, ids=lambda api: api.title)


def versions(api: Api) -> range:
    return range(APIS[api].taken_from, APIS[api].most + 1)


def valid_body(api: Api, version: int) -> bytes:
    """A body with something in every field, though it may ask for things that are not done."""
    if api in FIELDS:
        return body(api, version, FIELDS[api])
    return random_body(Random(f"{api} {version}"), api, version, Pool([UUID(int=9)]))


def is_answered_or_closed(client: RawClient) -> bool:
    """Whether either happens in time; which of them, depends on what the bytes now say."""
    client.read_frame()
    return True


@each_api
def test_every_version_is_answered_when_it_is_whole(arena: Arena, api: Api) -> None:
    client = arena.connect()
    for version in versions(api):
        client.ask(api, version, FIELDS.get(api, {}))


@each_api
def test_a_body_that_is_cut_off_closes_the_connection(arena: Arena, api: Api) -> None:
    random = Random(api)
    for version in versions(api):
        head, whole = header(api, version), valid_body(api, version)
        lengths = range(len(whole))
        for length in sorted(random.sample(lengths, min(CUTS_MAX, len(whole)))):
            client = arena.connect()

            client.send(framed(head + whole[:length]))

            assert client.is_closed(), (version, length, whole)


@each_api
def test_bytes_behind_a_body_are_passed_over_or_close_the_connection(arena: Arena, api: Api) -> None:
    for version in versions(api):
        for more in (b"\0", b"\xff\xff\xff", bytes(1000)):
            client = arena.connect()

            client.send(framed(header(api, version) + body(api, version, FIELDS.get(api, {})) + more))

            assert is_answered_or_closed(client)


@each_api
def test_a_length_that_lies_does_no_harm(arena: Arena, api: Api) -> None:
    random = Random(api)
    for version in versions(api):
        whole = body(api, version, FIELDS.get(api, {}))
        for _ in range(LIES_MAX if whole else 0):
            at = random.randrange(len(whole))
            lie = random.choice(
                (
                    struct.pack(">i", 2**31 - 1),
                    struct.pack(">i", -(2**31)),
                    b"\x7f\xff",
                    b"\x80\x00",
                    b"\xff\xff\xff\xff\x0f",
                    b"\xff\xff\xff\xff\x07",
                    b"\xff" * 10,
                    b"\x00\x10\x00\x00",
                    b"\x80\x80\x40",
                )
            )
            client = arena.connect()

            client.send(framed(header(api, version) + whole[:at] + lie + whole[at + len(lie) :]))

            assert is_answered_or_closed(client)
            client.close()


@pytest.mark.parametrize(
    "count",
    [b"\xff\xff\xff\xff\x0f", b"\xff\xff\xff\xff\x07", b"\xff\xff\xff\x7f", b"\x81\x80\x40"],
    ids=["4294967294", "2147483646", "268435454", "1048576"],
)
def test_an_array_cannot_claim_more_items_than_there_are_bytes(arena: Arena, count: bytes) -> None:
    for version in range(APIS[Api.METADATA].flexible_from, APIS[Api.METADATA].most + 1):
        client = arena.connect()

        client.send(framed(header(Api.METADATA, version) + count + b"\0\0\0\0"))

        assert client.is_closed()


@pytest.mark.parametrize("count", [2**31 - 1, 2**30, 10**6, -2, -(2**31)])
def test_an_array_of_an_older_version_cannot_claim_more_either(arena: Arena, count: int) -> None:
    for version in range(APIS[Api.METADATA].flexible_from):
        client = arena.connect()

        client.send(framed(header(Api.METADATA, version) + struct.pack(">i", count) + b"\0"))

        assert client.is_closed()


def test_a_request_of_millions_of_empty_items_is_refused(arena: Arena) -> None:
    """Two bytes each on the wire, a hundred in memory."""
    count = 2_000_000
    for payload in (
        header(Api.METADATA, 9) + b"\x81\x89\x7a" + b"\1\0" * count + bytes(4),
        header(Api.PRODUCE, 9) + b"\0\0\1\0\0\0\1\x81\x89\x7a" + b"\1\1\0" * count + b"\0",
        header(Api.DELETE_TOPICS, 1) + struct.pack(">i", count) + b"\0\0" * count + bytes(4),
    ):
        client = arena.connect()

        client.send(framed(payload))

        assert client.is_closed()


def test_a_null_where_there_is_none_closes_the_connection(arena: Arena) -> None:
    for version in versions(Api.LIST_OFFSETS):
        flexible = version >= APIS[Api.LIST_OFFSETS].flexible_from
        isolation = b"\0" if version >= 2 else b""
        null = b"\0\0" if flexible else b"\xff\xff\xff\xff"
        client = arena.connect()

        replica = struct.pack(">i", -1)
        client.send(framed(header(Api.LIST_OFFSETS, version) + replica + isolation + null))

        assert client.is_closed(), version


def test_text_that_is_not_utf_8_closes_the_connection(arena: Arena) -> None:
    for api in (Api.METADATA, Api.DELETE_TOPICS, Api.CREATE_PARTITIONS, Api.PRODUCE):
        for version in versions(api):
            whole = body(api, version, FIELDS.get(api, {}))
            if b"no-such-topic" not in whole:
                continue  # this version names topics by their ids
            client = arena.connect()

            broken = whole.replace(b"no-such-topic", b"no\xff\xfe\xc3(ch-topic")
            client.send(framed(header(api, version) + broken))

            assert client.is_closed(), (api, version)
