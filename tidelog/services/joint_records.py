"""Small requests for records that come in one turn of the loop, as one batch.

Rule: nobody's records keep another's from being written: what joins is known to be right, and is
      plain. It has no Idempotency-Key, and waits for no other replicas than the next one.
"""

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakKeyDictionary, ref

import msgspec

from tidelog.broker.joint_writes import Gathered, JointWrite, size_of
from tidelog.broker.serving import ELSEWHERE
from tidelog.errors import BrokerError, InvalidRecord, NotLeader
from tidelog.log.unpacking import are_keyed
from tidelog.model import Offset, TopicPartition
from tidelog.partition.driver import Partition
from tidelog.records import Record

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker


class Written(msgspec.Struct, frozen=True, kw_only=True):
    """Where a batch stands."""

    offset: Offset
    is_repeat: bool = False
    """An earlier request with the same Idempotency-Key has written it."""


class _Joining(NamedTuple):
    """Records that wait for the end of this turn."""

    records: Sequence[Record]
    deadline: float
    reply: "asyncio.Future[Written]"


class JointRecords:
    """What waits for the end of this turn, of every partition that this node leads."""

    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self._gathered: WeakKeyDictionary[Partition, Gathered[_Joining]] = WeakKeyDictionary()

    async def write(
        self, place: TopicPartition, records: Sequence[Record], seconds_max: float
    ) -> Written | BrokerError | None:
        """Write these where this node leads: where the first one stands, or why nobody knows.

        None if nothing was done, and whoever leads is to be found.
        """
        partition = self._broker.serving.led_here(place)
        if partition is None:
            return None
        gathered = self._gathered.get(partition)
        if gathered is None:
            gathered = self._gathered[partition] = Gathered(partial(self._write_together, ref(partition)))
        reply: asyncio.Future[Written] = asyncio.get_running_loop().create_future()
        deadline = self._broker.host.clock.monotonic() + seconds_max
        gathered.put(_Joining(records, deadline, reply))
        try:
            return await reply
        except ELSEWHERE:
            return None
        except BrokerError as error:
            return error

    def _write_together(self, weak: "ref[Partition]", joining: Sequence[_Joining]) -> int:
        """Append what came in one turn as one batch; how many that were."""
        partition = weak()
        if partition is None or partition.leader is None:
            for one in joining:
                if not one.reply.done():
                    one.reply.set_exception(NotLeader(leader=None))
            return len(joining)
        pace = self._gathered[partition].pace
        write, taken = JointWrite(partition, self._broker.host.clock, pace), 0
        for one in joining:
            if partition.config.compacts and not are_keyed(one.records) and not one.reply.done():
                # It came before the topic was compacted, and all of the batch would be refused.
                one.reply.set_exception(InvalidRecord(f"{partition.name.topic} takes only records with keys"))
            if not one.reply.done():  # else it has left
                size = size_of(one.records)
                if not write.has_room(size):
                    break
                write.add(one.records, size, one.reply, Written(offset=write.end), one.deadline)
            taken += 1
        write.append()
        return taken
