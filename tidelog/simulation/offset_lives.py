"""How the offsets of groups end: deleted, expired, gone with their group; and what follows them.

Each of these is a small story of its own, on a topic and a group that nobody else has (see
`group_lives`). Before it begins its offset is committed by one request, at the first try: a copy of
a commit that is late may bring back what was deleted since, and nobody could tell it apart.

| kind           | invariant                  | meaning                                            |
|----------------|----------------------------|----------------------------------------------------|
| delete_offsets | a forgotten offset stays   | an offset that was deleted or has expired, or was  |
| expire_offsets |   forgotten                | of a group that was deleted, is never told again,  |
| delete_group   |                            | also not to a group of the same name; nor is one   |
|                |                            | told that nobody has committed                     |
| expire_offsets | a live group keeps its     | while a group has a member its offsets do not      |
|                |   offsets                  | expire, however short their retention is           |
| (all)          | metadata belongs to its    | what was noted with an offset is told with it      |
|                |   offset                   |                                                    |
"""

import random
from collections.abc import Collection, Coroutine
from dataclasses import replace
from typing import Any, Final, NamedTuple

from kio.schema.errors import ErrorCode

from tidelog.client.admin import NAMED_MOST
from tidelog.client.cluster import check
from tidelog.client.wire import Connection
from tidelog.errors import TidelogError
from tidelog.model import NO_EPOCH, NO_OFFSET, Offset, TopicPartition
from tidelog.simulation.group_lives import Teller
from tidelog.simulation.groups import METADATA
from tidelog.simulation.nodes import OWN
from tidelog.simulation.plan import Fault, Plan, moments, with_faults
from tidelog.simulation.world import World
from tidelog.wire.apis import Api
from tidelog.wire.entities import request_entity

FORGOTTEN: Final = "a forgotten offset stays forgotten"
KEPT: Final = "a live group keeps its offsets"

_LIVES_MAX: Final = 8
"""How often one begins, with another group, until its first commit is certain."""
_LOOKS: Final = 4
_RETENTION_MS: Final = 1000
_WITH_RETENTION: Final = 4
"""The version of OffsetCommit that says how long an offset shall be kept; later ones do not."""
_EXPIRY_LOOKS_MAX: Final = 40


def offset_lives(plan: Plan, choose: random.Random, enabled: Collection[str]) -> Plan:
    """Offsets are deleted, expire, and go with their groups."""
    rate = choose.choice((0.3, 0.6, 1.0))  # per simulated second
    kinds = ("delete_offsets", "expire_offsets", "delete_group")
    drawn = [
        Fault(at, choose.choice(kinds), {"asked": choose.randint(1, plan.nodes), "number": number})
        for number, at in enumerate(moments(choose, rate, plan.chaos_seconds))
    ]
    looks_ms = choose.choice((200, 1000))
    node = {**plan.node, "offsets_retention_check_interval_ms": looks_ms}
    return with_faults(replace(plan, node=node), drawn)


def delete_offsets(world: World, asked: int, number: int) -> None:
    """A group's offset of a topic is deleted, and committed anew."""
    world.count("delete_offsets")
    teller = OffsetTeller(world, asked, f"offsets {number}")
    teller.begin(teller.delete_offsets(f"{OWN}forgets-{number}"))


def expire_offsets(world: World, asked: int, number: int) -> None:
    """A group's offset is old; it is kept while the group has a member, and no longer."""
    world.count("expire_offsets")
    teller = OffsetTeller(world, asked, f"expiry {number}")
    teller.begin(teller.expire_offsets(f"{OWN}expires-{number}"))


def delete_group(world: World, asked: int, number: int) -> None:
    """A group is deleted, and another comes under its name."""
    world.count("delete_group")
    teller = OffsetTeller(world, asked, f"group {number}")
    teller.begin(teller.delete_group(f"{OWN}ends-{number}"))


class Told(NamedTuple):
    """What a group is told of a partition."""

    offset: Offset
    metadata: str


NOTHING: Final = Told(NO_OFFSET, "")


class OffsetTeller(Teller):
    """One client that tells one such story."""

    async def delete_offsets(self, name: str) -> None:
        group, place, old = await self._commit_surely(name)
        await self._expect(group, place, {old})
        await self.pause()
        await self.insist(lambda: self._delete_offset(group, place), _NO_MORE)
        await self._expect(group, place, {NOTHING})
        new = Told(old.offset - 7, f"{name} anew")
        await self.insist(lambda: self._commit_to(group, place, new))
        # A copy of the deletion may be late.
        await self._expect(group, place, {NOTHING, new})

    async def delete_group(self, name: str) -> None:
        group, place, old = await self._commit_surely(name)
        await self._expect(group, place, {old})
        await self.pause()
        await self.insist(lambda: self.client.delete_group(group), _NO_MORE)
        await self._expect(group, place, {NOTHING})
        other, new = TopicPartition(place.topic, 1), Told(3, f"{name} anew")
        await self.insist(lambda: self._commit_to(group, other, new))
        await self._expect(group, place, {NOTHING})
        await self._expect(group, other, {NOTHING, new})

    async def expire_offsets(self, name: str) -> None:
        topic = TopicPartition(name, 0)
        await self.make_topic(name, before=None, partitions=2)
        for life in range(_LIVES_MAX):
            group, old = f"{name}-group-{life}", Told(1000 + life, f"{name} at {life}")
            member, generation = await self.join(group)
            sharing = self.sync(group, member, generation)
            committing = self._commit_to(group, topic, old, member, generation, short=True)
            if await self._try(sharing, committing):
                break
        else:
            raise TimeoutError("no commit is certain")
        for _ in range(_LOOKS):  # longer than the offset would be kept
            await self.pause()
            told = await self._told(group, topic)
            if told is not None and told.offset != old.offset:
                self.world.fail(KEPT, f"{group} has a member, and is told {told}, not {old}")
            self._check(group, topic, told, {old})
        await self.insist(lambda: self._leave(group, member), _GONE)
        for _ in range(_EXPIRY_LOOKS_MAX):
            told = await self._told(group, topic)
            if told == NOTHING:
                break
            self._check(group, topic, told, {old})
            await self.pause()
        else:
            return  # clocks may go back
        await self._expect(group, topic, {NOTHING})

    # Parts.

    async def _commit_surely(self, name: str) -> tuple[str, TopicPartition, Told]:
        """A group that has committed once, and what."""
        place = TopicPartition(name, 0)
        await self.make_topic(name, before=None, partitions=2)
        for life in range(_LIVES_MAX):
            group, told = f"{name}-group-{life}", Told(1000 + life, f"{name} at {life}")
            if await self._try(self._commit_to(group, place, told)):
                return group, place, told
        raise TimeoutError("no commit is certain")

    async def _try(self, *steps: Coroutine[Any, Any, None]) -> bool:
        """Whether all of it was done, each step at its first try."""
        try:
            for step in steps:
                await step
        except (TidelogError, TimeoutError) as error:
            self.world.trace.note(self.name, f"{type(error).__name__}: {error}")
            for step in steps:
                step.close()
            await self.pause()
            return False
        return True

    async def _expect(self, group: str, place: TopicPartition, possible: set[Told]) -> None:
        """Look again and again, at whoever coordinates."""
        for _ in range(_LOOKS):
            self._check(group, place, await self._told(group, place), possible)
            await self.pause()

    def _check(self, group: str, place: TopicPartition, told: Told | None, possible: set[Told]) -> None:
        if told is None or told in possible:
            return
        known = {one.offset for one in possible}
        rule = METADATA if told.offset in known else FORGOTTEN
        self.world.fail(rule, f"{group} is told {told} of {place}, not {sorted(possible)}")

    async def _commit_to(
        self,
        group: str,
        place: TopicPartition,
        what: Told,
        member: str = "",
        generation: int = -1,
        *,
        short: bool = False,
    ) -> None:
        """Commit; with `short`, to be kept for a moment only."""
        part: dict[str, Any] = {
            "partition_index": place.partition,
            "committed_offset": what.offset,
            "committed_metadata": what.metadata,
        }
        asked: dict[str, Any] = {
            "group_id": group,
            "generation_id_or_member_epoch": generation,
            "member_id": member,
            "topics": [{"name": place.topic, "partitions": [part]}],
        }
        if short:
            asked["retention_time"] = _RETENTION_MS
        else:
            asked["group_instance_id"] = None
            part["committed_leader_epoch"] = NO_EPOCH
        version = _WITH_RETENTION if short else NAMED_MOST
        entity = request_entity(Api.OFFSET_COMMIT, version, asked)

        async def ask(connection: Connection) -> None:
            answer = await connection.request(entity)
            check(answer.topics[0].partitions[0].error_code, f"{group} commits")

        await self.client.ask_group_coordinator(group, ask)

    async def _delete_offset(self, group: str, place: TopicPartition) -> None:
        await self.client.delete_offsets(group, [place])

    async def _leave(self, group: str, member: str) -> None:
        async def ask(connection: Connection) -> None:
            answer = await connection.call(
                Api.LEAVE_GROUP,
                group_id=group,
                member_id=member,
                members=[{"member_id": member, "group_instance_id": None, "reason": None}],
            )
            check(answer.error_code, f"{group} is left")
            for one in getattr(answer, "members", ()):
                check(one.error_code, f"{group} is left")

        await self.client.ask_group_coordinator(group, ask)

    async def _told(self, group: str, place: TopicPartition) -> Told | None:
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

        async def ask(connection: Connection) -> Told:
            (answer,) = (await connection.request(asked)).groups
            check(answer.error_code, group)
            (one,) = answer.topics[0].partitions
            check(one.error_code, group)
            return Told(int(one.committed_offset), str(one.metadata or ""))

        return await self.insist(lambda: self.client.ask_group_coordinator(group, ask))


_NO_MORE: Final = (ErrorCode.group_id_not_found,)
"""What is answered if it was done before."""
_GONE: Final = (ErrorCode.unknown_member_id,)
