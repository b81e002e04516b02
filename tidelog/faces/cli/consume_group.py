"""`tidelog consume --group`: one member of a consumer group, printing what it is assigned.

Rule 1: what was printed is committed, and nothing else. Output is flushed before the commit, so a
        record may be printed twice after a crash and is never skipped.
Rule 2: a generation that ends takes its partitions along: what was read of them and not printed is
        forgotten, for another member reads it.
"""

import asyncio
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from tidelog.client.admin import AdminClient
from tidelog.client.consumer import Consumer
from tidelog.client.group_member import HEARTBEAT_SECONDS, GroupMember
from tidelog.client.kafka import EARLIEST, LATEST
from tidelog.errors import TidelogError
from tidelog.faces.cli.common import note, standard_output
from tidelog.faces.cli.consume import ConsumePlan, poll
from tidelog.model import Offset, TopicPartition

if TYPE_CHECKING:
    from typing import BinaryIO

_Offsets = dict[int, Offset]
_IDLE_SECONDS: Final = 0.5
"""Between two heartbeats of a member that has no partition to wait for."""


async def consume_in_group(bootstrap: str, plan: ConsumePlan, group: str) -> int:
    """Print records until the plan is done; return how many."""
    async with AdminClient(bootstrap) as client:
        await client.topic(plan.topic)  # one that does not exist is told before anybody joins
        member = GroupMember(client, group, plan.topic)
        reading = _Reading(client, member, plan, group)
        try:
            while not reading.is_done:
                await member.join()
                await reading.generation()
        finally:
            with suppress(TidelogError):  # a member that says nothing is left out in the end
                await member.leave()
        return reading.count


class _Reading:
    """What this member has printed, over all of its generations."""

    def __init__(self, client: AdminClient, member: GroupMember, plan: ConsumePlan, group: str) -> None:
        self.count = 0
        self.is_done = False
        self._client = client
        self._member = member
        self._plan = plan
        self._group = group
        self._out: BinaryIO = standard_output()
        self._heard = time.monotonic()

    async def generation(self) -> None:
        """Read what is assigned until the group begins another generation, or all is done."""
        plan, assigned = self._plan, self._member.assigned
        if not assigned:
            note(f"all partitions of {plan.topic} are taken by other members of {self._group}")
        positions, ends = await self._start(assigned)
        consumer = Consumer(self._client, plan.topic, positions, read_committed=plan.read_committed)
        told = time.monotonic()
        while not self._is_over(consumer, ends):
            printed = await self._print_some(consumer, ends)
            if printed and not await self._member.commit(printed):
                return
            if time.monotonic() - told >= HEARTBEAT_SECONDS or not assigned:
                told = time.monotonic()
                if not await self._member.heartbeat():
                    return
        self.is_done = True

    async def _start(self, assigned: tuple[int, ...]) -> tuple[dict[int, Offset], dict[int, Offset]]:
        """Where each partition's reading begins, and where its log ends now."""
        plan = self._plan
        if not assigned:
            return {}, {}

        async def offsets(time_ms: int) -> dict[int, Offset]:
            times = dict.fromkeys(assigned, time_ms)
            found = await self._client.list_offsets(plan.topic, times, read_committed=plan.read_committed)
            return {partition: one.offset for partition, one in found.items()}

        committed = await self._client.group_offsets(self._group)
        ends = await offsets(LATEST)
        first = await offsets(EARLIEST) if plan.start.beginning else ends
        positions = {}
        for partition in assigned:
            known = committed.get(TopicPartition(plan.topic, partition))
            positions[partition] = first[partition] if known is None else known.offset
        return positions, ends

    def _is_over(self, consumer: Consumer, ends: dict[int, Offset]) -> bool:
        plan = self._plan
        if self.count == plan.count_max:
            return True
        if not plan.follow:
            for partition in [one for one, at in consumer.positions.items() if at >= ends[one]]:
                del consumer.positions[partition]
            return not consumer.positions
        silent = time.monotonic() - self._heard
        return plan.timeout_seconds is not None and silent >= plan.timeout_seconds

    async def _print_some(self, consumer: Consumer, ends: dict[int, Offset]) -> dict[int, Offset]:
        """Print what comes next; where the group goes on in each partition."""
        plan, printed = self._plan, dict[int, Offset]()
        if not consumer.positions:
            await asyncio.sleep(_IDLE_SECONDS)
            return printed
        for partition, records in await poll(self._client, consumer, plan, self._heard):
            self._heard = time.monotonic()
            for record in records:
                if self.count == plan.count_max:
                    break
                if plan.follow or record.offset < ends[partition]:
                    self._out.write(plan.show.line(record, plan.topic, partition))
                    self.count += 1
                    printed[partition] = record.offset + 1
        self._out.flush()
        return printed
