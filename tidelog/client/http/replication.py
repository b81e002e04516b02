"""How replicas stand, over all nodes.

A node speaks for the replicas that follow it, and partitions are led by many nodes. So all of them
are asked, and a replica is told of once: with its offsets summed, its longest lag and its worst
word.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from tidelog.client.http.core import Ask, Core
from tidelog.client.http.effects import Plan
from tidelog.client.http.errors import TidelogHTTPError, Unavailable
from tidelog.client.http.values import Document

NODE_SECONDS_MAX: Final = 5.0
"""What a node gets to answer: one that hangs must not keep us from the others."""
WORDS: Final = ("in_sync", "lagging", "syncing", "disconnected")
"""From good to bad."""


class ReplicationPlans:
    """How replicas stand."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def status(self) -> Plan[Document]:
        """Every replica with its lag: `status["replicas"][i]["lag_ms"]`.

        `nodes` has what each node says, `unreachable` those that say nothing.
        """
        cluster = yield from self._core.ask(Ask(method="GET", path="/v1/cluster", query={"topics": ""}))
        nodes: list[Document] = []
        unreachable: list[str] = []
        last: TidelogHTTPError | None = None
        for origin in self._core.routes.nodes_of(cluster):
            try:
                found = yield from self._core.ask(
                    Ask(
                        method="GET",
                        path="/health/replication",
                        origin=origin,
                        retries=0,
                        seconds_max=min(NODE_SECONDS_MAX, self._core.settings.timeout),
                    )
                )
            except Unavailable as error:
                unreachable.append(origin)
                last = error
            else:
                nodes.append(found)
        if last is not None and not nodes:
            raise last
        return merge(nodes) | {"unreachable": unreachable}

    def details(self, *topics: str) -> Plan[Document]:
        """What one node knows: followers of what it leads, its own, and catch-ups."""
        query = {"topics": ",".join(topics) if topics else None}
        found: Document = yield from self._core.ask(Ask(method="GET", path="/v1/replication", query=query))
        return found


def merge(nodes: Sequence[Document]) -> Document:
    """What all nodes say of their replicas, as one master would."""
    replicas: dict[str, Document] = {}
    for node in nodes:
        for replica in node.get("replicas", ()):
            known = replicas.get(replica["id"])
            replicas[replica["id"]] = dict(replica) if known is None else _both(known, replica)
    return {
        "role": "master",
        "current_offset": sum(node.get("current_offset") or 0 for node in nodes),
        "status": max((node.get("status", WORDS[0]) for node in nodes), key=_badness),
        "replicas": [replicas[name] for name in sorted(replicas)],
        "nodes": list(nodes),
    }


def _both(one: Mapping[str, Any], other: Mapping[str, Any]) -> Document:
    both = {**one, "lag_ms": max(one["lag_ms"], other["lag_ms"])}
    both["status"] = max(one["status"], other["status"], key=_badness)
    for name in ("offset", "lag_entries"):
        known = [half.get(name) for half in (one, other)]
        both[name] = None if None in known else sum(known)
    return both


def _badness(word: str) -> int:
    """A word that is not known is the worst: somebody should look."""
    return WORDS.index(word) if word in WORDS else len(WORDS)
