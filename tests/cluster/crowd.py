"""A consumer group whose members come and go, and can be held up in the middle of a rebalance.

Rule 1: a member commits what it has read, and notes the commit once it is acknowledged.
Rule 2: it hands over its partitions only when its last commit is answered or refused. So whoever
        follows must begin at or behind every acknowledged commit, and before anything unread.
Rule 3: failures are noted where they are seen and raised by `check`: the client's library logs and
        forgets what a callback raises.
"""

import asyncio
import logging
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, Final

from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from aiokafka.errors import KafkaError

HEARTBEAT_MS: Final = 100
SESSION_MS: Final = 1000
"""A member that left while nobody noted it is waited for so long."""
BACKOFF_MS: Final = 50
POLL_MS: Final = 50
SECONDS_MAX: Final = 30.0


class Gate:
    """Where the group's leader passes before it says who gets what; open unless it is shut."""

    def __init__(self) -> None:
        self._open = threading.Event()
        self._open.set()

    def shut(self) -> None:
        self._open.clear()

    def open(self) -> None:
        self._open.set()

    def assignor(self) -> type:
        gate = self._open

        class Held(RoundRobinPartitionAssignor):  # type: ignore[misc]
            @classmethod
            def assign(cls, cluster: Any, members: Any) -> Any:
                # This stops all members, and that is as well: they have nothing to do meanwhile.
                gate.wait(SECONDS_MAX)
                return super().assign(cluster, members)

        return Held


class Member(ConsumerRebalanceListener):  # type: ignore[misc]
    """One consumer, in the crowd's event loop."""

    def __init__(self, crowd: "Crowd", name: str) -> None:
        self._crowd = crowd
        self.name = name
        self.generation = -1
        self.partitions: frozenset[int] = frozenset()
        self._is_leaving = False
        self.may_hand_over = asyncio.Event()
        self._committing = asyncio.Lock()
        self._begin_at_least: dict[int, int] = {}
        self._consumer = crowd.consumer(name)
        self._consumer.subscribe([crowd.topic], listener=self)
        self.task = asyncio.create_task(self._live())

    def leave(self) -> None:
        self._is_leaving = True
        self.may_hand_over.set()

    async def _live(self) -> None:
        try:
            await self._consumer.start()
            while not self._is_leaving:
                found = await self._consumer.getmany(timeout_ms=POLL_MS, max_records=200)
                read = {place: self._note(place.partition, r) for place, r in found.items() if r}
                if read:
                    await self._commit(read)
        except Exception as error:
            self._crowd.fail(f"{self.name}: {error!r}")
        finally:
            await self._consumer.stop()

    def _note(self, partition: int, records: list[Any]) -> int:
        offsets = [record.offset for record in records]
        first, end = offsets[0], offsets[-1] + 1
        if offsets != list(range(first, end)):
            self._crowd.fail(f"{self.name} got a gap in {partition}: {offsets}")
        least = self._begin_at_least.pop(partition, 0)
        if first < least:
            self._crowd.fail(
                f"{self.name} was sent back to {first} in {partition}, but the commit of {least} "
                "was acknowledged"
            )
        read_end = self._crowd.read_end[partition]
        if first > read_end:
            self._crowd.fail(f"{self.name} skipped {read_end} to {first - 1} in {partition}")
        self._crowd.read_end[partition] = max(read_end, end)
        return end

    async def _commit(self, read: dict[Any, int]) -> None:
        async with self._committing:
            if not all(place.partition in self.partitions for place in read):
                return  # handed over meanwhile
            try:
                await self._consumer.commit(read)
            except KafkaError:
                return  # perhaps it is stored, perhaps not
        committed = self._crowd.committed
        for place, end in read.items():
            committed[place.partition] = max(committed[place.partition], end)

    # Called by the library.

    async def on_partitions_revoked(self, revoked: Iterable[Any]) -> None:
        async with self._committing:
            self.partitions = frozenset()
        await self.may_hand_over.wait()

    async def on_partitions_assigned(self, assigned: Iterable[Any]) -> None:
        self.partitions = frozenset(place.partition for place in assigned)
        self.generation = self._consumer._coordinator.generation
        self._begin_at_least = {p: self._crowd.committed.get(p, 0) for p in self.partitions}
        for partition in self.partitions:
            owners = self._crowd.owners[self.generation, partition]
            owners.add(self.name)  # perhaps not for the first time: it may ask again
            if len(owners) > 1:
                self._crowd.fail(f"{partition} in generation {self.generation} went to {owners}")


class Crowd:
    """The members of one group, in a thread of their own. Its methods are for other threads."""

    def __init__(self, bootstrap: str, group: str, topic: str) -> None:
        self._bootstrap = bootstrap
        self.group = group
        self.topic = topic
        self.gate = Gate()
        self._assignor = self.gate.assignor()
        self._members: list[Member] = []
        self._leavers: list[Member] = []
        self._born = 0
        self._is_held = False
        self._failures: list[str] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="crowd", daemon=True)
        self.committed: dict[int, int] = defaultdict(int)
        """By partition, the greatest offset whose commit was acknowledged."""
        self.read_end: dict[int, int] = defaultdict(int)
        """By partition, how far the group has read, without a gap."""
        self.owners: dict[tuple[int, int], set[str]] = defaultdict(set)
        """By generation and partition, who was given it."""

    def __enter__(self) -> "Crowd":
        # It complains of each lost connection, and this is all about losing them.
        logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        try:
            self.release()
            self._call(self._end, error is not None)
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(SECONDS_MAX)
            assert not self._thread.is_alive()
            self._loop.close()

    def consumer(self, name: str) -> Any:
        return AIOKafkaConsumer(
            bootstrap_servers=self._bootstrap,
            group_id=self.group,
            client_id=name,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=HEARTBEAT_MS,
            retry_backoff_ms=BACKOFF_MS,
            fetch_max_wait_ms=100,
            partition_assignment_strategy=(self._assignor,),
        )

    def fail(self, what: str) -> None:
        self._failures.append(what)

    def check(self) -> None:
        assert not self._failures, "\n".join(self._failures)

    # From other threads.

    def _call(self, work: Callable[..., Any], *arguments: Any) -> Any:
        async def run() -> Any:
            result = work(*arguments)
            return await result if asyncio.iscoroutine(result) else result

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(SECONDS_MAX)

    def hold(self) -> None:
        """Nobody hands over partitions from now on, so a rebalance that begins does not end."""
        self._call(self._set_held, True)

    def release(self) -> None:
        self.gate.open()
        self._call(self._set_held, False)

    def join(self, count: int) -> None:
        """New members set out to join."""
        self._call(self._join, count)

    def leave(self, count: int) -> None:
        """The oldest members set out to leave, with a word to the coordinator."""
        self._call(self._leave, count)

    @property
    def size(self) -> int:
        return len(self._members)

    def is_settled(self, partitions: int) -> bool:
        """Whether those who left are gone, and the rest share all partitions in one generation."""
        return bool(self._call(self._is_settled, partitions))

    # In the loop.

    def _set_held(self, is_held: bool) -> None:
        self._is_held = is_held
        for member in self._members:
            if is_held:
                member.may_hand_over.clear()
            else:
                member.may_hand_over.set()

    def _join(self, count: int) -> None:
        for _ in range(count):
            self._born += 1
            member = Member(self, f"member-{self._born}")
            member.may_hand_over.set()  # it has nothing yet
            self._members.append(member)

    def _leave(self, count: int) -> None:
        leavers, self._members = self._members[:count], self._members[count:]
        for member in leavers:
            member.leave()
        self._leavers += leavers

    def _is_settled(self, partitions: int) -> bool:
        held = [p for member in self._members for p in member.partitions]
        generations = {member.generation for member in self._members}
        return (
            all(member.task.done() for member in self._leavers)
            and sorted(held) == list(range(partitions))
            and len(generations) == 1
        )

    async def _end(self, is_failure: bool) -> None:
        self._leave(len(self._members))
        tasks = [member.task for member in self._leavers]
        # After a failure there may be no node to say goodbye to.
        await asyncio.wait(tasks, timeout=1 if is_failure else SECONDS_MAX)
        assert is_failure or all(task.done() for task in tasks), "members do not leave"
