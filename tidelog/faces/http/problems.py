"""Errors as application/problem+json (RFC 9457): what went wrong, and what to do."""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Final

import msgspec
from starlette.responses import Response

MEDIA_TYPE: Final = "application/problem+json"


def problem_bytes(status: int, detail: str, request_id: str | None = None) -> bytes:
    document: dict[str, object] = {
        "type": "about:blank", "title": HTTPStatus(status).phrase, "status": status,
        "detail": detail,
    }  # fmt: skip
    if request_id is not None:
        document["request_id"] = request_id
    return msgspec.json.encode(document)


def problem(
    status: int, detail: str, *, request_id: str, headers: Mapping[str, str] | None = None
) -> Response:
    """The answer that says why there is no other."""
    return Response(
        problem_bytes(status, detail, request_id), status, headers=headers, media_type=MEDIA_TYPE
    )
