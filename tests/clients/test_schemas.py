"""Confluent's serializers on the other side of a schema registry.

The registry is a double that speaks its REST API; the records are what the two libraries make.
"""

import json

import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import json_format, message_factory
from pyspark.sql import types

from tests.unit.schemas.double import registry_double
from tidelog.schemas.formats import PartFormat
from tidelog.schemas.protoc import file_of
from tidelog.schemas.registry import Schema
from tidelog.schemas.values import ValueReader, ValueWriter
from tidelog.spark.registered import part_reader, part_writer

AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "string"}, {"name": "n", "type": ["null", "long"]}],
}
JSON = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "title": "Order",
    "type": "object",
    "properties": {"id": {"type": "string"}, "n": {"type": ["integer", "null"]}},
    "required": ["id"],
}
PROTO = """
syntax = "proto3";
message Other { string name = 1; }
message Shop {
  message Order { string id = 1; optional int32 n = 2; }
}
"""
MESSAGE = message_factory.GetMessageClass(
    file_of(Schema("PROTOBUF", PROTO), None).message_types_by_name["Shop"].nested_types_by_name["Order"]
)
VALUE = SerializationContext("orders", MessageField.VALUE)
ORDER = {"id": "a", "n": 7}


def avro(client):
    return AvroSerializer(client, json.dumps(AVRO)), AvroDeserializer(client)


def json_schema(client):
    text = json.dumps(JSON)
    return JSONSerializer(text, client), JSONDeserializer(text, schema_registry_client=client)


def protobuf(client):
    conf = {"use.deprecated.format": False}
    write, read = ProtobufSerializer(MESSAGE, client, conf), ProtobufDeserializer(MESSAGE, conf)

    def write_dict(value, context):
        return write(json_format.ParseDict(value, MESSAGE()), context)

    def read_dict(data, context):
        return json_format.MessageToDict(read(data, context), preserving_proto_field_name=True)

    return write_dict, read_dict


FORMATS = {
    "avro": (avro, json.dumps(AVRO), None),
    "protobuf": (protobuf, PROTO, "Shop.Order"),
    "json-schema": (json_schema, json.dumps(JSON), None),
}
every_format = pytest.mark.parametrize("name", FORMATS)


@pytest.fixture
def double():
    with registry_double() as made:
        yield made


def form(double, name, **more):
    message = FORMATS[name][2] if "auto_register" not in more else None
    return PartFormat(part="value", name=name, url=double.url, message=message, **more)


@every_format
def test_what_confluent_s_serializer_writes_is_read(double, name):
    write, _ = FORMATS[name][0](SchemaRegistryClient({"url": double.url}))
    written = write(ORDER, VALUE)

    assert ValueReader(form(double, name)).document(written) == ORDER
    found, reasons = part_reader(form(double, name), "orders").read(pa.array([written]))
    assert found.to_pylist() == [ORDER] and not reasons


@every_format
def test_what_is_written_confluent_s_deserializer_reads(double, name):
    make, text, _ = FORMATS[name]
    _, read = make(SchemaRegistryClient({"url": double.url}))
    by_hand = ValueWriter(form(double, name), "orders", text).bytes_of(b'{"id":"a","n":7}')
    assert read(by_hand, VALUE) == ORDER

    kind = types.StructType(
        [types.StructField("id", types.StringType()), types.StructField("n", types.IntegerType())]
    )
    writer = part_writer(form(double, name), "orders", kind)
    (record,) = writer.write(pa.array([ORDER])).to_pylist()
    assert read(record, VALUE) == ORDER


@pytest.mark.parametrize("name", ["avro", "json-schema"])
def test_a_schema_that_is_made_of_columns_is_one_of_confluent_s(double, name):
    _, read = FORMATS[name][0](SchemaRegistryClient({"url": double.url}))
    kind = types.StructType([types.StructField("id", types.StringType())])
    writer = part_writer(form(double, name, auto_register=True), "others", kind)
    (record,) = writer.write(pa.array([{"id": "b"}])).to_pylist()
    assert read(record, VALUE) == {"id": "b"}
