"""One member of a consumer group, by the classic protocol and the range assignor.

    join ──► assigned ──► heartbeat, commit ──► leave
     ▲                        │
     └──── must_rejoin ◄──────┘   the coordinator begins another generation

Rule 1: the assignor is Kafka's `range`, so members of other libraries can share the group.
Rule 2: a member that must rejoin has lost its partitions: nothing is read or committed in between.
"""

import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from kio.schema.errors import ErrorCode

from tidelog.client.admin import AdminClient
from tidelog.client.cluster import Refused, check
from tidelog.client.wire import Connection
from tidelog.model import Offset, TopicPartition
from tidelog.wire.apis import Api
from tidelog.wire.subscription import CONSUMER, decode_assignment, subscribed_topics

RANGE: Final = "range"
SESSION_MS: Final = 45_000
REBALANCE_MS: Final = 60_000
HEARTBEAT_SECONDS: Final = 3.0
_REBALANCE_SECONDS_MAX: Final = 2 * REBALANCE_MS / 1000
_REJOIN: Final = frozenset(
    {ErrorCode.rebalance_in_progress, ErrorCode.illegal_generation, ErrorCode.unknown_member_id}
)


class GroupMember:
    """A member that reads one topic. Owned by one task."""

    def __init__(self, client: AdminClient, group: str, topic: str) -> None:
        self._client = client
        self._group = group
        self._topic = topic
        self._id = ""
        self._generation = -1
        self.assigned: tuple[int, ...] = ()
        """The partitions that this member owns in the current generation."""

    async def join(self) -> None:
        """Take part in a generation; afterwards `assigned` is known."""
        self.assigned = ()
        while True:
            try:
                answer = await self._ask_to_join()
                await self._sync(answer.members, answer.protocol_name)
            except Refused as error:
                if error.code not in _REJOIN:
                    raise
                if error.code == ErrorCode.unknown_member_id:
                    self._id = ""
            else:
                return

    async def heartbeat(self) -> bool:
        """Tell the coordinator that this member lives; False if it must rejoin."""

        async def ask(connection: Connection) -> Any:
            return await connection.call(
                Api.HEARTBEAT,
                group_id=self._group,
                generation_id=self._generation,
                member_id=self._id,
                group_instance_id=None,
            )

        answer = await self._client.ask_group_coordinator(self._group, ask)
        return not self._must_rejoin(answer.error_code)

    async def commit(self, positions: Mapping[int, Offset]) -> bool:
        """Commit where to go on; False if another generation has begun and nothing is committed."""
        offsets = {TopicPartition(self._topic, one): at for one, at in positions.items()}
        try:
            await self._client.commit_offsets(
                self._group, offsets, member_id=self._id, generation=self._generation
            )
        except Refused as error:
            if self._must_rejoin(error.code):
                return False
            raise
        return True

    async def leave(self) -> None:
        """Let the others have the partitions at once, and not after the session timeout."""
        if not self._id:
            return

        async def ask(connection: Connection) -> None:
            await connection.call(
                Api.LEAVE_GROUP,
                group_id=self._group,
                member_id=self._id,
                members=[{"member_id": self._id, "group_instance_id": None, "reason": None}],
            )

        await self._client.ask_group_coordinator(self._group, ask)
        self._id, self.assigned = "", ()

    def _must_rejoin(self, code: int) -> bool:
        if code == ErrorCode.unknown_member_id:
            self._id = ""
        if code not in _REJOIN:
            check(code, f"group {self._group!r}")
            return False
        self.assigned = ()
        return True

    async def _ask_to_join(self) -> Any:
        async def ask(connection: Connection) -> Any:
            return await connection.call(
                Api.JOIN_GROUP,
                timeout_seconds=_REBALANCE_SECONDS_MAX,
                group_id=self._group,
                session_timeout=SESSION_MS,
                rebalance_timeout=REBALANCE_MS,
                member_id=self._id,
                group_instance_id=None,
                protocol_type=CONSUMER,
                protocols=[{"name": RANGE, "metadata": encode_subscription([self._topic])}],
                reason=None,
            )

        answer = await self._client.ask_group_coordinator(self._group, ask)
        if answer.error_code == ErrorCode.member_id_required:
            self._id = answer.member_id
            answer = await self._client.ask_group_coordinator(self._group, ask)
        check(answer.error_code, f"group {self._group!r}")
        self._id, self._generation = answer.member_id, answer.generation_id
        return answer

    async def _sync(self, members: Sequence[Any], protocol: str) -> None:
        """`members` are all of them if this one leads the group, and nobody otherwise."""
        subscriptions = {
            one.member_id: subscribed_topics(bytes(one.metadata)) or frozenset() for one in members
        }
        counts: dict[str, int] = {}
        for topic in sorted(frozenset[str]().union(*subscriptions.values())):
            try:
                counts[topic] = len((await self._client.topic(topic)).partitions)
            except Refused as error:
                if error.code != ErrorCode.unknown_topic_or_partition:
                    raise  # a topic that does not exist has no partitions to share out
        shares = assign_ranges(subscriptions, counts)

        async def ask(connection: Connection) -> Any:
            return await connection.call(
                Api.SYNC_GROUP,
                timeout_seconds=_REBALANCE_SECONDS_MAX,
                group_id=self._group,
                generation_id=self._generation,
                member_id=self._id,
                group_instance_id=None,
                protocol_type=CONSUMER,
                protocol_name=protocol,
                assignments=[
                    {"member_id": member, "assignment": encode_assignment(places)}
                    for member, places in shares.items()
                ],
            )

        answer = await self._client.ask_group_coordinator(self._group, ask)
        check(answer.error_code, f"group {self._group!r}")
        places = decode_assignment(bytes(answer.assignment)) or ()
        self.assigned = tuple(one.partition for one in places if one.topic == self._topic)


def assign_ranges(
    subscriptions: Mapping[str, Iterable[str]], partition_counts: Mapping[str, int]
) -> dict[str, list[TopicPartition]]:
    """Kafka's range assignor: of each topic every member gets neighbours, the first ones more."""
    shares: dict[str, list[TopicPartition]] = {member: [] for member in subscriptions}
    for topic, count in sorted(partition_counts.items()):
        wanting = sorted(member for member, topics in subscriptions.items() if topic in topics)
        each, more = divmod(count, len(wanting)) if wanting else (0, 0)
        at = 0
        for number, member in enumerate(wanting):
            end = at + each + (number < more)
            shares[member] += [TopicPartition(topic, one) for one in range(at, end)]
            at = end
    return shares


# subscription := version: int16 = 0, topics: [text], user_data: bytes? = null
# assignment   := version: int16 = 0, topics: [text, partitions: [int32]], user_data: bytes? = null
# text         := length: int16, UTF-8;  [x] := count: int32, x{count};  all big-endian


def encode_subscription(topics: Sequence[str]) -> bytes:
    return b"".join([struct.pack(">hi", 0, len(topics)), *map(_text, topics), struct.pack(">i", -1)])


def encode_assignment(places: Sequence[TopicPartition]) -> bytes:
    by_topic: dict[str, list[int]] = {}
    for place in places:
        by_topic.setdefault(place.topic, []).append(place.partition)
    parts = [struct.pack(">hi", 0, len(by_topic))]
    for topic, partitions in by_topic.items():
        parts.append(_text(topic))
        parts.append(struct.pack(f">i{len(partitions)}i", len(partitions), *partitions))
    return b"".join([*parts, struct.pack(">i", -1)])


def _text(text: str) -> bytes:
    data = text.encode()
    return struct.pack(">h", len(data)) + data
