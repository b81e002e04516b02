"""The replication stream over HTTP: a WebSocket, or one long answer of lines.

Rule 1: whatever goes wrong is said in a message with its own code before the stream ends.
Rule 2: a replica is sent what it can take: the next batch is read when the last one has left.
Rule 3: who does not acknowledge for `replication.stream.replica.timeout.secs` is let go.
"""

import asyncio
import gzip
from base64 import b64encode
from collections.abc import AsyncIterator
from typing import Any, Final

import msgspec

from tidelog.copies.node.fold import readable_records
from tidelog.copies.stream import protocol
from tidelog.copies.stream.protocol import (
    Ack,
    Batch,
    Failed,
    FromReplica,
    Heartbeat,
    Hello,
    HelloAck,
    Source,
    Sync,
    SyncStart,
)
from tidelog.errors import BrokerError, InvalidRequest, UnknownTopicOrPartition
from tidelog.faces.http.api import LINES, Call, Operation, tagged
from tidelog.faces.http.edge.messages import StreamingResponse
from tidelog.faces.http.edge.sockets import WebSocket, WebSocketDisconnect
from tidelog.faces.http.permissions import COPIES, DESCRIBE_CLUSTER, require_copying, require_some
from tidelog.faces.http.problems import Problem
from tidelog.faces.http.replicate_live import Live
from tidelog.faces.http.sockets import METHOD as WEB_SOCKET
from tidelog.faces.http.sockets import socket_of
from tidelog.log.committed import committed_batches
from tidelog.model import NO_EPOCH, Offset
from tidelog.services.copies import Copies, Copy, Elsewhere, Taken, check_source
from tidelog.services.records import Batches, ReadOutside

NAME_MAX: Final = 256


class Ended(Exception):
    """The stream is over, and why."""

    def __init__(self, code: str, detail: str, location: str | None = None) -> None:
        super().__init__(detail)
        self.failed = Failed(code=code, detail=detail, location=location)


class Session:
    """What one replica is sent."""

    def __init__(self, call: Call, hello: Hello) -> None:
        self._call = call
        self._copies: Copies = call.node.services.copies
        self._config = call.broker.config
        self.hello = hello
        self.copy: Copy | None = None
        self.from_offset: Offset = 0
        self._taken: Taken | None = None
        self._live: Live | None = None
        self._bounds: Batches
        self._is_kept = hello.source.bucket is not None or hello.source.queue is not None
        """Whether there are snapshots of it: then it must not lack a deletion."""

    # Agreeing.

    async def greet(self) -> HelloAck:
        hello = self.hello
        if not 0 < len(hello.replica_id) <= NAME_MAX:
            raise Ended(protocol.PROTOCOL_ERROR, f"replica_id has 1 to {NAME_MAX} characters")
        if hello.format not in (protocol.JSON_FORMAT, protocol.BINARY_FORMAT):
            raise Ended(protocol.PROTOCOL_ERROR, "format must be json or binary")
        broker, config = self._call.broker, self._config
        partitions, current, oldest, topic, topic_id = 1, 0, 0, "", ""
        check_source(hello.source)
        self._judge()
        if hello.source.pubsub is None:
            self._place = await self._copies.place_of(hello.source)
            found = self._bounds = await self._copies.bounds(self._place)
            self._check_lease()
            topic, topic_id = self._place.topic, found.topic
            partitions = self._copies.partitions(topic)
            current, oldest = found.offset, found.log_start
        self.copy = self._copies.arrived(hello.replica_id, _written(hello.source))
        return HelloAck(
            master_id=f"node-{broker.node_id}",
            current_offset=current,
            log_oldest_offset=oldest,
            topic=topic,
            topic_id=topic_id,
            partitions=partitions,
            heartbeat_interval_ms=config.replication_stream_heartbeat_interval_ms,
            replica_timeout_ms=config.replication_stream_replica_timeout_secs * 1000,
        )

    def _judge(self) -> None:
        """Let the replica have this; again for each message, since a stream goes on for long."""
        require_copying(self._call.access_now(), self.hello.source)

    async def begin(self, sync: Sync) -> SyncStart:
        """Decide what the replica gets first."""
        hello = self.hello
        if hello.source.pubsub is not None:
            self._live = Live(self._call, hello.source.pubsub)  # from before it is told so
            return SyncStart(mode="live", from_offset=0)
        bounds, wanted = self._bounds, sync.from_offset
        is_other = bool(sync.topic_id) and sync.topic_id != bounds.topic
        if wanted is not None and wanted > bounds.high_watermark and not is_other:
            raise Ended(
                protocol.OFFSET_NOT_FOUND, f"offset {wanted} has not come yet; it is {bounds.high_watermark}"
            )
        if not is_other and wanted is not None and wanted > bounds.log_start:
            is_other = not await self._copies.is_of(self._place, wanted, sync.epoch)
        threshold = self._config.replication_stream_full_sync_threshold
        is_truncated = wanted is not None and wanted < bounds.log_start
        is_far = wanted is None or bounds.offset - wanted > threshold
        if self._is_kept and hello.snapshots and (is_other or is_truncated or is_far):
            return await self._begin_whole()
        if is_truncated or is_other:
            why = "that is of another history" if is_other else f"it begins at {bounds.log_start}"
            raise Ended(protocol.LOG_TRUNCATED, f"the log does not hold offset {wanted}: {why}")
        self.from_offset = bounds.log_start if wanted is None else wanted
        self._sent(self.from_offset)
        return SyncStart(mode="incremental", from_offset=self.from_offset)

    async def _begin_whole(self) -> SyncStart:
        try:
            self._taken = await self._copies.snapshot(self._place, self.hello.source)
        except Elsewhere as error:
            location = None if error.at is None else f"http://{error.at}/v1/replicate"
            raise Ended(protocol.CONNECTION_FAILED, str(error), location) from error
        except BrokerError as error:
            raise Ended(protocol.SYNC_FAILED, str(error)) from error
        about = self._taken.about
        self.from_offset = about.applied
        self._sent(about.applied)
        return SyncStart(mode="full", from_offset=about.applied, snapshot=about)

    # Sending.

    async def pieces(self) -> AsyncIterator[bytes]:
        if self._taken is not None:
            async for piece in self._copies.pieces(self._taken):
                yield piece

    async def messages(self) -> AsyncIterator[Batch | Heartbeat | bytes]:
        """Batches as they come, and heartbeats where nothing comes; until it is silent."""
        copy = self.copy
        assert copy is not None, "it was greeted"
        self._copies.expects(copy)
        async for message in self._all_messages():
            self._judge()
            yield message
            if self._copies.is_silent(copy):
                raise Ended(protocol.CONNECTION_FAILED, "nothing was acknowledged for too long")

    async def _all_messages(self) -> AsyncIterator[Batch | Heartbeat | bytes]:
        if self._live is not None:
            async for live in self._live.messages():
                yield live
                if isinstance(live, Batch):
                    self._sent(live.next_offset)
            raise Ended(protocol.SYNC_FAILED, "messages are lost: they were not read as fast as they came")
        config = self._config
        heartbeat = config.replication_stream_heartbeat_interval_ms / 1000
        found: Batches
        sent, oldest = self.from_offset, self._bounds.log_start
        async for found in self._copies.batches(
            self._place,
            self.from_offset,
            wait_seconds=heartbeat,
            records_max=config.replication_stream_batch_size,
        ):
            self._check_lease()
            if found.topic != self._bounds.topic:
                raise Ended(protocol.LOG_TRUNCATED, f"{self._place.topic} was deleted and created again")
            if found.has_gaps and self._is_kept and self.hello.snapshots:
                raise Ended(
                    protocol.LOG_TRUNCATED,
                    f"the log was compacted beyond {sent}, and deletions may be missing",
                )
            if found.end > sent:
                yield await self._show(found)
                sent = found.end
                self._sent(sent)
            if not found.data or found.log_start > oldest:
                current = found.high_watermark if found.data else found.end
                yield Heartbeat(current_offset=current, log_oldest_offset=found.log_start)
                oldest = found.log_start
            if found.end >= found.high_watermark:  # what comes within a moment goes together
                await asyncio.sleep(config.replication_stream_batch_timeout_ms / 1000)

    def _check_lease(self) -> None:
        """What this node believes to lead may go on, or be made anew, elsewhere."""
        if not self._call.broker.membership.has_lease:
            raise Ended(protocol.CONNECTION_FAILED, "this node is cut off from its cluster; ask another")

    async def _show(self, found: Batches) -> Batch | bytes:
        if self.hello.format == protocol.BINARY_FORMAT:
            head = protocol.BATCHES_HEAD.pack(found.end, found.high_watermark, found.epoch)
            return b"".join((protocol.BATCHES, head, *found.shown()))
        records = self._call.node.services.records
        return await records.aside(len(found.data), lambda: _batch(found, self.hello.source))

    def _sent(self, offset: Offset) -> None:
        if self.copy is not None:
            self.copy.sent = offset

    def acknowledged(self, offset: Offset) -> None:
        if self.copy is not None:
            self._copies.acknowledged(self.copy, offset)

    def close(self) -> None:
        """Leave nothing behind: neither a snapshot that was not sent nor a subscription."""
        if self.copy is not None:
            self._copies.left(self.copy)
        if self._taken is not None:
            self._taken.file.close()
        if self._live is not None:
            self._live.close()


def _written(source: Source) -> str:
    return msgspec.json.encode(source).decode()


def _batch(found: Batches, source: Source) -> Batch:
    records = (
        record
        for header, batch in committed_batches(found.data, found.aborted)
        for record in readable_records(header, batch)
        if record.offset >= found.offset
    )
    entries = [e for record in records if (e := protocol.entry_of(record, source)) is not None]
    return Batch(
        entries=entries, next_offset=found.end, current_offset=found.high_watermark, epoch=found.epoch
    )


def _failed(error: Exception) -> Failed:
    if isinstance(error, Ended):
        return error.failed
    if isinstance(error, ReadOutside):
        return Failed(code=protocol.LOG_TRUNCATED, detail=str(error))
    if isinstance(error, UnknownTopicOrPartition):
        return Failed(code=protocol.OFFSET_NOT_FOUND, detail=str(error))
    if isinstance(error, msgspec.MsgspecError | UnicodeDecodeError):
        return Failed(code=protocol.PROTOCOL_ERROR, detail=f"this is no message: {error}")
    if isinstance(error, InvalidRequest):
        return Failed(code=protocol.PROTOCOL_ERROR, detail=str(error))
    if isinstance(error, BrokerError):
        return Failed(code=protocol.SYNC_FAILED, detail=str(error))
    raise error


# A WebSocket.


async def replicate_socket(call: Call) -> None:
    socket = socket_of(call)
    await socket.accept()
    session: Session | None = None
    try:
        hello = await _hear(socket, Hello)
        session = Session(call, hello)
        await _say(socket, session, await session.greet())
        start = await session.begin(await _hear(socket, Sync))
        await _say(socket, session, start)
        async for piece in session.pieces():
            await socket.send_bytes(protocol.SNAPSHOT + piece)
        await _stream(socket, session)
    except (Ended, BrokerError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        await socket.send_text(protocol.encode(_failed(error)).decode())
    finally:
        if session is not None:
            session.close()


async def _hear(socket: WebSocket, kind: type) -> Any:
    seconds = 30.0
    try:
        async with asyncio.timeout(seconds):
            message = await _heard(socket)
    except TimeoutError:
        raise Ended(protocol.PROTOCOL_ERROR, f"nothing was said for {seconds:g} s") from None
    if isinstance(message, Failed):
        raise Ended(message.code, message.detail)
    if not isinstance(message, kind):
        wanted = kind.__name__.lower()
        raise Ended(protocol.PROTOCOL_ERROR, f"{wanted} was expected, not {type(message).__name__}")
    return message


async def _heard(socket: WebSocket) -> FromReplica:
    try:
        found: FromReplica = protocol.decode_from_replica(await socket.receive_text())
    except TypeError:
        raise Ended(protocol.PROTOCOL_ERROR, "send JSON as text") from None
    return found


async def _say(socket: WebSocket, session: Session, message: msgspec.Struct | bytes) -> None:
    if isinstance(message, bytes):
        await socket.send_bytes(message)
        return
    text = protocol.encode(message)
    config = session._config
    if config.replication_stream_compression and len(text) > config.replication_stream_compression_threshold:
        await socket.send_bytes(protocol.GZIP + gzip.compress(text, 1))
    else:
        await socket.send_text(text.decode())


async def _stream(socket: WebSocket, session: Session) -> None:
    async def listen() -> None:
        while True:
            ack = await _heard(socket)
            if isinstance(ack, Failed):
                raise Ended(ack.code, f"the replica says: {ack.detail}")
            if not isinstance(ack, Ack):
                raise Ended(protocol.PROTOCOL_ERROR, "only acknowledgements are expected now")
            session.acknowledged(ack.offset)

    async def tell() -> None:
        async for message in session.messages():
            await _say(socket, session, message)

    tasks = [asyncio.ensure_future(listen()), asyncio.ensure_future(tell())]
    stopping = session._call.node.stop_wanted
    try:
        done, _ = await asyncio.wait((*tasks, stopping), return_when=asyncio.FIRST_COMPLETED)
        if stopping in done:
            raise Ended(protocol.CONNECTION_FAILED, "the node is stopping; go to another")
        for task in tasks:
            if task in done:
                task.result()
    except WebSocketDisconnect:
        pass
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


# One long answer.


class ReplicateWanted(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Hello and sync in one."""

    replica_id: str
    source: Source
    from_offset: int | None = None
    topic_id: str = ""
    epoch: int = NO_EPOCH
    snapshots: bool = True


class AckWanted(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    replica_id: str
    offset: int
    source: Source | None = None
    """As it was asked for; only a replica that copies several has to name it."""


async def replicate_lines(call: Call) -> StreamingResponse:
    wanted: ReplicateWanted = call.body
    check_source(wanted.source)
    require_copying(call.access, wanted.source)
    hello = Hello(replica_id=wanted.replica_id, source=wanted.source, snapshots=wanted.snapshots)
    session = Session(call, hello)
    return StreamingResponse(
        _lines(session, wanted),
        media_type=LINES,
        headers={"cache-control": "no-store", "x-accel-buffering": "no"},
    )


async def _lines(session: Session, wanted: ReplicateWanted) -> AsyncIterator[bytes]:
    try:
        yield _line(session, await session.greet())
        sync = Sync(from_offset=wanted.from_offset, topic_id=wanted.topic_id, epoch=wanted.epoch)
        yield _line(session, await session.begin(sync))
        async for piece in session.pieces():
            yield b'{"type":"snapshot_piece","data":"%s"}\n' % b64encode(piece)
        async for message in session.messages():
            assert not isinstance(message, bytes), "lines are JSON"
            yield _line(session, message)
    except (Ended, BrokerError) as error:
        yield protocol.encode(_failed(error)) + b"\n"
    finally:
        session.close()


def _line(session: Session, message: msgspec.Struct) -> bytes:
    text = protocol.encode(message)
    config = session._config
    if config.replication_stream_compression and len(text) > config.replication_stream_compression_threshold:
        return b'{"type":"gzip","data":"%s"}\n' % b64encode(gzip.compress(text, 1))
    return text + b"\n"


async def acknowledge(call: Call) -> dict[str, Any]:
    wanted: AckWanted = call.body
    copies: Copies = call.node.services.copies
    source = None if wanted.source is None else _written(wanted.source)
    require_some(call.access, COPIES)
    copy = copies.find(wanted.replica_id, source)
    if copy is None:
        what = "" if source is None else f" {source}"
        raise Problem(404, f"no replica {wanted.replica_id!r} copies{what} from this node")
    require_copying(call.access, msgspec.json.decode(copy.source, type=Source))
    copies.acknowledged(copy, wanted.offset)
    return {"replica_id": wanted.replica_id, "offset": copy.acknowledged}


# Who copies.


class CopyShown(msgspec.Struct, kw_only=True):
    replica_id: str
    source: Any
    status: str
    offset: int
    sent: int
    connected_at_ms: int
    last_ack_ms: int


async def list_copies(call: Call) -> dict[str, Any]:
    copies: Copies = call.node.services.copies
    return {
        "replicas": [
            CopyShown(
                replica_id=one.replica_id,
                source=msgspec.Raw(one.source.encode()),
                status=_status(one),
                offset=one.acknowledged,
                sent=one.sent,
                connected_at_ms=one.connected_at_ms,
                last_ack_ms=one.last_ack_ms,
            )
            for one in copies.list()
        ]
    }


def _status(copy: Copy) -> str:
    if not copy.is_connected:
        return "disconnected"
    if not copy.last_ack_ms:
        return "syncing"
    return "in_sync" if copy.acknowledged >= copy.sent else "lagging"


OPERATIONS: Final = tagged(
    "replication stream",
    Operation(
        WEB_SOCKET,
        "/v1/replicate",
        replicate_socket,
        "Copy a bucket, a queue, a room or a topic: hello, sync, entries, acks.",
        needs=(COPIES,),
    ),
    Operation(
        "POST",
        "/v1/replicate",
        replicate_lines,
        "Copy a bucket, a queue, a room or a topic, as one long answer of JSON lines.",
        body=ReplicateWanted,
        media_type=LINES,
        needs=(COPIES,),
    ),
    Operation(
        "POST",
        "/v1/replicate/ack",
        acknowledge,
        "Acknowledge how far a copy that reads lines has got.",
        body=AckWanted,
        errors={
            400: "The replica copies several sources, and none is named.",
            404: "No such replica copies from this node.",
        },
        needs=(COPIES,),
    ),
    Operation(
        "GET",
        "/v1/replicate/replicas",
        list_copies,
        "List the copies that read from this node, and their positions.",
        needs=DESCRIBE_CLUSTER,
    ),
)
