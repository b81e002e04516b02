"""Strangers' bytes at the port of the peers, and records that somebody who got in could propose.

What must hold: whoever has not proved that it has the secret is told a nonce or "refused" and nothing else,
nothing that it says is handed on, and little memory is set aside for it. A record that fits is applied and
is in a snapshot as it is in the image; one that does not is named, never met by an error. What may be
proposed fits.
"""

# case := "P" frames of a stranger, cut anywhere | "M" msgpack array of records, as a proposal has them

import asyncio
import struct
from collections.abc import Iterator
from functools import cache
from random import Random
from typing import Any, Final
from uuid import UUID

import msgspec

from fuzz.mutate import mutate
from fuzz.runner import Broken
from tidelog.cluster.messages import Proposal, StopNode, WhoAreYou
from tidelog.config import TopicConfig
from tidelog.controller.decisions import Defaults, NewTopic, create_topic
from tidelog.controller.image import ClusterImage
from tidelog.controller.judging import refusal, unfit
from tidelog.controller.records import BrokerRegistered, BrokerUnfenced, MetadataRecord, PartitionState
from tidelog.controller.snapshot import decode_snapshot, encode_snapshot
from tidelog.host import Host, system_host
from tidelog.model import Endpoint
from tidelog.peers.handshake import NONCE_BYTES, Dialer, Trust
from tidelog.peers.listener import Answer, PeerListener
from tidelog.peers.wire import PROTOCOL, REQUEST, Challenge, Greeting, Hello, Welcome, encode_frame
from tidelog.security.secrets import Secret

_OURS: Final = Trust(Secret([b"o" * 32]))
_GUESSED: Final = Secret([b"g" * 32])
_ME: Final = Welcome(cluster="ours", node=2, directory="two")
_ID, _OTHER_ID = str(UUID(int=77)), str(UUID(int=78))
_PLACE: Final = Endpoint(host="here", port=1)
_INTS: Final = (0, 0, 1, 1, 2, 3, 3, 4, -1, -2, 9, 2**31 - 1, 2**31, 2**32, 2**63 - 1)
_NAMES: Final = (
    "orders",
    "orders",
    "visits",
    "gone",
    "",
    "..",
    "../x",
    "a/b",
    "a\0b",
    "__cluster_metadata",
    "x" * 300,
)
_IDS: Final = (_ID, _ID, _OTHER_ID, str(UUID(int=0)), str(UUID(int=1)), "nonsense", _ID.replace("-", ""), "")
_RECORDS: Final = msgspec.msgpack.Decoder(list[MetadataRecord])


class _Transport(asyncio.Transport):
    """Keeps what the listener sends."""

    def __init__(self) -> None:
        super().__init__({"sockname": ("10.0.0.1", 1), "peername": ("10.0.0.2", 2)})
        self.sent = bytearray()
        self.is_ended = False

    def write(self, data: Any) -> None:
        self.sent += data

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        pass

    def close(self) -> None:
        self.is_ended = True

    abort = close


class PeersFuzzer:
    name = "peers"

    def make(self, random: Random) -> bytes:
        if random.random() < 0.5:
            return b"M" + msgspec.msgpack.encode(list(_any_records(random)))
        frames = b"".join(_any_frame(random) for _ in range(random.randint(1, 5)))
        return b"P" + (mutate(random, frames) if random.random() < 0.7 else frames)

    def check(self, case: bytes) -> int:
        if case[:1] == b"P":
            asyncio.run(_check_stranger(case[1:]))
            return 1
        try:
            records = _RECORDS.decode(case[1:])
        except msgspec.MsgspecError:
            return 0  # the connection ends
        _check_records(records)
        return len(records)


@cache
def _host() -> Host:
    return system_host()


@cache
def _known_states() -> list[PartitionState]:
    return [partition.state for partition in _image().topics["orders"].partitions]


def _any_frame(random: Random) -> bytes:
    hello = Hello(
        protocol=random.choice((PROTOCOL, PROTOCOL, 1)),
        cluster=random.choice((None, "ours", "x" * 2000)),
        node=random.choice(_INTS),
        directory=random.choice(("one", "two", "\n", "x" * 5000)),
        wanted=random.choice((2, 2, 3)),
        proof=random.randbytes(random.choice((0, 16, 32))),
    )
    dialer = Dialer(_GUESSED, random.randbytes(NONCE_BYTES), None)
    message: msgspec.Struct = random.choice(
        (
            hello,
            dialer.greeting,
            dialer.greeting,
            Greeting(
                nonce=random.randbytes(random.choice((0, 32, 64))),
                ends=("127.0.0.1 1",) * random.randrange(4),
            ),
            dialer.challenged(Challenge(nonce=random.randbytes(NONCE_BYTES), sealed=True), hello),
            Welcome(cluster="ours", node=1, directory="one"),
            StopNode(),
            WhoAreYou(quorum=(1, 2, 3)),
            Proposal(based_on=0, records=[]),
        )
    )
    kind = random.choice((REQUEST, REQUEST, REQUEST, 1, 2, 3, 4, 255))
    return b"".join(map(bytes, encode_frame(kind, random.randrange(3), message)))


async def _check_stranger(data: bytes) -> None:
    heard: list[Any] = []

    def receive(node: int, message: Any, place: Answer | None) -> None:
        heard.append(message)

    listener = PeerListener(
        _host(),
        me=lambda: _ME,
        messages=msgspec.msgpack.Decoder(StopNode | WhoAreYou | Proposal),
        receive=receive,
        trust=_OURS,
        for_guests=(WhoAreYou,),
    )
    stream, transport = listener._accept(), _Transport()
    stream.connection_made(transport)
    position = 0
    while position < len(data) and stream.lost is None:
        space = stream.get_buffer(-1)
        if len(space) > 64 * 1024:
            raise Broken(f"{len(space)} bytes are set aside for a stranger")
        count = min(len(space), len(data) - position, 1000)
        space[:count] = data[position : position + count]
        space.release()
        stream.buffer_updated(count)
        position += count
    if heard:
        raise Broken(f"a stranger was heard: {heard}")
    for told in _frames(bytes(transport.sent)):
        kinds = {"Challenge": {"type", "nonce", "sealed"}, "Refusal": {"type", "reason"}}
        if set(told) != kinds.get(told["type"]) or told.get("reason", "refused") != "refused":
            raise Broken(f"a stranger was told {told}")
    listener.close()
    if stream.lost is None or not transport.is_ended:
        raise Broken("a stranger is still there")


def _frames(sent: bytes) -> Iterator[dict[str, Any]]:
    position = 0
    while position < len(sent):
        (size,) = struct.unpack_from(">i", sent, position)
        yield msgspec.msgpack.decode(sent[position + 9 : position + 4 + size])
        position += 4 + size


def _any_records(random: Random) -> Iterator[dict[str, Any]]:
    def number() -> int:
        return random.choice(_INTS)

    def nodes(most: int = 4) -> list[int]:
        return [random.choice((1, 2, 3, 3, number())) for _ in range(random.randrange(most))]

    def state() -> list[Any]:
        whole = list(msgspec.to_builtins(random.choice(_known_states())))
        whole[5] += 1
        for _ in range(random.choice((0, 0, 1, 2, 11))):
            field = random.randrange(11)
            is_list = field in (1, 2, 6, 7, 8, 10)
            whole[field] = (
                nodes() if is_list else [[1, "d"]] * random.randrange(2) if field == 9 else number()
            )
        return whole

    def new_state() -> list[Any]:
        return [random.choice((random.getrandbits(32), number())), [1, 2, 3], [1, 2, 3], 1, 0, *state()[5:]]

    for _ in range(random.choice((1, 1, 2, 3, 6))):
        name, topic_id = random.choice(_NAMES), random.choice(_IDS)
        count = random.randrange(3)
        life = {"node": number(), "broker_epoch": number()}
        yield random.choice(
            (
                {"type": "PartitionChanged", "topic": topic_id, "partition": number(), "state": state()},
                {
                    "type": "PartitionChanged",
                    "topic": _ID,
                    "partition": random.randrange(3),
                    "state": state(),
                },
                {
                    "type": "TopicCreated",
                    "name": name,
                    "id": topic_id,
                    "replicas": [nodes() for _ in range(count)],
                    "partitions": [new_state() for _ in range(random.choice((0, count)))],
                    "config": random.choice(({}, {"retention.ms": "5"}, {"retention.ms": "x"})),
                },
                {
                    "type": "PartitionsAdded",
                    "topic": name,
                    "replicas": [nodes() for _ in range(count)],
                    "partitions": [new_state() for _ in range(random.choice((0, count)))],
                },
                {"type": "TopicDeleted", "name": name},
                {"type": "TopicConfigChanged", "topic": name, "config": {name: "1"}},
                {"type": "NodeConfigChanged", "node": random.choice((None, number())), "config": {name: "1"}},
                {"type": "ProducerIdsGranted", "node": number(), "end": number()},
                {"type": "AclAdded", **_binding(random)},
                {"type": "AclRemoved", **_binding(random)},
                {"type": "UserChanged", "name": name, "verifiers": {}},
                {
                    "type": random.choice(
                        ("BrokerFenced", "BrokerUnfenced", "BrokerShutdownWanted", "BrokerUnregistered")
                    ),
                    **life,
                },
            )
        )


def _binding(random: Random) -> dict[str, str]:
    return {
        "principal": random.choice(("User:alice", "User:*", "alice", "")),
        "host": random.choice(("*", "10.0.0.1", "")),
        "operation": random.choice(("Read", "Write", "Fly")),
        "effect": random.choice(("Allow", "Deny", "")),
        "kind": random.choice(("Topic", "Cluster", "Moon")),
        "name": random.choice(("orders", "kafka-cluster", "")),
        "pattern": random.choice(("Literal", "Prefixed", "literal", "")),
    }


def _image() -> ClusterImage:
    """Three brokers and a topic."""
    image = ClusterImage()
    for node in (1, 2, 3):
        image.apply(
            BrokerRegistered(
                node=node, incarnation="x", broker_epoch=node, directory="d", kafka=_PLACE, peer=_PLACE
            )
        )
        image.apply(BrokerUnfenced(node=node, broker_epoch=node))
    defaults = Defaults(partitions=3, replication=3, topic=TopicConfig())
    image.apply(create_topic(image, NewTopic(name="orders", config={}), UUID(_ID), defaults))
    return image


def _check_records(records: list[MetadataRecord]) -> None:
    image = _image()
    may_be_proposed = refusal(image, records, 1) is None
    for record in records:
        problem = unfit(image, record)
        if problem is None:
            image.apply(record)
        elif may_be_proposed:
            raise Broken(f"{record} may be proposed, and cannot be applied: {problem}")
    if decode_snapshot(encode_snapshot(image)) != image:
        raise Broken(f"a snapshot is not what {records} came to")
    for place in image.places.values():
        if image.replica(place.partition.replicas[0], place.partition.cluster_id) is not place:
            raise Broken(f"the indexes of {image} do not hold {place}")
    for name in list(image.topics):
        image.apply(_RECORDS.decode(msgspec.msgpack.encode([{"type": "TopicDeleted", "name": name}]))[0])
    if image.places or image.preferred or any(image.held.values()):
        raise Broken(f"{image} remembers partitions of topics that are no more, after {records}")
