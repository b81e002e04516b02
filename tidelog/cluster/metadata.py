"""The cluster's metadata on this node: the image, and how anybody here changes it.

Rule 1: a record is applied once it is committed, never before; a restart sees the same.
Rule 2: a node that wants a change decides it on the image that it has, and says on which. The
        active controller takes the decision only if nothing that it looked at has changed since
        (`controller.conflicts`): then it is as good as its own. Otherwise the other node catches
        up and decides again.
Rule 3: a refusal, or a decision that changes nothing, counts only if it was made on an image that
        holds everything that was committed before the change was asked for. A controller that is
        deposed may not know: so it counts only once there is proof of who led (`leadership`).
Rule 4: what another node proposes is judged before it is committed (`controller.judging`). A committed
        record that the image cannot take is passed over, here and on every node.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from tidelog.cluster.answering import answered
from tidelog.cluster.hub import Hub
from tidelog.cluster.messages import Proposal, ProposalAnswer, ProposalFate
from tidelog.cluster.quorum import Quorum
from tidelog.cluster.quorum_log import Entry
from tidelog.controller.conflicts import RecentCommits
from tidelog.controller.image import ClusterImage
from tidelog.controller.judging import refusal, unfit
from tidelog.controller.records import MetadataRecord
from tidelog.errors import (
    BrokerError,
    InvalidRequest,
    NotController,
    RequestTimedOut,
    StorageError,
    StorageErrorAfterAppend,
)
from tidelog.host import Host
from tidelog.model import NodeId, Offset
from tidelog.peers.listener import Answer
from tidelog.peers.stream import PeerUnreachable
from tidelog.peers.wire import PeerRefused

_log = logging.getLogger(__name__)

CHANGE_SECONDS_MAX: Final = 30.0
_RETRY_SECONDS: Final = 0.02
_ASK_SECONDS_MAX: Final = 5.0

Change = TypeVar("Change", bound="MetadataRecord | Sequence[MetadataRecord]")


@dataclass(slots=True)
class _Asked:
    """One change that somebody wants, over all tries."""

    newest: float = float("inf")
    """All that was committed before it was asked for lies below, as the controller has said."""
    is_unsure: bool = False
    """Whether a try may yet be committed; then no full disk is a reason to say that none will."""


class Metadata:
    """The image as far as this node knows it, and the way to change it.

    Invariant: `image` is the fold of everything committed below `applied`.
    """

    def __init__(self, host: Host) -> None:
        self.image = ClusterImage()
        self.applied: Offset = 0
        self._host = host
        self._one_at_a_time = asyncio.Lock()
        self._waits: list[tuple[Offset, asyncio.Future[None]]] = []
        self._listeners: list[Callable[[Sequence[MetadataRecord]], None]] = []
        self._asking: tuple[NodeId, asyncio.Task[ProposalAnswer]] | None = None
        self._recent = RecentCommits()
        self.passed_over = 0
        """How many committed records the image could not take."""
        self.replies_lost = 0
        """How often a proposal was sent and nothing heard of it: it may take effect, or not."""
        self.led_since: Callable[[], Awaitable[bool]]
        """Whether it is certain that this node led the quorum at some moment since the call."""
        self._quorum: Quorum
        self._hub: Hub

    def join(self, quorum: Quorum, hub: Hub) -> None:
        self._quorum = quorum
        self._hub = hub

    def on_applied(self, listener: Callable[[Sequence[MetadataRecord]], None]) -> None:
        """Call `listener` with every batch of records, after the image has them."""
        self._listeners.append(listener)

    # Following.

    def apply(self, entry: Entry) -> None:
        """Take what was committed; what the image has already is passed over."""
        if entry.end <= self.applied:
            return
        assert entry.start == self.applied, f"{entry.start} follows {self.applied}"
        taken = []
        for record in entry.records:
            if (problem := unfit(self.image, record)) is not None:
                self._pass_over(entry, record, problem)
                continue
            self.image.apply(record)
            taken.append(record)
        self.applied = entry.end
        self._recent.add(taken, entry.end)
        self._tell(taken)
        self.image.deleted.clear()

    def _pass_over(self, entry: Entry, record: MetadataRecord, problem: str) -> None:
        self.passed_over += 1
        _log.critical(
            "the metadata that was committed at offset %d has a %s that no node can take (%s); every node "
            "passes over it. Please report this",
            entry.start,
            type(record).__name__,
            problem,
        )

    def begin_from(self, image: ClusterImage, applied: Offset) -> None:
        """Go on from a snapshot, unless the image has all of it.

        A node applies what a majority holds, and may lose it from its own files when its disk is
        full. The snapshot that it gets then may be older than what it has acted on.
        """
        if applied < self.applied:
            return
        self.image = image
        self.applied = applied
        self._recent = RecentCommits(applied)
        self._tell(())

    def _tell(self, records: Sequence[MetadataRecord]) -> None:
        for listener in self._listeners:
            listener(records)
        if self._waits:
            reached = [future for offset, future in self._waits if offset <= self.applied]
            self._waits = [wait for wait in self._waits if wait[0] > self.applied]
            for future in reached:
                if not future.done():
                    future.set_result(None)

    async def reached(self, offset: Offset) -> None:
        """Wait until everything below `offset` is in the image."""
        if self.applied < offset:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waits.append((offset, future))
            await future

    # Changing.

    async def change(self, decide: Callable[[ClusterImage], Change]) -> Change:
        """Decide on the newest image, commit the decision, and return it once it is applied here.

        `decide` may be called several times. Where a reply was lost, its last call may see its
        own change already made.
        """
        try:
            async with asyncio.timeout(CHANGE_SECONDS_MAX):
                async with self._one_at_a_time:
                    asked = _Asked()
                    while True:
                        decided = await self._try(decide, asked)
                        if decided is not None:
                            return decided
        except TimeoutError:
            raise RequestTimedOut(
                "the quorum did not decide in time; are most of its nodes running?"
            ) from None

    async def caught_up(self) -> None:
        """Return once the image here has all that was decided by now: for who would refuse
        something because it is not there."""
        await self.change(_nothing)

    async def _try(self, decide: Callable[[ClusterImage], Change], asked: "_Asked") -> Change | None:
        refusal = self._quorum.refusal
        is_alone = self._quorum.raft.leader in (None, self._me)
        if refusal is not None and is_alone and not asked.is_unsure:
            raise StorageError(refusal)
        if self._quorum.leads:
            return await self._try_here(decide, asked)
        leader = self._quorum.raft.leader
        if leader is None or leader == self._me:
            await asyncio.sleep(_RETRY_SECONDS)
            return None
        return await self._try_there(leader, decide, asked)

    async def _try_here(self, decide: Callable[[ClusterImage], Change], asked: "_Asked") -> Change | None:
        try:
            decided = decide(self.image)
        except BrokerError:
            if await self._is_certain():
                raise
            return None
        records = _records(decided)
        if not records:
            return decided if await self._is_certain() else None
        try:
            await self._commit(records)
        except (NotController, StorageErrorAfterAppend):
            self.replies_lost += 1  # the next controller may find it in its log
            asked.is_unsure = True
            return None
        except StorageError:
            if not asked.is_unsure:
                raise
            await asyncio.sleep(_RETRY_SECONDS)
            return None
        return decided

    async def _is_certain(self) -> bool:
        """Whether this node decides; if nobody can tell, not before a moment has passed."""
        if await self.led_since():
            return True
        await asyncio.sleep(_RETRY_SECONDS)
        return False

    @property
    def _me(self) -> NodeId:
        return self._quorum.me.key.id

    async def _try_there(
        self, leader: NodeId, decide: Callable[[ClusterImage], Change], asked: "_Asked"
    ) -> Change | None:
        decided: Change | None = None
        refusal: BrokerError | None = None
        based_on = self.applied
        try:
            decided = decide(self.image)
        except BrokerError as error:
            refusal = error
        records = _records(decided) if decided is not None else []
        if not records and based_on >= asked.newest:
            if refusal is not None:
                raise refusal
            return decided
        try:
            answer = await self._ask(leader, Proposal(based_on=based_on, records=records))
        except (PeerUnreachable, PeerRefused) as error:
            _log.info("node %d did not take a change: %s", leader, error)
            self.replies_lost += 1
            asked.is_unsure |= bool(records)
            await asyncio.sleep(_RETRY_SECONDS)
            return None
        if answer.fate == ProposalFate.TAKEN:
            if refusal is not None:
                raise refusal
            await self.reached(answer.offset)
            return decided
        if answer.fate == ProposalFate.REFUSED:
            raise InvalidRequest(f"the active controller refuses the change: {answer.problem}")
        if answer.fate == ProposalFate.STALE:
            if not records:  # else nobody proved to be the controller
                asked.newest = min(asked.newest, answer.offset)
            await self.reached(answer.offset)
        else:
            self.replies_lost += 1  # it may have lost the lead after it had begun
            asked.is_unsure |= bool(records)
            await asyncio.sleep(_RETRY_SECONDS)
        return None

    async def _ask(self, leader: NodeId, proposal: Proposal) -> ProposalAnswer:
        """The leader's answer; not if another leads, or nobody, before it has come."""
        asking = asyncio.get_running_loop().create_task(
            self._hub.ask(leader, proposal, ProposalAnswer, seconds_max=_ASK_SECONDS_MAX)
        )
        self._asking = (leader, asking)
        try:
            return await asking
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise PeerUnreachable(f"node {leader} does not lead any more") from None
        finally:
            self._asking = None
            asking.cancel()

    def leader_changed(self, leader: NodeId | None) -> None:
        """Somebody else leads the quorum, or nobody: wait for no answer of the old one."""
        if self._asking is not None and self._asking[0] != leader:
            self._asking[1].cancel()

    async def _commit(self, records: list[MetadataRecord]) -> None:
        if records:
            await self._quorum.propose(records)

    # As the active controller.

    async def decide_here(self, decide: Callable[[ClusterImage], Change]) -> Change:
        """As `change`, but only if this node is the active controller, and stays it."""
        async with self._one_at_a_time:
            if not self._quorum.leads:
                raise NotController("this node is not the active controller")
            decided = decide(self.image)
            await self._commit(_records(decided))
            return decided

    def on_proposal(self, source: NodeId, proposal: Proposal, place: Answer | None) -> None:
        assert place is not None
        self._quorum.spawn(answered(place, self._take, source, proposal, place))

    async def _take(self, source: NodeId, proposal: Proposal, place: Answer) -> None:
        # Records prove it, too: they are committed, or not.
        if not self._quorum.leads or not (proposal.records or await self.led_since()):
            place.send(ProposalAnswer(fate=ProposalFate.ELSEWHERE, offset=self.applied))
            return
        async with self._one_at_a_time:
            is_ahead = proposal.based_on > self.applied
            if is_ahead or not self._recent.stands(proposal.records, proposal.based_on):
                place.send(ProposalAnswer(fate=ProposalFate.STALE, offset=self.applied))
                return
            if (problem := refusal(self.image, proposal.records, source)) is not None:
                _log.error("node %d proposed what it must not: %s", source, problem)
                answer = ProposalAnswer(fate=ProposalFate.REFUSED, offset=self.applied, problem=problem)
                place.send(answer)
                return
            try:
                await self._commit(proposal.records)
            except (NotController, StorageError):  # a full disk: another node is about to lead
                place.send(ProposalAnswer(fate=ProposalFate.ELSEWHERE, offset=self.applied))
                return
            place.send(ProposalAnswer(fate=ProposalFate.TAKEN, offset=self.applied))


def _records(decided: "MetadataRecord | Sequence[MetadataRecord]") -> list[MetadataRecord]:
    return list(decided) if isinstance(decided, Sequence) else [decided]


def _nothing(image: ClusterImage) -> list[MetadataRecord]:
    """A decision to change nothing, which is made on the newest image like any other."""
    return []
