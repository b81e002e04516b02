"""Faults of a cluster that is not there: what is planned, in force, and written down."""

import random
import threading
from pathlib import Path
from typing import Any

import pytest

from tidelog.testing.faults import STORM, Faults, _Storm
from tidelog.testing.machine import Machine
from tidelog.testing.wires import CLIENTS, Ways

NODES = (1, 2, 3)


class Direct:
    """Runs what should run where the nodes do."""

    def __init__(self) -> None:
        self._calls = 0
        self.has_seen_forty = threading.Event()

    def call(self, function, *args):
        self._calls += 1
        if self._calls > 40:
            self.has_seen_forty.set()
        return function(*args)


class Standing:
    """A cluster without nodes."""

    ids = NODES

    def __init__(self) -> None:
        self.loop = Direct()
        self.ways = Ways("a seed")
        self.machines = {node: Machine(node, Path("nowhere"), self.ways) for node in NODES}
        self.told: list[str] = []
        self.has_seen_three = threading.Event()

    def machine(self, node):
        return self.machines[node]

    def reseed(self, seed):
        self.ways.reseed(seed)

    def __len__(self):
        return len(NODES)

    def __getitem__(self, node):
        return Victim(self, node)

    def close(self):
        for machine in self.machines.values():
            machine.release()


class Victim:
    is_running = True

    def __init__(self, cluster: Standing, node: int) -> None:
        self._cluster = cluster
        self.id = node

    def kill(self):
        self._cluster.told.append(f"killed {self.id}")

    def start(self):
        self._cluster.told.append(f"started {self.id}")
        if len(self._cluster.told) >= 6:
            self._cluster.has_seen_three.set()


@pytest.fixture
def cluster():
    standing = Standing()
    yield standing
    standing.close()


@pytest.fixture
def faults(cluster):
    return Faults(cluster, seed=7)


def cut_ways(cluster: Any) -> set[tuple[Any, Any]]:
    places = [*NODES, CLIENTS]
    return {(a, b) for a in places for b in places if cluster.ways.between(a, b).is_cut}


def test_a_fault_lasts_as_long_as_its_with(cluster, faults):
    with faults.cut(1, 2):
        assert cut_ways(cluster) == {(1, 2), (2, 1)}

    assert cut_ways(cluster) == set()


def test_a_cut_may_have_one_direction(cluster, faults):
    faults.cut(1, 2, both_ways=False)

    assert cut_ways(cluster) == {(1, 2)}


def test_an_isolated_node_hears_neither_nodes_nor_clients(cluster, faults):
    faults.isolate(2)

    others = (1, 3, CLIENTS)
    assert cut_ways(cluster) == {(2, o) for o in others} | {(o, 2) for o in others}


def test_an_isolated_node_may_keep_its_clients(cluster, faults):
    faults.isolate(2, clients=False)

    assert cut_ways(cluster) == {(2, 1), (1, 2), (2, 3), (3, 2)}


def test_faults_add_up_and_each_is_healed_by_itself(cluster, faults):
    clock = cluster.machine(1).clock
    twice, thrice = faults.skew_clock(1, 2.0), faults.skew_clock(1, 3.0)
    assert clock.rate == 6.0

    twice.heal()
    twice.heal()
    assert clock.rate == 3.0
    thrice.heal()
    assert clock.rate == 1.0


def test_everything_is_healed_at_once(cluster, faults):
    faults.cut(1, 2)
    faults.delay(1, CLIENTS, (0.1, 0.2))
    faults.fill_disk(3)
    faults.slow_disk(2, 0.5)
    faults.jump_clock(1, -60)
    assert cluster.machine(3).disk.is_full
    assert cluster.machine(1).clock.ahead_ms == -60_000

    faults.heal()

    assert not faults.active
    assert cut_ways(cluster) == set()
    assert all(cluster.ways.between(a, b).is_clear for a in (*NODES, CLIENTS) for b in (*NODES, CLIENTS))
    assert not any(machine.disk.concern("write") for machine in cluster.machines.values())
    assert cluster.machine(1).clock.ahead_ms == 0


def test_what_was_done_is_written_down(faults):
    with faults.cut(1, 2):
        faults.fail_disk(3, kinds=("write",))

    assert [line.partition(" s  ")[2] for line in faults.history] == [
        "cut between 1 and 2",
        "disk of node 3 fails, EIO",
        "healed: cut between 1 and 2",
    ]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda faults: faults.cut(1, 4), "there is no 4"),
        (lambda faults: faults.cut("everybody", 1), "or CLIENTS"),
        (lambda faults: faults.slow_disk(CLIENTS, 1.0), "clients have disks"),
        (lambda faults: faults.skew_clock(1, 0), "cannot stand or go back"),
        (lambda faults: faults.slow_disk(1, 1.0, kinds=["seek"]), "a disk knows no seek"),
    ],
)
def test_what_makes_no_sense_is_refused_and_changes_nothing(faults, wrong, said):
    with pytest.raises(ValueError, match=said):
        wrong(faults)

    assert not faults.active
    assert faults.history == []


def test_a_test_draws_the_same_from_the_same_seed(cluster, faults):
    first = [faults.random.random() for _ in range(3)]
    faults.cut(1, 2).heal()

    faults.begin(7)

    assert faults.history == []
    assert [faults.random.random() for _ in range(3)] == first


# Storms.


def plan_of(seed: object, kinds: Any = STORM, strikes: int = 40) -> list[str]:
    """What a storm would do, without its waiting."""
    cluster: Any = Standing()
    try:
        faults = Faults(cluster, seed)
        generator = random.Random(f"{seed} storm 1")
        storm = _Storm(faults, cluster, generator, kinds, (0.0, 0.0), (0.0, 0.0))
        storm._over.set()  # so that nothing is waited for
        for _ in range(strikes):
            storm._strike()
        assert not faults.active
        return [line.partition(" s  ")[2] for line in faults.history]
    finally:
        cluster.close()


def test_a_storm_has_one_plan_for_a_seed():
    assert plan_of(7) == plan_of(7)
    assert plan_of(7) != plan_of(8)


def test_what_happens_in_a_storm_is_drawn_from_the_seed():
    def first_of(seed: int) -> list[str]:
        cluster: Any = Standing()
        try:
            faults = Faults(cluster, seed)
            with faults.storm(calm_seconds=(0.0, 0.0), fault_seconds=(0.0, 0.0)):
                assert cluster.loop.has_seen_forty.wait(10)
            return [line.partition(" s  ")[2] for line in faults.history[:40]]
        finally:
            cluster.close()

    assert first_of(7) == first_of(7)
    assert first_of(7) != first_of(8)


def test_a_storm_knows_every_kind_of_its_faults():
    for kind in STORM:
        assert plan_of(7, kinds=[kind], strikes=2), kind


def test_a_storm_kills_and_brings_back():
    cluster: Any = Standing()
    try:
        faults = Faults(cluster, 1)
        with faults.storm(["kill"], calm_seconds=(0.0, 0.0), fault_seconds=(0.0, 0.0)):
            assert cluster.has_seen_three.wait(10)
        killed, started = cluster.told[0::2], cluster.told[1::2]
        assert [told.split()[1] for told in killed] == [told.split()[1] for told in started]
        assert {told.split()[0] for told in killed} == {"killed"}
    finally:
        cluster.close()
    assert not any(thread.name == "tidelog-storm" for thread in threading.enumerate())


def test_what_goes_wrong_in_a_storm_is_raised_at_its_end():
    cluster: Any = Standing()
    struck = threading.Event()

    def fail(node: int) -> Any:
        struck.set()
        raise RuntimeError("no such luck")

    cluster.__class__ = type("Failing", (Standing,), {"__getitem__": lambda self, node: fail(node)})
    try:
        faults = Faults(cluster, 1)
        with pytest.raises(RuntimeError, match="no such luck"), faults.storm(["kill"]):
            assert struck.wait(10)
    finally:
        cluster.close()


def test_a_kind_that_no_storm_has_is_refused(faults):
    with pytest.raises(ValueError, match="no storm has hail; only cut"), faults.storm(["hail", "cut"]):
        pass
