import asyncio
from types import SimpleNamespace
from typing import Any
from uuid import NAMESPACE_DNS, uuid5

import pytest

from tests.unit.groups.desk import ShardDesk
from tests.unit.groups.test_shard import stable
from tidelog.errors import (
    BrokerError,
    CoordinatorLoadInProgress,
    InvalidProducerEpoch,
    InvalidProducerIdMapping,
    NotCoordinator,
    NotEnoughReplicas,
    ProducerFenced,
    StorageError,
    TransactionAbortable,
)
from tidelog.groups.records import CommittedOffset
from tidelog.kafka.context import Client, Request
from tidelog.kafka.transactional_offsets import TransactionalOffsetApis
from tidelog.model import OFFSETS_TOPIC, TopicPartition
from tidelog.security.acls import Acls
from tidelog.security.authorizer import Access, Authorizer
from tidelog.security.principals import ANONYMOUS
from tidelog.shards.effects import Answer
from tidelog.wire.apis import Api
from tidelog.wire.entities import encode, request_entity, response_entity
from tidelog.wire.names import partition_for

KEY = 28
VERSIONS = range(6)
UNKNOWN_TOPIC_OR_PARTITION, NOT_AVAILABLE, LOADING, NOT_COORDINATOR = 3, 15, 14, 16
ILLEGAL_GENERATION, INVALID_GROUP_ID, UNKNOWN_MEMBER_ID = 22, 24, 25
METADATA_TOO_LARGE, INVALID_EPOCH, INVALID_STATE, INVALID_MAPPING, ABORTABLE = 12, 47, 48, 49, 120


class Office:
    """A coordinator whose log commits at once, and the rest of a broker as far as it is asked."""

    def __init__(self) -> None:
        self.desk = ShardDesk()
        self.refusal: BrokerError | None = None
        self.verdict: BrokerError | None = None
        self.failure: BrokerError | None = None
        self.asked: list[tuple[object, ...]] = []
        self.meanwhile: Any = lambda: None
        """What happens while the transaction's coordinator is asked."""
        topics = {"t": range(2), OFFSETS_TOPIC: range(50)}
        self.broker: Any = SimpleNamespace(
            image=SimpleNamespace(
                topics={
                    name: SimpleNamespace(id=uuid5(NAMESPACE_DNS, name), partitions=p)
                    for name, p in topics.items()
                }
            )
        )

    def driver(self, group_id: str) -> object:
        if self.refusal is not None:
            raise self.refusal
        return self.desk

    def number_of(self, group_id: str) -> int:
        return partition_for(group_id, 50)

    def begin(self, group_id: str, call: Any) -> "asyncio.Future[Any]":
        reply: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        reply.set_result(self._ask(call))
        return reply

    def _ask(self, call: Any) -> Any:
        effects = call(self.desk.shard, "reply", self.desk.at())
        if isinstance(effects[0], Answer):
            result = effects[0].result
        else:
            self.desk.answers["reply"] = "waits"
            self.desk.do(effects)
            if self.failure is not None:
                self.desk.fail_store(self.failure)
            else:
                self.desk.store()
            result = self.desk.answers["reply"]
        return result

    async def verify(
        self,
        transactional_id: str,
        producer_id: int,
        epoch: int,
        place: TopicPartition,
        *,
        implicit: bool,
        then: Any,
    ) -> Any:
        self.asked.append((transactional_id, producer_id, epoch, place, implicit))
        self.meanwhile()
        if self.verdict is not None:
            raise self.verdict
        return then()

    def commit(
        self, version: int = 5, *, offsets: Any = None, group: str = "g", **fields: Any
    ) -> dict[tuple[str, int], int]:
        """The code of every partition of the answer."""
        offsets = {("t", 0): 5} if offsets is None else offsets
        topics = [
            {
                "name": topic,
                "partitions": [
                    {
                        "partition_index": number,
                        "committed_offset": offset,
                        "committed_leader_epoch": 4,
                        "committed_metadata": fields.pop("metadata", None),
                    }
                ],
            }
            for (topic, number), offset in offsets.items()
        ]
        request = request_entity(
            KEY,
            version,
            {
                "transactional_id": "tx",
                "group_id": group,
                "producer_id": 7,
                "producer_epoch": 3,
                "topics": topics,
                **fields,
            },
        )
        apis = TransactionalOffsetApis(self, self.verify)  # type: ignore[arg-type]
        client = Client(address="x", access=Access(Authorizer(Acls), ANONYMOUS, ""))
        context = Request(api=Api(KEY), version=version, client=client, client_id=None)
        answer = asyncio.run(apis.txn_offset_commit(self.broker, request, context))
        response = response_entity(KEY, version, answer)
        assert encode(response)
        return {
            (topic.name, one.partition_index): int(one.error_code)
            for topic in response.topics
            for one in topic.partitions
        }


@pytest.mark.parametrize("version", VERSIONS)
def test_offsets_are_noted_in_the_transaction_in_every_version(version):
    office = Office()

    assert office.commit(version, metadata="note") == {("t", 0): 0}

    assert office.desk.offsets("g") == {}
    office.desk.end_transaction(7)
    office.desk.store()
    (found,) = office.desk.shard.fetch_offsets("g", None).values()
    assert isinstance(found, CommittedOffset)
    assert (found.offset, found.metadata) == (5, "note")
    assert found.leader_epoch == (4 if version >= 2 else -1)


@pytest.mark.parametrize("version", VERSIONS)
def test_the_groups_partition_is_verified_first_and_added_from_version_5_on(version):
    office = Office()

    office.commit(version)

    place = TopicPartition(OFFSETS_TOPIC, partition_for("g", 50))
    assert office.asked == [("tx", 7, 3, place, version >= 5)]


@pytest.mark.parametrize(
    ("verdict", "version", "code"),
    [
        (InvalidProducerIdMapping("no"), 5, INVALID_MAPPING),
        (ProducerFenced("no"), 5, INVALID_EPOCH),
        (TransactionAbortable("no"), 5, ABORTABLE),
        (TransactionAbortable("no"), 4, ABORTABLE),
        (TransactionAbortable("no"), 3, INVALID_STATE),
        (CoordinatorLoadInProgress("wait"), 2, LOADING),
        (CoordinatorLoadInProgress("wait"), 1, NOT_AVAILABLE),
        (NotEnoughReplicas(in_sync=0, needed=1), 5, NOT_AVAILABLE),
    ],
)
def test_nothing_is_written_that_the_transaction_does_not_know_of(verdict, version, code):
    office = Office()
    office.verdict = verdict

    assert office.commit(version) == {("t", 0): code}
    assert office.desk.end == 0


def test_the_transaction_is_not_asked_by_a_node_that_does_not_coordinate_the_group():
    office = Office()
    office.refusal = NotCoordinator("elsewhere")

    assert office.commit() == {("t", 0): NOT_COORDINATOR}
    assert office.asked == []


def test_nothing_is_written_if_the_group_has_moved_while_the_transaction_was_asked():
    office = Office()

    def move() -> None:
        office.desk = ShardDesk()

    office.meanwhile = move

    assert office.commit() == {("t", 0): NOT_COORDINATOR}
    assert office.desk.end == 0


def test_partitions_that_do_not_exist_are_refused_alone():
    office = Office()

    codes = office.commit(offsets={("t", 0): 5, ("t", 2): 6, ("gone", 0): 7})

    unknown = UNKNOWN_TOPIC_OR_PARTITION
    assert codes == {("t", 0): 0, ("t", 2): unknown, ("gone", 0): unknown}
    assert office.commit(offsets={("gone", 0): 7}) == {("gone", 0): unknown}
    assert len(office.asked) == 1, "with nothing to write, nobody is asked"


def test_a_member_of_an_old_generation_is_refused():
    office = Office()
    member = stable(office.desk)

    assert office.commit(member_id=member, generation_id=1) == {("t", 0): 0}
    assert office.commit(member_id=member, generation_id=0) == {("t", 0): ILLEGAL_GENERATION}
    assert office.commit(member_id="x", generation_id=1) == {("t", 0): UNKNOWN_MEMBER_ID}
    assert office.commit(group="") == {("t", 0): INVALID_GROUP_ID}
    assert office.commit(version=2) == {("t", 0): 0}, "before version 3, nobody says who it is"


def test_what_is_refused_of_a_commit_is_named():
    office = Office()
    offsets = {("t", 0): 5, ("t", 1): 6}

    codes = office.commit(offsets=offsets, metadata="x" * 5000)  # of the first

    assert codes == {("t", 0): METADATA_TOO_LARGE, ("t", 1): 0}


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (StorageError("full"), NOT_COORDINATOR),
        (InvalidProducerEpoch(producer_id=7, epoch=3, current=4), INVALID_EPOCH),
    ],
)
def test_what_the_log_refuses_is_told(failure, code):
    office = Office()
    office.failure = failure

    assert office.commit() == {("t", 0): code}
