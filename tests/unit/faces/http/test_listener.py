"""Connections that come before the code that serves them."""

import asyncio
from types import SimpleNamespace
from typing import Any

from tidelog.faces.http.listener import HttpListener

CONNECTIONS = 50


class Transport(asyncio.Transport):
    """A connection of which somebody wants to know who serves it."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        pass


def test_who_waits_is_served_in_the_order_of_coming():
    """Not in an order that changes from run to run: a seed of the simulator would, too."""
    served: list[int] = []

    class Connection(asyncio.Protocol):
        def connection_made(self, transport: Any) -> None:
            served.append(transport.number)

    async def load(work: Any) -> Any:
        return lambda node: SimpleNamespace(connection=Connection)

    config = SimpleNamespace(connections_max=CONNECTIONS)
    node: Any = SimpleNamespace(broker=SimpleNamespace(config=config))
    host: Any = SimpleNamespace(offload=SimpleNamespace(run=load))

    async def come() -> None:
        listener = HttpListener(host, node)
        for number in range(CONNECTIONS):
            listener._accept().connection_made(Transport(number))
        assert listener._loading is not None
        await listener._loading

    asyncio.run(come())

    assert served == list(range(CONNECTIONS))
