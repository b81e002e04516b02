"""What the tests of the service share: somebody who orders, and somebody who looks at totals."""

import json
import time

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from totals import Totals


class Shop:
    """Orders and totals of one test, with a service between them."""

    def __init__(self, bootstrap: str, orders: str, totals: str) -> None:
        self._settings = {"bootstrap.servers": bootstrap, "socket.timeout.ms": 2000}
        self._names = {"orders": orders, "totals": totals}
        self._producer = Producer(self._settings | {"enable.idempotence": True})
        self.service = Totals(bootstrap, orders=orders, totals=totals)

    def order(self, customer: str, amount: int) -> None:
        """Order something; returns when it is acknowledged."""
        value = json.dumps({"amount": amount})
        self._producer.produce(self._names["orders"], key=customer, value=value)
        assert self._producer.flush(30) == 0, "not acknowledged"

    def serve(self, orders: int, seconds_max: float = 30.0) -> None:
        """Let the service run until it has taken so many orders."""
        deadline = time.monotonic() + seconds_max
        while orders > 0:
            assert time.monotonic() < deadline, f"{orders} orders did not come"
            orders -= self.service.step()

    def totals(self) -> dict[str, int]:
        """The last total of every customer."""
        consumer = Consumer(self._settings | {"group.id": "auditor"})
        try:
            place = TopicPartition(self._names["totals"], 0, OFFSET_BEGINNING)
            _, end = consumer.get_watermark_offsets(place, timeout=10)
            consumer.assign([place])
            found: dict[str, int] = {}
            offset = 0
            while offset < end:
                message = consumer.poll(1.0)
                if message is not None and message.error() is None:
                    found[message.key().decode()] = json.loads(message.value())["total"]
                    offset = message.offset() + 1
            return found
        finally:
            consumer.close()

    def close(self) -> None:
        self.service.close()


@pytest.fixture
def make_shop():
    """Shops that are closed when the test ends."""
    shops = []

    def make(bootstrap: str, orders: str, totals: str) -> Shop:
        shops.append(Shop(bootstrap, orders, totals))
        return shops[-1]

    yield make
    for shop in shops:
        shop.close()
