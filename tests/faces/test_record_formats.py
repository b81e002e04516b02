"""A real node that decodes and encodes through a schema registry, and stays up without it."""

import json
from contextlib import closing
from itertools import islice
from pathlib import Path

import pytest

from tests.support.node import NodeProcess
from tests.unit.schemas.double import registry_double
from tidelog.client import Client, ToProduce
from tidelog.client.http.errors import TidelogHTTPError
from tidelog.client.http.values import Form
from tidelog.schemas.registry import Registry, Schema
from tidelog.schemas.table import FORMATS

SCHEMAS: dict[Form, str] = {
    "avro": json.dumps({"type": "record", "name": "R", "fields": [{"name": "n", "type": ["null", "long"]}]}),
    "protobuf": 'syntax = "proto3"; message R { optional int32 n = 1; }',
    "json-schema": json.dumps({"type": "object", "properties": {"n": {"type": "integer"}}}),
}
MANY = 500


def test_formats_are_written_and_read_over_http_and_misfits_are_refused(tmp_path: Path) -> None:
    with registry_double() as double:
        settings = {"schema.registry.url": double.url}
        with NodeProcess(tmp_path / "data", settings) as node, Client(node.http) as client:
            for name, text in SCHEMAS.items():
                schema = Schema(FORMATS[name].kind, text)
                Registry(double.url).register(f"{name}-value", schema)
                topic = client.topic(name)
                topic.produce_many(ToProduce(value={"n": n}, encoding=name, partition=0) for n in range(MANY))
                found = topic.read(0, limit=MANY, encoding=name).records
                assert [one.value["n"] for one in found] == list(range(MANY))
                with closing(topic.stream(from_="earliest", encoding=name)) as stream:
                    assert [one.value["n"] for one in islice(stream, MANY)] == list(range(MANY))
                with pytest.raises(TidelogHTTPError, match=r"records\[0\]\.value") as refused:
                    topic.produce({"n": "x"}, encoding=name)
                assert refused.value.status == 422
        assert double.asked.count("GET /schemas/ids/1") <= 1
        with NodeProcess(tmp_path / "data", settings) as node:
            double.user_info = "nobody:knows"
            with Client(node.http, timeout=5) as client:
                with pytest.raises(TidelogHTTPError, match="schema registry"):
                    client.topic("avro").read(0, encoding="avro")
                assert len(client.topic("avro").read(0, limit=MANY).records) == MANY
            assert " ERROR " not in node.log.read_text()
