"""A node that restarts in the middle of rebalances and compactions loses nothing."""

import asyncio
import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from itertools import cycle
from pathlib import Path
from typing import Final

import pytest

from tests.cluster.crowd import Crowd
from tests.cluster.keyed import KeyedLoad, check_compacted, check_promises, read_log
from tests.cluster.load import Load, check_account, create_topic
from tests.support.node import NodeProcess
from tidelog.client.admin import AdminClient, GroupInfo
from tidelog.log.segment import INDEX_SUFFIX, LOG_SUFFIX
from tidelog.log.swap import CLEANED_SUFFIX, SWAP_SUFFIX
from tidelog.model import TopicPartition

ROUNDS: Final = 50
SEED: Final = 20261116
PLAIN, PLAIN_PARTITIONS = "orders", 6
COMPACTED, COMPACTED_PARTITIONS = "accounts", 2
SEGMENTS_MAX: Final = 60
GROUP: Final = "crowd"
SECONDS_MAX: Final = 30.0
SETTINGS: Final = {
    "checkpoint.ms": 100,
    "group.min.session.timeout.ms": 500,
    "log.cleaner.backoff.ms": 10,
    # Slow enough that a compaction can be met, fast enough to keep up.
    "log.cleaner.io.max.bytes.per.second": 3_000_000,
    "log.index.interval.bytes": 1024,
    "offsets.topic.num.partitions": 4,
}
JOIN, LEAVE = 1, -4
CHANGES: Final = (JOIN, JOIN, JOIN, JOIN, LEAVE)
"""How many come or go in a round: from two members to six and back."""

PREPARING, COMPLETING, STABLE = "PreparingRebalance", "CompletingRebalance", "Stable"
RUNNING: Final = "running"
REBALANCES: Final = (PREPARING, COMPLETING, RUNNING)
"""Where a rebalance is met: held while members join, held while the leader assigns, or anywhere."""

WRITING, DECIDED, FINISHING = "writing", "decided", "finishing"
COMPACTIONS: Final = (WRITING, DECIDED, FINISHING)
"""New files are being written; the new log counts; what it replaces is gone already."""


class Restarts:
    """A node, what it serves, and the rounds in which it is restarted."""

    def __init__(self, node: NodeProcess, stack: ExitStack) -> None:
        self.random = random.Random(SEED)
        self.compactions = cycle(COMPACTIONS)
        self.met: Counter[str] = Counter()
        """How often the node ended in the middle of what."""
        self.node = node
        at = node.bootstrap
        create_topic(at, PLAIN, PLAIN_PARTITIONS, segment_bytes="65536")
        create_topic(
            at,
            COMPACTED,
            COMPACTED_PARTITIONS,
            cleanup_policy="compact",
            segment_bytes="16384",
            min_cleanable_dirty_ratio="0.01",
        )
        slow = {"per_second_max": 200, "unacknowledged_max": 50}
        self.plain = Load("plain", at, PLAIN, PLAIN_PARTITIONS, SEED, **slow)
        self.keyed = KeyedLoad("keyed", at, COMPACTED, COMPACTED_PARTITIONS, SEED, **slow)
        stack.callback(self.plain.abandon)
        stack.callback(self.keyed.abandon)
        self.crowd = stack.enter_context(Crowd(at, GROUP, PLAIN))
        self.runner = stack.enter_context(asyncio.Runner())
        self.client = AdminClient(at)
        stack.callback(self.client.close)

    # Looking.

    def group(self) -> GroupInfo | None:
        return self.runner.run(self.client.find_group(GROUP))

    def is_in(self, *states: str) -> bool:
        group = self.group()
        return group is not None and group.state in states

    def files(self, suffix: str) -> list[str]:
        """The compacted topic's files of one kind, without the suffix."""
        directories = [self.node.data / f"{COMPACTED}-{p}" for p in range(COMPACTED_PARTITIONS)]
        names = [f"{path.name}/{name}" for path in directories for name in os.listdir(path)]
        return [name.removesuffix(suffix) for name in names if name.endswith(suffix)]

    def compaction(self) -> str | None:
        """How far a compaction has come, by the names of `tidelog.log.swap`."""
        if swapped := self.files(LOG_SUFFIX + SWAP_SUFFIX):
            is_waiting = set(swapped) <= set(self.files(INDEX_SUFFIX + SWAP_SUFFIX))
            return DECIDED if is_waiting else FINISHING
        return WRITING if self.files(LOG_SUFFIX + CLEANED_SUFFIX) else None

    def is_settled(self) -> bool:
        """Whether the group is stable, and all who are in it and nobody else have a share."""
        self.crowd.check()
        group = self.group()
        if group is None or group.state != STABLE or len(group.members) != self.crowd.size:
            return False
        shares = sorted(place for member in group.members for place in member.assignment or ())
        everything = [TopicPartition(PLAIN, number) for number in range(PLAIN_PARTITIONS)]
        return shares == everything and self.crowd.is_settled(PLAIN_PARTITIONS)

    # The beginning and the end.

    def begin(self) -> None:
        self.plain.start()
        self.keyed.start()
        self.crowd.join(2)
        until(self.is_settled, "the first two share")

    def finish(self) -> None:
        """Everything that was acknowledged is there, and the group has got all of it."""
        self.plain.stop()
        self.keyed.stop()
        check_account([self.plain], self.node.bootstrap, PLAIN, PLAIN_PARTITIONS)
        ends = {partition: len(sent) for partition, sent in self.plain.sent.items()}
        until(lambda: dict(self.crowd.committed) == ends, "the group has committed everything")
        self.crowd.check()
        found = self.runner.run(read_log(self.client, COMPACTED, COMPACTED_PARTITIONS))
        left, count = check_compacted(self.keyed, found), self.keyed.count_acknowledged
        print(f"{self.plain.count_acknowledged} plain records, {left} left of {count} keyed ones")
        assert left < count / 2, "hardly anything was compacted"

    # One round.

    def change_members(self, change: int) -> None:
        if change > 0:
            self.crowd.join(change)
        else:
            self.crowd.leave(-change)

    def meet_rebalance(self, where: str, change: int) -> None:
        """Let members come or go; return when the group is in the middle of that."""
        if where == PREPARING:
            self.crowd.hold()
        elif where == COMPLETING:
            self.crowd.gate.shut()
        self.change_members(change)
        if where == RUNNING:
            until(lambda: self.is_in(PREPARING, COMPLETING) or self.is_settled(), "a rebalance")
            self.met["rebalance"] += self.is_in(PREPARING, COMPLETING)
        else:
            until(lambda: self.is_in(where), where)
            self.met[where] += 1
            self.met["rebalance"] += 1

    def meet_compaction(self, how_far: str) -> None:
        """Freeze the node when a compaction has come so far."""
        while True:
            until(lambda: self.compaction() == how_far, how_far, pause_seconds=0.0005)
            self.node.freeze()
            if self.compaction() == how_far:
                self.met[how_far] += 1
                self.met["compaction"] += 1
                return
            self.node.thaw()

    def restart(self, *, cleanly: bool) -> None:
        """End the node, frozen or not, look at what it left, and start it again."""
        if cleanly:
            assert self.node.stop() == 0
            self.met["stopped"] += 1
        else:
            self.node.kill()
            self.met["killed"] += 1
            self.met[f"killed while {self.compaction()}"] += 1
        # Told of its new node, a leader would forget who it was, and be waited for.
        self.crowd.gate.open()
        self.node.start()

    def check_kept(self, committed: dict[int, int], promised: dict[bytes, tuple[int, int]]) -> None:
        found = self.runner.run(self.client.group_offsets(GROUP))
        for partition, offset in committed.items():
            kept = found.get(TopicPartition(PLAIN, partition))
            assert kept is not None, f"no commit of {partition} is left"
            assert kept.offset >= offset, f"{partition} went back from {offset} to {kept.offset}"
        records = self.runner.run(read_log(self.client, COMPACTED, COMPACTED_PARTITIONS))
        check_promises(self.keyed, promised, records)

    def round(self, change: int, where: str) -> None:
        self.meet_rebalance(where, change)
        if where != RUNNING:
            self.meet_compaction(next(self.compactions))
        committed, promised = dict(self.crowd.committed), self.keyed.promises()
        self.restart(cleanly=self.random.random() < 0.4)

        # Held members have not committed anything since, so nothing hides what was lost.
        self.check_kept(committed, promised)
        self.crowd.release()
        until(self.is_settled, "every partition has its owner")
        self.plain.wait_acknowledged(1)
        self.keyed.wait_acknowledged(1)
        until(lambda: len(self.files(LOG_SUFFIX)) <= SEGMENTS_MAX, "compaction keeps up")


def until(condition: Callable[[], object], what: str, *, pause_seconds: float = 0.005) -> None:
    """Others act in other processes: look often, for a bounded time."""
    deadline = time.monotonic() + SECONDS_MAX
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < deadline, f"not within {SECONDS_MAX} s: {what}"
        pause.wait(pause_seconds)


def verify(data: Path) -> None:
    """`tidelog log verify` finds nothing."""
    ended = subprocess.run(
        [sys.executable, "-m", "tidelog.faces.cli", "log", "verify", str(data)],
        capture_output=True,
        timeout=SECONDS_MAX,
        check=False,
        text=True,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_fifty_restarts_amid_rebalances_and_compactions_lose_nothing(tmp_path: Path) -> None:
    print(f"seed {SEED}")
    with NodeProcess(tmp_path / "data", SETTINGS) as node:
        with ExitStack() as stack:
            restarts = Restarts(node, stack)
            restarts.begin()
            for number in range(ROUNDS):
                restarts.round(CHANGES[number % len(CHANGES)], REBALANCES[number % len(REBALANCES)])
            restarts.finish()
        met = restarts.met
        print(dict(met))

        # All but those that were to be met running: the others are held, so they must be there.
        assert met["rebalance"] >= ROUNDS * 2 // 3
        assert met["compaction"] >= ROUNDS * 2 // 3
        assert min(met["stopped"], met["killed"]) >= 10
        assert met[f"killed while {DECIDED}"] + met[f"killed while {FINISHING}"] >= 5
        log = node.log.read_text()
        assert " ERROR " not in log, log
        assert "Traceback" not in log, log
        assert node.stop() == 0
    verify(tmp_path / "data")
