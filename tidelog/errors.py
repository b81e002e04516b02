"""Every failure that a client can be told of, with its Kafka code.

Rule 1: an error carries facts; its docstring says what to do about it.
Rule 2: `code` and `retriable` are Kafka's own, so that clients react as they do to Kafka.
Rule 3: what is raised here is the world's fault or the client's; our own bugs are assertions.
"""

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


class MessageTooLarge(BrokerError):
    """The batch is above the topic's `max.message.bytes`; send less at once, or raise the limit."""

    code = 10

    def __init__(self, *, size: int, size_max: int) -> None:
        super().__init__(f"the batch has {size} bytes; max.message.bytes is {size_max}")


class InvalidTopic(BrokerError):
    """The name cannot be a topic's; the message says why."""

    code = 17


class NotEnoughReplicas(BrokerError):
    """Fewer replicas are in sync than `min.insync.replicas`; nothing was written. Retry later."""

    code = 19
    retriable = True

    def __init__(self, *, in_sync: int, needed: int) -> None:
        super().__init__(f"{in_sync} replicas are in sync; min.insync.replicas is {needed}")


class InvalidRequiredAcks(BrokerError):
    """`acks` must be 0, 1 or -1 (all)."""

    code = 21

    def __init__(self, acks: int) -> None:
        super().__init__(f"acks is {acks}; it must be 0, 1 or -1 (all)")


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
        super().__init__(
            f"producer {producer_id} sent sequence {received}; {expected} was expected"
        )


class DuplicateSequence(BrokerError):
    """The batch was stored before, too long ago to say where."""

    code = 46


class InvalidProducerEpoch(BrokerError):
    """A newer producer with this id has taken over; this one must stop."""

    code = 47

    def __init__(self, *, producer_id: int, epoch: int, current: int) -> None:
        super().__init__(f"producer {producer_id} has epoch {epoch}; the current one is {current}")


class InvalidTransactionTimeout(BrokerError):
    """The transaction's timeout is outside of what the cluster allows."""

    code = 50


class StorageError(BrokerError):
    """The partition's disk failed or is full, or its log is damaged; see the node's log."""

    code = 56
    retriable = True


class UnknownProducerId(BrokerError):
    """The log no longer holds anything of this producer; it must ask for a new id."""

    code = 59


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


class OffsetNotAvailable(BrokerError):
    """A new leader does not know its high watermark yet; retry."""

    code = 78
    retriable = True


class InvalidRecord(BrokerError):
    """A record breaks a rule of the topic; the message says which."""

    code = 87


class UnknownTopicId(BrokerError):
    """No topic has this id; it was deleted, or metadata has not arrived yet."""

    code = 100
    retriable = True

    def __init__(self, topic_id: object) -> None:
        super().__init__(f"no topic has the id {topic_id}")


class FetchSessionTopicIdError(BrokerError):
    """The session was opened with topic names and is used with ids, or the other way round."""

    code = 106
    retriable = True
