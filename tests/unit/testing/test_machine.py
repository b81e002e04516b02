"""Clocks that are wrong, and ports that are kept."""

import errno
import socket
import time

import pytest

from tidelog.testing.machine import NodeClock
from tidelog.testing.ports import LOCALHOST, ReservedPort, reserve


def test_a_clock_is_the_system_s_until_it_is_told_otherwise():
    clock = NodeClock()

    before, read, after = time.monotonic(), clock.monotonic(), time.monotonic()

    assert before <= read <= after
    assert abs(clock.wall_ms() - time.time() * 1000) < 60_000


def test_a_clock_never_goes_back_whatever_its_rate_becomes():
    clock = NodeClock()
    seen = [clock.monotonic()]
    for rate in (10.0, 0.01, 1.0, 1000.0, 1.0):
        clock.run_at(rate)
        seen += [clock.monotonic() for _ in range(100)]

    assert seen == sorted(seen)


def test_a_fast_clock_counts_more_than_passes(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    clock = NodeClock()
    clock.run_at(3.0)
    now[0] += 2.0
    assert clock.monotonic() == 106.0

    clock.run_at(1.0)
    now[0] += 2.0
    assert clock.monotonic() == 108.0


def test_a_wall_clock_can_be_wrong():
    clock = NodeClock()
    before = clock.wall_ms()

    clock.ahead_ms = -3_600_000

    assert clock.wall_ms() < before


def test_a_reserved_port_refuses_callers_and_can_be_listened_on_again_and_again():
    port = ReservedPort()
    try:
        for _ in range(3):
            with socket.socket() as caller:
                assert caller.connect_ex((LOCALHOST, port.number)) == errno.ECONNREFUSED
            with (
                socket.create_server((LOCALHOST, port.number)) as server,
                socket.create_connection((LOCALHOST, port.number)) as caller,
            ):
                server.accept()[0].close()
                caller.recv(1)
    finally:
        port.release()


def test_the_kernel_gives_a_reserved_port_to_nobody_else():
    ports = [ReservedPort() for _ in range(200)]
    try:
        assert len({port.number for port in ports}) == len(ports)
    finally:
        for port in ports:
            port.release()


def test_of_several_ports_all_are_reserved_or_none():
    free = ReservedPort()
    free.release()
    with socket.create_server((LOCALHOST, 0)) as server:
        taken = server.getsockname()[1]
        with pytest.raises(OSError, match="in use"):
            reserve((LOCALHOST, free.number), (LOCALHOST, taken))

    with socket.socket() as other:  # without SO_REUSEADDR: nobody else may have it
        other.bind((LOCALHOST, free.number))


def test_a_port_that_somebody_listens_on_cannot_be_reserved():
    with socket.create_server((LOCALHOST, 0)) as server, pytest.raises(OSError, match="in use"):
        ReservedPort(server.getsockname()[1])
