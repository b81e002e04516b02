import pytest

from tidelog.client.cluster import PartitionInfo, TopicInfo
from tidelog.faces.cli.promote import heirs, lost, risk
from tidelog.model import TopicPartition


def topic(name, *partitions):
    """Partitions are (leader, replicas, in sync)."""
    return TopicInfo(
        name=name,
        id=None,
        internal=False,
        partitions=tuple(
            PartitionInfo(partition=number, leader=leader, epoch=0, replicas=all_, in_sync=in_sync)
            for number, (leader, all_, in_sync) in enumerate(partitions)
        ),
    )


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ((), "say what to promote, once"),
        (("t", "--all-from", 2), "say what to promote, once"),
        (("--all-from", 2, "--to", 3), "--all-from goes with neither"),
        (("--all-from", 2, "--force"), "--all-from goes with neither"),
    ],
)
def test_a_promotion_that_says_too_little_or_too_much_is_refused(tidelog, arguments, why):
    result = tidelog("promote", *arguments)

    assert (result.code, result.out) == (1, "")
    assert why in result.err and result.err.count("\n") == 1


# Handing over.


def test_what_a_broker_leads_is_handed_over_evenly_to_those_in_sync():
    everywhere = (1, (1, 2, 3), (1, 2, 3))
    found, alone = heirs([topic("t", *[everywhere] * 4)], 1, [1, 2, 3])

    assert sorted(found.values()) == [2, 2, 3, 3]  # type: ignore[type-var]
    assert alone == []


def test_leads_that_others_have_already_count():
    found, _ = heirs([topic("t", (2, (2, 3), (2, 3)), (1, (1, 2, 3), (1, 2, 3)))], 1, [1, 2, 3])

    assert found == {TopicPartition("t", 1): 3}


def test_one_that_is_behind_gets_the_lead_only_where_nobody_is_in_sync():
    one_of_two, behind = (1, (1, 2, 3), (1, 3)), (1, (1, 2), (1,))
    found, _ = heirs([topic("t", one_of_two, behind)], 1, [1, 2, 3])

    assert found == {TopicPartition("t", 0): 3, TopicPartition("t", 1): 2}


def test_what_nobody_else_holds_or_who_does_is_away_is_told():
    found, alone = heirs([topic("t", (1, (1,), (1,)), (1, (1, 4), (1,)))], 1, [1, 2, 3])

    assert found == {}
    assert alone == [TopicPartition("t", 0), TopicPartition("t", 1)]


# What may be lost.


def prospect(**changes):
    return {
        "topic": "t",
        "partition": 0,
        "leader": 2,
        "clean": False,
        "end": 120,
        "last_epoch": 4,
        "longest": {"node": 1, "end": 1500, "last_epoch": 4},
        "high_watermark": 140,
        "records_lost_max": 1380,
        "unknown": [],
    } | changes


def test_the_targets_end_is_told_against_the_longest_and_the_watermark():
    text = risk(prospect())

    assert text == (
        "t-0: broker 2 ends at 120, the longest known end is broker 1's, 1,500: 1,380 records may "
        "be lost, of which 20 were committed"
    )


def test_what_is_not_known_is_said_to_be_so():
    assert "is not known" in risk(prospect(end=None, longest=None))
    assert "of brokers 3, 4 nothing is known" in risk(prospect(unknown=[3, 4]))
    assert "goes further" in risk(prospect(records_lost_max=0, high_watermark=100))


def test_epochs_that_differ_are_told():
    longest = {"node": 1, "end": 130, "last_epoch": 6}

    assert "of epoch 4, broker 1's of 6" in risk(prospect(longest=longest, records_lost_max=10))


@pytest.mark.parametrize(
    ("clean", "count", "text"), [(True, 0, "0"), (False, None, "not known"), (False, 7, "7 or")]
)
def test_losses_are_told_in_a_word(clean, count, text):
    assert text in lost({"clean": clean, "records_lost_max": count})


# Elections.


def test_an_unclean_election_is_not_held_without_a_word(tidelog):
    result = tidelog("elect", "unclean")

    assert (result.code, result.out) == (1, "")
    assert "--yes" in result.err and "cannot be undone" in result.err


@pytest.mark.parametrize("kind", ["preferred", "unclean"])
def test_a_partition_is_one_of_a_topic(tidelog, kind):
    arguments = ["--yes"] if kind == "unclean" else []

    result = tidelog("elect", kind, "--partition", 0, *arguments)

    assert result.code == 2 and "needs --topic" in result.err
