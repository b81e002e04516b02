"""Fetches that ask for what is not there, or for more than there may be."""

import itertools
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest

from tests.faces.arena import FETCH_BYTES_MAX, MIB, Arena
from tests.faces.raw import RawClient, fetch_fields, request
from tidelog.records import Record, encode_batch, iterate_batches
from tidelog.wire.apis import APIS, Api

OUT_OF_RANGE, UNKNOWN_TOPIC, INVALID_REQUEST = 1, 3, 42
NO_SUCH_SESSION, WRONG_EPOCH, FENCED, UNKNOWN_EPOCH = 70, 71, 74, 75
UNKNOWN_TOPIC_ID, SESSION_IDS = 100, 106

_names = itertools.count()


@pytest.fixture
def client(arena: Arena) -> RawClient:
    return arena.connect()


@pytest.fixture
def topic(client: RawClient) -> str:
    """Ten batches of one record each."""
    name = f"fetch-{next(_names)}"
    client.create_topic(name)
    for _ in range(10):
        assert client.produce(bytes(encode_batch([Record(value=bytes(500))])), name).error_code == 0
    return name


@pytest.fixture
def large_topic(client: RawClient) -> str:
    """Two partitions of 24 MiB, most of it on disk only."""
    name = f"fetch-large-{next(_names)}"
    client.create_topic(name, partitions=2)
    batch = bytes(encode_batch([Record(value=bytes(MIB - 1000))]))
    for partition in (0, 1):
        for _ in range(24):
            assert client.produce(batch, name, partition).error_code == 0
    return name


def partitions_of(answer: Any) -> Iterator[Any]:
    return (partition for topic in answer.responses for partition in topic.partitions)


def only_partition(answer: Any) -> Any:
    (partition,) = partitions_of(answer)
    return partition


def batches_in(partition: Any) -> int:
    return len(list(iterate_batches(partition.records or b"")))


versions = pytest.mark.parametrize("version", range(APIS[Api.FETCH].least, APIS[Api.FETCH].most + 1))


@versions
def test_replicas_are_sent_to_another_door(client: RawClient, topic: str, version: int) -> None:
    as_replica: dict[str, Any] = {"replica_id": 1, "replica_state": {"replica_id": 1, "replica_epoch": 1}}
    fields = fetch_fields(topic, **as_replica)

    answer = client.ask(Api.FETCH, version, fields)

    assert list(partitions_of(answer)) == []
    assert version < 7 or answer.error_code == INVALID_REQUEST


@pytest.mark.parametrize("offset", [11, 10**9, 2**63 - 1, -1, -(2**63)])
def test_an_offset_outside_of_the_log_is_refused(client: RawClient, topic: str, offset: int) -> None:
    answer = client.fetch(topic, offset=offset)

    assert answer.error_code == OUT_OF_RANGE
    assert not answer.records


@pytest.mark.parametrize("partition", [1, -1, 2**31 - 1, -(2**31)])
def test_a_partition_that_is_not_there_is_refused(client: RawClient, topic: str, partition: int) -> None:
    assert client.fetch(topic, partition).error_code == UNKNOWN_TOPIC


def test_topics_that_are_not_there_are_refused_by_name_and_by_id(client: RawClient) -> None:
    assert client.fetch("no-such-topic").error_code == UNKNOWN_TOPIC
    for topic_id in (UUID(int=77), UUID(int=0), UUID(int=1)):
        fields = fetch_fields()
        fields["topics"][0]["topic_id"] = topic_id
        answer = client.ask(Api.FETCH, 13, fields)
        assert only_partition(answer).error_code == UNKNOWN_TOPIC_ID


@pytest.mark.parametrize(("epoch", "error"), [(10**6, UNKNOWN_EPOCH), (-2, FENCED)])
def test_another_leader_epoch_is_refused(client: RawClient, topic: str, epoch: int, error: int) -> None:
    fields = fetch_fields(topic)
    fields["topics"][0]["partitions"][0]["current_leader_epoch"] = epoch

    assert only_partition(client.ask(Api.FETCH, 11, fields)).error_code == error


@pytest.mark.parametrize("most", [-1, 0, 1, -(2**31)])
def test_a_limit_below_one_batch_still_returns_one(client: RawClient, topic: str, most: int) -> None:
    """Else a consumer would be stuck in front of a large batch for ever."""
    fields = fetch_fields(topic, max_bytes=most)
    fields["topics"][0]["partitions"][0]["partition_max_bytes"] = most

    assert batches_in(only_partition(client.ask(Api.FETCH, 11, fields))) == 1


@pytest.mark.parametrize(("wait_ms", "least"), [(-1, 1), (-(2**31), 2**31 - 1), (0, -5)])
def test_a_wait_that_cannot_be_is_none(client: RawClient, topic: str, wait_ms: int, least: int) -> None:
    fields = fetch_fields(topic, offset=10, max_wait=wait_ms, min_bytes=least)

    assert only_partition(client.ask(Api.FETCH, 11, fields)).error_code == 0


@pytest.mark.parametrize("first_most", [2**31 - 1, 0, -1, -(2**31)])
def test_no_limits_of_partitions_add_up_to_more_than_one_answer_may_have(
    arena: Arena, client: RawClient, large_topic: str, first_most: int
) -> None:
    fields = fetch_fields(large_topic, max_bytes=2**31 - 1)
    first = {**fields["topics"][0]["partitions"][0], "partition_max_bytes": first_most}
    second = {**first, "partition": 1, "partition_max_bytes": 2**31 - 1}
    fields["topics"][0]["partitions"] = [first, second]

    for more in ({}, {"max_bytes": -1}):
        answer = client.ask(Api.FETCH, 11, {**fields, **more})
        size = sum(len(partition.records or b"") for partition in partitions_of(answer))

        assert 0 < size <= FETCH_BYTES_MAX + MIB


def test_only_the_first_partition_may_pass_its_limit(client: RawClient, large_topic: str) -> None:
    fields = fetch_fields(large_topic)
    one = {**fields["topics"][0]["partitions"][0], "partition_max_bytes": 0}
    fields["topics"][0]["partitions"] = [one, {**one, "partition": 1}]

    answer = client.ask(Api.FETCH, 11, fields)

    assert [batches_in(partition) for partition in partitions_of(answer)] == [1, 0]


def test_a_fetch_that_would_wait_for_weeks_ends_with_its_client(
    arena: Arena, client: RawClient, topic: str
) -> None:
    for _ in range(50):
        with arena.connect() as waiting:
            fields = fetch_fields(topic, offset=10, max_wait=2**31 - 1, min_bytes=2**31 - 1)
            waiting.send(request(Api.FETCH, 11, fields))
    client.produce(bytes(encode_batch([Record()])), topic)  # wakes whoever still waits

    assert client.end_offset(topic) == 11


# Sessions.


def open_session(client: RawClient, topic: str, version: int = 11) -> int:
    answer = client.ask(Api.FETCH, version, fetch_fields(topic, offset=10, session_epoch=0))
    assert answer.session_id > 0
    return int(answer.session_id)


@pytest.mark.parametrize("session_id", [0, 5, -1, 2**31 - 1, -(2**31)])
@pytest.mark.parametrize("epoch", [1, 2**31 - 1, -2, -(2**31)])
def test_a_session_that_is_not_there_is_refused(
    client: RawClient, topic: str, session_id: int, epoch: int
) -> None:
    fields = fetch_fields(topic, session_id=session_id, session_epoch=epoch)

    answer = client.ask(Api.FETCH, 11, fields)

    assert answer.error_code == NO_SUCH_SESSION
    assert answer.responses == ()


@pytest.mark.parametrize("epoch", [2, 7, 2**31 - 1, -2])
def test_a_session_goes_on_only_with_its_next_epoch(client: RawClient, topic: str, epoch: int) -> None:
    session_id = open_session(client, topic)

    wrong = fetch_fields(session_id=session_id, session_epoch=epoch, topics=[])
    assert client.ask(Api.FETCH, 11, wrong).error_code == WRONG_EPOCH
    right = fetch_fields(session_id=session_id, session_epoch=1, topics=[])
    assert client.ask(Api.FETCH, 11, right).error_code == 0


def test_a_session_of_names_is_not_used_with_ids(client: RawClient, topic: str) -> None:
    session_id = open_session(client, topic)

    fields = fetch_fields(session_id=session_id, session_epoch=1, topics=[])

    assert client.ask(Api.FETCH, 13, fields).error_code == SESSION_IDS


def test_sessions_without_end_push_out_the_oldest(client: RawClient, topic: str) -> None:
    first = open_session(client, topic)
    for _ in range(1200):  # fetch.sessions.max is 1000
        open_session(client, topic)

    fields = fetch_fields(session_id=first, session_epoch=1, topics=[])

    assert client.ask(Api.FETCH, 11, fields).error_code == NO_SUCH_SESSION


def test_ten_thousand_partitions_in_one_fetch_are_answered(client: RawClient) -> None:
    fields = fetch_fields()
    one = fields["topics"][0]["partitions"][0]
    fields["topics"][0]["partitions"] = [{**one, "partition": n} for n in range(1, 10_001)]

    answer = client.ask(Api.FETCH, 11, fields)

    assert {partition.error_code for partition in partitions_of(answer)} == {UNKNOWN_TOPIC}
    assert len(list(partitions_of(answer))) == 10_000
