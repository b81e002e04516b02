import asyncio

import pytest

from tests.unit.coordinators.transacting import Producer, on_a_coordinator, seen
from tidelog.wire.apis import Api

OK, NOT_COORDINATOR, INVALID_REQUEST, INVALID_STATE, INVALID_MAPPING, FENCED = 0, 16, 42, 48, 49, 90
GROUP = "spark.query"
ONCE = 2


class Members:
    """Producers of one group, each with an open transaction in a partition of its own."""

    def __init__(self, node) -> None:
        self.node = node
        self.all = [Producer(node, f"{GROUP}.{number}") for number in range(2)]

    async def write(self, value: bytes) -> None:
        for partition, producer in enumerate(self.all):
            await producer.init()
            assert await producer.write(value, partition=partition) == OK

    async def commit(self, batch_id=0, *, group=GROUP, members=None, after=None, counting=0):
        if after is None:
            after = (await self.node.ask(Api.READ_DECISION, 0, group=group)).batch_id
        members = [(p.name, p.id, p.epoch) for p in self.all] if members is None else members
        names = ("transactional_id", "producer_id", "producer_epoch")
        return await self.node.ask(
            Api.COMMIT_GROUP,
            1,
            group=group,
            batch_id=batch_id,
            after=after,
            counting=counting,
            members=[dict(zip(names, member, strict=True)) for member in members],
        )

    async def completed(self) -> None:
        for producer in self.all:
            await producer.completed()

    async def seen(self) -> list[list[bytes]]:
        return [await seen(self.node, partition) for partition in (0, 1)]


async def decided(node, group=GROUP) -> int:
    answer = await node.ask(Api.READ_DECISION, 0, group=group)
    assert answer.error_code == OK
    return answer.batch_id


def test_one_decision_commits_all_members_and_is_known_from_then_on():
    async def story(node):
        members = Members(node)
        await members.write(b"a")
        assert await decided(node) == -1
        assert await members.seen() == [[], []]

        answer = await members.commit(7)
        await members.completed()

        assert (answer.error_code, answer.batch_id, answer.is_new) == (OK, 7, True)
        assert await members.seen() == [[b"a"], [b"a"]]
        assert await decided(node) == 7

    on_a_coordinator(story)


@pytest.mark.parametrize("batch_id", [7, 3])
def test_a_batch_that_is_decided_is_not_decided_again(batch_id):
    async def story(node):
        members = Members(node)
        await members.write(b"a")
        await members.commit(7)
        await members.completed()
        await members.write(b"a, replayed")

        answer = await members.commit(batch_id)

        assert (answer.error_code, answer.batch_id, answer.is_new) == (OK, 7, False)
        await asyncio.sleep(1)
        assert await members.seen() == [[b"a"], [b"a"]]

    on_a_coordinator(story)


def test_a_member_that_is_fenced_is_named_and_nothing_is_committed():
    async def story(node):
        members = Members(node)
        await members.write(b"a")
        first, second = members.all
        zombie = (second.name, second.id, second.epoch - 1)

        answer = await members.commit(members=[(first.name, first.id, first.epoch), zombie])

        assert (answer.error_code, answer.batch_id) == (FENCED, -1)
        assert second.name in answer.error_message
        await asyncio.sleep(1)
        assert await members.seen() == [[], []]
        assert await decided(node) == -1
        assert (await members.commit()).is_new, "the members are as they were"

    on_a_coordinator(story)


@pytest.mark.parametrize(
    ("code", "fields"),
    [
        (INVALID_REQUEST, {"group": "query"}),
        (INVALID_REQUEST, {"group": ""}),
        (INVALID_REQUEST, {"batch_id": -1}),
        (INVALID_REQUEST, {"counting": 3}),
        (INVALID_STATE, {"after": 7}),
        (INVALID_STATE, {"members": []}),
        (INVALID_REQUEST, {"members": [("spark.other.0", 1, 0)]}),
        (INVALID_REQUEST, {"members": [("tx", 1, 0)]}),
        (INVALID_REQUEST, {"members": [(f"{GROUP}.0", 1, 0), (f"{GROUP}.0", 1, 0)]}),
        (INVALID_MAPPING, {"members": [(f"{GROUP}.9", 1, 0)]}),
        (FENCED, {"members": [(f"{GROUP}.0", -1, -1)]}),
    ],
)
def test_a_decision_that_makes_no_sense_is_refused_and_nothing_is_done(code, fields):
    async def story(node):
        members = Members(node)
        await members.write(b"a")

        answer = await members.commit(**fields)

        assert (answer.error_code, answer.batch_id) == (code, -1)
        assert answer.error_message
        await asyncio.sleep(1)
        assert await members.seen() == [[], []]

    on_a_coordinator(story)


def test_what_a_decision_leaves_behind_is_aborted():
    async def story(node):
        members = Members(node)
        await members.write(b"a")
        first, second = members.all

        assert (await members.commit(members=[(first.name, first.id, first.epoch)])).is_new
        await members.completed()

        assert await members.seen() == [[b"a"], []]
        assert await second.end(commits=True) == FENCED

    on_a_coordinator(story)


def test_a_group_that_is_forgotten_may_decide_anew():
    async def story(node):
        members = Members(node)
        await members.write(b"a")
        await members.commit(7, counting=ONCE)
        await members.completed()

        for _ in range(2):
            answer = await node.ask(Api.FORGET_DECISION, 1, group=GROUP, batch_id=7)
            assert answer.error_code == OK
            assert await decided(node) == -1

        await members.write(b"b")
        assert (await members.commit(0)).is_new

    on_a_coordinator(story)


def test_a_member_that_has_ended_by_itself_cannot_be_committed_with_others():
    async def story(node):
        members = Members(node)
        await members.write(b"a")
        await members.all[0].end(commits=False)
        await members.all[0].completed()

        assert (await members.commit()).error_code == INVALID_STATE
        assert await members.seen() == [[], []]

    on_a_coordinator(story)


def test_who_does_not_coordinate_the_group_says_so():
    async def story(node):
        members = Members(node)
        await members.write(b"a")
        keeper = node.requests._verification._coordinator_of.__self__
        keeper._drivers.clear()

        assert (await members.commit(after=-1)).error_code == NOT_COORDINATOR
        answer = await node.ask(Api.READ_DECISION, 0, group=GROUP)
        assert answer.error_code == NOT_COORDINATOR
        answer = await node.ask(Api.FORGET_DECISION, 1, group=GROUP, batch_id=0)
        assert answer.error_code == NOT_COORDINATOR

    on_a_coordinator(story)


def test_decisions_are_listed_with_what_their_batches_were_and_can_be_reset():
    async def story(node):
        members = Members(node)
        await members.write(b"a")
        fields = [
            {"transactional_id": p.name, "producer_id": p.id, "producer_epoch": p.epoch} for p in members.all
        ]
        answer = await node.ask(
            Api.COMMIT_GROUP,
            2,
            group=GROUP,
            batch_id=7,
            after=-1,
            counting=1,
            members=fields,
            proof=b"what it was",
        )
        assert (answer.is_new, answer.proof) == (True, None)

        (one,) = (await node.ask(Api.LIST_DECISIONS, 0)).decisions
        assert (one.group, one.batch_id, one.members, one.after, one.counting, one.proof) == (
            GROUP,
            7,
            2,
            -1,
            1,
            b"what it was",
        )
        read = await node.ask(Api.READ_DECISION, 1, group=GROUP)
        assert (read.batch_id, read.proof) == (7, b"what it was")
        again = await node.ask(
            Api.COMMIT_GROUP, 2, group=GROUP, batch_id=7, after=7, counting=1, members=[], proof=None
        )
        assert (again.is_new, again.proof) == (False, b"what it was")

        kept = await node.ask(Api.FORGET_DECISION, 2, group=GROUP, batch_id=7, is_reset=False)
        assert (kept.error_code, await decided(node)) == (INVALID_STATE, 7)
        gone = await node.ask(Api.FORGET_DECISION, 2, group=GROUP, batch_id=7, is_reset=True)
        assert (gone.error_code, await decided(node)) == (OK, -1)
        assert (await node.ask(Api.LIST_DECISIONS, 0)).decisions == ()

    on_a_coordinator(story)
