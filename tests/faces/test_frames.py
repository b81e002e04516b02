"""Streams that are not made of frames, and frames that never end."""

import os
import struct
from pathlib import Path
from random import Random

import pytest

from tests.faces.arena import FRAME_BYTES_MAX, MIB, Arena, arena_on
from tests.faces.raw import fetch_fields, framed, header, request
from tidelog.wire.apis import Api

TLS_HELLO = bytes.fromhex("16030100c8010000c40303") + bytes(190)
API_VERSIONS = request(Api.API_VERSIONS, 0)


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\nHost: example.com\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.6\r\n",
        TLS_HELLO,
        b"\0" * 4096,
        b"\xff" * 4096,
        b"\r\n\r\n\r\n\r\n",
        b"PING\r\n",
    ],
    ids=["http", "ssh", "tls", "zeros", "ones", "newlines", "redis"],
)
def test_garbage_closes_its_connection(arena: Arena, garbage: bytes) -> None:
    client = arena.connect()

    client.send(garbage)

    assert client.is_closed()


@pytest.mark.parametrize("seed", range(30))
def test_random_bytes_close_their_connection_or_wait_for_more(arena: Arena, seed: int) -> None:
    client = arena.connect()

    # The first byte makes the size larger than is allowed, or negative.
    client.send(b"\x7f" + Random(seed).randbytes(5000))

    assert client.is_closed()


@pytest.mark.parametrize("size", [0, 1, 2, 3, -1, -(2**31), FRAME_BYTES_MAX + 1, 2**31 - 1, 0x01000000])
def test_a_size_that_cannot_be_closes_the_connection_at_once(arena: Arena, size: int) -> None:
    client = arena.connect()

    client.send(struct.pack(">i", size))  # and nothing else: the node must not wait for the rest

    assert client.is_closed()


@pytest.mark.parametrize("size", [4, 5, 8, 9])
def test_a_frame_without_room_for_a_header_closes_the_connection(arena: Arena, size: int) -> None:
    client = arena.connect()

    client.send(framed(bytes(size)))

    assert client.is_closed()


def test_a_client_id_longer_than_its_request_closes_the_connection(arena: Arena) -> None:
    for claimed in (1, 100, 32_767):
        client = arena.connect()
        client.send(framed(struct.pack(">hhih", Api.METADATA, 1, 1, claimed)))
        assert client.is_closed()


def test_a_request_that_comes_byte_by_byte_is_answered(arena: Arena) -> None:
    client = arena.connect()

    for position in range(len(API_VERSIONS)):
        client.send(API_VERSIONS[position : position + 1])

    _, answer = client.read_answer(Api.API_VERSIONS, 0)
    assert answer.error_code == 0


def test_thousands_of_pipelined_requests_are_answered_in_order(arena: Arena) -> None:
    count = 5000
    client = arena.connect()

    client.send(b"".join(request(Api.API_VERSIONS, 0, correlation_id=n) for n in range(count)))

    answered = [client.read_answer(Api.API_VERSIONS, 0)[0] for _ in range(count)]
    assert answered == list(range(count))


def test_a_good_request_before_garbage_is_answered(arena: Arena) -> None:
    client = arena.connect()
    client.send(API_VERSIONS)
    client.read_answer(Api.API_VERSIONS, 0)

    client.send(struct.pack(">i", -5) + b"garbage")

    assert client.is_closed()


def test_a_lying_length_costs_its_sender_the_bytes_and_the_node_no_memory(arena: Arena) -> None:
    with arena.unharmed(peak_bytes_max=24 * MIB):  # two small buffers for each connection
        for _ in range(100):
            client = arena.connect()
            client.send(struct.pack(">i", FRAME_BYTES_MAX) + b"\0\0")  # says 8 MiB, sends 6 bytes
        arena.bystander.wait_served(5)


def test_clients_that_leave_in_mid_frame_leave_nothing_behind(arena: Arena) -> None:
    half = struct.pack(">i", FRAME_BYTES_MAX) + bytes(2 * MIB)
    arena.bystander.wait_served()
    with arena.unharmed(peak_bytes_max=24 * MIB):
        for _ in range(60):
            with arena.connect() as client:
                client.send(half)


def test_the_largest_length_there_is_may_trickle_in(tmp_path: Path) -> None:
    with (
        arena_on(tmp_path / "data", socket_request_max_bytes=2**31 - 1) as arena,
        arena.unharmed(peak_bytes_max=16 * MIB),
    ):
        clients = [arena.connect() for _ in range(20)]
        for client in clients:
            client.send(struct.pack(">i", 2**31 - 1))
        for _ in range(50):
            for client in clients:
                client.send(os.urandom(1000))
        arena.bystander.wait_served(5)


# Time.


def test_a_request_that_stops_half_way_is_closed_after_a_while(tmp_path: Path) -> None:
    with arena_on(tmp_path / "data", frame_timeout_ms=300) as arena, arena.unharmed():
        half, whole, tiny = arena.connect(), arena.connect(), arena.connect()

        half.send(API_VERSIONS[:-1])
        tiny.send(b"\0")
        whole.send(API_VERSIONS)

        assert half.is_closed()
        assert tiny.is_closed()
        whole.read_answer(Api.API_VERSIONS, 0)
        whole.send(API_VERSIONS)  # it is only idle, and idling is allowed for longer
        assert not whole.is_closed()


def test_an_idle_connection_is_closed_and_a_waiting_fetch_is_not(tmp_path: Path) -> None:
    with arena_on(tmp_path / "data", connections_max_idle_ms=1000) as arena, arena.unharmed():
        idle, waiting = arena.connect(), arena.connect()
        idle.create_topic("quiet")

        waiting.send(request(Api.FETCH, 11, fetch_fields("quiet", max_wait=4000, min_bytes=1)))

        assert idle.is_closed()
        _, answer = waiting.read_answer(Api.FETCH, 11)
        assert answer.error_code == 0


# Numbers.


def test_connections_beyond_the_limit_are_closed_and_the_others_stay(tmp_path: Path) -> None:
    limit = 8
    with arena_on(tmp_path / "data", connections_max=limit) as arena, arena.unharmed():
        admitted = [arena.connect() for _ in range(limit - 1)]  # the bystander is one, too
        for client in admitted:
            client.ask(Api.API_VERSIONS, 0)

        refused = [arena.connect() for _ in range(20)]

        for client in refused:
            client.send(API_VERSIONS)
            assert client.is_closed()
        for client in admitted:
            client.ask(Api.API_VERSIONS, 0)
        admitted[0].close()
        arena.bystander.wait_served(3)
        arena.connect().ask(Api.API_VERSIONS, 0)


def test_a_header_of_nothing_but_tags_is_refused_without_reading_them(arena: Arena) -> None:
    client = arena.connect()
    tags = b"\xff\xff\xff\x7f" + b"\0\0" * (FRAME_BYTES_MAX // 2 - 100)
    before = arena.cpu_seconds()

    client.send(framed(header(Api.METADATA, 12)[:-1] + tags))

    assert client.is_closed()
    assert arena.cpu_seconds() - before < 1
