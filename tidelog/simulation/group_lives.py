"""What befalls groups beside their members' own faults: topics made anew, static members restarted.

Each of these is a small story of its own, on topics and groups that nobody else has. It is told
once, by a client that asks again what it may ask again, and ends early if it gets no answer.

| kind           | invariant                  | meaning                                            |
|----------------|----------------------------|----------------------------------------------------|
| remake_topic   | an offset has one topic    | what was committed of a topic is never told of     |
|                |                            | another that has its name later                    |
| restart_static | a static member keeps its  | a member id that a restarted static member was told|
|                | place                      | is known from then on, whoever coordinates         |
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Collection
from typing import Final, TypeVar
from uuid import UUID

from kio.schema.errors import ErrorCode

from tidelog.client.cluster import Refused, check
from tidelog.client.wire import Connection
from tidelog.errors import TidelogError
from tidelog.model import NO_EPOCH, NO_OFFSET
from tidelog.simulation.groups import OneTryAdmin
from tidelog.simulation.node_calls import raise_error, up_from
from tidelog.simulation.nodes import OWN, bootstrap
from tidelog.simulation.plan import Fault, Plan, moments, with_faults
from tidelog.simulation.world import World
from tidelog.wire.apis import Api
from tidelog.wire.entities import request_entity

T = TypeVar("T")

ONE_TOPIC: Final = "an offset has one topic"
STATIC: Final = "a static member keeps its place"

_TRIES_MAX: Final = 60
_PAUSE_SECONDS: Final = 0.3
_SECONDS: Final = 2.0
_BY_ID: Final = 10
"""The version of OffsetCommit and OffsetFetch that names topics by their ids."""
_SESSION_MS: Final = 600_000
_INSTANCE: Final = "one"
_LOST: Final = (ErrorCode.unknown_member_id, ErrorCode.fenced_instance_id)


def group_lives(plan: Plan, choose: random.Random, enabled: Collection[str]) -> Plan:
    """Topics are made anew, and static members restart."""
    rate = choose.choice((0.2, 0.5, 1.0))  # per simulated second
    drawn = [
        Fault(
            at,
            choose.choice(("remake_topic", "restart_static")),
            {"asked": choose.randint(1, plan.nodes), "number": number},
        )
        for number, at in enumerate(moments(choose, rate, plan.chaos_seconds))
    ]
    return with_faults(plan, drawn)


def remake_topic(world: World, asked: int, number: int) -> None:
    """A topic is deleted and made anew, and a group asks where it is in it."""
    world.count("remake_topic")
    teller = Teller(world, asked, f"remake {number}")
    teller.begin(teller.remake_topic(f"{OWN}anew-{number}", offset=1000 + number))


def restart_static(world: World, asked: int, number: int) -> None:
    """A static member restarts some times, and lives on each time."""
    world.count("restart_static")
    teller = Teller(world, asked, f"static {number}")
    teller.begin(teller.restart_static(f"{OWN}static-{number}"))


class Teller:
    """One client that tells one such story."""

    def __init__(self, world: World, asked: int, name: str) -> None:
        self.world = world
        self.name = name
        self.random = random.Random(f"{world.seed} {name}")
        self._host = world.client("teller")
        nodes = sorted(world.machines, key=lambda node: node != up_from(world, asked))
        self.client = OneTryAdmin(
            ",".join(map(bootstrap, nodes)), network=self._host.network, timeout_seconds=_SECONDS
        )

    def begin(self, story: Awaitable[None]) -> None:
        self._host.spawn(self._tell(story)).add_done_callback(raise_error)

    async def _tell(self, story: Awaitable[None]) -> None:
        try:
            await story
            self.world.trace.note(self.name, "told")
        except (TidelogError, TimeoutError) as error:
            self.world.trace.note(self.name, f"{type(error).__name__}: {error}")
        finally:
            self.client.close()

    async def insist(self, ask: Callable[[], Awaitable[T]], done: Collection[ErrorCode] = ()) -> T | None:
        """What is answered in the end; None if that is one of the refusals in `done`."""
        for _ in range(_TRIES_MAX):
            try:
                return await ask()
            except Refused as error:
                if error.code in done:
                    return None
                if not error.retriable and error.code != ErrorCode.unknown_topic_id:
                    raise
            except (TidelogError, TimeoutError):
                pass  # nobody answers
            await asyncio.sleep(_PAUSE_SECONDS * self.random.random())
        raise TimeoutError(f"{self.name} gets no answer")

    async def pause(self) -> None:
        await asyncio.sleep(2 * self.random.random() ** 3)

    # Topics.

    async def remake_topic(self, name: str, *, offset: int) -> None:
        group = f"{name}-group"
        old = await self.make_topic(name, before=None)
        await self.insist(lambda: self._commit(group, old, offset))
        if (told := await self._look_up(group, old)) != offset:
            self.world.fail(ONE_TOPIC, f"{group} is told {told} of {old}, not {offset}")
        await self.pause()
        gone = (ErrorCode.unknown_topic_or_partition,)
        await self.insist(lambda: self.client.delete_topic(name), gone)
        await self.pause()
        new = await self.make_topic(name, before=old)
        for _ in range(3):
            if (told := await self._look_up(group, new)) not in (None, NO_OFFSET):
                self.world.fail(ONE_TOPIC, f"{group} is told {told} of {new}; {old} was read")
            await self.pause()

    async def make_topic(self, name: str, *, before: UUID | None, partitions: int = 1) -> UUID:
        """Make the topic; its id, which is another than `before`."""

        async def make() -> UUID:
            try:
                await self.client.create_topic(name, partitions=partitions, replication=-1)
            except Refused as error:
                if error.code != ErrorCode.topic_already_exists:
                    raise
            found = (await self.client.topic(name)).id
            if found is None or found == before:
                raise TimeoutError("it is not there yet")
            return found

        made = await self.insist(make)
        assert made is not None
        return made

    async def _commit(self, group: str, topic_id: UUID, offset: int) -> None:
        part = {
            "partition_index": 0,
            "committed_offset": offset,
            "committed_metadata": "",
            "committed_leader_epoch": NO_EPOCH,
        }
        asked = request_entity(
            Api.OFFSET_COMMIT,
            _BY_ID,
            {
                "group_id": group,
                "generation_id_or_member_epoch": -1,
                "member_id": "",
                "group_instance_id": None,
                "topics": [{"topic_id": topic_id, "partitions": [part]}],
            },
        )

        async def ask(connection: Connection) -> None:
            answer = await connection.request(asked)
            check(answer.topics[0].partitions[0].error_code, f"{group} commits")

        await self.client.ask_group_coordinator(group, ask)

    async def _look_up(self, group: str, topic_id: UUID) -> int | None:
        asked = request_entity(
            Api.OFFSET_FETCH,
            _BY_ID,
            {
                "groups": [
                    {
                        "group_id": group,
                        "member_id": None,
                        "member_epoch": -1,
                        "topics": [{"topic_id": topic_id, "partition_indexes": [0]}],
                    }
                ],
                "require_stable": True,
            },
        )

        async def ask(connection: Connection) -> int:
            (answer,) = (await connection.request(asked)).groups
            check(answer.error_code, group)
            (one,) = answer.topics[0].partitions
            check(one.error_code, group)
            return int(one.committed_offset)

        return await self.insist(lambda: self.client.ask_group_coordinator(group, ask))

    # Static members.

    async def restart_static(self, group: str) -> None:
        member, generation = await self.join(group)
        await self.insist(lambda: self.sync(group, member, generation))
        for _ in range(4):
            await self.pause()
            member, generation = await self.join(group)
            for _ in range(2):
                await self.pause()
                await self.insist(lambda: self._live(group, member, generation))  # noqa: B023

    async def join(self, group: str) -> tuple[str, int]:
        """Join as a process that knows nothing but its name; what it is told."""

        async def ask(connection: Connection) -> tuple[str, int]:
            answer = await connection.call(
                Api.JOIN_GROUP,
                timeout_seconds=_SECONDS * 3,
                group_id=group,
                member_id="",
                session_timeout=_SESSION_MS,
                rebalance_timeout=_SESSION_MS,
                group_instance_id=_INSTANCE,
                protocol_type="story",
                reason=None,
                protocols=[{"name": "shares", "metadata": b"all"}],
            )
            check(answer.error_code, f"{group} joins")
            return str(answer.member_id), int(answer.generation_id)

        joined = await self.insist(lambda: self.client.ask_group_coordinator(group, ask))
        assert joined is not None
        return joined

    async def sync(self, group: str, member: str, generation: int) -> None:
        async def ask(connection: Connection) -> None:
            answer = await connection.call(
                Api.SYNC_GROUP,
                group_id=group,
                generation_id=generation,
                member_id=member,
                group_instance_id=_INSTANCE,
                protocol_type="story",
                protocol_name="shares",
                assignments=[{"member_id": member, "assignment": b"all"}],
            )
            check(answer.error_code, f"{group} syncs")

        await self.client.ask_group_coordinator(group, ask)

    async def _live(self, group: str, member: str, generation: int) -> None:
        async def ask(connection: Connection) -> None:
            answer = await connection.call(
                Api.HEARTBEAT,
                group_id=group,
                generation_id=generation,
                member_id=member,
                group_instance_id=_INSTANCE,
            )
            if answer.error_code in _LOST:
                self.world.fail(STATIC, f"{group}: {member} hears {answer.error_code!r}")
            check(answer.error_code, f"{group} lives")

        await self.client.ask_group_coordinator(group, ask)
