"""Keys and values of a schema registry, decoded and encoded by a node."""

import asyncio
import json
import typing
from base64 import b64decode
from urllib.parse import urlsplit

import httpx
import pytest

from tests.unit.broker.node import batch_of, on_a_node
from tests.unit.faces.http.test_app import ask
from tests.unit.faces.http.test_records import READ, post, read, serving
from tests.unit.faces.http.test_streams import SECONDS_MAX, Listener, both
from tests.unit.schemas.double import registry_double
from tidelog.config.node import node_config
from tidelog.errors import ConfigError
from tidelog.faces.http import schemas
from tidelog.schemas import registry as registries
from tidelog.schemas.formats import PartFormat
from tidelog.schemas.framing import frame
from tidelog.schemas.registry import Registry, Schema
from tidelog.schemas.table import FORMATS
from tidelog.schemas.values import ValueReader

AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "string"}, {"name": "n", "type": "double"}],
}
PROTO = """
syntax = "proto3";
message A { int32 x = 1; }
message Order { string id = 1; double n = 2; }
"""
JSON = {"type": "object", "properties": {"id": {"type": "string"}, "n": {"type": "number"}}}
SCHEMAS = {"avro": json.dumps(AVRO), "protobuf": PROTO, "json-schema": json.dumps(JSON)}
KEY = json.dumps({"type": "string"})


@pytest.fixture
def double(monkeypatch):
    monkeypatch.setattr(registries, "PAUSE_SECONDS", 0)
    monkeypatch.setattr(registries, "_registries", {})
    with registry_double() as made:
        yield made


def register(double, name, text, subject="t-value"):
    return Registry(double.url).register(subject, Schema(FORMATS[name].kind, text))


def with_registry(double, story):
    on_a_node(story, schema_registry_url=double.url)


async def store(node, *values):
    await node.produce("t", batch_of(*values))


@pytest.mark.parametrize("name", FORMATS)
def test_what_is_written_by_a_schema_is_shown_as_it_was_and_can_be_sent_back(double, name):
    number = register(double, name, SCHEMAS[name])
    key = register(double, "json-schema", KEY, "t-key")
    used = {"message": "Order"} if name == "protobuf" else None

    async def story(node):
        await node.create("t")
        app = serving(node)
        sent = {
            "value": {"id": "a", "n": 1.5},
            "encoding": name,
            "schema": used,
            "key": "k",
            "key_encoding": "json-schema",
        }
        answer = await post(app, sent, {"value": None, "encoding": name, "key": "k"})
        assert answer.status == 200, answer.body

        shown, gone = (await read(app, f"?encoding={name}&key_encoding=json-schema"))["records"]
        assert shown["value"] == sent["value"] and shown["encoding"] == name
        assert shown["schema"] == {"id": number, **(used or {})}
        assert (shown["key"], shown["key_schema"]) == ("k", {"id": key})
        assert gone["value"] is None and gone["key_error"] and "error" not in gone

        again = {one: shown[one] for one in ("value", "encoding", "schema", "key", "key_encoding")}
        await post(app, again)
        first, _, third = (await read(app, "?encoding=base64"))["records"]
        assert (first["value"], first["key"]) == (third["value"], third["key"])

    with_registry(double, story)


def test_what_does_not_fit_is_refused_with_its_place_and_nothing_is_written(double):
    register(double, "avro", SCHEMAS["avro"])

    async def story(node):
        await node.create("t")
        app = serving(node)
        good = {"value": {"id": "a", "n": 1}, "encoding": "avro"}
        for bad, status, words in (
            ({"value": {"id": 1}, "encoding": "avro"}, 422, "records[1].value: 1 is no string"),
            ({"value": "x", "encoding": "avro"}, 422, "records[1].value: 'x' is no record"),
            ({**good, "schema": {"id": 99}}, 422, "Schema not found"),
            ({**good, "encoding": "json-schema"}, 422, "the registry has AVRO"),
            ({**good, "key": 1, "key_encoding": "avro"}, 422, "t-key"),
            ({"value": 1, "schema": {"id": 1}}, 400, "a value has a schema if"),
            ({"value": 1, "key": 1}, 400, "a key in text is a string"),
            ({**good, "schema": {"url": "http://127.0.0.1:1"}}, 400, "url"),
        ):
            answer = await post(app, good, bad)
            assert answer.status == status and words in answer.json["detail"], answer.json
            assert urlsplit(double.url).netloc not in answer.json["detail"]
        assert node.broker.partition("t", 0).log.end == 0
        assert not [one for one in double.asked if one.startswith("POST")][1:], "none is registered"

    with_registry(double, story)


def test_a_json_number_is_no_string(double):
    register(double, "avro", '"string"')
    register(double, "json-schema", KEY, "t-key")

    async def story(node):
        await node.create("t")
        app = serving(node)
        assert (await post(app, {"value": 1.10, "encoding": "avro"})).status == 422
        wrong = {"value": "x", "encoding": "avro", "key": 1, "key_encoding": "json-schema"}
        assert (await post(app, wrong)).status == 422
        assert (await post(app, {**wrong, "key": "1"})).status == 200

    with_registry(double, story)


def test_a_record_that_cannot_be_decoded_hides_no_other_one(double):
    number = register(double, "avro", '["null", "double"]')

    async def story(node):
        await node.create("t")
        app = serving(node)
        double_1 = b"\x02" + b"\x00" * 6 + b"\xf0\x3f"
        nan = b"\x02" + b"\x00" * 6 + b"\xf8\x7f"
        await store(
            node,
            b"plain",
            frame(number, double_1),
            frame(77, b""),
            frame(number, b"\x02"),
            frame(number, b"\x00"),
            frame(number, nan),
            frame(77, b"x"),
        )
        found = (await read(app, "?encoding=avro"))["records"]
        assert [one["encoding"] for one in found] == ["base64", "avro"] + ["base64"] * 5
        assert found[1]["value"] == 1.0
        for at, words in (
            (0, "without a schema registry"),
            (2, "Schema not found"),
            (3, "no value of its Avro schema"),
            (4, "null"),
            (5, "NaN"),
        ):
            assert words in found[at]["error"]
            assert urlsplit(double.url).netloc not in found[at]["error"]
        assert double.asked.count("GET /schemas/ids/77") == 1

    with_registry(double, story)


def test_a_page_becomes_only_so_long_as_json(double, monkeypatch):
    monkeypatch.setattr(schemas, "PAGE_TEXT_MAX", 3)
    number = register(double, "avro", json.dumps("string"))

    async def story(node):
        await node.create("t")
        await store(node, *[frame(number, b"\x02" + one) for one in (b"a", b"b")])
        app = serving(node)
        first, second = (await read(app, "?encoding=avro"))["records"]
        assert first["value"] == "a" and "error" not in first
        assert second["encoding"] == "base64" and "ask for fewer records" in second["error"]
        (again,) = (await read(app, "?encoding=avro&offset=1"))["records"]
        assert again["value"] == "b"

    with_registry(double, story)


def test_one_request_asks_for_few_unknown_schemas(double):
    async def story(node):
        await node.create("t")
        await store(node, *(frame(number, b"") for number in range(1000, 1200)))
        found = (await read(serving(node), "?encoding=avro&limit=1000"))["records"]
        assert len(found) == 200 and "was not asked for" in found[-1]["error"]
        assert len(double.asked) == schemas.ASKED_MAX

    with_registry(double, story)


def test_a_registry_that_is_away_is_told_and_left_in_peace_for_a_moment(double, monkeypatch):
    asked = []

    def down(*_, **__):
        asked.append(1)
        raise httpx.ConnectError("refused")

    monkeypatch.setattr(httpx.Client, "stream", down)

    async def story(node):
        await node.create("t")
        app = serving(node)
        await store(node, frame(1, b""))
        for _ in range(3):
            answer = await ask(app, READ + "?encoding=avro")
            assert answer.status == 503 and answer.headers["retry-after"] == "1"
            assert urlsplit(double.url).netloc not in answer.json["detail"]
        assert len(asked) == registries.TRIES_MAX
        assert (await post(app, {"value": 1, "encoding": "avro"})).status == 503
        node.clock.advance(schemas.PAUSE_SECONDS + 0.1)
        assert (await ask(app, READ + "?encoding=avro")).status == 503
        assert len(asked) == 2 * registries.TRIES_MAX
        assert (await ask(app, READ)).status == 200, "others are served"

    with_registry(double, story)


def test_a_registry_that_refuses_the_node_is_no_fault_of_the_records(double):
    register(double, "avro", SCHEMAS["avro"])
    double.user_info = "me:secret"

    async def story(node):
        await node.create("t")
        app = serving(node)
        await store(node, frame(1, b""))
        assert (await ask(app, READ + "?encoding=avro")).status == 503

    with_registry(double, story)


def test_the_user_is_the_environment_s(double, monkeypatch):
    register(double, "avro", '"string"')
    double.user_info = "me:secret"
    monkeypatch.setenv(schemas.USER, "me:secret")

    async def story(node):
        await node.create("t")
        assert (await post(serving(node), {"value": "x", "encoding": "avro"})).status == 200

    with_registry(double, story)


def test_without_a_registry_formats_are_refused():
    async def story(node):
        await node.create("t")
        app = serving(node)
        answer = await ask(app, READ + "?encoding=avro")
        assert answer.status == 400 and "schema.registry.url" in answer.json["detail"]
        assert (await post(app, {"value": 1, "encoding": "protobuf"})).status == 400

    on_a_node(story)


def test_too_many_requests_that_wait_are_told_to_come_back(double, monkeypatch):
    monkeypatch.setattr(schemas, "WAITING_MAX", 0)

    async def story(node):
        await node.create("t")
        answer = await ask(serving(node), READ + "?encoding=avro")
        assert answer.status == 503 and "too many" in answer.json["detail"]

    with_registry(double, story)


def test_kafka_s_readers_see_the_same_records(double):
    register(double, "protobuf", PROTO)

    async def story(node):
        await node.create("t")
        await post(serving(node), {"value": {"x": 3}, "encoding": "protobuf"})
        (one,) = (await read(serving(node), "?encoding=base64"))["records"]
        form = PartFormat(part="value", name="protobuf", url=double.url)
        reader = ValueReader(form)
        assert reader.document(b64decode(one["value"])) == {"x": 3}

    with_registry(double, story)


def test_the_description_names_every_format():
    assert typing.get_args(schemas.Form) == tuple(FORMATS)


@both
@pytest.mark.parametrize("name", FORMATS)
def test_streams_show_what_pages_show(double, name, path):
    register(double, name, SCHEMAS[name])
    register(double, "json-schema", KEY, "t-key")
    query = f"encoding={name}&key_encoding=json-schema"

    async def story(node):
        await node.create("t")
        app = serving(node)
        keyed = {"key": "k", "key_encoding": "json-schema"}
        sent = {"value": {"id": "a", "n": 1.5}, "encoding": name, **keyed}
        sent["schema"] = {"message": "Order"} if name == "protobuf" else None
        assert (await post(app, sent, {"value": None, **keyed})).status == 200
        await store(node, b"no schema at all")
        listener = Listener(app, f"{path}?from=earliest&{query}")

        await listener.hear(3)
        shown = (await read(app, f"?{query}"))["records"]
        heard = listener.events()
        for one in heard:
            assert [one.pop(word) for word in ("kind", "partition")] == ["", 0] and one.pop("cursor")
        assert heard == shown
        assert heard[0]["value"] == sent["value"] and heard[0]["key"] == "k"
        assert heard[2]["encoding"] == "base64" and heard[2]["error"]
        await listener.hang_up()

    with_registry(double, story)


@both
def test_a_stream_waits_for_its_registry_and_leaves_nothing_out(double, path):
    register(double, "avro", '"string"')

    async def story(node):
        await node.create("t")
        app = serving(node)
        assert (await post(app, {"value": "a", "encoding": "avro"})).status == 200
        registries._registries.clear()
        double.user_info = "nobody:knows"
        listener = Listener(app, f"{path}?from=earliest&encoding=avro")
        asked = len(double.asked)
        async with asyncio.timeout(SECONDS_MAX):
            while len(double.asked) < asked + 2:
                await asyncio.sleep(0.1)
        assert listener.values() == [] and not listener.served.done()

        double.user_info = None
        assert await listener.hear(1) == ["a"]
        await listener.hang_up()

    with_registry(double, story)


@both
def test_a_stream_is_refused_a_format_where_there_is_no_registry(path):
    async def story(node):
        await node.create("t")
        listener = Listener(serving(node), f"{path}?encoding=avro")
        await listener.end()
        assert listener.status == 400 and "schema.registry.url" in listener.text

    on_a_node(story)


def test_what_json_cannot_say_is_shown_though_it_is_cut_inside_of_a_letter(double):
    number = register(double, "avro", SCHEMAS["avro"])
    name = ("é" * 60).encode()
    payload = bytes([len(name) * 2 & 0x7F | 0x80, len(name) * 2 >> 7]) + name + b"\0" * 6 + b"\xf8\x7f"

    async def story(node):
        await node.create("t")
        await store(node, frame(number, payload), frame(number, b"\x02a" + b"\0" * 8))
        broken, good = (await read(serving(node), "?encoding=avro"))["records"]
        assert "JSON cannot say it" in broken["error"] and good["value"] == {"id": "a", "n": 0.0}

    with_registry(double, story)


def test_a_user_in_the_registry_s_address_is_refused_without_the_password():
    with pytest.raises(ConfigError, match="without a user") as refused:
        node_config({"schema.registry.url": "http://me:secret@127.0.0.1:8081"})
    assert "secret" not in str(refused.value)
