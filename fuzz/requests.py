"""Every API in every version, valid and damaged, against a broker in memory.

What must hold: each request is answered once or refused once, except a fetch that still waits;
each answer has its version's shape; fetched bytes are whole batches with right checksums; nothing
is logged as a failure; and after a stop or a kill the node comes back with the same logs.
"""

# case := step*
# step := pause_ms: uint8, size: uint32, frame: that many bytes         (big-endian)

import asyncio
import functools
import logging
import struct
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any, Final
from unittest.mock import patch

from kio.serial import entity_reader

from fuzz.messages import Pool, any_version, header, random_body, simple_produce
from fuzz.mutate import mutate
from fuzz.runner import Broken
from fuzz.world import Complaints, VirtualLoop, make_broker
from tidelog.broker.broker import Broker
from tidelog.broker.topics import create_topic
from tidelog.controller import decisions
from tidelog.controller.decisions import NewTopic
from tidelog.host import Bytes
from tidelog.kafka.context import Client
from tidelog.kafka.requests import Requests
from tidelog.records import crc_matches, iterate_batches
from tidelog.simulation.disk import SimulatedDisk
from tidelog.wire.apis import APIS, Api
from tidelog.wire.entities import MessageDamaged, response_type
from tidelog.wire.produce import Repeated
from tidelog.wire.produce import decode_request as decode_produce
from tidelog.wire.requests import Header, read_header

STEP: Final = struct.Struct(">BI")
STEPS_MAX: Final = 40
QUIET_SECONDS: Final = 8.0
"""Longer than any pause and any wait but the absurd ones."""

SEED: Final = 1
PARTITIONS_MAX: Final = 64
MAY_WAIT: Final = (Api.FETCH, Api.JOIN_GROUP, Api.SYNC_GROUP)
"""Requests that are answered when others have acted, after weeks if the client says so."""

CLIENT: Final = Client(address="fuzz")


class Answer:
    """The place of one answer: counts what came."""

    def __init__(self, head: Header) -> None:
        self.head = head
        self.body: bytes | None = None
        self.count = 0
        self.gone: Callable[[], None] | None = None

    def send(self, body: Sequence[Bytes]) -> None:
        self.count += 1
        self.body = b"".join(body)

    def skip(self) -> None:
        self.count += 1
        if self.head.api is not Api.PRODUCE:
            raise Broken(f"{self.head} was skipped")

    def refuse(self, reason: str) -> None:
        self.count += 1

    def on_gone(self, call: Callable[[], None]) -> None:
        self.gone = call


class RequestsFuzzer:
    name = "requests"

    def __init__(self) -> None:
        self._pool = Pool(topic_ids=run_episode(self._topic_ids()))

    async def _topic_ids(self) -> list[Any]:
        broker = await start_broker(SimulatedDisk(Random(SEED)))
        return [topic.id for topic in broker.image.topics.values()]

    def make(self, random: Random) -> bytes:
        case = bytearray()
        for frame in random_frames(random, random.randint(1, STEPS_MAX), self._pool):
            case += STEP.pack(random.choice((0, 0, 0, 1, 20, 255)), len(frame)) + frame
        return bytes(case)

    def check(self, case: bytes) -> int:
        frames = list(steps(case))
        complaints = Complaints()
        logger = logging.getLogger("tidelog")
        logger.addHandler(complaints)
        logger.propagate = False
        try:
            run_episode(_episode(frames, kills=len(case) % 2 == 0))
        finally:
            logger.removeHandler(complaints)
        if complaints.records:
            raise Broken(complaints.records[0])
        return len(frames)


def random_frames(random: Random, count: int, pool: Pool) -> Iterator[bytes]:
    """Requests as one client may send them; some are damaged, some repeat the one before."""
    again: tuple[Api, int] | None = None
    for correlation_id in range(count):
        api, version = any_version(random)
        if again is not None and random.random() < 0.6:
            api, version = again
            body = simple_produce(random, version, pool)
        else:
            again = (api, version) if api is Api.PRODUCE and random.random() < 0.5 else None
            body = random_body(random, api, version, pool)
        head = header(api, version, correlation_id)
        match random.randrange(20):
            case 0:
                yield random.randbytes(random.randint(0, 60))
            case 1:
                yield mutate(random, head) + body
            case 2 | 3 | 4 | 5 | 6 | 7:
                yield head + mutate(random, body)
            case _:
                yield head + body


def steps(case: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at + STEP.size <= len(case):
        pause_ms, size = STEP.unpack_from(case, at)
        at += STEP.size
        yield pause_ms, case[at : at + size]
        at += size


def run_episode(episode: Any) -> Any:
    loop = VirtualLoop()
    # Creating tens of thousands of partitions is allowed, and too slow to be tried often.
    few = patch.object(decisions, "PARTITIONS_MAX", PARTITIONS_MAX)
    with few, asyncio.Runner(loop_factory=lambda: loop) as runner:
        result = runner.run(episode)
    if loop.failures:
        raise Broken(loop.failures[0])
    return result


async def start_broker(disk: SimulatedDisk) -> Broker:
    broker = make_broker(SEED, disk)
    await broker.start()
    for name, config in (("plain", {}), ("stamped", {"message.timestamp.type": "LogAppendTime"})):
        if name not in broker.image.topics:
            await create_topic(broker, NewTopic(name=name, partitions=2, config=config))
    return broker


async def _episode(frames: list[tuple[int, bytes]], *, kills: bool) -> None:
    disk = SimulatedDisk(Random(SEED))
    broker = await start_broker(disk)
    requests = Requests(broker)
    answers = []
    repeated: Repeated | None = None
    for pause_ms, data in frames:
        frame = bytearray(data)
        batch = repeated.batch_in(frame) if repeated is not None else None
        try:
            head = read_header(frame)
        except MessageDamaged:
            if batch is not None:
                raise Broken("a request without a header counts as a repeated one") from None
            continue
        answer = Answer(head)
        answers.append(answer)
        if repeated is not None and batch is not None:
            _check_repeated(repeated, frame, head, batch)
            requests.handle_repeated(repeated, batch, len(frame), CLIENT, answer)
        else:
            repeated = requests.handle(frame, head, CLIENT, answer)
        if pause_ms:
            await asyncio.sleep(pause_ms / 1000)
    await asyncio.sleep(QUIET_SECONDS)
    for answer in answers:
        check_answer(answer)
    found = _logs(broker)
    if kills:
        await broker.abandon()
        disk.kill()
    else:
        await broker.stop()
    again = make_broker(SEED, disk)
    await again.start()
    if _logs(again) != found:
        raise Broken(f"before the restart {found}, after it {_logs(again)}")
    await again.stop()


def _check_repeated(repeated: Repeated, frame: bytearray, head: Header, batch: memoryview) -> None:
    """The short way to read a request must find what the long way finds."""
    assert head.api is Api.PRODUCE, head
    request = decode_produce(bytearray(frame), head.body_at, head.version)
    ((topic, (found,)),) = ((t.topic, t.partitions) for t in request.topics)
    long_way = (
        head.version,
        request.transactional_id,
        request.acks,
        request.timeout_ms,
        topic,
        found.partition,
        found.records,
    )
    short_way = (
        repeated.version,
        None,
        repeated.acks,
        repeated.timeout_ms,
        repeated.topic,
        repeated.partition,
        batch,
    )
    if long_way != short_way:
        raise Broken(f"{long_way} was taken for {short_way}")


def _logs(broker: Broker) -> dict[str, Any]:
    return {
        str(p.name): (p.log.start, p.log.end, p.log.size, _producers(p.log.producers))
        for p in broker.partitions()
    }


def _producers(states: Any) -> Any:
    return {key: (s.epoch, list(s.batches)) for key, s in states._states.items()}


@functools.cache
def _response_reader(api_key: int, version: int) -> Any:
    return entity_reader(response_type(api_key, version))


def check_answer(answer: Answer) -> None:
    head = answer.head
    if answer.count == 0 and head.api in MAY_WAIT:
        if answer.gone is not None:
            answer.gone()  # it waits for more than the episode lasts
        return
    if answer.count != 1:
        raise Broken(f"{head} was answered {answer.count} times")
    if answer.body is None:
        return
    read = _response_reader(head.api_key, head.version if head.api is not None else 0)
    response, size = read(memoryview(answer.body), 0)
    if size != len(answer.body):
        raise Broken(f"{len(answer.body) - size} bytes follow the answer to {head}")
    if head.api is None:
        if {int(key.api_key) for key in response.api_keys} != set(APIS):
            raise Broken("a client that speaks another version is not told of all APIs")
    elif head.api is Api.FETCH:
        for topic in response.responses:
            for partition in topic.partitions:
                _check_fetched(partition.records)


def _check_fetched(records: Any) -> None:
    data = bytes(records or b"")
    size = end = 0
    for batch_header, batch in iterate_batches(data):
        if not crc_matches(batch, batch_header) or batch_header.base_offset < end:
            raise Broken(f"a fetch returned a damaged batch: {batch_header}")
        size += len(batch)
        end = batch_header.next_offset
    if size != len(data):
        raise Broken(f"a fetch returned {len(data) - size} bytes that are no whole batch")
