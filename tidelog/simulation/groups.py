"""Consumer groups under faults: members that join, fall silent, come back, and commit.

Each group shares out the partitions of one topic. Who owns a partition looks up where the group
was, and commits ever higher offsets; nothing is produced or read, for only the commits are judged.

Rule 1: a member commits one offset at a time. If it cannot tell what became of one, it commits
        nothing more before it is in another generation: then only the coordinator can keep a
        commit that comes late from undoing a newer one.

| invariant                        | meaning                                                       |
|----------------------------------|---------------------------------------------------------------|
| group offset regressed (history) | what was committed or looked up is never followed by less     |
| metadata belongs to its offset   | what a member noted with an offset is told with it, and with  |
|                                  | no other                                                      |
| liveness                         | after healing somebody commits for every partition            |

What must hold of the log that the groups are kept in is said in `replica_watch`, and of generations
and their owners in `group_watch`.
"""

import asyncio
import random
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from kio.schema.errors import ErrorCode

from tidelog.client.admin import NAMED_MOST, AdminClient
from tidelog.client.cluster import Refused, check
from tidelog.client.wire import Connection, ConnectionFailed
from tidelog.errors import TidelogError
from tidelog.model import NO_EPOCH, NO_OFFSET, Offset, TopicPartition
from tidelog.simulation import history_check
from tidelog.simulation.group_watch import GroupWatch
from tidelog.simulation.history import History
from tidelog.simulation.machine import Machine
from tidelog.simulation.quorum import QuorumWatch
from tidelog.simulation.replica_watch import ReplicaWatch
from tidelog.simulation.story import PAUSE_SECONDS, OneTry, Story, create_topic
from tidelog.simulation.world import Client, World
from tidelog.wire.apis import Api
from tidelog.wire.entities import request_entity

T = TypeVar("T")

METADATA: Final = "metadata belongs to its offset"

_TOPIC: Final = "tide"
_LATE_SECONDS_MAX: Final = 2.0
_FORGOTTEN: Final = (ErrorCode.unknown_member_id, ErrorCode.fenced_instance_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPace:
    """How much is asked of the coordinators, and how patient the members are."""

    groups: int = 2
    members: int = 3
    """Of each group."""
    partitions: int = 2
    think_seconds: float = 0.05
    nap_chance: float = 0.03
    late_chance: float = 0.03
    """That a member joins anew before a commit of its has left it."""
    session_timeout_ms: int = 1000
    rebalance_timeout_ms: int = 2000
    timeout_seconds: float = 1.0


class OneTryAdmin(OneTry, AdminClient):
    """Asks once: what came of a commit that was sent twice could not be told."""


class SimulatedMember:
    """One consumer of a group, as its process knows itself."""

    def __init__(self, load: "GroupLoad", group: str, number: int, host: Client) -> None:
        self.group = group
        self.name = f"{group}-member-{number}"
        self.id = ""
        self.generation = -1
        self.joins = 0
        self.shares: list[int] = []
        """The numbers of the partitions that it owns."""
        self.random: random.Random = load.world.fork(self.name)
        self._load = load
        self._pace = load.pace
        self.host = host
        self._clients: list[OneTryAdmin] = []
        self.connect()

    def connect(self) -> None:
        """Begin with connections of which nobody waits for anything."""
        self.close()
        # A commit that is held up does not hold up what makes it obsolete.
        self._clients = [self._load.client(self.host, self.random) for _ in range(2)]

    def close(self) -> None:
        for client in self._clients:
            client.close()

    async def join(self) -> None:
        """Become a member of another generation, and hear of its shares."""
        self.shares = []
        self.joins += 1
        patience = (self._pace.rebalance_timeout_ms * 2) / 1000

        async def ask(connection: Connection) -> Any:
            return await connection.call(
                Api.JOIN_GROUP,
                timeout_seconds=patience,
                group_id=self.group,
                session_timeout=self._pace.session_timeout_ms,
                rebalance_timeout=self._pace.rebalance_timeout_ms,
                member_id=self.id,
                group_instance_id=None,
                protocol_type="story",
                reason=None,
                # What is new makes the coordinator begin another generation.
                protocols=[{"name": "shares", "metadata": b"%d" % self.joins}],
            )

        answer = await self._clients[0].ask_group_coordinator(self.group, ask)
        if answer.error_code == ErrorCode.member_id_required:
            self.id = answer.member_id
            answer = await self._clients[0].ask_group_coordinator(self.group, ask)
        check(answer.error_code, f"{self.name} joins")
        self.id, self.generation = answer.member_id, answer.generation_id
        await self._sync([member.member_id for member in answer.members])

    async def _sync(self, members: list[str]) -> None:
        """`members` are all of them, if this one shares out."""
        shares: dict[str, list[int]] = {}
        for number in range(self._pace.partitions if members else 0):
            shares.setdefault(self.random.choice(members), []).append(number)

        async def ask(connection: Connection) -> Any:
            return await connection.call(
                Api.SYNC_GROUP,
                timeout_seconds=self._pace.rebalance_timeout_ms * 2 / 1000,
                group_id=self.group,
                generation_id=self.generation,
                member_id=self.id,
                group_instance_id=None,
                protocol_type="story",
                protocol_name="shares",
                assignments=[
                    {"member_id": member, "assignment": bytes(numbers)} for member, numbers in shares.items()
                ],
            )

        answer = await self._clients[0].ask_group_coordinator(self.group, ask)
        check(answer.error_code, f"{self.name} syncs")
        self.shares = list(answer.assignment)

    async def heartbeat(self) -> None:
        async def ask(connection: Connection) -> None:
            answer = await connection.call(
                Api.HEARTBEAT,
                group_id=self.group,
                generation_id=self.generation,
                member_id=self.id,
                group_instance_id=None,
            )
            check(answer.error_code, f"{self.name} lives")

        await self._clients[0].ask_group_coordinator(self.group, ask)

    async def commit(self, place: TopicPartition, offset: Offset, late_seconds: float = 0.0) -> None:
        """Commit as a member of the generation that it is in now, also if it leaves late."""
        asked = request_entity(
            Api.OFFSET_COMMIT,
            NAMED_MOST,
            {
                "group_id": self.group,
                "generation_id_or_member_epoch": self.generation,
                "member_id": self.id,
                "group_instance_id": None,
                "topics": [
                    {
                        "name": place.topic,
                        "partitions": [
                            {
                                "partition_index": place.partition,
                                "committed_offset": offset,
                                "committed_leader_epoch": NO_EPOCH,
                                "committed_metadata": note_of(self.group, place, offset),
                            }
                        ],
                    }
                ],
            },
        )

        async def ask(connection: Connection) -> None:
            answer = await connection.request(asked)
            check(answer.topics[0].partitions[0].error_code, f"{self.name} commits")

        await asyncio.sleep(late_seconds)
        await self._clients[1].ask_group_coordinator(self.group, ask)

    async def committed(self, place: TopicPartition) -> Offset:
        return await self._load.look_up(self._clients[1], self.group, place)


class GroupLoad(Story):
    """The groups of one cluster."""

    def __init__(self, world: World, pace: GroupPace) -> None:
        super().__init__(world, timeout_seconds=pace.timeout_seconds)
        self.pace = pace
        self.watch = QuorumWatch(world)
        self.replicas = ReplicaWatch(world)
        self.generations = GroupWatch(world, self.replicas)
        self.history = History()
        self.places = [TopicPartition(_TOPIC, number) for number in range(pace.partitions)]
        self.groups = [f"group-{number}" for number in range(pace.groups)]

    def client(self, host: Client, generator: random.Random) -> OneTryAdmin:
        return self._client(host, generator, OneTryAdmin)

    # What members do.

    async def _begin(self) -> None:
        host, generator = self._hosts[0], self.world.fork("topics")

        async def create() -> None:
            async with self.client(host, generator) as client:
                await create_topic(client, _TOPIC, partitions=self.pace.partitions)

        await self._insist("client-1", generator, create)
        for group in self.groups:
            for number in range(self.pace.members):
                host = self._host(number)
                self._spawn(host, self._belong(SimulatedMember(self, group, number, host)))

    async def _belong(self, member: SimulatedMember) -> None:
        """Be a member, generation after generation."""
        while True:
            try:
                await self._live(member)
            except TidelogError as error:
                self.world.trace.note(member.name, f"{type(error).__name__}: {error}")
                if isinstance(error, Refused) and error.code in _FORGOTTEN:
                    member.id = ""
                if isinstance(error, ConnectionFailed):
                    member.connect()
                await asyncio.sleep(PAUSE_SECONDS * member.random.random())

    async def _live(self, member: SimulatedMember) -> None:
        """Spend one generation, to its end by an error or of the member's own will."""
        pace, generator = self.pace, member.random
        await member.join()
        self.operations += 1
        self.generations.told(member.group, member.generation, member.id, bytes(member.shares))
        self.world.trace.note(member.name, f"owns {member.shares} in {member.generation}")
        offsets: dict[TopicPartition, Offset] = {}
        for number in member.shares:
            place = self.places[number]
            looking = self.history.begin_commit(member.name, member.group)
            offsets[place] = await member.committed(place)
            looking.ok({str(place): offsets[place]})
        while True:
            roll = generator.random()
            if roll < pace.nap_chance:
                await asyncio.sleep(pace.session_timeout_ms * 2 / 1000 * generator.random())
            elif offsets and roll < 0.7:
                place = generator.choice(list(offsets))
                offsets[place] += generator.randint(1, 5)
                if generator.random() < pace.late_chance:
                    late_seconds = _LATE_SECONDS_MAX * generator.random()
                    self._spawn(member.host, self._commit_late(member, place, offsets[place], late_seconds))
                    return
                await self._commit(member, place, offsets[place])
            else:
                await member.heartbeat()
            self.operations += 1
            await asyncio.sleep(pace.think_seconds * 2 * generator.random())

    async def _commit(
        self, member: SimulatedMember, place: TopicPartition, offset: Offset, late_seconds: float = 0.0
    ) -> None:
        generation = member.generation
        writing = self.history.begin_commit(member.name, member.group, {str(place): offset})
        try:
            await member.commit(place, offset, late_seconds)
        except TidelogError:
            writing.info()
            raise
        writing.ok()
        self.world.trace.note(member.name, f"committed {place} {offset} in {generation}")
        self.acknowledged += 1
        self._not_yet.pop((member.group, place), None)

    async def _commit_late(
        self, member: SimulatedMember, place: TopicPartition, offset: Offset, late_seconds: float
    ) -> None:
        """As a thread does that was not given time, while another one has joined anew."""
        try:
            await self._commit(member, place, offset, late_seconds)
        except TidelogError as error:
            self.world.trace.note(member.name, f"late: {type(error).__name__}: {error}")

    # After healing.

    def _expected(self) -> Iterable[Hashable]:
        return [(group, place) for group in self.groups for place in self.places]

    def _end(self, sound: list[Machine], seconds_max: float) -> None:
        self._stop()
        looking = [self._spawn(host, self._look_at_all(host)) for host in self._hosts]
        self._finish(looking, seconds_max)
        self._blame(history_check.check(self.history))

    async def _look_at_all(self, host: Client) -> None:
        generator = self.world.fork(f"{host.name} looks")
        for group in self.groups:
            for place in self.places:

                async def look(group: str = group, place: TopicPartition = place) -> None:
                    async with self.client(host, generator) as client:
                        looking = self.history.begin_commit(host.name, group)
                        looking.ok({str(place): await self.look_up(client, group, place)})

                await self._insist(host.name, generator, look)

    async def look_up(self, client: OneTryAdmin, group: str, place: TopicPartition) -> Offset:
        """Where a group is, with what was noted of it."""
        offset, metadata = await _look_up(client, group, place)
        wanted = note_of(group, place, offset) if offset != NO_OFFSET else ""
        if metadata != wanted:
            self.world.fail(METADATA, f"{group} {place} {offset}: {metadata!r}, not {wanted!r}")
        return offset


def note_of(group: str, place: TopicPartition, offset: Offset) -> str:
    """What members note with an offset that they commit."""
    return f"{group} {place} {offset}"


async def _look_up(client: OneTryAdmin, group: str, place: TopicPartition) -> tuple[Offset, str]:
    """Where a group is, as one that takes over asks: not while a commit is under way."""
    asked = request_entity(
        Api.OFFSET_FETCH,
        NAMED_MOST,
        {
            "groups": [
                {
                    "group_id": group,
                    "member_id": None,
                    "member_epoch": -1,
                    "topics": [{"name": place.topic, "partition_indexes": [place.partition]}],
                }
            ],
            "require_stable": True,
        },
    )

    async def ask(connection: Connection) -> tuple[Offset, str]:
        (answer,) = (await connection.request(asked)).groups
        check(answer.error_code, group)
        (one,) = answer.topics[0].partitions
        check(one.error_code, f"{group} {place}")
        return int(one.committed_offset), str(one.metadata or "")

    return await client.ask_group_coordinator(group, ask)
