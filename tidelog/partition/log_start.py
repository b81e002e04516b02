"""Where a replica's log begins: what is promised, what is noted on disk, and who waits for it.

Rule: a leader's log begins later only when every in-sync replica has promised so, durably
(docs/decisions/016-log-starts.md).
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from tidelog.errors import BrokerError, NotEnoughReplicas, NotLeader, OffsetOutOfRange, StorageError
from tidelog.model import NO_OFFSET, Epoch, NodeId, Offset
from tidelog.partition.leader import Leader, Waiter

if TYPE_CHECKING:
    from tidelog.partition.driver import Partition


class LogStart:
    """The start of one partition's log, as its driver, its leader and its followers know it."""

    __slots__ = ("_partition", "noted", "on_agreed", "promised", "under_way")

    def __init__(
        self,
        partition: "Partition",
        *,
        noted: Offset,
        promised: Offset,
        on_agreed: "Callable[[Partition], None]",
    ) -> None:
        self._partition = partition
        self.noted = noted
        """Where the log begins, as its disk knows."""
        self.promised = promised
        """As its disk knows; without meaning up to `noted`."""
        self.under_way: list[Offset] = []
        """Where the log will begin once its disk allows, whoever leads by then."""
        self.on_agreed = on_agreed
        """Called when this replica, as a leader, may let its log begin later."""

    # As the leader.

    def want(self, start: Offset) -> None:
        """Let the log begin at `start`, once every in-sync replica has promised so."""
        leader = self._partition.leading()
        if leader.want_start(start):
            self.look(leader)
            self._partition.tell_log_watchers()

    def delete_before(self, offset: Offset, waiter: Waiter) -> bool:
        """Delete what lies before `offset`, or with -1 all that is committed.

        True if the log begins there already; otherwise `waiter` is told when it does. Like a
        record, it may be deleted even if the answer is that it is too late, or that another leads.
        """
        partition = self._partition
        leader, end, log = partition.leading(), partition.visible_end(), partition.log
        start = end if offset == -1 else offset
        if not 0 <= start <= end:
            raise OffsetOutOfRange(offset=start, start=log.start, end=end)
        if start <= log.start:
            if start > self.noted:
                raise StorageError("the log's start cannot be noted yet: its disk refuses to")
            return True
        if len(leader.replicas) > 1 and not partition.has_lease():
            raise NotLeader(leader=None)  # another may lead by now
        if leader.is_short:
            raise NotEnoughReplicas(in_sync=len(leader.in_sync), needed=leader.min_in_sync)
        self.want(start)
        partition.on_waits(partition)
        return leader.wait_start(start, waiter)

    def follower_promises(self, node: NodeId, epoch: Epoch, start: Offset, broker_epoch: int) -> None:
        """A follower tells where its log will begin, whatever happens to this leader."""
        if (leader := self._partition.leader) is not None and leader.epoch == epoch:
            leader.promises(node, start, broker_epoch)
            self.look(leader)

    def look(self, leader: Leader) -> None:
        """Look whether all in-sync replicas agree on a later start."""
        if leader.start_agreed > leader.start:
            self.on_agreed(self._partition)

    def hide(self, start: Offset) -> None:
        """The log will begin at `start`, though its disk does not know it yet."""
        if (leader := self._partition.leader) is not None:
            leader.hide_start(start)

    def refused(self, error: BrokerError) -> None:
        """The log's disk refused to note the new start; the old one stays."""
        leader = self._partition.leader
        for waiter in leader.take_started() if leader is not None else ():
            waiter.settled(error)

    # As a follower.

    def promise_due(self) -> Offset | None:
        """What a follower must note that it promises its leader; None if there is nothing to note.

        It is 0 where an earlier leader was promised what this one does not ask for: no leader that
        comes after this one has shown it.
        """
        follower = self._partition.follower
        if follower is None or (wanted := follower.wanted_start) == NO_OFFSET:
            return None
        due = wanted if wanted > self.noted else 0
        known = self.promised if self.promised > self.noted else 0
        return None if due == known else due

    @property
    def promised_to_leader(self) -> Offset:
        """Where a follower's log will begin, as its leader asked; NO_OFFSET until that is noted."""
        follower = self._partition.follower
        if follower is None or self.promise_due() is not None:
            return NO_OFFSET
        return follower.wanted_start
