"""Exactly once under fire: queries copy a topic while everything that takes part is killed.

    python -m tests.spark.exactly_once --kills 50

Three nodes, a Spark with two executors, and SIGKILL for drivers, executors, their Python workers
and nodes. Whoever reads committed records must see each record of the source exactly once, and twice
only what the source has twice.
A second query beside it, whose sink is at least once, must have written some twice: else nobody was
killed when it mattered, and the fire has shown nothing.

In between, somebody meddles with checkpoints of queries that are stopped:

- an older copy is put back. The query must fail with what to do, and write nothing. A new
  checkpoint that begins where the last decision ended, as the message says, goes on.
- a copy is used by a query that writes to another topic. All that follows the copy's last batch
  must be there, once.
"""

import argparse
import json
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final, TypeVar

from tests.spark.checkpoints import by_partition, done, planned, query_of
from tests.spark.copying import Copying
from tests.spark.standalone import Standalone, standalone
from tests.spark.topics import Topics
from tests.support.cluster import wait_until
from tests.support.nodes import Nodes
from tidelog.model import Offset
from tidelog.records import Record
from tidelog.spark.client_loop import ask
from tidelog.spark.proofs import Proof
from tidelog.spark.writing import query_batch

T = TypeVar("T")

PARTITIONS: Final = 3
PUT_ROWS: Final = 200
BATCH_ROWS: Final = 400
LAST_BATCH_ROWS: Final = 20 * BATCH_ROWS
"""Of the query that copies what the killed ones have left."""
PROGRESS_SECONDS_MAX: Final = 600.0
VICTIMS: Final = ("driver", "executor", "worker", "node")
RESTORED: Final = "restored checkpoint"
COPIED: Final = "copied checkpoint"
REFUSED: Final = ("was not written", "tidelog pipeline decisions show")
"""What a query with a restored checkpoint must say."""
LOCAL: Final = Standalone("local[2]", [])
EXACT: Final = "exact"
CARELESS: Final = "careless"
TARGETS: Final = {EXACT: "exactly-once", CARELESS: "at-least-once"}
SETTINGS: Final = {
    "log.min.insync.replicas": 2,
    "offsets.topic.num.partitions": 4,
    "transaction.state.log.num.partitions": 4,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What readers of committed records saw in the end, of each sink."""

    kills: dict[str, int]
    meddled: dict[str, int]
    records: int
    missing: dict[str, int]
    twice: dict[str, int]

    @property
    def is_exactly_once(self) -> bool:
        return not self.missing[EXACT] and not self.twice[EXACT]

    @property
    def is_hot(self) -> bool:
        """Whether a lesser sink got burnt, though it lost nothing."""
        return not self.missing[CARELESS] and self.twice[CARELESS] > 0


class Fire:
    """The nodes, the queries of one driver, and who is killed."""

    def __init__(
        self,
        directory: Path,
        seed: int,
        *,
        is_local: bool = False,
        report: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._dice = random.Random(seed)
        self._directory = directory
        self._report = report
        self._nodes = Nodes(directory, (1, 2, 3), SETTINGS)
        self._is_local = is_local
        """Whether the driver does the work of executors, which starts in a third of the time."""
        self._query: subprocess.Popen[bytes] | None = None
        self._written = 0
        self.kills: Counter[str] = Counter()
        self.meddled: Counter[str] = Counter()

    def run(self, events: Sequence[str], *, seconds_max: float = math.inf) -> Outcome:
        """Copy while victims are killed, and checkpoints restored and copied, in this order.

        Nothing begins after `seconds_max`; then what is left is copied, and all is judged.
        """
        until = time.monotonic() + seconds_max
        cluster = nullcontext(LOCAL) if self._is_local else standalone(self._directory / "spark")
        with self._nodes, cluster as spark:
            self._spark = spark
            self._topics = Topics(self._nodes.bootstrap)
            self._copying = Copying(
                bootstrap=self._nodes.bootstrap,
                source="source",
                targets=TARGETS,
                directory=str(self._directory),
                master=spark.url,
                batch_rows=BATCH_ROWS,
            )
            for topic in ("source", *TARGETS):
                self._topics.make(topic, PARTITIONS, replication=3)
            try:
                for number, event in enumerate(events, 1):
                    if time.monotonic() > until:
                        break
                    self._feed()
                    self._until_it_writes(CARELESS if number % 2 else EXACT)
                    self._report(f"{number}/{len(events)}: {self._do(event)}")
                self._feed()
                self._finish()
            finally:
                self._end_query()
            return self._judge()

    def _do(self, event: str) -> str:
        if event == RESTORED:
            self._until_it_writes(EXACT)
            self._restore()
        elif event == COPIED:
            self._until_it_writes(EXACT)
            self._copy()
        else:
            self._kill(event)
            return f"killed a {event}"
        self.meddled[event] += 1
        return event

    # Checkpoints.

    def _restore(self) -> None:
        """Put an older checkpoint back; then do as the message says."""
        checkpoint = self._copying.checkpoint(EXACT)
        older, newer, refused = (self._aside(name) for name in ("older", "newer", "refused"))
        self._end_query()
        shutil.copytree(checkpoint, older)
        group = query_batch(query_of(older), EXACT, 0).group
        far = planned(older) + 2

        def is_ahead() -> bool:
            self._keep_running()
            newest = ask(self._nodes.bootstrap, lambda client: client.newest_decision(group))
            return newest is not None and newest.batch_id >= far

        wait_until(is_ahead, f"{group} does not come to batch {far}", PROGRESS_SECONDS_MAX)
        self._end_query()
        checkpoint.rename(newer)
        older.rename(checkpoint)

        log = self._directory / "spark.log"  # the error is the JVM's, which ends before it is told
        before = log.stat().st_size
        assert not self._copy_once({EXACT: TARGETS[EXACT]}), f"{group} did not fail"
        told = log.read_bytes()[before:].decode(errors="replace")
        assert all(words in told for words in REFUSED), f"{group} failed in another way: see {log}"
        decided = ask(self._nodes.bootstrap, lambda client: client.newest_decision(group))
        proof = Proof.decode(None if decided is None else decided.proof)
        assert proof is not None, f"{group} has a decision that proves what it was"
        ends = by_partition(proof.ends[0], "source")
        self._check(EXACT, {}, ends)

        checkpoint.rename(refused)
        starts = {"source": {str(partition): offset for partition, offset in ends.items()}}
        starting = {**self._copying.starting, EXACT: json.dumps(starts)}
        self._copying = replace(self._copying, starting=starting)

    def _copy(self) -> None:
        """Let a copy of the checkpoint write to another topic."""
        self._end_query()
        target = f"copy-{self.meddled[COPIED]}"
        copied = self._copying.checkpoint(target)
        shutil.copytree(self._copying.checkpoint(EXACT), copied)
        begins = done(copied, "source")
        self._topics.make(target, PARTITIONS, replication=3)
        assert self._copy_once({target: TARGETS[EXACT]}), f"{target} failed; see query.log"
        self._check(target, begins, {})

    def _copy_once(self, targets: dict[str, str]) -> bool:
        """Copy all that is there to some targets; whether that went well."""
        self._start_query(targets, once=True)
        assert self._query is not None
        try:
            return self._query.wait(2 * PROGRESS_SECONDS_MAX) == 0
        finally:
            self._end_query()

    def _check(self, target: str, begins: dict[int, Offset], ends: dict[int, Offset]) -> None:
        """The source's records between these offsets, or all, are in the target, each once."""
        expected = Counter(
            record.value
            for partition, records in self._topics.records("source").items()
            for record in records[begins.get(partition, 0) : ends.get(partition)]
        )
        found = Counter(self._topics.values(target))
        missing, more = expected - found, found - expected
        assert not missing and not more, (
            f"{target}: {missing.total()} records are missing, {more.total()} are too many"
        )

    def _aside(self, name: str) -> Path:
        return self._directory / f"{name}-{self.meddled[RESTORED]}"

    # The queries.

    def _start_query(self, targets: dict[str, str] = TARGETS, *, once: bool = False) -> None:
        rows = LAST_BATCH_ROWS if once else BATCH_ROWS
        copying = replace(self._copying, targets=targets, once=once, batch_rows=rows)
        with (self._directory / "query.log").open("ab") as log:
            self._query = subprocess.Popen(copying.arguments, stdout=log, stderr=log, start_new_session=True)

    def _finish(self) -> None:
        """One more driver, which copies what is left and ends. It may lose a node's restart."""
        self._end_query()
        for node in self._nodes.ids:
            if not self._nodes[node].is_running:
                self._nodes.start(node)
        for _ in range(3):
            self._start_query(once=True)
            if self._ends_well():
                return
        raise AssertionError("the queries do not come to an end; see query.log and spark.log")

    def _ends_well(self) -> bool:
        """Wait for the query's end, for as long as it gets on."""
        assert self._query is not None
        while True:
            before = self._written_so_far(EXACT), self._written_so_far(CARELESS)
            try:
                return self._query.wait(PROGRESS_SECONDS_MAX) == 0
            except subprocess.TimeoutExpired:
                after = self._written_so_far(EXACT), self._written_so_far(CARELESS)
                assert after != before, "the queries stand still; see query.log and spark.log"

    def _end_query(self) -> None:
        if self._query is not None:
            try:
                os.killpg(self._query.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            self._query.wait()
            self._query = None

    def _until_it_writes(self, target: str) -> None:
        """Wait until a batch is being written: then there is something to lose, or to do twice."""
        before = self._written_so_far(target)

        def grows() -> bool:
            self._keep_running()
            return self._written_so_far(target) > before

        wait_until(grows, f"nothing is written to {target}", PROGRESS_SECONDS_MAX)
        if target == EXACT and self._dice.random() < 0.5:
            time.sleep(self._dice.random())  # any moment of a batch, then

    def _keep_running(self) -> None:
        if self._query is not None and self._query.poll() is not None:
            self._query = None  # it has failed, as it may: a task can fail too often
        if self._query is None:
            self._start_query()

    def _written_so_far(self, target: str) -> int:
        """Where a target ends, committed or not."""
        ends = ask(
            self._nodes.bootstrap,
            lambda client: client.list_offsets(target, dict.fromkeys(range(PARTITIONS), -1)),
        )
        return sum(end.offset for end in ends.values())

    # Its input.

    def _feed(self) -> None:
        """As much as a few batches need."""
        for _ in range(4 * BATCH_ROWS // PUT_ROWS):
            now_ms = time.time_ns() // 1_000_000  # of other times, retention would take some
            numbers = range(self._written, self._written + PUT_ROWS)
            records = [Record(value=b"%d" % number, timestamp_ms=now_ms) for number in numbers]
            self._topics.put("source", records, partition=self._dice.randrange(PARTITIONS))
            self._written += PUT_ROWS

    # Its end.

    def _kill(self, victim: str) -> None:
        if victim == "node":
            node = self._dice.choice(self._nodes.ids)
            self._nodes.kill(node)
            self._nodes.start(node)
            self._nodes.until_active(*self._nodes.ids)
            for topic in ("source", *TARGETS):
                self._nodes.until_all_in_sync(topic)
        else:
            assert self._query is not None
            found = _processes({self._query.pid, *self._spark.sessions}, victim)
            if not found:
                return  # it has gone by itself
            os.kill(self._dice.choice(found), signal.SIGKILL)
            if victim == "driver":
                self._query.wait()
                self._query = None
        self.kills[victim] += 1

    def _judge(self) -> Outcome:
        source = Counter(self._topics.values("source"))
        assert len(source) == self._written, "all that was put is in the source"
        judged = {target: difference(source, Counter(self._topics.values(target))) for target in TARGETS}
        return Outcome(
            kills=dict(self.kills),
            meddled=dict(self.meddled),
            records=source.total(),
            missing={target: missing for target, (missing, _) in judged.items()},
            twice={target: more for target, (_, more) in judged.items()},
        )


def difference(source: Counter[T], seen: Counter[T]) -> tuple[int, int]:
    """How many records of a source a sink lacks, and how many it has beyond those.

    The source may have some twice itself: they are put as a plain producer does, which sends again
    what was not answered, and nodes die meanwhile.
    """
    return (source - seen).total(), (seen - source).total()


def _processes(sessions: set[int], kind: str) -> list[int]:
    """The processes of that kind in some sessions."""
    marks = {
        "driver": "org.apache.spark.deploy.SparkSubmit",
        "executor": "CoarseGrainedExecutorBackend",
        "worker": "pyspark.daemon",
    }
    found = []
    for path in Path("/proc").iterdir():
        if not path.name.isdigit():
            continue
        try:
            command = (path / "cmdline").read_bytes().decode(errors="replace")
            fields = (path / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if marks[kind] in command and int(fields[3]) in sessions:
            found.append(int(path.name))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.spark.exactly_once",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--kills", type=int, default=50, help="how many (default: 50)")
    parser.add_argument(
        "--checkpoints",
        type=int,
        help="how many are restored, and how many copied (default: one for 10 kills)",
    )
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin nothing after so long")
    parser.add_argument("--seed", type=int, help="decides who is killed; otherwise the time does")
    parser.add_argument("--keep", action="store_true", help="keep the directory of a good run")
    options = parser.parse_args()
    seed = int(time.time()) if options.seed is None else options.seed
    directory = Path(tempfile.mkdtemp(prefix="tidelog-fire-"))
    print(f"seed {seed}, in {directory}", flush=True)
    dice = random.Random(seed)
    checkpoints = options.kills // 10 if options.checkpoints is None else options.checkpoints
    events = [dice.choice(VICTIMS) for _ in range(options.kills)]
    events += [RESTORED, COPIED] * checkpoints
    dice.shuffle(events)
    began = time.monotonic()
    fire = Fire(directory, seed, report=lambda line: print(line, flush=True))
    outcome = fire.run(events, seconds_max=60 * options.minutes)
    print(f"took {time.monotonic() - began:.0f} s", flush=True)
    print(json.dumps(asdict(outcome)), flush=True)
    is_good = outcome.is_exactly_once and (outcome.is_hot or not options.kills)
    if is_good and not options.keep:
        shutil.rmtree(directory)
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
