"""`python -m benchmarks.avro`: Avro values of a schema registry as columns and back, on one core.

The time is that of the processor, so that other work on the machine does not count.
"""

import json
import time
from typing import Final

import pyarrow as pa

from tests.unit.schemas.double import registry_double
from tidelog.schemas.formats import PartFormat
from tidelog.spark.registered import part_reader, part_writer

ROWS: Final = 100_000
TRIES: Final = 3
ORDER: Final = {
    "type": "record", "name": "Order", "fields": [
        {"name": "id", "type": "string"}, {"name": "price", "type": "double"},
        {"name": "n", "type": "int"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
    ],
}  # fmt: skip


def main() -> None:
    rows = pa.StructArray.from_arrays(
        [
            pa.array([f"order-{n}" for n in range(ROWS)]), pa.array([n / 4 for n in range(ROWS)]),
            pa.array([n % 1000 for n in range(ROWS)], pa.int32()),
            pa.array(range(ROWS), pa.timestamp("us", "UTC")),
        ],
        names=["id", "price", "n", "at"],
    )  # fmt: skip
    with registry_double() as double:
        form = PartFormat(part="value", name="avro", url=double.url)
        double.answer("POST", "/subjects/orders-value/versions", {"schema": json.dumps(ORDER)})
        reader = part_reader(form, "orders")
        writer = part_writer(form, "orders", reader.spark_type)
        written = writer.write(rows)
        assert reader.read(written)[0].equals(rows)
        read_seconds = min(_timed(lambda: reader.read(written)) for _ in range(TRIES))
        write_seconds = min(_timed(lambda: writer.write(rows)) for _ in range(TRIES))
    print(f"read {ROWS / read_seconds:,.0f} rows/s, written {ROWS / write_seconds:,.0f} rows/s")


def _timed(work) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started


if __name__ == "__main__":
    main()
