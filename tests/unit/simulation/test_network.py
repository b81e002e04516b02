"""Byte streams: in order whatever happens, until the connection breaks as a whole."""

import asyncio
import random
from typing import Any

import pytest

from tidelog.simulation.loop import MachineClock, Process, VirtualLoop
from tidelog.simulation.network import SimulatedNetwork
from tidelog.simulation.trace import Trace

LOOPS: list[VirtualLoop] = []


@pytest.fixture(autouse=True)
def _close():
    yield
    while LOOPS:
        LOOPS.pop().close()


class Fixture:
    """A server on `s`, and a client on `c`."""

    def __init__(self, seed: int = 0, **options) -> None:
        self.loop = VirtualLoop()
        LOOPS.append(self.loop)
        self.trace = Trace(self.loop, keep=True)
        self.net = SimulatedNetwork(self.loop, random.Random(seed), self.trace, **options)
        self.s = self.process("s")
        self.c = self.process("c")
        self.server = self.net.of(self.s, "s")
        self.client = self.net.of(self.c, "c")

    def process(self, name: str) -> Process:
        return Process(name, MachineClock(self.loop))

    def run(self, seconds: float = 1.0) -> Any:
        self.loop.run_events(self.loop.now + seconds)
        assert self.loop.errors == []

    def task(self, process: Process, work) -> asyncio.Task:
        return self.loop.create_task(work, context=process.context.copy())

    def do(self, process: Process, work, seconds: float = 1.0):
        task = self.task(process, work)
        self.run(seconds)
        return task.result()

    def connect(self) -> tuple["Peer", "Peer"]:
        """The client's and the server's protocol."""
        accepted: list[Peer] = []

        def accept() -> Peer:
            accepted.append(Peer(self.loop))
            return accepted[-1]

        self.do(self.s, self.server.serve(accept, "s", 1))
        _, mine = self.do(self.c, self.client.connect(lambda: Peer(self.loop), "s", 1))
        return mine, accepted[0]


class Peer(asyncio.Protocol):
    def __init__(self, loop: VirtualLoop) -> None:
        self.loop = loop
        self.got = bytearray()
        self.pieces: list[int] = []
        self.lost: list[Exception | None] = []
        self.eof = False
        self.writable = True
        self.transport: asyncio.Transport

    def connection_made(self, transport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.got += data
        self.pieces.append(len(data))

    def eof_received(self) -> None:
        self.eof = True

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.append(exc)

    def pause_writing(self) -> None:
        self.writable = False

    def resume_writing(self) -> None:
        self.writable = True


def paused(peer: Peer) -> bool:
    return not peer.writable


class BufferedPeer(asyncio.BufferedProtocol):
    def __init__(self, space: int = 7) -> None:
        self.got = bytearray()
        self.space = bytearray(space)

    def connection_made(self, transport) -> None:
        self.transport = transport

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(self.space)

    def buffer_updated(self, nbytes: int) -> None:
        self.got += self.space[:nbytes]


@pytest.mark.parametrize("seed", range(20))
def test_bytes_keep_their_order_whatever_their_delay(seed):
    fixture = Fixture(seed, split_chance=0.5, spike_chance=0.2, window_bytes=100)
    mine, theirs = fixture.connect()
    generator = random.Random(seed)
    sent = bytearray()

    for _ in range(100):
        data = generator.randbytes(generator.randrange(60))
        sent += data
        mine.transport.write(data)
        theirs.transport.write(data)
        fixture.run(generator.choice((0, 0.001)))
    fixture.run(60)

    assert theirs.got == sent == mine.got
    assert len(set(theirs.pieces)) > 10


def test_data_may_be_changed_once_it_was_written():
    fixture = Fixture(window_bytes=4)
    mine, theirs = fixture.connect()
    data = bytearray(b"abcdefgh")

    mine.transport.write(data)
    data[:] = b"xxxxxxxx"
    fixture.run()

    assert theirs.got == b"abcdefgh"


def test_a_buffered_protocol_gets_everything_through_its_own_space():
    fixture = Fixture()
    got: list[BufferedPeer] = []

    def accept() -> BufferedPeer:
        got.append(BufferedPeer())
        return got[-1]

    fixture.do(fixture.s, fixture.server.serve(accept, "s", 1))
    _, mine = fixture.do(fixture.c, fixture.client.connect(lambda: Peer(fixture.loop), "s", 1))
    mine.transport.writelines([b"some words that", b" do not fit", b" at once"])
    fixture.run()

    assert got[0].got == b"some words that do not fit at once"


def test_who_does_not_read_makes_the_other_side_pause():
    fixture = Fixture(window_bytes=1000)
    mine, theirs = fixture.connect()
    theirs.transport.pause_reading()
    mine.transport.set_write_buffer_limits(high=500)

    mine.transport.write(b"a" * 1000)
    assert not paused(mine)
    mine.transport.write(b"b" * 501)
    assert paused(mine)
    fixture.run(10)
    assert theirs.got == b"" and mine.transport.get_write_buffer_size() == 501

    theirs.transport.resume_reading()
    fixture.run()
    assert not paused(mine) and len(theirs.got) == 1501


def test_nobody_listens():
    fixture = Fixture()
    with pytest.raises(ConnectionRefusedError):
        fixture.do(fixture.c, fixture.client.connect(asyncio.Protocol, "s", 2))
    with pytest.raises(OSError, match="no host"):
        fixture.do(fixture.c, fixture.client.connect(asyncio.Protocol, "nowhere", 2))


def test_an_address_is_listened_on_once():
    fixture = Fixture()
    server = fixture.do(fixture.s, fixture.server.serve(asyncio.Protocol, "0.0.0.0", 0))
    port = server.sockets[0].getsockname()[1]
    with pytest.raises(OSError, match="in use"):
        fixture.do(fixture.s, fixture.server.serve(asyncio.Protocol, "s", port))
    server.close()
    fixture.do(fixture.s, fixture.server.serve(asyncio.Protocol, "s", port))
    with pytest.raises(OSError, match="assign"):
        fixture.do(fixture.s, fixture.server.serve(asyncio.Protocol, "c", 5))


def test_closing_flushes_and_the_other_side_sees_the_end():
    fixture = Fixture(window_bytes=10)
    mine, theirs = fixture.connect()
    mine.transport.write(b"x" * 100)
    mine.transport.close()
    mine.transport.write(b"too late")
    fixture.run()

    assert theirs.got == b"x" * 100 and theirs.eof
    assert mine.lost == [None] and theirs.lost == [None]
    assert fixture.net.connections(fixture.s) == fixture.net.connections(fixture.c) == 0


def test_a_killed_process_leaves_what_its_kernel_had_and_the_end_of_the_stream():
    fixture = Fixture(window_bytes=10)
    mine, theirs = fixture.connect()
    theirs.transport.write(b"0123456789 lost with the process")

    fixture.net.on_killed(fixture.s)
    fixture.loop.kill(fixture.s)
    fixture.run()

    assert mine.got == b"0123456789" and mine.lost == [None]
    assert theirs.lost == []
    with pytest.raises(ConnectionRefusedError):
        fixture.do(fixture.c, fixture.client.connect(asyncio.Protocol, "s", 1))


def test_a_process_killed_before_it_read_everything_resets():
    fixture = Fixture()
    mine, theirs = fixture.connect()
    theirs.transport.pause_reading()
    mine.transport.write(b"unread")
    fixture.run()

    fixture.net.on_killed(fixture.s)
    fixture.loop.kill(fixture.s)
    fixture.run()

    assert isinstance(mine.lost[0], ConnectionResetError)


def test_a_machine_without_power_is_silent_and_resets_once_it_is_back():
    fixture = Fixture()
    mine, _ = fixture.connect()
    fixture.net.on_power_lost("s", [fixture.s])
    fixture.loop.kill(fixture.s)
    mine.transport.write(b"hello?")
    fixture.run(30)
    assert mine.lost == []

    fixture.net.on_power_back("s")
    fixture.run(10)
    assert isinstance(mine.lost[0], ConnectionResetError)


def test_a_silent_connection_to_a_rebooted_machine_breaks_when_it_is_used():
    fixture = Fixture()
    mine, _ = fixture.connect()
    fixture.net.on_power_lost("s", [fixture.s])
    fixture.loop.kill(fixture.s)
    fixture.net.on_power_back("s")
    fixture.run(100)
    assert mine.lost == []
    mine.transport.write(b"hello?")
    fixture.run()
    assert isinstance(mine.lost[0], ConnectionResetError)


def test_connecting_to_a_machine_without_power_waits_and_then_gives_up():
    fixture = Fixture()
    fixture.net.on_power_lost("s", [fixture.s])
    task = fixture.task(fixture.c, fixture.client.connect(asyncio.Protocol, "s", 1))
    fixture.run(60)
    assert not task.done()
    fixture.run(120)
    assert isinstance(task.exception(), TimeoutError)


def test_a_cut_holds_one_way_back_until_it_is_mended():
    fixture = Fixture()
    mine, theirs = fixture.connect()
    fixture.net.cut("c", "s")
    mine.transport.write(b"held")
    theirs.transport.write(b"comes")
    fixture.run(20)
    assert theirs.got == b"" and mine.got == b"comes"

    mine.transport.write(b" back")
    fixture.net.mend("c", "s")
    mine.transport.write(b" then more")
    fixture.run()
    assert theirs.got == b"held back then more"


def test_cuts_add_up():
    fixture = Fixture()
    mine, theirs = fixture.connect()
    fixture.net.cut("c", "s")
    fixture.net.cut("c", "s")
    mine.transport.write(b"held")
    fixture.net.mend("c", "s")
    fixture.run()
    assert theirs.got == b""
    fixture.net.heal()
    fixture.run()
    assert theirs.got == b"held"


def test_connecting_waits_for_a_cut_to_be_mended():
    fixture = Fixture()
    fixture.do(fixture.s, fixture.server.serve(asyncio.Protocol, "s", 1))
    fixture.net.cut("s", "c")
    task = fixture.task(fixture.c, fixture.client.connect(asyncio.Protocol, "s", 1))
    fixture.run(5)
    assert not task.done()
    fixture.net.heal()
    fixture.run(10)
    assert task.done() and task.exception() is None


def test_a_clogged_way_is_slow():
    fixture = Fixture()
    mine, theirs = fixture.connect()
    fixture.net.clog("c", "s", 10.0)
    mine.transport.write(b"slow")
    fixture.run(4)
    assert theirs.got == b""
    fixture.run(16)
    assert theirs.got == b"slow"


def test_a_paused_process_accepts_and_hears_later():
    fixture = Fixture()
    accepted = []

    def accept() -> Peer:
        accepted.append(Peer(fixture.loop))
        return accepted[-1]

    fixture.do(fixture.s, fixture.server.serve(accept, "s", 1))
    fixture.loop.pause(fixture.s)
    _, mine = fixture.do(fixture.c, fixture.client.connect(lambda: Peer(fixture.loop), "s", 1))
    mine.transport.write(b"anybody?")
    fixture.run(10)
    assert accepted == []
    fixture.loop.resume(fixture.s)
    fixture.run()
    assert accepted[0].got == b"anybody?"


def test_a_reset_breaks_both_ends_in_the_middle_of_a_message():
    prefixes = set()
    for seed in range(50):
        fixture = Fixture(seed, split_chance=0.0)
        mine, theirs = fixture.connect()
        mine.transport.write(b"0123456789")
        fixture.net.reset(fixture.s)
        fixture.run()
        prefixes.add(bytes(theirs.got))
        assert isinstance(mine.lost[0], ConnectionResetError)
        assert isinstance(theirs.lost[0], ConnectionResetError)
        assert b"0123456789".startswith(theirs.got) and len(theirs.got) < 10
    assert len(prefixes) > 5


def test_giving_up_on_a_connection_leaves_nothing_behind():
    fixture = Fixture()
    accepted = []

    def accept() -> Peer:
        accepted.append(Peer(fixture.loop))
        return accepted[-1]

    fixture.do(fixture.s, fixture.server.serve(accept, "s", 1))
    task = fixture.task(fixture.c, fixture.client.connect(asyncio.Protocol, "s", 1))
    fixture.loop.run_events(fixture.loop.now, stop=None)
    task.cancel()
    fixture.run()
    assert task.cancelled()
    assert fixture.net.connections(fixture.s) == fixture.net.connections(fixture.c) == 0


def test_one_seed_is_one_history():
    def history(seed: int) -> str:
        fixture = Fixture(seed, split_chance=0.3, spike_chance=0.1)
        mine, theirs = fixture.connect()
        for n in range(50):
            mine.transport.write(b"x" * n)
            theirs.transport.write(b"y" * n)
            if n == 25:
                fixture.net.cut("c", "s")
            fixture.run(0.001)
        fixture.net.heal()
        fixture.run()
        return fixture.trace.digest

    assert history(1) == history(1) != history(2)


def test_who_cannot_send_its_last_bytes_to_one_who_has_closed_and_gone_is_told():
    world = Fixture(window_bytes=10)
    mine, theirs = world.connect()
    world.net.isolate("s")
    world.loop.call_soon(mine.transport.write, b"x" * 100, context=world.c.context)
    world.run()

    world.loop.call_soon(theirs.transport.close, context=world.s.context)
    world.run()
    world.net.on_killed(world.s)
    world.loop.kill(world.s)
    world.net.heal()
    world.run(5)

    assert len(mine.lost) == 1


def test_who_writes_to_one_that_died_behind_a_cut_is_told_once_that_is_mended():
    world = Fixture(window_bytes=10)
    mine, _ = world.connect()
    world.net.isolate("s")
    world.net.on_killed(world.s)
    world.loop.kill(world.s)
    world.loop.call_soon(mine.transport.write, b"x" * 100, context=world.c.context)
    world.run()
    assert mine.lost == []

    world.net.heal()
    world.run(5)

    assert len(mine.lost) == 1


def test_an_end_that_is_not_told_of_a_reset_learns_of_it_when_it_sends():
    fixture = Fixture()
    mine, theirs = fixture.connect()
    assert fixture.net.reset_one_end(fixture.c) == 1
    fixture.run()
    lost, other = (mine, theirs) if mine.lost else (theirs, mine)
    assert isinstance(lost.lost[0], ConnectionResetError)
    assert other.lost == []

    other.transport.write(b"are you there?")
    fixture.run()

    assert isinstance(other.lost[0], ConnectionResetError)


@pytest.mark.parametrize("seed", range(8))
def test_nothing_comes_by_a_connection_that_was_forgotten_on_the_way(seed):
    fixture = Fixture(seed)
    mine, theirs = fixture.connect()
    assert fixture.net.forget(fixture.c) == 1
    fixture.run()
    believing = [end for end in (mine, theirs) if not end.lost]
    assert believing

    for end in believing:
        end.transport.write(b"are you there?")
    fixture.run(60)
    for process, end in ((fixture.c, mine), (fixture.s, theirs)):
        if end not in believing[:1]:
            fixture.net.on_killed(process)
    fixture.run(60)

    assert believing[0].lost == []
    assert not believing[0].eof
    assert bytes(mine.got + theirs.got) == b""
