"""`tidelog consume --group` at a real node, alone and beside a member of another library."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka import Consumer

from tests.clients.test_commands import PARTITIONS, RECORDS, SECONDS_MAX, committed, group, orders, tidelog
from tests.support.node import NodeProcess

__all__ = ["group", "orders", "tidelog"]  # fixtures


def test_a_group_goes_on_behind_what_was_printed(tidelog, orders, group):
    first = tidelog("consume", orders, "--group", group, "--from-beginning", "--max", 7)
    after = committed(tidelog, group)
    rest = tidelog("consume", orders, "--group", group, "--no-follow", "--show-offset")

    assert first.code == rest.code == 0
    assert len(first.out.splitlines()) == sum(one or 0 for one in after) == 7
    assert len(set(rest.out.splitlines())) == PARTITIONS * RECORDS - 7
    assert committed(tidelog, group) == [RECORDS] * PARTITIONS
    assert tidelog("groups", "describe", group, "--json").json["members"] == []


def test_a_group_without_offsets_begins_at_the_end_unless_told(tidelog, orders, group):
    result = tidelog("consume", orders, "--group", group, "--timeout", 0.1)

    assert (result.code, result.out) == (0, "")


def test_a_group_is_not_told_where_to_begin(tidelog, orders, group):
    for option in (("--offset", 3), ("--tail", 1), ("--partition", 0)):
        result = tidelog("consume", orders, "--group", group, *option)
        assert result.code == 2 and "tidelog groups reset" in result.err


def test_partitions_are_shared_with_a_member_of_another_library(tidelog, node, orders, group):
    with another_member(node, group, orders) as assignment:
        wait_for(lambda: len(assignment()) == PARTITIONS)
        result = tidelog("consume", orders, "--group", group, "--from-beginning", "--no-follow")
        wait_for(lambda: len(assignment()) == PARTITIONS)  # it has left, and left nothing behind

    assert result.code == 0, result.err
    assert len(result.out.splitlines()) in (RECORDS, 2 * RECORDS)


def wait_for(holds) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@contextmanager
def another_member(node: NodeProcess, group: str, topic: str) -> Iterator:
    """A consumer that takes part in every rebalance, at the end of the topic."""
    consumer = Consumer(
        {
            "bootstrap.servers": node.bootstrap,
            "group.id": group,
            "enable.auto.commit": False,
            "partition.assignment.strategy": "range",
            "auto.offset.reset": "latest",
            "heartbeat.interval.ms": 100,
        }
    )
    consumer.subscribe([topic])
    stopping = threading.Event()
    assigned: list[object] = []

    def poll() -> None:  # a consumer is one thread's: it is asked for its assignment there, too
        while not stopping.is_set():
            consumer.poll(0.05)
            assigned[:] = consumer.assignment()

    thread = threading.Thread(target=poll)
    thread.start()
    try:
        yield lambda: assigned
    finally:
        stopping.set()
        thread.join()
        consumer.close()
