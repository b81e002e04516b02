"""Damage: whether a log that is suspected cannot be read, and who hears of it.

suspected -> sound     the bytes check out here
suspected -> healed    the scrubber has put back what other replicas have
suspected -> declared  neither: others are to lead, and this replica is mended as a whole
"""

import logging
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from tidelog.host import Host
from tidelog.log.log import Log
from tidelog.log.recovery import find_damage
from tidelog.model import Offset
from tidelog.partition.driver import Partition

_log = logging.getLogger(__name__)


class Damage:
    """The logs of this node that are suspected, or known, to be damaged."""

    def __init__(
        self,
        host: Host,
        *,
        mend: Callable[[Partition, Offset], Coroutine[Any, Any, bool]],
        nudge: Callable[[], None],
        spawn: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        """`mend` tries to heal a log from an offset on, and says whether that may be left to it."""
        self._host = host
        self._mend = mend
        self._nudge = nudge
        self._spawn = spawn
        self._inspecting: dict[Partition, None] = {}

    def suspect(self, partition: Partition, offset: Offset) -> None:
        """Look whether the log can be read from `offset` on."""
        if partition not in self._inspecting:
            self._inspecting[partition] = None
            self._spawn(self._inspect(partition, offset))

    async def _inspect(self, partition: Partition, offset: Offset) -> None:
        """A follower got batches from `offset` on that do not check out: is it this disk?"""
        log = partition.log
        try:
            work = partial(find_damage, self._host.disk, log, offset)
            damaged_at, has_gap = await self._host.offload.run(work)
            if partition.log is not log:
                return
            if damaged_at is None:
                partition.is_sparse |= has_gap  # what the follower missed is not there
            elif not await self._mend(partition, damaged_at):
                self.declare(partition, log, damaged_at)
        except FileNotFoundError:
            return  # deleted or compacted meanwhile
        finally:
            del self._inspecting[partition]

    def declare(self, partition: Partition, log: Log, offset: Offset) -> None:
        """A log cannot be read from `offset` on, nor mended: let others lead, and hold it."""
        if partition.log is not log or log.damaged_at is not None:
            return
        partition.note_damage(offset)
        _log.error("%s", log.refusal)
        self._nudge()
        partition.on_reopened(partition)  # a follower reads it again, and not only when more comes
