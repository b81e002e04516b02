"""What opens a WebSocket: as `websockets` speaks it, with refusals of ours."""

from http import HTTPStatus

from websockets.datastructures import Headers as WireHeaders
from websockets.http11 import Response as WireResponse
from websockets.server import ServerProtocol

from tidelog.faces.http.problems import MEDIA_TYPE, problem_bytes


class Handshake(ServerProtocol):
    """Refuses by problem documents."""

    def reject(self, status: HTTPStatus | int, text: str) -> WireResponse:
        body = problem_bytes(HTTPStatus(status), text.strip() or HTTPStatus(status).description)
        given = super().reject(status, text)
        headers = WireHeaders(given.headers)
        for name, value in (("content-type", MEDIA_TYPE), ("content-length", str(len(body)))):
            del headers[name]
            headers[name] = value
        return WireResponse(given.status_code, given.reason_phrase, headers, body)
