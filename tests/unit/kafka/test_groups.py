import asyncio
from typing import Any

import pytest

from tests.unit.broker.node import Machine, on_a_node
from tests.unit.groups.desk import subscription
from tests.unit.wire.messages import read_response
from tidelog.wire.apis import APIS, Api

UNKNOWN_TOPIC_OR_PARTITION, LOAD_IN_PROGRESS, ILLEGAL_GENERATION = 3, 14, 22
UNKNOWN_MEMBER_ID = 25
GROUP_ID_NOT_FOUND, MEMBER_ID_REQUIRED, GROUP_MAX_SIZE_REACHED = 69, 79, 81
GROUP_SUBSCRIBED_TO_TOPIC = 86

JOIN_VERSION, MIB = 5, 1024 * 1024
METADATA = subscription("t")


async def found(node) -> None:
    """Ask where groups are, as every client does first."""
    answer = await node.ask(Api.FIND_COORDINATOR, 2, key="g", key_type=0)
    assert answer.error_code == 0
    while (await describe(node)).error_code == LOAD_IN_PROGRESS:
        await asyncio.sleep(0.01)


async def describe(node) -> Any:
    (group,) = (await node.ask(Api.DESCRIBE_GROUPS, 5, groups=["g"])).groups
    return group


def start_join(node, member_id="", *, metadata=METADATA) -> Any:
    fields = {
        "group_id": "g",
        "session_timeout": 10_000,
        "rebalance_timeout": 30_000,
        "member_id": member_id,
        "group_instance_id": None,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": metadata}],
    }
    return node.send(Api.JOIN_GROUP, JOIN_VERSION, fields)


async def joined(place) -> Any:
    return read_response(Api.JOIN_GROUP, JOIN_VERSION, await place.body)


async def join(node, member_id="", **options) -> Any:
    answer = await joined(start_join(node, member_id, **options))
    if answer.error_code == MEMBER_ID_REQUIRED:
        answer = await joined(start_join(node, answer.member_id, **options))
    return answer


async def sync(node, member, generation, *, share=b"") -> Any:
    return await node.ask(
        Api.SYNC_GROUP,
        3,
        group_id="g",
        generation_id=generation,
        member_id=member,
        group_instance_id=None,
        assignments=[{"member_id": member, "assignment": share}],
    )


async def heartbeat(node, member, generation) -> int:
    answer = await node.ask(
        Api.HEARTBEAT, 3, group_id="g", generation_id=generation, member_id=member, group_instance_id=None
    )
    return answer.error_code


async def commit(node, offset, *, topic="t", partition=0, member="", generation=-1) -> int:
    """Commit one offset; the error's code."""
    place = {
        "partition_index": partition,
        "committed_offset": offset,
        "committed_metadata": "",
        "committed_leader_epoch": -1,
    }
    answer = await node.ask(
        Api.OFFSET_COMMIT,
        8,
        group_id="g",
        member_id=member,
        group_instance_id=None,
        generation_id_or_member_epoch=generation,
        topics=[{"name": topic, "partitions": [place]}],
    )
    return answer.topics[0].partitions[0].error_code


async def committed(node) -> dict[tuple[str, int], int]:
    answer = await node.ask(Api.OFFSET_FETCH, 7, group_id="g", topics=None, require_stable=False)
    return {
        (topic.name, one.partition_index): one.committed_offset
        for topic in answer.topics
        for one in topic.partitions
    }


async def delete_offsets(node, *places) -> Any:
    """Delete (topic, partition)s; the error of the request and those of the partitions."""
    answer = await node.ask(
        Api.OFFSET_DELETE,
        0,
        group_id="g",
        topics=[{"name": t, "partitions": [{"partition_index": p}]} for t, p in places],
    )
    codes = {
        (topic.name, one.partition_index): one.error_code
        for topic in answer.topics
        for one in topic.partitions
    }
    return answer.error_code, codes


# Offsets.


def test_deleting_offsets_of_unknown_partitions_is_refused_one_by_one():
    async def story(node):
        await node.create("t", partitions=2)
        await found(node)
        for partition in range(2):
            assert await commit(node, 5, partition=partition) == 0

        places = [("nowhere", 0), ("t", 0), ("t", 2), ("t", -1)]
        error, codes = await delete_offsets(node, *places)

        unknown = UNKNOWN_TOPIC_OR_PARTITION
        assert error == 0
        assert codes == {("nowhere", 0): unknown, ("t", 0): 0, ("t", 2): unknown, ("t", -1): unknown}
        assert await committed(node) == {("t", 1): 5}

    on_a_node(story)


def test_an_unknown_group_is_told_of_before_unknown_partitions():
    async def story(node):
        await found(node)
        assert await delete_offsets(node, ("nowhere", 0)) == (GROUP_ID_NOT_FOUND, {})

    on_a_node(story)


def test_offsets_of_a_topic_that_a_member_consumes_are_not_deleted():
    async def story(node):
        await node.create("t")
        await node.create("other")
        await found(node)
        for topic in ("t", "other"):
            assert await commit(node, 5, topic=topic) == 0
        assert (await join(node)).error_code == 0

        error, codes = await delete_offsets(node, ("t", 0), ("other", 0), ("nowhere", 0))

        assert error == 0
        assert codes == {
            ("t", 0): GROUP_SUBSCRIBED_TO_TOPIC,
            ("other", 0): 0,
            ("nowhere", 0): UNKNOWN_TOPIC_OR_PARTITION,
        }

    on_a_node(story)


@pytest.mark.parametrize("offset", [-1, -2, -(2**63)])
def test_a_negative_offset_is_kept_as_kafka_keeps_it(offset):
    """Clients refuse it before they ask; read back, it is none of theirs, so they reset."""
    machine = Machine()

    async def write(node):
        await node.create("t")
        await found(node)
        assert await commit(node, offset) == 0
        assert await committed(node) == {("t", 0): offset}

    async def read(node):
        await found(node)
        assert await committed(node) == {("t", 0): offset}

    machine.live(write)
    machine.live(read)


# Members that mean no good.


def test_a_stale_generation_moves_nothing():
    async def story(node):
        await node.create("t")
        await found(node)
        first = await join(node)
        member, old = first.member_id, first.generation_id
        assert (await sync(node, member, old)).error_code == 0
        new = (await join(node, member)).generation_id  # the leader asks for a rebalance
        assert (await sync(node, member, new)).error_code == 0

        for stale in (old, new + 1, 0, 2**31 - 1):
            assert await heartbeat(node, member, stale) == ILLEGAL_GENERATION
            assert (await sync(node, member, stale)).error_code == ILLEGAL_GENERATION
            code = await commit(node, 7, member=member, generation=stale)
            assert code == ILLEGAL_GENERATION

        assert await committed(node) == {}
        assert await heartbeat(node, member, new) == 0

    on_a_node(story)


def test_a_stranger_commits_nothing_while_there_are_members():
    async def story(node):
        await node.create("t")
        await found(node)
        first = await join(node)
        member, generation = first.member_id, first.generation_id
        assert (await sync(node, member, generation)).error_code == 0

        for who, when in (("", -1), ("", generation), ("stranger", generation), ("stranger", -1)):
            assert await commit(node, 7, member=who, generation=when) == UNKNOWN_MEMBER_ID
        assert await heartbeat(node, "stranger", generation) == UNKNOWN_MEMBER_ID
        assert (await join(node, "stranger")).error_code == UNKNOWN_MEMBER_ID

        assert await committed(node) == {}
        assert await commit(node, 7, member=member, generation=generation) == 0

    on_a_node(story)


def test_a_megabyte_of_metadata_comes_to_the_leader_and_survives():
    machine = Machine()
    metadata = subscription("t") + b"x" * MIB
    joined_as = []

    async def first_life(node):
        await found(node)
        answer = await join(node, metadata=metadata)
        joined_as.append((answer.member_id, answer.generation_id))
        assert [bytes(m.metadata) for m in answer.members] == [metadata]
        synced = await sync(node, answer.member_id, answer.generation_id, share=b"y" * MIB)
        assert synced.error_code == 0

    async def second_life(node):
        await found(node)
        (member,) = (await describe(node)).members
        assert bytes(member.member_metadata) == metadata
        assert len(member.member_assignment) == MIB
        assert await heartbeat(node, *joined_as[0]) == 0

    machine.live(first_life)
    machine.live(second_life)


def test_members_that_say_too_much_are_refused_and_the_others_live_on():
    async def story(node):
        await found(node)
        first = await join(node)
        member, generation = first.member_id, first.generation_id
        assert (await sync(node, member, generation)).error_code == 0

        for _ in range(20):
            answer = await join(node, metadata=b"x" * 2 * MIB)
            assert answer.error_code == GROUP_MAX_SIZE_REACHED

        assert await heartbeat(node, member, generation) == 0

    on_a_node(story, group_max_bytes=MIB)


def test_a_thousand_who_want_in_share_the_places_that_there_are():
    async def story(node):
        await found(node)
        first = await join(node)
        assert (await sync(node, first.member_id, first.generation_id)).error_code == 0

        promised = [await joined(start_join(node)) for _ in range(1000)]
        assert {answer.error_code for answer in promised} == {MEMBER_ID_REQUIRED}
        places = [start_join(node, first.member_id)]
        places += [start_join(node, answer.member_id) for answer in promised]
        answers = await asyncio.gather(*(joined(place) for place in places))

        codes = [answer.error_code for answer in answers]
        assert codes == [0] * 100 + [GROUP_MAX_SIZE_REACHED] * 901
        assert {answer.generation_id for answer in answers[:100]} == {2}
        assert [len(answer.members) for answer in answers[:100]].count(100) == 1

    on_a_node(story, group_max_size=100)


def test_every_version_of_a_join_is_answered():
    async def story(node):
        await found(node)
        for version in range(APIS[Api.JOIN_GROUP].taken_from, APIS[Api.JOIN_GROUP].most + 1):
            answer = await node.ask(
                Api.JOIN_GROUP,
                version,
                group_id=f"g{version}",
                session_timeout=10_000,
                rebalance_timeout=30_000,
                member_id="",
                group_instance_id=None,
                reason=None,
                protocol_type="consumer",
                protocols=[{"name": "range", "metadata": b""}],
            )
            assert answer.error_code == (MEMBER_ID_REQUIRED if version >= 4 else 0)

    on_a_node(story)


def test_offsets_of_a_topic_made_anew_outlive_the_files_of_the_one_before():
    async def story(node):
        await node.create("t")
        await found(node)
        assert await commit(node, 1) == 0
        old = node.broker.partition("t", 0)
        await old.files.acquire()  # its files are slow to go
        asked = [asyncio.ensure_future(node.ask(Api.DELETE_TOPICS, 5, topic_names=["t"], timeout=9000))]
        await asyncio.sleep(0.5)
        assert await committed(node) == {}
        asked.append(asyncio.ensure_future(node.create("t")))
        await asyncio.sleep(0.5)
        assert await commit(node, 5) == 0

        old.files.release()
        await asyncio.gather(*asked)
        await asyncio.sleep(1)

        assert await committed(node) == {("t", 0): 5}

    on_a_node(story)


def test_a_topic_made_anew_while_its_groups_are_read_begins_anew():
    async def story(node):
        await node.create("t")
        await found(node)
        assert await commit(node, 1000) == 0
        driver = node.requests._verification._coordinator_of.__self__.groups.driver("g")
        load, goes_on = driver.load, asyncio.Event()

        async def slow() -> None:
            await goes_on.wait()
            await load()

        driver.load = slow
        driver.reload()
        await node.ask(Api.DELETE_TOPICS, 6, topics=[{"name": "t", "topic_id": None}])
        await node.create("t")
        goes_on.set()
        await found(node)

        assert await committed(node) == {}
        assert await commit(node, 3) == 0
        assert await committed(node) == {("t", 0): 3}

    on_a_node(story)
