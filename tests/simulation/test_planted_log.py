"""Bugs that the log had, planted again: the story of `tests/support/log_story.py` finds each."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tests.support.log_story import LogStory
from tidelog.errors import CorruptMessage
from tidelog.host import Disk, Path, read_file
from tidelog.log import recovery
from tidelog.log.epoch_recovery import load_epochs
from tidelog.log.epochs import FILE_NAME, EpochHistory, EpochsDamaged
from tidelog.log.log import Log, LogState
from tidelog.log.producers import ProducerStates, RememberedBatch
from tidelog.log.search import TimeSearch
from tidelog.partition import produced
from tidelog.records import LOG_APPEND_TIME, BatchHeader

SEEDS_MAX = 1500

Patch = pytest.MonkeyPatch


def plant_a_checkpoint_that_outlives_its_epochs(patch: Patch) -> None:
    """The file's entries are kept, and those of the scan come on top of them."""

    def trusting(disk: Disk, directory: Path, state: LogState) -> None:
        scanned = list(state.epochs)
        try:
            known = EpochHistory.decode(read_file(disk, directory / FILE_NAME))
        except (FileNotFoundError, EpochsDamaged):
            known = EpochHistory()
        if state.clean or known.epoch_at(state.start) < 0:
            load_epochs(disk, directory, state)
            return
        for epoch, start in scanned:
            known.assign(epoch, start)
        known.cut_end(state.end)
        known.cut_start(state.start)
        state.epochs = known

    patch.setattr("tidelog.log.recovery.load_epochs", trusting)


def plant_a_stop_that_does_not_write_the_epochs(patch: Patch) -> None:
    """A clean start believes a file that is as old as the last sealed segment."""
    patch.setattr("tidelog.log.epoch_recovery.rewrite", lambda *_: None)
    patch.setattr("tidelog.log.closing.EPOCHS_FILE_NAME", "another-file")
    patch.setattr("tidelog.log.epoch_recovery._latest_epoch", lambda *_: -1)


def plant_removals_that_are_not_synced(patch: Patch) -> None:
    """What a start removes beside the segments may come back."""

    class Forgetful:
        def __init__(self, disk: Disk) -> None:
            self._disk = disk

        def __getattr__(self, name: str) -> Any:
            return getattr(self._disk, name)

        def sync_directory(self, path: Path) -> None: ...

    remove = recovery._remove_strays

    def removing(disk: Any, directory: Path, names: Sequence[str], state: LogState) -> list[str]:
        return remove(Forgetful(disk), directory, names, state)

    patch.setattr("tidelog.log.recovery._remove_strays", removing)


def plant_a_log_without_segments_that_remembers(patch: Patch) -> None:
    """Snapshots of a history that is gone stay where no segment is left."""
    remove = recovery._remove_strays

    def removing(disk: Disk, directory: Path, names: Sequence[str], state: LogState) -> list[str]:
        return remove(disk, directory, names, state) if state.created else []

    patch.setattr("tidelog.log.recovery._remove_strays", removing)


def plant_segments_without_times_that_never_go(patch: Patch) -> None:
    def times(log: Log) -> list[int]:
        return [segment.max_timestamp_ms for segment in log.segments]

    patch.setattr("tidelog.log.retention._times", times)


def plant_segments_below_the_start_that_stay(patch: Patch) -> None:
    patch.setattr("tests.support.log_story.has_deleted_segments", lambda log: False)


def plant_a_search_that_fails_at_one_batch(patch: Patch) -> None:
    def fail(self: TimeSearch, header: BatchHeader) -> None:
        raise CorruptMessage("a record lies outside of its batch")

    patch.setattr(TimeSearch, "_as_one", fail)


def plant_claims_that_are_believed(patch: Patch) -> None:
    """Of a segment only the batch with the greatest claim is looked into."""
    settle = TimeSearch._settle

    def believing(self: TimeSearch, disk: Disk, *rest: Any) -> Any:
        best, _ = settle(self, disk, *rest)
        return best, []

    patch.setattr(TimeSearch, "_settle", believing)


def plant_a_retry_that_is_told_its_own_time(patch: Patch) -> None:
    check = ProducerStates.check

    def checking(self: ProducerStates, header: BatchHeader) -> RememberedBatch | None:
        found = check(self, header)
        return found and found._replace(timestamp_ms=found.timestamp_ms + 5000)

    patch.setattr(ProducerStates, "check", checking)


def plant_a_producer_that_claims_append_time(patch: Patch) -> None:
    check = produced.check_attributes

    def checking(header: BatchHeader, *, is_transactional: bool) -> None:
        innocent = header._replace(attributes=header.attributes & ~LOG_APPEND_TIME)
        check(innocent, is_transactional=is_transactional)

    patch.setattr("tidelog.partition.appending.check_attributes", checking)


def plant_a_cut_that_passes_over_swaps(patch: Patch) -> None:
    patch.setattr("tidelog.log.truncation.complete_swaps", lambda disk, directory: None)


PLANTS: dict[Callable[[Patch], None], str] = {
    plant_a_checkpoint_that_outlives_its_epochs: "be_cut",
    plant_a_stop_that_does_not_write_the_epochs: "lose_an_epoch",
    plant_removals_that_are_not_synced: "be_cut",
    plant_a_log_without_segments_that_remembers: "be_cut",
    plant_segments_without_times_that_never_go: "delete",
    plant_segments_below_the_start_that_stay: "delete",
    plant_a_search_that_fails_at_one_batch: "do_anything",
    plant_claims_that_are_believed: "do_anything",
    plant_a_retry_that_is_told_its_own_time: "do_anything",
    plant_a_producer_that_claims_append_time: "do_anything",
    plant_a_cut_that_passes_over_swaps: "compact",
}
"""Each with what the lives are about that find it soon; stories of all lives find it, too."""


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__.removeprefix("plant_"))
def test_the_story_of_a_log_finds_what_is_planted(plant: Callable[[Patch], None], monkeypatch):
    plant(monkeypatch)

    with pytest.raises((AssertionError, CorruptMessage)):
        _play_until_found(PLANTS[plant])


def _play_until_found(life: str) -> None:
    for seed in range(SEEDS_MAX):
        LogStory(seed, [life]).play()
