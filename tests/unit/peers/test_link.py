"""A link and its breaker: what is counted, what is logged, when a try goes."""

import asyncio
import logging
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.peers.peer import HOST, Peer, Ping, Pong, link_to, run
from tidelog.peers.breaker import BreakerState
from tidelog.peers.link import Link
from tidelog.peers.stream import PeerUnreachable, Stream
from tidelog.peers.wire import PeerRefused


class Hands:
    """A clock that stands still until it is moved, and a draw that is always the longest."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.draws = 0

    def monotonic(self) -> float:
        return self.now

    def random(self) -> float:
        self.draws += 1
        return 1.0


class LateNetwork:
    """The first connection is refused, but only when the test says so; others are made."""

    def __init__(self) -> None:
        self.tried = asyncio.Event()
        self.refuse_now = asyncio.Event()

    async def connect(self, *place: Any) -> Any:
        if not self.tried.is_set():
            self.tried.set()
            await self.refuse_now.wait()
            raise ConnectionRefusedError
        return await HOST.network.connect(*place)


def held(peer: Peer, *, cluster: str = "ours") -> tuple[Link, Hands]:
    """A link with such a clock."""
    hands = Hands()
    host: Any = replace(HOST, clock=hands, random=hands)  # type: ignore[arg-type]
    return link_to(peer, cluster=cluster, host=host), hands


async def fails(link: Link) -> None:
    with pytest.raises((PeerUnreachable, PeerRefused)):
        await link.ask(Ping(), Pong, seconds_max=5)


async def lose(peer: Peer, link: Link) -> None:
    """Close the peer, and wait until the link has looked for it once."""
    peer.listener.close()
    while link.status().state is BreakerState.CLOSED:
        await asyncio.sleep(0.001)


def test_a_peer_that_is_gone_is_tried_at_once_then_later_and_later():
    async def story() -> None:
        peer = await Peer().start()
        link, hands = held(peer)
        await link.ask(Ping(), Pong, seconds_max=5)
        assert link.status().attempts == 1

        await lose(peer, link)  # the clock stood still: that try went at once

        assert (link.status().attempts, link.status().times_opened) == (2, 1)
        for wait in (0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0):
            attempts = link.status().attempts
            hands.now += wait - 0.001
            await fails(link)
            assert link.status().attempts == attempts
            hands.now += 0.002
            await fails(link)
            assert link.status().attempts == attempts + 1
        status = link.status()
        assert (status.failures, status.consecutive_failures, status.times_opened) == (8, 8, 1)
        assert status.requests_failed == 14
        assert status.last_error == "nobody listens there"
        assert hands.draws == 8
        link.close()

    run(story())


def test_while_a_try_is_under_way_everybody_waits_for_that_one():
    async def story() -> None:
        peer = await Peer().start()
        peer.listener.close()
        link, hands = held(peer)
        await fails(link)
        hands.now += 1

        asking = [asyncio.ensure_future(fails(link)) for _ in range(50)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert link.status().state is BreakerState.HALF_OPEN
        await asyncio.gather(*asking)

        status = link.status()
        assert (status.state, status.attempts) == (BreakerState.OPEN, 2)
        assert status.requests_failed == 51
        link.close()

    run(story())


def test_a_try_that_began_before_proves_nothing_of_who_listens_since():
    """The refusal may be late: the peer has started while it was on its way."""

    async def story() -> None:
        peer = await Peer().start()
        network = LateNetwork()
        host: Any = replace(HOST, network=network)  # type: ignore[arg-type]
        link = link_to(peer, host=host)
        asking = asyncio.ensure_future(fails(link))
        await network.tried.wait()

        looking = asyncio.ensure_future(link.is_down())
        await asyncio.sleep(0)
        network.refuse_now.set()

        assert not await looking
        await asking
        link.close()
        peer.listener.close()

    run(story())


def test_a_peer_is_down_only_if_it_listens_at_none_of_its_places():
    async def story() -> None:
        old, peer = await Peer().start(), await Peer().start()
        old.listener.close()
        link = link_to(peer)
        link._where = lambda: (old.endpoint, peer.endpoint)

        assert not await link.is_down()
        link.close()
        peer.listener.close()

    run(story())


def test_asking_whether_a_peer_is_down_forces_one_try():
    async def story() -> None:
        peer = await Peer().start()
        peer.listener.close()
        link, _ = held(peer)

        assert await link.is_down()
        await fails(link)
        assert link.status().attempts == 1
        assert await link.is_down()

        assert link.status().attempts == 2
        assert link.status().requests_failed == 1  # a look is no request
        link.close()

    run(story())


def test_one_line_tells_that_a_peer_is_out_of_reach_and_one_that_it_is_back(caplog):
    caplog.set_level(logging.INFO, logger="tidelog.peers")

    async def story() -> None:
        peer = await Peer().start()
        link, hands = held(peer)
        await link.ask(Ping(), Pong, seconds_max=5)
        assert caplog.messages == []

        await lose(peer, link)
        for _ in range(5):
            hands.now += 1
            await fails(link)
        assert caplog.messages == ["node 2 is out of reach: nobody listens there"]

        again = Peer()
        again.endpoint = peer.endpoint
        await again.start()
        hands.now += 1
        await link.ask(Ping(), Pong, seconds_max=5)

        assert caplog.messages[1:] == ["node 2 is reached again, after 6.0 s"]
        assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
        status = link.status()
        assert (status.state, status.since) == (BreakerState.CLOSED, 1006.0)
        assert (status.attempts, status.failures, status.consecutive_failures) == (8, 6, 0)
        link.close()
        again.listener.close()

    run(story())


def test_a_peer_that_is_not_there_yet_is_no_warning(caplog):
    caplog.set_level(logging.INFO, logger="tidelog.peers")

    async def story() -> None:
        peer = await Peer().start()
        peer.listener.close()
        link = link_to(peer)

        await fails(link)

        assert [record.levelname for record in caplog.records] == ["INFO"]
        link.close()

    run(story())


def test_a_refusal_opens_the_breaker_and_is_told_once(caplog):
    async def story() -> None:
        peer = await Peer().start()
        link, hands = held(peer, cluster="another")

        for _ in range(4):
            await fails(link)
            hands.now += 1

        status = link.status()
        assert (status.state, status.failures) == (BreakerState.OPEN, 4)
        assert "belongs to cluster another" in str(status.last_error)
        told = [record for record in caplog.records if record.name == "tidelog.peers.link"]
        assert [record.levelname for record in told] == ["ERROR"]
        link.close()
        peer.listener.close()

    run(story())


def test_every_kind_of_request_without_an_answer_is_counted():
    async def story() -> None:
        peer = await Peer().start()
        link = link_to(peer)
        await link.ask(Ping(), Pong, seconds_max=5)
        assert link.status().requests_failed == 0

        with pytest.raises(PeerUnreachable, match="not today"):
            await link.ask(Ping(text="fail"), Pong, seconds_max=5)
        assert link.status().requests_failed == 1

        peer.keeps_quiet = True
        with pytest.raises(PeerUnreachable, match="in time"):
            await link.ask_data(Ping(), Pong, seconds_max=0.02)
        assert link.status().requests_failed == 2
        assert link.status().state is BreakerState.CLOSED  # slow is not gone

        peer.places.clear()
        asking = [asyncio.ensure_future(fails(link)) for _ in range(3)]
        while len(peer.places) < 3:
            await asyncio.sleep(0.001)
        peer.listener.close()
        await asyncio.gather(*asking)

        status = link.status()
        assert (status.requests_failed, status.connections_lost) == (5, 1)
        link.close()

    run(story())


def test_a_fault_of_ours_while_connecting_does_not_leave_it_half_open():
    async def story() -> None:
        peer = await Peer().start()
        gone = await Peer().start()
        gone.listener.close()
        link, hands = held(peer)
        where, link._where = link._where, lambda: (gone.endpoint,)
        await fails(link)
        hands.now += 1
        link._where = {}.popitem
        with pytest.raises(KeyError):
            await link.ask(Ping(), Pong, seconds_max=5)
        assert link.status().state is BreakerState.OPEN

        link._where = where

        assert (await link.ask(Ping(text="fine"), Pong, seconds_max=5)).text == "fine"
        link.close()
        peer.listener.close()

    run(story())


def test_a_connection_lost_right_behind_its_welcome_is_not_taken_for_one(monkeypatch):
    class Brief(Stream):
        def _take(self, kind: int, number: int, message: memoryview) -> None:
            super()._take(kind, number, message)
            self.connection_lost(None)  # before whoever waits for the answer runs

    async def story() -> None:
        peer = await Peer().start()
        link, hands = held(peer)
        with monkeypatch.context() as patch:
            patch.setattr("tidelog.peers.link.Stream", Brief)
            await fails(link)
        hands.now += 1

        assert (await link.ask(Ping(text="again"), Pong, seconds_max=5)).text == "again"
        assert (link.status().attempts, link.status().failures) == (2, 1)
        link.close()
        peer.listener.close()

    run(story())


def test_who_waits_for_a_connection_hears_that_the_link_was_closed():
    """Not that it is cancelled: it would answer its own client as if it had a bug."""

    async def story() -> None:
        peer = await Peer().start()
        link, _ = held(peer)
        never = asyncio.get_running_loop().create_future()

        async def connect(*_: object) -> Any:
            await never

        link._host = replace(link._host, network=SimpleNamespace(connect=connect))
        asking = asyncio.create_task(link.ask(Ping(), Pong, seconds_max=5))
        while link._connecting is None:
            await asyncio.sleep(0)
        link.close()

        with pytest.raises(PeerUnreachable, match="lets go"):
            await asking
        peer.listener.close()

    run(story())


def test_who_is_cancelled_while_it_waits_for_a_connection_hears_of_that():
    async def story() -> None:
        peer = await Peer().start()
        link, _ = held(peer)
        asking = asyncio.create_task(link.ask(Ping(), Pong, seconds_max=5))
        while link._connecting is None:
            await asyncio.sleep(0)
        asking.cancel()
        link.close()

        with pytest.raises(asyncio.CancelledError):
            await asking
        peer.listener.close()

    run(story())
