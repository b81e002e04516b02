"""Which record of a group may follow which, and what its members may be told."""

from typing import Any

import pytest

from tidelog.groups.records import GroupRecord, GroupWritten, MemberRecord
from tidelog.simulation.group_watch import OWNER, RISES, STORED, GroupWatch


class Found(Exception):
    """An invariant was broken."""


class Bystander:
    """A world and its replicas, as far as a watch asks for them."""

    def __init__(self):
        self.machines = {}
        self.on_committed = []

    def find(self, name, problem):
        raise Found(name)

    fail = find


def a_watch(*records):
    bystander: Any = Bystander()
    watch = GroupWatch(bystander, bystander)
    for record in records:
        watch.written(GroupWritten(group_id="g", value=record))
    return watch


def a_generation(number, **shares):
    return GroupRecord(
        protocol_type="story",
        generation=number,
        protocol="shares",
        leader=None,
        state_since_ms=0,
        members=tuple(
            [
                MemberRecord(
                    member_id=member,
                    instance_id=None,
                    client_id="",
                    client_host="",
                    rebalance_timeout_ms=1,
                    session_timeout_ms=1,
                    subscription=b"",
                    assignment=share,
                )
                for member, share in shares.items()
            ]
        ),
    )


def test_a_group_that_was_removed_counts_its_generations_anew():
    watch = a_watch(a_generation(3, old=b"\0"))
    watch.told("g", 3, "old", b"\0")

    for record in (a_generation(4), None, a_generation(3, new=b"\0")):
        watch.written(GroupWritten(group_id="g", value=record))

    watch.told("g", 3, "new", b"\0")
    watch.told("g", 3, "old", b"\0")  # what it was told before may reach it late


@pytest.mark.parametrize("number", [2, 3])
def test_a_group_that_was_not_removed_never_has_a_generation_again(number):
    with pytest.raises(Found, match=RISES):
        a_watch(a_generation(3, old=b"\0"), a_generation(number, new=b"\0"))


def test_a_partition_has_one_owner_in_a_generation():
    watch = a_watch(a_generation(3, one=b"\0\1", other=b"\1"))
    watch.told("g", 3, "one", b"\0\1")
    watch.told("g", 3, "one", b"\0\1")

    with pytest.raises(Found, match=OWNER):
        watch.told("g", 3, "other", b"\1")


@pytest.mark.parametrize(
    ("generation", "member", "share"), [(3, "one", b"\1"), (3, "other", b"\0"), (4, "one", b"\0")]
)
def test_a_member_is_told_what_is_stored(generation, member, share):
    watch = a_watch(a_generation(3, one=b"\0"))

    with pytest.raises(Found, match=STORED):
        watch.told("g", generation, member, share)
