"""What pages of other origins may do here (CORS): what `http.cors.origins` names, and nothing else."""

from collections.abc import Sequence
from typing import Final, Self

from tidelog.faces.http.edge.messages import REQUEST_ID, Request, Response

METHODS: Final = ("GET", "POST", "PUT", "PATCH", "DELETE")
EXPOSED: Final = f"{REQUEST_ID}, location, retry-after"
PREFLIGHT_SECONDS: Final = 600
"""For how long a browser need not ask again."""


class Cors:
    """Lets pages of these origins read the answers, and send what needs asking first."""

    def __init__(self, origins: Sequence[str]) -> None:
        self._origins = frozenset(origins)
        self._is_open = "*" in self._origins

    @classmethod
    def of(cls, origins: Sequence[str]) -> Self | None:
        return cls(origins) if origins else None

    def preflight(self, request: Request) -> Response | None:
        """The answer to a browser that asks what a page may send; None if this is no such question."""
        headers = request.headers
        origin, method = headers.get("origin"), headers.get("access-control-request-method")
        if request.method != "OPTIONS" or origin is None or method is None:
            return None
        answer = {
            "vary": "Origin, Access-Control-Request-Method, Access-Control-Request-Headers",
            "access-control-allow-methods": ", ".join(METHODS),
            "access-control-max-age": str(PREFLIGHT_SECONDS),
        }
        if (asked := headers.get("access-control-request-headers")) is not None:
            answer["access-control-allow-headers"] = asked
        refused = [] if self._allows(origin) else ["origin"]
        if method not in METHODS:
            refused.append("method")
        if "origin" not in refused:
            answer["access-control-allow-origin"] = "*" if self._is_open else origin
        if refused:
            return Response(f"Disallowed CORS {', '.join(refused)}", 400, answer, "text/plain")
        return Response("OK", 200, answer, "text/plain")

    def sign(self, request: Request, response: Response) -> None:
        """Say in an answer who may read it."""
        origin = request.headers.get("origin")
        if origin is not None:
            response.add("access-control-expose-headers", EXPOSED)
            if self._allows(origin):
                response.add("access-control-allow-origin", "*" if self._is_open else origin)
        response.add("vary", "Origin")

    def _allows(self, origin: str) -> bool:
        return self._is_open or origin in self._origins
