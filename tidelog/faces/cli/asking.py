"""How commands ask the HTTP faces of a cluster to do something."""

import json
from typing import TYPE_CHECKING, Any, Final

from tidelog.errors import TidelogError
from tidelog.faces.cli.brokers import NoAnswer
from tidelog.faces.cli.common import UserError
from tidelog.model import Endpoint

if TYPE_CHECKING:
    from tidelog.client.members import MembersClient

POST_SECONDS_MAX: Final = 40.0
"""A change of metadata may take half a minute while the quorum has no leader."""
REDIRECTS_MAX: Final = 3


class Problem(TidelogError):
    """The node refused; the message is its own, and says what to do."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status


async def any_face(client: "MembersClient") -> Endpoint:
    """The HTTP face of the active controller, or of any other broker that has one."""
    view = await client.view()
    for broker in sorted(view.brokers.values(), key=lambda broker: broker.node != view.leader):
        endpoint = None if broker.fenced else await client.http_endpoint(broker)
        if endpoint is not None:
            return endpoint
    raise UserError("no broker has an HTTP face, which this needs; start them with --http")


def post_json(at: Endpoint, path: str, body: dict[str, Any], *, seconds_max: float = 0.0) -> Any:
    """What a node answers; Problem if it refuses, NoAnswer if it does not within the time."""
    seconds = min(seconds_max or POST_SECONDS_MAX, POST_SECONDS_MAX)
    for _ in range(REDIRECTS_MAX):
        status, location, document = _post(at, path, body, seconds)
        if status == 307 and location is not None:
            at = Endpoint.parse(location.removeprefix("http://").partition("/")[0])
            continue
        if status >= 300:
            raise Problem(status, str(document.get("detail", f"it answered with {status}")))
        return document
    raise NoAnswer(f"http://{at}{path}: every node points to another one; ask again")


def _post(
    at: Endpoint, path: str, body: dict[str, Any], seconds_max: float
) -> tuple[int, str | None, Any]:
    from http.client import HTTPConnection, HTTPException

    connection = HTTPConnection(at.host, at.port, timeout=seconds_max)
    headers = {"accept": "application/json", "content-type": "application/json"}
    try:
        connection.request("POST", path, json.dumps(body), headers)
        response = connection.getresponse()
        return response.status, response.getheader("location"), json.loads(response.read())
    except (OSError, HTTPException, ValueError) as error:
        raise NoAnswer(f"http://{at}{path}: {error}") from None
    finally:
        connection.close()
