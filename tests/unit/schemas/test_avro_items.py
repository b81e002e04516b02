"""A tiny payload becomes no more values than a record of its size may cost."""

import io
import json

import fastavro
import pytest

from tidelog.schemas import avro
from tidelog.schemas.avro_items import FREE_MAX, guard
from tidelog.schemas.problems import DoesNotFit
from tidelog.schemas.registry import AVRO, Schema

NOTHING = {"type": "record", "name": "Nothing", "fields": [{"name": "a", "type": "null"}]}
BILLION = b"\x80\xa8\xd6\xb9\x07\x00"  # one block of a billion items


def array(items):
    return {"type": "array", "items": items}


def within(items):
    fields = [{"name": "n", "type": "long"}, {"name": "all", "type": ["null", array(items)]}]
    return {"type": "record", "name": "Outer", "fields": fields}


def parsed(document):
    return avro.parsed(Schema(AVRO, json.dumps(document)))


def written(schema, value):
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, schema, value)
    return stream.getvalue()


@pytest.mark.parametrize("items", ["null", NOTHING, {"type": "fixed", "name": "F", "size": 0}])
def test_an_array_of_what_takes_no_bytes_is_bounded(items):
    with pytest.raises(DoesNotFit, match=r"[12]000000000 values"):
        avro.reader(parsed(array(items)), None)(BILLION)


@pytest.mark.parametrize(
    ("document", "before"),
    [
        (array(array("null")), b"\x02"),
        ({"type": "map", "values": array("null")}, b"\x02\x02k"),
        (within("null"), b"\x02\x02"),
        ([array("null"), "string"], b"\x00"),
        (
            within("null") | {"fields": [{"name": "b", "type": "boolean"}, *within("null")["fields"]]},
            b"\x80\x02\x02",
        ),
    ],
)
def test_wherever_it_is(document, before):
    with pytest.raises(DoesNotFit, match="take no bytes"):
        avro.reader(parsed(document), None)(before + BILLION + b"\x00")


def test_a_count_that_is_written_too_long_is_no_way_around_it():
    padded = BILLION[:4] + b"\x87" + b"\x80" * 6 + b"\x00"
    with pytest.raises(DoesNotFit, match="no value of its Avro schema"):
        avro.reader(parsed(array("null")), None)(padded + b"\x00")


def test_blocks_are_counted_together_and_those_that_tell_their_size():
    block = b"\xaf\x09\x00"  # -600 items, 0 bytes
    decode = avro.reader(parsed(array("null")), None)
    assert decode(b"\xce\x0f\x00") == [None] * 999
    with pytest.raises(DoesNotFit, match="1200 values"):
        decode(block * 2 + b"\x00")


def test_many_at_once_are_not_read_past_the_bound():
    assert avro.read_many([BILLION], parsed(array("null")), None) is None


def test_what_may_be_is_read_as_ever():
    schema = parsed(within(NOTHING))
    value = {"n": 7, "all": [{"a": None}] * (FREE_MAX // 2)}
    assert avro.reader(schema, None)(written(schema, value)) == value


@pytest.mark.parametrize("items", ["long", "string", ["null", "long"], array("long")])
def test_arrays_that_take_bytes_need_no_look(items):
    assert guard(parsed(within(items))) is None


def test_a_type_inside_of_itself_is_told_from_one_without_bytes():
    tree = {
        "type": "record",
        "name": "Tree",
        "fields": [{"name": "none", "type": "null"}, {"name": "below", "type": array("Tree")}],
    }
    assert guard(parsed(tree)) is None


def record(name, *kinds):
    fields = [{"name": f"f{at}", "type": kind} for at, kind in enumerate(kinds)]
    return {"type": "record", "name": name, "fields": fields}


def doubled(levels):
    """2 to the power of so many nulls, in no bytes."""
    made = record("L0", "null")
    for level in range(1, levels):
        made = record(f"L{level}", made, f"L{level - 1}")
    return made


WIDE = record("Wide", *["null"] * 1000)
LOOP = record("Loop", *["null"] * 1000, ["null", "Loop"])


@pytest.mark.parametrize(
    ("document", "payload"),
    [
        (array(["null", WIDE]), b"\xc8\x01" + b"\x02" * 100 + b"\x00"),
        (array(record("Item", "boolean", WIDE)), b"\xc8\x01" + b"\x01" * 100 + b"\x00"),
        ({"type": "map", "values": WIDE}, b"\xc8\x01" + b"\x02k" * 100 + b"\x00"),
        (LOOP, b"\x02" * 100 + b"\x00"),
        (["null", record("Outer", "int", LOOP)], b"\x02\x00" + b"\x02" * 100 + b"\x00"),
        (doubled(30), b""),
    ],
)
def test_a_byte_does_not_pay_for_a_thousand_values_beside_it(document, payload):
    schema = parsed(document)
    with pytest.raises(DoesNotFit, match="records and nulls"):
        avro.reader(schema, None)(payload)
    assert avro.read_many([payload], schema, None) is None


def test_a_wide_record_is_read_as_often_as_its_bytes_allow():
    schema = parsed(array(record("Item", "string", WIDE)))
    value = [{"f0": "x" * 200, "f1": {f"f{at}": None for at in range(1000)}}] * 3
    assert avro.reader(schema, None)(written(schema, value)) == value


@pytest.mark.parametrize(
    "document",
    [
        array(record("Item", *[["null", "int"]] * 5)),
        record("Envelope", *(record(f"Part{at}", "null", "int") for at in range(100))),
        record("Tree", "null", "int", array("Tree"), ["null", "Tree"]),
    ],
)
def test_records_of_few_parts_need_no_look(document):
    assert guard(parsed(document)) is None


def test_what_is_cut_off_is_told_as_ever():
    with pytest.raises(DoesNotFit, match="no value of its Avro schema"):
        avro.reader(parsed(within("null")), None)(b"")
