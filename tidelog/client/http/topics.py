"""Topics and their records: what each call asks, and what it makes of the answer."""

import json
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tidelog.client.http.core import GONE, MADE, Ask, Core, path_of, to_json
from tidelog.client.http.effects import Flow, Plan
from tidelog.client.http.errors import Conflict, NotFound
from tidelog.client.http.routes import Place
from tidelog.client.http.sse import Event
from tidelog.client.http.values import (
    Document,
    Encoding,
    Form,
    Isolation,
    Produced,
    Record,
    Records,
    Seconds,
    Shown,
    ToProduce,
    milliseconds,
    read_record,
)

PAGE = 100


class TopicsPlans:
    """All topics."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def list(self) -> Plan[list[Document]]:
        """Every topic, by name."""
        return (yield from self._core.pages(Ask(method="GET", path="/v1/topics"), "topics"))

    def describe(self, name: str) -> Plan[Document]:
        """A topic with its settings and partitions."""
        found: Document = yield from self._core.ask(Ask(method="GET", path=_path(name)))
        return found

    def create(
        self,
        name: str,
        *,
        partitions: int | None = None,
        replication: int | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> Plan[Document]:
        """Make a topic; Conflict if there is one of this name."""
        wanted = {"name": name, "partitions": partitions, "replication": replication, "config": config}
        try:
            found: Document = yield from self._change("POST", "/v1/topics", name, wanted, MADE)
        except Conflict as error:
            if not error.is_repeat:
                raise
            # An attempt whose answer was lost has made it, as far as anybody can tell.
            found = yield from self.describe(name)
        return found

    def alter(
        self, name: str, *, partitions: int | None = None, config: Mapping[str, Any] | None = None
    ) -> Plan[Document]:
        """Grow a topic, or change its settings; None takes one back to its default."""
        wanted = {"partitions": partitions, "config": config}
        found: Document = yield from self._change("PATCH", _path(name), name, wanted)
        return found

    def delete(self, name: str) -> Plan[bool]:
        """Delete a topic with all of its records; False if there was none."""
        try:
            yield from self._change("DELETE", _path(name), name, None, GONE)
        except NotFound as error:
            return error.is_repeat
        return True

    def _change(
        self,
        method: str,
        path: str,
        name: str,
        body: Document | None,
        settled_by: frozenset[int] = frozenset(),
    ) -> Plan[Any]:
        data = None
        if body is not None:
            data = to_json({key: value for key, value in body.items() if value is not None})
        self._core.routes.forget(name)
        return (
            yield from self._core.ask(
                Ask(
                    method=method,
                    path=path,
                    body=data,
                    seconds_max=self._core.change_seconds,
                    settled_by=settled_by,
                )
            )
        )


class TopicPlans:
    """The records of one topic."""

    def __init__(self, core: Core, name: str) -> None:
        if not name:
            raise ValueError("a topic has a name")
        self._core = core
        self._path = _path(name)
        self.name = name

    def produce(
        self,
        value: Any,
        *,
        key: Any = None,
        headers: Mapping[str, str] | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        encoding: Encoding | None = None,
        key_encoding: Form | None = None,
        schema: Mapping[str, Any] | None = None,
        key_schema: Mapping[str, Any] | None = None,
        min_replicas_ack: int | None = None,
        sync_timeout: Seconds | None = None,
        idempotency_key: str | None = None,
    ) -> Plan[Produced]:
        """Write one record: bytes as they are, a str as its UTF-8, anything else as JSON.

        With a format as its encoding, the node writes it by a schema of its registry.
        """
        record = ToProduce(
            value=value,
            key=key,
            headers=headers or {},
            partition=partition,
            timestamp_ms=timestamp_ms,
            encoding=encoding,
            key_encoding=key_encoding,
            schema=schema,
            key_schema=key_schema,
        )
        (produced,) = yield from self.produce_many(
            [record],
            min_replicas_ack=min_replicas_ack,
            sync_timeout=sync_timeout,
            idempotency_key=idempotency_key,
        )
        return produced

    def produce_many(
        self,
        records: Iterable[ToProduce],
        *,
        min_replicas_ack: int | None = None,
        sync_timeout: Seconds | None = None,
        idempotency_key: str | None = None,
    ) -> Plan[list[Produced]]:
        """Write records in one request; where each of them stands, in order."""
        records = list(records)
        document = {"records": [_to_json(record) for record in records]}
        found = yield from self._core.write(
            Ask(
                method="POST",
                path=f"{self._path}/records",
                body=to_json(document),
                place=self._place_of(records),
            ),
            min_replicas_ack=min_replicas_ack,
            sync_timeout=sync_timeout,
            idempotency_key=idempotency_key,
        )
        return [Produced(partition=at["partition"], offset=at["offset"]) for at in found["records"]]

    def read(
        self,
        partition: int,
        offset: int | None = None,
        *,
        time_ms: int | None = None,
        limit: int = PAGE,
        wait: Seconds = 0.0,
        max_bytes: int | None = None,
        encoding: Shown | Form = "auto",
        key_encoding: Form | None = None,
        isolation: Isolation = "committed",
    ) -> Plan[Records]:
        """Records from an offset on, or from a time on, or the oldest; waits for one that long.

        With a format as encoding, the node decodes them by the schemas of its registry.
        """
        wait_ms = milliseconds(wait)
        query = {
            "offset": offset,
            "time_ms": time_ms,
            "limit": limit,
            "wait_ms": wait_ms or None,
            "max_bytes": max_bytes,
            "encoding": encoding,
            "key_encoding": key_encoding,
            "isolation": isolation,
        }
        found = yield from self._core.ask(
            Ask(
                method="GET",
                path=f"{self._path}{path_of('partitions', partition, 'records')}",
                query=query,
                place=Place(topic=self.name, partition=partition),
                seconds_max=self._core.settings.timeout + wait_ms / 1000,
            )
        )
        return Records(
            records=tuple(read_record(one, self.name, partition, None) for one in found["records"]),
            next_offset=found["next_offset"],
            high_watermark=found["high_watermark"],
            log_start=found["log_start"],
        )

    def stream(
        self,
        *,
        from_: str = "latest",
        partitions: Sequence[int] | None = None,
        encoding: Shown | Form = "auto",
        key_encoding: Form | None = None,
    ) -> Flow[Record]:
        """Records as they are committed: from the `latest`, the `earliest`, or after a cursor.

        It goes on where it was when a node is lost. With a format as encoding, the node decodes
        them by the schemas of its registry.
        """
        numbers = None if partitions is None else ",".join(map(str, partitions))
        query = {"from": from_, "partitions": numbers, "encoding": encoding, "key_encoding": key_encoding}
        only = partitions[0] if partitions is not None and len(partitions) == 1 else None
        ask = Ask(
            method="GET",
            path=f"{self._path}/stream",
            query=query,
            place=Place(topic=self.name, partition=only),
        )
        return self._core.follow(ask, self._streamed)

    def _streamed(self, event: Event) -> Record:
        found = json.loads(event.data)
        return read_record(found, self.name, found["partition"], event.id)

    def _place_of(self, records: Sequence[ToProduce]) -> Place:
        """The partition if all go to the same one."""
        first = records[0] if len(records) == 1 else None
        is_keyed = first is not None and first.key is not None and first.key_encoding is None
        if first is None or (first.partition is None and not is_keyed):
            return Place(topic=self.name)
        key = first.key.encode() if isinstance(first.key, str) else first.key
        return Place(topic=self.name, partition=first.partition, key=key if is_keyed else None)


def _path(topic: str) -> str:
    return path_of("v1", "topics", topic)


def _to_json(record: ToProduce) -> Document:
    value, encoding = record.value, record.encoding
    if isinstance(value, (bytes, bytearray, memoryview)):
        value, encoding = b64encode(value).decode(), "base64"
    elif encoding is None:
        encoding = "text" if isinstance(value, str) else "json"
    said: Document = {"value": value, "encoding": encoding}
    if record.key_encoding is not None:
        said |= {"key": record.key, "key_encoding": record.key_encoding}
    elif isinstance(record.key, bytes):
        said |= {"key": b64encode(record.key).decode(), "key_encoding": "base64"}
    elif record.key is not None:
        said["key"] = record.key
    if record.headers:
        said["headers"] = dict(record.headers)
    if record.partition is not None:
        said["partition"] = record.partition
    if record.timestamp_ms is not None:
        said["timestamp_ms"] = record.timestamp_ms
    if record.schema is not None:
        said["schema"] = dict(record.schema)
    if record.key_schema is not None:
        said["key_schema"] = dict(record.key_schema)
    return said
