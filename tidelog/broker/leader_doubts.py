"""Leaders that may be gone, and the answers that wait until the cluster knows.

A client that loses its leader asks for metadata at once: before the election, unless somebody waits.
Told the dead leader once more, librdkafka asks again a second later. So an answer that names a doubted
leader waits until the election is known here.

Rule 1: a leader is doubted from the moment a connection between it and this node breaks, unless this
        node is still connected to it by the other. The doubt ends when this node reaches it again, when
        it leads nothing any more by the metadata, or after `DOUBT_SECONDS_MAX`.
Rule 2: an answer waits only while it names a doubted leader, and for `DOUBT_SECONDS_MAX` at most.
Rule 3: a node doubts nobody unless it is connected to a majority of the voters, itself included: of an
        election without them it would not hear. So a node that is cut off answers at once.
Rule 4: an answer that has waited goes out once this node has acted on the election, too, in the same
        time: it may be the new leader, and is asked next.
Rule 5: a doubt costs the same for one partition and for ten thousand, and so does what waits for it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from typing import Final

from tidelog.controller.image import ClusterImage
from tidelog.errors import StorageError
from tidelog.model import NodeId

DOUBT_SECONDS_MAX: Final = 0.3
"""Twice what an election takes after a process has died; less than any client waits for an answer."""


class LeaderDoubts:
    """The leaders that this node doubts.

    Owned by one event loop.
    """

    def __init__(
        self,
        node_id: NodeId,
        *,
        image: Callable[[], ClusterImage],
        is_connected: Callable[[NodeId], bool],
        acted: Callable[[], Awaitable[None]],
    ) -> None:
        """`is_connected` tells whether this node has a connection to another one; `acted` returns once
        all that the image has by now was acted on."""
        self._node_id = node_id
        self._image = image
        self._is_connected = is_connected
        self._acted = acted
        self._doubts: dict[NodeId, asyncio.Event] = {}
        """Each is set when the doubt ends."""
        self.waiting: dict[object, None] = {}
        """The answers that wait, the oldest first."""

    @property
    def doubted(self) -> Collection[NodeId]:
        return self._doubts.keys()

    # What happens.

    def broke(self, node: NodeId) -> None:
        """A connection between `node` and this node broke."""
        if not self._hears_of_elections():
            self._end_all()
        elif node not in self._doubts and not self._is_connected(node) and self._leads(node):
            self._doubts[node] = asyncio.Event()
            asyncio.get_running_loop().call_later(DOUBT_SECONDS_MAX, self._end, node, self._doubts[node])

    def reached(self, node: NodeId) -> None:
        """This node has a connection to `node` again."""
        if (doubt := self._doubts.get(node)) is not None:
            self._end(node, doubt)

    def applied(self) -> None:
        """The metadata has changed."""
        for node, doubt in list(self._doubts.items()):
            if not self._leads(node):
                self._end(node, doubt)

    # Who waits.

    async def settled(self, names: Callable[[NodeId], bool]) -> None:
        """Wait while an answer would name a doubted leader; `names` says whether it names a node."""
        if next(filter(names, self._doubts), None) is None:
            return
        answer = object()
        self.waiting[answer] = None
        try:
            with suppress(TimeoutError, StorageError):  # what its own disk refuses is no answer's concern
                async with asyncio.timeout(DOUBT_SECONDS_MAX):
                    while (named := next(filter(names, self._doubts), None)) is not None:
                        await self._doubts[named].wait()
                    await self._acted()
        finally:
            del self.waiting[answer]

    def _leads(self, node: NodeId) -> bool:
        return bool(self._image().led.get(node))

    def _hears_of_elections(self) -> bool:
        voters = self._image().voters.ids
        there = sum(voter == self._node_id or self._is_connected(voter) for voter in voters)
        return 2 * there > len(voters)

    def _end(self, node: NodeId, doubt: asyncio.Event) -> None:
        if self._doubts.get(node) is doubt:  # else it ended, and this is another one
            del self._doubts[node]
            doubt.set()

    def _end_all(self) -> None:
        for node, doubt in list(self._doubts.items()):
            self._end(node, doubt)
