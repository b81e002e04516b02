import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from tests.simulation import virtual_time
from tests.support.replicas import Replicas, append
from tests.unit.controller.histories import TOPIC_ID, cluster, electorate, image_after, partition_in, reported
from tidelog.cluster.messages import ChangeInSync, Judged, StepDown
from tidelog.controller.elections import step_down
from tidelog.controller.image import Place
from tidelog.controller.in_sync import change_many
from tidelog.controller.records import BrokerFenced, BrokerUnfenced
from tidelog.errors import NotController, NotLeader
from tidelog.partition.driver import Partition
from tidelog.replication.in_sync import InSyncProposals
from tidelog.simulation.host import SimulatedClock

EPOCH, PARTITION_EPOCH = 3, 4
LAG = 10.0


class Metadata:
    """Stands for the quorum: decisions are taken, refused to be taken, or their replies lost."""

    def __init__(self, *records: Any) -> None:
        self.image = image_after(*cluster(1, 2, 3), *records)
        self.applied = 10
        self.asked = 0
        self.may_decide = asyncio.Event()
        self.may_decide.set()
        self.is_lost = self.is_away = self.is_unled = False

    async def ask(self, message: ChangeInSync | StepDown) -> Judged | None:
        """As the active controller does."""
        self.asked += 1
        await self.may_decide.wait()
        if self.is_unled:
            raise NotController("the quorum has no leader now")
        if self.is_away:
            return None
        able = electorate(self.image, reports=reported(n2=(3, 0), n3=(3, 0)))
        refused: dict[int, tuple[int, str]] = {}
        if isinstance(message, StepDown):
            self.take(step_down(Place(self.image.topics_by_id[TOPIC_ID], 0), able))
        else:
            changed, reasons = change_many(self.image, message.wanted, able)
            refused = dict(enumerate((e.code, str(e)) for e in reasons.values()))
            self.take(*changed)
        if self.is_lost:
            return None
        return Judged(is_decided=True, offset=self.applied, refused=refused)

    async def reached(self, offset: int) -> None:
        assert offset <= self.applied

    def take(self, *records: Any) -> None:
        for record in records:
            self.image.apply(record)
            self.applied += 1

    @property
    def known(self) -> Any:
        return Place(self.image.topics_by_id[TOPIC_ID], 0).partition


class Stage:
    """Node 1 leads a partition that 2 and 3 hold, too; in sync are 1 and 2."""

    def __init__(self, clock: SimulatedClock) -> None:
        self.clock = clock
        self.replicas = Replicas(1, clock)
        self.metadata = Metadata(partition_in([1, 2, 3], [1, 2], 1))
        self.partition = self.replicas.open(0)
        self.partition.topic_id = TOPIC_ID
        self.partition.lead(EPOCH, (1, 2), replicas=(1, 2, 3), partition_epoch=PARTITION_EPOCH)
        self.acts = True
        self.proposals = InSyncProposals(
            self.replicas.host,
            1,
            self.metadata,  # type: ignore[arg-type]
            self.replicas,  # type: ignore[arg-type]
            self.metadata,  # type: ignore[arg-type]
            lag_seconds_max=lambda: LAG,
            acted=self.acted,
        )
        self.task = asyncio.get_running_loop().create_task(self.proposals.run())

    async def acted(self, offset: int) -> None:
        """As Following does: what the image says reaches the partition."""
        known = self.metadata.known
        if self.acts and self.partition.leader is not None:
            if (known.leader, known.epoch) == (1, self.partition.leader.epoch):
                self.partition.decided(known.in_sync, known.partition_epoch, known.replicas)
            else:
                self.partition.resign(NotLeader(leader=known.leader))

    @property
    def leader(self) -> Any:
        return self.partition.leading()

    def catch_up(self, node: int = 3, *, life: int | None = None) -> None:
        """A follower reads at the end and holds all, in the life that it has by `cluster`."""
        end, life = self.partition.log.end, node if life is None else life
        self.leader.fetched(node, life, end, end, self.clock.monotonic())
        self.partition.follower_holds(node, EPOCH, end, life)

    async def look(self) -> None:
        self.proposals.look_at(self.partition)
        await asyncio.sleep(0.01)


def on_stage(story: Callable[[Stage], Coroutine[Any, Any, None]]) -> None:
    clock = SimulatedClock()

    async def main() -> None:
        stage = Stage(clock)
        await story(stage)
        assert not stage.task.done(), stage.task
        stage.task.cancel()

    virtual_time.run(main(), clock)


def test_who_has_caught_up_is_let_in():
    async def story(stage):
        stage.catch_up()

        await stage.look()

        assert stage.metadata.known.in_sync == {1, 2, 3}
        assert (stage.leader.in_sync, stage.leader.in_flight) == ({1, 2, 3}, False)

    on_stage(story)


def test_who_falls_behind_is_left_out_when_time_has_passed():
    async def story(stage):
        await asyncio.sleep(LAG + 1)

        await stage.proposals.look_at_all()
        await asyncio.sleep(0.01)

        assert stage.metadata.known.in_sync == {1}

    on_stage(story)


def test_where_nothing_is_to_change_nothing_is_asked():
    async def story(stage):
        await stage.look()

        assert stage.metadata.asked == 0

    on_stage(story)


def test_sole_replicas_are_not_looked_at():
    async def story(stage):
        alone = stage.replicas.open(1)
        alone.lead(EPOCH, (1,))
        await asyncio.sleep(LAG + 1)

        await stage.proposals.look_at_all()

        assert list(stage.proposals._due) == [stage.partition]

    on_stage(story)


def test_until_it_is_decided_nothing_else_is_asked_and_both_sets_count():
    async def story(stage):
        stage.metadata.may_decide.clear()
        stage.catch_up()
        await stage.look()
        await stage.look()
        assert stage.metadata.asked == 1
        producer = append(stage.partition)
        await stage.replicas.rounds.drained()
        stage.partition.follower_holds(2, EPOCH, 1, 2)
        assert producer.told == []

        stage.metadata.may_decide.set()
        await asyncio.sleep(0.01)
        assert producer.told == [], "3 is in sync now"

    on_stage(story)


def test_who_is_fenced_is_not_proposed_until_it_is_so_no_more():
    async def story(stage):
        stage.catch_up()
        stage.metadata.take(BrokerFenced(node=3, broker_epoch=3))
        await stage.look()
        assert stage.metadata.asked == 0

        stage.metadata.take(BrokerUnfenced(node=3, broker_epoch=3))
        await stage.look()

        assert stage.metadata.known.in_sync == {1, 2, 3}

    on_stage(story)


def test_who_is_fenced_while_it_is_decided_is_refused_and_counts_no_more():
    async def story(stage):
        stage.metadata.may_decide.clear()
        stage.catch_up()
        await stage.look()
        assert stage.leader.maximal == {1, 2, 3}
        stage.metadata.take(BrokerFenced(node=3, broker_epoch=3))

        stage.metadata.may_decide.set()
        await asyncio.sleep(0.01)

        assert stage.metadata.known.in_sync == {1, 2}
        assert stage.leader.maximal == {1, 2}
        assert not stage.leader.in_flight

    on_stage(story)


def test_a_lost_reply_to_what_was_taken_is_settled_by_the_metadata():
    async def story(stage):
        stage.metadata.is_lost = True
        stage.catch_up()
        await stage.look()
        assert stage.metadata.known.in_sync == {1, 2, 3}
        assert (stage.leader.in_sync, stage.leader.maximal) == ({1, 2}, {1, 2, 3})

        await stage.acted(stage.metadata.applied)
        await asyncio.sleep(1)

        assert stage.leader.in_sync == stage.leader.maximal == {1, 2, 3}
        assert not stage.leader.in_flight

    on_stage(story)


def test_a_lost_reply_whose_outcome_is_not_seen_yet_keeps_both_sets():
    async def story(stage):
        stage.metadata.is_lost, stage.acts = True, False
        await asyncio.sleep(LAG + 1)
        await stage.look()

        assert stage.metadata.known.in_sync == {1}
        assert (stage.leader.in_sync, stage.leader.maximal) == ({1, 2}, {1, 2})

        stage.metadata.is_lost, stage.acts = False, True
        await asyncio.sleep(1)
        assert stage.leader.maximal == {1}
        assert not stage.leader.in_flight

    on_stage(story)


def test_a_quorum_that_is_away_is_asked_again_until_it_decides():
    async def story(stage):
        stage.metadata.is_away = True
        stage.catch_up()
        await stage.look()
        await asyncio.sleep(2)
        assert 5 <= stage.metadata.asked <= 21, "not in a loop"
        assert stage.leader.maximal == {1, 2, 3}

        stage.metadata.is_away = False
        await asyncio.sleep(1)

        assert stage.leader.in_sync == {1, 2, 3}

    on_stage(story)


def test_a_proposal_that_nobody_could_be_sent_counts_no_more():
    async def story(stage):
        stage.metadata.is_unled = True
        stage.catch_up()
        await stage.look()

        assert stage.metadata.asked == 1
        assert stage.leader.maximal == {1, 2}

    on_stage(story)


def test_an_outcome_that_comes_in_another_epoch_is_not_this_leaders():
    async def story(stage):
        stage.metadata.may_decide.clear()
        stage.catch_up()
        await stage.look()
        stage.partition.resign(NotLeader(leader=None))
        stage.partition.lead(EPOCH + 1, (1, 2), replicas=(1, 2, 3), partition_epoch=9)
        assert stage.leader.propose(LAG + 1, LAG, {1: 1}) is not None  # it has its own
        stage.acts = False

        stage.metadata.may_decide.set()
        await asyncio.sleep(0.01)

        assert (stage.leader.in_sync, stage.leader.partition_epoch) == ({1, 2}, 9)
        assert stage.leader.in_flight

    on_stage(story)


def test_a_partition_that_is_gone_is_not_proposed_for():
    async def story(stage):
        stage.catch_up()
        del stage.replicas.partitions[0]

        await stage.look()

        assert stage.metadata.asked == 0

    on_stage(story)


def spend(partition: Partition) -> None:
    """As a full disk leaves a leader: followers may hold what it has lost."""
    partition.appender.spent_epoch = partition.leading().epoch


@pytest.mark.parametrize("is_away", [False, True])
def test_a_leader_that_may_append_no_more_has_another_one_elected(is_away):
    async def story(stage):
        spend(stage.partition)
        stage.metadata.is_away = is_away
        stepping = asyncio.get_running_loop().create_task(stage.proposals.step_down(stage.partition))
        await asyncio.sleep(1)
        if is_away:
            assert not stepping.done()
            stage.metadata.is_away = False
            await asyncio.sleep(1)

        assert stepping.done()
        assert (stage.metadata.known.leader, stage.metadata.known.epoch) == (2, EPOCH + 1)
        assert stage.partition.leader is None

    on_stage(story)


def test_a_leader_that_leads_another_epoch_by_then_stays():
    async def story(stage):
        await stage.proposals.step_down(stage.partition)

        assert stage.metadata.asked == 0
        assert stage.metadata.known.leader == 1

    on_stage(story)
