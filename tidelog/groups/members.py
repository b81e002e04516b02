"""Who is in a group: the members, the static ones by name, and what all have in common."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from tidelog.groups.records import MemberRecord


@dataclass(slots=True, kw_only=True, eq=False)
class Member:
    """One member of a group, and the request that it waits on, if any."""

    id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]
    assignment: bytes = b""
    joining: object | None = None
    """Where the answer to its JoinGroup goes, while the group waits for others."""
    syncing: object | None = None
    """Where the answer to its SyncGroup goes, while the assignment is not stored."""
    is_new: bool = False
    """It has not had an answer yet, so nobody can tell whether it still waits for one."""

    def metadata(self, protocol: str) -> bytes:
        """What it says under the protocol that was chosen."""
        for name, metadata in self.protocols:
            if name == protocol:
                return metadata
        raise AssertionError(f"{self.id} does not speak {protocol}, which all members do")

    @property
    def size(self) -> int:
        """About how many bytes the group keeps of what this member says of itself."""
        texts = len(self.id) + len(self.client_id) + len(self.client_host)
        return texts + size_of(self.protocols)

    @property
    def waits(self) -> bool:
        return self.joining is not None or self.syncing is not None

    def record(self, protocol: str, assignment: bytes) -> MemberRecord:
        return MemberRecord(
            member_id=self.id,
            instance_id=self.instance_id,
            client_id=self.client_id,
            client_host=self.client_host,
            rebalance_timeout_ms=self.rebalance_timeout_ms,
            session_timeout_ms=self.session_timeout_ms,
            subscription=self.metadata(protocol),
            assignment=assignment,
        )

    @classmethod
    def restored(cls, record: MemberRecord, protocol: str) -> "Member":
        return cls(
            id=record.member_id,
            instance_id=record.instance_id,
            client_id=record.client_id,
            client_host=record.client_host,
            session_timeout_ms=record.session_timeout_ms,
            rebalance_timeout_ms=record.rebalance_timeout_ms,
            protocols=((protocol, record.subscription),),
            assignment=record.assignment,
        )


def size_of(protocols: tuple[tuple[str, bytes], ...]) -> int:
    return sum(len(name) + len(metadata) for name, metadata in protocols)


class Roster:
    """The members of one group.

    Invariants:
      1. `leader` is a member, and None only while there is none.
      2. `static` names exactly the members with an instance id.
      3. `joined_count` members wait for the answer to a join.
      4. `_speakers` counts the members that speak a protocol; at least one is spoken by all.
      5. `size` is the sum of the members' sizes.
    """

    __slots__ = ("_members", "_speakers", "joined_count", "leader", "size", "static")

    def __init__(self) -> None:
        self._members: dict[str, Member] = {}
        self._speakers: Counter[str] = Counter()
        self.static: dict[str, str] = {}
        self.leader: str | None = None
        self.joined_count = 0
        self.size = 0

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[Member]:
        return iter(self._members.values())

    def __contains__(self, member_id: str) -> bool:
        return member_id in self._members

    def get(self, member_id: str) -> Member | None:
        return self._members.get(member_id)

    def add(self, member: Member) -> None:
        """Take in a member; the first one leads."""
        assert member.id not in self._members, "a member joins once"
        assert self.speaks_any(member.protocols), "all members have a protocol in common"
        self._members[member.id] = member
        self._count(member, 1)
        if member.instance_id is not None:
            assert member.instance_id not in self.static, "a name belongs to one member"
            self.static[member.instance_id] = member.id
        if self.leader is None:
            self.leader = member.id

    def remove(self, member: Member) -> None:
        """Let a member go; if it led, the longest-standing one leads."""
        del self._members[member.id]
        self._count(member, -1)
        if member.instance_id is not None:
            del self.static[member.instance_id]
        if self.leader == member.id:
            self.leader = next(iter(self._members), None)

    def replace(self, old: Member, new: Member) -> None:
        """A static member continues under another id, and leads if the old one did."""
        assert old.instance_id is not None
        assert old.instance_id == new.instance_id
        led = self.leader == old.id
        self.remove(old)
        self.add(new)
        if led:
            self.leader = new.id

    def change_protocols(self, member: Member, protocols: tuple[tuple[str, bytes], ...]) -> None:
        self._count(member, -1)
        member.protocols = protocols
        self._count(member, 1)

    def wait_to_join(self, member: Member, reply: object) -> None:
        """Park the member's join."""
        if member.joining is None:
            self.joined_count += 1
        member.joining = reply

    def stop_joining(self, member: Member) -> object | None:
        """Take the parked join off the member, to answer it."""
        reply, member.joining = member.joining, None
        if reply is not None:
            self.joined_count -= 1
        return reply

    def _count(self, member: Member, sign: int) -> None:
        for name, _ in member.protocols:
            self._speakers[name] += sign
            if not self._speakers[name]:
                del self._speakers[name]
        if member.joining is not None:
            self.joined_count += sign
        self.size += sign * member.size

    def elect_joined_leader(self) -> bool:
        """Let somebody who has joined lead; False if nobody has."""
        leader = self._members.get(self.leader or "")
        if leader is not None and leader.joining is not None:
            return True
        for member in self:
            if member.joining is not None:
                self.leader = member.id
                return True
        return False

    def speaks_any(self, protocols: tuple[tuple[str, bytes], ...]) -> bool:
        """Whether one of `protocols` is spoken by all members."""
        everyone = len(self._members)
        return any(self._speakers[name] == everyone for name, _ in protocols)

    def choose_protocol(self) -> str:
        """Of those that all speak, the one that most members like best; the first of equals."""
        everyone = len(self._members)
        common = {name for name, count in self._speakers.items() if count == everyone}
        votes: Counter[str] = Counter()
        for member in self:
            votes[next(name for name, _ in member.protocols if name in common)] += 1
        return votes.most_common(1)[0][0]

    @property
    def rebalance_timeout_ms(self) -> int:
        """As long as the most patient member grants."""
        return max((member.rebalance_timeout_ms for member in self), default=0)

    def assert_invariants(self) -> None:
        """Check everything at length; for tests and simulations."""
        members = self._members
        assert (self.leader in members) if members else (self.leader is None)
        assert self.static == {m.instance_id: m.id for m in self if m.instance_id is not None}
        assert self.joined_count == sum(m.joining is not None for m in self)
        assert self._speakers == Counter(name for m in self for name, _ in m.protocols)
        assert self.size == sum(m.size for m in self)
        assert not members or any(n == len(members) for n in self._speakers.values())
