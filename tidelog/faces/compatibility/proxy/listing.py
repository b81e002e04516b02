"""What all clusters have, as one list, page by page.

Rule 1: a page says where the next begins, and the proxy remembers nothing of it.
Rule 2: a cluster that does not answer is left out, and the page says so; it is no error as long as
        another answers.
"""

import asyncio
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from tidelog.client.http.errors import TidelogHTTPError, Unavailable
from tidelog.faces.compatibility.proxy.clusters import Cluster
from tidelog.faces.compatibility.proxy.placing import Places
from tidelog.faces.http.problems import Problem

LISTED_MAX: Final = 1000
_LISTS: Final = {
    "/get_all_queues": "queue_ids",
    "/get_all_messages": "messages",
    "/get_all_pointers": "pointers",
}
PATHS: Final = tuple(_LISTS)


class Page(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Which page is wanted. `after` is the cluster, and what that has said itself."""

    limit: int = LISTED_MAX
    after: list[int | str] | None = None


async def list_pointers(
    clusters: Sequence[Cluster], places: Places, path: str, wanted: Page
) -> dict[str, Any]:
    """One page of a list of queues with pointers: cluster by cluster, each in its own order."""
    if not 0 < wanted.limit <= LISTED_MAX:
        raise Problem(400, f"limit is {wanted.limit}; it must be from 1 to {LISTED_MAX}")
    number, *after = wanted.after or [0]
    if not isinstance(number, int) or not 0 <= number <= len(clusters):
        raise Problem(400, "after is what an answer had as next")
    name = _LISTS[path]
    found: list[Any] = []
    missing: list[int] = []
    following: list[int | str] | None = None
    for cluster in clusters[number:]:
        left = wanted.limit - len(found)
        if left <= 0:
            following = [cluster.number]
            break
        body: dict[str, Any] = {"limit": left}
        if after:
            body["after"] = after
        try:
            reply = await cluster.ask("POST", path, body=msgspec.json.encode(body))
        except Unavailable:
            missing.append(cluster.number)
        else:
            document = msgspec.json.decode(reply.body)
            found += [_everywhere(one, cluster.number, places) for one in document[name]]
            if document.get("next"):
                following = [cluster.number, *document["next"]]
                break
        after = []
    return {name: found, "next": following, **_unavailable(missing, clusters)}


def _everywhere(item: Any, cluster: int, places: Places) -> Any:
    if isinstance(item, int):
        return places.everywhere(item, cluster)
    return {**item, "queue_id": places.everywhere(item["queue_id"], cluster)}


async def list_names(clusters: Sequence[Cluster], *, limit: int, after: str | None) -> dict[str, Any]:
    """One page of the names of all work queues, in order."""

    async def ask(cluster: Cluster) -> Any:
        query = {"limit": limit, "after": after}
        return msgspec.json.decode((await cluster.ask("GET", "/v1/queues", query=query)).body)

    answers = await asyncio.gather(*map(ask, clusters), return_exceptions=True)
    names: list[str] = []
    missing: list[int] = []
    is_more = False
    for cluster, answer in zip(clusters, answers, strict=True):
        if isinstance(answer, Unavailable):
            missing.append(cluster.number)
        elif isinstance(answer, BaseException):
            raise answer
        else:
            names += answer["queues"]
            is_more |= answer["next"] is not None
    names.sort()
    is_more |= len(names) > limit
    page = names[:limit]
    following = page[-1] if page and is_more else None
    return {"queues": page, "next": following, **_unavailable(missing, clusters)}


def _unavailable(missing: Sequence[int], clusters: Sequence[Cluster]) -> dict[str, Any]:
    if missing and len(missing) == len(clusters):
        raise Problem(503, "no cluster answers", headers={"retry-after": "1"})
    return {"unavailable": list(missing)} if missing else {}


async def infos(clusters: Sequence[Cluster]) -> list[dict[str, Any]]:
    """What a node of each cluster says of itself."""

    async def ask(cluster: Cluster) -> dict[str, Any]:
        about: dict[str, Any] = {"cluster": cluster.number, "nodes": cluster.nodes}
        try:
            reply = await cluster.ask("POST", "/broker_info", body=b"{}")
        except TidelogHTTPError as error:
            return {**about, "up": False, "detail": error.detail, "info": None}
        return {**about, "up": True, "detail": None, "info": msgspec.json.decode(reply.body)}

    return list(await asyncio.gather(*map(ask, clusters)))
