"""How long a consumer group is without its partitions when members come and go.

Rule 1: members speak the classic protocol, each over a connection of its own, all from one event
        loop. They do what consumers do and nothing else: the assignment is one partition each.
Rule 2: nobody waits for a heartbeat's turn. When somebody joins or leaves, the others send theirs
        right after it, and again if that was too early. A real group adds the time until members'
        next heartbeats: up to `heartbeat.interval.ms`, 3 s by default, whatever the broker does.
Rule 3: a rebalance has ended when every member holds its share of one generation.
Rule 4: the limit is what the protocol cannot do without: three answers for every member, one after
        the other. A cold start asks JoinGroup for an id, JoinGroup, SyncGroup; later it is
        Heartbeat, JoinGroup, SyncGroup. It is measured with plain heartbeats, which change nothing,
        over the same connections right before. Unlike them, a rebalance waits for its slowest
        member twice, and for one sync of the disk.
"""

import asyncio
import struct
from collections.abc import Awaitable, Callable, Iterable, Sequence
from time import perf_counter
from typing import Any, Final

from benchmarks.bench import Bench, Steps, run_fast
from benchmarks.process import cpu_seconds
from benchmarks.report import Measured, Report, Result, result
from tests.support.node import NodeProcess
from tidelog.client.cluster import check
from tidelog.client.kafka import KafkaClient
from tidelog.client.wire import Connection
from tidelog.errors import MemberIdRequired, RebalanceInProgress
from tidelog.model import Endpoint
from tidelog.wire.apis import Api

NAME: Final = "rebalance"

SIZES: Final = (10, 100)
SIZES_FULL: Final = (*SIZES, 500)
REPEATS: Final = 4
"""Of every round: CPU time is counted in steps of 10 ms."""
ANSWERS: Final = 3
"""How many every member needs."""

TOPIC: Final = "shared"
PROTOCOL: Final = "range"
SESSION_MS: Final = 45_000
REBALANCE_MS: Final = 60_000
WAIT_SECONDS_MAX: Final = 60.0
PAUSE_SECONDS: Final = 0.01
"""Who has its share while others have none of that generation asks so often what is wrong."""

COLD, JOINS, LEAVES = "all join at once", "one joins", "one leaves"
KINDS: Final = (COLD, JOINS, LEAVES)


def run(bench: Bench) -> Report:
    measured = Measured()
    sizes = SIZES_FULL if bench.full else SIZES
    with bench.node() as node, Steps(NAME, len(sizes) * bench.rounds) as steps:
        for size in sizes:
            for number in range(bench.rounds):
                steps.begin(f"{size} members")
                run_fast(_round(node, f"group-{size}-{number}", size, measured))
    return Report(
        title="a consumer group until all members have their partitions",
        results=_results(sizes, measured),
        notes=[
            "net of the members' heartbeats: a real group adds up to one interval, 3 s by default",
            f"the limit: {ANSWERS} heartbeats of every member, over the same connections",
        ],
    )


def _results(sizes: Sequence[int], measured: Measured) -> list[Result]:
    limit_name = f"{ANSWERS} heartbeats of each"
    rows = [
        result(
            NAME,
            f"{size} members: {kind}",
            measured.of((kind, size)),
            "ms",
            limits=measured.of(("limit", size)),
            limit_name=limit_name,
        )
        for size in sizes
        for kind in KINDS
    ]
    rows += [
        result(
            NAME,
            f"node, {size} members: one joins or leaves",
            measured.of(("cpu", size)),
            "CPU ms",
            limits=measured.of(("limit cpu", size)),
            limit_name=limit_name,
        )
        for size in sizes
    ]
    return rows


async def _round(node: NodeProcess, name: str, size: int, measured: Measured) -> None:
    """A group from its first member to its last."""
    async with KafkaClient(node.bootstrap) as client:
        await client.create_topic(f"{TOPIC}-{name}", partitions=size + 1)
    group = await Group.connect(node, name, size + 1)
    try:
        *members, another = group.members
        measured.add((COLD, size), await _milliseconds(group.settle(members)))
        for kind in ("limit", "rebalances"):
            cpu = cpu_seconds(node.pid)
            for _ in range(REPEATS):
                if kind == "limit":
                    for _ in range(2):  # one for each of the two rebalances
                        measured.add(("limit", size), await _milliseconds(_beat(members)))
                else:
                    join, leave = group.join(members, another), group.leave(members, another)
                    measured.add((JOINS, size), await _milliseconds(join))
                    measured.add((LEAVES, size), await _milliseconds(leave))
            cpu_ms = (cpu_seconds(node.pid) - cpu) * 1000 / REPEATS / 2
            measured.add(("limit cpu" if kind == "limit" else "cpu", size), cpu_ms)
    finally:
        group.close()


async def _milliseconds(work: Awaitable[object]) -> float:
    started = perf_counter()
    async with asyncio.timeout(WAIT_SECONDS_MAX):
        await work
    return (perf_counter() - started) * 1000


async def _beat(members: Iterable["Member"]) -> None:
    """As many answers as a rebalance takes at least."""

    async def beat(member: Member) -> None:
        for _ in range(ANSWERS):
            assert await member.is_settled(), "a stable group stays so"

    await asyncio.gather(*map(beat, members))


# A group and its members.


class Group:
    """Members that have connections, and perhaps a generation in common."""

    def __init__(self, members: Sequence["Member"]) -> None:
        self.members = members

    @classmethod
    async def connect(cls, node: NodeProcess, name: str, count: int) -> "Group":
        endpoint = Endpoint.parse(node.bootstrap)
        members = [Member(name, await Connection.open(endpoint)) for _ in range(count)]
        # The first question makes `__consumer_offsets`; no member should have to wait for that.
        await members[0].find_coordinator()
        return cls(members)

    async def settle(self, members: Sequence["Member"]) -> None:
        """Let all members take part until they share one generation."""
        settled = asyncio.Event()

        def on_share() -> None:
            if len({m.generation for m in members}) == 1 and all(m.share for m in members):
                settled.set()

        async with asyncio.TaskGroup() as tasks:
            for member in members:
                tasks.create_task(member.take_part(on_share, settled))
        shares = {member.share for member in members}
        assert len(shares) == len(members), "no partition has two owners"

    async def join(self, members: Sequence["Member"], another: "Member") -> None:
        await another.ask_for_id()
        await self.settle([another, *members])

    async def leave(self, members: Sequence["Member"], another: "Member") -> None:
        await another.leave()
        await self.settle(members)

    def close(self) -> None:
        for member in self.members:
            member.connection.close()


class Member:
    """One member; its id is "" until the coordinator has given it one."""

    def __init__(self, group: str, connection: Connection) -> None:
        self.connection = connection
        self.generation = -1
        self.share = b""
        self._group = group
        self._id = ""

    async def take_part(self, on_share: Callable[[], None], settled: asyncio.Event) -> None:
        """Join, and join again as often as others make it necessary, until all is settled."""
        if self.generation >= 0:
            while await self.is_settled():
                pass  # the news has not come yet
        while True:
            await self._join_and_sync()
            on_share()
            while True:
                try:
                    async with asyncio.timeout(PAUSE_SECONDS):
                        await settled.wait()
                    return
                except TimeoutError:
                    if not await self.is_settled():
                        break

    async def find_coordinator(self) -> None:
        await self.connection.call(
            Api.FIND_COORDINATOR, key=self._group, key_type=0, coordinator_keys=[self._group]
        )

    async def ask_for_id(self) -> None:
        """The first request of a new member, which is told to come back with an id."""
        answer = await self._send_join()
        assert answer.error_code == MemberIdRequired.code, "an id comes first"
        self._id = answer.member_id

    async def is_settled(self) -> bool:
        """Send a heartbeat; False if the group asks everyone to join."""
        answer = await self._ask(Api.HEARTBEAT, generation_id=self.generation, member_id=self._id)
        if answer.error_code == RebalanceInProgress.code:
            self.share = b""
            return False
        check(answer.error_code, "heartbeat")
        return True

    async def leave(self) -> None:
        member = {"member_id": self._id, "group_instance_id": None, "reason": None}
        answer = await self._ask(Api.LEAVE_GROUP, members=[member], member_id=self._id)
        check(answer.error_code, "leave")
        self._id, self.generation, self.share = "", -1, b""

    async def _join_and_sync(self) -> None:
        while True:
            joined = await self._join()
            assignments = self._assign(joined) if joined.leader == self._id else []
            synced = await self._ask(
                Api.SYNC_GROUP,
                generation_id=joined.generation_id,
                member_id=self._id,
                protocol_type="consumer",
                protocol_name=PROTOCOL,
                assignments=assignments,
            )
            if synced.error_code != RebalanceInProgress.code:
                check(synced.error_code, "sync")
                self.generation, self.share = joined.generation_id, synced.assignment
                return

    async def _join(self) -> Any:
        if not self._id:
            await self.ask_for_id()
        answer = await self._send_join()
        check(answer.error_code, "join")
        return answer

    async def _send_join(self) -> Any:
        return await self._ask(
            Api.JOIN_GROUP,
            session_timeout=SESSION_MS,
            rebalance_timeout=REBALANCE_MS,
            member_id=self._id,
            protocol_type="consumer",
            protocols=[{"name": PROTOCOL, "metadata": _subscription(self._topic)}],
        )

    def _assign(self, joined: Any) -> list[dict[str, Any]]:
        return [
            {"member_id": member.member_id, "assignment": _assignment(self._topic, number)}
            for number, member in enumerate(joined.members)
        ]

    @property
    def _topic(self) -> str:
        return f"{TOPIC}-{self._group}"

    async def _ask(self, api: Api, **fields: Any) -> Any:
        return await self.connection.call(
            api,
            timeout_seconds=WAIT_SECONDS_MAX,
            group_id=self._group,
            group_instance_id=None,
            reason=None,
            **fields,
        )


# subscription := version: int16 = 1, topics: [string], user_data: bytes? = null, owned: [] = []
# assignment   := version: int16 = 1, [topic: string, [partition: int32]], user_data: bytes? = null
# [x]          := count: int32, x{count}


def _subscription(topic: str) -> bytes:
    return struct.pack(">hih", 1, 1, len(topic)) + topic.encode() + struct.pack(">ii", -1, 0)


def _assignment(topic: str, partition: int) -> bytes:
    head = struct.pack(">hih", 1, 1, len(topic)) + topic.encode()
    return head + struct.pack(">iii", 1, partition, -1)
