"""Every failure that a client can be told of, with its Kafka code.

Rule 1: an error carries facts; its docstring says what to do about it.
Rule 2: `code` and `retriable` are Kafka's own, so that clients react as they do to Kafka.
Rule 3: what is raised here is the world's fault or the client's; our own bugs are assertions.
"""

from collections.abc import Sequence
from functools import cache
from typing import ClassVar


class TidelogError(Exception):
    """Anything Tidelog reports by name."""


class ConfigError(TidelogError):
    """A setting is wrong; the message names the key and the fix."""


class BrokerError(TidelogError):
    """A request could not be done; the client gets `code`."""

    code: ClassVar[int] = -1
    retriable: ClassVar[bool] = False


class OffsetOutOfRange(BrokerError):
    """The offset is not in the log; seek to the beginning or the end, or by `auto.offset.reset`."""

    code = 1

    def __init__(self, *, offset: int, start: int, end: int) -> None:
        super().__init__(f"offset {offset} is outside of the log, which holds {start} to {end}")


class CorruptMessage(BrokerError):
    """The batch's checksum or shape is wrong: send it again; if it persists, look at the sender."""

    code = 2
    retriable = True


class UnknownTopicOrPartition(BrokerError):
    """There is no such topic or partition here; create it, or refresh metadata."""

    code = 3
    retriable = True

    def __init__(self, what: object) -> None:
        super().__init__(f"there is no topic or partition {what}")


class UnknownQueue(UnknownTopicOrPartition):
    """There is no such queue; the message says how to make it."""

    def __init__(self, message: str) -> None:
        BrokerError.__init__(self, message)


class LeaderNotAvailable(BrokerError):
    """Nobody leads the partition now; wait for an election, and refresh metadata."""

    code = 5
    retriable = True


class NotLeader(BrokerError):
    """This broker does not lead the partition; refresh metadata and retry."""

    code = 6
    retriable = True

    def __init__(self, *, leader: int | None) -> None:
        super().__init__(f"the leader is {leader}")
        self.leader = leader


class RequestTimedOut(BrokerError):
    """The record was appended, but its commit was not seen in time; it may still happen."""

    code = 7
    retriable = True


class OutcomeUnknown(RequestTimedOut):
    """A write may have happened, or may happen yet; look, or repeat it with the same
    Idempotency-Key."""

    def __init__(self, message: str, **known: object) -> None:
        super().__init__(message)
        self.known = known
        """What is known of it, for whoever asked: where it is written, and who holds it."""


class BrokerNotAvailable(BrokerError):
    """The broker does not run, or nobody can reach it; start it, or ask another one."""

    code = 8


class MessageTooLarge(BrokerError):
    """The batch is above the topic's `max.message.bytes`; send less at once, or raise the limit."""

    code = 10

    def __init__(self, *, size: int, size_max: int) -> None:
        super().__init__(f"the batch has {size} bytes; max.message.bytes is {size_max}")


class OffsetMetadataTooLarge(BrokerError):
    """The text beside a committed offset is too long; shorten it, or raise the limit."""

    code = 12

    def __init__(self, *, size: int, size_max: int) -> None:
        super().__init__(
            f"the offset's metadata has {size} characters; offset.metadata.max.bytes is {size_max}"
        )


class CoordinatorLoadInProgress(BrokerError):
    """The coordinator is still reading its groups from the log; retry."""

    code = 14
    retriable = True


class CoordinatorNotAvailable(BrokerError):
    """The coordinator cannot do this now; find it again and retry."""

    code = 15
    retriable = True


class NotCoordinator(BrokerError):
    """This node does not coordinate the group; ask FindCoordinator which does."""

    code = 16
    retriable = True


class InvalidTopic(BrokerError):
    """The name cannot be a topic's; the message says why."""

    code = 17


class NotEnoughReplicas(BrokerError):
    """Fewer replicas are in sync than `min.insync.replicas`; nothing was written. Retry later."""

    code = 19
    retriable = True

    def __init__(self, *, in_sync: int, needed: int) -> None:
        super().__init__(f"{in_sync} replicas are in sync; min.insync.replicas is {needed}")


class NotEnoughReplicasAfterAppend(BrokerError):
    """The record was appended, but too few replicas are in sync to commit it. Retry later."""

    code = 20
    retriable = True

    def __init__(self, *, in_sync: int, needed: int) -> None:
        super().__init__(
            f"appended, but only {in_sync} replicas are in sync; min.insync.replicas is {needed}"
        )


class InvalidRequiredAcks(BrokerError):
    """`acks` must be 0, 1 or -1 (all)."""

    code = 21

    def __init__(self, acks: int) -> None:
        super().__init__(f"acks is {acks}; it must be 0, 1 or -1 (all)")


class IllegalGeneration(BrokerError):
    """The group has moved on to another generation; join it again."""

    code = 22

    def __init__(self, *, generation: int, current: int | None) -> None:
        now = "the group does not exist" if current is None else f"it is {current}"
        super().__init__(f"generation {generation} is not the group's; {now}")


class InconsistentGroupProtocol(BrokerError):
    """The member shares no protocol with the others; give all members a common one."""

    code = 23


class InvalidGroupId(BrokerError):
    """The name cannot be a group's; set `group.id`."""

    code = 24


class UnknownMemberId(BrokerError):
    """The group has no such member, or removed it; join again without an id."""

    code = 25

    def __init__(self, member_id: str) -> None:
        super().__init__(f"the group has no member {member_id!r}")


class InvalidSessionTimeout(BrokerError):
    """The session timeout is outside of `group.{min,max}.session.timeout.ms`."""

    code = 26

    def __init__(self, *, timeout_ms: int, least_ms: int, most_ms: int) -> None:
        super().__init__(f"the session timeout is {timeout_ms} ms; it must be from {least_ms} to {most_ms}")


class RebalanceInProgress(BrokerError):
    """The group is sharing out its work anew; join again."""

    code = 27


class InvalidCommitOffsetSize(BrokerError):
    """The commit is too large for one write; commit fewer partitions at once."""

    code = 28


class InvalidTimestamp(BrokerError):
    """The record's time is too far from the broker's clock for this topic's limits."""

    code = 32


class UnsupportedVersion(BrokerError):
    """The broker does not speak this version of the API; use one that ApiVersions lists."""

    code = 35


class TopicAlreadyExists(BrokerError):
    """A topic of this name exists; use it, or choose another name."""

    code = 36

    def __init__(self, name: str) -> None:
        super().__init__(f"the topic {name!r} exists already")


class InvalidPartitions(BrokerError):
    """The number of partitions is not possible; the message says why."""

    code = 37


class InvalidReplicationFactor(BrokerError):
    """There are not as many brokers as replicas were asked for."""

    code = 38


class InvalidReplicaAssignment(BrokerError):
    """The replicas given by hand do not fit the brokers; the message says why."""

    code = 39


class InvalidConfig(BrokerError):
    """A config's name or value is wrong; the message names it and what it may be."""

    code = 40


class InvalidRequest(BrokerError):
    """The request contradicts itself; the message says where."""

    code = 42


class NotController(BrokerError):
    """This node is not the active controller; find out who is, and ask there."""

    code = 41
    retriable = True


class UnsupportedForMessageFormat(BrokerError):
    """Only record batches of format 2 (Kafka 0.11 and later) are stored; use a newer client."""

    code = 43


class PolicyViolation(BrokerError):
    """The cluster's settings do not allow this."""

    code = 44


class OutOfOrderSequence(BrokerError):
    """A batch of this producer is missing before this one; the client retries in order."""

    code = 45

    def __init__(self, *, producer_id: int, expected: int, received: int) -> None:
        super().__init__(f"producer {producer_id} sent sequence {received}; {expected} was expected")


class IdempotencyKeyReused(OutOfOrderSequence):
    """The Idempotency-Key was used for another request; send this one with a key of its own."""

    def __init__(self, message: str) -> None:
        BrokerError.__init__(self, message)


class DuplicateSequence(BrokerError):
    """The batch was stored before, too long ago to say where."""

    code = 46


class InvalidProducerEpoch(BrokerError):
    """A newer producer with this id has taken over; this one must stop."""

    code = 47

    def __init__(self, *, producer_id: int, epoch: int, current: int) -> None:
        super().__init__(f"producer {producer_id} has epoch {epoch}; the current one is {current}")


class InvalidTransactionState(BrokerError):
    """The transaction is in no state in which this can be asked of it."""

    code = 48


class InvalidProducerIdMapping(BrokerError):
    """The transactional id belongs to another producer id, or to none; initialise it again."""

    code = 49


class InvalidTransactionTimeout(BrokerError):
    """The transaction's timeout is outside of what the cluster allows."""

    code = 50


class ConcurrentTransactions(BrokerError):
    """The transaction before is still being completed; try again in a moment."""

    code = 51
    retriable = True


class TransactionCoordinatorFenced(BrokerError):
    """Another node coordinates the transaction by now."""

    code = 52


class OperationNotAttempted(BrokerError):
    """Nothing was done, because another part of the request was refused."""

    code = 55


class StorageError(BrokerError):
    """The partition's disk failed or is full, or its log is damaged; see the node's log."""

    code = 56
    retriable = True


class StorageErrorAfterAppend(StorageError):
    """The leader's disk did not keep the record, but followers may hold it; it may be committed."""


class UnknownProducerId(BrokerError):
    """The log no longer holds anything of this producer; it must ask for a new id."""

    code = 59


class NonEmptyGroup(BrokerError):
    """The group has members; stop them first."""

    code = 68


class GroupIdNotFound(BrokerError):
    """There is no such group."""

    code = 69

    def __init__(self, group_id: str) -> None:
        super().__init__(f"there is no group {group_id!r}")


class FetchSessionIdNotFound(BrokerError):
    """The fetch session is gone; start one with a full fetch."""

    code = 70
    retriable = True


class InvalidFetchSessionEpoch(BrokerError):
    """The fetch session went on without this request; start a new one with a full fetch."""

    code = 71
    retriable = True


class FencedLeaderEpoch(BrokerError):
    """The client's leader epoch is older than ours; refresh metadata."""

    code = 74
    retriable = True


class UnknownLeaderEpoch(BrokerError):
    """The client's leader epoch is newer than ours; wait and retry."""

    code = 75
    retriable = True


class UnsupportedCompression(BrokerError):
    """The codec is none of gzip, snappy, lz4, zstd."""

    code = 76


class StaleBrokerEpoch(BrokerError):
    """Another life of this broker has begun, or this one is not known yet; register (again)."""

    code = 77

    def __init__(self, *, epoch: int, current: int) -> None:
        super().__init__(f"the broker epoch is {current}, not {epoch}")
        self.current = current


class OffsetNotAvailable(BrokerError):
    """A new leader does not know its high watermark yet; retry."""

    code = 78
    retriable = True


class MemberIdRequired(BrokerError):
    """The client shall join again with the id that it is given here (KIP-394)."""

    code = 79

    def __init__(self, *, member_id: str) -> None:
        super().__init__(f"join again as {member_id!r}")
        self.member_id = member_id


class PreferredLeaderNotAvailable(BrokerError):
    """The first replica is away or not in sync; it leads again once it is."""

    code = 80
    retriable = True


class GroupMaxSizeReached(BrokerError):
    """The group has all the members that `group.max.size` and `group.max.bytes` allow."""

    code = 81

    def __init__(self, setting: str, most: int) -> None:
        super().__init__(f"the group is full; {setting} is {most}")


class FencedInstanceId(BrokerError):
    """Another process has joined with this `group.instance.id`; this one must stop."""

    code = 82

    def __init__(self, instance_id: str) -> None:
        super().__init__(f"another member has joined as the instance {instance_id!r}")


class EligibleLeadersNotAvailable(BrokerError):
    """No replica that may lead is there; start one of those that the message names."""

    code = 83
    retriable = True


class ElectionNotNeeded(BrokerError):
    """The partition is led by the replica that an election would choose."""

    code = 84
    retriable = True


class NoReassignmentInProgress(BrokerError):
    """The partition's replicas are not moving, so there is nothing to cancel."""

    code = 85

    def __init__(self, what: object) -> None:
        super().__init__(f"the replicas of {what} are not moving")


class GroupSubscribedToTopic(BrokerError):
    """The group consumes the topic, so its offsets stay; stop the members first."""

    code = 86

    def __init__(self, topic: str) -> None:
        super().__init__(f"the group is subscribed to {topic!r}")


class InvalidRecord(BrokerError):
    """A record breaks a rule of the topic; the message says which.

    `records` names those at fault by their places in the batch, each with its reason (KIP-467).
    """

    code = 87

    def __init__(self, message: str, *, records: Sequence[tuple[int, str]] = ()) -> None:
        super().__init__(message)
        self.records = records


class QueueFull(BrokerError):
    """The queue takes no more now; the message says what to wait for."""

    code = 89
    retriable = True


class ProducerFenced(BrokerError):
    """A newer producer with the same transactional id has taken over; stop this one."""

    code = 90


class UnstableOffsetCommit(BrokerError):
    """A commit of this offset is under way and may yet change it; retry."""

    code = 88
    retriable = True


class InvalidUpdateVersion(BrokerError):
    """The partition has changed since this was proposed; look at the metadata and propose again."""

    code = 95


class UnknownTopicId(BrokerError):
    """No topic has this id; it was deleted, or metadata has not arrived yet."""

    code = 100
    retriable = True

    def __init__(self, topic_id: object) -> None:
        super().__init__(f"no topic has the id {topic_id}")


class DuplicateBrokerRegistration(BrokerError):
    """Two nodes with one id; the message says where the other is, and what to do."""

    code = 101


class BrokerIdNotRegistered(BrokerError):
    """The cluster does not know this broker; it must register first."""

    code = 102

    def __init__(self, node: int) -> None:
        super().__init__(f"broker {node} is not registered")


class InconsistentClusterId(BrokerError):
    """The node belongs to another cluster; the message says to which."""

    code = 104


class FetchSessionTopicIdError(BrokerError):
    """The session was opened with topic names and is used with ids, or the other way round."""

    code = 106
    retriable = True


class TransactionalIdNotFound(BrokerError):
    """There is no such transactional id, or it has expired."""

    code = 105


class IneligibleReplica(BrokerError):
    """A replica cannot join the in-sync set now: it is fenced, leaving, or in another life."""

    code = 107


class TransactionAbortable(BrokerError):
    """The transaction cannot go on, and must be aborted; the producer may begin another."""

    code = 120


def error_of(code: int, message: str = "") -> BrokerError:
    """The error that another node has found, of which only its code came here."""
    kind = _by_code().get(code, BrokerError)
    error = kind.__new__(kind)  # its facts are not known here
    error.args = (message or f"{kind.__name__} (error {code})",)
    return error


@cache
def _by_code() -> dict[int, type[BrokerError]]:
    # Those of other rooms mean more by a code than it says.
    ours = [kind for kind in BrokerError.__subclasses__() if kind.__module__ == __name__]
    return {kind.code: kind for kind in ours}
