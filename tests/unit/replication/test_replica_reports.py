"""Voters hear how far each replica goes: what has changed, once, and all of it if they are new."""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any
from uuid import UUID, uuid4

from tidelog.controller.image import ClusterImage
from tidelog.controller.records import PartitionChanged, TopicCreated, TopicDeleted
from tidelog.model import TopicPartition
from tidelog.replication import replica_reports as reporting
from tidelog.replication.replica_reports import Reporting

ME, VOTER, OTHER = 1, 2, 3


class Stage:
    """A node with replicas of one topic, each of them as long as a test says."""

    def __init__(self, count: int) -> None:
        self.image = ClusterImage()
        self.topic_id = uuid4()
        self.image.apply(TopicCreated(name="t", id=str(self.topic_id), replicas=[[1, 2]] * count, config={}))
        self.held: list[Any] = [self._partition(number) for number in range(count)]
        self.looks = 0
        replicas: Any = SimpleNamespace(all=lambda: list(self.held), holds=self._holds)
        metadata: Any = SimpleNamespace(image=self.image)
        self.reporting = Reporting(ME, metadata, replicas)

    def _partition(self, number: int) -> Any:
        log = SimpleNamespace(
            epochs=SimpleNamespace(latest=1), synced_end=10, damaged_at=None, is_ignorant=False
        )
        return Replica(TopicPartition("t", number), self.topic_id, log)

    def _holds(self, partition: Any) -> bool:
        self.looks += 1
        return partition in self.held

    def tell(self, voter: int = VOTER) -> dict[int, int]:
        """The next heartbeat, which the voter acknowledges: ends, by partition number."""
        news = self.reporting.news(voter)
        self.reporting.acknowledged(voter, news)
        return {partition.name.partition: report.end for partition, report in news.items()}

    def grow(self, number: int, end: int) -> None:
        self.held[number].log.synced_end = end
        self.reporting.mark(self.held[number])


@dataclass(eq=False)
class Replica:
    """As much of a partition as a report tells of."""

    name: TopicPartition
    topic_id: UUID
    log: Any
    high_watermark: int = 10
    leader: Any = None
    leads_damaged: bool = False
    is_cut: bool = False


def test_a_voter_hears_everything_once_and_then_what_changed():
    stage = Stage(3)
    assert stage.tell() == {0: 10, 1: 10, 2: 10}
    assert stage.tell() == {}

    stage.grow(1, 42)

    assert stage.tell() == {1: 42}
    assert stage.tell() == {}


def test_each_voter_hears_a_change():
    stage = Stage(2)
    stage.tell(VOTER), stage.tell(OTHER)

    stage.grow(0, 11)

    assert stage.tell(VOTER) == {0: 11}
    assert stage.tell(OTHER) == {0: 11}


def test_a_voter_that_did_not_answer_hears_everything_again():
    stage = Stage(2)
    stage.tell()

    stage.reporting.forget(VOTER)

    assert stage.tell() == {0: 10, 1: 10}


def test_a_change_during_a_heartbeat_is_in_the_next_one():
    stage = Stage(1)
    news = stage.reporting.news(VOTER)

    stage.grow(0, 11)
    stage.reporting.news(OTHER)
    stage.reporting.acknowledged(VOTER, news)

    assert stage.tell() == {0: 11}


def test_a_change_that_nobody_marked_is_told_in_a_later_heartbeat():
    stage = Stage(1000)
    while stage.tell():
        pass

    stage.held[700].log.synced_end = 77

    assert {700: 77} in [stage.tell() for _ in range(10)]


def test_many_reports_are_spread_over_heartbeats(monkeypatch):
    monkeypatch.setattr(reporting, "NEWS_MAX", 4)
    stage = Stage(10)

    news = stage.reporting.news(VOTER)
    more = stage.reporting.acknowledged(VOTER, news)

    assert (len(news), more) == (4, True)
    assert [len(stage.tell()) for _ in range(3)] == [4, 2, 0]


def test_a_voter_hears_that_there_are_replicas_until_it_was_told_of_each(monkeypatch):
    monkeypatch.setattr(reporting, "NEWS_MAX", 4)
    stage, heard = Stage(10), []

    def beat() -> None:
        news = stage.reporting.news(VOTER)
        heard.append(not stage.reporting.has_unheard(VOTER, news))
        stage.reporting.acknowledged(VOTER, news)

    for _ in range(4):
        for number in range(10):
            stage.grow(number, 20 + len(heard))  # what is told of already changes all the time
        beat()
    assert heard == [False, False, True, True]

    stage.reporting.forget(VOTER)
    stage.held.pop()
    for _ in range(4):
        beat()
    assert heard[4:] == [False, False, True, True]


def test_a_heartbeat_looks_at_few_of_very_many_changed_replicas():
    stage = Stage(5000)
    for number in range(5000):
        stage.reporting.mark(stage.held[number])
    told, heartbeats = 0, 0

    while told < 5000:
        before = stage.looks
        news = stage.reporting.news(VOTER)
        assert stage.looks - before < 500
        told += len(news)
        heartbeats += 1
        assert stage.reporting.acknowledged(VOTER, news) or told == 5000, "the rest follows at once"

    assert heartbeats < 50
    assert not stage.reporting.acknowledged(VOTER, {})


def test_a_replica_that_changes_all_the_time_does_not_hurry_heartbeats():
    stage = Stage(1)
    stage.tell()

    stage.grow(0, 11)
    news = stage.reporting.news(VOTER)
    stage.grow(0, 12)

    assert not stage.reporting.acknowledged(VOTER, news), "the next one is soon enough"


def test_an_idle_node_looks_at_few_of_its_replicas():
    stage = Stage(5000)
    while stage.tell():
        pass
    before = stage.looks

    stage.tell()

    assert stage.looks - before < 500


def test_a_replica_that_moved_away_and_back_is_told_again():
    """The voters forget what was said of a replica once the metadata takes it away."""
    stage = Stage(1)
    stage.tell()
    place = stage.image.topics["t"].partitions[0]
    for replicas in ((2,), (1, 2)):
        after = place.changed(replicas=replicas, leader=2)
        stage.image.apply(PartitionChanged(topic=str(stage.topic_id), partition=0, state=after.state))

    stage.reporting.repeat(stage.held[0])

    assert stage.tell() == {0: 10}


def test_nothing_is_told_of_a_replica_that_is_gone():
    stage = Stage(2)
    stage.tell()
    for number in (0, 1):
        stage.grow(number, 11)

    gone = stage.held.pop()
    stage.reporting.mark(gone)

    assert stage.tell() == {0: 11}
    stage.image.apply(TopicDeleted(name="t"))
    stage.grow(0, 12)
    assert stage.tell() == {}
