import asyncio
import datetime
from typing import Any

import pytest

from tidelog.client.cluster import PartitionInfo, Refused, TopicInfo
from tidelog.client.transactions import (
    Fenced,
    ListedTransaction,
    OpenTransaction,
    TransactionInfo,
    TransactionsClient,
)
from tidelog.model import Endpoint, TopicPartition
from tidelog.wire.entities import encode, request_entity, response_entity

LIST, DESCRIBE, PRODUCERS, FIND, INIT, MARKERS = 66, 65, 61, 10, 22, 27
NEWEST = {LIST: 2, DESCRIBE: 0, PRODUCERS: 0, FIND: 6, INIT: 6, MARKERS: 1}
HOSTS = {1: Endpoint(host="one", port=1), 2: Endpoint(host="two", port=2)}


class Broker:
    """A connection to a broker that answers by a script: by API, what it says next."""

    def __init__(self, node: int) -> None:
        self.endpoint = HOSTS[node]
        self.script: dict[int, list[dict[str, Any]]] = {}
        self.seen: list[Any] = []

    def version(self, api: int) -> int:
        return NEWEST[api]

    async def call(self, api: int, **fields: Any) -> Any:
        self.seen.append(request_entity(api, NEWEST[api], fields))
        return self._answer(api)

    async def exchange(self, request: Any) -> bytes:
        self.seen.append(request)
        return b"\x00\x00\x00\x01\x00" + encode(self._answer(request.__api_key__))

    def _answer(self, api: int) -> Any:
        said = self.script[api]
        return response_entity(api, NEWEST[api], said.pop(0) if len(said) > 1 else said[0])


class Fleet(TransactionsClient):
    """Two brokers; `t` has a partition on each, and one that nobody leads."""

    def __init__(self) -> None:
        super().__init__("x:1", timeout_seconds=1)
        self.nodes = {node: Broker(node) for node in HOSTS}

    async def any_connection(self) -> Any:
        return self.nodes[1]

    async def _connect(self, endpoint: Endpoint) -> Any:
        return next(broker for broker in self.nodes.values() if broker.endpoint == endpoint)

    async def _ask_metadata(self, names: Any, *, create: bool) -> list[TopicInfo]:
        self._cluster = type(self._cluster)(brokers=HOSTS)
        partitions = tuple(
            PartitionInfo(partition=number, leader=leader, epoch=0, replicas=(), in_sync=())
            for number, leader in enumerate((1, 2, -1))
        )
        return [TopicInfo(name="t", id=None, internal=False, partitions=partitions)]

    def coordinated_by(self, node: int) -> Broker:
        at = HOSTS[node]
        found = {"key": "tx", "node_id": node, "host": at.host, "port": at.port}
        self.nodes[1].script[FIND] = [{"coordinators": [found]}]
        return self.nodes[node]


def state(**fields: Any) -> dict[str, Any]:
    started_ms = fields.pop("started_ms", 5_000)
    return {
        "transactional_id": "tx",
        "transaction_state": "Ongoing",
        "transaction_timeout": 60_000,
        "transaction_start_time": datetime.datetime.fromtimestamp(started_ms / 1000, datetime.UTC),
        "producer_id": 7,
        "producer_epoch": 3,
        "topics": [{"topic": "t", "partitions": [1, 0]}],
        **fields,
    }


INFO = TransactionInfo(
    transactional_id="tx",
    state="Ongoing",
    producer_id=7,
    producer_epoch=3,
    timeout_ms=60_000,
    started_ms=5_000,
    places=(TopicPartition("t", 0), TopicPartition("t", 1)),
    coordinator=2,
)


def listed(name: str, node: int, state: str = "Ongoing") -> ListedTransaction:
    return ListedTransaction(transactional_id=name, state=state, producer_id=7, coordinator=node)


def test_every_coordinator_is_asked_for_its_transactions():
    fleet = Fleet()
    for node, name in ((1, "b"), (2, "a")):
        one = {"transactional_id": name, "producer_id": 7, "transaction_state": "Ongoing"}
        fleet.nodes[node].script[LIST] = [{"transaction_states": [one]}]

    found = asyncio.run(fleet.list_transactions(["Ongoing"]))

    assert found == [listed("a", 2), listed("b", 1)]
    (request,) = fleet.nodes[1].seen
    assert request.state_filters == ("Ongoing",)
    assert request.duration_filter == -1


def test_a_transaction_is_asked_of_its_coordinator():
    fleet = Fleet()
    fleet.coordinated_by(2).script[DESCRIBE] = [{"transaction_states": [state()]}]

    assert asyncio.run(fleet.describe_transaction("tx")) == INFO
    assert [request.key_type for request in fleet.nodes[1].seen] == [1]


def test_a_transaction_that_has_not_begun_has_no_start():
    fleet = Fleet()
    said = state(transaction_state="Empty", started_ms=-1, topics=[])
    fleet.coordinated_by(1).script[DESCRIBE] = [{"transaction_states": [said]}]

    info = asyncio.run(fleet.describe_transaction("tx"))

    assert info.started_ms is None


def test_an_id_that_is_not_there_is_refused_with_what_to_do():
    fleet = Fleet()
    fleet.coordinated_by(1).script[DESCRIBE] = [{"transaction_states": [state(error_code=105)]}]

    with pytest.raises(Refused, match="tidelog transactions list"):
        asyncio.run(fleet.describe_transaction("tx"))


def test_a_coordinator_that_has_moved_is_looked_up_again():
    fleet = Fleet()
    fleet.coordinated_by(2).script[DESCRIBE] = [
        {"transaction_states": [state(error_code=16)]},
        {"transaction_states": [state()]},
    ]

    assert asyncio.run(fleet.describe_transaction("tx")) == INFO
    assert len(fleet.nodes[1].seen) == 2


def held(number: int, *starts: int, error: int = 0) -> dict[str, Any]:
    producers = [
        {
            "producer_id": 7 + index,
            "producer_epoch": 3,
            "last_sequence": 9,
            "last_timestamp": 1_000,
            "coordinator_epoch": 0,
            "current_txn_start_offset": start,
        }
        for index, start in enumerate(starts)
    ]
    partition = {"partition_index": number, "error_code": error, "active_producers": producers}
    return {"topics": [{"name": "t", "partitions": [partition]}]}


def opened(number: int, start: int) -> OpenTransaction:
    return OpenTransaction(
        place=TopicPartition("t", number),
        producer_id=7,
        producer_epoch=3,
        first_offset=start,
        last_timestamp_ms=1_000,
        coordinator_epoch=0,
    )


def test_leaders_say_what_they_hold_open():
    fleet = Fleet()
    fleet.nodes[1].script[PRODUCERS] = [held(0, 40, -1)]
    fleet.nodes[2].script[PRODUCERS] = [held(1, 0)]

    assert asyncio.run(fleet.open_transactions()) == [opened(0, 40), opened(1, 0)]


def test_only_the_leaders_of_the_partitions_asked_for_are_asked():
    fleet = Fleet()
    fleet.nodes[2].script[PRODUCERS] = [held(1, error=6), held(1, 5)]

    found = asyncio.run(fleet.open_transactions([TopicPartition("t", 1), TopicPartition("t", 2)]))

    assert found == [opened(1, 5)]
    assert fleet.nodes[1].seen == []


def test_an_orphan_is_aborted_by_the_leader_of_its_partition():
    fleet = Fleet()
    place = {"partition_index": 1, "error_code": 0}
    answers = [
        {"markers": [{"producer_id": 7, "topics": [{"name": "t", "partitions": [one]}]}]}
        for one in (place | {"error_code": 6}, place)  # it leads no more, or not yet; it does
    ]
    fleet.nodes[2].script[MARKERS] = answers

    asyncio.run(fleet.abort_orphan(opened(1, 40)))

    (marker,) = fleet.nodes[2].seen[-1].markers
    assert (marker.producer_id, marker.producer_epoch) == (7, 3)
    assert (marker.transaction_result, marker.coordinator_epoch) == (False, 0)
    assert fleet.nodes[1].seen == []


def test_an_abort_fences_the_producer_and_waits_for_the_end():
    fleet = Fleet()
    coordinator = fleet.coordinated_by(2)
    coordinator.script[INIT] = [
        {"error_code": 51, "producer_id": -1, "producer_epoch": -1},
        {"error_code": 51, "producer_id": -1, "producer_epoch": -1},
        {"producer_id": 7, "producer_epoch": 4},
    ]

    fenced = asyncio.run(fleet.abort_transaction("tx", timeout_ms=60_000))

    assert fenced == Fenced(producer_id=7, producer_epoch=4)
    request = coordinator.seen[-1]
    assert request.transactional_id == "tx"
    assert (request.producer_id, request.producer_epoch) == (-1, -1), "as a new producer"
    assert request.transaction_timeout == datetime.timedelta(seconds=60)
