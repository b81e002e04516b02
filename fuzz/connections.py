"""A client's byte stream in any pieces, read and answered by the Kafka face itself.

What must hold: answers leave in the order of the requests, each with its own correlation id and
its version's shape; nothing fails but the connection; when it is gone, no memory is still
counted as its own.
"""

# case := seed: uint16, stream      (the seed decides where the stream is cut, and who pauses)

import asyncio
import logging
import struct
from random import Random
from typing import Any, Final

from fuzz.messages import Pool
from fuzz.mutate import mutate
from fuzz.requests import Answer, check_answer, random_frames, run_episode, start_broker
from fuzz.runner import Broken
from fuzz.world import Complaints
from tidelog.faces.kafka import Connection, KafkaListener, _is_tagged
from tidelog.host import Bytes
from tidelog.kafka.requests import Requests
from tidelog.simulation.disk import SimulatedDisk
from tidelog.wire.entities import MessageDamaged
from tidelog.wire.frames import FRAME_BYTES_LEAST, SIZE_BYTES
from tidelog.wire.requests import Header, read_header

FRAMES_MAX: Final = 25
FRAME_BYTES_MAX: Final = 200_000
QUIET_SECONDS: Final = 8.0


class Wire(asyncio.Transport):
    """Where a connection writes to; its other end may stop reading."""

    def __init__(self, connection: Connection, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._connection = connection
        self._loop = loop
        self.sent = bytearray()
        self.is_read_from = True
        self.is_open = True

    def write(self, data: Bytes) -> None:
        if not self.is_open:
            raise Broken("something was written to a closed connection")
        self.sent += data

    def writelines(self, pieces: Any) -> None:
        for piece in pieces:
            self.write(piece)

    def abort(self) -> None:
        if self.is_open:
            self.is_open = False
            self._loop.call_soon(self._connection.connection_lost, None)

    close = abort

    def pause_reading(self) -> None:
        self.is_read_from = False

    def resume_reading(self) -> None:
        self.is_read_from = True

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default


class ConnectionsFuzzer:
    name = "connections"

    def __init__(self) -> None:
        self._pool: Pool = run_episode(self._make_pool())

    async def _make_pool(self) -> Pool:
        broker = await start_broker(SimulatedDisk(Random(1)))
        return Pool([topic.id for topic in broker.image.topics.values()])

    def make(self, random: Random) -> bytes:
        stream = b"".join(
            struct.pack(">i", len(frame)) + frame
            for frame in random_frames(random, random.randint(1, FRAMES_MAX), self._pool)
        )
        if random.random() < 0.3:
            stream = mutate(random, stream)
        return random.randbytes(2) + stream

    def check(self, case: bytes) -> int:
        complaints = Complaints()
        logger = logging.getLogger("tidelog")
        logger.addHandler(complaints)
        try:
            count: int = run_episode(_episode(Random(case[:2]), case[2:]))
        finally:
            logger.removeHandler(complaints)
        if complaints.records:
            raise Broken(complaints.records[0])
        return count


async def _episode(random: Random, stream: bytes) -> int:
    broker = await start_broker(SimulatedDisk(Random(1)))
    listener = KafkaListener(broker.host, Requests(broker))
    connection = Connection(listener)
    wire = Wire(connection, asyncio.get_running_loop())
    connection.connection_made(wire)
    connection._frames.size_max = FRAME_BYTES_MAX
    await _feed(random, stream, connection, wire)
    connection.resume_writing()
    await asyncio.sleep(QUIET_SECONDS)
    _check_answers(_requests_in(stream), bytes(wire.sent))
    wire.abort()
    await asyncio.sleep(QUIET_SECONDS)
    intake = listener.intake
    if intake.bytes_held or intake.bytes_coming or listener.connections:
        raise Broken(f"{intake.bytes_held} + {intake.bytes_coming} bytes are held for nobody")
    await broker.stop()
    return max(1, len(_requests_in(stream)))


async def _feed(random: Random, stream: bytes, connection: Connection, wire: Wire) -> None:
    """Hand over the stream in pieces, as far as the connection takes it."""
    at = 0
    while at < len(stream) and wire.is_open:
        if not wire.is_read_from:
            await asyncio.sleep(1)
            if not wire.is_read_from:
                return  # it waits for a request that takes longer than the episode
        space = connection.get_buffer(-1)
        size = min(len(space), random.choice((1, 3, 50, 1000, 100_000)), len(stream) - at)
        if size == 0:
            raise Broken("there is no room to receive anything")
        space[:size] = stream[at : at + size]
        connection.buffer_updated(size)
        at += size
        match random.randrange(10):
            case 0:
                connection.pause_writing()
            case 1 | 2:
                connection.resume_writing()
            case 3 | 4:
                await asyncio.sleep(random.choice((0, 0.001, 0.1)))


def _requests_in(stream: bytes) -> list[Header]:
    """The requests of the stream, up to where it stops being one."""
    found = []
    at = 0
    while at + SIZE_BYTES <= len(stream):
        (size,) = struct.unpack_from(">i", stream, at)
        at += SIZE_BYTES
        if not FRAME_BYTES_LEAST <= size <= FRAME_BYTES_MAX or at + size > len(stream):
            break
        try:
            found.append(read_header(bytearray(stream[at : at + size])))
        except MessageDamaged:
            break
        at += size
    return found


def _check_answers(requests: list[Header], sent: bytes) -> None:
    expected = iter(requests)
    at = 0
    while at < len(sent):
        size, correlation_id = struct.unpack_from(">ii", sent, at)
        frame = sent[at + 8 : at + SIZE_BYTES + size]
        at += SIZE_BYTES + size
        if at > len(sent):
            raise Broken("half an answer was sent")
        for head in expected:  # those without an answer (acks=0) are passed over
            if head.correlation_id == correlation_id:
                break
        else:
            raise Broken(f"an answer {correlation_id} that nobody waits for, or out of its turn")
        check_answer(_as_answer(head, frame))


def _as_answer(head: Header, frame: bytes) -> Answer:
    answer = Answer(head)
    if _is_tagged(head):
        if frame[:1] != b"\0":
            raise Broken(f"an answer to {head} without tags")
        frame = frame[1:]
    answer.send([frame])
    return answer
