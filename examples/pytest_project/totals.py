"""A service that reads orders, and writes what each customer has spent so far.

    orders   key: customer, value: {"amount": 5}
    totals   key: customer, value: {"total": 42}; the last one counts

It keeps nothing for itself: when it starts it reads all orders again. So it can be killed at any
moment, and a total that was written twice is the same total.
"""

import json
from collections import Counter

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, TopicPartition


class Totals:
    """One service. Call `step` for as long as it should run."""

    def __init__(self, bootstrap: str, *, orders: str, totals: str) -> None:
        settings = {
            "bootstrap.servers": bootstrap,
            "socket.timeout.ms": 2000,  # how long a silent broker is waited for
            "reconnect.backoff.max.ms": 500,
        }
        self._totals_topic = totals
        self._totals: Counter[str] = Counter()
        self._consumer = Consumer(settings | {"group.id": "totals", "enable.auto.commit": False})
        self._producer = Producer(settings | {"enable.idempotence": True})
        found = self._consumer.list_topics(orders, timeout=10).topics[orders].partitions
        self._consumer.assign([TopicPartition(orders, number, OFFSET_BEGINNING) for number in found])

    def step(self, seconds_max: float = 0.1) -> int:
        """Take the orders that are there, and write the totals that they change; how many."""
        taken = 0
        changed = set()
        for message in self._consumer.consume(100, seconds_max):
            if message.error() is not None:
                self._check(message.error())
                continue
            customer = message.key().decode()
            self._totals[customer] += json.loads(message.value())["amount"]
            changed.add(customer)
            taken += 1
        for customer in sorted(changed):
            value = json.dumps({"total": self._totals[customer]})
            self._producer.produce(self._totals_topic, key=customer, value=value)
        if self._producer.flush(30):
            raise TimeoutError("the totals could not be written within 30 s")
        return taken

    def close(self) -> None:
        self._consumer.close()

    @staticmethod
    def _check(error: KafkaError) -> None:
        """Go on with what heals by itself, as a leader that is looked for."""
        if error.fatal():
            raise RuntimeError(error.str())
