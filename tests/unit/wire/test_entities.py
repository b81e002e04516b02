import datetime
import random
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader

from tests.unit.wire.messages import read_response
from tidelog import errors
from tidelog.wire.apis import APIS, Api
from tidelog.wire.entities import (
    NO_ID,
    MessageDamaged,
    decode_request,
    encode,
    request_entity,
    request_type,
    response_entity,
)

TAKEN = [(a, v) for a, known in APIS.items() for v in range(known.taken_from, known.most + 1)]
SOME_ID = UUID(int=5)

# Small answers with something in every array, written once for all versions.
ANSWERS: dict[Api, dict[str, Any]] = {
    Api.PRODUCE: {"responses": [{"name": "t", "topic_id": SOME_ID, "partition_responses": [{}]}]},
    Api.FETCH: {"responses": [{"topic": "t", "topic_id": SOME_ID, "partitions": [{}, {}]}]},
    Api.LIST_OFFSETS: {"topics": [{"name": "t", "partitions": [{"offset": 5, "timestamp": 6}]}]},
    Api.METADATA: {
        "brokers": [{"node_id": 1, "host": "h", "port": 9092, "rack": None}],
        "topics": [{"name": "t", "topic_id": SOME_ID, "partitions": [{"replica_nodes": [1, 2]}]}],
    },
    Api.API_VERSIONS: {"api_keys": [{"api_key": 3, "min_version": 0, "max_version": 12}]},
    Api.CREATE_TOPICS: {"topics": [{"name": "t", "configs": [{"name": "c", "value": None}]}]},
    Api.DELETE_TOPICS: {"responses": [{"name": "t", "topic_id": SOME_ID}]},
    Api.DELETE_RECORDS: {"topics": [{"name": "t", "partitions": [{"low_watermark": 3}]}]},
    Api.INIT_PRODUCER_ID: {"producer_id": 2**40, "producer_epoch": 0},
    Api.OFFSET_FOR_LEADER_EPOCH: {"topics": [{"topic": "t", "partitions": [{"end_offset": 4}]}]},
    Api.CREATE_PARTITIONS: {"results": [{"name": "t", "error_message": None}]},
    Api.DESCRIBE_CLUSTER: {"brokers": [{"broker_id": 1, "host": "h", "port": 9092}]},
}

REQUESTS: dict[Api, dict[str, Any]] = {
    Api.METADATA: {"topics": [{"name": "t", "topic_id": SOME_ID}]},
    Api.FETCH: {
        "topics": [{"topic": "t", "topic_id": SOME_ID, "partitions": [{"partition": 1}, {}]}],
        "forgotten_topics_data": [{"topic": "u", "topic_id": SOME_ID, "partitions": [1, 2]}],
    },
    Api.CREATE_TOPICS: {
        "topics": [{"name": "t", "assignments": [{"broker_ids": [1, 2]}], "configs": [{"name": "c"}]}]
    },
    Api.DELETE_TOPICS: {"topics": [{"name": "t"}, {"topic_id": SOME_ID}], "topic_names": ["t"]},
    Api.LIST_OFFSETS: {"topics": [{"name": "t", "partitions": [{"timestamp": -2}]}]},
    Api.CREATE_PARTITIONS: {"topics": [{"name": "t", "assignments": [{"broker_ids": [1]}]}]},
    Api.DELETE_RECORDS: {"topics": [{"name": "t", "partitions": [{"offset": 2**40}]}]},
    Api.OFFSET_FOR_LEADER_EPOCH: {"topics": [{"topic": "t", "partitions": [{}]}]},
    Api.INIT_PRODUCER_ID: {"transactional_id": None, "transaction_timeout": 5},
    Api.API_VERSIONS: {"client_software_name": "x", "client_software_version": "1"},
    Api.DESCRIBE_CLUSTER: {},
}


@pytest.mark.parametrize("api", APIS)
def test_every_version_of_every_answer_is_written_from_nothing_and_from_one_set_of_fields(api):
    for version in range(APIS[api].taken_from, APIS[api].most + 1):
        for fields in ({}, ANSWERS.get(api, {})):
            entity = response_entity(api, version, fields)

            assert read_response(api, version, encode(entity)) == entity


@pytest.mark.parametrize("api", REQUESTS)
def test_every_version_of_every_request_is_read_back(api):
    for version in range(APIS[api].taken_from, APIS[api].most + 1):
        for fields in ({}, REQUESTS[api]):
            entity = request_entity(api, version, fields)

            assert decode_request(api, version, b"head" + encode(entity), 4) == entity


def test_fields_that_a_version_lacks_are_left_out():
    fields = {"name": "t", "topic_id": SOME_ID, "error_message": "why", "no_such_field": 1}

    old = response_entity(Api.DELETE_TOPICS, 1, {"responses": [fields]}).responses[0]
    new = response_entity(Api.DELETE_TOPICS, 6, {"responses": [fields]}).responses[0]

    assert not hasattr(old, "topic_id") and not hasattr(old, "error_message")
    assert (new.topic_id, new.error_message) == (SOME_ID, "why")


def test_fields_not_named_get_the_protocols_defaults_or_nothing():
    metadata = response_entity(Api.METADATA, 12, {"topics": [{}]})
    fetch = request_entity(Api.FETCH, 11, {})

    assert (metadata.brokers, metadata.cluster_id, metadata.controller_id) == ((), None, -1)
    assert metadata.topics[0].error_code is ErrorCode.none
    assert metadata.throttle_time == datetime.timedelta(0)
    assert (fetch.replica_id, fetch.session_epoch, fetch.max_bytes) == (-1, -1, 2**31 - 1)
    assert (fetch.rack_id, fetch.min_bytes) == ("", 0)


def test_milliseconds_codes_and_ids_are_plain_on_our_side():
    request = request_entity(Api.FETCH, 13, {"max_wait": 1500, "topics": [{"topic_id": NO_ID}]})
    answer = response_entity(Api.METADATA, 12, {"topics": [{"error_code": 3}]})

    assert request.max_wait == datetime.timedelta(seconds=1.5)
    assert request.topics[0].topic_id is None
    assert answer.topics[0].error_code is ErrorCode.unknown_topic_or_partition


def test_an_explanation_is_cut_to_a_length_that_any_client_takes():
    answer = response_entity(Api.INIT_PRODUCER_ID, 5, {})
    long = response_entity(Api.DELETE_TOPICS, 6, {"responses": [{"error_message": "x" * 40_000}]})

    assert encode(answer)
    assert long.responses[0].error_message == "x" * 1000


def test_every_error_has_a_code_that_clients_know_and_retry_as_we_say():
    for error in errors.BrokerError.__subclasses__():
        if error.__module__ != errors.__name__:
            continue  # other tests have made it
        code = ErrorCode(error.code)

        assert code.retriable == error.retriable, error


def test_what_follows_a_request_is_passed_over():
    body = encode(request_entity(Api.METADATA, 1, {"topics": None}))  # as librdkafka sends it

    assert decode_request(Api.METADATA, 1, body + b"\0\0\0", 0).topics is None


@pytest.mark.parametrize("api", REQUESTS)
def test_a_request_that_is_cut_off_is_damaged(api):
    for version in range(APIS[api].taken_from, APIS[api].most + 1):
        body = encode(request_entity(api, version, REQUESTS[api]))
        for size in range(len(body)):
            with pytest.raises(MessageDamaged):
                decode_request(api, version, body[:size], 0)


@pytest.mark.parametrize("count", [2**31 - 1, 2**24, 1000])
@pytest.mark.parametrize(("api", "version"), [(Api.METADATA, 4), (Api.DELETE_TOPICS, 1)])
def test_an_array_that_cannot_fit_is_damaged_before_memory_is_set_aside(api, version, count):
    with pytest.raises(MessageDamaged, match=f"{count} items do"):
        decode_request(api, version, count.to_bytes(4, "big") + bytes(20), 0)


def test_an_array_of_a_flexible_version_that_cannot_fit_is_damaged():
    with pytest.raises(MessageDamaged, match="items do"):
        decode_request(Api.METADATA, 12, b"\xff\xff\xff\xff\x0f" + bytes(20), 0)


def test_a_request_of_too_many_items_is_damaged_though_they_fit():
    names = 100_001
    body = names.to_bytes(4, "big") + b"\0\0" * names + b"\0\0\0\0"

    with pytest.raises(MessageDamaged, match="over 100000 items"):
        decode_request(Api.DELETE_TOPICS, 1, body, 0)


def test_a_null_array_is_taken_only_where_the_protocol_knows_it():
    null = b"\xff\xff\xff\xff"

    assert decode_request(Api.METADATA, 4, null + b"\1", 0).topics is None
    with pytest.raises(MessageDamaged, match="null"):
        decode_request(Api.DELETE_TOPICS, 1, null + b"\0\0\0\0", 0)


@given(body=st.binary(max_size=80), seed=st.integers(0, 2**32))
def test_any_bytes_are_a_request_or_damaged_and_nothing_else(body, seed):
    api, version = random.Random(seed).choice([t for t in TAKEN if t[0] in REQUESTS])
    try:
        entity = decode_request(api, version, body, 0)
    except MessageDamaged:
        return
    read = entity_reader(request_type(api, version))
    assert entity == read(memoryview(body), 0)[0]
