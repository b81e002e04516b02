"""What the simulated host promises: the same seed the same history, and an end that is an end."""

import asyncio
import random
from collections.abc import Callable

import pytest

from tests.simulation import virtual_time
from tidelog.host import Lane
from tidelog.simulation.disk import SimulatedCrash, SimulatedDisk
from tidelog.simulation.host import SimulatedClock, SimulatedOffload, simulated_host

LETTERS = "abcdefgh"


def offload(seed: int = 0, *, on_crash: Callable[[], None] | None = None) -> SimulatedOffload:
    return SimulatedOffload(random.Random(seed), on_crash=on_crash)


def history(seed: int, lane: Lane) -> list[str]:
    """The order in which pieces of work start (small letters) and are reported (capitals)."""
    seen: list[str] = []

    async def main() -> None:
        disk = offload(seed)
        futures = []
        for letter in LETTERS:
            future = disk.run(lambda letter=letter: seen.append(letter), lane)  # type: ignore[misc]
            future.add_done_callback(lambda _, letter=letter: seen.append(letter.upper()))  # type: ignore[misc]
            futures.append(future)
        assert seen == [], "never at once"
        await asyncio.gather(*futures)

    asyncio.run(main())
    return seen


def test_work_runs_later_and_in_any_order():
    histories = [history(seed, Lane.ANY) for seed in range(50)]

    assert len({"".join(h) for h in histories}) > 40
    for h in histories:
        assert sorted(h) == sorted(LETTERS + LETTERS.upper())
        assert all(h.index(letter) < h.index(letter.upper()) for letter in LETTERS)


@pytest.mark.parametrize("lane", [Lane.WRITE, Lane.SYNC])
def test_work_of_one_lane_keeps_its_order(lane):
    for seed in range(20):
        seen = history(seed, lane)

        assert [letter for letter in seen if letter.islower()] == list(LETTERS)
        assert [letter for letter in seen if letter.isupper()] == list(LETTERS.upper())


def test_lanes_overtake_each_other():
    async def main(seed: int) -> list[str]:
        disk = offload(seed)
        seen: list[str] = []
        writing = disk.run(lambda: seen.append("write"), Lane.WRITE)
        syncing = disk.run(lambda: seen.append("sync"), Lane.SYNC)
        await asyncio.gather(writing, syncing)
        return seen

    orders = [asyncio.run(main(seed)) for seed in range(20)]

    assert ["write", "sync"] in orders and ["sync", "write"] in orders


def test_one_seed_is_one_history():
    for seed in range(10):
        assert history(seed, Lane.ANY) == history(seed, Lane.ANY)


def test_an_error_is_the_futures():
    async def main() -> None:
        with pytest.raises(ZeroDivisionError):
            await offload().run(lambda: 1 // 0)

    asyncio.run(main())


def test_a_crash_ends_everything():
    async def main() -> None:
        deaths: list[int] = []
        done: list[int] = []
        disk = offload(on_crash=lambda: deaths.append(1))

        def die() -> None:
            raise SimulatedCrash

        before = disk.run(die)
        after = [disk.run(lambda: done.append(1)) for _ in range(20)]
        for _ in range(200):
            await asyncio.sleep(0)
        late = disk.run(lambda: done.append(1))
        for _ in range(20):
            await asyncio.sleep(0)

        assert deaths == [1]
        assert disk.is_dead
        assert not before.done() and not late.done()
        assert len(done) < 20
        assert sum(future.done() for future in after) <= len(done)

    asyncio.run(main())


def test_time_stands_still_until_it_is_moved():
    clock = SimulatedClock(seconds=5.0, wall_ms=1000)

    assert (clock.monotonic(), clock.wall_ms()) == (5.0, 1000)
    clock.advance(1.5)
    assert (clock.monotonic(), clock.wall_ms()) == (6.5, 2500)
    clock.jump_wall_ms(-2000)
    assert (clock.monotonic(), clock.wall_ms()) == (6.5, 500)


def test_a_simulated_day_passes_at_once():
    clock = SimulatedClock()

    async def main() -> list[str]:
        seen: list[str] = []

        async def sleep(hours: float) -> None:
            await asyncio.sleep(hours * 3600)
            seen.append(f"{hours} h")

        await asyncio.gather(sleep(24), sleep(0.5), sleep(7))
        return seen

    assert virtual_time.run(main(), clock) == ["0.5 h", "7 h", "24 h"]
    assert clock.monotonic() == pytest.approx(24 * 3600)


def test_nobody_is_on_the_network():
    async def main() -> None:
        host = simulated_host(1, SimulatedDisk(random.Random(1)))
        with pytest.raises(ConnectionRefusedError):
            await host.network.connect(asyncio.Protocol, "127.0.0.1", 9092)
        with pytest.raises(OSError, match="cannot listen"):
            await host.network.serve(asyncio.Protocol, "127.0.0.1", 9092)

    asyncio.run(main())


def test_hosts_of_one_seed_are_alike_and_of_two_are_not():
    def ids(seed: object) -> list[object]:
        host = simulated_host(seed, SimulatedDisk(random.Random(0)))
        return [host.new_id() for _ in range(3)]

    assert ids(1) == ids(1) != ids(2)
