"""A node for the tests to talk to, and a link to it, through the real network."""

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

import msgspec
import uvloop

from tidelog.host import Bytes, Host, system_host
from tidelog.model import Endpoint, NodeId
from tidelog.peers.handshake import Trust
from tidelog.peers.link import Link
from tidelog.peers.listener import Answer, PeerListener
from tidelog.peers.wire import PROTOCOL, Hello, Message, Welcome


class Ping(Message, frozen=True, tag=True):
    text: str = ""


class Who(Message, frozen=True, tag=True):
    """What guests may ask."""

    text: str = ""


class Pong(Message, frozen=True, tag=True):
    text: str = ""


HOST = system_host()
HERE = Endpoint(host="127.0.0.1", port=0)
EVERYBODY = Trust()


class Peer:
    """A node that answers pings, unless told otherwise."""

    def __init__(
        self, node: NodeId = 2, cluster: str | None = "ours", trust: Trust = EVERYBODY, host: Host = HOST
    ) -> None:
        self.node = node
        self.cluster = cluster
        self.heard: list[tuple[NodeId, Any]] = []
        self.gone: list[NodeId] = []
        self.places: list[Answer] = []
        self.keeps_quiet = False
        self.data: Sequence[Bytes] | None = None  # goes beside its answers
        self.listener = PeerListener(
            host,
            me=lambda: Welcome(cluster=self.cluster, node=node, directory="there"),
            messages=msgspec.msgpack.Decoder(Ping | Who),
            receive=self._receive,
            on_gone=self.gone.append,
            trust=trust,
            for_guests=(Who,),
        )
        self.endpoint = HERE

    async def start(self) -> "Peer":
        self.endpoint = await self.listener.start(self.endpoint)
        return self

    def _receive(self, node: NodeId, message: Any, place: Answer | None) -> None:
        self.heard.append((node, message))
        if place is None:
            return
        if message.text == "fail":
            place.fail("not today")
        elif self.keeps_quiet:
            self.places.append(place)
        elif self.data is not None:
            place.send_with(Pong(text=message.text), self.data)
        else:
            place.send(Pong(text=message.text))


def link_to(
    peer: Peer,
    *,
    node: NodeId = 1,
    wanted: NodeId = 2,
    cluster: str | None = "ours",
    down: list[NodeId] | None = None,
    protocol: int = PROTOCOL,
    host: Host = HOST,
    trust: Trust = EVERYBODY,
    at: Endpoint | None = None,
) -> Link:
    return Link(
        host,
        wanted,
        hello=lambda: Hello(cluster=cluster, node=node, directory="here", wanted=wanted, protocol=protocol),
        trust=trust,
        where=lambda: (at or peer.endpoint,),
        on_welcome=lambda welcome: None,
        on_down=(down if down is not None else []).append,
    )


def run(story: Coroutine[Any, Any, None]) -> None:
    """On the loop that nodes run on: its transports are not the standard library's."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(asyncio.wait_for(story, 20))
