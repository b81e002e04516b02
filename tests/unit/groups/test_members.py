from typing import Any

import pytest

from tidelog.groups.members import Member, Roster


def member(member_id: str, *names: str, **fields: Any) -> Member:
    values: dict[str, Any] = {
        "instance_id": None,
        "client_id": "app",
        "client_host": "/h",
        "session_timeout_ms": 1,
        "rebalance_timeout_ms": 1,
        "protocols": tuple((name, name.encode()) for name in names),
    }
    return Member(id=member_id, **{**values, **fields})


def roster(*members: Member) -> Roster:
    made = Roster()
    for each in members:
        made.add(each)
        made.assert_invariants()
    return made


@pytest.mark.parametrize(
    ("wishes", "chosen"),
    [
        (["ab", "ab", "ba"], "a"),
        (["ab", "ba", "ba"], "b"),
        (["ab", "b", "b"], "b"),  # only b is spoken by all
        (["abc", "cba", "bc"], "b"),  # c and b are common; the first votes b, the last too
        (["ab", "ba"], "a"),  # equal votes: who came first
    ],
)
def test_the_chosen_protocol_is_common_and_liked(wishes, chosen):
    made = roster(*(member(str(number), *names) for number, names in enumerate(wishes)))

    assert made.choose_protocol() == chosen


def test_the_first_leads_and_the_next_in_line_follows():
    first, second = member("1", "a"), member("2", "a")
    made = roster(first, second)
    leaders = [made.leader]
    for each in (first, second):
        made.remove(each)
        made.assert_invariants()
        leaders.append(made.leader)

    assert leaders == ["1", "2", None]


def test_only_who_has_joined_is_elected():
    first, second = member("1", "a"), member("2", "a")
    made = roster(first, second)
    assert not made.elect_joined_leader()

    made.wait_to_join(second, "reply")
    assert made.elect_joined_leader()

    assert made.leader == "2"


def test_an_empty_roster_speaks_everything_but_nothing_at_all():
    assert Roster().speaks_any((("a", b""),))
    assert not Roster().speaks_any(())
