"""Members of a group meet where its decision is; all others are where Kafka looks for them."""

import pytest

from tidelog.txn.placement import coordinator_key, group_of


@pytest.mark.parametrize(
    ("transactional_id", "key"),
    [
        ("orders", "orders"),
        ("orders.3", "orders.3"),
        ("", ""),
        ("spark.q.0", "spark.q"),
        ("spark.q.17", "spark.q"),
        ("spark.my.app.0", "spark.my.app"),
        ("spark.q.", "spark.q"),
        ("spark.q", "spark.q"),  # the group itself, so a driver finds it by its name
        ("spark.", "spark."),
        ("spark..0", "spark..0"),
        ("spark", "spark"),
        ("sparkling.q.0", "sparkling.q.0"),
    ],
)
def test_ids_of_spark_are_placed_by_all_before_their_last_dot(transactional_id, key):
    assert coordinator_key(transactional_id) == key
    assert group_of(transactional_id) == (key if key != transactional_id else None)
