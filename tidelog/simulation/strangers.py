"""Strangers: clients that ask for what is not theirs, while everything else happens.

Whatever they send is in the protocol, and any client can send it. A stranger is refused or changes
nothing that others rely on; what must hold of transactions and decisions is said in
`transaction_watch` and `decisions`, and holds with strangers, too.

| kind          | what a stranger sends                                                            |
|---------------|----------------------------------------------------------------------------------|
| forge_marker  | WriteTxnMarkers for what somebody has open, of its epochs or of ones to come     |
| forge_batch   | CommitGroup for a batch of a query that it never wrote: the next, or one far off |
| forget_batch  | ForgetDecision of a query's newest batch, or of another                          |
"""

import random
from collections.abc import Awaitable, Callable, Collection
from typing import Any, Final

from tidelog.client.transactional import TransactionalClient
from tidelog.client.transactions import OpenTransaction
from tidelog.errors import TidelogError
from tidelog.model import TopicPartition
from tidelog.simulation.node_calls import raise_error, up_from
from tidelog.simulation.nodes import bootstrap
from tidelog.simulation.plan import Fault, Plan, moments, with_faults
from tidelog.simulation.transaction_watch import BATCH
from tidelog.simulation.world import World
from tidelog.wire.apis import Api
from tidelog.wire.batches_decided import Counting

_SECONDS: Final = 4.0
_FAR: Final = (0, 0, 0, 1, 2**31 - 1)
"""How far the epochs of strangers are ahead; most are those that they have read."""


class _Client(TransactionalClient):
    """Speaks Kafka's protocol, and asks once."""

    async def retry(self, attempt: Callable[[], Awaitable[Any]]) -> Any:
        return await attempt()


def strangers(plan: Plan, choose: random.Random, enabled: Collection[str]) -> Plan:
    """Strangers come, each with one request."""
    rate = choose.choice((1.0, 3.0, 10.0))  # per simulated second
    drawn = []
    for at in moments(choose, rate, plan.chaos_seconds):
        asked = {"asked": choose.randint(1, plan.nodes)}
        place = {
            "topic": f"tide-{choose.randrange(plan.pace.topics)}",
            "partition": choose.randrange(plan.pace.partitions),
        }
        epochs = {
            "epochs_ahead": min(choose.choice(_FAR), 2**15 - 1),
            "coordinators_ahead": choose.choice(_FAR),
        }
        query = {"query": choose.randrange(2), "ahead": choose.choice((0, 1, 1, 2, 100, 2**62))}
        kinds: dict[str, dict[str, Any]] = {
            "forge_marker": asked | place | epochs,
            "forge_batch": asked | query | {"counting": choose.choice(list(Counting)).value},
            "forget_batch": asked | query,
        }
        kind = choose.choice(list(kinds))
        drawn.append(Fault(at, kind, kinds[kind]))
    return with_faults(plan, drawn)


def forge_marker(
    world: World, asked: int, topic: str, partition: int, epochs_ahead: int, coordinators_ahead: int
) -> None:
    """Abort what somebody has open in a partition."""
    world.count("forge_marker")

    async def forge(client: TransactionalClient) -> None:
        connection = await client.leader(topic, partition)
        response: Any = await connection.call(
            Api.DESCRIBE_PRODUCERS, topics=[{"name": topic, "partition_indexes": [partition]}]
        )
        for one in response.topics[0].partitions[0].active_producers:
            if one.current_txn_start_offset < 0:
                continue
            orphan = OpenTransaction(
                place=TopicPartition(topic, partition),
                producer_id=one.producer_id,
                producer_epoch=min(one.producer_epoch + epochs_ahead, 2**15 - 1),
                first_offset=one.current_txn_start_offset,
                last_timestamp_ms=one.last_timestamp,
                coordinator_epoch=min(max(one.coordinator_epoch, 0) + coordinators_ahead, 2**31 - 1),
            )
            await client.abort_orphan(orphan)

    _come(world, asked, "forge_marker", forge)


def forge_batch(world: World, asked: int, query: int, ahead: int, counting: int) -> None:
    """Have a batch decided that nobody has written."""
    world.count("forge_batch")
    group = f"spark.query-{query}"

    async def forge(client: TransactionalClient) -> None:
        newest = await client.read_decision(group)
        batch = (-1 if newest is None else newest) + ahead
        decided = await client.commit_group(
            group, max(batch, 0), [], after=newest, counting=Counting(counting)
        )
        if decided.is_new:
            world.fail(BATCH, f"{group} {batch} was decided by a stranger")

    _come(world, asked, "forge_batch", forge)


def forget_batch(world: World, asked: int, query: int, ahead: int) -> None:
    """Have it forgotten that a batch was decided."""
    world.count("forget_batch")
    group = f"spark.query-{query}"

    async def forge(client: TransactionalClient) -> None:
        newest = await client.read_decision(group)
        await client.forget_decision(group, (-1 if newest is None else newest) + ahead)

    _come(world, asked, "forget_batch", forge)


def _come(world: World, asked: int, what: str, ask: Callable[[TransactionalClient], Awaitable[None]]) -> None:
    host = world.client("stranger")
    client = _Client(bootstrap(up_from(world, asked)), network=host.network, timeout_seconds=_SECONDS)

    async def come() -> None:
        try:
            await ask(client)
            world.trace.note(host.name, f"{what}: answered")
        except (TidelogError, TimeoutError) as error:
            world.trace.note(host.name, f"{what}: {type(error).__name__}: {error}")
        finally:
            client.close()

    host.spawn(come()).add_done_callback(raise_error)
