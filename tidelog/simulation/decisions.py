"""Batches of a group, each written by many producers and committed by one decision.

A driver writes what comes after the newest decision, as Spark's would: it reads the decision, lets
members write their shares, and asks for all to be committed as that batch. Several drivers do so
for the same group; each may fall asleep at any point, and comes back with what it had: an old
batch, old members, or none of them fenced.

What must hold is "a batch is visible once" (`transaction_watch`): all rows of every decided batch
are visible, each once, and of no other batch any. And a decision proves what its batch was: whoever
reads it, or asks for the batch again, is told what its driver has said of it.
"""

from typing import TYPE_CHECKING, Any, Final

from tidelog.client.cluster import Refused, check
from tidelog.client.transactions import TRANSACTION_KEY
from tidelog.client.wire import ConnectionFailed
from tidelog.errors import TidelogError
from tidelog.simulation.history import Transacting
from tidelog.simulation.transaction_watch import BATCH
from tidelog.simulation.transactional import NOT_DONE, Producer, Value
from tidelog.wire.apis import Api
from tidelog.wire.batches_decided import Counting

if TYPE_CHECKING:
    from tidelog.simulation.transactions import TransactionLoad

SLOTS_MAX: Final = 3
_PAUSE_SECONDS: Final = 1.0
PAUSE_SECONDS_MAX: Final = 16.0
"""Two who fence each other get on once one of them waits for long enough."""
_TIMEOUT_FACTOR: Final = 4
"""Members wait for each other, and so for longer than others do."""
_REPEAT_CHANCE: Final = 0.2


def rows_of(batch: int) -> int:
    """How many rows a batch has, whoever writes it."""
    return batch * 5 % 7 + 1


def proof_of(batch: int) -> bytes | None:
    """What is said of a batch, whoever writes it; nothing of none."""
    return b"%d rows in batch %d" % (rows_of(batch), batch) if batch >= 0 else None


class Driver:
    """One process that believes to be the only one that drives a group."""

    def __init__(self, load: "TransactionLoad", group: str, name: str) -> None:
        self._load = load
        self._group = group
        self._name = name
        self._me, self.host = load.producer(name, f"{group}.0", bumps=True)
        self._attempts = 0
        self._was_lost = False
        """The answer to a request for a decision was lost."""

    async def drive(self) -> None:
        """Write batch after batch."""
        pause = _PAUSE_SECONDS
        while True:
            try:
                await self._write_next()
                pause = _PAUSE_SECONDS
            except TidelogError as error:
                self._load.world.trace.note(self._name, f"{type(error).__name__}: {error}")
                await self._me.pause(pause)
                pause = min(pause * 2, PAUSE_SECONDS_MAX)
            await self._me.pause(self._load.think_seconds() * 4)

    async def _write_next(self) -> None:
        found = await self._me.insist(self._read_decision)
        batch = found.batch_id + 1
        await self._nap()
        self._attempts += 1
        txn = self._load.history.begin_txn(self._name)
        self._was_lost = False
        try:
            members = await self._write(batch, txn)
            await self._nap()
            is_new = await self._commit(batch, members, found.batch_id)
        except TidelogError:
            (txn.info if self._was_lost else txn.fail)()
            raise
        self._load.world.trace.note(self._name, f"batch {batch}: new {is_new}")
        if is_new:
            txn.ok()
            self._load.got_on(self._group)
        elif self._was_lost:
            txn.info()
        else:
            txn.fail()
        # A driver that died before it noted the batch asks for it once more.
        if self._me.rolls(_REPEAT_CHANCE) and await self._commit(batch, members, found.batch_id):
            self._load.world.fail(BATCH, f"{self._group} {batch} was decided twice")

    async def _nap(self) -> None:
        if self._me.rolls(self._load.txn_pace.nap_chance * 2):
            timeout_ms = self._load.txn_pace.timeout_ms * _TIMEOUT_FACTOR
            await self._me.pause(timeout_ms * 2 / 1000)

    async def _read_decision(self) -> Any:
        answer = await self._me.client.of(
            self._group, TRANSACTION_KEY, Api.READ_DECISION, 1, {"group": self._group}
        )
        check(answer.error_code, self._group)
        self._check_proof(answer.batch_id, answer.proof)
        return answer

    def _check_proof(self, batch: int, proof: bytes | None) -> None:
        if proof != proof_of(batch):
            self._load.world.fail(BATCH, f"{self._group} {batch} has the proof {proof!r}")

    async def _write(self, batch: int, txn: Transacting) -> list[dict[str, Any]]:
        """Let members write the rows, cut anew with every attempt; as whom they did."""
        load, me = self._load, self._me
        label = f"{self._name}/{batch}/{self._attempts}"
        shares: list[list[int]] = [[] for _ in range(me.draw(1, SLOTS_MAX))]
        for row in range(rows_of(batch)):
            me.choose(shares).append(row)
        members = []
        for slot, rows in enumerate(shares):
            member = Producer(
                self._name,
                f"{self._group}.{slot}",
                me.client,
                me.generator,
                bumps=True,
                timeout_ms=load.txn_pace.timeout_ms * _TIMEOUT_FACTOR,
                patience_seconds=load.txn_pace.patience_seconds,
                wall_ms=self.host.process.clock.wall_ms,
            )
            await member.init()
            for row in rows:
                value = Value("b", label, row, f"{self._group}/{batch}/{row}").encode()
                await load.send(member, txn, me.choose(load.places), [value])
            members.append(
                {
                    "transactional_id": member.id,
                    "producer_id": member.producer_id,
                    "producer_epoch": member.epoch,
                }
            )
        return members

    async def _commit(self, batch: int, members: list[dict[str, Any]], after: int) -> bool:
        """Ask for the decision until it is known; whether it is this request's."""
        fields = {
            "group": self._group,
            "batch_id": batch,
            "after": after,
            "counting": Counting.QUERY.value,
            "members": members,
            "proof": proof_of(batch),
        }

        async def attempt() -> Any:
            try:
                answer = await self._me.client.of(self._group, TRANSACTION_KEY, Api.COMMIT_GROUP, 2, fields)
            except ConnectionFailed:
                self._was_lost = True
                raise
            try:
                check(answer.error_code, f"{self._name} decides {batch}", answer.error_message)
            except Refused as error:
                if error.retriable and error.code not in NOT_DONE:
                    self._was_lost = True
                raise
            return answer

        answer = await self._me.insist(attempt)
        if not answer.is_new:
            self._check_proof(answer.batch_id, answer.proof)
        return bool(answer.is_new)
