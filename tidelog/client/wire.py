"""One connection to a Kafka listener: requests out, responses back.

Rule 1: bytes come and go through a `Network`; nothing here knows a socket, so it can be simulated.
Rule 2: requests are pipelined. Each answer is matched to its request by correlation id.
Rule 3: a connection fails as a whole and once. Every request in flight, and every later one, gets
        the same `ConnectionFailed`; a request that runs out of time fails the connection, since
        answers come in order and all that follow would wait behind it.
Rule 4: a length from outside is compared with a limit before memory is set aside for it.
"""

# frame    := size: int32, that many bytes
# request  := api_key: int16, version: int16, correlation_id: int32, client_id: string?, tags?, body
# response := correlation_id: int32, tags?, body              (tags only in flexible versions)

import asyncio
import errno
import functools
import io
import ssl
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

from kio.schema.index import api_key_map, schema_name_map
from kio.serial import entity_reader, entity_writer
from kio.serial.errors import SerialError

import tidelog
from tidelog.client.security import PLAINTEXT, Security, prove
from tidelog.errors import TidelogError, UnsupportedVersion
from tidelog.host import Bytes, LoopNetwork, Network, give_up_on_silence
from tidelog.model import Endpoint
from tidelog.security.failures import AuthenticationFailed
from tidelog.wire import own
from tidelog.wire.apis import Api
from tidelog.wire.entities import request_entity, response_type
from tidelog.wire.frames import SIZE, SIZE_BYTES, FrameBuffer, FrameRefused

Frame: TypeAlias = bytearray

FRAME_BYTES_MAX: Final = 256 * 1024 * 1024
CORRELATION_ID_MAX: Final = 2**31 - 1
RENEWED: Final = 0.8
"""After which part of its session a connection is used no more: another proves itself instead."""
UNSUPPORTED_VERSION: Final = 35

VERSION_MOST: Final[Mapping[int, int]] = {
    Api.PRODUCE: 12,  # from 13 on, topics are named by their ids
    Api.FETCH: 12,  # likewise
}

_INT32: Final = struct.Struct(">i")
_INT16: Final = struct.Struct(">h")


class ConnectionFailed(TidelogError):
    """A node cannot be reached, or stopped answering; check the address and that it runs."""

    retriable = True

    def __init__(self, endpoint: Endpoint, what: str) -> None:
        super().__init__(f"{endpoint}: {what}")
        self.endpoint = endpoint


@functools.cache
def versions_known(api_key: int) -> tuple[int, int]:
    """The lowest and the highest version of an API that this client can speak."""
    if api_key in own.NAMES:
        return min(own.REQUESTS[api_key]), max(own.REQUESTS[api_key])
    versions = schema_name_map[api_key_map[api_key]]
    return min(versions), min(max(versions), VERSION_MOST.get(api_key, max(versions)))


def api_name(api_key: int) -> str:
    """The API's name for people, such as `list offsets`."""
    names = own.NAMES if api_key in own.NAMES else api_key_map
    return names.get(api_key, f"API {api_key}").replace("_", " ")


class Frames(asyncio.BufferedProtocol):
    """A stream of frames, both ways. Neither callback may raise."""

    def __init__(self, on_frame: Callable[[Frame], None], on_lost: Callable[[str], None]) -> None:
        self.on_frame = on_frame
        self.on_lost = on_lost
        self.transport: asyncio.Transport | None = None
        self._buffer = FrameBuffer(FRAME_BYTES_MAX)
        self._writable = asyncio.Event()
        self._writable.set()
        self._lost = False

    @property
    def is_writable(self) -> bool:
        """Whether the transport's buffer has room; False asks the sender to wait."""
        return self._writable.is_set()

    async def wait_writable(self) -> None:
        await self._writable.wait()

    def write(self, buffers: Sequence[Bytes]) -> None:
        assert self.transport is not None, "written to before it was connected"
        self.transport.writelines(buffers)

    def fail(self, what: str) -> None:
        """Give the connection up, for the reason `what`."""
        if self._lost:
            return
        self._lost = True
        self._writable.set()
        if self.transport is not None:
            self.transport.abort()
        self.on_lost(what)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]  # a stream, as every Network gives
        give_up_on_silence(transport)
        if self._lost:
            transport.close()

    def eof_received(self) -> None:
        self.fail("the node closed the connection")  # what is unsent, it will not read

    def connection_lost(self, exc: Exception | None) -> None:
        self.fail(f"the connection broke: {exc}" if exc else "the node closed the connection")

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer.space()

    def buffer_updated(self, nbytes: int) -> None:
        try:
            frames = self._buffer.received(nbytes)
        except FrameRefused as error:
            self.fail(f"it sent {error}; give the kafka= address of the node's ready line")
            return
        for frame in frames:
            if self._lost:
                return
            self.on_frame(frame)


class Connection:
    """Requests and their answers, over one stream to one node.

    Invariant: every id in `_waiting` was sent and is unanswered.
    Owned by one event loop; any number of its tasks may send.
    """

    def __init__(self, endpoint: Endpoint, *, client_id: str, timeout_seconds: float) -> None:
        self.endpoint = endpoint
        self.versions: Mapping[int, tuple[int, int]] = {}
        """The lowest and highest version the node speaks, by API key."""
        self.frames = Frames(self._on_frame, self._on_lost)
        self._client_id = client_id
        self._timeout_seconds = timeout_seconds
        self._waiting: dict[int, asyncio.Future[Frame]] = {}
        self._correlation_id = 0
        self._turn = asyncio.Lock()
        self._failure: str | None = None
        self._renew_at = float("inf")
        self._is_retired = False

    def __repr__(self) -> str:
        state = "failed" if self._failure else f"{len(self._waiting)} waiting"
        return f"<Connection {self.endpoint} {state}>"

    @classmethod
    async def open(
        cls,
        endpoint: Endpoint,
        *,
        network: Network | None = None,
        client_id: str = "tidelog",
        timeout_seconds: float = 30.0,
        security: Security = PLAINTEXT,
    ) -> "Connection":
        """Connect, learn which versions the node speaks, and prove who asks."""
        tls = security.context()
        connection = cls(endpoint, client_id=client_id, timeout_seconds=timeout_seconds)
        try:
            async with asyncio.timeout(timeout_seconds):
                host, port = endpoint.host, endpoint.port
                if tls is not None:
                    await LoopNetwork().connect(lambda: connection.frames, host, port, tls=tls)
                else:
                    await (network or LoopNetwork()).connect(lambda: connection.frames, host, port)
                await connection._negotiate()
                if security.has_sasl:
                    await connection._prove(security)
        except TimeoutError:
            connection.close()
            raise ConnectionFailed(
                endpoint, f"no answer within {timeout_seconds:g} s; is it a Kafka listener?"
            ) from None
        except OSError as error:
            connection.close()
            raise ConnectionFailed(endpoint, _reason(error)) from error
        except BaseException:
            connection.close()
            raise
        return connection

    @property
    def is_open(self) -> bool:
        """Whether it may be used for more: it has not failed, and what it has proved holds for a while."""
        return self._failure is None and asyncio.get_running_loop().time() < self._renew_at

    def version(self, api_key: int) -> int:
        """The highest version of an API that both sides speak; UnsupportedVersion if none."""
        low, high = versions_known(api_key)
        their_low, their_high = self.versions.get(api_key, (0, -1))
        if their_high < 0:
            raise UnsupportedVersion(f"{self.endpoint} does not offer {api_name(api_key)}")
        if max(low, their_low) > min(high, their_high):
            raise UnsupportedVersion(
                f"{self.endpoint} speaks {api_name(api_key)} {their_low} to {their_high}, "
                f"this client {low} to {high}; update the older of the two"
            )
        return min(high, their_high)

    def speaks(self, api_key: int, version: int) -> bool:
        """Whether the node takes this version of an API."""
        low, high = self.versions.get(api_key, (0, -1))
        return low <= version <= high

    async def call(self, api_key: int, *, timeout_seconds: float | None = None, **fields: Any) -> Any:
        """Send `fields` in the best common version; return kio's response of that version."""
        request = request_entity(api_key, self.version(api_key), fields)
        return await self.request(request, timeout_seconds=timeout_seconds)

    async def request(self, request: Any, *, timeout_seconds: float | None = None) -> Any:
        """Send a kio request; return kio's response of the same API and version."""
        frame = await self.exchange(request, timeout_seconds=timeout_seconds)
        return self._decode(frame, request.__api_key__, request.__version__)

    async def exchange(self, request: Any, *, timeout_seconds: float | None = None) -> Frame:
        """Send a kio request; return the answer's bytes, header included."""
        seconds = self._timeout_seconds if timeout_seconds is None else timeout_seconds
        try:
            async with asyncio.timeout(seconds):
                async with self._turn:  # first come, first sent: sequences depend on it
                    await self.frames.wait_writable()
                    correlation_id = self.next_correlation_id()
                    answer = self.send(correlation_id, [self._encode(request, correlation_id)])
                return await answer
        except TimeoutError:
            name = api_name(request.__api_key__)
            self.frames.fail(f"{name} was not answered within {seconds:g} s")
            raise self._failed() from None

    async def post(self, request: Any) -> None:
        """Send a request that is never answered: a Produce with acks=0."""
        await self.frames.wait_writable()
        self._require_open()
        self.frames.write([self._encode(request, self.next_correlation_id())])

    def send(self, correlation_id: int, buffers: Sequence[Bytes]) -> asyncio.Future[Frame]:
        """Write a whole frame that carries `correlation_id`; the future is its answer."""
        self._require_open()
        answer: asyncio.Future[Frame] = asyncio.get_running_loop().create_future()
        self._waiting[correlation_id] = answer
        self.frames.write(buffers)
        return answer

    def next_correlation_id(self) -> int:
        self._correlation_id = self._correlation_id % CORRELATION_ID_MAX + 1
        return self._correlation_id

    def close(self) -> None:
        """Stop at once; what is in flight fails, and what was posted may be lost."""
        self.frames.fail("closed by this client")

    def retire(self) -> None:
        """Send nothing more, and close once all that was asked is answered."""
        self._is_retired = True
        if not self._waiting:
            self.close()

    async def settle(self) -> None:
        """Return once the node has read all that was sent, which acks=0 would never tell.

        Requests are answered in order, so the answer to one more stands for all before it.
        """
        if self._failure is None:
            await self._negotiate()

    def hand_over(self, on_frame: Callable[[Frame], None], on_lost: Callable[[str], None]) -> None:
        """Leave the frames to someone else from now on: a load generator counts, not decodes."""
        self._require_open()
        assert not self._waiting, "an answer would reach someone who did not ask"
        self.frames.on_frame = on_frame
        self.frames.on_lost = on_lost

    async def _negotiate(self) -> None:
        version = versions_known(Api.API_VERSIONS)[1]
        while True:
            frame = await self.exchange(
                request_entity(
                    Api.API_VERSIONS,
                    version,
                    {"client_software_name": "tidelog", "client_software_version": tidelog.__version__},
                )
            )
            # A node that does not speak this version says so in version 0, with its own range.
            refused = len(frame) >= 6 and _INT16.unpack_from(frame, 4)[0] == UNSUPPORTED_VERSION
            response = self._decode(frame, Api.API_VERSIONS, 0 if refused else version)
            self.versions = {api.api_key: (api.min_version, api.max_version) for api in response.api_keys}
            if not refused:
                return
            lower = self.version(Api.API_VERSIONS) if self.versions else 0
            if lower >= version:
                raise UnsupportedVersion(f"{self.endpoint} speaks no version of ApiVersions")
            version = lower

    async def _prove(self, security: Security) -> None:
        """Prove by SASL who asks; AuthenticationFailed if the node does not believe it."""
        shaken = await self.call(Api.SASL_HANDSHAKE, mechanism=security.mechanism)
        if shaken.error_code:
            offered = ", ".join(shaken.mechanisms) or "no proof at all"
            raise AuthenticationFailed(f"{self.endpoint} takes {offered}, not {security.mechanism}")
        lifetime_ms = await prove(security, self._say)
        if lifetime_ms:
            self._renew_at = asyncio.get_running_loop().time() + lifetime_ms / 1000 * RENEWED

    async def _say(self, message: bytes) -> tuple[bytes, int]:
        answer = await self.call(Api.SASL_AUTHENTICATE, auth_bytes=message)
        if answer.error_code:
            raise AuthenticationFailed(f"{self.endpoint}: {answer.error_message}")
        lifetime = getattr(answer, "session_lifetime", None)
        return bytes(answer.auth_bytes), 0 if lifetime is None else round(lifetime.total_seconds() * 1000)

    def _encode(self, request: Any, correlation_id: int) -> memoryview:
        header = request.__header_schema__
        buffer = io.BytesIO(bytes(SIZE_BYTES))
        buffer.seek(SIZE_BYTES)
        entity_writer(header)(
            buffer,
            header(
                request_api_key=request.__api_key__,
                request_api_version=request.__version__,
                correlation_id=correlation_id,
                client_id=self._client_id,
            ),
        )
        entity_writer(type(request))(buffer, request)
        frame = buffer.getbuffer()
        SIZE.pack_into(frame, 0, len(frame) - SIZE_BYTES)
        return frame

    def _decode(self, frame: Frame, api_key: int, version: int) -> Any:
        kind = response_type(api_key, version)
        view = memoryview(frame).toreadonly()
        try:
            _, at = entity_reader(kind.__header_schema__)(view, 0)
            response, _ = entity_reader(kind)(view, at)
        except (SerialError, ValueError, IndexError) as error:
            self.frames.fail(f"its answer is no {api_name(api_key)} of version {version}: {error}")
            raise self._failed() from error
        return response

    def _on_frame(self, frame: Frame) -> None:
        answer = self._waiting.pop(_INT32.unpack_from(frame, 0)[0], None)
        if answer is None:
            self.frames.fail("it answered a request that was never sent; is it a Kafka listener?")
        elif not answer.done():  # the one who asked may have been cancelled
            answer.set_result(frame)
        if self._is_retired and not self._waiting:
            self.close()

    def _on_lost(self, what: str) -> None:
        self._failure = what
        waiting, self._waiting = self._waiting, {}
        for answer in waiting.values():
            if not answer.done():
                answer.set_exception(self._failed())
                answer.exception()  # seen: a sender that was cancelled leaves no warning behind

    def _failed(self) -> ConnectionFailed:
        """A new error for each who hears of it: a shared one would collect tracebacks."""
        assert self._failure is not None
        return ConnectionFailed(self.endpoint, str(self._failure).removeprefix(f"{self.endpoint}: "))

    def _require_open(self) -> None:
        if self._failure is not None:
            raise self._failed()


def _reason(error: OSError) -> str:
    """Why a connection could not be made, and what to do."""
    ask = "is a node running there? Start one with `tidelog start`"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not believed ({error.verify_message}); see ssl.truststore.location"
    if isinstance(error, ssl.SSLError):
        return f"no TLS is spoken there ({error.reason}); check security.protocol"
    if error.errno == errno.ECONNREFUSED or "Multiple exceptions" in str(error):
        return f"nothing listens there; {ask}"
    if error.__class__.__name__ == "gaierror":
        return "there is no such host; check the address"
    return f"cannot connect ({error.strerror or error}); {ask}"
