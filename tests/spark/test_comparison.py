"""What Spark finds in rows that were made up: each kind of difference, and none where none is."""

from collections.abc import Sequence

import pyarrow as pa
import pytest

from tidelog.spark.audit.compare import Comparison, to_arrow
from tidelog.spark.audit.contents import CONTENT
from tidelog.spark.audit.found import Found
from tidelog.spark.audit.plan import AuditPlan, Replica
from tidelog.spark.audit.walk import Kind, Row

pytestmark = pytest.mark.slow

NODES = (1, 2, 3)


def batch(topic: str, node: int, first: int, *, epoch: int = 1, crc: int = 0, count: int = 10) -> Row:
    return Row(
        topic,
        0,
        node,
        Kind.BATCH,
        first,
        first + count - 1,
        leader_epoch=epoch,
        crc=crc or first,
        records=count,
        bytes=100,
    )


def records(topic: str, node: int, contents: Sequence[dict[str, object]]) -> Row:
    return batch(topic, node, 0, count=100)._replace(contents=pa.array(contents, CONTENT))


def content(offset: int, key: int, *, is_tombstone: bool = False, what: int = 7) -> dict[str, object]:
    return {"offset": offset, "key": key, "content": what, "is_tombstone": is_tombstone}


ROWS = [
    *(batch("same", node, first) for node in NODES for first in (0, 10, 20)),
    *(batch("gap", node, first) for node in (1, 3) for first in (0, 10, 20)),
    *(batch("gap", 2, first) for first in (0, 20)),
    *(batch("short", node, first) for node in NODES for first in (0, 10, 20)[: 4 - node]),
    *(batch("other", node, first, crc=4 + node // 3) for node in NODES for first in (0, 20)),
    batch("order", 1, 0, epoch=3),
    batch("order", 1, 10, epoch=2),
    batch("order", 1, 15, epoch=3),
    # Node 2 has one that is bad, and a good one when it was asked again; node 3 has none.
    batch("bad", 2, 0),
    Row("bad", 0, 2, Kind.BAD, 0, 9, problem="checksum"),
    Row("bad", 0, 3, Kind.UNREADABLE, 0, 9, problem="disk"),
    Row("bad", 0, 1, Kind.DELETED, 0, 9),
    # Nodes 1 and 2 have cleaned differently; both are right.
    records("paces", 1, [content(1, 1), content(5, 1), content(6, 2)]),
    records("paces", 2, [content(5, 1), content(6, 2), content(7, 3, is_tombstone=True)]),
    # Node 2 lacks the newest of key 2; it has another record of key 1.
    records("lost", 1, [content(5, 1), content(6, 2)]),
    records("lost", 2, [content(2, 2), content(5, 1, what=8)]),
    # Node 2 has a newer one of key 4 behind what was audited.
    records("newer", 1, [content(1, 5), content(3, 4)]),
    records("newer", 2, [content(1, 5)]),
]

LATER = [records("newer", 2, [content(200, 4)])]


def plan() -> AuditPlan:
    ends = {"same": 30, "gap": 30, "short": 30, "other": 30, "order": 25, "bad": 10}
    topics = {row.topic: ends.get(row.topic, 100) for row in ROWS}
    present = {(row.topic, row.replica) for row in ROWS}
    return AuditPlan(
        cluster_id="c",
        replicas=tuple(
            Replica(topic=topic, partition=0, node=node, is_leader=node == 1, is_in_sync=True, end=end)
            for topic, end in topics.items()
            for node in NODES
            if (topic, node) in present
        ),
        compacted=frozenset({"paces", "lost", "newer"}),
    )


@pytest.fixture(scope="module")
def comparison(shared_spark) -> Comparison:
    rows = shared_spark.createDataFrame(pa.Table.from_batches([to_arrow(ROWS)]))
    return Comparison(shared_spark, rows, plan())


@pytest.fixture(scope="module")
def found(comparison) -> Found:
    return comparison.all(comparison.seen())


def test_gaps_are_found_inside_and_at_the_end_and_who_holds_them(found):
    inside, *at_end = [gap for gap in found.gaps if gap.topic in ("gap", "short")]

    assert inside[:5] == ("gap", 0, 2, 10, 19)
    assert (inside.held_first, inside.held_last, inside.held_by) == (10, 19, [1, 3])
    assert [gap[:5] for gap in at_end] == [("short", 0, 2, 20, 29), ("short", 0, 3, 10, 29)]


def test_a_gap_that_all_have_is_held_by_nobody(found):
    gaps = [gap for gap in found.gaps if gap.topic == "other"]

    assert [(gap.replica, gap.first, gap.held_by) for gap in gaps] == [(node, 10, []) for node in NODES]


def test_batches_that_differ_are_told_with_who_holds_which(found):
    disputes = [one for one in found.disputes if one.topic == "other"]

    assert [one.first for one in disputes] == [0, 20]
    assert disputes[0].held[1] == disputes[0].held[2] != disputes[0].held[3]
    assert {one.topic for one in found.disputes} == {"other", "lost"}


def test_an_older_epoch_and_an_overlap_are_disorder(found):
    assert [(one.first, one.epoch, one.epoch_before) for one in found.disorders] == [(10, 2, 3), (15, 3, 2)]


def test_a_bad_batch_is_mended_where_a_good_one_came_then(found):
    assert [(one.replica, one.kind, one.is_mended) for one in found.bad] == [
        (2, Kind.BAD, True),
        (3, Kind.UNREADABLE, False),
    ]


def test_compacted_replicas_may_differ_in_all_but_the_newest_of_a_key(comparison, found, spark):
    assert [one[:4] for one in found.lost] == [("lost", 0, 2, 6), ("newer", 0, 2, 3)]
    assert found.lost[0].held_by == [1]
    (dispute,) = [one for one in found.disputes if one.topic == "lost"]
    assert (dispute.first, sorted(dispute.held)) == (5, [1, 2])

    later = spark.createDataFrame(pa.Table.from_batches([to_arrow(LATER)]))
    assert [one[:4] for one in comparison.lost(later)] == [("lost", 0, 2, 6)]


def test_how_much_was_seen_is_counted(found):
    seen = {(one.topic, one.replica): one for one in found.seen}

    assert seen["same", 1][3:] == (3, 30, 300)
    assert seen["bad", 2].batches == 1
