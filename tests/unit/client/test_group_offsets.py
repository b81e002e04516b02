import asyncio
from types import SimpleNamespace

import pytest

from tidelog.client.admin import GroupInfo, MemberInfo
from tidelog.client.cluster import Refused
from tidelog.client.group_offsets import Progress, log_ends, require_stopped
from tidelog.model import TopicPartition


def test_a_group_with_members_is_left_alone():
    member = MemberInfo(
        member="m", instance=None, client="c", host="/h", assignment=(), assignment_bytes=0
    )
    info = GroupInfo(
        group="g", state="Stable", protocol_type="consumer", protocol="range", members=(member,)
    )

    with pytest.raises(Refused, match="stop its consumers first"):
        require_stopped("g", info)


@pytest.mark.parametrize(
    ("committed", "end", "lag"),
    [(3, 10, 7), (10, 10, 0), (12, 10, 0), (None, 10, None), (3, None, None)],
)
def test_lag_is_what_lies_between_the_offset_and_the_end(committed, end, lag):
    one = Progress(topic="t", partition=0, committed=committed, end=end, owner=None)

    assert one.lag == lag


def test_offsets_of_partitions_that_do_not_exist_have_no_end():
    class Client:
        async def topics(self):
            return [SimpleNamespace(name="t", partitions=(0, 1))]

        async def list_offsets(self, topic, times_ms):
            assert (topic, set(times_ms)) == ("t", {1})
            return {1: SimpleNamespace(offset=8)}

    places = [("gone", 0), ("t", -1), ("t", 1), ("t", 2)]
    asked = [TopicPartition(topic, number) for topic, number in places]

    ends = asyncio.run(log_ends(Client(), asked))  # type: ignore[arg-type]

    assert ends == {TopicPartition("t", 1): 8}
