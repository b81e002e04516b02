"""What tasks tell and drivers decide, with a cluster that is a few dictionaries."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from kio.schema.errors import ErrorCode
from pyspark.sql.types import BinaryType, StructType

from tidelog.client.cluster import PartitionInfo, Refused, TopicInfo
from tidelog.client.transactional import Decision, Participant, TransactionalProducer
from tidelog.errors import ConfigError
from tidelog.spark import client_loop, entering, writing
from tidelog.spark.content import Content
from tidelog.spark.entering import Attempt, Batch, Found
from tidelog.spark.options import write_options
from tidelog.spark.proofs import OtherContent, Proof
from tidelog.spark.writing import NotDecided, Written, decide, query_batch, write
from tidelog.txn.placement import coordinator_key, group_of
from tidelog.wire.batches_decided import Counting

SCHEMA = StructType().add("value", BinaryType())
HOURS_MS = 3_600_000


class Cluster:
    """Decides as a coordinator does, and notes what it was asked."""

    def __init__(self) -> None:
        self.decided: dict[str, tuple[int, bytes | None]] = {}
        self.swept: list[str] = []
        self.aborted: list[str] = []
        self.timeouts: list[int] = []
        self.timeout_max_ms = 24 * HOURS_MS
        self.refusal: Refused | None = None

    async def newest_decision(self, group: str) -> Decision | None:
        found = self.decided.get(group)
        return None if found is None else Decision(batch_id=found[0], is_new=False, proof=found[1])

    async def commit_group(
        self,
        group: str,
        batch_id: int,
        members: Iterable[Participant],
        *,
        after: int | None,
        counting: Counting,
        proof: bytes | None,
    ) -> Decision:
        if self.refusal is not None:
            raise self.refusal
        newest, kept = self.decided.get(group, (None, None))
        if newest is not None and newest >= batch_id:
            return Decision(batch_id=newest, is_new=False, proof=kept)
        assert after == newest, "as the coordinator demands"
        self.decided[group] = batch_id, proof
        return Decision(batch_id=batch_id, is_new=True)

    async def abort_group(self, group: str) -> None:
        self.swept.append(group)

    async def abort_member(self, member: Participant) -> None:
        self.aborted.append(member.transactional_id)

    async def begin(self, transactional_id: str, *, timeout_ms: int) -> TransactionalProducer:
        self.timeouts.append(timeout_ms)
        if timeout_ms > self.timeout_max_ms:
            raise Refused(ErrorCode.invalid_transaction_timeout, transactional_id)
        client: Any = self
        return TransactionalProducer(client, transactional_id, 7, 0)

    def forget(self, topic: str) -> None:
        """There is nothing to forget."""

    async def topic(self, name: str, *, create: bool) -> TopicInfo:
        one = PartitionInfo(partition=0, leader=1, epoch=0, replicas=(1,), in_sync=(1,))
        return TopicInfo(name=name, id=None, internal=False, partitions=(one,))


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    cluster = Cluster()

    def ask_later(bootstrap: str, question: Any, **_: Any) -> Any:
        return client_loop.start(question(cluster))

    monkeypatch.setattr(
        writing,
        "_abort",
        lambda options, members: cluster.aborted.extend(member.transactional_id for member in members),
    )
    monkeypatch.setattr(client_loop, "ask_later", ask_later)
    return cluster


def options(**given: str) -> Any:
    told = {"kafka.bootstrap.servers": "x:1", "topic": "out", **given}
    return write_options(told, streaming="txnAppId" not in given)


def rows(*texts: str) -> Content:
    from tidelog.spark.content import content_of

    values = pa.array([text.encode() for text in texts], pa.binary())
    return content_of(pa.nulls(len(texts), pa.binary()), values)


def wrote(batch: Batch, cluster: Cluster, *texts: str, slot: int = 0) -> Written:
    """What a task tells: a batch that is decided it does not write."""
    found = client_loop.wait(client_loop.start(_found(batch, cluster)))
    skips = found is not None and found.batch_id >= batch.number
    member = None if skips or not texts else Participant(f"{batch.group}.{slot}", 7, 0)
    return Written(batch, rows(*texts), member, found)


async def _found(batch: Batch, cluster: Cluster) -> Found | None:
    for group in (batch.group, batch.former_group):
        if group is not None and (one := await cluster.newest_decision(group)) is not None:
            return Found(group, one.batch_id, one.proof)
    return None


def batch(number: int, topic: str | None = "out") -> Batch:
    return query_batch("q", topic, number)


def run(cluster: Cluster, one: Batch, *texts: str, **given: str) -> None:
    counting = Counting.APPLICATION if one.query is None else Counting.QUERY
    decide(options(**given), [wrote(one, cluster, *texts)], counting)


# A batch that comes again.


def test_a_batch_that_comes_again_is_passed_over_however_it_is_cut(cluster):
    decide(options(), [wrote(batch(0), cluster, "a", "b")], Counting.QUERY)
    parts = [wrote(batch(0), cluster, text, slot=slot) for slot, text in enumerate("ba")]

    decide(options(), [*parts, None], Counting.QUERY)

    assert cluster.decided["spark.q@out"][0] == 0


def test_a_batch_of_the_same_number_with_other_rows_fails(cluster):
    run(cluster, batch(1), "3", "4")

    with pytest.raises(OtherContent, match="batch 1 of query q into 'out' was not written") as told:
        run(cluster, batch(1), "3", "5")

    assert "tidelog pipeline decisions reset spark.q@out" in str(told.value)
    assert "verifyReplays=false" in str(told.value)
    run(cluster, batch(1), "3", "5", verifyReplays="false")
    run(cluster, batch(2), "6")


def test_a_batch_below_the_newest_fails_whatever_it_holds(cluster):
    for number in range(3):
        run(cluster, batch(number), "x")

    with pytest.raises(OtherContent, match=r"newest that was decided is 2 \(1 row\), and only that"):
        run(cluster, batch(1), "x")


def test_where_the_checkpoint_tells_sources_ends_these_are_compared(cluster, tmp_path: Path):
    (tmp_path / "offsets").mkdir()
    (tmp_path / "metadata").write_text('{"id":"q"}')
    given = {"checkpointLocation": str(tmp_path)}
    (tmp_path / "offsets" / "1").write_text('v1\n{}\n{"in":{"0":4}}')
    run(cluster, batch(1), "3", "4", **given)

    run(cluster, batch(1), "3", "something random", **given)
    (tmp_path / "offsets" / "1").write_text('v1\n{}\n{"in":{"0":6}}')
    with pytest.raises(OtherContent, match=r'ends \{"in":\{"0":4\}\}, and this run\'s ends at') as it:
        run(cluster, batch(1), "3", "4", **given)
    assert "verifyReplays" not in str(it.value), "it would hide a loss"


def test_a_batch_that_another_driver_decided_meanwhile_is_compared_and_aborted(cluster):
    late, other = wrote(batch(1), cluster, "a"), wrote(batch(1), cluster, "b")
    decide(options(), [wrote(batch(1), cluster, "a")], Counting.QUERY)

    decide(options(), [late], Counting.QUERY)
    with pytest.raises(OtherContent):
        decide(options(), [other], Counting.QUERY)

    assert cluster.aborted == ["spark.q@out.0"] * 2


def test_a_decision_from_before_there_were_proofs_is_believed(cluster):
    cluster.decided["spark.q@out"] = 1, None

    run(cluster, batch(1), "anything")


def test_a_task_that_writes_nothing_tells_what_it_would_have_written(cluster):
    cluster.decided["spark.q@out"] = 1, None
    values = pa.array([b"a", b"b", b"c"], pa.binary())
    batches = [pa.RecordBatch.from_pydict({"value": part}) for part in (values[:1], values[1:])]

    attempt = Attempt(batch=batch(1), slot=0, is_first=True)
    told = write(options(), SCHEMA, attempt, iter([*batches, batches[0][:0]]))

    assert (told.member, told.content) == (None, rows("a", "b", "c"))
    assert told.found is not None and told.found.batch_id == 1


# How a task begins.


def begin(cluster: Cluster, number: int = 0) -> entering.Beginning:
    client: Any = cluster
    attempt = Attempt(batch=batch(number), slot=0, is_first=True)
    return client_loop.wait(client_loop.start(entering.begin(client, options(), attempt)))


@pytest.fixture
def expected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entering, "_expected", set())
    entering.expect(Attempt(batch=batch(0), slot=0, is_first=True), rows=True)


def test_an_id_is_taken_over_ahead_of_the_rows_only_where_there_were_some_last_time(cluster, expected):
    first, other = (Attempt(batch=batch(1), slot=slot, is_first=True) for slot in (0, 1))
    assert begin(cluster, 1).entered is not None
    cluster.timeouts.clear()

    told = [write(options(), SCHEMA, attempt, iter([])) for attempt in (first, other)]

    assert [one.member for one in told] == [None, None]
    assert len(cluster.timeouts) == 1, "slot 0 had rows before, slot 1 had none"
    assert begin(cluster, 2).entered is None, "slot 0 had none the last time"


def test_no_id_is_taken_over_for_a_batch_that_was_decided(cluster, expected):
    cluster.decided["spark.q@out"] = 1, None

    beginning = begin(cluster, 1)

    assert beginning.is_decided and beginning.entered is None
    assert cluster.timeouts == []


def test_the_decision_is_known_before_an_id_is_taken_over(cluster, expected, monkeypatch):
    asked: list[str] = []
    newest, take_over = cluster.newest_decision, cluster.begin

    async def newest_decision(group: str) -> Decision | None:
        found = await newest(group)
        asked.append("answered")
        return found

    async def begins(name: str, *, timeout_ms: int) -> TransactionalProducer:
        asked.append("taken over")
        return await take_over(name, timeout_ms=timeout_ms)

    monkeypatch.setattr(cluster, "newest_decision", newest_decision)
    monkeypatch.setattr(cluster, "begin", begins)
    begin(cluster)

    assert asked == ["answered", "answered", "taken over"], "of both names of the group"


def test_rows_that_fail_to_come_fail_the_task(cluster, expected):
    def broken() -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pydict({"value": pa.array([], pa.binary())})
        raise ValueError("no rows")

    with pytest.raises(ValueError, match="no rows"):
        write(options(), SCHEMA, Attempt(batch=batch(0), slot=0, is_first=True), broken())


# Versions of an application.


def version(number: int) -> Batch:
    return Batch(writing.application_group("app", "out"), number)


def test_a_version_is_written_once_and_the_next_is_higher(cluster):
    given = {"txnAppId": "app", "txnVersion": "7"}
    run(cluster, version(7), "good", **given)
    run(cluster, version(7), "good", **given)

    with pytest.raises(OtherContent, match=r"txnVersion 7 of txnAppId 'app' .* was not written"):
        run(cluster, version(7), "bad", **given)
    with pytest.raises(OtherContent, match="newest that was decided is 7"):
        run(cluster, version(6), "good", **given)


# Names.


def test_copies_of_a_query_have_a_group_for_each_topic_and_members_are_kept_with_it(cluster):
    run(cluster, batch(1, "a.b"), "x")
    run(cluster, batch(1, "a"), "x")

    assert set(cluster.decided) == {"spark.q@a.b", "spark.q@a"}
    for topic in ("a.b", "a", None):
        group = batch(1, topic).group
        assert group_of(f"{group}.12") == coordinator_key(f"{group}.12") == group


def test_what_a_query_decided_under_its_former_name_is_not_written_again(cluster):
    cluster.decided["spark.q"] = 5, None

    run(cluster, batch(5), "replayed")
    assert set(cluster.decided) == {"spark.q"}
    with pytest.raises(OtherContent, match=r"decisions reset spark\.q`"):
        run(cluster, batch(4), "restored")

    cluster.swept.clear()
    run(cluster, batch(6), "next")
    assert cluster.decided["spark.q@out"][0] == 6
    assert cluster.swept == ["spark.q"], "what an older driver left open ends"
    run(cluster, batch(7), "and on")
    assert cluster.swept == ["spark.q"]


# What is left open.


def test_a_batch_without_rows_sweeps_what_an_earlier_try_left_open(cluster):
    decide(options(), [wrote(batch(0), cluster)], Counting.QUERY)
    assert cluster.swept == ["spark.q@out", "spark.q"]
    assert cluster.decided == {}

    run(cluster, batch(1), "a")
    cluster.swept.clear()
    decide(options(), [wrote(batch(2), cluster)], Counting.QUERY)
    assert cluster.swept == ["spark.q@out"]


def test_a_replay_that_is_passed_over_sweeps_too(cluster):
    run(cluster, batch(1), "a")
    cluster.swept.clear()

    run(cluster, batch(1), "a")

    assert cluster.swept == ["spark.q@out"]


# Time.


def enter(cluster: Cluster, **given: str) -> list[int]:
    cluster.timeouts.clear()
    client: Any = cluster
    attempt = Attempt(batch=batch(0), slot=0, is_first=True)
    client_loop.wait(client_loop.start(entering.enter(client, options(**given), attempt)))
    return cluster.timeouts


def test_a_batch_may_take_hours_where_the_cluster_allows_it(cluster):
    assert enter(cluster) == [4 * HOURS_MS]
    cluster.timeout_max_ms = 900_000
    assert enter(cluster) == [4 * HOURS_MS, 900_000]
    assert enter(cluster, **{"kafka.transaction.timeout.ms": "5000"}) == [5000]


@pytest.mark.parametrize("given", [{}, {"kafka.transaction.timeout.ms": "901000"}])
def test_a_timeout_that_is_not_allowed_is_told_with_both_settings(cluster, given):
    cluster.timeout_max_ms = 800_000

    with pytest.raises(ConfigError, match=r"kafka\.transaction\.timeout\.ms.*transaction\.max\.t"):
        enter(cluster, **given)


def test_a_batch_that_is_not_committed_names_both_settings(cluster):
    cluster.refusal = Refused(ErrorCode.producer_fenced, "spark.q@out.0")

    with pytest.raises(NotDecided, match=r"kafka\.transaction\.timeout\.ms .*transaction\.max\.ti"):
        run(cluster, batch(0), "a")


def test_a_write_of_its_own_is_decided_without_a_proof(cluster):
    told = wrote(Batch("spark.1234", 0), cluster, "a")

    decide(options(), [told], Counting.ONCE)
    decide(options(), [Written(told.batch)], Counting.ONCE)

    assert cluster.decided == {"spark.1234": (0, None)}
    assert cluster.swept == []


def test_who_writes_at_least_once_decides_nothing(cluster):
    decide(options(delivery="at-least-once"), [Written(batch(0), rows("a"))], Counting.QUERY)

    assert cluster.decided == {} and cluster.swept == []


def test_a_proof_is_what_is_decided(cluster):
    run(cluster, batch(0), "a", "b")

    kept = cluster.decided["spark.q@out"][1]
    assert Proof.decode(kept) == Proof.of(rows("b", "a"))
