"""Followers that were away come back whole, whatever happens on the way."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tidelog.client.admin import AdminClient, ConfigChange, Resource
from tidelog.client.kafka import KafkaClient
from tidelog.cluster.messages import Beat
from tidelog.faces.http.replication import metrics_text, replication_document
from tidelog.partition.catchup import CatchUp, Key, State
from tidelog.partition.driver import Partition
from tidelog.records import Record, encode_batch
from tidelog.replication.leader_fetchers import Fetcher
from tidelog.simulation.nodes import bootstrap, real_node
from tidelog.simulation.world import World

TOPIC = "tide"
RECORD_BYTES = 1000
BATCH = 10


class Story:
    """A few nodes, one topic, and a way to fill it."""

    def __init__(self, seed: int, *, nodes: int = 3, partitions: int = 1, **settings: Any) -> None:
        quorum = ",".join(f"{n}@node-{n}:9192" for n in (1, 2, 3))
        peers = {n: "" if n <= 3 else f"node-{n}:9192" for n in range(1, nodes + 1)}
        settings = {"catchup_scan_ms": 1000, "replica_lag_time_max_ms": 2000, **settings}
        self.world = World(
            seed,
            nodes=nodes,
            node_factory=lambda host, n: real_node(host, n, quorum=quorum, peer=peers[n], **settings),
        )
        self.world.start()
        self.sent = 0
        self.do(self._create, partitions=partitions)
        self.first = self.leader()
        self.other, self.away = (n for n in (1, 2, 3) if n != self.first)

    def __enter__(self) -> "Story":
        return self

    def __exit__(self, *_: object) -> None:
        self.world.close()

    def do(self, work: Callable[..., Any], **more: Any) -> Any:
        async def run() -> Any:
            network = self.world.client("story").network
            up = [n for n in self.world.machines if self.world.is_up(n)]
            where = ",".join(map(bootstrap, up))
            async with AdminClient(where, network=network) as client:
                return await work(client, **more)

        return self.world.do(run(), seconds_max=300)

    async def _create(self, client: KafkaClient, *, partitions: int) -> None:
        await client.create_topic(TOPIC, partitions=partitions, replication=3)

    def fill(self, count: int, partition: int = 0) -> None:
        async def work(client: KafkaClient) -> None:
            for _ in range(count // BATCH):
                records = [
                    Record(value=b"%0*d" % (RECORD_BYTES, self.sent + i), timestamp_ms=1)
                    for i in range(BATCH)
                ]
                await client.produce(TOPIC, partition, encode_batch(records))
                self.sent += BATCH

        self.do(work)

    def delete_before(self, offset: int) -> None:
        self.do(lambda client: client.delete_records(TOPIC, {0: offset}))

    def set_pace(self, bytes_per_second: int, node: int) -> None:
        changes = [ConfigChange(name="catchup.bytes.per.second", value=str(bytes_per_second))]
        self.do(lambda client: client.alter_configs(Resource.BROKER, str(node), changes))

    # Nodes.

    def leave(self) -> None:
        self.world.stop(self.away)
        self.until(lambda: not self.world.is_up(self.away))

    def come_back(self) -> None:
        self.world.restart(self.away)

    def keep_heartbeats(self, seconds: float) -> None:
        """Let nobody hear of the node that was away, which asks its leader as before."""
        hub = self.world.node(self.away).broker.member.hub
        ask, until = hub.ask, self.world.now + seconds

        async def ask_later(node: int, message: Any, answer: type, *, seconds_max: float) -> Any:
            if isinstance(message, Beat):
                await asyncio.sleep(max(until - self.world.now, 0))
            return await ask(node, message, answer, seconds_max=seconds_max)

        hub.ask = ask_later

    def until(self, is_so: Callable[[], object], seconds: float = 60) -> None:
        self.world.run_until(lambda: bool(is_so()), seconds)

    # Looking.

    def replica(self, node: int, number: int = 0) -> Partition:
        found: Partition = self.world.node(node).broker.partition(TOPIC, number)
        return found

    def leader(self) -> int:
        up = next(n for n in self.world.machines if self.world.is_up(n))
        return int(self.world.node(up).broker.image.topics[TOPIC].partitions[0].leader)

    def catch_up(self, leader: int | None = None) -> CatchUp | None:
        broker = self.world.node(leader or self.first).broker
        cluster_id = broker.image.topics[TOPIC].partitions[0].cluster_id
        found: CatchUp | None = broker.replication.catching_up.all.get(Key(cluster_id, self.away))
        return found

    def last_ended(self) -> CatchUp:
        found: CatchUp = self.world.node(self.first).broker.replication.catching_up.all.ended[-1]
        return found

    def away_end(self) -> int:
        """Where the log ends of the node that was away; -1 while it does not serve."""
        return self.replica(self.away).log.end if self.world.is_up(self.away) else -1

    def is_whole(self, *nodes: int, number: int = 0) -> bool:
        if not all(self.world.is_up(n) for n in nodes):
            return False
        image = self.world.node(nodes[0]).broker.image
        in_sync = image.topics[TOPIC].partitions[number].in_sync
        ends = {self.replica(n, number).log.end for n in nodes}
        return in_sync >= set(nodes) and len(ends) == 1

    def contents(self, node: int, number: int = 0) -> list[tuple[int, bytes]]:
        """Every batch of a replica's files, by its offset."""
        from tidelog.host import Path
        from tidelog.records import iterate_batches

        disk = self.world.machines[node].disk
        partition = self.replica(node, number)
        found = []
        for segment in partition.log.segments:
            file = disk.open(Path(str(segment.path())))
            data = file.read(0, file.size())
            found += [(h.base_offset, bytes(batch)) for h, batch in iterate_batches(data)]
        return [one for one in found if one[0] >= partition.log.start]

    def assert_same(self, *nodes: int, number: int = 0) -> None:
        first = self.contents(nodes[0], number)
        assert first
        for node in nodes[1:]:
            assert self.contents(node, number) == first


@pytest.fixture
def stories() -> Iterator[Callable[..., Story]]:
    made: list[Story] = []

    def make(*args: Any, **more: Any) -> Story:
        made.append(Story(*args, **more))
        return made[-1]

    yield make
    for story in made:
        story.world.close()


def test_a_follower_that_was_away_comes_back_whole(stories):
    story = stories(1)
    story.fill(1000)
    story.leave()
    story.fill(1000)
    assert story.replica(story.first).log.end == 2000

    story.come_back()
    story.until(lambda: story.is_whole(1, 2, 3))

    story.assert_same(1, 2, 3)
    done = story.last_ended()
    assert (done.state, done.first, done.target) == (State.DONE, 1000, 2000)
    missing = 1000 * (RECORD_BYTES + 10)
    assert missing <= done.bytes_sent <= 1.05 * missing


def test_a_follower_that_does_not_ask_is_known_by_its_heartbeats(stories, monkeypatch):
    story = stories(2)
    story.fill(50)
    story.leave()
    story.fill(500)
    ask = Fetcher.run

    async def stay_silent(fetcher: Fetcher) -> None:
        if fetcher._host is not story.world.node(story.away).broker.host:
            await ask(fetcher)
        await asyncio.Event().wait()

    monkeypatch.setattr(Fetcher, "run", stay_silent)
    story.come_back()
    story.until(lambda: story.world.is_up(story.away))
    story.world.crash(story.first)  # whoever leads then has never heard it ask
    story.until(lambda: story.leader() == story.other)
    story.until(lambda: story.catch_up(story.other) is not None)

    found = story.catch_up(story.other)
    assert (found.state, found.first, found.target) == (State.INTERRUPTED, 50, 550)
    silent = f"node {story.away} does not ask for it"
    assert found.why == f"{silent}; its heartbeats say that it ends at 50"


def test_what_was_deleted_meanwhile_leaves_no_silent_gap(stories):
    story = stories(3)
    story.fill(100)
    story.leave()
    story.fill(400)
    story.delete_before(300)

    story.come_back()
    story.until(lambda: story.is_whole(1, 2, 3))
    story.until(lambda: {story.replica(n).log.start for n in (1, 2, 3)} == {300})

    story.assert_same(1, 2, 3)
    done = story.last_ended()
    assert (done.state, done.began_anew, done.first) == (State.DONE, True, 300)


def test_a_replica_begins_anew_inside_of_a_batch(stories):
    story = stories(3)
    story.fill(300)
    story.delete_before(127)
    story.world.lose_power(story.away)
    story.world.replace_disk(story.away)
    story.fill(100)

    story.come_back()

    story.until(lambda: story.is_whole(1, 2, 3))
    for node in (1, 2, 3):
        assert (story.replica(node).log.start, story.replica(node).log.end) == (127, 400)
        assert story.replica(node).log.damaged_at is None
    story.assert_same(1, 2, 3)


def test_another_leader_goes_on_where_the_first_one_was(stories):
    story = stories(4, catchup_bytes_per_second=50_000)
    story.fill(100)
    story.leave()
    story.fill(1000)
    story.come_back()
    story.until(lambda: story.world.is_up(story.away) and story.replica(story.away).log.end >= 300)

    story.world.crash(story.first)
    story.until(lambda: story.leader() == story.other)
    story.until(lambda: story.catch_up(story.other) is not None)
    found = story.catch_up(story.other)
    at = found.first
    story.until(lambda: story.is_whole(story.other, story.away))

    story.assert_same(story.other, story.away)
    assert 300 <= at < 1100
    assert found.state is State.DONE
    assert found.bytes_sent <= 1.05 * (1100 - at) * (RECORD_BYTES + 10)


def test_a_follower_that_restarts_half_way_gets_nothing_twice(stories):
    story = stories(5, catchup_bytes_per_second=50_000)
    story.fill(100)
    story.leave()
    story.fill(1000)
    story.come_back()
    story.until(lambda: story.away_end() >= 400)
    found = story.catch_up()

    story.leave()
    story.until(lambda: found.state is State.INTERRUPTED)
    story.come_back()
    story.until(lambda: story.is_whole(1, 2, 3))

    story.assert_same(1, 2, 3)
    assert found.state is State.DONE
    assert found.attempts >= 2
    assert found.first == 100
    missing = 1000 * (RECORD_BYTES + 10)
    assert missing <= found.bytes_sent <= 1.05 * missing


def test_many_followers_come_back_at_once(stories):
    story = stories(6, partitions=6, catchup_concurrent_max=2, catchup_bytes_per_second=200_000)
    story.leave()
    for number in range(6):
        story.fill(200, number)
    most = 0

    def look() -> bool:
        nonlocal most
        for node in (story.first, story.other):
            found = list(story.world.node(node).broker.replication.catching_up.all)
            running = [one for one in found if one.state is State.RUNNING and one.is_paced]
            most = max(most, len(running))
        return all(story.is_whole(1, 2, 3, number=number) for number in range(6))

    story.come_back()
    story.until(look)

    assert most == 2
    for number in range(6):
        story.assert_same(1, 2, 3, number=number)


def test_a_full_disk_stalls_it_and_is_said(stories):
    story = stories(7, checkpoint_ms=500)
    story.fill(100)
    story.leave()
    story.fill(1000)
    story.world.fill_disk(story.away, left_bytes=300_000)
    story.come_back()
    story.until(lambda: (one := story.catch_up()) and one.state is State.STALLED)

    found = story.catch_up()
    assert "the disk is full" in found.why

    story.world.heal()
    story.until(lambda: story.is_whole(1, 2, 3))
    story.assert_same(1, 2, 3)
    assert found.state is State.DONE


def test_the_pace_changes_while_it_runs(stories):
    story = stories(8, catchup_bytes_per_second=20_000)
    story.leave()
    story.fill(1000)
    story.come_back()
    story.until(lambda: story.away_end() > 0)
    began_at = story.world.now
    story.until(lambda: story.away_end() >= 200)
    slow = story.world.now - began_at
    assert slow > 3

    story.set_pace(0, node=story.first)
    began_at = story.world.now
    story.until(lambda: story.is_whole(1, 2, 3))

    assert story.world.now - began_at < slow
    story.assert_same(1, 2, 3)


def test_it_ends_though_more_is_written_than_the_pace_allows(stories):
    story = stories(9, catchup_bytes_per_second=5_000)
    story.leave()
    story.fill(500)
    is_over = False

    async def write() -> None:
        network = story.world.client("writer").network
        async with KafkaClient(bootstrap(story.first), network=network) as client:
            while not is_over:
                record = Record(value=b"x" * RECORD_BYTES, timestamp_ms=1)
                await client.produce(TOPIC, 0, encode_batch([record] * BATCH))
                await asyncio.sleep(0.5)  # 20 kB a second

    story.world.client("writer").spawn(write())
    story.come_back()
    raised: list[bool] = []

    def look() -> bool:
        raised.append(story.world.node(story.first).broker.replication.catching_up.all.pace.is_raised)
        return story.catch_up() is None and len(raised) > 100 and is_in_sync()

    def is_in_sync() -> bool:
        image = story.world.node(story.first).broker.image
        return story.away in image.topics[TOPIC].partitions[0].in_sync

    story.until(look, seconds=200)
    is_over = True

    assert any(raised)


# What is told of it.


def test_leader_and_follower_tell_how_they_stand(stories):
    story = stories(10, catchup_bytes_per_second=50_000)
    story.fill(100)
    story.leave()
    story.fill(1000)
    story.world.run(seconds=3)  # what was written just now would raise the pace
    story.come_back()
    story.until(lambda: story.away_end() >= 300)

    def told(node: int, topics: frozenset[str] | None = None) -> dict[str, Any]:
        broker = story.world.node(node).broker
        found: dict[str, Any] = story.world.do(replication_document(broker, topics))
        return found

    leader = told(story.first)
    assert (leader["leads"], leader["follows"]) == (1, 0)
    (behind,) = leader["behind"]
    (running,) = leader["catch_up"]["running"]
    assert (behind["node"], behind["state"], behind["in_sync"]) == (story.away, "catching_up", False)
    assert behind["catch_up"] == running["id"]
    assert behind["lag_records"] == running["records_left"] == 1100 - running["at"]
    assert (running["state"], running["from"], running["to"]) == ("running", 100, 1100)
    assert 0 < running["done"] < 1
    assert 40_000 < running["bytes_per_second"] < 70_000
    foretold = story.world.now + running["eta_ms"] / 1000
    by_node = {one["node"]: one for one in leader["followers"]}
    assert by_node[story.away]["catching_up"] == by_node[story.away]["behind"] == 1
    assert by_node[story.other]["in_sync"] == 1
    (mine,) = told(story.away)["following"]
    assert (mine["leader"], mine["state"]) == (story.first, "behind")
    assert mine["lag_records"] > 0

    story.until(lambda: story.is_whole(1, 2, 3))

    assert abs(story.world.now - foretold) < 5
    whole = told(story.first, frozenset({TOPIC}))
    assert whole["behind"] == []
    assert [one["state"] for one in whole["catch_up"]["ended"]] == ["done"]
    (led,) = whole["leading"]
    assert {one["state"] for one in led["followers"]} == {"in_sync"}
    (mine,) = told(story.away, frozenset({TOPIC}))["following"]
    assert (mine["state"], mine["lag_records"]) == ("following", 0)


def test_metrics_are_what_prometheus_reads(stories):
    story = stories(11)
    story.fill(100)
    story.leave()
    story.fill(500)
    story.come_back()
    story.until(lambda: story.is_whole(1, 2, 3))

    text = story.world.do(metrics_text(story.world.node(story.first).broker))

    values = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert values["tidelog_partitions_led"] == "1"
    assert values["tidelog_catch_ups_finished_total"] == "1"
    assert int(values["tidelog_catch_up_bytes_sent_total"]) >= 500 * RECORD_BYTES
    assert values[f'tidelog_follower_in_sync{{follower="{story.away}"}}'] == "1"
    assert values['tidelog_catch_ups{state="running"}'] == "0"
    for name in values:
        family = name.partition("{")[0]
        assert f"# TYPE {family} " in text


def test_a_follower_that_was_fenced_while_it_waited_for_its_pace_goes_on(stories):
    story = stories(12, catchup_bytes_per_second=5_000)
    story.leave()
    story.fill(200)
    story.world.run(seconds=3)  # what was written just now would raise the pace
    story.come_back()
    story.until(lambda: story.away_end() > 0)

    story.keep_heartbeats(seconds=5)
    story.until(lambda: (one := story.catch_up()) and one.state is State.INTERRUPTED)

    story.until(lambda: story.is_whole(1, 2, 3), seconds=120)
    story.assert_same(1, 2, 3)


def test_followers_that_were_fenced_while_they_waited_for_a_place_go_on(stories):
    story = stories(13, partitions=6, catchup_concurrent_max=1, catchup_bytes_per_second=40_000)
    story.leave()
    for number in range(6):
        story.fill(200, number)
    story.world.run(seconds=3)
    story.come_back()
    story.until(lambda: story.away_end() >= 0)

    def states() -> set[State]:
        brokers = [story.world.node(n).broker for n in (story.first, story.other)]
        return {one.state for broker in brokers for one in broker.replication.catching_up.all}

    story.until(lambda: State.WAITING in states())
    story.keep_heartbeats(seconds=5)
    story.until(lambda: State.INTERRUPTED in states())

    story.until(lambda: all(story.is_whole(1, 2, 3, number=number) for number in range(6)), seconds=120)
    for number in range(6):
        story.assert_same(1, 2, 3, number=number)
