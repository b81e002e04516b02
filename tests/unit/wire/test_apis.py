import pytest

from tidelog.wire.apis import APIS, Api
from tidelog.wire.entities import request_type, response_type

KAFKAJS_MOST = {  # kafkajs 2.2: it sends its own highest version, whatever is advertised
    Api.PRODUCE: 7,
    Api.FETCH: 11,
    Api.LIST_OFFSETS: 1,
    Api.METADATA: 6,
    Api.API_VERSIONS: 2,
    Api.CREATE_TOPICS: 3,
    Api.DELETE_TOPICS: 1,
    Api.DELETE_RECORDS: 1,
    Api.INIT_PRODUCER_ID: 1,
    Api.CREATE_PARTITIONS: 1,
}


@pytest.mark.parametrize(("api", "most"), KAFKAJS_MOST.items())
def test_what_kafkajs_sends_is_taken(api, most):
    assert APIS[api].takes(most)
    assert APIS[api].least <= most


@pytest.mark.parametrize("api", APIS)
def test_every_version_taken_is_known_to_kio_and_flexible_where_we_say(api):
    known = APIS[api]

    for version in range(known.taken_from, known.most + 1):
        for schema in (request_type(api, version), response_type(api, version)):
            assert schema.__api_key__ == api
            assert schema.__flexible__ == (version >= known.flexible_from)


def test_no_more_is_taken_than_is_advertised():
    for known in APIS.values():
        assert known.least <= known.taken_from <= known.most
        assert not known.takes(known.taken_from - 1)
        assert known.takes(known.taken_from)
        assert known.takes(known.most)
        assert not known.takes(known.most + 1)


def test_only_what_librdkafka_looks_for_is_advertised_below_what_is_taken():
    # Up to 1.x it looks for Produce 0 before it compresses, and for SaslHandshake 0 before it logs in.
    low = {api: v.least for api, v in APIS.items() if v.least != v.taken_from}

    assert low == {Api.PRODUCE: 0, Api.SASL_HANDSHAKE: 0}


def test_an_api_is_called_what_kafka_calls_it():
    for api, known in APIS.items():
        assert request_type(api, known.most).__name__ == api.title + "Request"
