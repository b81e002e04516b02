import asyncio
from types import SimpleNamespace

import pytest

from tests.unit.broker.node import Machine, on_a_node
from tidelog.cluster.messages import Proposal, ProposalAnswer, ProposalFate
from tidelog.cluster.metadata import Metadata
from tidelog.cluster.quorum_log import Entry
from tidelog.controller.image import ClusterImage
from tidelog.controller.records import LeaderChanged, ProducerIdsGranted, TopicDeleted
from tidelog.errors import UnknownTopicOrPartition
from tidelog.host import system_host


@pytest.mark.parametrize("killed", [False, True])
def test_a_restart_sees_what_was_committed(killed):
    machine = Machine()
    before = {}

    async def first(node):
        await node.create("a", partitions=2, retention_ms="5")
        await node.create("gone")
        await node.broker.metadata.change(lambda _: TopicDeleted(name="gone"))
        await node.broker.metadata.change(lambda _: ProducerIdsGranted(node=1, end=77))
        before.update(vars(node.broker.image))

    async def second(node):
        image = node.broker.image
        assert image.producer_ids_end == 77
        assert image.nodes.keys() == before["nodes"].keys()
        assert image.nodes != before["nodes"], "every life is an incarnation of its own"
        assert list(image.topics) == ["a"]
        topic, old = image.topics["a"], before["topics"]["a"]
        assert (topic.id, topic.config) == (old.id, {"retention.ms": "5"})
        assert [p.epoch for p in old.partitions] == [0, 0]
        assert [p.epoch for p in topic.partitions] == [2, 2]

    machine.live(first, killed=killed)
    machine.live(second)


def test_a_record_is_applied_only_once_it_is_committed():
    async def story(node):
        metadata = node.broker.metadata
        end = node.broker.member.log.end
        change = asyncio.ensure_future(metadata.change(lambda _: ProducerIdsGranted(node=1, end=5)))
        while node.broker.member.log.end == end:
            await asyncio.sleep(0)
        assert node.broker.member.log.high_watermark == end
        assert metadata.image.producer_ids_end == 0

        await change

        assert metadata.image.producer_ids_end == 5
        assert node.broker.member.log.high_watermark == end + 1

    on_a_node(story)


def test_each_decision_is_made_on_an_image_that_holds_all_earlier_ones():
    async def story(node):
        def one_more(image):
            return ProducerIdsGranted(node=1, end=image.producer_ids_end + 1)

        await asyncio.gather(*(node.broker.metadata.change(one_more) for _ in range(20)))

        assert node.broker.image.producer_ids_end == 20

    on_a_node(story)


def test_a_refused_decision_writes_nothing_and_holds_up_nobody():
    async def story(node):
        metadata = node.broker.metadata
        end = node.broker.member.log.end

        def refuse(image):
            raise UnknownTopicOrPartition("t")

        with pytest.raises(UnknownTopicOrPartition):
            await metadata.change(refuse)

        assert node.broker.member.log.end == end
        await metadata.change(lambda _: ProducerIdsGranted(node=1, end=5))

    on_a_node(story)


def test_an_older_snapshot_takes_nothing_back_that_was_acted_on():
    """A full disk lost the end of this node's own metadata log, which a majority holds."""
    metadata = Metadata(system_host())
    metadata.apply(Entry(0, 5, 1, [ProducerIdsGranted(node=1, end=5)]))
    told: list[object] = []
    metadata.on_applied(told.append)

    metadata.begin_from(ClusterImage(), 3)

    assert (metadata.applied, metadata.image.producer_ids_end, told) == (5, 5, [])


def test_a_committed_record_that_no_image_can_take_is_passed_over_and_ends_nothing(caplog):
    metadata = Metadata(system_host())
    told: list[object] = []
    metadata.on_applied(told.append)
    granted = [ProducerIdsGranted(node=1, end=end) for end in (5, 7)]

    metadata.apply(Entry(0, 3, 1, [granted[0], TopicDeleted(name="gone"), granted[1]]))

    assert (metadata.applied, metadata.image.producer_ids_end, metadata.passed_over) == (3, 7, 1)
    assert told == [granted]
    assert "TopicDeleted that no node can take" in caplog.text


def test_what_another_node_must_not_propose_is_refused_and_never_written():
    async def story(node):
        metadata = node.broker.metadata
        end = node.broker.member.log.end
        answers: asyncio.Queue[ProposalAnswer] = asyncio.Queue()
        place = SimpleNamespace(send=answers.put_nowait)

        proposal = Proposal(
            based_on=metadata.applied, records=[LeaderChanged(epoch=2**30, leader=7, voters=[])]
        )
        metadata.on_proposal(2, proposal, place)
        refused = await answers.get()
        granted = Proposal(based_on=metadata.applied, records=[ProducerIdsGranted(node=2, end=1000)])
        metadata.on_proposal(2, granted, place)
        taken = await answers.get()

        assert refused.fate is ProposalFate.REFUSED
        assert "only the active controller" in refused.problem
        assert (taken.fate, metadata.image.producer_ids_end) == (ProposalFate.TAKEN, 1000)
        assert node.broker.member.log.end == end + 1

    on_a_node(story)
