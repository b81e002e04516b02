"""Whole nodes in a simulated world: stories, replays, and bugs planted to be found.

TIDELOG_REPLAYS=1000 python -m pytest tests/simulation/test_world.py -k replay -n 2
"""

import asyncio
import gc
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial

import pytest

from tidelog.client.kafka import KafkaClient
from tidelog.errors import StorageError
from tidelog.host import Path
from tidelog.records import Record, encode_batch
from tidelog.simulation.campaign import play_seed
from tidelog.simulation.disk import SimulatedDisk
from tidelog.simulation.faults import DAMAGING, KINDS
from tidelog.simulation.nodes import bootstrap
from tidelog.simulation.plan import Plan
from tidelog.simulation.shrink import shrink
from tidelog.simulation.story import LIVENESS
from tidelog.simulation.swarm import UNFORESEEN, make_plan, play
from tidelog.simulation.workload import ACKNOWLEDGED, COMMITTED, Pace, Workload
from tidelog.simulation.world import Violation, World

REPLAYS = int(os.environ.get("TIDELOG_REPLAYS", "10"))
BLOCKS = 5
SHORT_SECONDS = 2.0


# Stories.


def test_healing_sets_the_clock_right_after_a_reboot_too():
    with World(3, nodes=1) as world:
        world.start()
        machine = world.machines[1]
        ahead_ms = machine.clock.wall_ms() - world.now * 1000

        world.jump_clock(1, 3600)
        world.lose_power(1)
        world.restart(1)
        world.run(1)
        world.heal()

        assert abs(machine.clock.wall_ms() - world.now * 1000 - ahead_ms) < 10


def test_spikes_that_overlap_leave_a_calm_network():
    with World(3, nodes=1, spike_chance=0.01) as world:
        world.spike(0.7, seconds=2)
        world.run(1)
        world.spike(0.4, seconds=2)
        world.run(1.5)
        assert world.network.spike_chance == 0.4
        world.run(1)
        assert world.network.spike_chance == 0.01

        world.spike(0.9, seconds=60)
        world.heal()
        assert world.network.spike_chance == 0.01


def client(world: World, node: int) -> KafkaClient:
    network = world.client("story").network
    return KafkaClient(bootstrap(node), network=network, timeout_seconds=5.0)


async def produce(world: World, node: int, values: Iterable[bytes]) -> list[int | None]:
    async with client(world, node) as kafka:
        return [
            await kafka.produce("tide", 0, encode_batch([Record(value=value, timestamp_ms=0)]))
            for value in values
        ]


async def watermark(world: World, node: int) -> int:
    async with client(world, node) as kafka:
        (fetched,) = await kafka.fetch("tide", {0: 0}, wait_ms_max=0)
        return fetched.high_watermark


@pytest.fixture
def world(seed: int = 7):
    with World(seed, nodes=3) as world:
        world.start()
        for node in world.machines:

            async def create(node: int = node) -> None:
                async with client(world, node) as kafka:
                    await kafka.create_topic("tide", partitions=1)

            world.do(create())
        yield world


def test_acknowledged_records_survive_losing_power_everywhere(world):
    for node in world.machines:
        assert world.do(produce(world, node, [b"a", b"b", b"c"])) == [0, 1, 2]

    world.lose_power_everywhere()
    world.run(seconds=1)
    world.start()

    assert [world.do(watermark(world, node)) for node in world.machines] == [3, 3, 3]


def test_a_producer_waits_for_a_paused_node(world):
    world.pause(1, seconds=3)
    began = world.now

    assert world.do(produce(world, 1, [b"late"])) == [0]
    assert world.now - began >= 3


def test_a_producer_waits_for_a_crashed_node(world):
    world.do(produce(world, 1, [b"a"]))
    producing = world.client("story").spawn(_until_done(world, 1))
    world.run(seconds=0.05)
    world.crash(1)
    world.run(seconds=2)
    world.restart(1)
    world.run_until(producing.done, seconds_max=30)

    assert producing.result() == world.do(watermark(world, 1))


async def _until_done(world: World, node: int) -> int:
    """Send ten records, each until it is acknowledged; the offset after the last."""
    offset = 0
    async with client(world, node) as kafka:
        await kafka.cluster()
        for number in range(10):
            batch = encode_batch([Record(value=b"%d" % number, timestamp_ms=0)])
            offset = (await kafka.produce("tide", 0, batch) or 0) + 1
            await asyncio.sleep(0.02)
    return offset


def test_one_node_in_trouble_leaves_the_others_alone(world):
    world.isolate(1)
    world.fill_disk(2)
    world.stall_disk(2, seconds=60)

    assert world.do(produce(world, 3, [b"a"] * 20)) == list(range(20))


def test_a_node_stops_cleanly_and_comes_back(world):
    world.do(produce(world, 1, [b"a"] * 5))
    world.stop(1)
    world.run(seconds=5)
    assert world.machines[1].process is None
    world.start()

    assert world.do(watermark(world, 1)) == 5
    assert not any("not clean" in line for line in world.trace.lines())


def test_a_seed_that_makes_a_watch_stumble_is_told_of(monkeypatch):
    def stumble(self: Workload, seconds: float) -> None:
        raise StorageError("tide-0 is damaged")

    monkeypatch.setattr(Workload, "get_on", stumble)

    found = play(make_plan(1, story="alone", chaos_seconds=0.1)).violation

    assert found is not None
    assert (found.name, found.seed) == (UNFORESEEN, 1)
    assert "StorageError: tide-0 is damaged (stumble, line" in found.problem


def test_nothing_is_wrong_where_nothing_goes_wrong():
    outcome = play(make_plan(1, kinds=[], chaos_seconds=5))

    assert outcome.violation is None
    assert outcome.faults == {}
    assert outcome.operations > 200


# Replays.


def short(seed: int) -> Plan:
    plan = make_plan(seed, chaos_seconds=SHORT_SECONDS)
    return replace(plan, pace=replace(plan.pace, think_seconds=0.05))


@pytest.fixture
def nobody_s_garbage():
    """What other tests have left is finalised before: it may log, and logs belong to a history."""
    gc.collect()


@pytest.mark.usefixtures("nobody_s_garbage")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("block", range(BLOCKS))
def test_a_seed_is_replayed_identically(block):
    for seed in range(block, REPLAYS, BLOCKS):
        first, second = play(short(seed)), play(short(seed))
        assert first.violation is None, str(first.violation)
        assert first.trace_hash == second.trace_hash, _difference(seed)
        assert first.events == second.events


def _difference(seed: int) -> str:
    """The first lines in which two histories of the seed part, if they do so again."""
    lines = [play(short(seed), keep_trace=True).trace for _ in range(2)]
    for number, (one, other) in enumerate(zip(*lines, strict=False)):
        if one != other:
            return f"seed {seed}, line {number}: {one!r} and {other!r}"
    return f"seed {seed}; played twice more, the two were alike"


def test_keeping_the_trace_changes_nothing():
    assert play(short(3)).trace_hash == play(short(3), keep_trace=True).trace_hash


@pytest.mark.slow
def test_the_hashes_of_strings_do_not_matter():
    code = (
        "from tests.simulation.test_world import short, play\n"
        "print([play(short(seed)).trace_hash for seed in (100, 104, 105)])"
    )

    def hashes(hash_seed: str) -> str:
        return subprocess.run(
            [sys.executable, "-c", code],
            check=True,
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.getcwd()},
        ).stdout

    assert hashes("1") == hashes("2")


# Planted bugs.


class LyingDisk(SimulatedDisk):
    """A disk that calls the sync of a topic's bytes done before it has begun."""

    def _sync(self, inodes, changes, path: Path) -> None:
        if not path.parent.name.startswith("tide-"):
            super()._sync(inodes, changes, path)


HARMLESS: Sequence[str] = [
    kind for kind in KINDS if kind not in (*DAMAGING, "fail_reads", "fail_writes", "fill_disk")
]


def test_a_disk_that_lies_is_found_and_shrunk_to_one_loss_of_power():
    for seed in range(20):
        plan = make_plan(seed, kinds=HARMLESS, nodes=1, chaos_seconds=8.0, story="alone")
        plan = replace(plan, pace=Pace(producers=2, consumers=1, think_seconds=0.05))
        run = partial(play, disk_factory=LyingDisk)
        outcome = run(plan)
        if outcome.violation is not None:
            break
    else:
        pytest.fail("twenty seeds did not find it")

    smallest, found = shrink(plan, run)

    assert found.violation is not None
    # A lone node takes it for damage and writes no more, if it had noted that it was committed.
    assert found.violation.name in (ACKNOWLEDGED, COMMITTED, LIVENESS)
    assert len(smallest.faults) == 1
    assert smallest.faults[0].kind.startswith("lose_power")
    assert f"--start {seed} --seeds 1 --trace" in str(found.violation)
    assert play(smallest).violation is None, "an honest disk keeps it"


def test_a_watermark_that_falls_is_found_at_once():
    with World(1, nodes=1) as world:
        workload = Workload(world, Pace())
        world.start()
        workload.start()
        world.run(2)
        (partition, *_) = [p for p in world.node(1).broker.partitions() if p.high_watermark > 3]
        partition.leader.high_watermark -= 1
        with pytest.raises(Violation, match=r"the watermark never falls|is committed"):
            world.check_now()


# The command.


def tidelog(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tidelog.faces.cli", "simulate", *arguments],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )


def test_the_command_prints_what_scripts_rely_on():
    done = tidelog("--seeds", "1", "--start", "4", "--json")

    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document.keys() >= {
        "seeds",
        "violations",
        "events_per_second",
        "simulated_hours",
        "operations",
        "faults",
        "trace_hash",
    }
    assert document["seeds"] == 1 and document["violations"] == []
    assert document["operations"] > 0 and sum(document["faults"].values()) > 0


def test_the_command_plays_what_a_test_plays():
    done = tidelog("--seeds", "1", "--start", "4", "--trace")

    assert done.returncode == 0, done.stderr
    played = play_seed(4, keep=True)
    assert done.stdout.startswith("\n".join(played.trace[:100]))


def test_the_command_tells_what_the_seeds_met_and_what_not():
    done = tidelog("--seeds", "1", "--start", "4", "--coverage", "--json")
    assert done.returncode == 0, done.stderr
    coverage = json.loads(done.stdout)["coverage"]
    assert coverage["apis"]["met"]["Metadata"] > 0
    assert coverage["faults"]["met"] and coverage["faults"]["never"]

    done = tidelog("--seeds", "1", "--start", "4", "--coverage")
    assert f"{len(coverage['faults']['met'])} of " in done.stdout
    assert f"never met: {', '.join(coverage['faults']['never'])}" in done.stdout


def test_an_unknown_fault_is_refused_with_those_there_are():
    done = tidelog("--faults", "earthquake")

    assert done.returncode != 0
    assert "earthquake" in done.stderr and "lose_power" in done.stderr
