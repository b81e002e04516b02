"""The listener's promises about when requests are started."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
import uvloop

from tests.faces.raw import framed, header, request
from tidelog.config import NodeConfig
from tidelog.faces.kafka import KafkaListener
from tidelog.host import system_host
from tidelog.kafka.requests import Requests
from tidelog.kafka.sasl import UNPROVED_BYTES_MAX, Identities
from tidelog.model import Endpoint
from tidelog.wire.apis import Api

ANYWHERE = Endpoint(host="127.0.0.1", port=0)


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_request_that_comes_before_the_listener_is_open_waits_for_it(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    started: list[int] = []

    def handle(frame: Any, header: Any, *_: Any) -> None:
        started.append(header.api_key)

    async def main() -> None:
        requests = SimpleNamespace(config=NodeConfig(), handle=handle)
        listener = KafkaListener(system_host(), cast(Requests, requests), is_open=False)
        at = await listener.start(ANYWHERE)
        _, early = await asyncio.open_connection(at.host, at.port)
        early.write(request(Api.METADATA, 1))
        while not listener.connections:
            await asyncio.sleep(0)
        _, later = await asyncio.open_connection(at.host, at.port)
        while len(listener.connections) < 2:
            await asyncio.sleep(0)
        await asyncio.sleep(0.05)  # nothing is to be seen of a request that is not started

        assert started == []
        listener.open()
        later.write(request(Api.LIST_OFFSETS, 1))
        async with asyncio.timeout(10):
            while len(started) < 2:
                await asyncio.sleep(0)

        assert sorted(started) == [Api.LIST_OFFSETS, Api.METADATA]
        early.close()
        later.close()
        listener.close()
        await listener.stop()

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(main())


def test_whoever_has_proved_nothing_is_read_from_step_by_step() -> None:
    async def main() -> None:
        requests = SimpleNamespace(config=NodeConfig(), handle=lambda *_: None)
        identities = cast(Identities, SimpleNamespace())
        listener = KafkaListener(system_host(), cast(Requests, requests), identities=identities)
        at = await listener.start(ANYWHERE)
        _, stranger = await asyncio.open_connection(at.host, at.port)
        large = framed(header(Api.SASL_AUTHENTICATE, 0) + bytes(UNPROVED_BYTES_MAX - 100))
        for _ in range(64):
            stranger.write(large)
        while not listener.connections:
            await asyncio.sleep(0)
        (connection,) = listener.connections
        async with asyncio.timeout(10):
            while connection._reading:
                await asyncio.sleep(0)

        assert listener.intake.bytes_held < 8 * UNPROVED_BYTES_MAX
        stranger.close()
        listener.close()
        await listener.stop()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())
