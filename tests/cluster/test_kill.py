"""A node that dies at any moment keeps what it has promised."""

import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cluster.load import Load, check_account, create_topic
from tests.support.node import NodeProcess
from tidelog.faces.cli.segments import Verifier, partition_directories
from tidelog.log.directory import CLEAN_MARKER

TOPIC = "orders"
PARTITIONS = 4
ROUNDS = 50
SEED = 20261115
SETTINGS = {"log.segment.bytes": 256 * 1024, "log.index.interval.bytes": 1024, "checkpoint.ms": 100}


@contextmanager
def loads_on(node: NodeProcess, count: int, seed: int) -> Iterator[list[Load]]:
    create_topic(node.bootstrap, TOPIC, PARTITIONS)
    loads = [Load(f"producer-{number}", node.bootstrap, TOPIC, PARTITIONS, seed) for number in range(count)]
    for load in loads:
        load.start()
    yield loads
    for load in loads:
        load.stop()


def segments_of(data: Path) -> int:
    return len(list(data.glob(f"{TOPIC}-*/*.log")))


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_every_acknowledged_record_survives_fifty_kills(tmp_path: Path) -> None:
    print(f"seed {SEED}")
    generator = random.Random(SEED)
    data = tmp_path / "data"
    with NodeProcess(data, SETTINGS) as node:
        with loads_on(node, 2, SEED) as loads:
            for _ in range(ROUNDS):
                # Sometimes in the middle of a stream of answers, sometimes before the first.
                generator.choice(loads).wait_acknowledged(generator.choice((0, 1, 20, 200, 1000)))
                node.kill()
                node.start()
            for load in loads:
                load.wait_acknowledged(1)

        total = check_account(loads, node.bootstrap, TOPIC, PARTITIONS)

        print(f"{total} records, {segments_of(data)} segments")
        assert total > 1000
        assert segments_of(data) > PARTITIONS, "no segment was ever rolled"
        log = node.log.read_text()
        assert "not clean" in log, "the node never noticed that it was killed"
        assert " ERROR " not in log, log
        assert node.stop() == 0
    verifier = Verifier(data)
    for partition in partition_directories(data):
        assert verifier.verify(partition).problems == []


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_clean_stop_is_short_and_so_is_the_next_start(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with NodeProcess(data, SETTINGS) as node:
        with loads_on(node, 1, SEED) as (load,):
            for _ in range(5):
                load.wait_acknowledged(2000)

                assert node.stop() == 0
                assert (data / CLEAN_MARKER).exists()
                began = time.monotonic()
                node.start()
                load.wait_acknowledged(1)  # the producer went on by itself

                assert time.monotonic() - began < 10
                assert not (data / CLEAN_MARKER).exists()

        check_account([load], node.bootstrap, TOPIC, PARTITIONS)
        log = node.log.read_text()
        assert "not clean" not in log
        assert " ERROR " not in log, log


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_kill_after_a_clean_stop_is_noticed(tmp_path: Path) -> None:
    """The marker of the clean stop must be gone before anything is written."""
    data = tmp_path / "data"
    with NodeProcess(data, SETTINGS) as node:
        with loads_on(node, 1, SEED) as (load,):
            load.wait_acknowledged(100)
            assert node.stop() == 0
            node.start()
            load.wait_acknowledged(1)
            node.kill()
            assert not (data / CLEAN_MARKER).exists()
            node.start()
            load.wait_acknowledged(100)

        check_account([load], node.bootstrap, TOPIC, PARTITIONS)
        assert "not clean" in node.log.read_text()
