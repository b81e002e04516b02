"""Who must say that a leader leads, before it tells what is newest."""

import asyncio
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from tests.simulation import virtual_time
from tidelog.broker.lead_confirmation import Confirming
from tidelog.cluster.messages import ConfirmLeads, ConfirmLeadsAnswer, Lead
from tidelog.errors import NotLeader, RequestTimedOut, UnknownTopicOrPartition
from tidelog.model import TopicPartition
from tidelog.partition.follower import Follower
from tidelog.partition.leader import Leader
from tidelog.peers.stream import PeerUnreachable
from tidelog.simulation.host import SimulatedClock

TOPIC = UUID(int=1)
EPOCH = 5


class Cluster:
    """Node 1 leads; what others say is `words`."""

    def __init__(self, in_sync=(1, 2, 3), *, replicas=(1, 2, 3), eligible=()) -> None:
        self.words: dict[int, bool | None] = dict.fromkeys(replicas, True)
        self.asked: list[int] = []
        self.has_lease = True
        self.clock = SimulatedClock()
        self.known = SimpleNamespace(cluster_id=9, epoch=EPOCH, eligible=frozenset(eligible))
        self.leader = Leader(
            me=1,
            epoch=EPOCH,
            log_end=0,
            held=0,
            high_watermark=0,
            in_sync=in_sync,
            replicas=replicas,
            min_in_sync=2,
        )
        self.partition: Any = SimpleNamespace(
            name=TopicPartition("b", 0),
            topic_id=TOPIC,
            leader=self.leader,
            has_lease=lambda: self.has_lease,
            config=SimpleNamespace(unclean_leader_election_enable=False),
        )

    async def _ask(self, node, asked, answer, *, seconds_max):
        self.asked.append(node)
        word = self.words[node]
        if word is None:
            await asyncio.sleep(seconds_max)
            raise PeerUnreachable("it says nothing")
        return ConfirmLeadsAnswer(confirmed=(word,) * len(asked.leads))

    def confirm(self, seconds: float = 3.0) -> None:
        async def main() -> None:
            tasks = []

            def spawn(work: Any) -> Any:
                tasks.append(asyncio.ensure_future(work))
                return tasks[-1]

            broker: Any = SimpleNamespace(
                spawn=spawn,
                host=SimpleNamespace(clock=self.clock),
                member=SimpleNamespace(hub=SimpleNamespace(ask=self._ask)),
                image=SimpleNamespace(topics_by_id={TOPIC: SimpleNamespace(partitions=[self.known])}),
            )
            deadline = self.clock.monotonic() + seconds
            try:
                await Confirming(broker).confirm(self.partition, self.leader, deadline)
            finally:
                for task in tasks:
                    task.cancel()

        virtual_time.run(main(), self.clock)


def test_all_in_sync_are_asked():
    cluster = Cluster()

    cluster.confirm()

    assert sorted(cluster.asked) == [2, 3]


def test_one_that_follows_another_is_enough_to_lead_no_more():
    cluster = Cluster()
    cluster.words[3] = False

    with pytest.raises(NotLeader):
        cluster.confirm()


def test_one_that_says_nothing_leaves_it_open():
    cluster = Cluster()
    cluster.words[3] = None

    with pytest.raises(RequestTimedOut):
        cluster.confirm()


def test_nobody_waits_longer_than_it_was_told_to():
    cluster = Cluster()
    cluster.words[3] = None

    with pytest.raises(RequestTimedOut):
        cluster.confirm(seconds=0.2)

    assert cluster.clock.monotonic() < 0.3


def test_who_is_eligible_is_asked_though_it_is_not_in_sync():
    """Those who left a set that became too small may lead, and commit, without who stayed in it."""
    cluster = Cluster(in_sync=(1, 2), replicas=(1, 2, 3, 4, 5), eligible=(3, 4, 5))
    cluster.words |= {3: False, 4: False, 5: False}

    with pytest.raises(NotLeader):
        cluster.confirm()

    assert sorted(cluster.asked) == [2, 3, 4, 5]


def test_the_last_in_sync_tells_what_it_has_if_the_eligible_follow_it():
    cluster = Cluster(in_sync=(1,), eligible=(2,))

    cluster.confirm()

    assert cluster.asked == [2]


@pytest.mark.parametrize("has_lease", [True, False])
def test_who_is_alone_needs_its_lease(has_lease):
    cluster = Cluster(in_sync=(1,))
    cluster.has_lease = has_lease

    if has_lease:
        cluster.confirm()
    else:
        with pytest.raises(NotLeader):
            cluster.confirm()
    assert cluster.asked == []


@pytest.mark.parametrize("is_unclean", [True, False])
def test_where_anybody_may_lead_the_lease_must_hold_too(is_unclean):
    cluster = Cluster()
    cluster.has_lease = False
    cluster.partition.config.unclean_leader_election_enable = is_unclean

    if is_unclean:
        with pytest.raises(NotLeader):
            cluster.confirm()
    else:
        cluster.confirm()


def test_who_knows_of_a_later_epoch_leads_no_more():
    cluster = Cluster()
    cluster.known.epoch = EPOCH + 1

    with pytest.raises(NotLeader):
        cluster.confirm()


# Answering.


@pytest.mark.parametrize(
    ("epoch", "follows", "word"),
    [
        (EPOCH, 1, True),
        (EPOCH, 2, False),
        (EPOCH + 1, 1, False),
        (EPOCH - 1, 1, None),
        (EPOCH - 1, 2, None),
        (EPOCH + 1, None, False),
        (EPOCH - 1, None, None),
    ],
)
def test_a_node_says_whom_it_follows_in_which_epoch(epoch, follows, word):
    """`follows` None: it leads itself."""
    follower = None if follows is None else Follower(epoch=epoch, leader=follows)
    leader = SimpleNamespace(epoch=epoch) if follows is None else None
    partition = SimpleNamespace(leader=leader, follower=follower)

    assert told(lambda cluster_id: partition) is word


def test_a_node_says_nothing_of_what_it_does_not_hold_or_nobody_leads():
    def find(cluster_id):
        raise UnknownTopicOrPartition(cluster_id)

    assert told(find) is None
    assert told(lambda cluster_id: SimpleNamespace(leader=None, follower=None)) is None


def told(find):
    sent: list[Any] = []
    broker: Any = SimpleNamespace(replication=SimpleNamespace(feeding=SimpleNamespace(find=find)), acted_on=7)
    place: Any = SimpleNamespace(send=sent.append)
    Confirming(broker)._on_confirm(1, ConfirmLeads(leads=(Lead(9, EPOCH),)), place)
    assert sent[0].acted_on == 7
    return sent[0].confirmed[0]
