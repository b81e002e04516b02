"""Confluent's serializers on the other side of a schema registry.

The registry is a double that speaks its REST API; the records are what the two libraries make.
"""

import json

import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from pyspark.sql import types

from tests.unit.schemas.double import registry_double
from tidelog.schemas.formats import PartFormat
from tidelog.schemas.values import ValueReader, ValueWriter
from tidelog.spark.registered import part_reader, part_writer

ORDER = {
    "type": "record", "name": "Order",
    "fields": [{"name": "id", "type": "string"}, {"name": "n", "type": ["null", "long"]}],
}  # fmt: skip
VALUE = SerializationContext("orders", MessageField.VALUE)


@pytest.fixture
def double():
    with registry_double() as made:
        yield made


def form(double, **more):
    return PartFormat(part="value", name="avro", url=double.url, **more)


def test_what_confluent_s_serializer_writes_is_read(double):
    client = SchemaRegistryClient({"url": double.url})
    written = AvroSerializer(client, json.dumps(ORDER))({"id": "a", "n": 7}, VALUE)

    assert ValueReader(form(double)).document(written) == {"id": "a", "n": 7}
    found, reasons = part_reader(form(double), "orders").read(pa.array([written]))
    assert found.to_pylist() == [{"id": "a", "n": 7}] and not reasons


def test_what_is_written_confluent_s_deserializer_reads(double):
    read = AvroDeserializer(SchemaRegistryClient({"url": double.url}))
    by_hand = ValueWriter(form(double), "orders", json.dumps(ORDER)).bytes_of(b'{"id":"a","n":7}')
    assert read(by_hand, VALUE) == {"id": "a", "n": 7}

    kind = types.StructType([types.StructField("id", types.StringType())])
    writer = part_writer(form(double, auto_register=True), "others", kind)
    (record,) = writer.write(pa.array([{"id": "b"}])).to_pylist()
    assert read(record, VALUE) == {"id": "b"}
