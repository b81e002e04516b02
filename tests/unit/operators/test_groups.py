"""Where a group goes on, and how far it is."""

import pytest

from tidelog.errors import InvalidRequest
from tidelog.model import TopicPartition
from tidelog.operators.group_coordinators import GroupFound, Member, require_stopped
from tidelog.operators.groups import ResetWanted, progress_of, target

T0 = TopicPartition("t", 0)


def test_a_group_with_members_is_left_alone():
    member = Member(member="m", instance=None, client="c", host="/h", assignment=[], assignment_bytes=0)
    found = GroupFound(group="g", state="Stable", members=[member])

    with pytest.raises(Exception, match=r"group 'g': it has 1 member \(Stable\); stop its consumers first"):
        require_stopped(found)


@pytest.mark.parametrize(
    ("committed", "end", "lag"), [(3, 10, 7), (10, 10, 0), (12, 10, 0), (None, 10, None), (3, None, None)]
)
def test_lag_is_what_lies_between_the_offset_and_the_end(committed, end, lag):
    assert progress_of(T0, committed, end, None).lag == lag


def test_what_has_no_offset_cannot_be_shifted():
    with pytest.raises(InvalidRequest, match="no offset in t-0 that could be shifted"):
        target(ResetWanted(group="g", topic="t", shift=-1), T0, None, 10, None)


@pytest.mark.parametrize(
    ("asked", "before", "at_time", "after"),
    [
        ({"to": "latest"}, 3, None, 10),
        ({"to": "current"}, 3, None, 3),
        ({"to": "current"}, None, None, 10),
        ({"time_ms": 5}, 3, 7, 7),
        ({"time_ms": 5}, 3, -1, 10),
        ({"shift": -5}, 3, None, -2),
    ],
)
def test_a_group_goes_on_where_it_is_told_to(asked, before, at_time, after):
    assert target(ResetWanted(group="g", topic="t", **asked), T0, before, 10, at_time) == after
