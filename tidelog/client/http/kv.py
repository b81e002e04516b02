"""Key-value buckets: what each call asks, and what it makes of the answer.

Rule: what was seen of a bucket is noted (`tokens`), so that a local read by the same client never
      tells of a time before. Where it cannot be said which partition's token counts, the read is a
      strong one.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeVar

from tidelog.client.http.core import GONE, Ask, Core, Tries, path_of, to_json
from tidelog.client.http.effects import Apply, Emit, Flow, Plan, Wait
from tidelog.client.http.errors import Conflict, NotFound, OutOfRange
from tidelog.client.http.routes import Place
from tidelog.client.http.sse import Event
from tidelog.client.http.values import (
    ABSENT,
    BatchResult,
    Change,
    Consistency,
    Delete,
    Document,
    Entry,
    Put,
    Seconds,
    decode,
    decode_key,
    milliseconds,
)

D = TypeVar("D")

UPDATE_ATTEMPTS_MAX: Final = 100
UPDATE_PAUSE_SECONDS_MAX: Final = 0.05
PAGE: Final = 100
REMEMBERED: Final = frozenset({409, 424})
"""The refusals that a leader remembers under the request's key, or that hold for ever."""
BEGINS_ANEW: Final = Change(key="", value=None, version=-1, is_deleted=True, cursor=None, begins_anew=True)


class KvPlans:
    """One bucket."""

    def __init__(self, core: Core, bucket: str, consistency: Consistency) -> None:
        if not bucket:
            raise ValueError("a bucket has a name")
        self._core = core
        self._path = path_of("v1", "kv", bucket)
        self._consistency: Consistency = consistency
        self.bucket = bucket

    # The bucket itself.

    def create(
        self,
        *,
        partitions: int | None = None,
        replication: int | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> Plan[Document]:
        """Make the bucket; one that is there stays as it is."""
        wanted = {"partitions": partitions, "replication": replication, "config": config}
        body = to_json({name: value for name, value in wanted.items() if value is not None})
        found: Document = yield from self._core.ask(
            Ask(method="PUT", path=self._path, body=body, seconds_max=self._core.change_seconds)
        )
        self._core.routes.forget(self.bucket)
        return found

    def drop(self) -> Plan[bool]:
        """Delete the bucket with all of its keys; False if there was none."""
        try:
            yield from self._core.ask(
                Ask(method="DELETE", path=self._path, seconds_max=self._core.change_seconds, settled_by=GONE)
            )
        except NotFound as error:
            return error.is_repeat
        finally:
            self._core.routes.forget(self.bucket)
            self._core.tokens.forget(self.bucket)
        return True

    # One key.

    def get(
        self,
        key: str,
        *,
        default: D | None = None,
        consistency: Consistency | None = None,
        token: str | None = None,
    ) -> Plan[Entry | D | None]:
        """The key's entry; `default` if there is none.

        A strong read is the leader's; a local one that of the node that is asked, which has
        seen at least what this client has, and what `token` stands for.
        """
        place = self._place(key)
        query: dict[str, Any] = {"consistency": consistency or self._consistency, "token": token}
        if query["consistency"] == "local" and token is None:
            query |= yield from self._local(place)
        is_local = query["consistency"] == "local"
        ask = Ask(method="GET", path=self._path_of(key), query=query, place=place, is_local=is_local)
        try:
            found = yield from self._core.ask(ask)
        except NotFound as error:
            if "token" not in error.problem:  # it is the bucket that is not there
                self._core.tokens.forget(self.bucket)
                raise
            self._core.tokens.note(self.bucket, error.problem["token"])
            return default
        return self._entry(found)

    def put(
        self,
        key: str,
        value: Any,
        *,
        ttl: Seconds | None = None,
        if_version: int | None = None,
        min_replicas_ack: int | None = None,
        sync_timeout: Seconds | None = None,
        idempotency_key: str | None = None,
    ) -> Plan[Entry]:
        """Write a value, which may be any JSON; for `ttl` seconds, or for good.

        With `if_version` only if that is the key's version, or if it is absent (`ABSENT`);
        otherwise Conflict, also for an attempt that was lost on its way and arrives afterwards.
        """
        document = _operation(Put(key, value, ttl, if_version))
        found = yield from self._core.write(
            Ask(
                method="PUT",
                path=self._path_of(key),
                body=to_json(document),
                place=self._place(key),
                settled_by=REMEMBERED,
            ),
            min_replicas_ack=min_replicas_ack,
            sync_timeout=sync_timeout,
            idempotency_key=idempotency_key,
        )
        return self._entry({"key": key, "value": value, **found})

    def delete(
        self,
        key: str,
        *,
        if_version: int | None = None,
        min_replicas_ack: int | None = None,
        sync_timeout: Seconds | None = None,
        idempotency_key: str | None = None,
    ) -> Plan[bool]:
        """Delete a key; False if it was not there."""
        found = yield from self._core.write(
            Ask(
                method="DELETE",
                path=self._path_of(key),
                query={"if_version": if_version},
                place=self._place(key),
                settled_by=REMEMBERED,
            ),
            min_replicas_ack=min_replicas_ack,
            sync_timeout=sync_timeout,
            idempotency_key=idempotency_key,
        )
        self._core.tokens.note(self.bucket, found.get("token"))
        return bool(found.get("deleted", True))

    def compare_and_set(
        self,
        key: str,
        value: Any,
        version: int | None,
        *,
        ttl: Seconds | None = None,
        min_replicas_ack: int | None = None,
        sync_timeout: Seconds | None = None,
    ) -> Plan[Entry | None]:
        """Write if the key still is at `version`, None for absent; None if it is not.

        OutcomeUnknown where nobody can tell, as of any write.
        """
        try:
            return (
                yield from self.put(
                    key,
                    value,
                    ttl=ttl,
                    if_version=ABSENT if version is None else version,
                    min_replicas_ack=min_replicas_ack,
                    sync_timeout=sync_timeout,
                )
            )
        except Conflict:
            return None

    def update(
        self,
        key: str,
        change: Callable[[Any], Any],
        *,
        default: Any = None,
        ttl: Seconds | None = None,
        attempts_max: int = UPDATE_ATTEMPTS_MAX,
        min_replicas_ack: int | None = None,
        sync_timeout: Seconds | None = None,
    ) -> Plan[Entry]:
        """Write what `change` makes of the value, `default` if there is none.

        If somebody else was faster, it is read and changed again; Conflict after `attempts_max`.
        """
        attempt = 0
        while True:
            attempt += 1
            entry: Entry | None = yield from self.get(key, consistency="strong")
            value = yield Apply(change, default if entry is None else entry.value)
            try:
                return (
                    yield from self.put(
                        key,
                        value,
                        ttl=ttl,
                        if_version=ABSENT if entry is None else entry.version,
                        min_replicas_ack=min_replicas_ack,
                        sync_timeout=sync_timeout,
                    )
                )
            except Conflict as error:
                if attempt >= attempts_max:
                    message = f"others were faster {attempt} times; let fewer write it"
                    raise Conflict(f"{self.bucket}/{key}: {message}", problem=error.problem) from None
            yield Wait(self._core.chance() * min(0.001 * 2**attempt, UPDATE_PAUSE_SECONDS_MAX))

    # Many keys.

    def batch(
        self,
        operations: Iterable[Put | Delete],
        *,
        min_replicas_ack: int | None = None,
        sync_timeout: Seconds | None = None,
        idempotency_key: str | None = None,
    ) -> Plan[list[BatchResult]]:
        """Write and delete many keys at once; what became of each, in order.

        Of those that share a partition all happen or none: look at each result's `error`.
        """
        document = {"operations": [_named(operation) for operation in operations]}
        ask = Ask(
            method="POST",
            path=f"{self._path}:batch",
            body=to_json(document),
            place=Place(topic=self.bucket),
            settled_by=REMEMBERED,
        )
        tries = Tries(ask)
        found = yield from self._core.write(
            ask,
            min_replicas_ack=min_replicas_ack,
            sync_timeout=sync_timeout,
            idempotency_key=idempotency_key,
            tries=tries,
        )
        results = []
        for result in found["results"]:
            self._core.tokens.note(self.bucket, result.get("token"))
            results.append(self._result(result, tries))
        return results

    def scan(
        self,
        prefix: str = "",
        *,
        after: str | None = None,
        limit: int | None = None,
        page: int = PAGE,
        values: bool = True,
        consistency: Consistency | None = None,
    ) -> Flow[Entry]:
        """Every entry whose key begins with `prefix`, by key, at most `limit`; page by page.

        What is written meanwhile may be seen or not. Without `values`, keys and versions.
        """
        left = limit
        while left is None or left > 0:
            query = {
                "prefix": prefix or None,
                "after": after,
                "values": values,
                "limit": page if left is None else min(page, left),
                "consistency": consistency or self._consistency,
            }
            ask = Ask(
                method="GET",
                path=self._path,
                query=query,
                place=Place(topic=self.bucket),
                is_local=query["consistency"] == "local",
            )
            found = yield from self._core.ask(ask)
            for one in found["entries"]:
                yield Emit(self._entry(one))
            after = found.get("next")
            if after is None:
                return
            if left is not None:
                left -= len(found["entries"])

    def watch(self, prefix: str = "", *, from_: str = "now") -> Flow[Change]:
        """Every change from now on, or from the `start`, or after a change's `cursor`.

        It goes on where it was when a node is lost; it ends when the bucket does (NotFound). Where
        the log lacks what came since, deletions maybe, a change that `begins_anew` says so, and all
        keys that are there follow.
        """
        failures = 0
        while True:
            query = {"prefix": prefix or None, "from": from_}
            ask = Ask(method="GET", path=f"{self._path}:watch", query=query, place=Place(topic=self.bucket))
            try:
                yield from self._core.follow(ask, self._change)
            except OutOfRange:
                from_, failures = "start", failures + 1
                yield Emit(BEGINS_ANEW)
                yield Wait(self._core.pause(failures))

    # Parts.

    def _path_of(self, key: str) -> str:
        if not key:
            raise ValueError("a key has at least one character")
        return self._path + path_of(key)

    def _place(self, key: str) -> Place:
        return Place(topic=self.bucket, key=key.encode("utf-8", "surrogateescape"))

    def _local(self, place: Place) -> Plan[dict[str, Any]]:
        """What to ask for, so that a local read tells of no time before."""
        tokens = self._core.tokens
        if not tokens.has(self.bucket):
            return {}
        yield from self._core.look(place)
        partition = self._core.routes.partition_of(place)
        if partition is None:
            return {"consistency": "strong"}
        return {"token": tokens.of(self.bucket, partition)}

    def _entry(self, found: Mapping[str, Any]) -> Entry:
        self._core.tokens.note(self.bucket, found.get("token"))
        return Entry(
            key=decode_key(found),
            value=decode(found.get("value"), found.get("encoding")),
            version=found["version"],
            expires_at_ms=found.get("expires_at_ms"),
            token=found.get("token"),
        )

    def _result(self, found: Mapping[str, Any], tries: Tries) -> BatchResult:
        key, problem = found["key"], found.get("error")
        if problem is None:
            return BatchResult(key=key, version=found.get("version"))
        error = tries.refused(problem["status"], problem, f"{self.bucket}/{key}")
        return BatchResult(key=key, version=None, error=error)

    def _change(self, event: Event) -> Change:
        found = json.loads(event.data)
        value = decode(found.get("value"), found.get("encoding"))
        return Change(
            key=decode_key(found),
            value=value,
            version=found["version"],
            is_deleted=found.get("deleted", False),
            cursor=event.id,
            expires_at_ms=found.get("expires_at_ms"),
        )


def _operation(operation: Put | Delete) -> dict[str, Any]:
    """What a request says of a key, without its name."""
    said: dict[str, Any] = {}
    if isinstance(operation, Put):
        said["value"] = operation.value
        if operation.ttl is not None:
            said["ttl_ms"] = milliseconds(operation.ttl)
    if operation.if_version is not None:
        said["if_version"] = operation.if_version
    return said


def _named(operation: Put | Delete) -> dict[str, Any]:
    name = "put" if isinstance(operation, Put) else "delete"
    return {"op": name, "key": operation.key, **_operation(operation)}
