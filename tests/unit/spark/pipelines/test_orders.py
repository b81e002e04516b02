"""The orders of the sample."""

import json
from datetime import datetime
from random import Random

from tidelog.records import Record
from tidelog.spark.pipelines.orders import REGIONS, order

NOW_MS = 1_800_000_000_000


def fields(record: Record) -> dict[str, object] | None:
    """What the order says; None if it is no order."""
    assert record.value is not None
    try:
        found: dict[str, object] = json.loads(record.value)
    except ValueError:
        return None
    return found if isinstance(found["total"], float) else None


def lateness(record: Record) -> float:
    found = fields(record)
    if found is None:
        return 0.0
    return NOW_MS / 1000 - datetime.fromisoformat(str(found["at"])).timestamp()


def test_some_orders_are_late_and_some_are_broken() -> None:
    random = Random(1)
    records = [order(random, number, NOW_MS) for number in range(10_000)]

    assert 50 < sum(fields(record) is None for record in records) < 200
    assert 100 < sum(0 < lateness(record) < 30 for record in records) < 300
    assert 20 < sum(lateness(record) > 60 for record in records) < 100


def test_orders_follow_from_the_numbers_and_the_time() -> None:
    once = [order(Random(7), number, NOW_MS) for number in range(3)]
    again = [order(Random(7), number, NOW_MS) for number in range(3)]

    assert once == again
    assert all(record.key is not None and record.key.decode() in REGIONS for record in once)
