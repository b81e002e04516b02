"""What must not be in a transaction is refused with Kafka's error, and leaves nothing half done.

A producer of its own, request by request, for what client libraries never do.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Self

import pytest

from tests.clients.adapters.confluent import ConfluentClient
from tests.clients.transacting import COMMITTED, UNCOMMITTED, committed, eventually, seen
from tests.faces.raw import RawClient, produce_fields
from tests.support.node import NodeProcess
from tidelog.records import CONTROL, TRANSACTIONAL, Record, encode_batch
from tidelog.wire.apis import Api

OK = 0
UNKNOWN_TOPIC_OR_PARTITION = 3
ILLEGAL_GENERATION = 22
INVALID_REQUEST = 42
OUT_OF_ORDER_SEQUENCE_NUMBER = 45
INVALID_PRODUCER_EPOCH = 47
INVALID_TXN_STATE = 48
INVALID_PRODUCER_ID_MAPPING = 49
INVALID_TRANSACTION_TIMEOUT = 50
OPERATION_NOT_ATTEMPTED = 55
INVALID_RECORD = 87
PRODUCER_FENCED = 90
TRANSACTION_ABORTABLE = 120
SOON = {14, 15, 16, 51}
"""The coordinator is loading, not there or another one yet, or a transaction is being completed."""

TIMEOUT_MS = 60_000
TIMEOUT_MS_MAX = 86_400_000


def _is_ok(ask: Callable[[], Any]) -> bool:
    return bool(ask().error_code == OK)


class RawProducer:
    """A transactional producer that does exactly what it is told to."""

    def __init__(self, node: NodeProcess, transactional_id: str, topic: str) -> None:
        self._raw = RawClient(node.port)
        self.name = transactional_id
        self.topic = topic
        self.id = -1
        self.epoch = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._raw.close()

    def init(self, **more: Any) -> int:
        """Begin, or begin again, as often as it takes."""
        fields = {
            "transactional_id": self.name,
            "transaction_timeout": TIMEOUT_MS,
            "producer_id": -1,
            "producer_epoch": -1,
            **more,
        }
        answers: list[Any] = []

        def is_answered() -> bool:
            answers.append(self._raw.ask(Api.INIT_PRODUCER_ID, 4, fields))
            return answers[-1].error_code not in SOON

        eventually(is_answered, "the last transaction is never complete")
        if answers[-1].error_code == OK:
            self.id, self.epoch = answers[-1].producer_id, answers[-1].producer_epoch
        return int(answers[-1].error_code)

    def find_coordinators(self, group: str) -> None:
        """Wait until the transactions' and the group's can be asked."""
        for key, kind in ((self.name, 1), (group, 0)):
            ask = partial(self._raw.ask, Api.FIND_COORDINATOR, 3, {"key": key, "key_type": kind})
            eventually(partial(_is_ok, ask), "there is no coordinator")

    @property
    def _who(self) -> dict[str, Any]:
        return {"producer_id": self.id, "producer_epoch": self.epoch}

    def add(self, *partitions: int, topic: str | None = None) -> list[int]:
        fields = {f"v3_and_below_{key}": value for key, value in self._who.items()} | {
            "v3_and_below_transactional_id": self.name,
            "v3_and_below_topics": [{"name": topic or self.topic, "partitions": partitions}],
        }
        answer = self._raw.ask(Api.ADD_PARTITIONS_TO_TXN, 3, fields)
        (results,) = answer.results_by_topic_v3_and_below
        return [result.partition_error_code for result in results.results_by_partition]

    def produce(
        self,
        value: bytes,
        sequence: int = 0,
        *,
        version: int = 9,
        named: bool = True,
        attributes: int = TRANSACTIONAL,
    ) -> int:
        batch = encode_batch(
            [Record(value=value)],
            producer_id=self.id,
            producer_epoch=self.epoch,
            base_sequence=sequence,
            attributes=attributes,
        )
        fields = produce_fields(bytes(batch), self.topic, transactional_id=self.name if named else None)
        answer = self._raw.ask(Api.PRODUCE, version, fields)
        return int(answer.responses[0].partition_responses[0].error_code)

    def add_offsets(self, group: str) -> int:
        fields = {"transactional_id": self.name, "group_id": group, **self._who}
        return int(self._raw.ask(Api.ADD_OFFSETS_TO_TXN, 3, fields).error_code)

    def commit_offsets(self, group: str, offset: int, **more: Any) -> int:
        fields = {
            "transactional_id": self.name,
            "group_id": group,
            **self._who,
            "topics": [
                {"name": self.topic, "partitions": [{"partition_index": 0, "committed_offset": offset}]}
            ],
            **more,
        }
        answer = self._raw.ask(Api.TXN_OFFSET_COMMIT, 3, fields)
        return int(answer.topics[0].partitions[0].error_code)

    def end(self, *, commits: bool, version: int = 3) -> int:
        fields = {"transactional_id": self.name, "committed": commits, **self._who}
        answer = self._raw.ask(Api.END_TXN, version, fields)
        if version >= 5 and answer.error_code == OK:
            self.id, self.epoch = answer.producer_id, answer.producer_epoch
        return int(answer.error_code)


@pytest.fixture
def readers(node: NodeProcess) -> Iterator[ConfluentClient]:
    with ConfluentClient(node.bootstrap) as client:
        yield client


@pytest.fixture
def producer(node: NodeProcess, readers: ConfluentClient, topic: str) -> Iterator[RawProducer]:
    """A producer that has begun to be, at a topic that exists."""
    readers.admin().create(topic)
    with RawProducer(node, topic, topic) as producer:
        producer.find_coordinators(topic)
        assert producer.init() == OK
        yield producer


@pytest.fixture
def zombie(node: NodeProcess, producer: RawProducer) -> Iterator[RawProducer]:
    """One whose successor has an open transaction with a record in it."""
    with RawProducer(node, producer.name, producer.topic) as zombie:
        assert zombie.init() == OK
        assert producer.init() == OK
        assert producer.add(0) == [OK]
        assert producer.produce(b"good") == OK
        yield zombie
    assert producer.end(commits=True) == OK


# Whoever is not the producer of the id.


def test_a_stale_epoch_is_fenced_whatever_it_asks_for(producer, zombie, topic):
    assert zombie.add(0) == [PRODUCER_FENCED]
    assert zombie.add_offsets(topic) == PRODUCER_FENCED
    assert zombie.produce(b"bad") == INVALID_PRODUCER_EPOCH
    assert zombie.commit_offsets(topic, 5) == INVALID_PRODUCER_EPOCH
    assert zombie.end(commits=True) == PRODUCER_FENCED
    assert zombie.end(commits=False) == PRODUCER_FENCED
    assert zombie.init(producer_id=zombie.id, producer_epoch=zombie.epoch) == PRODUCER_FENCED


def test_a_stale_epoch_changes_nothing(producer, zombie, readers, node, topic):
    for _ in range(2):
        zombie.add(0)
        zombie.produce(b"bad")
        zombie.add_offsets(topic)
        zombie.commit_offsets(topic, 5)
        zombie.end(commits=False)
    assert producer.end(commits=True) == OK

    assert seen(readers, topic, COMMITTED) == [b"good"]
    assert seen(readers, topic, UNCOMMITTED) == [b"good"]
    assert committed(node, topic, topic) == -1


def test_a_producer_id_of_somebody_else_is_refused(producer, topic):
    true_id, producer.id = producer.id, producer.id + 1_000_000

    assert producer.add(0) == [INVALID_PRODUCER_ID_MAPPING]
    assert producer.add_offsets(topic) == INVALID_PRODUCER_ID_MAPPING
    assert producer.end(commits=True) == INVALID_PRODUCER_ID_MAPPING
    assert producer.produce(b"bad") == INVALID_PRODUCER_ID_MAPPING
    producer.id = true_id
    assert producer.add(0) == [OK]


def test_an_unknown_transactional_id_is_refused(producer, topic):
    producer.name = f"{topic}-unknown"

    assert producer.add(0) == [INVALID_PRODUCER_ID_MAPPING]
    assert producer.add_offsets(topic) == INVALID_PRODUCER_ID_MAPPING
    assert producer.end(commits=True) == INVALID_PRODUCER_ID_MAPPING


# Beginning.


@pytest.mark.parametrize("timeout_ms", [0, TIMEOUT_MS_MAX + 1])
def test_a_timeout_that_the_cluster_does_not_allow_is_refused(producer, timeout_ms):
    assert producer.init(transaction_timeout=timeout_ms) == INVALID_TRANSACTION_TIMEOUT
    assert producer.init(transaction_timeout=TIMEOUT_MS_MAX) == OK


def test_an_empty_transactional_id_is_refused(producer):
    assert producer.init(transactional_id="") == INVALID_REQUEST


# Batches.


def test_a_batch_of_no_known_transaction_is_refused(producer, readers, topic):
    assert producer.produce(b"bad") == INVALID_TXN_STATE
    assert producer.produce(b"bad", version=11) == TRANSACTION_ABORTABLE

    assert seen(readers, topic, UNCOMMITTED) == []


def test_a_transactional_batch_needs_a_transactional_id(producer, readers, topic):
    assert producer.add(0) == [OK]

    assert producer.produce(b"bad", named=False) == INVALID_TXN_STATE

    assert producer.end(commits=True) == OK
    assert seen(readers, topic, UNCOMMITTED) == []


def test_no_client_writes_markers(producer, readers, topic):
    assert producer.add(0) == [OK]

    assert producer.produce(b"bad", attributes=TRANSACTIONAL | CONTROL) == INVALID_RECORD

    assert producer.end(commits=True) == OK
    assert seen(readers, topic, UNCOMMITTED) == []


def test_a_gap_in_the_sequence_is_refused_inside_a_transaction_too(producer, readers, topic):
    assert producer.add(0) == [OK]
    assert producer.produce(b"first", 0) == OK

    assert producer.produce(b"third", 2) == OUT_OF_ORDER_SEQUENCE_NUMBER

    assert producer.produce(b"second", 1) == OK
    assert producer.end(commits=True) == OK
    assert seen(readers, topic, COMMITTED) == [b"first", b"second"]


def test_a_repeated_batch_is_in_the_transaction_once(producer, readers, topic):
    assert producer.add(0) == [OK]
    for _ in range(3):
        assert producer.produce(b"value") == OK
    assert producer.end(commits=True) == OK

    assert seen(readers, topic, COMMITTED) == [b"value"]


# Partitions.


def test_all_partitions_exist_or_none_is_added(producer):
    assert producer.add(0, 7) == [OPERATION_NOT_ATTEMPTED, UNKNOWN_TOPIC_OR_PARTITION]
    assert producer.produce(b"bad") == INVALID_TXN_STATE
    assert producer.end(commits=True) == INVALID_TXN_STATE


# Ends.


def test_without_a_transaction_there_is_none_to_end(producer):
    assert producer.end(commits=True) == INVALID_TXN_STATE
    assert producer.end(commits=False) == INVALID_TXN_STATE


def test_an_end_may_be_repeated_but_not_changed(producer):
    assert producer.add(0) == [OK]
    assert producer.end(commits=True) == OK

    assert producer.end(commits=True) == OK
    assert producer.end(commits=False) == INVALID_TXN_STATE


def test_a_commit_after_the_timeout_is_fenced(producer, readers, topic):
    assert producer.init(transaction_timeout=500) == OK
    assert producer.add(0) == [OK]
    assert producer.produce(b"late") == OK
    assert seen(readers, topic, COMMITTED) == []  # it has timed out

    assert producer.end(commits=True) == PRODUCER_FENCED
    assert producer.produce(b"later", 1) == INVALID_PRODUCER_EPOCH

    assert seen(readers, topic, UNCOMMITTED) == [b"late"]


# Offsets.


def test_offsets_need_their_group_in_the_transaction(producer, node, topic):
    assert producer.commit_offsets(topic, 1) == INVALID_TXN_STATE
    assert producer.add_offsets(topic) == OK
    assert producer.commit_offsets(topic, 1) == OK
    assert producer.end(commits=True) == OK

    eventually(lambda: committed(node, topic, topic) == 1, "the offset never moved")


def test_a_member_that_its_group_does_not_know_moves_no_offsets(producer, node, topic):
    assert producer.add_offsets(topic) == OK

    refused = producer.commit_offsets(topic, 1, member_id="nobody", generation_id=3)

    assert refused == ILLEGAL_GENERATION
    assert producer.end(commits=True) == OK
    assert committed(node, topic, topic) == -1


# An epoch for each transaction (KIP-890, part 2).


def test_the_first_batch_adds_its_partition_and_each_end_bumps_the_epoch(producer, readers, topic):
    first = producer.epoch
    for number, commits in enumerate((True, False, True)):
        assert producer.produce(b"%d" % number, version=12) == OK
        assert producer.end(commits=commits, version=5) == OK
        assert producer.epoch == first + number + 1

    assert seen(readers, topic, COMMITTED) == [b"0", b"2"]
    assert seen(readers, topic, UNCOMMITTED) == [b"0", b"1", b"2"]


def test_a_batch_of_the_last_transaction_does_not_get_into_the_next(producer, readers, topic):
    assert producer.produce(b"first", version=12) == OK
    last_epoch = producer.epoch
    assert producer.end(commits=True, version=5) == OK
    assert seen(readers, topic, COMMITTED) == [b"first"]  # by now its marker stands
    next_epoch, producer.epoch = producer.epoch, last_epoch

    assert producer.produce(b"late", 1, version=12) == INVALID_PRODUCER_EPOCH

    producer.epoch = next_epoch
    assert producer.produce(b"second", version=12) == OK
    assert producer.end(commits=True, version=5) == OK
    assert seen(readers, topic, COMMITTED) == [b"first", b"second"]
    assert seen(readers, topic, UNCOMMITTED) == [b"first", b"second"]


def test_an_end_that_is_repeated_gets_the_same_answer(producer):
    assert producer.produce(b"value", version=12) == OK
    before = (producer.id, producer.epoch)
    assert producer.end(commits=True, version=5) == OK
    after = (producer.id, producer.epoch)

    producer.id, producer.epoch = before
    assert producer.end(commits=True, version=5) == OK

    assert (producer.id, producer.epoch) == after
