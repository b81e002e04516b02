"""All the peers of one node: what comes from them goes to whoever handles it.

Rule 1: asking oneself is a call, not a connection; the rest of the node need not know who leads.
Rule 2: a handler is chosen by the kind of a message, and there is one for each.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypeVar, Union

import msgspec

from tidelog.host import Bytes, Host
from tidelog.model import Endpoint, NodeId
from tidelog.peers.breaker import BreakerState, BreakerStatus
from tidelog.peers.handshake import Trust
from tidelog.peers.link import Link
from tidelog.peers.listener import Answer, PeerListener
from tidelog.peers.stream import PeerUnreachable
from tidelog.peers.wire import PROTOCOL, Hello, Welcome

_log = logging.getLogger(__name__)

T = TypeVar("T", bound=msgspec.Struct)
Handler: TypeAlias = Callable[[NodeId, Any, Answer | None], None]


def not_ready(source: NodeId, asked: object, answer: Answer | None) -> None:
    """The node is still starting; whoever asks tries again."""
    if answer is not None:
        answer.fail("this node is not ready yet")


class Hub:
    """This node among its peers."""

    def __init__(
        self,
        host: Host,
        *,
        me: Callable[[], Welcome],
        where: Callable[[NodeId], Sequence[Endpoint]],
        handlers: dict[type[msgspec.Struct], Handler],
        trust: Trust = Trust(),  # noqa: B008
        for_guests: Sequence[type[msgspec.Struct]] = (),
    ) -> None:
        """`where` is asked again for every connection: peers move, and may be in several places.

        Of the messages in `handlers`, a node that belongs to no cluster may send those `for_guests`.
        """
        self._host = host
        self._me = me
        self._where = where
        self._handlers = handlers
        self._trust = trust
        self._links: dict[NodeId, Link] = {}
        self._down_calls: list[Callable[[NodeId], None]] = []
        self._gone_calls: list[Callable[[NodeId], None]] = []
        self._broken_calls: list[Callable[[NodeId], None]] = []
        self._reached_calls: list[Callable[[NodeId], None]] = []
        self._hello_checks: list[Callable[[Hello], str | None]] = []
        self._listener = PeerListener(
            host,
            me=me,
            receive=self._receive,
            on_gone=self._on_gone,
            on_hello=self._on_hello,
            trust=trust,
            for_guests=for_guests,
            messages=msgspec.msgpack.Decoder(Union[tuple(handlers)]),  # noqa: UP007
        )

    async def listen(self, at: Endpoint) -> Endpoint:
        return await self._listener.start(at)

    def on_down(self, call: Callable[[NodeId], None]) -> None:
        """Call `call` when a peer's process is known to be gone."""
        self._down_calls.append(call)

    def on_gone(self, call: Callable[[NodeId], None]) -> None:
        """Call `call` when a peer's connection to us is lost, for whatever reason."""
        self._gone_calls.append(call)

    def on_broken(self, call: Callable[[NodeId], None]) -> None:
        """Call `call` when a connection to or from a peer is lost, for whatever reason."""
        self._broken_calls.append(call)

    def on_reached(self, call: Callable[[NodeId], None]) -> None:
        """Call `call` when this node has made a connection to a peer."""
        self._reached_calls.append(call)

    def on_hello(self, check: Callable[[Hello], str | None]) -> None:
        """Let `check` refuse a peer, by the reason that it returns."""
        self._hello_checks.append(check)

    # Asking.

    async def ask(self, node: NodeId, message: msgspec.Struct, answer: type[T], *, seconds_max: float) -> T:
        """The answer of `node`; PeerUnreachable if there is none, PeerRefused if never."""
        if node == self._me().node:
            mine: T = await self._ask_myself(message, _Own(takes_data=False), seconds_max)
            return mine
        return await self._link(node).ask(message, answer, seconds_max=seconds_max)

    async def ask_data(
        self, node: NodeId, message: msgspec.Struct, answer: type[T], *, seconds_max: float
    ) -> tuple[T, memoryview]:
        """The answer of `node` and the data beside it, which may be none; fails as `ask` does.

        The view is writable memory of its own, to be kept as long as one likes.
        """
        if node == self._me().node:
            mine: tuple[T, memoryview] = await self._ask_myself(message, _Own(takes_data=True), seconds_max)
            return mine
        return await self._link(node).ask_data(message, answer, seconds_max=seconds_max)

    def note(self, node: NodeId, message: msgspec.Struct) -> None:
        """Tell `node` something that needs no answer, if there is a connection to it."""
        if node == self._me().node:
            self._receive(node, message, None)
        elif (link := self._links.get(node)) is not None:
            link.note(message)

    async def is_down(self, node: NodeId) -> bool:
        """Whether a peer's process is gone: nobody listens where it did."""
        return node != self._me().node and await self._link(node).is_down()

    def peers(self) -> dict[NodeId, BreakerStatus]:
        """How the way to each peer is that this node ever asked, by node."""
        return {node: link.status() for node, link in sorted(self._links.items())}

    def is_connected(self, node: NodeId) -> bool:
        """Whether there is a connection from this node to a peer."""
        link = self._links.get(node)
        return link is not None and link.is_connected

    def is_missed(self, node: NodeId) -> bool:
        """Whether the last try to reach a peer failed, and none has succeeded since."""
        link = self._links.get(node)
        return link is not None and link.status().state is not BreakerState.CLOSED

    async def _ask_myself(self, message: msgspec.Struct, place: "_Own", seconds_max: float) -> Any:
        self._receive(self._me().node, message, place)
        try:
            async with asyncio.timeout(seconds_max):
                return await place.answer
        except TimeoutError:
            raise PeerUnreachable("this node did not answer itself in time") from None

    def _link(self, node: NodeId) -> Link:
        link = self._links.get(node)
        if link is None:
            link = self._links[node] = Link(
                self._host,
                node,
                hello=lambda: self._hello(node),
                where=lambda: self._where(node),
                on_welcome=lambda welcome: self._on_reached(node),
                on_down=self._on_down,
                on_lost=self._on_broken,
                trust=self._trust,
            )
        return link

    def _hello(self, node: NodeId) -> Hello:
        me = self._me()
        return Hello(protocol=PROTOCOL, cluster=me.cluster, node=me.node, directory=me.directory, wanted=node)

    # Hearing.

    def _receive(self, node: NodeId, message: Any, place: Answer | None) -> None:
        try:
            self._handlers[type(message)](node, message, place)
        except Exception:
            _log.exception("a %s of node %d failed", type(message).__name__, node)
            if place is not None:
                place.fail("the request failed; see the node's log")

    def _on_down(self, node: NodeId) -> None:
        for call in self._down_calls:
            call(node)

    def _on_gone(self, node: NodeId) -> None:
        for call in self._gone_calls:
            call(node)
        self._on_broken(node)

    def _on_broken(self, node: NodeId) -> None:
        for call in self._broken_calls:
            call(node)

    def _on_reached(self, node: NodeId) -> None:
        for call in self._reached_calls:
            call(node)

    def _on_hello(self, hello: Hello) -> str | None:
        for check in self._hello_checks:
            if problem := check(hello):
                return problem
        return None

    def close(self) -> None:
        self._listener.close()
        for link in self._links.values():
            link.close()


class _Own:
    """Where the answer to oneself goes."""

    is_gone = False

    def __init__(self, *, takes_data: bool) -> None:
        self.answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._takes_data = takes_data

    def send(self, message: msgspec.Struct) -> None:
        if not self.answer.done():
            empty = memoryview(bytearray())
            self.answer.set_result((message, empty) if self._takes_data else message)

    def send_with(self, message: msgspec.Struct, buffers: Sequence[Bytes]) -> None:
        assert self._takes_data, "data that was not asked for"
        if not self.answer.done():
            # A copy: whoever asked may change what it gets, as it may with a peer's.
            self.answer.set_result((message, memoryview(bytearray().join(buffers))))

    def fail(self, reason: str) -> None:
        if not self.answer.done():
            self.answer.set_exception(PeerUnreachable(reason))
