"""The cluster, its health, its groups and its brokers: what each call asks."""

from collections.abc import Mapping
from typing import Any

from tidelog.client.http.core import Ask, Core, document_of, path_of, to_json
from tidelog.client.http.effects import Plan
from tidelog.client.http.errors import Unavailable
from tidelog.client.http.values import Document


class ClientPlans:
    """What is about the cluster as a whole."""

    def __init__(self, core: Core) -> None:
        self.core = core

    def cluster(self, *topics: str) -> Plan[Document]:
        """Brokers, quorum and partitions: of all topics, or of those named."""
        query = {"topics": ",".join(topics) if topics else None}
        found: Document = yield from self.core.ask(
            Ask(method="GET", path="/v1/cluster", query=query)
        )
        return found

    def health(self) -> Plan[Document]:
        """Whether a node can serve: `status` is ready or unready, and `detail` says why."""
        ask = Ask(method="GET", path="/health/ready", retries=0)
        try:
            found: Document = document_of((yield from self.core.send(ask)))
        except Unavailable as error:
            if not error.problem:
                raise
            return {"status": "unready", "detail": error.detail}
        return found

    def buckets(self) -> Plan[list[Document]]:
        """Every key-value bucket, by name."""
        return (yield from self.core.pages(Ask(method="GET", path="/v1/kv"), "buckets"))

    def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, Any] | None = None,
        body: Any = None,
        idempotency_key: str | None = None,
    ) -> Plan[Any]:
        """Ask for any path of docs/http.md; with retries, routes and errors as all calls have."""
        return (
            yield from self.core.ask(
                Ask(
                    method=method.upper(), path=path, query=query or {},
                    body=None if body is None else to_json(body), idempotency_key=idempotency_key,
                    seconds_max=self.core.change_seconds,
                )
            )
        )  # fmt: skip


class ReplicationPlans:
    """How replicas stand."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def status(self) -> Plan[Document]:
        """The replicas with their lag: `status["replicas"][i]["lag_ms"]`."""
        found: Document = yield from self._core.ask(Ask(method="GET", path="/health/replication"))
        return found

    def details(self, *topics: str) -> Plan[Document]:
        """The followers of one node's leaders, its own followers, and catch-ups."""
        query = {"topics": ",".join(topics) if topics else None}
        found: Document = yield from self._core.ask(
            Ask(method="GET", path="/v1/replication", query=query)
        )
        return found


class GroupsPlans:
    """Consumer groups."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def list(self) -> Plan[list[Document]]:
        return (yield from self._core.pages(Ask(method="GET", path="/v1/groups"), "groups"))

    def describe(self, group: str) -> Plan[Document]:
        """A group with its members, offsets and lag."""
        found: Document = yield from self._core.ask(
            Ask(method="GET", path=path_of("v1", "groups", group))
        )
        return found

    def delete(self, group: str) -> Plan[Document]:
        """Forget a group that has no members, with its offsets."""
        found: Document = yield from self._core.ask(
            Ask(method="DELETE", path=path_of("v1", "groups", group))
        )
        return found

    def reset(self, group: str, to: Mapping[str, Any]) -> Plan[Document]:
        """Move the offsets of a group that has no members; docs/http.md has what it takes."""
        found: Document = yield from self._core.ask(
            Ask(method="POST", path=path_of("v1", "groups", group, "reset"), body=to_json(dict(to)))
        )
        return found


class BrokersPlans:
    """The nodes of the cluster."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def list(self) -> Plan[list[Document]]:
        """Every node, fenced ones too."""
        return (yield from self._core.pages(Ask(method="GET", path="/v1/brokers"), "brokers"))

    def drain(self, node: int) -> Plan[Document]:
        """Move all that a node holds elsewhere."""
        return (yield from self._do("POST", node, "drain", {}))

    def remove(self, node: int) -> Plan[Document]:
        """Forget a node that holds nothing and is gone."""
        return (yield from self._do("DELETE", node, None, None))

    def stop(self, node: int) -> Plan[Document]:
        """Stop a node in order: others lead what it led."""
        return (yield from self._do("POST", node, "stop", {}))

    def _do(self, method: str, node: int, what: str | None, body: Any) -> Plan[Document]:
        path = path_of("v1", "brokers", node) + (path_of(what) if what else "")
        found: Document = yield from self._core.ask(
            Ask(
                method=method, path=path, body=None if body is None else to_json(body),
                seconds_max=self._core.change_seconds,
            )
        )  # fmt: skip
        return found
