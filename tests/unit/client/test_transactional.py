import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.simulation import virtual_time
from tidelog.client.cluster import Refused
from tidelog.client.transactional import Decision, Participant, TransactionalClient, TransactionalProducer
from tidelog.client.wire import ConnectionFailed
from tidelog.model import Endpoint
from tidelog.records import Record, decode_batch, iterate_batches
from tidelog.simulation.host import SimulatedClock
from tidelog.wire.apis import Api
from tidelog.wire.entities import encode, request_entity, response_entity

AT = Endpoint(host="one", port=1)
FIND, INIT, END, LIST = 10, 22, 26, 66
COMMIT_GROUP, READ_DECISION, FORGET_DECISION, LIST_DECISIONS = 1000, 1001, 1002, 1004
VERSIONS = {
    FIND: 4,
    INIT: 5,
    LIST: 1,
    COMMIT_GROUP: 2,
    READ_DECISION: 1,
    FORGET_DECISION: 2,
    LIST_DECISIONS: 0,
}
OLD_VERSIONS = {**VERSIONS, COMMIT_GROUP: 1, READ_DECISION: 0, FORGET_DECISION: 1}
NOT_COORDINATOR, NOT_ENOUGH_REPLICAS, INVALID_STATE, CONCURRENT, FENCED = 16, 19, 48, 51, 90
MESSAGE_TOO_LARGE = 10


class Broker(TransactionalClient):
    """A client whose one broker answers by a script: by API, an error or what it says next."""

    def __init__(self) -> None:
        super().__init__("x:1", timeout_seconds=5)
        self._reached = True
        self.script: dict[int, list[Any]] = {}
        self.batches: list[tuple[str, int, int, int, list[bytes | None]]] = []
        self.ends: list[Any] = []
        self.asked: list[int] = []
        self.said: list[Any] = []
        self.epoch = 0
        self.versions = VERSIONS

    # As its connections.

    async def any_connection(self) -> Any:
        return self

    async def _connect(self, endpoint: Endpoint) -> Any:
        assert endpoint == AT
        return self

    async def leader(self, topic: str, partition: int) -> Any:
        return self

    async def call(self, api: int, **fields: Any) -> Any:
        request = request_entity(api, self.versions[api], fields)
        assert encode(request)
        self.asked.append(api)
        self.said.append(request)
        answers: dict[int, dict[str, Any]] = {
            FIND: {
                "coordinators": [{"key": "k", "node_id": 1, "host": "one", "port": 1, "error_message": None}]
            },
            INIT: {"producer_id": 7, "producer_epoch": self.epoch},
            COMMIT_GROUP: {"batch_id": fields.get("batch_id", -1), "is_new": True},
            READ_DECISION: {"batch_id": 3, "decided_ms": 1},
            FORGET_DECISION: {},
            LIST: {"transaction_states": []},
            LIST_DECISIONS: {"decisions": []},
        }
        said = answers[api] | {"error_code": 0} | self._next(api)
        return response_entity(api, self.versions[api], said)

    async def request(self, request: Any, **options: Any) -> Any:
        assert encode(request)
        if request.__api_key__ == Api.PRODUCE:
            return self._produce(request)
        assert request.__api_key__ == END
        self.ends.append(request)
        said = self._next(END)
        if not said.get("error_code"):
            self.epoch = request.producer_epoch + 1
        return response_entity(
            END, 5, {"producer_id": 7, "producer_epoch": self.epoch, "error_code": 0} | said
        )

    def _produce(self, request: Any) -> Any:
        (topic,) = request.topic_data
        (part,) = topic.partition_data
        for header, batch in iterate_batches(bytes(part.records)):
            assert header.is_transactional
            values = [record.value for record in decode_batch(batch)]
            self.batches.append(
                (request.transactional_id, part.index, header.producer_epoch, header.base_sequence, values)
            )
        answer = {"index": part.index, "error_code": 0, "base_offset": 40} | self._next(0)
        return response_entity(0, 12, {"responses": [{"name": topic.name, "partition_responses": [answer]}]})

    def _next(self, api: int) -> dict[str, Any]:
        said = self.script.get(api)
        if not said:
            return {}
        one = said.pop(0)
        if isinstance(one, BaseException):
            raise one
        return {"error_code": one} if isinstance(one, int) else one


def asking(story: Callable[[Broker], Awaitable[None]]) -> None:
    clock = SimulatedClock()

    async def main() -> None:
        await story(Broker())

    virtual_time.run(main(), clock)


async def write(producer: TransactionalProducer, *values: bytes, partition: int = 0) -> int:
    records = [Record(value=value, timestamp_ms=1000) for value in values]
    return await producer.write("t", partition, records)


def test_sequences_go_on_in_each_partition_and_begin_again_with_each_transaction():
    async def story(broker):
        producer = await broker.begin("tx")

        assert await write(producer, b"a", b"b") == 40
        await write(producer, b"c")
        await write(producer, b"d", partition=1)
        await producer.commit()
        await write(producer, b"e")
        await producer.abort()

        assert broker.batches == [
            ("tx", 0, 0, 0, [b"a", b"b"]),
            ("tx", 0, 0, 2, [b"c"]),
            ("tx", 1, 0, 0, [b"d"]),
            ("tx", 0, 1, 0, [b"e"]),
        ]
        assert [(end.producer_epoch, end.committed) for end in broker.ends] == [(0, True), (1, False)]
        assert producer.member == Participant("tx", 7, 2)

    asking(story)


@pytest.mark.parametrize("failure", [NOT_ENOUGH_REPLICAS, ConnectionFailed(AT, "reset")])
def test_a_batch_whose_answer_was_lost_is_sent_again_under_its_number(failure):
    async def story(broker):
        producer = await broker.begin("tx")
        broker.script[0] = [failure, failure]

        assert await write(producer, b"a") == 40

        assert broker.batches == [("tx", 0, 0, 0, [b"a"])] * 3
        await write(producer, b"b")
        assert broker.batches[-1] == ("tx", 0, 0, 1, [b"b"])

    asking(story)


@pytest.mark.parametrize(
    "failure", [MESSAGE_TOO_LARGE, ConnectionFailed(AT, "reset"), asyncio.CancelledError()]
)
def test_a_transaction_that_may_have_lost_a_batch_can_only_be_aborted(failure):
    async def story(broker):
        producer = await broker.begin("tx")
        await write(producer, b"a")
        broker.script[0] = [failure] * 100
        with pytest.raises(type(failure) if isinstance(failure, BaseException) else Refused):
            await write(producer, b"lost")
        broker.script[0] = []
        sent = len(broker.batches)

        with pytest.raises(Refused, match="abort"):
            await write(producer, b"would be taken for it")
        with pytest.raises(Refused, match="abort"):
            await producer.commit()
        assert len(broker.batches) == sent
        assert broker.ends == []

        await producer.abort()
        assert not broker.ends[0].committed
        await write(producer, b"b")
        await producer.commit()
        assert broker.ends[1].committed

    asking(story)


@pytest.mark.parametrize("failure", [NOT_COORDINATOR, CONCURRENT, ConnectionFailed(AT, "reset")])
def test_an_end_is_asked_for_until_it_is_decided_in_the_same_epoch(failure):
    async def story(broker):
        producer = await broker.begin("tx")
        await write(producer, b"a")
        broker.script[END] = [failure]

        await producer.commit()

        assert [end.producer_epoch for end in broker.ends] == [0, 0]
        assert broker.asked.count(FIND) == 2, "who does not answer may not be the one any more"

    asking(story)


def test_a_producer_that_is_fenced_is_told_so_and_goes_on_as_nobody():
    async def story(broker):
        producer = await broker.begin("tx")
        await write(producer, b"a")
        broker.script[END] = [FENCED]

        with pytest.raises(Refused) as refused:
            await producer.commit()

        assert refused.value.code == FENCED
        assert producer.member == Participant("tx", 7, 0)

    asking(story)


def test_without_a_write_there_is_nothing_to_end():
    async def story(broker):
        producer = await broker.begin("tx")
        await producer.commit()
        await producer.abort()
        assert broker.ends == []

    asking(story)


def test_who_leaves_without_a_commit_aborts():
    async def story(broker):
        async with await broker.begin("tx") as producer:
            await write(producer, b"a")
            await producer.commit()
            await write(producer, b"b")

        assert [end.committed for end in broker.ends] == [True, False]

    asking(story)


def test_who_begins_waits_until_what_was_open_is_aborted():
    async def story(broker):
        broker.script[INIT] = [CONCURRENT, CONCURRENT]

        producer = await broker.begin("tx")

        assert broker.asked.count(INIT) == 3
        assert producer.member == Participant("tx", 7, 0)

    asking(story)


def test_a_group_is_committed_where_its_members_are_coordinated():
    async def story(broker):
        member = Participant("spark.q.0", 7, 0)

        assert await broker.commit_group("spark.q", 5, [member], after=3) == Decision(batch_id=5, is_new=True)
        assert await broker.read_decision("spark.q") == 3
        broker.script[READ_DECISION] = [{"batch_id": -1}]
        assert await broker.read_decision("spark.q") is None
        await broker.forget_decision("spark.q", 5)
        broker.script[FORGET_DECISION] = [FENCED]
        with pytest.raises(Refused):
            await broker.forget_decision("spark.q", 5)

    asking(story)


def test_a_proof_travels_with_the_decision_and_comes_back_to_who_asks_again():
    async def story(broker):
        await broker.commit_group("spark.q", 5, [], after=3, proof=b"what it was")
        assert broker.said[-1].proof == b"what it was"

        broker.script[COMMIT_GROUP] = [{"batch_id": 6, "is_new": False, "proof": b"another"}]
        again = await broker.commit_group("spark.q", 5, [], after=3, proof=b"what it was")
        assert again == Decision(batch_id=6, is_new=False, proof=b"another")

        broker.script[READ_DECISION] = [{"batch_id": 6, "proof": b"another"}]
        assert await broker.newest_decision("spark.q") == again

    asking(story)


def test_a_broker_of_the_version_before_keeps_no_proofs_and_decides_all_the_same():
    async def story(broker):
        broker.versions = OLD_VERSIONS

        decided = await broker.commit_group("spark.q", 5, [], after=3, proof=b"what it was")

        assert decided == Decision(batch_id=5, is_new=True)
        assert await broker.newest_decision("spark.q") == Decision(batch_id=3, is_new=False)

    asking(story)


def test_what_members_of_a_group_have_open_is_aborted_and_of_no_other_group():
    async def story(broker):
        names = ["spark.q.0", "spark.q@t.0", "spark.q@t.12", "spark.q@t.a.0", "other"]
        broker.script[LIST] = [
            {
                "transaction_states": [
                    {"transactional_id": name, "producer_id": 1, "transaction_state": "Ongoing"}
                    for name in names
                ]
            }
        ]

        await broker.abort_group("spark.q@t")

        ended = [one.transactional_id for one in broker.said if one.__api_key__ == INIT]
        assert ended == ["spark.q@t.0", "spark.q@t.12"]

    asking(story)


def test_only_a_coordinator_is_asked_what_members_have_open():
    async def story(broker):
        broker.script[READ_DECISION] = [NOT_COORDINATOR]

        await broker.abort_group("spark.q")

        assert broker.asked == [FIND, READ_DECISION, FIND, READ_DECISION, LIST]

    asking(story)


def test_a_reset_says_so():
    async def story(broker):
        await broker.forget_decision("spark.q", 5)
        await broker.forget_decision("spark.q", 5, is_reset=True)

        assert [one.is_reset for one in broker.said if one.__api_key__ == FORGET_DECISION] == [False, True]

    asking(story)


def test_a_decision_is_asked_for_again_where_its_answer_was_lost_and_a_refusal_is_told():
    async def story(broker):
        broker.script[COMMIT_GROUP] = [
            ConnectionFailed(AT, "reset"),
            NOT_COORDINATOR,
            {"batch_id": 6, "is_new": False},
        ]
        assert not (await broker.commit_group("spark.q", 5, [], after=None)).is_new

        broker.script[COMMIT_GROUP] = [{"error_code": FENCED, "error_message": "spark.q.1 is old"}]
        with pytest.raises(Refused, match=r"spark\.q\.1 is old"):
            await broker.commit_group("spark.q", 7, [], after=6)

    asking(story)
