"""Writing in transactions, and one decision over many of them.

Rule 1: what is written in a transaction is seen by readers of committed records all together, or
        never. The partitions join by themselves, with the first batch that is written to each.
Rule 2: every transaction has an epoch of its own (KIP-890): a batch that was held up on its way is
        refused rather than taken for a part of the next one.
Rule 3: what may have been done is asked again under the same number: a batch by its sequence, an
        end by its epoch, a decision by its batch. So an answer that was lost does no harm.
Rule 4: a batch that was given up may be in the log all the same, and another under its number would
        be taken for it. So a transaction that has lost one can only be aborted.
"""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Self

from kio.schema.errors import ErrorCode

from tidelog.client.cluster import ANSWER_SECONDS, Refused, check
from tidelog.client.transactions import OPEN_STATES, TransactionsClient
from tidelog.client.wire import Connection
from tidelog.model import NO_PRODUCER, Endpoint, NodeId, Offset, ProducerId, TopicPartition
from tidelog.records import SEQUENCE_MODULUS, TRANSACTIONAL, Codec, Record, encode_batch
from tidelog.wire.apis import Api
from tidelog.wire.batches_decided import NO_BATCH, Counting
from tidelog.wire.entities import request_entity
from tidelog.wire.own import NO_COUNTING

TIMEOUT_MS: Final = 60_000
END_VERSION: Final = 5
"""The first that gives each transaction an epoch of its own."""
PRODUCE_VERSION: Final = 12
"""The last that names topics, and the first with which partitions join by themselves."""


class Participant(NamedTuple):
    """A producer whose transaction is to be committed with those of others."""

    transactional_id: str
    producer_id: ProducerId
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The batch that a group has come to."""

    batch_id: int
    is_new: bool
    """False: it was decided before, and nothing was done now."""
    proof: bytes | None = None
    """Of a batch that was decided before: what it was, if whoever wrote it has said so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDecision:
    """The newest decision of a group, as its coordinator lists it."""

    group: str
    batch_id: int
    decided_ms: int
    members: int
    after: int | None
    """The batch that was decided before it; None if none was."""
    counting: Counting | None
    proof: bytes | None
    coordinator: NodeId


class TransactionalClient(TransactionsClient):
    """A cluster that transactions can be written to."""

    async def begin(self, transactional_id: str, *, timeout_ms: int = TIMEOUT_MS) -> "TransactionalProducer":
        """Take over a transactional id: whoever had it is fenced, and what it left open aborted."""
        fenced = await self.abort_transaction(transactional_id, timeout_ms=timeout_ms)
        return TransactionalProducer(self, transactional_id, fenced.producer_id, fenced.producer_epoch)

    async def commit_group(
        self,
        group: str,
        batch_id: int,
        members: Iterable[Participant],
        *,
        after: int | None,
        counting: Counting = Counting.APPLICATION,
        proof: bytes | None = None,
    ) -> Decision:
        """Commit the open transactions of all members as one batch of their group, or none.

        `after` is what `read_decision` told before the batch was begun; if another was decided
        since, this one is refused. A batch that was decided before is not decided again: nothing is
        done, and the members' transactions stay open. Refused names the member whose transaction
        cannot be committed. `proof` says what the batch is; who asks for the same batch again is
        told it.
        """
        wanted = [
            {
                "transactional_id": member.transactional_id,
                "producer_id": member.producer_id,
                "producer_epoch": member.epoch,
            }
            for member in members
        ]

        async def ask(node: NodeId, connection: Connection) -> Decision:
            answer = await connection.call(
                Api.COMMIT_GROUP,
                group=group,
                batch_id=batch_id,
                members=wanted,
                after=NO_BATCH if after is None else after,
                counting=counting.value,
                proof=proof,
            )
            check(answer.error_code, f"batch {batch_id} of {group!r}", answer.error_message)
            return Decision(
                batch_id=answer.batch_id, is_new=answer.is_new, proof=getattr(answer, "proof", None)
            )

        return await self.ask_coordinator(_any_member(group), ask)

    async def abort_member(self, member: Participant) -> None:
        """Abort the open transaction of a member, if it is still the one that it was."""
        producer = TransactionalProducer(self, *member)
        producer._is_open = True
        await producer.abort()

    async def abort_group(self, group: str, *, timeout_ms: int = TIMEOUT_MS) -> None:
        """Abort whatever members of a group have open, and fence them all.

        All are coordinated by one broker, which alone is asked.
        """

        async def ask(node: NodeId, connection: Connection) -> list[str]:
            await _read_decision(connection, group)  # only the coordinator answers that
            listed = await connection.call(
                Api.LIST_TRANSACTIONS,
                state_filters=sorted(OPEN_STATES),
                producer_id_filters=[],
                duration_filter=-1,
                transactional_id_pattern=None,
            )
            check(listed.error_code, f"transactions of broker {node}")
            names = [one.transactional_id for one in listed.transaction_states]
            return [name for name in names if name.rpartition(".")[0] == group]

        for name in sorted(await self.ask_coordinator(_any_member(group), ask)):
            await self.abort_transaction(name, timeout_ms=timeout_ms)

    async def newest_decision(self, group: str) -> Decision | None:
        """The newest batch that was decided, and what it was; None if none was."""

        async def ask(node: NodeId, connection: Connection) -> Decision | None:
            return await _read_decision(connection, group)

        return await self.ask_coordinator(_any_member(group), ask)

    async def read_decision(self, group: str) -> int | None:
        """The number of the newest batch that was decided; None if none was."""
        newest = await self.newest_decision(group)
        return None if newest is None else newest.batch_id

    async def list_decisions(self) -> list[GroupDecision]:
        """The newest decision of every group, by name."""

        async def ask(node: NodeId, at: Endpoint) -> list[GroupDecision]:
            answer = await (await self._connect(at)).call(Api.LIST_DECISIONS)
            check(answer.error_code, f"decisions of broker {node}", answer.error_message)
            return [
                GroupDecision(
                    group=one.group,
                    batch_id=one.batch_id,
                    decided_ms=one.decided_ms,
                    members=one.members,
                    after=None if one.after < 0 else one.after,
                    counting=None if one.counting == NO_COUNTING else Counting(one.counting),
                    proof=one.proof,
                    coordinator=node,
                )
                for one in answer.decisions
            ]

        async def attempt() -> list[list[GroupDecision]]:
            await self._ask_metadata([], create=False)
            brokers = self._cluster.brokers.items()
            return await asyncio.gather(*(ask(node, at) for node, at in brokers))

        found = [one for some in await self.retry(attempt) for one in some]
        return sorted(found, key=lambda one: one.group)

    async def forget_decision(self, group: str, batch_id: int, *, is_reset: bool = False) -> None:
        """Nothing will be written as this group again, nor asked of it: it had one batch only.

        `is_reset` forgets the decision of any group. Whatever its query writes next is committed,
        also what it has written before: for an operator who knows that this is right.
        """

        async def ask(node: NodeId, connection: Connection) -> None:
            answer = await connection.call(
                Api.FORGET_DECISION, group=group, batch_id=batch_id, is_reset=is_reset
            )
            check(answer.error_code, f"decisions of {group!r}", answer.error_message)

        await self.ask_coordinator(_any_member(group), ask)


async def _read_decision(connection: Connection, group: str) -> Decision | None:
    answer = await connection.call(Api.READ_DECISION, group=group)
    check(answer.error_code, f"decisions of {group!r}", answer.error_message)
    if answer.batch_id < 0:
        return None
    return Decision(batch_id=int(answer.batch_id), is_new=False, proof=getattr(answer, "proof", None))


def _any_member(group: str) -> str:
    """A transactional id of the group, by which its coordinator is found."""
    return f"{group}.0"


class TransactionalProducer:
    """One transactional id, and the transaction that it is in.

    Not to be used by two at once, but for writes to different partitions.
    """

    def __init__(
        self, client: TransactionalClient, transactional_id: str, producer_id: ProducerId, epoch: int
    ) -> None:
        self._client = client
        self._id = transactional_id
        self._producer_id = producer_id
        self._epoch = epoch
        self._sequences: dict[TopicPartition, int] = {}
        self._is_open = False
        self._is_broken = False

    def __repr__(self) -> str:
        return f"<TransactionalProducer {self._id!r} {self._producer_id}:{self._epoch}>"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._is_open:
            await self.abort()

    @property
    def member(self) -> Participant:
        """As whom its open transaction is committed with others."""
        return Participant(self._id, self._producer_id, self._epoch)

    async def write(
        self, topic: str, partition: int, records: Sequence[Record], *, codec: Codec = Codec.NONE
    ) -> Offset:
        """Append one batch; the offset of its first record."""
        self._check_whole()
        place = TopicPartition(topic, partition)
        sequence = self._sequences.get(place, 0)
        batch = encode_batch(
            records,
            codec=codec,
            producer_id=self._producer_id,
            producer_epoch=self._epoch,
            base_sequence=sequence,
            attributes=TRANSACTIONAL,
        )
        self._is_open = True
        try:
            offset = await self._send(place, batch)
        except BaseException:
            self._is_broken = True
            raise
        self._sequences[place] = (sequence + len(records)) % SEQUENCE_MODULUS
        return offset

    async def _send(self, place: TopicPartition, batch: bytearray) -> Offset:
        client = self._client

        async def attempt() -> Offset:
            connection = await client.leader(place.topic, place.partition)
            request = request_entity(
                Api.PRODUCE,
                PRODUCE_VERSION,
                {
                    "transactional_id": self._id,
                    "acks": -1,
                    "timeout": int(client._timeout_seconds * 1000),
                    "topic_data": [
                        {
                            "name": place.topic,
                            "partition_data": [{"index": place.partition, "records": batch}],
                        }
                    ],
                },
            )
            response = await connection.request(
                request, timeout_seconds=client._timeout_seconds + ANSWER_SECONDS
            )
            (answer,) = response.responses[0].partition_responses
            check(answer.error_code, str(place), answer.error_message)
            return int(answer.base_offset)

        return await client.retry(attempt)

    def let_go(self) -> None:
        """Its transaction was committed with those of others; it must begin anew to write again."""
        self._is_open = False

    async def commit(self) -> None:
        """Let readers of committed records see what was written; returns once that is decided."""
        self._check_whole()
        await self._end(commits=True)

    async def abort(self) -> None:
        """Let them never see it."""
        await self._end(commits=False)

    def _check_whole(self) -> None:
        if self._is_broken:
            advice = "a batch could not be written; abort, and begin another"
            raise Refused(ErrorCode.invalid_txn_state, f"the transaction of {self._id!r}", advice)

    async def _end(self, *, commits: bool) -> None:
        if not self._is_open:
            return

        async def ask(node: NodeId, connection: Connection) -> None:
            request = request_entity(
                Api.END_TXN,
                END_VERSION,
                {
                    "transactional_id": self._id,
                    "producer_id": self._producer_id,
                    "producer_epoch": self._epoch,
                    "committed": commits,
                },
            )
            answer = await connection.request(request)
            check(answer.error_code, f"the transaction of {self._id!r}")
            assert answer.producer_id != NO_PRODUCER, "an end without an error says who goes on"
            self._go_on_as(answer.producer_id, answer.producer_epoch)

        await self._client.ask_coordinator(self._id, ask)

    def _go_on_as(self, producer_id: ProducerId, epoch: int) -> None:
        self._producer_id, self._epoch = producer_id, epoch
        self._sequences.clear()
        self._is_open = self._is_broken = False
