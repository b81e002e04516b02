from typing import Any

import pytest

from tests.unit.faces.cli.test_promote import topic
from tidelog.faces.cli.replication import (
    _merge,
    _notes,
    _scrubs,
    away_for,
    bar,
    copies_without,
    is_whole,
    seconds,
    size,
    unled_of,
)
from tidelog.model import NO_NODE


def part(node: int, followers: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    catch_up = {"running": more.pop("running", []), "ended": []}
    return {"node": node, "followers": followers, "behind": [], "leading": [], "catch_up": catch_up, **more}


def counts(node: int, *, behind: int = 0, records: int = 0) -> dict[str, Any]:
    return {
        "node": node,
        "replicas": 4,
        "in_sync": 4 - behind,
        "catching_up": behind,
        "behind": behind,
        "lag_records": records,
        "lag_bytes": records * 100,
    }


def late(node: int, topic: str) -> dict[str, Any]:
    return {"node": node, "topic": topic, "partition": 0, "state": "catching_up"}


def test_what_leaders_say_of_a_broker_is_added_up():
    found = _merge(
        [part(1, [counts(2), counts(3, behind=1, records=7)]), part(2, [counts(3, records=5)])],
        {},
        None,
        None,
    )

    assert [(one["node"], one["replicas"], one["lag_records"]) for one in found["replicas"]] == [
        (2, 4, 0),
        (3, 8, 12),
    ]


def test_one_broker_may_be_asked_for():
    parts = [part(1, [counts(2), counts(3)], behind=[late(2, "a"), late(3, "a")])]

    found = _merge(parts, {}, 3, None)

    assert [one["node"] for one in found["replicas"]] == [3]
    assert [one["node"] for one in found["behind"]] == [3]


def test_a_broker_that_is_behind_and_not_listed_is_not_in_sync():
    # A leader lists so many that are behind and counts all of them.
    parts = [part(1, [counts(2, behind=1), counts(3, behind=1)], behind=[late(2, "a")])]

    assert not is_whole(_merge(parts, {}, 3, None))


def test_of_one_topic_its_followers_are_counted():
    followers = [
        {"node": 3, "state": "in_sync", "in_sync": True, "lag_records": 0, "lag_bytes": 0},
        {"node": 2, "state": "away", "in_sync": False, "lag_records": None, "lag_bytes": None},
    ]
    led = {"topic": "a", "partition": 0, "followers": followers}

    found = _merge([part(1, [counts(9)], leading=[led], behind=[late(5, "b")])], {}, None, ["a"])

    assert [(one["node"], one["behind"]) for one in found["replicas"]] == [(2, 1), (3, 0)]
    assert [(one["topic"], one["node"]) for one in found["behind"]] == [("a", 2)]


@pytest.mark.parametrize(
    ("more", "silent", "whole"),
    [
        ({}, {}, True),
        ({"behind": [late(3, "a")]}, {}, False),
        ({"running": [late(3, "a")]}, {}, False),
        ({}, {2: "down or cut off"}, True),
        ({}, {2: "the partitions that it leads are not shown: no answer"}, False),
    ],
)
def test_all_is_well_if_nothing_is_behind_and_every_leader_was_heard(more, silent, whole):
    found = _merge([part(1, [counts(3)], **more)], silent, None, None)

    assert is_whole(found) is whole
    assert ("all replicas are in sync" in _notes(found)) is whole


def test_figures_are_for_people():
    assert bar(0.5, width=4) == "██░░  50%"
    assert [size(value) for value in (0, 999, 1500, 2_500_000, 7e12)] == [
        "0 B",
        "999 B",
        "1.5 kB",
        "2.5 MB",
        "7.0 TB",
    ]
    assert [seconds(value) for value in (5, 65, 3725)] == ["0:05", "1:05", "1:02:05"]


def test_what_nobody_leads_is_not_well_and_is_told_with_what_to_do():
    known = [topic("t", (1, (1, 2), (1, 2)), (NO_NODE, (2, 3), (2,))), topic("u", (NO_NODE, (1,), (1,)))]
    found = _merge([], {}, None, None)

    unled = unled_of([one for one in known if one.name == "t"], None)

    assert unled == [{"topic": "t", "partition": 1, "replicas": (2, 3)}]
    assert len(unled_of(known, None)) == 2
    assert unled_of([one for one in known if one.name == "t"], 1) == []
    assert is_whole(found)
    assert not is_whole(found | {"unled": unled})
    assert any("tidelog promote t" in line for line in _notes(found | {"unled": unled}))


def test_a_broker_that_is_down_is_told_with_the_time_that_it_has_been_away():
    behind = [late(2, "a") | {"level_ms_ago": age} for age in (9_000, 61_000, 3_600_000)]
    behind.append(late(3, "a") | {"level_ms_ago": 1000})

    assert away_for(behind, 2) == " for about 1:01"
    assert away_for(behind, 4) == ""


def test_a_broker_that_is_down_is_told_with_the_copies_that_are_left():
    known = [
        topic("t", (1, (1, 2, 3), (1, 3)), (1, (1, 2, 3), (1, 3))),
        topic("u", (3, (2, 3), (3,)), (1, (1, 3), (1, 3))),
    ]

    assert copies_without(known, 2) == (
        "this leaves 1 partition with 1 of 2 copies, 2 partitions with 2 of 3 copies"
    )
    assert "holds nothing" in copies_without(known, 4)


def scrub(**more: Any) -> dict[str, Any]:
    return {
        "state": "waiting",
        "cycle": 3,
        "bytes_read": 1_500_000,
        "ended_ms_ago": 61_000,
        "found": 2,
        "healed": 1,
        "rotten": 1,
        "rot": [],
        **more,
    }


def test_rot_that_is_not_healed_is_named_with_the_reason():
    rot = {
        "topic": "orders",
        "partition": 4,
        "offset": 17,
        "what": "its checksum does not match",
        "why": "there is no other replica",
    }
    parts = [part(1, [counts(2)], scrub=scrub()), part(2, [], scrub=scrub(rot=[rot])), part(3, [])]

    found = _merge(parts, {}, None, None)

    assert _scrubs(found)[1] == [
        [1, "waiting", 3, "1.5 MB", "1:01 ago", 2, 1, 1],
        [2, "waiting", 3, "1.5 MB", "1:01 ago", 2, 1, 1],
    ]
    assert _notes(found)[0] == (
        "broker 2: orders-4 is rotten at offset 17: its checksum does not match; "
        "not healed yet: there is no other replica"
    )
    assert [one["node"] for one in _merge(parts, {}, 1, None)["scrubs"]] == [1]
