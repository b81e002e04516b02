"""The world with toy nodes: what each fault does, and that one seed is one history."""

import asyncio
import random
from itertools import pairwise

import pytest

from tidelog.errors import ConfigError
from tidelog.host import Host, Path, read_file, replace_file
from tidelog.simulation.world import UNEXPECTED_ERROR, Violation, World

COUNT = Path("/count")


class Counter(asyncio.Protocol):
    """A node that counts what it is asked to, on its disk, and answers with the count."""

    def __init__(self, host: Host, number: int) -> None:
        self.host = host
        self.number = number
        self.failure: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        self.count = 0
        self.ticks = 0
        self.syncs = True

    async def start(self) -> None:
        if self.host.disk.exists(COUNT):
            self.count = int(await self.host.offload.run(lambda: read_file(self.host.disk, COUNT)))
        await self.host.network.serve(lambda: _Session(self), f"node-{self.number}", 1)
        self.ticking = asyncio.create_task(self._tick())

    async def stop(self) -> None:
        await self.add(0)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(1)
            self.ticks += 1

    async def add(self, number: int) -> int:
        self.count += number
        content, durably = b"%d" % self.count, self.syncs
        await self.host.offload.run(lambda: replace_file(self.host.disk, COUNT, content, durably=durably))
        return self.count


class _Session(asyncio.Protocol):
    def __init__(self, node: Counter) -> None:
        self.node = node

    def connection_made(self, transport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.answering = asyncio.create_task(self.answer(len(data)))

    async def answer(self, number: int) -> None:
        try:
            self.transport.write(b"%d\n" % await self.node.add(number))
        except OSError as error:
            if not self.node.failure.done():
                self.node.failure.set_result(error)


async def ask(world: World, node: int, data: bytes = b"x") -> int:
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[bytes] = loop.create_future()

    class Asker(asyncio.Protocol):
        def data_received(self, data: bytes) -> None:
            if not answer.done():
                answer.set_result(data)

        def connection_lost(self, exc) -> None:
            if not answer.done():
                answer.set_exception(exc or ConnectionError("closed"))

    async with asyncio.timeout(5):
        transport, _ = await world.client("story").network.connect(Asker, f"node-{node}", 1)
        try:
            transport.write(data)  # type: ignore[attr-defined]
            return int(await answer)
        finally:
            transport.close()


@pytest.fixture
def world():
    with World(1, nodes=3, node_factory=Counter, keep_trace=True, split_chance=0) as world:
        world.start()
        yield world


def test_nodes_start_and_answer(world):
    assert [world.do(ask(world, node)) for node in (1, 2, 3, 1)] == [1, 1, 1, 2]


def test_a_crash_keeps_what_the_machine_has(world):
    world.node(1).syncs = False
    world.do(ask(world, 1, b"xxx"))
    world.crash(1)
    assert not world.is_up(1)
    with pytest.raises(ConnectionRefusedError):
        world.do(ask(world, 1))
    world.restart(1)
    world.run_until(lambda: world.is_up(1), seconds_max=5)

    assert world.do(ask(world, 1)) == 4
    assert world.machines[1].lives == 2


def test_losing_power_everywhere_keeps_what_was_synced(world):
    for node in (1, 2, 3):
        world.do(ask(world, node, b"xx"))
    world.lose_power_everywhere()
    world.run(1)
    world.start()

    assert [world.do(ask(world, node)) for node in (1, 2, 3)] == [3, 3, 3]


def test_losing_power_takes_what_was_not():
    lost = 0
    for seed in range(20):
        with World(seed, nodes=1, node_factory=Counter) as world:
            world.start()
            world.node(1).syncs = False
            world.do(ask(world, 1, b"xx"))
            world.lose_power(1)
            world.restart(1)
            try:
                world.run_until(world.all_up, seconds_max=5)
                lost += world.node(1).count == 0
            except Violation:  # the number was torn
                lost += 1
    assert 0 < lost < 20


def test_power_may_be_lost_inside_a_write(world):
    world.lose_power_in_write(1, changes=2)
    with pytest.raises(TimeoutError):
        world.do(ask(world, 1))
    assert world.machines[1].process is None and not world.machines[1].has_power
    assert world.faults["lose_power_in_write"] == 1


def test_a_paused_node_is_silent_and_goes_on(world):
    before = world.node(1).ticks
    world.pause(1, seconds=10)
    with pytest.raises(TimeoutError):
        world.do(ask(world, 1))
    assert world.node(1).ticks == before
    world.run(10)
    assert world.node(1).ticks > before
    assert world.do(ask(world, 1)) >= 1


def test_a_cut_node_is_reached_again_after_healing(world):
    world.isolate(2)
    with pytest.raises(TimeoutError):
        world.do(ask(world, 2))
    world.heal()
    assert world.do(ask(world, 2)) == 1


def test_a_stalled_disk_holds_up_who_needs_it(world):
    world.stall_disk(1, seconds=3)
    began = world.now
    assert world.do(ask(world, 1)) == 1
    assert world.now - began >= 3


def test_a_full_or_failing_disk_ends_a_node_that_says_so(world):
    world.fill_disk(1)
    world.fail_disk(2, "syncs")
    for node in (1, 2):
        with pytest.raises(ConnectionError):
            world.do(ask(world, node, b"x" * 10))
        assert not world.is_up(node)
    world.heal()
    world.start()
    assert world.do(ask(world, 1)) == 1


def test_the_supervisor_starts_again_who_gave_up():
    with World(1, nodes=1, node_factory=Counter, restart_after_seconds=2.0) as world:
        world.start()
        world.node(1).failure.set_result("no reason")
        world.run(1)
        assert not world.is_up(1)
        world.run(2)
        assert world.is_up(1)


def test_who_was_stopping_when_everybody_was_started_comes_back():
    with World(1, nodes=1, node_factory=Counter, restart_after_seconds=1.0) as world:
        world.start()
        world.pause(1, 10.0)
        world.stop(1)
        world.heal()
        world.keep_everyone_running()

        world.run_until(lambda: world.machines[1].lives == 2 and world.is_up(1), 20)


def test_clocks_of_nodes_are_their_own(world):
    world.skew_clock(1, 2.0)
    world.jump_clock(2, -3600)
    before = world.node(1).ticks
    world.run(10)

    assert world.node(1).ticks - before in (18, 19, 20)
    walls = [world.machines[node].clock.wall_ms() for node in (2, 3)]
    assert walls[1] - walls[0] == 3_600_000
    assert len({world.machines[node].clock.monotonic() for node in (1, 2, 3)}) == 3


def test_bits_rot_on_the_disk(world):
    world.do(ask(world, 1, b"x" * 1000))
    before = read_file(world.machines[1].disk, COUNT)
    world.flip_bits(1, count=1, suffix="count")

    assert read_file(world.machines[1].disk, COUNT) != before
    assert world.machines[1].is_damaged and not world.machines[2].is_damaged


@pytest.mark.parametrize("fault", ["fail_looks", "fail_reads", "fail_syncs", "fail_writes"])
def test_what_the_world_does_with_a_disk_that_fails_does_not_fail(world, fault):
    world.do(ask(world, 1, b"x"))  # so that there is a file
    getattr(world.machines[1].disk, fault)()

    assert COUNT in world.machines[1].files()
    world.flip_bits(1, count=1, suffix="count")
    world.crash(1)
    world.replace_disk(1)
    assert world.machines[1].files() == []


def test_a_clean_stop_ends_the_process(world):
    world.stop(3)
    world.run(1)
    assert world.machines[3].process is None
    assert world.faults == {}


def test_a_violation_says_how_to_see_it_again(world):
    world.invariant("few ticks", lambda: "too many" if world.node(1).ticks > 5 else None)
    with pytest.raises(Violation) as caught:
        world.run(100)

    violation = caught.value
    assert violation.name == "few ticks"
    assert violation.at == pytest.approx(6, abs=0.1)
    assert "tidelog simulate --start 1 --seeds 1 --trace" in str(violation)
    assert violation.trace


def test_dear_invariants_are_checked_less_often(world):
    calls = []

    def check() -> None:
        calls.append(world.loop.events)

    world.invariant("dear", check, every=10)
    world.run(100)

    assert len(calls) >= 2
    assert {b - a for a, b in pairwise(calls)} == {10}


def test_an_error_in_a_node_is_a_violation(world):
    def fail() -> None:
        raise ValueError("a bug")

    process = world.machines[1].process
    assert process is not None
    world.loop.call_soon(fail, context=process.context)
    with pytest.raises(Violation, match="a bug") as caught:
        world.run(1)
    assert caught.value.name == UNEXPECTED_ERROR
    assert isinstance(caught.value.__cause__, ValueError)


def test_a_node_that_cannot_start_is_down_and_a_bug_at_start_is_a_violation():
    def refuses(host: Host, number: int) -> Counter:
        raise ConfigError("no")

    def breaks(host: Host, number: int) -> Counter:
        raise ZeroDivisionError

    with World(1, nodes=1, node_factory=refuses) as world:
        world.restart(1)
        world.run(1)
        assert world.machines[1].process is None
    with World(1, nodes=1, node_factory=breaks) as world:
        world.restart(1)
        with pytest.raises(Violation, match="ZeroDivisionError"):
            world.run(1)


def test_not_being_in_time_is_a_violation(world):
    with pytest.raises(Violation, match="not within 3 s"):
        world.run_until(lambda: False, seconds_max=3)


def chaos(seed: int) -> tuple[str, int]:
    """Everything that can happen, in an order drawn from the seed."""
    choose = random.Random(seed)
    with World(seed, nodes=3, node_factory=Counter, restart_after_seconds=1.0) as world:
        world.start()

        async def load() -> None:
            while True:
                try:
                    await ask(world, choose.randint(1, 3), b"x" * choose.randint(1, 2000))
                except (OSError, TimeoutError):
                    await asyncio.sleep(0.1)

        world.client("story").spawn(load())
        faults = (
            lambda n: world.crash(n),
            lambda n: world.lose_power(n),
            lambda n: world.lose_power_in_write(n, choose.randint(1, 9)),
            lambda n: world.pause(n, 0.5),
            lambda n: world.isolate(n, 0.5),
            lambda n: world.cut(n, "story", 0.5),
            lambda n: world.clog("story", n, 0.5, 2.0),
            lambda n: world.reset(n),
            lambda n: world.fail_disk(n, "syncs"),
            lambda n: world.fill_disk(n, 10, 0.5),
            lambda n: world.stall_disk(n, 0.5),
            lambda n: world.skew_clock(n, choose.uniform(0.5, 2)),
            lambda n: world.jump_clock(n, choose.uniform(-1000, 1000)),
        )
        for _ in range(30):
            choose.choice(faults)(choose.randint(1, 3))
            world.run(choose.uniform(0, 1))
            if choose.random() < 0.3:
                world.restart_everyone()
        return world.trace.digest, world.loop.events


def test_one_seed_is_one_history():
    assert [chaos(seed) for seed in range(5)] == [chaos(seed) for seed in range(5)]
    assert chaos(1)[0] != chaos(2)[0]
