"""What was told of replicas, and what that means."""

import pytest

from tidelog.spark.audit.found import Bad, Disorder, Dispute, Found, Gap, Lost, Seen
from tidelog.spark.audit.judging import Fault, Outcome, judge, right_of
from tidelog.spark.audit.plan import AuditPlan, Replica
from tidelog.spark.audit.walk import Kind

STILL = {("t", 0, node) for node in (1, 2, 3)}
NOTHING = Found([], [], [], [], [], [])


def plan(**problems: str) -> AuditPlan:
    replicas = [
        Replica(
            topic="t",
            partition=0,
            node=node,
            is_leader=node == 1,
            is_in_sync=True,
            end=100,
            problem=problems.get(f"of_{node}", ""),
        )
        for node in (1, 2, 3)
    ]
    return AuditPlan(cluster_id="c", replicas=tuple(replicas), compacted=frozenset())


def bad(kind: Kind, *, is_mended: bool = False) -> Bad:
    return Bad("t", 0, 2, kind, 10, 19, "why", is_mended, 1)


def test_replicas_that_agree_are_clean():
    seen = [Seen("t", 0, node, 5, 50, 500) for node in (1, 2, 3)]

    verdict = judge(plan(), NOTHING._replace(seen=seen), STILL)

    assert verdict.outcome is Outcome.CLEAN
    assert verdict.outcome.exit_code == 0
    assert verdict.seen["t", 0, 2].records == 50


@pytest.mark.parametrize(("kind", "fault"), [(Kind.BAD, Fault.CORRUPT), (Kind.UNREADABLE, Fault.UNREADABLE)])
def test_damage_is_named_by_topic_partition_node_and_offset(kind, fault):
    verdict = judge(plan(), NOTHING._replace(bad=[bad(kind)]), STILL)

    (found,) = verdict.findings
    assert (found.topic, found.partition, found.node) == ("t", 0, 2)
    assert (found.first, found.last, found.fault) == (10, 19, fault)
    assert verdict.outcome.exit_code == 1


def test_what_was_mended_meanwhile_is_still_a_finding():
    verdict = judge(plan(), NOTHING._replace(bad=[bad(Kind.BAD, is_mended=True)]), STILL)

    assert "mended" in verdict.findings[0].detail


def test_a_replica_that_could_not_be_read_is_no_finding_but_the_audit_is_not_whole():
    for told in (
        judge(plan(), NOTHING._replace(bad=[bad(Kind.UNREACHABLE)]), STILL),
        judge(plan(of_2="its broker is not there"), NOTHING, STILL),
    ):
        assert told.findings == ()
        assert [(one.node, one.is_gone) for one in told.unread] == [(2, False)]
        assert told.outcome is Outcome.INCOMPLETE
        assert told.outcome.exit_code == 2


def test_a_replica_that_is_gone_by_now_need_not_be_read():
    without = STILL - {("t", 0, 2)}
    found = NOTHING._replace(bad=[bad(Kind.UNREACHABLE)], gaps=[Gap("t", 0, 2, 5, 9, None, None, [], 1)])

    verdict = judge(plan(), found, without)

    assert verdict.outcome is Outcome.CLEAN
    assert verdict.unread[0].is_gone


def test_findings_outweigh_what_could_not_be_read():
    found = NOTHING._replace(bad=[bad(Kind.BAD)])

    assert judge(plan(of_3="away"), found, STILL).outcome is Outcome.FINDINGS


def test_a_gap_says_who_holds_what_is_missing():
    found = NOTHING._replace(gaps=[Gap("t", 0, 3, 5, 9, 5, 9, [1, 2], 1)])

    (missing,) = judge(plan(), found, STILL).findings

    assert (missing.node, missing.fault, missing.offsets) == (3, Fault.MISSING, "5..9")
    assert "nodes 1, 2 hold 5..9" in missing.detail


def test_a_gap_that_all_have_is_a_finding_too():
    gaps = [Gap("t", 0, node, 5, 9, None, None, [], 1) for node in (1, 2, 3)]

    assert len(judge(plan(), NOTHING._replace(gaps=gaps), STILL).findings) == 3


@pytest.mark.parametrize(
    ("last_before", "epoch_before", "said"), [(12, 3, "ends at 12"), (9, 4, "epoch is 3")]
)
def test_disorder_says_what_does_not_fit(last_before, epoch_before, said):
    one = Disorder("t", 0, 2, 10, 19, 3, last_before, epoch_before, 1)

    (found,) = judge(plan(), NOTHING._replace(disorders=[one]), STILL).findings

    assert said in found.detail


def test_the_odd_one_out_is_the_finding():
    one = Dispute("t", 0, 10, 19, {1: "a", 2: "b", 3: "b"}, 1)

    (found,) = judge(plan(), NOTHING._replace(disputes=[one]), STILL).findings

    assert (found.node, found.fault) == (1, Fault.DIFFERENT)
    assert "nodes 2, 3 hold b" in found.detail


@pytest.mark.parametrize(
    ("held", "right"),
    [
        ({1: "a", 2: "b"}, "a"),  # the leader
        ({2: "a", 3: "b"}, None),  # it was not read
        ({1: "a", 2: "b", 3: "c"}, "a"),
        ({1: "a", 2: "b", 3: "b"}, "b"),
    ],
)
def test_the_many_are_right_or_else_the_leader(held, right):
    assert right_of(held, leader=1) == right


def test_where_nobody_can_tell_all_are_named():
    one = Dispute("t", 0, 10, 19, {2: "a", 3: "b"}, 1)

    findings = judge(plan(), NOTHING._replace(disputes=[one]), STILL).findings

    assert [found.node for found in findings] == [2, 3]


def test_the_newest_record_of_a_key_is_lost_where_others_have_it():
    found = NOTHING._replace(lost=[Lost("t", 0, 2, 7, [1], 1)])

    (lost,) = judge(plan(), found, STILL).findings

    assert (lost.node, lost.first, lost.fault) == (2, 7, Fault.LOST)
    assert "node 1 holds it" in lost.detail
