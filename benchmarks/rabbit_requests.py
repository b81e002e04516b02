"""What is asked of RabbitMQ's quorum queues, beside ours.

Rule 1: what stands beside each other is the same work as far as the two have it. RabbitMQ keeps no
        pointers: a read is one message that is gone when it is sent. To receive and acknowledge is
        what its consumers do, which are sent messages and do not ask for them.
Rule 2: there are as many queues as of ours. Of three nodes each is asked by a third of the
        connections, leads a third of the queues, and keeps a copy of all.
Rule 3: what is taken was put there for that, and is counted; what is added is never taken.
"""

from collections.abc import Iterable, Sequence
from functools import partial
from time import monotonic, sleep
from typing import Final

from benchmarks.amqp import Channel, publish
from benchmarks.closed import Timed
from benchmarks.http_requests import VALUE
from benchmarks.queue_requests import (
    APPEND,
    COUNTS,
    FILL_MANY,
    FILL_SECONDS_MAX,
    MANY,
    PUBLISH,
    PUBLISH_MANY,
    QUEUES,
    READ,
    TAKE,
    TAKE_MANY,
)
from benchmarks.queue_turns import Stock
from benchmarks.rabbit_peer import Rabbit
from benchmarks.rabbit_turns import Getting, Publishing, Taking, Talk, talk_closed

CHECK_SECONDS_MAX: Final = 20.0
RABBIT: Final = {
    APPEND: "publish, confirmed",
    READ: "get without ack",
    PUBLISH: "publish, confirmed",
    PUBLISH_MANY: f"{MANY} published, confirmed",
    TAKE: "consume + ack",
    TAKE_MANY: f"consume + ack of {MANY}",
}
"""What RabbitMQ is asked for the same."""


class RabbitQueues:
    """The quorum queues of a cluster, asked at all of its nodes in turn."""

    def __init__(self, rabbit: Rabbit) -> None:
        self._ports = rabbit.ports
        self._added = self._declare("added")
        self._taken = self._declare("taken")
        self._read = self._declare("read")
        self._stocks = {queue: Stock(0) for queue in (*self._taken, *self._read)}
        self._published = 0

    def _declare(self, name: str) -> list[str]:
        """Make a queue for each of ours; who is asked for it leads it."""
        queues = [f"{name}-{number}" for number in range(QUEUES)]
        for number, queue in enumerate(queues):
            channel = Channel(self._port(number))
            channel.declare(queue)
            channel.close()
        return queues

    def _port(self, number: int) -> int:
        return self._ports[number % len(self._ports)]

    def prepare(self, kind: str, stock: int) -> None:
        queues = {READ: self._read, TAKE: self._taken, TAKE_MANY: self._taken}.get(kind, [])
        for queue in queues:
            have = self._stocks[queue]
            times = -(-max(0, stock - have.left) // FILL_MANY)
            if times:
                wanted = Stock(times * FILL_MANY)
                self._publish([queue], FILL_MANY, 1, FILL_SECONDS_MAX, wanted)
                assert wanted.left == 0, "there was time enough to fill the queues"
                have.left += times * FILL_MANY

    def _publish(
        self, queues: Sequence[str], count: int, connections: int, seconds: float, wanted: Stock | None = None
    ) -> Timed:
        requests = [publish(queue, VALUE.encode()) * count for queue in queues]
        talks = []
        for number in range(connections):
            channel = Channel(self._port(number))
            channel.confirm()
            at = number * len(requests) // connections
            talks.append((channel, partial(Publishing, requests, count, at, wanted)))
        return talk_closed(talks, seconds=seconds)

    def ask(self, kind: str, connections: int, seconds: float) -> Timed:
        count = COUNTS[kind]
        if kind in (APPEND, PUBLISH, PUBLISH_MANY):
            timed = self._publish(self._added, count, connections, seconds)
            self._published += timed.requests * count
            return timed
        talks = []
        for number in range(connections):
            # Whoever asks a node's queues through that node alone would not meet the others.
            channel = Channel(self._port(number + number // QUEUES))
            talks.append((channel, partial(self._talk, kind, count, number % QUEUES)))
        return talk_closed(talks, seconds=seconds)

    def _talk(self, kind: str, count: int, number: int) -> Talk:
        queue = (self._read if kind == READ else self._taken)[number]
        stock = self._stocks[queue]
        return Getting(queue, stock) if kind == READ else Taking(queue, count, stock)

    def check(self) -> None:
        self._check(self._added, self._published)
        self._check(self._stocks, sum(one.left for one in self._stocks.values()))

    def _check(self, queues: Iterable[str], wanted: int) -> None:
        """Whether so many messages are there, once those of the last turns have gone back."""
        channel = Channel(self._ports[0])
        give_up_at = monotonic() + CHECK_SECONDS_MAX
        while True:
            found = sum(channel.declare(queue, is_passive=True) for queue in queues)
            if found == wanted:
                break
            assert monotonic() < give_up_at, f"RabbitMQ has {found} messages instead of {wanted}"
            sleep(0.1)
        channel.close()
