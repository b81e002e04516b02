"""The cluster, its health, its groups and its brokers: what each call asks."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

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
        found: Document = yield from self.core.ask(Ask(method="GET", path="/v1/cluster", query=query))
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

    def queues(self) -> Plan[list[str]]:
        """The names of all work queues."""
        return (yield from self.core.pages(Ask(method="GET", path="/v1/queues"), "queues"))

    def rooms(self) -> Plan[list[str]]:
        """The names of all rooms."""
        return (yield from self.core.pages(Ask(method="GET", path="/v1/rooms"), "rooms"))

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
                    method=method.upper(),
                    path=path,
                    query=query or {},
                    body=None if body is None else to_json(body),
                    idempotency_key=idempotency_key,
                    seconds_max=self.core.change_seconds,
                )
            )
        )


class GroupsPlans:
    """Consumer groups."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def list(self) -> Plan[list[Document]]:
        """Every group, by name."""
        return (yield from self._core.pages(Ask(method="GET", path="/v1/groups"), "groups"))

    def describe(self, group: str) -> Plan[Document]:
        """A group with its members, and how far it is in each partition."""
        ask = Ask(method="GET", path=path_of("v1", "groups", group))
        return (yield from self._core.whole(ask, "partitions"))

    def reset(
        self,
        group: str,
        topic: str,
        *,
        partitions: Sequence[int] | None = None,
        to: Literal["earliest", "latest", "current"] | None = None,
        offset: int | None = None,
        time_ms: int | None = None,
        shift: int | None = None,
        dry_run: bool = False,
    ) -> Plan[Document]:
        """Let a group without members go on from somewhere else: say one of `to` to `shift`."""
        wanted = {
            "topic": topic,
            "partitions": None if partitions is None else [*partitions],
            "to": to,
            "offset": offset,
            "time_ms": time_ms,
            "shift": shift,
            "dry_run": dry_run,
        }
        path = path_of("v1", "groups", group, "reset")
        return (yield from _change(self._core, "POST", path, wanted))

    def delete(self, group: str) -> Plan[Document]:
        """Forget a group without members, and its offsets."""
        path = path_of("v1", "groups", group)
        return (yield from _change(self._core, "DELETE", path, None))


class BrokersPlans:
    """The nodes of the cluster."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def list(self) -> Plan[list[Document]]:
        """Every node, fenced ones too."""
        return (yield from self._core.pages(Ask(method="GET", path="/v1/brokers"), "brokers"))

    def drain(
        self,
        node: int,
        *,
        dry_run: bool = False,
        undo: bool = False,
        throttle_bytes_per_second: int | None = None,
    ) -> Plan[Document]:
        """Let others hold all that a node holds; `undo` lets it get replicas again."""
        wanted = {"dry_run": dry_run, "undo": undo, "throttle_bytes_per_second": throttle_bytes_per_second}
        path = path_of("v1", "brokers", node, "drain")
        return (yield from _change(self._core, "POST", path, wanted))

    def stop(self, node: int) -> Plan[Document]:
        """Stop a node in order: others lead what it led."""
        path = path_of("v1", "brokers", node, "stop")
        return (yield from _change(self._core, "POST", path, {}))

    def remove(self, node: int) -> Plan[Document]:
        """Forget a node that is drained and stopped."""
        path = path_of("v1", "brokers", node)
        return (yield from _change(self._core, "DELETE", path, None))


def _change(core: Core, method: str, path: str, wanted: Document | None) -> Plan[Document]:
    body = None
    if wanted is not None:
        body = to_json({name: value for name, value in wanted.items() if value is not None})
    found: Document = yield from core.ask(
        Ask(method=method, path=path, body=body, seconds_max=core.change_seconds)
    )
    return found
