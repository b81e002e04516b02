"""Plans of a restore, and changes of rows, without a Spark."""

import uuid
from collections.abc import Callable
from typing import Any

import pytest

from tests.unit.spark.archive.rows import TIME_US, archive
from tidelog.errors import ConfigError
from tidelog.spark.archive import restoring
from tidelog.spark.archive.catalog import create_topic, load_topic, open_catalog
from tidelog.spark.archive.changing import Change, read_sql
from tidelog.spark.archive.logs import Log
from tidelog.spark.archive.replaying import Replay
from tidelog.spark.archive.restoring import Job, Restored, Wish, begin, chosen, prepare_target, restore
from tidelog.spark.archive.spans import Span
from tidelog.spark.archive.tables import ArchiveError, TopicTable
from tidelog.spark.ranges import OffsetRange
from tidelog.spark.writing import application_group

TIME_MS = TIME_US // 1000


@pytest.fixture
def table(tmp_path) -> Any:
    """Offsets 0 to 99 of partition 0, and 5 to 9 of partition 1."""
    with open_catalog(str(tmp_path), create=True) as catalog:
        table = create_topic(catalog, "orders", uuid.UUID(int=7))
        for partition, start, end in ((0, 0, 100), (1, 5, 10)):
            table = archive(table, partition, start, end)
        yield load_topic(catalog, "orders")


@pytest.fixture
def target(monkeypatch) -> dict[str, Any]:
    """What the cluster has as target."""
    found: dict[str, Any] = {"id": uuid.UUID(int=1), "spans": {0: Span(0, 0), 1: Span(0, 0)}}
    for name in ("look_at", "look_at_or_make"):
        monkeypatch.setattr(restoring, name, lambda *_: Log(topic="again", **found))
    return found


def job(**spans: Span) -> Job:
    return Job(
        id="j",
        topic_id="t",
        wish="",
        chunk_rows=40,
        spans={int(name[1:]): span for name, span in spans.items()},
    )


def test_chunks_are_the_same_whenever_they_are_cut_and_have_everything_once():
    planned = job(p0=Span(10, 100), p1=Span(5, 10))

    chunks = [planned.chunk("t", number) for number in range(planned.chunks)]

    assert chunks == [
        [OffsetRange("t", 0, 10, 50), OffsetRange("t", 1, 5, 10)],
        [OffsetRange("t", 0, 50, 90)],
        [OffsetRange("t", 0, 90, 100)],
    ]
    assert Job.from_json(planned.to_json()) == planned


@pytest.mark.parametrize(
    ("asked", "spans"),
    [
        ({}, {0: Span(0, 100), 1: Span(5, 10)}),
        ({"partitions": (1,)}, {1: Span(5, 10)}),
        ({"from_offset": 8, "to_offset": 90}, {0: Span(8, 90), 1: Span(8, 10)}),
        ({"from_ms": TIME_MS + 20, "to_ms": TIME_MS + 30}, {0: Span(20, 30)}),
        ({"from_offset": 1000}, {}),
    ],
)
def test_offsets_and_times_choose(table, asked, spans):
    assert chosen(table, Wish(target="again", **asked)) == spans


def test_a_partition_that_was_never_archived_is_said(table):
    with pytest.raises(ConfigError, match="--partition 7 was never archived; there are 0, 1"):
        chosen(table, Wish(target="again", partitions=(0, 7)))


def test_a_restore_that_was_begun_is_gone_on_with_as_it_was_planned(table, target):
    wish = Wish(target="again", chunk_rows=40)
    first, resumed = begin("", table, wish)
    assert not resumed
    target["spans"] = {0: Span(0, 40), 1: Span(0, 5)}
    moved = OffsetRange("orders", 1, 10, 20)
    table = table.reload().commit([], [moved])

    again, resumed = begin("", table, wish)

    assert (again, resumed) == (first, True)
    assert again.spans == {0: Span(0, 100), 1: Span(5, 10)}


def test_it_is_not_gone_on_with_as_something_else(table, target):
    begin("", table, Wish(target="again"))
    table = table.reload()

    for other in (
        Wish(target="again", to_offset=5),
        Wish(target="again", change=Change(sql="SELECT value FROM records")),
    ):
        with pytest.raises(ArchiveError, match=r"other options.*--restart"):
            begin("", table, other)
    target["id"] = uuid.UUID(int=2)
    with pytest.raises(ArchiveError, match="made anew since"):
        begin("", table, Wish(target="again"))
    _, resumed = begin("", table, Wish(target="again", restart=True))
    assert not resumed


def test_two_restores_that_begin_at_once_are_one_job(table, target):
    """Each has loaded the table before its Spark started, and the target is empty for both."""
    other = table.reload()

    first, _ = begin("", table, Wish(target="again"))
    second, resumed = begin("", other, Wish(target="again"))

    assert (first.id, resumed) == (second.id, True)


def test_a_restore_that_begins_while_another_prepares_the_target_is_refused(table, target, monkeypatch):
    prepare = restoring.prepare_target

    def overtaken(*arguments: Any, **options: Any) -> Log:
        monkeypatch.setattr(restoring, "prepare_target", prepare)
        begin("", table, Wish(target="again"))
        return prepare(*arguments, **options)

    monkeypatch.setattr(restoring, "prepare_target", overtaken)

    with pytest.raises(ArchiveError, match="begun at the same time"):
        begin("", table, Wish(target="again"))


class Decisions:
    """Stands for the sink and for the cluster, which decides every chunk once."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.decided: dict[str, int] = {}
        self.written: list[int] = []
        self.between: Callable[[], object] = lambda: None
        monkeypatch.setattr(restoring, "ask", lambda bootstrap, question: question(self))
        monkeypatch.setattr(restoring, "write_chunk", self.write_chunk)

    def read_decision(self, group: str) -> int | None:
        return self.decided.get(group)

    def write_chunk(self, *arguments: Any) -> None:
        *_, job, number = arguments
        between, self.between = self.between, lambda: None
        between()
        group = application_group(job.application, "again")
        if self.decided.get(group, -1) < number:  # as every task asks
            self.written.append(number)
            self.decided[group] = number


def run(table: TopicTable, **wish: Any) -> Restored:
    spark: Any = None
    return restore(spark, "", table, Wish(target="again", chunk_rows=40, **wish))


def test_a_restore_that_another_has_ended_meanwhile_writes_nothing_again(table, target, monkeypatch):
    """The same command, twice at once: tasks of the second start after the first has ended."""
    decisions = Decisions(monkeypatch)
    decisions.between = lambda: run(table)

    run(table)

    assert decisions.written == [0, 1, 2]
    assert not [name for name in table.reload().table.properties if "restore" in name]


def test_a_restore_that_another_took_the_place_of_writes_no_further(table, target, monkeypatch):
    decisions = Decisions(monkeypatch)
    decisions.between = lambda: begin("", table, Wish(target="again", restart=True))

    with pytest.raises(ArchiveError, match="writes no further"):
        run(table)

    assert decisions.written == [0]


def test_nothing_to_restore_is_said(table: TopicTable, target):
    with pytest.raises(ArchiveError, match="has nothing of what was asked for"):
        begin("", table, Wish(target="again", from_offset=1000))


@pytest.mark.parametrize(
    ("spans", "wish", "complaint"),
    [({0: Span(0, 0)}, {}, "--partitions 2"), ({0: Span(0, 3), 1: Span(0, 0)}, {}, "--append")],
)
def test_a_target_that_does_not_fit_is_refused(target, spans, wish, complaint):
    target["spans"] = spans

    with pytest.raises(ArchiveError, match=complaint):
        prepare_target("", Wish(target="again", **wish), partitions=2)


def test_a_target_with_records_is_fine_if_they_are_to_be_appended(target):
    target["spans"] = {0: Span(0, 3), 1: Span(0, 0)}

    assert prepare_target("", Wish(target="again", append=True), partitions=2).topic == "again"


def test_a_query_is_a_file_or_itself(tmp_path):
    file = tmp_path / "change.sql"
    file.write_text("SELECT value FROM records;\n")

    assert read_sql(str(file)) == "SELECT value FROM records"
    assert read_sql("SELECT value FROM records") == "SELECT value FROM records"
    assert read_sql("") == ""
    assert read_sql("SELECT value FROM records -- " + "x" * 5000).startswith("SELECT")


@pytest.mark.parametrize(
    ("text", "complaint"), [("nowhere.sql", "no such file"), ("SELECT 1", "must read from `records`")]
)
def test_a_query_that_cannot_be_is_said(text, complaint):
    with pytest.raises(ConfigError, match=complaint):
        read_sql(text)


def test_one_change_is_enough(tmp_path):
    file = tmp_path / "change.py"
    file.write_text("")

    with pytest.raises(ConfigError, match="exclude each other"):
        Change(sql="SELECT value FROM records", python=file)
    with pytest.raises(ConfigError, match="no such file"):
        Change(python=tmp_path / "nowhere.py")
    with pytest.raises(ConfigError, match=r"no function transform\(records\)"):
        Change(python=file).apply(object())  # type: ignore[arg-type]


def test_a_topic_is_not_replayed_into_itself():
    with pytest.raises(ConfigError, match="into itself"):
        Replay(source="a", target="a", checkpoint="c")


def test_a_replay_asks_for_what_it_was_told():
    options = Replay(
        source="a", target="b", checkpoint="c", from_ms=5, warehouse="w", catalog="k"
    ).read_options("here:1")

    assert options["startingTimestamp"] == "5"
    assert options["history"] == "archive"
    assert (options["archive.warehouse"], options["archive.catalog"]) == ("w", "k")
