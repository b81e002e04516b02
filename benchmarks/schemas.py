"""`python -m benchmarks.schemas`: values of a schema registry as columns and back, on one core.

The time is that of the processor, so that other work on the machine does not count. The ratio
compares a format with Avro. `--json` prints one document for scripts.
"""

import json
import sys
import time
from collections.abc import Callable
from typing import Final

import pyarrow as pa

from tests.unit.schemas.double import registry_double
from tidelog.schemas.formats import PartFormat
from tidelog.schemas.values import ValueReader, ValueWriter
from tidelog.spark.registered import part_reader, part_writer

ROWS: Final = 100_000
TRIES: Final = 3
SINGLE_ROWS: Final = 10_000
"""Single values, as commands and the HTTP face read and write them."""
AVRO: Final = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "string"},
        {"name": "price", "type": "double"},
        {"name": "n", "type": "int"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
    ],
}
PROTOBUF: Final = """
syntax = "proto3";
import "google/protobuf/timestamp.proto";
message Order { string id = 1; double price = 2; int32 n = 3; google.protobuf.Timestamp at = 4; }
"""
JSON: Final = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "type": "object",
    "properties": {
        "id": {"type": "string"},
        "price": {"type": "number"},
        "n": {"type": "integer", "minimum": 0},
        "at": {"type": "string", "format": "date-time"},
    },
    "required": ["id", "price", "n", "at"],
}
SCHEMAS: Final = {"avro": json.dumps(AVRO), "protobuf": PROTOBUF, "json-schema": json.dumps(JSON)}


def main() -> None:
    found = {name: measure(name, text) for name, text in SCHEMAS.items()}
    if "--json" in sys.argv:
        print(json.dumps(found))
        return
    print(f"{'rows/s of one core':<20}" + "".join(f"{what:>24}" for what in found["avro"]))
    for name, rates in found.items():
        shown = (f"{rate:>14,.0f} ({rate / found['avro'][what]:.2f}x)" for what, rate in rates.items())
        print(f"{name:<20}" + "".join(f"{one:>24}" for one in shown))


def measure(name: str, text: str) -> dict[str, float]:
    """Rows a second by what is done with them."""
    count = pa.int64() if name == "json-schema" else pa.int32()
    rows = pa.StructArray.from_arrays(
        [
            pa.array([f"order-{n}" for n in range(ROWS)]),
            pa.array([n / 4 for n in range(ROWS)]),
            pa.array([n % 1000 for n in range(ROWS)], count),
            pa.array(range(ROWS), pa.timestamp("us", "UTC")),
        ],
        names=["id", "price", "n", "at"],
    )
    with registry_double() as double:
        form = PartFormat(part="value", name=name, url=double.url)
        typed = ValueWriter(form, "orders", text)
        reader = part_reader(form, "orders")
        writer = part_writer(form, "orders", reader.spark_type)
        written = writer.write(rows)
        assert reader.read(written)[0].equals(rows)
        single, some = ValueReader(form), written[:SINGLE_ROWS].to_pylist()
        texts = [single.text_of(one) for one in some]
        return {
            "columns read": ROWS / _seconds(lambda: reader.read(written)),
            "columns written": ROWS / _seconds(lambda: writer.write(rows)),
            "JSON read": SINGLE_ROWS / _seconds(lambda: [single.text_of(one) for one in some]),
            "JSON written": SINGLE_ROWS / _seconds(lambda: [typed.bytes_of(one) for one in texts]),
        }


def _seconds(work: Callable[[], object]) -> float:
    best = float("inf")
    for _ in range(TRIES):
        started = time.process_time()
        work()
        best = min(best, time.process_time() - started)
    return best


if __name__ == "__main__":
    main()
