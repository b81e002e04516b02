"""The Kafka listener: connections, and nothing of what their requests mean.

Rule 1: answers leave in the order of the requests, whatever order they are ready in.
Rule 2: Produce requests of a connection run side by side, so that one client fills a whole sync
        round. Every other request waits until all before it are answered, as with Kafka.
Rule 3: who does not read gets no more answers made; who sends too much is not read from. Memory
        stays bounded by the frame limit and the node's budget, whatever a client does.
Rule 4: what cannot be understood closes its connection, with the reason in the log; of each host that is
        a line now and then.
"""

import asyncio
import logging
import struct
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, cast

from tidelog.config import NodeConfig
from tidelog.faces.intake import Intake
from tidelog.faces.tls import Certificates
from tidelog.host import Bytes, Host, Listening, give_up_on_silence
from tidelog.host.complaints import Complaints
from tidelog.kafka.context import Client
from tidelog.kafka.requests import Requests
from tidelog.kafka.sasl import UNPROVED_BYTES_MAX, Identities, SaslSession
from tidelog.model import Endpoint
from tidelog.security.principals import ANONYMOUS, Principal
from tidelog.wire.apis import Api
from tidelog.wire.entities import MessageDamaged
from tidelog.wire.frames import FrameBuffer, FrameRefused
from tidelog.wire.produce import Repeated
from tidelog.wire.requests import Header, read_header, versions_of

_log = logging.getLogger(__name__)

_RESPONSE: Final = struct.Struct(">ii")
_RESPONSE_TAGGED: Final = struct.Struct(">iib")
_CORRELATION_ID: Final = struct.Struct(">i")
_PRODUCE_KEY: Final = b"\0\0"
_WRITE_BUFFER_BYTES: Final = 1024 * 1024
_UNDISPATCHED_MAX: Final = 64
_UNDISPATCHED_UNPROVED_MAX: Final = 2
"""Of a client that has not proved who it is: it waits for the answer to each step."""
_SWEEP_SECONDS: Final = 1.0
_CLOSE_SECONDS_MAX: Final = 2.0


class _Slot:
    """The place of one answer in its connection's order."""

    __slots__ = ("_connection", "_correlation_id", "_gone", "_tagged", "pieces", "size")

    def __init__(self, connection: "Connection", correlation_id: int, tagged: bool, size: int) -> None:
        self._connection = connection
        self._correlation_id = correlation_id
        self._tagged = tagged
        self._gone: Callable[[], None] | None = None
        self.size = size
        self.pieces: Sequence[Bytes] | None = None

    def send(self, body: Sequence[Bytes]) -> None:
        size = sum(map(len, body))
        if self._tagged:
            head = _RESPONSE_TAGGED.pack(size + 5, self._correlation_id, 0)
        else:
            head = _RESPONSE.pack(size + 4, self._correlation_id)
        self._finish((head, *body))

    def skip(self) -> None:
        self._finish(())

    def _finish(self, pieces: Sequence[Bytes]) -> None:
        assert self.pieces is None, "a request is answered once"
        self.pieces = pieces
        self._gone = None
        self._connection.flush_soon()

    def refuse(self, reason: str) -> None:
        self._connection.fail(reason)

    def on_gone(self, call: Callable[[], None]) -> None:
        self._gone = call

    def gone(self) -> None:
        if self._gone is not None:
            self._gone()


class Connection(asyncio.BufferedProtocol):
    """One client."""

    def __init__(self, listener: "KafkaListener") -> None:
        self._listener = listener
        self._requests = listener.requests
        self._intake = listener.intake
        self._sasl = listener.new_session()
        bytes_max = listener.config.socket_request_max_bytes
        self._frames = FrameBuffer(bytes_max if self._sasl is None else min(bytes_max, UNPROVED_BYTES_MAX))
        self._pipeline_max = listener.config.connections_pipeline_max
        self._undispatched: deque[bytearray] = deque()
        self._undispatched_max = _UNDISPATCHED_MAX if self._sasl is None else _UNDISPATCHED_UNPROVED_MAX
        self._slots: deque[_Slot] = deque()
        self._coming_bytes = 0
        self._alone = False  # whether a request that runs alone is under way
        self._dispatching = False
        self._flushing = False
        self._repeated: Repeated | None = None
        self._repeated_tagged = False
        self._reading = True
        self._writable = True
        self._closing = False
        self._stopping = False
        self._loop = asyncio.get_running_loop()
        self.last_progress = self._loop.time()
        self.transport: asyncio.Transport | None = None
        self.client = Client(address="?")

    def __repr__(self) -> str:
        return f"<Connection {self.client.address} {len(self._slots)} unanswered>"

    # The transport's calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        stream = cast(asyncio.Transport, transport)  # uvloop's is one in all but name
        self.transport = stream
        give_up_on_silence(stream)
        stream.set_write_buffer_limits(high=_WRITE_BUFFER_BYTES)
        peer = transport.get_extra_info("peername")
        self.client = Client(
            address=f"{peer[0]}:{peer[1]}" if peer else "?",
            listener=self._listener.name,
            principal=self._listener.principal_of(transport),
            sasl=self._sasl,
        )
        if not self._listener.admit(self):
            self.fail("too many connections; connections.max limits them")
        elif not self._listener.is_open:
            # uvloop begins to read after this call, even if it is told here to pause.
            self._loop.call_soon(self.consider_reading)

    def connection_lost(self, exc: Exception | None) -> None:
        self._closing = True
        self._listener.leave(self)
        self._intake.forget(self)
        self._intake.is_coming(self, 0)
        slots, self._slots = self._slots, deque()
        for slot in slots:
            slot.gone()
            self._intake.give(slot.size)
        for frame in self._undispatched:
            self._intake.give(len(frame))
        self._undispatched.clear()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._frames.space()

    def buffer_updated(self, nbytes: int) -> None:
        self.last_progress = self._listener.heard_at = self._loop.time()
        try:
            frames = self._frames.received(nbytes)
        except FrameRefused as error:
            self.fail(str(error))
            return
        coming = self._frames.large_bytes
        if coming != self._coming_bytes:
            self._coming_bytes = coming
            self._intake.is_coming(self, coming)
            self.consider_reading()
        for frame in frames:
            self._intake.take(len(frame))
            self._undispatched.append(frame)
        if frames:
            self._dispatch()
            self.consider_reading()

    def pause_writing(self) -> None:
        self._writable = False

    def resume_writing(self) -> None:
        self._writable = True
        self.last_progress = self._loop.time()
        self._dispatch()
        self.consider_reading()

    # Requests.

    def _dispatch(self) -> None:
        """Start as many requests as may run now."""
        if self._dispatching:
            return  # an answer came while a request was being started; that loop goes on
        if not self._listener.is_open:
            return  # it came before reading was paused
        self._dispatching = True
        undispatched, slots = self._undispatched, self._slots
        try:
            while undispatched and self._writable and not (self._closing or self._stopping):
                frame = undispatched[0]
                alone = frame[:2] != _PRODUCE_KEY
                if slots and (alone or self._alone or len(slots) >= self._pipeline_max):
                    return
                undispatched.popleft()
                self._alone = alone
                self._start(frame)
        finally:
            self._dispatching = False

    def _start(self, frame: bytearray) -> None:
        size = len(frame)
        repeated = self._repeated
        if repeated is not None and (batch := repeated.batch_in(frame)) is not None:
            correlation_id = _CORRELATION_ID.unpack_from(frame, 4)[0]
            slot = _Slot(self, correlation_id, self._repeated_tagged, size)
            self._slots.append(slot)
            self._requests.handle_repeated(repeated, batch, size, self.client, slot)
            return
        try:
            header = read_header(frame)
        except MessageDamaged as error:
            self._intake.give(len(frame))
            self.fail(str(error))
            return
        tagged = _is_tagged(header)
        slot = _Slot(self, header.correlation_id, tagged, size)
        self._slots.append(slot)
        self._repeated = self._requests.handle(frame, header, self.client, slot)
        self._repeated_tagged = tagged

    def flush_soon(self) -> None:
        """Send what is ready at the end of this turn: a sync round answers many at once."""
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        """Send every answer whose turn has come."""
        self._flushing = False
        slots = self._slots
        small: list[Bytes] = []
        transport = self.transport
        assert transport is not None
        while slots and (pieces := slots[0].pieces) is not None:
            self._intake.give(slots.popleft().size)
            if self._closing:
                continue
            if len(pieces) <= 2:
                small += pieces
                continue
            if small:
                transport.write(b"".join(small))
                small.clear()
            transport.writelines(pieces)
        if small:
            transport.write(b"".join(small))
        if self._sasl is not None and not slots and not self._closing:
            self._heed(self._sasl)
        if self._undispatched and not self._closing:
            self._dispatch()
            self.consider_reading()

    def _heed(self, sasl: SaslSession) -> None:
        """Act on what came of a proof: a failed one ends the connection, once that was answered."""
        if sasl.has_failed:
            self._complain("it could not prove who it is")
            self._closing = True
            assert self.transport is not None
            self.transport.close()
        elif sasl.principal is not None:
            self._frames.size_max = self._listener.config.socket_request_max_bytes
            self._undispatched_max = _UNDISPATCHED_MAX

    def serve(self) -> None:
        """The listener is open: start what has come already, and read on."""
        self._dispatch()
        self.consider_reading()

    def consider_reading(self) -> None:
        """Read from the client exactly while there is room for what it sends."""
        if self._closing or self.transport is None:
            return
        has_room = not self._intake.is_full and (self._coming_bytes == 0 or self._intake.may_come(self))
        if not has_room:
            self._intake.wait(self)
        is_served = self._listener.is_open and not self._stopping
        may_read = has_room and len(self._undispatched) < self._undispatched_max and is_served
        if may_read and not self._reading:
            self._reading = True
            self.last_progress = self._loop.time()
            self.transport.resume_reading()
        elif not may_read and self._reading:
            self._reading = False
            self.transport.pause_reading()

    # Ending.

    def fail(self, reason: str, *, is_idle: bool = False) -> None:
        """Close at once, for `reason`; answers under way are dropped."""
        if not self._closing:
            self._complain(reason, is_idle)
            self._closing = True
            if self.transport is not None:
                self.transport.abort()

    def _complain(self, reason: str, is_idle: bool = False) -> None:
        """Log it; that somebody is idle, which is no misbehaviour, hides nothing else of its host."""
        address = self.client.address
        host = address.rpartition(":")[0]
        more = self._intake.complaints.about(f"{host} idle" if is_idle else host)
        if more is not None:
            _log.info("closed %s: %s%s", address, reason, more)

    def stop_reading(self) -> None:
        """Start no further request."""
        self._stopping = True
        self.consider_reading()

    def close(self) -> None:
        """Close once what was answered has left."""
        self._flush()
        self._closing = True
        if self.transport is not None:
            self.transport.close()

    def close_if_stale(self, now: float, idle_seconds: float, frame_seconds: float) -> None:
        silent = now - self.last_progress
        if self._sasl is not None and self._sasl.is_overdue:
            self.fail("it did not prove in time who it is")
            return
        if not self._writable:
            if silent > idle_seconds:
                self.fail("it does not read its answers")
        elif self._frames.is_partial:
            if self._reading and silent > frame_seconds:
                self.fail(f"a request stopped half-way, {silent:.0f} s ago")
        elif self._slots or self._undispatched:
            return  # we owe it an answer
        elif silent > idle_seconds:
            self.fail(f"idle for {silent:.0f} s", is_idle=True)
        elif silent > _SWEEP_SECONDS:
            self._frames.release_idle()


def _is_tagged(header: Header) -> bool:
    """Whether the answer's header has tags: in flexible versions, but for ApiVersions, whose
    answer must be readable by those who do not know its version."""
    versions = versions_of(header.api_key)
    return (
        versions is not None
        and header.version >= versions.flexible_from
        and header.api_key != Api.API_VERSIONS
    )


class KafkaListener:
    """Accepts Kafka clients and keeps an eye on them."""

    def __init__(
        self,
        host: Host,
        requests: Requests,
        *,
        identities: Identities | None = None,
        certificates: Certificates | None = None,
        name: str = "",
        intake: Intake | None = None,
        is_open: bool = True,
    ) -> None:
        """With `identities` clients must prove by SASL who they are; with `certificates` they speak TLS.
        Until it is open, clients may connect but are not served."""
        self._identities = identities
        self._certificates = certificates
        self.name = name
        self._host = host
        self.requests = requests
        self.is_open = is_open
        self.intake = intake or Intake(requests.config.queued_max_bytes, Complaints(host.clock))
        self.connections: dict[Connection, None] = {}
        self.heard_at = float("-inf")
        """When a client last sent something, by the loop's clock."""
        self._empty = asyncio.Event()
        self._empty.set()
        self._server: Listening | None = None
        self._sweeper: asyncio.Task[None] | None = None

    def new_session(self) -> SaslSession | None:
        """What a new connection has to prove; None if nothing."""
        if self._identities is None:
            return None
        return SaslSession(self._identities, self._host.clock.monotonic)

    def principal_of(self, transport: asyncio.BaseTransport) -> Principal:
        """Who has proved by a certificate who it is; by SASL it may become another."""
        if self._certificates is None or self._identities is not None:
            return ANONYMOUS
        return self._certificates.principal(transport)

    @property
    def config(self) -> NodeConfig:
        """The settings as they are now; some change while the node runs."""
        return self.requests.config

    async def start(self, at: Endpoint) -> Endpoint:
        """Listen; where that turned out to be."""
        tls = None if self._certificates is None else self._certificates.context
        server = await self._host.network.serve(lambda: Connection(self), at.host, at.port, tls=tls)
        self._server = server
        self._sweeper = asyncio.get_running_loop().create_task(self._sweep())
        sockets = getattr(server, "sockets", ())
        return Endpoint(host=at.host, port=sockets[0].getsockname()[1] if sockets else at.port)

    def open(self) -> None:
        """Serve those who wait, and all who come."""
        self.is_open = True
        for connection in list(self.connections):
            connection.serve()

    def close(self) -> None:
        """Accept nobody and read nothing any more; answers under way still go out."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        if self._server is not None:
            self._server.close()
        for connection in list(self.connections):
            connection.stop_reading()

    async def stop(self) -> None:
        """Let everybody go, once what they were answered has left."""
        for connection in list(self.connections):
            connection.close()
        try:
            async with asyncio.timeout(_CLOSE_SECONDS_MAX):
                await self._empty.wait()
        except TimeoutError:
            for connection in list(self.connections):
                connection.fail("the node is stopping, and it does not read its answers")

    def admit(self, connection: Connection) -> bool:
        if self.intake.connections >= self.config.connections_max:
            return False
        self.connections[connection] = None
        self.intake.connections += 1
        self._empty.clear()
        return True

    def leave(self, connection: Connection) -> None:
        if connection in self.connections:
            del self.connections[connection]
            self.intake.connections -= 1
        if not self.connections:
            self._empty.set()

    async def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(_SWEEP_SECONDS)
            idle_seconds = self.config.connections_max_idle_ms / 1000
            frame_seconds = self.config.frame_timeout_ms / 1000
            now = loop.time()
            for connection in list(self.connections):
                connection.close_if_stale(now, idle_seconds, frame_seconds)
