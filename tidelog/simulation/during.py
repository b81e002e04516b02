"""Liveness during a fault: what the design covers must not wait for the fault to end.

`writes_go_on` lets a fault begin and demands that writes with acks=all go on while it lasts: each
is acknowledged within a bound, on every partition of a topic that is there for this alone. It is
for faults that leave a majority at work: a node that is paused or cut off from one other, a disk
that is full. A situation calls it from the function that lets its kind of fault happen, in a plan
that has no other fault at that time.

| invariant                      | meaning                                                       |
|--------------------------------|---------------------------------------------------------------|
| writes go on during a fault    | whoever asks any node who leads, and writes there, is         |
|                                | acknowledged within the bound, though it was asked in a fault |
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

from tidelog.client.kafka import KafkaClient
from tidelog.errors import TidelogError
from tidelog.records import Record, encode_batch
from tidelog.simulation.node_calls import raise_error
from tidelog.simulation.nodes import bootstrap
from tidelog.simulation.story import create_topic
from tidelog.simulation.world import World

GOES_ON: Final = "writes go on during a fault"
TOPIC: Final = "during"
_TRY_SECONDS: Final = 1.5
_ASK_SECONDS: Final = 0.4
"""Of each request: a node that says nothing must not use up a whole try."""
_PAUSE_SECONDS: Final = 0.1
_CHECK_EVERY: Final = 50


def writes_go_on(
    world: World, begin: Callable[[], object], *, what: str, seconds: float, allowed_seconds: float
) -> None:
    """Let `begin` start the fault `what` once the cluster acknowledges writes to every partition.

    For `seconds` from then on, a write that is not acknowledged within `allowed_seconds` is a
    Violation. The fault must last at least as long; it ends by itself.
    """
    _Prober(world, begin, what=what, seconds=seconds, allowed_seconds=allowed_seconds).start()


class _Prober:
    """Writes to every partition of a topic of its own, one record after the other."""

    def __init__(
        self, world: World, begin: Callable[[], object], *, what: str, seconds: float, allowed_seconds: float
    ) -> None:
        assert seconds > allowed_seconds, "or nothing would be judged"
        self._world = world
        self._begin = begin
        self._what = what
        self._seconds = seconds
        self._allowed_seconds = allowed_seconds
        self._random = world.fork(f"during {what}")
        self._client = world.client("prober")
        self._partitions = range(2 * len(world.machines))
        self._asked_at: dict[int, float] = {}
        """When each write was begun that is not acknowledged yet."""
        self._ends_at: float | None = None

    def start(self) -> None:
        self._spawn(self._run())
        self._world.invariant(GOES_ON, self._problem, every=_CHECK_EVERY)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self._client.spawn(work).add_done_callback(raise_error)

    def _problem(self) -> str | None:
        now = self._world.now
        if self._ends_at is None or now > self._ends_at:
            return None
        for partition, asked_at in self._asked_at.items():
            if now - asked_at > self._allowed_seconds:
                return f"{self._what}: a write to {TOPIC}-{partition} has waited for {now - asked_at:.1f} s"
        return None

    # What it does.

    async def _run(self) -> None:
        await self._insist(self._create)
        for partition in self._partitions:
            await self._insist(lambda client, p=partition: self._write(client, p))  # type: ignore[misc]
        self._ends_at = self._world.now + self._seconds
        self._world.after(0, self._begin)
        for partition in self._partitions:
            self._spawn(self._go_on(partition, self._ends_at))

    async def _go_on(self, partition: int, until: float) -> None:
        while self._world.now < until:
            self._asked_at[partition] = self._world.now
            await self._insist(lambda client: self._write(client, partition))
            del self._asked_at[partition]
            await asyncio.sleep(_PAUSE_SECONDS * 2 * self._random.random())

    async def _insist(self, work: Callable[[KafkaClient], Coroutine[Any, Any, None]]) -> None:
        """Try at any node, as a client does that knows nothing, until it is done."""
        while True:
            nodes = list(self._world.machines)
            self._random.shuffle(nodes)
            client = KafkaClient(
                ",".join(map(bootstrap, nodes)), network=self._client.network, timeout_seconds=_ASK_SECONDS
            )
            try:
                async with asyncio.timeout(_TRY_SECONDS):
                    return await work(client)
            except (TidelogError, TimeoutError) as error:
                self._world.trace.note("prober", f"{type(error).__name__}: {error}")
                await asyncio.sleep(_PAUSE_SECONDS * self._random.random())
            finally:
                client.close()

    async def _create(self, client: KafkaClient) -> None:
        await create_topic(
            client,
            TOPIC,
            partitions=len(self._partitions),
            replication=min(3, len(self._world.machines)),
            configs={"min.insync.replicas": "2"},
        )

    async def _write(self, client: KafkaClient, partition: int) -> None:
        record = Record(value=b"probe", timestamp_ms=self._client.process.clock.wall_ms())
        await client.produce(TOPIC, partition, encode_batch([record]))
