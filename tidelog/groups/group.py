"""One consumer group: who is in it, in which generation, and who gets what.

Rule 1: nothing here reads a clock, a random number, a file or a socket.
Rule 2: an assignment is stored before any member hears of it.
Rule 3: every request that comes in is answered exactly once, also that of a member that is removed,
        replaced, or asks again before it was answered.
Rule 4: every member, and everyone who was promised an id, has a deadline; who misses it is out.

    state                trigger                                          next state
    -------------------  -----------------------------------------------  -------------------
    Empty                a member joins                                   PreparingRebalance
                         deleted, or its last offset has expired          Dead
    PreparingRebalance   every member has joined, nobody with a promised  CompletingRebalance
                         id is missing; or the rebalance timeout is over
                         (who has not joined is out, but static members
                         stay); the first time, the initial delay is over
                         nobody is left                                   Empty
                         the timeout is over, and only static members     PreparingRebalance,
                         are left of whom none has joined                 for another timeout
    CompletingRebalance  the leader's assignment is stored                Stable
                         it could not be stored                           PreparingRebalance
                         a member is added or leaves, is silent too       PreparingRebalance
                         long, does not sync in time, joins with other
                         metadata; a static member restarts
    Stable               a member is added or leaves, is silent too       PreparingRebalance
                         long, did not sync in time; the leader joins
                         again, or another with other metadata; a static
                         member restarts with other topics or such that
                         another protocol wins
    any                  the coordinator moves to another node            Dead

    request     Empty        Preparing           Completing          Stable              Dead
    ----------  -----------  ------------------  ------------------  ------------------  ----
    join        begins       waits               same metadata: at   same metadata, not  (1)
                             for the others      once; else begins   leading: at once;
                                                                     else begins
    sync        unknown      rebalance           waits for the       the assignment      (1)
                member       in progress         leader's
    heartbeat   unknown      rebalance           fine                fine                (1)
                member       in progress
    commit      if of no     by members of the   rebalance           by members          (1)
                generation   last generation     in progress
    commit in   if of no     by members of the   by members, or      by members, or      (1)
    a trans-    generation   last generation,    who names none      who names none
    action                   or who names none
    leave       unknown      removed             removed             removed             (1)
                member
    (1) coordinator not available

A cooperative rebalance (KIP-429) is two ordinary ones: the members give up partitions between them.
"""

from dataclasses import replace

from tidelog.errors import (
    BrokerError,
    CoordinatorNotAvailable,
    FencedInstanceId,
    GroupMaxSizeReached,
    InconsistentGroupProtocol,
    InvalidRequest,
    InvalidSessionTimeout,
    MemberIdRequired,
    RebalanceInProgress,
)
from tidelog.groups.events import (
    NO_MEMBER_ID,
    Commit,
    Effect,
    Heartbeat,
    Join,
    Leave,
    Leaver,
    Left,
    NewAssignment,
    Replacement,
    Store,
    Sync,
    TransactionalCommit,
)
from tidelog.groups.limits import Limits
from tidelog.groups.members import Member, size_of
from tidelog.groups.rebalance import Rebalancing
from tidelog.groups.records import GroupRecord, RenamedMember, fits
from tidelog.groups.state import State, Timer
from tidelog.shards.effects import Moment
from tidelog.wire.subscription import CONSUMER, subscribed_topics


class Group(Rebalancing):
    """A classic consumer group, as its coordinator runs it.

    The coordinator does not know what is shared out. For each generation it chooses a protocol that
    all members speak, tells one of them, the leader, what all have said, and hands round the
    assignment that comes back.

    The invariants are those of `GroupState`. Owned by one shard; not thread-safe.
    """

    __slots__ = ()

    @classmethod
    def restored(cls, group_id: str, record: GroupRecord, limits: Limits) -> "Group":
        """The group as the log tells it. It has no deadlines before `start`."""
        group = cls(group_id, limits)
        group._restore(record)
        return group

    def rename(self, renamed: RenamedMember) -> None:
        """A static member goes on under another id, as the log tells it; before `start`."""
        record, protocol = renamed.member, self.protocol
        old = self.roster.get(self.roster.static.get(record.instance_id or "", NO_MEMBER_ID))
        if self.state is State.STABLE and renamed.generation == self.generation and old is not None:
            assert protocol is not None, "a stable group has one"
            self.roster.replace(old, Member.restored(record, protocol))

    def start(self, at: Moment) -> list[Effect]:
        """The log is read to its end: every member has the time of a session to be heard of."""
        for member in self.roster:
            self._expect(member, at)
        if len(self.roster) > self._limits.group_size_max:
            self._rebalance(at, f"{len(self.roster)} members are more than group.max.size")
        return self._done()

    # Joining.

    def join(self, event: Join, at: Moment) -> list[Effect]:
        """A client wants to become a member, or to stay one."""
        try:
            self._join(event, at)
        except BrokerError as error:
            self._answer(event.reply, error)
        return self._done()

    def _join(self, event: Join, at: Moment) -> None:
        self._check_alive()
        event = _checked(event, self._limits)
        if not self._has_room(event):
            self._turn_away(event.member_id, at)
            raise GroupMaxSizeReached("group.max.size", self._limits.group_size_max)
        self._check_size(event)
        of_our_type = self.state is State.EMPTY or event.protocol_type == self.protocol_type
        if not of_our_type or not self.roster.speaks_any(event.protocols):
            raise InconsistentGroupProtocol(
                f"{event.protocol_type!r} with {[name for name, _ in event.protocols]} has "
                f"nothing in common with the members of {self.id!r}, of {self.protocol_type!r}"
            )
        if event.member_id == NO_MEMBER_ID:
            self._join_anew(event, at)
        elif event.member_id in self._promised and event.instance_id is None:
            self._add(event, event.member_id, at)
        else:
            self._rejoin(self._member(event.member_id, event.instance_id), event, at)

    def _known(self, event: Join) -> Member | None:
        """The member that asks, or that is to be replaced; nothing is checked yet."""
        member_id = event.member_id
        if member_id == NO_MEMBER_ID and event.instance_id is not None:
            member_id = self.roster.static.get(event.instance_id, NO_MEMBER_ID)
        return self.roster.get(member_id)

    def _check_size(self, event: Join) -> None:
        known = self._known(event)
        size = self.roster.size + self._promised_size + size_of(event.protocols)
        if known is not None:
            size -= size_of(known.protocols)
        if size > self._limits.group_bytes_max:
            raise GroupMaxSizeReached("group.max.bytes", self._limits.group_bytes_max)

    def _has_room(self, event: Join) -> bool:
        member = self._known(event)
        size_max = self._limits.group_size_max
        match self.state:
            case State.PREPARING:
                # Who has joined counts, not who was in: the limit may have been lowered since.
                has_joined = member is not None and member.joining is not None
                return has_joined or self.roster.joined_count < size_max
            case State.COMPLETING | State.STABLE:
                return member is not None or len(self.roster) < size_max
            case _:
                return True

    def _turn_away(self, member_id: str, at: Moment) -> None:
        member = self.roster.get(member_id)
        if member is not None:
            self._remove(member)
        self._withdraw(member_id)
        self._complete_if_all_joined(at)

    def _join_anew(self, event: Join, at: Moment) -> None:
        name = event.client_id if event.instance_id is None else event.instance_id
        member_id = f"{name}-{event.unique}"
        if event.instance_id is None and event.wants_id_first:
            self._promise(member_id, event.session_timeout_ms, at)
            raise MemberIdRequired(member_id=member_id)
        old = None
        if event.instance_id is not None:
            old = self.roster.get(self.roster.static.get(event.instance_id, NO_MEMBER_ID))
        if old is None:
            self._add(event, member_id, at)
        else:
            self._replace_static(old, event, member_id, at)

    def _add(self, event: Join, member_id: str, at: Moment) -> None:
        self._withdraw(member_id)
        if not self.roster:
            self.protocol_type = event.protocol_type
        self.roster.add(
            Member(
                id=member_id,
                instance_id=event.instance_id,
                client_id=event.client_id,
                client_host=event.client_host,
                session_timeout_ms=event.session_timeout_ms,
                rebalance_timeout_ms=event.rebalance_timeout_ms,
                protocols=event.protocols,
                joining=event.reply,
                is_new=True,
            )
        )
        self._grew = True
        # Until it has its answer it cannot heartbeat, and its going away is not seen. Clients that
        # gave up and came back would pile up as members if this wait had no end.
        self._set_deadline(member_id, self._limits.new_member_join_timeout_ms, at)
        self._rebalance(at, f"{member_id} joins")

    def _rejoin(self, member: Member, event: Join, at: Moment) -> None:
        unchanged = member.protocols == event.protocols
        leads = member.id == self.roster.leader
        match self.state:
            case State.COMPLETING if unchanged:
                self._answer(event.reply, self._joined(member))  # its first answer was lost
            case State.STABLE if unchanged and not leads:
                self._answer(event.reply, self._joined(member))
            case _:
                # This is also how a leader asks for a rebalance, when topics have changed.
                self._update(member, event)
                self._rebalance(at, f"{'the leader ' if leads else ''}{member.id} joins again")

    def _update(self, member: Member, event: Join) -> None:
        self.roster.change_protocols(member, event.protocols)
        member.session_timeout_ms = event.session_timeout_ms
        member.rebalance_timeout_ms = event.rebalance_timeout_ms
        if member.joining is not None:
            self._answer(member.joining, RebalanceInProgress("the member has asked again"))
        self.roster.wait_to_join(member, event.reply)

    # Static members.

    def _replace_static(self, old: Member, event: Join, member_id: str, at: Moment) -> None:
        """A process has restarted under the name of `old`, which is fenced from now on."""
        assert event.instance_id is not None
        self._release(old, FencedInstanceId(event.instance_id))
        leader_before = self.roster.leader
        assert leader_before is not None
        new = replace(
            old,
            id=member_id,
            client_id=event.client_id,
            client_host=event.client_host,
            session_timeout_ms=event.session_timeout_ms,
            protocols=event.protocols,
            rebalance_timeout_ms=event.rebalance_timeout_ms,
            joining=event.reply,
            is_new=False,
        )
        self._swap(old, new, at)
        if self.state is not State.STABLE:
            self._rebalance(at, f"the static member {event.instance_id!r} has restarted")
        elif self._needs_rebalance(old, new):
            self._rebalance(at, f"{event.instance_id!r} has restarted with other protocols")
        else:
            assert self.protocol is not None, "a stable group has one"
            renamed = RenamedMember(
                generation=self.generation, member=new.record(self.protocol, new.assignment)
            )
            change = Replacement(
                renamed=renamed,
                member_id=new.id,
                reply=event.reply,
                old=old,
                leader_before=leader_before,
                can_skip_assignment=event.can_skip_assignment,
            )
            self._effects.append(Store(change=change))

    def _needs_rebalance(self, old: Member, new: Member) -> bool:
        """Whether the assignment of a stable group may be wrong for a restarted member."""
        if (protocol := self.protocol) is None:
            return True
        # Who likes the same protocols changes no vote. To count them takes all members.
        likes_others = [name for name, _ in old.protocols] != [name for name, _ in new.protocols]
        if likes_others and self.roster.choose_protocol() != protocol:
            return True
        if self.protocol_type != CONSUMER:
            return False
        # The rest of the metadata, such as the partitions it owns, changes with every restart.
        # Kafka ignores the topics too, and leaves new ones unread (KAFKA-12759).
        topics_before = subscribed_topics(old.metadata(protocol))
        return subscribed_topics(new.metadata(protocol)) != topics_before

    # Syncing, living, leaving.

    def sync(self, event: Sync, at: Moment) -> list[Effect]:
        """A member asks for its share; the leader brings everyone's."""
        try:
            self._sync(event, at)
        except BrokerError as error:
            self._answer(event.reply, error)
        return self._done()

    def _sync(self, event: Sync, at: Moment) -> None:
        self._check_alive()
        member = self._member(event.member_id, event.instance_id)
        self._check_generation(event.generation)
        same_type = event.protocol_type in (None, self.protocol_type)
        if not same_type or event.protocol not in (None, self.protocol):
            raise InconsistentGroupProtocol(
                f"the group runs {self.protocol!r} of type {self.protocol_type!r}"
            )
        if self.state is State.PREPARING:
            raise RebalanceInProgress("members are joining")
        self._unsynced.discard(member.id)
        if not self._unsynced:
            self._deadlines.cancel(Timer.SYNC)
        if self.state is State.STABLE:
            self._answer(event.reply, self._synced(member))
            return
        if member.syncing is not None:
            self._answer(member.syncing, RebalanceInProgress("the member has asked again"))
        member.syncing = event.reply
        # A leader that asks again while its assignment is being stored brings nothing new.
        if member.id == self.roster.leader and self._saving is None:
            self._saving = NewAssignment(record=self.record(event.assignments, at.wall_ms))
            self._effects.append(Store(change=self._saving))

    def heartbeat(self, event: Heartbeat, at: Moment) -> list[Effect]:
        """A member lives; it hears whether it has to join again."""
        try:
            self._check_alive()
            member = self._member(event.member_id, event.instance_id)
            self._check_generation(event.generation)
            self._expect(member, at)
            if self.state is State.PREPARING:
                raise RebalanceInProgress("members are joining")
            self._answer(event.reply, None)
        except BrokerError as error:
            self._answer(event.reply, error)
        return self._done()

    def leave(self, event: Leave, at: Moment) -> list[Effect]:
        """Members go. Each is judged alone; one that is unknown does not hold up the others."""
        if self.state is State.DEAD:
            self._answer(event.reply, CoordinatorNotAvailable(f"{self.id!r} is being removed"))
            return self._done()
        size = len(self.roster)
        results: list[tuple[Leaver, BrokerError | None]] = []
        for leaver in event.members:
            try:
                self._leave(leaver)
                results.append((leaver, None))
            except BrokerError as error:
                results.append((leaver, error))
        self._answer(event.reply, Left(members=tuple(results)))
        if len(self.roster) < size:
            self._rebalance(at, "members have left")
        else:
            self._complete_if_all_joined(at)
        return self._done()

    def _leave(self, leaver: Leaver) -> None:
        if leaver.member_id in self._promised:
            self._withdraw(leaver.member_id)
            return
        member_id = leaver.member_id
        if member_id == NO_MEMBER_ID and leaver.instance_id is not None:
            member_id = self.roster.static.get(leaver.instance_id, NO_MEMBER_ID)
        self._remove(self._member(member_id, leaver.instance_id))

    def check_commit(self, event: Commit, at: Moment) -> None:
        """Let a commit of offsets pass, or raise. It counts as a sign of life."""
        self._check_alive()
        if event.generation < 0 and self.state is State.EMPTY:
            return  # from a consumer that manages its partitions itself, or from an operator
        member = self._member(event.member_id, event.instance_id)
        self._check_generation(event.generation)
        if self.state is State.COMPLETING:
            # It is a member of this generation but does not know its partitions yet.
            raise RebalanceInProgress("the assignment is not known yet")
        self._expect(member, at)

    def check_transactional_commit(self, event: TransactionalCommit) -> None:
        """Let offsets become part of a transaction, or raise. It is no sign of life: the producer
        asks, not the member.

        Unlike other commits it may come between a join and its assignment: whether the group
        still stands as it was is judged by the generation alone (KIP-447).
        """
        self._check_alive()
        if event.generation < 0 and self.state is State.EMPTY:
            return
        if event.names_member:
            self._member(event.member_id, event.instance_id)
            self._check_generation(event.generation)


def _checked(event: Join, limits: Limits) -> Join:
    """The request, with what it leaves out filled in; raises for what cannot be right."""
    least_ms, most_ms = limits.session_timeout_min_ms, limits.session_timeout_max_ms
    if not least_ms <= event.session_timeout_ms <= most_ms:
        raise InvalidSessionTimeout(timeout_ms=event.session_timeout_ms, least_ms=least_ms, most_ms=most_ms)
    if not event.protocol_type or not event.protocols:
        raise InconsistentGroupProtocol("a member names a protocol type and at least one protocol")
    named = event.instance_id if event.instance_id is not None else event.client_id
    names = [name for name, _ in event.protocols]
    texts = [f"{named}-{event.unique}", event.client_id, event.client_host, event.protocol_type]
    if not all(map(fits, [event.member_id, *texts, *names])):
        raise InvalidRequest("an id, a host or a protocol's name is too long to be stored")
    protocols: dict[str, bytes] = {}
    for name, metadata in event.protocols:
        protocols.setdefault(name, metadata)
    rebalance_timeout_ms = event.rebalance_timeout_ms
    return replace(
        event,
        protocols=tuple(protocols.items()),
        rebalance_timeout_ms=(event.session_timeout_ms if rebalance_timeout_ms < 0 else rebalance_timeout_ms),
    )
