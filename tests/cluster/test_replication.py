"""Partitions on several nodes, with real processes: killed, frozen, and cut off from each other."""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.cluster.clients import (
    ALL,
    NOT_ENOUGH_REPLICAS,
    NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    NOT_LEADER_OR_FOLLOWER,
    OK,
    REQUEST_TIMED_OUT,
    Reader,
    create_topic,
    write,
)
from tests.cluster.load import Load, check_account
from tests.faces.raw import RawClient
from tests.support.nodes import Nodes
from tidelog.wire.apis import Api

pytestmark = pytest.mark.slow

NODES = (1, 2, 101, 102, 103)
"""A controller that stops hands over to one of the others, to the first if all know the same."""
TRIO = (101, 102, 103)
SEED = 20261117
SLOW = {"per_second_max": 200, "unacknowledged_max": 100}

ESTABLISHED = "01"
"""In /proc/net/tcp."""


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    settings = {"offsets.topic.num.partitions": 4}
    with Nodes(tmp_path_factory.mktemp("five"), NODES, settings) as nodes:
        yield nodes
        for node in NODES:
            log = nodes[node].log.read_text()
            assert "Traceback" not in log, log


@pytest.fixture
def nodes(shared: Nodes) -> Nodes:
    """All five run, hear each other, and are not fenced, whatever the test before this one did."""
    shared.mend()
    shared.until_active(*NODES)
    return shared


def make_topic(nodes: Nodes, topic: str, replicas: list[Sequence[int]], **config: str) -> None:
    """Create a topic, and wait until every node knows it and every leader serves it."""
    create_topic(nodes.bootstrap, topic, replicas, **config)
    nodes.until_all_in_sync(topic)
    nodes.until(
        lambda: all(nodes.watermark(topic, number) == 0 for number in range(len(replicas))),
        f"{topic} is not led",
    )


def write_alone(nodes: Nodes, node: int, topic: str, value: bytes, offset: int) -> None:
    """Write with acks=1, as clients do: a leader whose lease is not known yet is asked again."""
    answers: list[tuple[int, int]] = []

    def is_answered() -> bool:
        answers.append(write(nodes[node].port, topic, value, acks=1))
        return answers[-1][0] != NOT_LEADER_OR_FOLLOWER

    nodes.until(is_answered, f"node {node} takes no writes")
    assert answers[-1] == (OK, offset)


def epochs(nodes: Nodes, node: int, topic: str) -> list[int]:
    """The leader epoch of every record in a node's copy, by offset."""
    headers = nodes.log_headers(node, topic)
    return [h.leader_epoch for h in headers for _ in range(h.base_offset, h.next_offset)]


def until_copies_are_equal(nodes: Nodes, topic: str, end: int) -> None:
    """Wait until all copies end there, and compare their bytes."""
    replicas = nodes.partition(topic).replicas
    nodes.until(
        lambda: all(nodes.log_end(node, topic) == end for node in replicas),
        f"the copies of {topic} do not all end at {end}",
    )
    assert len({nodes.log_bytes(node, topic) for node in replicas}) == 1


# The story of seed 002: 101 leads, 102 and 103 follow. Its epochs 1 and 2 are 0 and 1 here.


def make_others_control(nodes: Nodes) -> None:
    """Let the controller be a node that the story does not need."""
    for _ in NODES:
        controller = nodes.controller()
        if controller not in TRIO:
            break
        nodes.stop(controller)
        nodes.start(controller)
    nodes.until_active(*NODES)


def test_a_new_leaders_log_is_the_log_and_the_others_are_cut_where_they_part(nodes: Nodes) -> None:
    make_others_control(nodes)
    make_topic(nodes, "story", [TRIO])
    assert nodes.partition("story").leader == 101
    for offset in range(3):
        assert write(nodes[101].port, "story", b"%d" % offset, acks=ALL) == (OK, offset)

    # 3 and 4 reach 102 and not 103. Both are in sync, so they are not committed.
    nodes.network.cut(101, 103)
    for offset in (3, 4):
        write_alone(nodes, 101, "story", b"never", offset)
    nodes.until(lambda: nodes.log_end(102, "story") == 5, "102 does not follow")
    assert nodes.log_end(103, "story") == 3
    assert nodes.watermark("story") == 3
    # 102 falls asleep, and 101 dies: 103 is elected, the only one there who has all committed.
    nodes.freeze(102)
    nodes.until_active(1, 2, 101, 103)
    nodes.kill(101)
    nodes.until_all_see(lambda via: nodes.partition("story", 0, via).leader == 103, "103 leads not")
    elected = nodes.partition("story")
    assert (elected.epoch, set(elected.in_sync)) == (1, {103})
    # It takes writes. Nothing is committed by one replica alone, so nobody sees them.
    assert write(nodes[103].port, "story", b"x", acks=ALL) == (NOT_ENOUGH_REPLICAS, -1)
    for offset in (3, 4, 5, 6):
        write_alone(nodes, 103, "story", b"%d" % offset, offset)
    assert nodes.watermark("story") in (3, None)
    assert epochs(nodes, 102, "story") == [0, 0, 0, 0, 0]

    # 102 wakes up, is told where epoch 0 ends, cuts 3 and 4 off, and reads what is there instead.
    nodes.thaw(102)
    nodes.until(lambda: nodes.watermark("story") == 7, "the watermark does not rise to 7")
    assert epochs(nodes, 102, "story") == [0, 0, 0, 1, 1, 1, 1]
    nodes.until_in_sync("story", {102, 103})
    # And so does 101, when it comes back.
    nodes.network.mend()
    assert epochs(nodes, 101, "story") == [0, 0, 0, 0, 0]
    nodes.start(101)
    nodes.until_in_sync("story", TRIO)

    assert epochs(nodes, 101, "story") == [0, 0, 0, 1, 1, 1, 1]
    until_copies_are_equal(nodes, "story", 7)
    leader = nodes.partition("story").leader
    with RawClient(nodes[leader].port) as client:
        assert client.values("story") == [b"%d" % offset for offset in range(7)]


def test_the_last_of_three_replicas_leads_and_nothing_acknowledged_is_lost(nodes: Nodes) -> None:
    make_topic(nodes, "one-is-enough", [TRIO], min_insync_replicas="1")
    make_topic(nodes, "two-are-enough", [TRIO])
    one = Load("one", nodes.bootstrap, "one-is-enough", 1, SEED, **SLOW)
    two = Load("two", nodes.bootstrap, "two-are-enough", 1, SEED, **SLOW)
    try:
        one.start()
        two.start()
        one.wait_acknowledged(100)
        two.wait_acknowledged(100)

        first = nodes.partition("one-is-enough").leader
        nodes.kill(first)
        left = set(TRIO) - {first}
        for topic in ("one-is-enough", "two-are-enough"):
            nodes.until_in_sync(topic, left)
        one.wait_acknowledged(100)
        two.wait_acknowledged(100)
        second = nodes.partition("one-is-enough").leader
        assert second in left
        nodes.kill(second)
        (last,) = left - {second}
        for topic in ("one-is-enough", "two-are-enough"):
            nodes.until_in_sync(topic, {last})
            assert nodes.partition(topic).leader == last
        one.wait_acknowledged(100)
        port = nodes[last].port
        assert write(port, "two-are-enough", b"x", acks=ALL) == (NOT_ENOUGH_REPLICAS, -1)
        acknowledged = two.count_acknowledged
        one.wait_acknowledged(100)
        assert two.count_acknowledged == acknowledged, "one replica alone committed something"

        nodes.start(second)
        two.wait_acknowledged(100)
        nodes.start(first)
        for topic in ("one-is-enough", "two-are-enough"):
            nodes.until_in_sync(topic, TRIO)
        one.stop()
        two.stop()
        for load, topic in ((one, "one-is-enough"), (two, "two-are-enough")):
            total = check_account([load], nodes.bootstrap, topic, 1)
            until_copies_are_equal(nodes, topic, total)
    finally:
        one.abandon()
        two.abandon()


def test_a_minority_acknowledges_nothing_and_forgets_it_when_it_is_healed(nodes: Nodes) -> None:
    make_topic(nodes, "parted", [TRIO])
    old = nodes.partition("parted")
    alone, others = nodes[old.leader], [node for node in NODES if node != old.leader]
    assert write(alone.port, "parted", b"before", acks=ALL) == (OK, 0)
    nodes.until(lambda: nodes.watermark("parted") == 1, "the first record is not committed")

    nodes.network.isolate(old.leader)
    refused = write(alone.port, "parted", b"minority", acks=ALL, timeout_ms=1000)[0]
    assert refused in (REQUEST_TIMED_OUT, NOT_ENOUGH_REPLICAS_AFTER_APPEND)
    assert nodes.log_end(old.leader, "parted") > 1, "it was to hold what is not committed"
    # Until its lease ends nobody else leads, and who asks it alone is answered by it alone.
    nodes.until(
        lambda: write(alone.port, "parted", b"minority", acks=1)[0] == NOT_LEADER_OR_FOLLOWER,
        "the lease does not end",
        10,
    )
    held = nodes.log_end(old.leader, "parted")
    nodes.until_all_see(
        lambda via: nodes.partition("parted", 0, via).epoch > old.epoch,
        "the majority elects nobody",
        without=[old.leader],
    )
    new = nodes.partition("parted", 0, others[0])
    assert new.leader != old.leader
    assert write(nodes[new.leader].port, "parted", b"majority", acks=ALL) == (OK, 1)
    assert write(alone.port, "parted", b"minority", acks=1)[0] == NOT_LEADER_OR_FOLLOWER
    refused = write(alone.port, "parted", b"minority", acks=ALL, timeout_ms=1000)[0]
    assert refused in (REQUEST_TIMED_OUT, NOT_ENOUGH_REPLICAS_AFTER_APPEND, NOT_ENOUGH_REPLICAS)
    assert nodes.log_end(old.leader, "parted") >= held
    with RawClient(alone.port) as client:
        assert client.values("parted") == [b"before"], "only what is committed is seen"

    nodes.network.mend()
    nodes.until_in_sync("parted", TRIO)

    until_copies_are_equal(nodes, "parted", 2)
    with RawClient(nodes[nodes.partition("parted").leader].port) as client:
        assert client.values("parted") == [b"before", b"majority"]


def connections(nodes: Nodes) -> int:
    """How many connections the nodes have from each other."""
    ports = {f"{nodes.network.listener_port[node]:04X}" for node in NODES}
    table = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(row[1].rpartition(":")[2] in ports and row[3] == ESTABLISHED for row in table)


def test_nodes_have_one_connection_to_each_other_however_many_partitions_they_share(nodes: Nodes) -> None:
    def until_written(topic: str, partitions: int) -> None:
        load = Load(topic, nodes.bootstrap, topic, partitions, SEED)
        try:
            load.start()
            load.wait_acknowledged(10 * partitions)
            load.stop()
        finally:
            load.abandon()
        nodes.until_all_in_sync(topic)

    pairs = len(NODES) * (len(NODES) - 1)
    make_topic(nodes, "narrow", [TRIO])
    until_written("narrow", 1)
    # Those that share nothing yet meet in their own time: after faults, when their backoff ends.
    nodes.until(lambda: connections(nodes) == pairs, "not all nodes have met")
    wide = [[NODES[(first + n) % len(NODES)] for n in range(3)] for first in range(200)]
    create_topic(nodes.bootstrap, "wide", wide)
    until_written("wide", 200)
    assert Counter(p.leader for p in nodes.partitions("wide")).keys() == set(NODES)

    assert connections(nodes) == pairs


def coordinator(nodes: Nodes, group: str) -> int:
    fields = {"key": group, "key_type": 0}
    return int(nodes.ask(Api.FIND_COORDINATOR, 3, fields).node_id)


def test_a_group_and_a_producer_go_on_when_their_coordinator_and_leaders_die(nodes: Nodes) -> None:
    make_topic(nodes, "lasting", [NODES[n:] + NODES[:n] for n in range(3)])
    load = Load("lasting", nodes.bootstrap, "lasting", 3, SEED, **SLOW)
    reader = Reader(nodes.bootstrap, "readers", "lasting")
    try:
        load.start()
        reader.start()
        reader.wait_read(100)
        for victim in (coordinator(nodes, "readers"), nodes.partition("lasting").leader):
            nodes.kill(victim)
            load.wait_acknowledged(100)
            reader.wait_read(reader.count + 100)
            nodes.start(victim)
            nodes.until_all_in_sync("lasting")
        load.stop()
        reader.wait_read(load.count_acknowledged)
        reader.stop()
    finally:
        load.abandon()
        reader.stop()

    assert reader.failure is None
    check_account([load], nodes.bootstrap, "lasting", 3)
    for partition, acknowledged in load.acknowledged.items():
        assert reader.offsets[partition] == list(range(len(acknowledged)))
