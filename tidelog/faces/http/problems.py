"""Errors as application/problem+json (RFC 9457): what went wrong, and what to do.

Rule: a status is chosen here, by what happened, and nowhere else: the same error has the same
status on every route.
"""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final

import msgspec

from tidelog.errors import (
    BrokerError,
    BrokerIdNotRegistered,
    BrokerNotAvailable,
    ElectionNotNeeded,
    EligibleLeadersNotAvailable,
    GroupIdNotFound,
    GroupSubscribedToTopic,
    InvalidTimestamp,
    InvalidTransactionState,
    LeaderNotAvailable,
    MessageTooLarge,
    NonEmptyGroup,
    NotEnoughReplicasAfterAppend,
    OffsetOutOfRange,
    OutcomeUnknown,
    OutOfOrderSequence,
    PolicyViolation,
    QueueFull,
    RequestTimedOut,
    TopicAlreadyExists,
    TransactionalIdNotFound,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from tidelog.faces.http.edge.messages import Response
from tidelog.security.failures import AuthenticationFailed, UnknownUser
from tidelog.security.refusals import (
    ClusterAuthorizationFailed,
    GroupAuthorizationFailed,
    TopicAuthorizationFailed,
    TransactionalIdAuthorizationFailed,
)

MEDIA_TYPE: Final = "application/problem+json"

STATUS: Final[dict[int, int]] = {
    UnknownTopicOrPartition.code: 404,
    UnknownTopicId.code: 404,
    GroupIdNotFound.code: 404,
    BrokerIdNotRegistered.code: 404,
    TransactionalIdNotFound.code: 404,
    TopicAlreadyExists.code: 409,
    NonEmptyGroup.code: 409,
    GroupSubscribedToTopic.code: 409,
    InvalidTransactionState.code: 409,
    EligibleLeadersNotAvailable.code: 409,
    ElectionNotNeeded.code: 409,
    MessageTooLarge.code: 413,
    OffsetOutOfRange.code: 416,
    OutOfOrderSequence.code: 422,
    PolicyViolation.code: 403,
    UnknownUser.code: 404,
    AuthenticationFailed.code: 401,
    TopicAuthorizationFailed.code: 403,
    GroupAuthorizationFailed.code: 403,
    ClusterAuthorizationFailed.code: 403,
    TransactionalIdAuthorizationFailed.code: 403,
    QueueFull.code: 429,
    InvalidTimestamp.code: 400,
    LeaderNotAvailable.code: 503,
    BrokerNotAvailable.code: 503,
    RequestTimedOut.code: 504,
    NotEnoughReplicasAfterAppend.code: 504,
}
"""By Kafka's code. Any other failure that may pass is 503, one that will not is 400."""


class Problem(Exception):
    """The answer to a request that cannot be done; `facts` stand in it beside `detail`."""

    def __init__(
        self, status: int, detail: str, *, headers: Mapping[str, str] | None = None, **facts: Any
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.headers = headers
        self.facts = facts


def status_of(code: int, *, retriable: bool) -> int:
    """The status of a failure that has a code of Kafka's."""
    return STATUS.get(code, 503 if retriable else 400)


def problem_of(error: BrokerError) -> Problem:
    """What an HTTP client is told of an error of the broker."""
    status = status_of(error.code, retriable=error.retriable)
    headers = {"retry-after": "1"} if status == 503 else None
    facts: dict[str, Any] = {"code": error.code}
    if isinstance(error, OutcomeUnknown):
        facts |= {"outcome": "unknown", **error.known}
    return Problem(status, str(error) or (error.__doc__ or ""), headers=headers, **facts)


def problem_bytes(
    status: int, detail: str, request_id: str | None = None, facts: Mapping[str, Any] | None = None
) -> bytes:
    document: dict[str, object] = {
        "type": "about:blank",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": detail,
    }
    if request_id is not None:
        document["request_id"] = request_id
    return msgspec.json.encode(document | dict(facts or {}))


def problem(
    status: int,
    detail: str,
    *,
    request_id: str,
    headers: Mapping[str, str] | None = None,
    facts: Mapping[str, Any] | None = None,
) -> Response:
    """The answer that says why there is no other."""
    return Response(
        problem_bytes(status, detail, request_id, facts), status, headers=headers, media_type=MEDIA_TYPE
    )
