"""Connections of which one side does not know that the other has gone."""

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.unit.peers.peer import HOST, Peer, Ping, Pong, link_to, run
from tidelog.host import give_up_on_silence
from tidelog.model import Endpoint
from tidelog.peers.link import Link
from tidelog.peers.stream import KERNEL_SECONDS_MAX, PeerUnreachable, Stream
from tidelog.peers.wire import ANSWER, Welcome, encode_frame

MORE_THAN_KERNELS_HOLD = "x" * 64 * 1024 * 1024


class Deaf:
    """A peer that says who it is, reads nothing more, and closes its half when told to."""

    def __init__(self) -> None:
        self.closes = asyncio.Event()
        self.ends = asyncio.Event()

    async def start(self) -> "Deaf":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=1024)
        self.endpoint = Endpoint(host="127.0.0.1", port=self._server.sockets[0].getsockname()[1])
        return self

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        welcome = Welcome(cluster="ours", node=2, directory="there")
        writer.writelines(encode_frame(ANSWER, 0, welcome))
        await self.closes.wait()
        self._server.close()
        writer.write_eof()
        await self.ends.wait()
        writer.transport.abort()


def test_a_peer_that_closed_its_half_is_given_up_with_bytes_unsent():
    async def story() -> None:
        peer = await Deaf().start()
        link = link_to(peer)  # type: ignore[arg-type]
        asking = asyncio.ensure_future(link.ask(Ping(text=MORE_THAN_KERNELS_HOLD), Pong, seconds_max=3600))
        while not link.is_connected:
            await asyncio.sleep(0.001)

        peer.closes.set()

        with pytest.raises(PeerUnreachable, match="closed the connection"):
            await asking
        assert link.status().connections_lost == 1
        peer.ends.set()
        await asyncio.sleep(0)
        link.close()

    run(story())


@contextmanager
def patience_of(seconds: float) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tidelog.peers.link.SILENT_SECONDS_MAX", seconds)
        yield


async def runs_out_of_time(link: Link) -> None:
    with pytest.raises(PeerUnreachable, match="in time"):
        await link.ask(Ping(), Pong, seconds_max=0.02)
    await asyncio.sleep(0)  # whether to abandon the connection is decided one turn later


def test_a_connection_by_which_nothing_comes_is_abandoned_for_another():
    async def story() -> None:
        peer = await Peer().start()
        link = link_to(peer)
        await link.ask(Ping(), Pong, seconds_max=5)
        peer.keeps_quiet = True
        with patience_of(0.01):
            await runs_out_of_time(link)
        assert link.status().connections_lost == 1

        peer.keeps_quiet = False

        assert (await link.ask(Ping(text="again"), Pong, seconds_max=5)).text == "again"
        assert link.status().attempts == 2
        link.close()
        peer.listener.close()

    run(story())


def test_requests_that_run_out_of_time_one_after_the_other_add_up():
    async def story() -> None:
        peer = await Peer().start()
        link = link_to(peer)
        await link.ask(Ping(), Pong, seconds_max=5)
        peer.keeps_quiet = True
        requests = 0
        with patience_of(0.1):
            while link.status().connections_lost == 0:
                await runs_out_of_time(link)
                requests += 1

        assert requests > 1
        link.close()
        peer.listener.close()

    run(story())


def test_a_peer_that_answers_something_keeps_its_connection():
    async def story() -> None:
        peer = await Peer().start()
        link = link_to(peer)
        await link.ask(Ping(), Pong, seconds_max=5)
        peer.keeps_quiet = True
        slow = asyncio.ensure_future(runs_out_of_time(link))
        while not peer.places:
            await asyncio.sleep(0.001)
        peer.keeps_quiet = False
        with patience_of(0.0001):
            while not slow.done():
                await link.ask(Ping(), Pong, seconds_max=5)
            await slow

        assert link.status().connections_lost == 0
        link.close()
        peer.listener.close()

    run(story())


def test_a_process_that_connects_anew_ends_its_earlier_connection():
    async def story() -> None:
        peer = await Peer().start()
        earlier, anew, other = link_to(peer), link_to(peer), link_to(peer, node=3)
        await earlier.ask(Ping(), Pong, seconds_max=5)
        await other.ask(Ping(), Pong, seconds_max=5)
        earlier._where = lambda: ()  # a process would have forgotten this link by now

        await anew.ask(Ping(), Pong, seconds_max=5)

        while earlier.status().connections_lost == 0:
            await asyncio.sleep(0.001)
        assert peer.gone == [1]
        assert anew.status().connections_lost == other.status().connections_lost == 0
        for link in (earlier, other, anew):
            link.close()
        peer.listener.close()

    run(story())


def test_the_kernel_probes_both_ends_and_gives_up_on_what_is_not_acknowledged():
    made: list[Stream] = []

    class Noted(Stream):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            super().connection_made(transport)
            made.append(self)

    async def story() -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("tidelog.peers.link.Stream", Noted)
            patch.setattr("tidelog.peers.listener.Stream", Noted)
            peer = await Peer().start()
            link = link_to(peer)
            await link.ask(Ping(), Pong, seconds_max=5)

        assert len(made) == 2
        for stream in made:
            assert stream._transport is not None
            kernel = stream._transport.get_extra_info("socket")
            assert kernel.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
            unacknowledged_ms = kernel.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
            assert unacknowledged_ms == KERNEL_SECONDS_MAX * 1000
        link.close()
        peer.listener.close()

    run(story())


def test_a_client_may_leave_its_answers_unread_for_longer_than_the_kernel_waits_for_peers():
    async def story() -> None:
        server = await HOST.network.serve(asyncio.Protocol, "127.0.0.1", 0)
        at = server.sockets[0].getsockname()  # type: ignore[attr-defined]
        transport, _ = await HOST.network.connect(asyncio.Protocol, at[0], at[1])

        give_up_on_silence(transport)

        kernel = transport.get_extra_info("socket")
        assert kernel.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert kernel.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 0
        transport.close()
        server.close()

    run(story())
