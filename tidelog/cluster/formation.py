"""How a quorum comes to be, and how a node finds the one it belongs to.

Rule 1: a quorum forms once. Every node of `--quorum` must be there for it, unformed: a voter is a
        node and its disk, so each must be known before it can be counted on.
Rule 2: a node that finds a formed quorum adopts it. If the quorum knows it with another disk, it
        follows and does not vote: what the old disk promised, this one has forgotten.
Rule 3: what was formed is written down before anybody acts on it.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

import msgspec

from tidelog.cluster.hub import Hub
from tidelog.cluster.messages import IAm, WhoAreYou
from tidelog.cluster.promises import decode_promise, encode_promise
from tidelog.errors import StorageError
from tidelog.host import Host, Path, read_file, replace_file
from tidelog.model import Endpoint, NodeId
from tidelog.peers.listener import Answer
from tidelog.peers.stream import PeerUnreachable
from tidelog.peers.wire import PeerRefused
from tidelog.raft.voters import Voter, VoterSet

_log = logging.getLogger(__name__)

FILE_NAME: Final = "quorum-formed"
_ASK_SECONDS: Final = 0.2
_ASK_SECONDS_MAX: Final = 1.0
_SAY_SECONDS: Final = 5.0
_REFUSED_SECONDS: Final = 10.0
"""A refusal may pass, as that of a node whose last process still has a lease; not one so old."""


class Formed(msgspec.Struct, frozen=True, kw_only=True):
    """What a node knew of its quorum when it first belonged to one; the log says the rest."""

    cluster: str
    voters: tuple[Voter, ...]


def read_formed(host: Host, root: Path) -> Formed | None:
    """What was written down; None if this node never belonged to a quorum. Blocks on the disk."""
    try:
        content = read_file(host.disk, root / FILE_NAME)
    except FileNotFoundError:
        return None
    try:
        return decode_promise(content, Formed)
    except ValueError as error:
        raise StorageError(
            f"{root / FILE_NAME} is damaged ({error}); restore it from a backup, or start with an "
            "empty directory"
        ) from None


def write_formed(host: Host, root: Path, formed: Formed) -> None:
    replace_file(host.disk, root / FILE_NAME, encode_promise(formed))


class Formation:
    """A node on its way into a quorum; afterwards it answers those who come later."""

    def __init__(
        self, host: Host, root: Path, *, me: Voter, cluster: str, quorum: Mapping[NodeId, Endpoint]
    ) -> None:
        """`cluster` is the id that this node would give a new cluster."""
        self._host = host
        self._root = root
        self.me = me
        self._cluster = cluster
        self._quorum = quorum
        self.formed: Formed | None = None
        self.newest_voters: VoterSet | None = None
        """Those that the log names now, once somebody has told."""

    def on_who_are_you(self, source: NodeId, asked: WhoAreYou, place: Answer | None) -> None:
        assert place is not None
        place.send(self.introduction())

    def introduction(self) -> IAm:
        formed = self.formed
        if formed is None:
            return IAm(me=self.me, cluster=self._cluster, is_formed=False, quorum=tuple(self._quorum))
        voters = self.newest_voters if self.newest_voters is not None else formed.voters
        return IAm(
            me=self.me,
            cluster=formed.cluster,
            is_formed=True,
            voters=tuple(voters),
            quorum=tuple(self._quorum),
        )

    async def join(self, hub: Hub) -> Formed:
        """Form a quorum with the others, or adopt the one that is there; however long it takes."""
        self.formed = await self._host.offload.run(partial(read_formed, self._host, self._root))
        said_at = began_at = self._host.clock.monotonic()
        while self.formed is None:
            peers, problems, refusal = await self._ask_all(hub)
            if refusal is not None and self._host.clock.monotonic() - began_at > _REFUSED_SECONDS:
                raise refusal
            formed = decide(self.introduction(), peers, tuple(self._quorum))
            if formed is not None:
                await self._host.offload.run(partial(write_formed, self._host, self._root, formed))
                self.formed = formed
                break
            if self._host.clock.monotonic() - said_at >= _SAY_SECONDS:
                said_at = self._host.clock.monotonic()
                _log.warning("waiting for the quorum: %s", "; ".join(problems))
            await asyncio.sleep(_ASK_SECONDS)
        return self.formed

    async def _ask_all(self, hub: Hub) -> tuple[list[IAm], list[str], PeerRefused | None]:
        others = [node for node in self._quorum if node != self.me.key.id]
        asked = WhoAreYou(quorum=tuple(self._quorum))
        answers = await asyncio.gather(*(_ask(hub, node, asked) for node in others))
        peers = [answer for answer in answers if isinstance(answer, IAm)]
        problems, refusal = [], None
        for node, answer in zip(others, answers, strict=True):
            if isinstance(answer, PeerRefused):
                refusal = answer
            if isinstance(answer, PeerUnreachable | PeerRefused):
                problems.append(f"start node {node} at {self._quorum[node]} ({answer})")
            elif not answer.is_formed and sorted(answer.quorum) != sorted(self._quorum):
                problems.append(
                    f"node {node} was started with --quorum of nodes {sorted(answer.quorum)}, this "
                    f"one of {sorted(self._quorum)}; start both with the same"
                )
        return peers, problems, refusal


async def _ask(hub: Hub, node: NodeId, asked: WhoAreYou) -> IAm | PeerUnreachable | PeerRefused:
    """The answer, or why there is none: a task that nobody waits for any more must not fail."""
    try:
        return await hub.ask(node, asked, IAm, seconds_max=_ASK_SECONDS_MAX)
    except (PeerUnreachable, PeerRefused) as error:
        return error


def decide(me: IAm, peers: Sequence[IAm], quorum: Sequence[NodeId]) -> Formed | None:
    """What a node that belongs to no quorum yet belongs to, after what the others have said."""
    for peer in peers:
        if peer.is_formed:
            return Formed(cluster=peer.cluster, voters=peer.voters)
    everybody = {peer.me.key.id: peer for peer in [*peers, me]}
    agreed = all(sorted(peer.quorum) == sorted(quorum) for peer in everybody.values())
    if sorted(everybody) != sorted(quorum) or not agreed:
        return None
    first = everybody[min(quorum)]
    voters = tuple(sorted(peer.me for peer in everybody.values()))
    return Formed(cluster=first.cluster, voters=voters)
