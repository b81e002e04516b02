"""What all stories of a cluster share: their clients come, insist, and must get on in the end.

Rule 1: `get_on` goes through the same steps in every story. All sound nodes are up; everybody gets
        on; the clients stop, and what they sent arrives. Then each story waits for what must become
        of that, and judges all that its clients were told.
Rule 2: nothing is drawn here but the order in which a client asks nodes, and its pauses, from the
        generator of whoever asks: so a story that uses less of it plays as it did.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Collection, Coroutine, Hashable, Iterable, Sequence
from typing import Any, Final, Protocol, TypeVar

from kio.schema.errors import ErrorCode

from tidelog.client.cluster import Refused
from tidelog.client.kafka import KafkaClient
from tidelog.errors import TidelogError
from tidelog.simulation.machine import Machine
from tidelog.simulation.node_calls import raise_error
from tidelog.simulation.nodes import bootstrap
from tidelog.simulation.world import Client, World

T = TypeVar("T")
K = TypeVar("K", bound=KafkaClient)

LIVENESS: Final = "liveness"
PAUSE_SECONDS: Final = 0.2
LAST_REQUESTS_SECONDS: Final = 3.0
"""What clients sent before they were told to stop may arrive for so long."""


class Anomaly(Protocol):
    """Something that clients were told, and that cannot be."""

    @property
    def rule(self) -> str: ...


class OneTry:
    """Asks once: what came of a request that was sent twice could not be told."""

    async def retry(self, attempt: Callable[[], Awaitable[T]]) -> T:
        return await attempt()


class Story:
    """The clients of one cluster, what they did, and how they end."""

    def __init__(self, world: World, *, timeout_seconds: float = 1.0) -> None:
        """`timeout_seconds` is how long its clients of Kafka's protocol wait for an answer."""
        self.world = world
        self.operations = 0
        self.acknowledged = 0
        self._timeout_seconds = timeout_seconds
        self._hosts = [world.client(f"client-{number}") for number in world.machines]
        self._tasks: list[asyncio.Task[None]] = []
        self._not_yet: dict[Hashable, None] = {}
        """Who has yet to show, after healing, that it gets on."""

    def start(self) -> None:
        self._spawn(self._hosts[0], self._begin())

    async def _begin(self) -> None:
        """Make what the story needs, and let its clients come."""
        raise NotImplementedError

    def _host(self, number: int) -> Client:
        return self._hosts[number % len(self._hosts)]

    def _spawn(self, host: Client, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Let a client do its work until all are told to stop. It ends by itself only if it is done."""
        task = host.spawn(work)
        task.add_done_callback(raise_error)
        self._tasks.append(task)
        return task

    def _stay(self, host: Client, work: Coroutine[Any, Any, None]) -> None:
        """Let somebody go on until everything is over."""
        host.spawn(work).add_done_callback(raise_error)

    def _client(self, host: Client, generator: random.Random, kind: type[K]) -> K:
        """A client that asks the nodes in an order of its own."""
        nodes = list(self.world.machines)
        generator.shuffle(nodes)
        return kind(
            ",".join(map(bootstrap, nodes)), network=host.network, timeout_seconds=self._timeout_seconds
        )

    async def _insist(
        self,
        who: str,
        generator: random.Random,
        attempt: Callable[[], Coroutine[Any, Any, T]],
        errors: tuple[type[Exception], ...] = (TidelogError,),
    ) -> T:
        """Try again until it is done, whatever the nodes say: they have their troubles."""
        while True:
            try:
                return await attempt()
            except errors as error:
                self.world.trace.note(who, f"{type(error).__name__}: {error}")
                await asyncio.sleep(PAUSE_SECONDS * generator.random())

    # After healing.

    def get_on(self, seconds_max: float) -> None:
        """Nothing is broken any more: see that everybody gets on, then that all of it is true."""
        world = self.world
        sound = [machine for machine in world.machines.values() if not machine.is_damaged]
        if len(sound) <= len(world.machines) // 2:
            return  # a quorum bears the damage of a minority, and no more
        world.run_until(lambda: world.all_up(sound), seconds_max, name=LIVENESS)
        self._healed()
        self._not_yet = dict.fromkeys(self._expected())
        world.run_while(self._not_got_on, seconds_max, name=LIVENESS)
        self._end(sound, seconds_max)

    def _healed(self) -> None:
        """All sound nodes are up."""

    def _expected(self) -> Iterable[Hashable]:
        """Who must get on."""
        raise NotImplementedError

    def _end(self, sound: list[Machine], seconds_max: float) -> None:
        """Stop the clients, wait for what must come of what they asked for, and judge."""
        raise NotImplementedError

    def _not_got_on(self) -> str | None:
        return f"these do not get on: {list(self._not_yet)}" if self._not_yet else None

    def _stop(self, seconds: float = LAST_REQUESTS_SECONDS) -> None:
        """Tell the clients to stop, and let what they sent arrive."""
        for task in self._tasks:
            task.cancel()
        self.world.run(seconds)

    def _finish(self, tasks: Collection["asyncio.Task[None]"], seconds_max: float) -> None:
        """The last ones look at everything."""
        self.world.run_until(lambda: all(t.done() for t in tasks), seconds_max, name=LIVENESS)
        self.world.check_now()

    def _blame(self, anomalies: Sequence[Anomaly]) -> None:
        """Fail by the first anomaly, if there are any."""
        if anomalies:
            more = f" (and {len(anomalies) - 1} more)" if len(anomalies) > 1 else ""
            self.world.fail(anomalies[0].rule, f"{anomalies[0]}{more}")


async def create_topic(client: KafkaClient, name: str, **options: Any) -> None:
    """Create a topic, unless an earlier attempt has done so, and its answer was lost."""
    try:
        await client.create_topic(name, **options)
    except Refused as error:
        if error.code != ErrorCode.topic_already_exists:
            raise
