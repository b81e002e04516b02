"""Requests that Kafka does not have: decisions over many producers, batches of a backup, verbs.

Rule: they look like Kafka's own, in its types and with its headers, so that everything that reads,
checks and writes messages takes them, too. Their keys are far above those that Kafka gives out;
clients pass over advertised keys that they do not know.
"""

# CommitGroup (1000) asks a transaction coordinator to commit the open transactions of all members,
# as one batch of their group, or none of them. ReadDecision (1001) asks which batch was the last.
# ForgetDecision (1002) says that the group, which had one batch only, will never write again.
# RestoreBatches (1003) asks the leader of a partition to append batches at the offsets that they
# have, of which the first is the log's end. They are answered for once they are committed.
# ListDecisions (1004) asks a broker for the newest decision of every group that it coordinates.
# Perform (1005) asks any broker for an operator's verb (docs/verbs.md); parameters and answer are JSON.
#
# CommitGroup request   := group: string, batch_id: int64, after: int64 (-1: none), counting: int8
#                          (0 an application's versions, 1 a query's batches, 2 the only batch),
#                          members: member*, proof: bytes? (from version 2 on)
# member                := transactional_id: string, producer_id: int64, producer_epoch: int16
# CommitGroup response  := throttle_ms: int32, error_code: int16, error_message: string?,
#                          batch_id: int64, is_new: bool, proof: bytes? (from version 2 on: of the
#                          batch that was decided before, where is_new is false)
# ReadDecision request  := group: string
# ReadDecision response := throttle_ms: int32, error_code: int16, error_message: string?,
#                          batch_id: int64 (-1: none), decided_ms: int64,
#                          proof: bytes? (from version 1 on)
# ForgetDecision request  := group: string, batch_id: int64, is_reset: bool (from version 2 on)
# ForgetDecision response := throttle_ms: int32, error_code: int16, error_message: string?
# RestoreBatches request  := topic_id: uuid, partition: int32, timeout_ms: int32, records: bytes
# RestoreBatches response := throttle_ms: int32, error_code: int16, error_message: string?,
#                            log_end: int64 (-1: unknown), where the log ends now
# ListDecisions request  := nothing
# ListDecisions response := throttle_ms: int32, error_code: int16, error_message: string?, decision*
# decision               := group: string, batch_id: int64, decided_ms: int64, members: int32,
#                           after: int64, counting: int8 (-1: not known), proof: bytes?
# Perform request  := verb: string, asked: bytes
# Perform response := throttle_ms: int32, error_code: int16, error_message: string?, answer: bytes?
# CommitGroup and ForgetDecision begin with version 1: in version 0 anybody could skip or forget
# batches. A proof says what a batch was, in the words of who wrote it; brokers keep it as it is.
# All are flexible: lengths are uvarints, one more than the length, and every struct ends in tags.

from dataclasses import dataclass, field
from typing import Any, ClassVar, Final
from uuid import UUID

from kio.schema.errors import ErrorCode
from kio.schema.request_header.v2.header import RequestHeader
from kio.schema.response_header.v1.header import ResponseHeader
from kio.schema.types import ProducerId, TransactionalId
from kio.static.constants import EntityType
from kio.static.primitive import i8, i16, i32, i32Timedelta, i64

COMMIT_GROUP: Final = 1000
READ_DECISION: Final = 1001
FORGET_DECISION: Final = 1002
RESTORE_BATCHES: Final = 1003
LIST_DECISIONS: Final = 1004
PERFORM: Final = 1005

NO_COUNTING: Final = -1
"""Of a decision from before groups said how they count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitGroupMember:
    __type__: ClassVar = EntityType.nested
    __version__: ClassVar[i16] = i16(1)
    __flexible__: ClassVar[bool] = True
    __api_key__: ClassVar[i16] = i16(COMMIT_GROUP)
    __header_schema__: ClassVar[type[RequestHeader]] = RequestHeader
    transactional_id: TransactionalId = field(metadata={"kafka_type": "string"})
    producer_id: ProducerId = field(metadata={"kafka_type": "int64"})
    producer_epoch: i16 = field(metadata={"kafka_type": "int16"})


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitGroupRequestV1:
    __type__: ClassVar = EntityType.request
    __version__: ClassVar[i16] = i16(1)
    __flexible__: ClassVar[bool] = True
    __api_key__: ClassVar[i16] = i16(COMMIT_GROUP)
    __header_schema__: ClassVar[type[RequestHeader]] = RequestHeader
    group: str = field(metadata={"kafka_type": "string"})
    batch_id: i64 = field(metadata={"kafka_type": "int64"})
    after: i64 = field(metadata={"kafka_type": "int64"})
    counting: i8 = field(metadata={"kafka_type": "int8"})
    members: tuple[CommitGroupMember, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitGroupRequest(CommitGroupRequestV1):
    __version__: ClassVar[i16] = i16(2)
    proof: bytes | None = field(metadata={"kafka_type": "bytes"})


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitGroupResponseV1:
    __type__: ClassVar = EntityType.response
    __version__: ClassVar[i16] = i16(1)
    __flexible__: ClassVar[bool] = True
    __api_key__: ClassVar[i16] = i16(COMMIT_GROUP)
    __header_schema__: ClassVar[type[ResponseHeader]] = ResponseHeader
    throttle_time: i32Timedelta = field(metadata={"kafka_type": "timedelta_i32"})
    error_code: ErrorCode = field(metadata={"kafka_type": "error_code"})
    error_message: str | None = field(metadata={"kafka_type": "string"})
    batch_id: i64 = field(metadata={"kafka_type": "int64"})
    is_new: bool = field(metadata={"kafka_type": "bool"})
    """False: it was decided before, and nothing was done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitGroupResponse(CommitGroupResponseV1):
    __version__: ClassVar[i16] = i16(2)
    proof: bytes | None = field(metadata={"kafka_type": "bytes"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadDecisionRequestV0:
    __type__: ClassVar = EntityType.request
    __version__: ClassVar[i16] = i16(0)
    __flexible__: ClassVar[bool] = True
    __api_key__: ClassVar[i16] = i16(READ_DECISION)
    __header_schema__: ClassVar[type[RequestHeader]] = RequestHeader
    group: str = field(metadata={"kafka_type": "string"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadDecisionRequest(ReadDecisionRequestV0):
    __version__: ClassVar[i16] = i16(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadDecisionResponseV0:
    __type__: ClassVar = EntityType.response
    __version__: ClassVar[i16] = i16(0)
    __flexible__: ClassVar[bool] = True
    __api_key__: ClassVar[i16] = i16(READ_DECISION)
    __header_schema__: ClassVar[type[ResponseHeader]] = ResponseHeader
    throttle_time: i32Timedelta = field(metadata={"kafka_type": "timedelta_i32"})
    error_code: ErrorCode = field(metadata={"kafka_type": "error_code"})
    error_message: str | None = field(metadata={"kafka_type": "string"})
    batch_id: i64 = field(metadata={"kafka_type": "int64"})
    decided_ms: i64 = field(metadata={"kafka_type": "int64"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadDecisionResponse(ReadDecisionResponseV0):
    __version__: ClassVar[i16] = i16(1)
    proof: bytes | None = field(metadata={"kafka_type": "bytes"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetDecisionRequestV1:
    __type__: ClassVar = EntityType.request
    __version__: ClassVar[i16] = i16(1)
    __flexible__: ClassVar[bool] = True
    __api_key__: ClassVar[i16] = i16(FORGET_DECISION)
    __header_schema__: ClassVar[type[RequestHeader]] = RequestHeader
    group: str = field(metadata={"kafka_type": "string"})
    batch_id: i64 = field(metadata={"kafka_type": "int64"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetDecisionRequest(ForgetDecisionRequestV1):
    __version__: ClassVar[i16] = i16(2)
    is_reset: bool = field(metadata={"kafka_type": "bool"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetDecisionResponseV1:
    __type__: ClassVar = EntityType.response
    __version__: ClassVar[i16] = i16(1)
    __flexible__: ClassVar[bool] = True
    __api_key__: ClassVar[i16] = i16(FORGET_DECISION)
    __header_schema__: ClassVar[type[ResponseHeader]] = ResponseHeader
    throttle_time: i32Timedelta = field(metadata={"kafka_type": "timedelta_i32"})
    error_code: ErrorCode = field(metadata={"kafka_type": "error_code"})
    error_message: str | None = field(metadata={"kafka_type": "string"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetDecisionResponse(ForgetDecisionResponseV1):
    __version__: ClassVar[i16] = i16(2)


@dataclass(frozen=True, slots=True, kw_only=True)
class ListDecisionsRequest:
    __type__: ClassVar = EntityType.request
    __version__: ClassVar[i16] = i16(0)
    __flexible__: ClassVar[bool] = True
    __api_key__: ClassVar[i16] = i16(LIST_DECISIONS)
    __header_schema__: ClassVar[type[RequestHeader]] = RequestHeader


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedDecision:
    __type__: ClassVar = EntityType.nested
    __version__: ClassVar[i16] = i16(0)
    __flexible__: ClassVar[bool] = True
    __api_key__: ClassVar[i16] = i16(LIST_DECISIONS)
    __header_schema__: ClassVar[type[ResponseHeader]] = ResponseHeader
    group: str = field(metadata={"kafka_type": "string"})
    batch_id: i64 = field(metadata={"kafka_type": "int64"})
    decided_ms: i64 = field(metadata={"kafka_type": "int64"})
    members: i32 = field(metadata={"kafka_type": "int32"})
    after: i64 = field(metadata={"kafka_type": "int64"})
    counting: i8 = field(metadata={"kafka_type": "int8"})
    proof: bytes | None = field(metadata={"kafka_type": "bytes"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ListDecisionsResponse:
    __type__: ClassVar = EntityType.response
    __version__: ClassVar[i16] = i16(0)
    __flexible__: ClassVar[bool] = True
    __api_key__: ClassVar[i16] = i16(LIST_DECISIONS)
    __header_schema__: ClassVar[type[ResponseHeader]] = ResponseHeader
    throttle_time: i32Timedelta = field(metadata={"kafka_type": "timedelta_i32"})
    error_code: ErrorCode = field(metadata={"kafka_type": "error_code"})
    error_message: str | None = field(metadata={"kafka_type": "string"})
    decisions: tuple[ListedDecision, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreBatchesRequest:
    __type__: ClassVar = EntityType.request
    __version__: ClassVar[i16] = i16(0)
    __flexible__: ClassVar[bool] = True
    __api_key__: ClassVar[i16] = i16(RESTORE_BATCHES)
    __header_schema__: ClassVar[type[RequestHeader]] = RequestHeader
    topic_id: UUID | None = field(metadata={"kafka_type": "uuid"})
    """An id, not a name: a topic that was made anew meanwhile is another."""
    partition: i32 = field(metadata={"kafka_type": "int32"})
    timeout: i32Timedelta = field(metadata={"kafka_type": "timedelta_i32"})
    records: bytes = field(metadata={"kafka_type": "bytes"})


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreBatchesResponse:
    __type__: ClassVar = EntityType.response
    __version__: ClassVar[i16] = i16(0)
    __flexible__: ClassVar[bool] = True
    __api_key__: ClassVar[i16] = i16(RESTORE_BATCHES)
    __header_schema__: ClassVar[type[ResponseHeader]] = ResponseHeader
    throttle_time: i32Timedelta = field(metadata={"kafka_type": "timedelta_i32"})
    error_code: ErrorCode = field(metadata={"kafka_type": "error_code"})
    error_message: str | None = field(metadata={"kafka_type": "string"})
    log_end: i64 = field(metadata={"kafka_type": "int64"})


@dataclass(frozen=True, slots=True, kw_only=True)
class PerformRequest:
    __type__: ClassVar = EntityType.request
    __version__: ClassVar[i16] = i16(0)
    __flexible__: ClassVar[bool] = True
    __api_key__: ClassVar[i16] = i16(PERFORM)
    __header_schema__: ClassVar[type[RequestHeader]] = RequestHeader
    verb: str = field(metadata={"kafka_type": "string"})
    asked: bytes = field(metadata={"kafka_type": "bytes"})


@dataclass(frozen=True, slots=True, kw_only=True)
class PerformResponse:
    __type__: ClassVar = EntityType.response
    __version__: ClassVar[i16] = i16(0)
    __flexible__: ClassVar[bool] = True
    __api_key__: ClassVar[i16] = i16(PERFORM)
    __header_schema__: ClassVar[type[ResponseHeader]] = ResponseHeader
    throttle_time: i32Timedelta = field(metadata={"kafka_type": "timedelta_i32"})
    error_code: ErrorCode = field(metadata={"kafka_type": "error_code"})
    error_message: str | None = field(metadata={"kafka_type": "string"})
    answer: bytes | None = field(metadata={"kafka_type": "bytes"})


REQUESTS: Final[dict[int, dict[int, Any]]] = {
    COMMIT_GROUP: {1: CommitGroupRequestV1, 2: CommitGroupRequest},
    READ_DECISION: {0: ReadDecisionRequestV0, 1: ReadDecisionRequest},
    FORGET_DECISION: {1: ForgetDecisionRequestV1, 2: ForgetDecisionRequest},
    RESTORE_BATCHES: {0: RestoreBatchesRequest},
    LIST_DECISIONS: {0: ListDecisionsRequest},
    PERFORM: {0: PerformRequest},
}
"""By their keys and versions."""
RESPONSES: Final[dict[int, dict[int, Any]]] = {
    COMMIT_GROUP: {1: CommitGroupResponseV1, 2: CommitGroupResponse},
    READ_DECISION: {0: ReadDecisionResponseV0, 1: ReadDecisionResponse},
    FORGET_DECISION: {1: ForgetDecisionResponseV1, 2: ForgetDecisionResponse},
    RESTORE_BATCHES: {0: RestoreBatchesResponse},
    LIST_DECISIONS: {0: ListDecisionsResponse},
    PERFORM: {0: PerformResponse},
}
NAMES: Final = {
    COMMIT_GROUP: "commit_group",
    READ_DECISION: "read_decision",
    FORGET_DECISION: "forget_decision",
    RESTORE_BATCHES: "restore_batches",
    LIST_DECISIONS: "list_decisions",
    PERFORM: "perform",
}
