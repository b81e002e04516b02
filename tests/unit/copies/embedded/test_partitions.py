"""Which partitions a copy keeps and shows, without nodes: greetings are handed to it."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path, PurePosixPath
from typing import Any
from uuid import UUID

import pytest

from tests.unit.copies.embedded.copying import BUCKET, OTHER_TOPIC, TOPIC, hello_ack, put
from tidelog.client import SyncFailed
from tidelog.client.http.core import Core, Settings
from tidelog.client.http.routes import Routes
from tidelog.client.http.values import Change
from tidelog.copies.embedded.cache import Recent
from tidelog.copies.embedded.files import About, Layout
from tidelog.copies.embedded.partitions import Partitions
from tidelog.copies.embedded.plan import Steps
from tidelog.copies.embedded.reads import number_of
from tidelog.copies.stream.protocol import HelloAck, decode_from_node
from tidelog.copies.views.kv import KvView
from tidelog.copies.views.store import Position, ViewStore
from tidelog.host import SystemDatabases

KEYS = [f"k{number}" for number in range(12)]


class Stage:
    """A copy whose plans do nothing: what nodes say is said here."""

    def __init__(self, path: Path, partitions: int = 0) -> None:
        self.layout = Layout(path)
        path.mkdir(exist_ok=True)
        self.known: dict[str, Any] = {}
        self.let_end = asyncio.Event()
        self.let_end.set()
        routes = Routes(["http://a:1"], clock=lambda: 0.0)
        core = Core(routes, Settings(), clock=lambda: 0.0, random=lambda: 0.5, new_key=lambda: "k")
        about = self.layout.read_about() or About(
            replica_id="r", source=BUCKET, partitions=partitions, topic_id=TOPIC
        )
        self.kept = Partitions(
            self.layout, about, core, Recent(), format="binary", on_change=self._hear, told=lambda: None
        )
        self.kept.run(self._start)

    def _hear(self, changes: Sequence[Change]) -> None:
        for change in changes:
            self.known[change.key] = None if change.is_deleted else change.value

    def _start(self, plan: Steps[None]) -> "asyncio.Task[None]":
        return asyncio.get_running_loop().create_task(self._wait())

    async def _wait(self) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await self.let_end.wait()

    def greet(self, partitions: int, topic: str = TOPIC) -> None:
        self.kept._greeted(greeting(partitions, topic))

    def load(self, number: int, topic: str, value: bytes, of: int) -> None:
        """One partition has got everything of a bucket of so many partitions."""
        kept = self.kept.all[number]
        before = {key for key in KEYS if kept.copy.is_whole and self.has(number, key)}
        kept.copy.close()
        kept.copy.discard()
        fill(self.layout.file(number), number, of, value, topic)
        kept.copy.open()
        now = {key for key in KEYS if number_of(key.encode(), of) == number}
        told = [
            Change(key=key, value=value, version=1, is_deleted=key not in now, cursor=None)
            for key in sorted(now | before)
        ]
        self.kept._changed(number, told)
        self.kept._heard()

    def has(self, number: int, key: str) -> bool:
        found = self.kept.all[number].file.ask(
            lambda db: db.execute("SELECT 1 FROM entries WHERE key = ?", (key.encode(),)).fetchone()
        )
        return found is not None

    def values(self) -> list[Any]:
        return [self.kept.bucket.get(key) for key in KEYS]

    def files(self) -> list[str]:
        return sorted(path.name for path in self.layout.path.glob("*.db"))


def greeting(partitions: int, topic: str) -> HelloAck:
    ack = decode_from_node(hello_ack(1, partitions=partitions, topic_id=topic))
    assert isinstance(ack, HelloAck)
    return ack


def fill(path: Path, number: int, of: int, value: bytes, topic: str = TOPIC) -> None:
    """The file of one of so many partitions."""
    store = ViewStore(SystemDatabases(), PurePosixPath(path), KvView(), UUID(topic))
    store.open()
    mine = [key for key in KEYS if number_of(key.encode(), of) == number]
    store.apply([put(key, value, at) for at, key in enumerate(mine)], Position(applied=len(KEYS)))
    store.close()


@pytest.fixture
def with_stage(tmp_path: Path) -> Callable[..., None]:
    """Runs a story of a copy that has all of its partitions from its last life."""

    def run(story: Callable[[Stage], Awaitable[None]], partitions: int = 0) -> None:
        async def on() -> None:
            for number in range(partitions):
                fill(tmp_path / f"{number}.db", number, partitions, b'"old"')
            stage = Stage(tmp_path, partitions)
            try:
                await story(stage)
            finally:
                await stage.kept.stop()
                stage.kept.close()

        asyncio.run(on())

    return run


def test_a_node_that_has_not_heard_of_all_partitions_takes_none_away(with_stage):
    async def story(stage: Stage) -> None:
        stage.greet(1)

        assert len(stage.kept.all) == 3 and stage.kept.about.partitions == 3
        assert stage.values() == ["old"] * len(KEYS)

    with_stage(story, partitions=3)


def test_partitions_that_a_bucket_has_no_more_go_with_their_files_and_keys(with_stage):
    async def story(stage: Stage) -> None:
        stage.known = dict.fromkeys(KEYS, "old")

        stage.greet(1, OTHER_TOPIC)
        await asyncio.gather(*stage.kept._leaving.values())

        assert stage.files() == ["0.db"]
        left = {key for key in KEYS if number_of(key.encode(), 3) == 0}
        assert {key for key, value in stage.known.items() if value == "old"} == left
        again = stage.layout.read_about()
        assert again is not None and (again.partitions, again.topic_id) == (1, OTHER_TOPIC)
        assert stage.kept.is_shown

    with_stage(story, partitions=3)


def test_a_scan_that_is_under_way_ends_without_what_is_gone(with_stage, monkeypatch):
    monkeypatch.setattr("tidelog.copies.embedded.reads.PAGE", 1)

    async def story(stage: Stage) -> None:
        scan = stage.kept.bucket.scan()
        first = next(scan)

        stage.greet(1, OTHER_TOPIC)
        rest = [entry.key for entry in scan]

        assert rest and first.key not in rest
        assert len(rest) < len(KEYS) - 1

    with_stage(story, partitions=3)


def test_what_is_added_is_shown_once_all_of_it_is_whole(with_stage):
    async def story(stage: Stage) -> None:
        stage.greet(3)
        assert len(stage.kept.bucket.files) == 1
        assert stage.values() == ["old"] * len(KEYS)

        stage.load(1, TOPIC, b'"new"', of=3)
        assert stage.values() == ["old"] * len(KEYS)
        stage.load(2, TOPIC, b'"new"', of=3)

        assert stage.kept.is_shown
        assert set(stage.values()) == {"new", "old"}

    with_stage(story, partitions=1)


def test_a_copy_that_was_never_whole_is_not_shown_in_parts(with_stage):
    async def story(stage: Stage) -> None:
        stage.greet(2)
        stage.load(0, TOPIC, b"1", of=2)

        with pytest.raises(SyncFailed, match="never in sync"):
            stage.values()

        stage.load(1, TOPIC, b"1", of=2)
        assert stage.values() == [1] * len(KEYS)

    with_stage(story)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0)])
def test_who_hears_of_changes_knows_what_is_there_though_keys_have_moved(with_stage, order):
    async def story(stage: Stage) -> None:
        stage.known = dict.fromkeys(KEYS, "old")
        stage.greet(3, OTHER_TOPIC)

        for number in order:
            stage.load(number, OTHER_TOPIC, b'"new"', of=3)

        assert stage.known == dict.fromkeys(KEYS, b'"new"')

    with_stage(story, partitions=1)


def test_nobody_begins_in_a_file_whose_last_writer_is_not_done(with_stage):
    async def story(stage: Stage) -> None:
        await asyncio.sleep(0)  # all of them have begun
        stage.let_end.clear()
        stage.greet(1, OTHER_TOPIC)
        with pytest.raises(SyncFailed, match="is being removed"):
            stage.greet(2, TOPIC)
        stage.let_end.set()
        await asyncio.gather(*stage.kept._leaving.values())

        stage.greet(2, TOPIC)

        assert [kept.copy.is_whole for kept in stage.kept.all] == [True, False]
        assert stage.files() == ["0.db"]

    with_stage(story, partitions=3)
