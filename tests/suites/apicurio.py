"""Apicurio's schema registry, which keeps its schemas on the node, between two sides.

On one side Confluent's serializers, on the other ours: commands, columns, and the HTTP records.
"""

import json
import os
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.serialization import MessageField, SerializationContext

from tests.clients.test_schemas import FORMATS, JSON, PROTO
from tests.suites import tools
from tests.suites.checks import Context, run_checks
from tests.suites.report import Check
from tidelog.client import Client
from tidelog.client.http.errors import TidelogHTTPError
from tidelog.schemas.formats import PartFormat
from tidelog.schemas.problems import RegistryRefused
from tidelog.schemas.registry import Reference, Registry, Schema
from tidelog.schemas.table import FORMATS as ROWS
from tidelog.schemas.values import ValueReader, ValueWriter
from tidelog.spark.registered import part_reader, part_writer

START_SECONDS_MAX: Final = 180.0
RECEIVE_SECONDS_MAX: Final = 30.0
MEMORY: Final = "-Xmx768m"
ONE: Final = {"id": "a", "n": 7}


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


PORT: Final = _free_port()
URL: Final = f"http://127.0.0.1:{PORT}/apis/ccompat/v7"
SETTINGS: Final = {"schema.registry.url": URL}
"""Of the node, which decodes and encodes through the registry that runs on it."""


def version() -> str:
    tools.apicurio()
    return tools.APICURIO


def run(context: Context) -> Iterator[Check]:
    with _registry(context):
        per_format: list[Callable[[Context], None]] = []
        for name in FORMATS:
            for check in (what_confluent_writes_is_read, what_is_written_confluent_reads):
                made = partial(check, name=name)
                made.__name__ = f"{name}_{check.__name__}"  # type: ignore[attr-defined]
                per_format.append(made)
        yield from run_checks(
            [*per_format, imports_and_references_are_found, an_incompatible_schema_is_refused], context
        )
    with _registry(context):
        yield from run_checks([a_restarted_registry_has_its_schemas_again], context)


@contextmanager
def _registry(context: Context) -> Iterator[None]:
    """The registry with its journal on the node, until it answers."""
    environment = {
        **os.environ,
        "APICURIO_STORAGE_KIND": "kafkasql",
        "APICURIO_KAFKASQL_BOOTSTRAP_SERVERS": context.bootstrap,
        "QUARKUS_HTTP_HOST": "127.0.0.1",
        "QUARKUS_HTTP_PORT": str(PORT),
    }
    log = context.directory / "apicurio.log"
    with log.open("ab") as out:
        process = subprocess.Popen(
            ["java", MEMORY, "-jar", str(tools.apicurio())],
            env=environment,
            stdout=out,
            stderr=out,
            stdin=subprocess.DEVNULL,
        )
    try:
        deadline = time.monotonic() + START_SECONDS_MAX
        while not _answers():
            said = log.read_text(errors="replace")[-2000:]
            assert process.poll() is None, f"the registry ended: {said}"
            assert time.monotonic() < deadline, f"the registry does not answer: {said}"
            time.sleep(0.2)
        yield
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _answers() -> bool:
    try:
        with urllib.request.urlopen(f"{URL}/subjects", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def _form(name: str) -> PartFormat:
    return PartFormat(part="value", name=name, url=URL, message=FORMATS[name][2])


def _serializers(name: str) -> tuple[Any, Any]:
    found: tuple[Any, Any] = FORMATS[name][0](SchemaRegistryClient({"url": URL}))
    return found


def what_confluent_writes_is_read(context: Context, *, name: str) -> None:
    topic = f"theirs-{name}"
    write, _ = _serializers(name)
    data = write(ONE, SerializationContext(topic, MessageField.VALUE))
    producer = Producer({"bootstrap.servers": context.bootstrap})
    producer.produce(topic, value=data)
    assert producer.flush(RECEIVE_SECONDS_MAX) == 0

    assert ValueReader(_form(name)).document(data) == ONE
    found, reasons = part_reader(_form(name), topic).read(pa.array([data]))
    assert found.to_pylist() == [ONE] and not reasons
    with Client(context.node.http) as client:
        (record,) = client.topic(topic).read(0, encoding=name).records  # type: ignore[arg-type]
        assert record.value == ONE and record.error is None, record
        with pytest.raises(TidelogHTTPError) as refused:
            client.topic(topic).produce({"id": 5}, encoding=name)  # type: ignore[arg-type]
        assert refused.value.status == 422


def what_is_written_confluent_reads(context: Context, *, name: str) -> None:
    topic = f"ours-{name}"
    Registry(URL).register(f"{topic}-value", Schema(ROWS[name].kind, FORMATS[name][1]))
    form = _form(name)
    typed = ValueWriter(form, topic, None).bytes_of(json.dumps(ONE).encode())
    columns = part_writer(form, topic, part_reader(form, topic).spark_type)
    producer = Producer({"bootstrap.servers": context.bootstrap})
    for data in (typed, *columns.write(pa.array([ONE])).to_pylist()):
        producer.produce(topic, value=data)
    assert producer.flush(RECEIVE_SECONDS_MAX) == 0
    schema = None if form.message is None else {"message": form.message}
    with Client(context.node.http) as client:
        client.topic(topic).produce(ONE, encoding=name, schema=schema)  # type: ignore[arg-type]

    _, read = _serializers(name)
    place = SerializationContext(topic, MessageField.VALUE)
    assert [read(data, place) for data in _received(context, topic, 3)] == [ONE] * 3


def _received(context: Context, topic: str, count: int) -> list[bytes]:
    consumer = Consumer(
        {
            "bootstrap.servers": context.bootstrap,
            "group.id": f"{topic}-readers",
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe([topic])
    found: list[bytes] = []
    deadline = time.monotonic() + RECEIVE_SECONDS_MAX
    try:
        while len(found) < count and time.monotonic() < deadline:
            message = consumer.poll(1.0)
            if message is not None and message.error() is None:
                found.append(message.value() or b"")
    finally:
        consumer.close()
    return found


def imports_and_references_are_found(context: Context) -> None:
    registry = Registry(URL)
    place = 'syntax = "proto3"; package geo; message Place { int32 x = 1; }'
    registry.register("place", Schema("PROTOBUF", place))
    visit = (
        'syntax = "proto3"; import "geo/place.proto"; import "google/protobuf/timestamp.proto"; '
        "message Visit { geo.Place place = 1; google.protobuf.Timestamp at = 2; }"
    )
    reference = (Reference("geo/place.proto", "place", 1),)
    registry.register("visits-value", Schema("PROTOBUF", visit, reference))
    _comes_back("protobuf", "visits", {"place": {"x": 3}, "at": "2026-01-02T03:04:05Z"})

    registry.register("json-place", Schema("JSON", json.dumps(JSON)))
    visit = json.dumps({"type": "object", "properties": {"place": {"$ref": "place.json"}}})
    reference = (Reference("place.json", "json-place", 1),)
    registry.register("json-visits-value", Schema("JSON", visit, reference))
    _comes_back("json-schema", "json-visits", {"place": ONE})


def _comes_back(name: str, topic: str, value: Any) -> None:
    form = PartFormat(part="value", name=name, url=URL)
    data = ValueWriter(form, topic, None).bytes_of(json.dumps(value).encode())
    assert ValueReader(form).document(data) == value


def an_incompatible_schema_is_refused(context: Context) -> None:
    body = json.dumps({"compatibility": "BACKWARD"}).encode()
    request = urllib.request.Request(
        f"{URL}/config",
        data=body,
        method="PUT",
        headers={"Content-Type": "application/vnd.schemaregistry.v1+json"},
    )
    urllib.request.urlopen(request, timeout=10).close()
    with pytest.raises(RegistryRefused) as refused:
        Registry(URL).register("theirs-avro-value", Schema("AVRO", '"string"'))
    assert refused.value.status == 409


def a_restarted_registry_has_its_schemas_again(context: Context) -> None:
    schema = Registry(URL).latest("ours-protobuf-value").schema
    assert schema.kind == "PROTOBUF" and PROTO.split()[2] in schema.text, schema
    with Client(context.node.http) as client:
        (record,) = client.topic("theirs-avro").read(0, encoding="avro").records
        assert record.value == ONE, record
