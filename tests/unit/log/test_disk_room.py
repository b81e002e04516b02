import errno
import logging

import pytest

from tidelog.log.disk_room import FREE_BYTES_ENOUGH, DiskRoom

FULL = OSError(errno.ENOSPC, "No space left on device")
NO_FILES = OSError(errno.EMFILE, "Too many open files")


def room():
    changes: list[None] = []
    return DiskRoom(lambda: changes.append(None)), changes


@pytest.mark.parametrize(
    ("error", "said", "unsaid"), [(FULL, "free some space", "ulimit"), (NO_FILES, "ulimit -n", "space")]
)
def test_what_is_short_is_said_with_what_can_be_done_about_it(error, said, unsaid, caplog):
    found, changes = room()
    caplog.set_level(logging.INFO)

    for _ in range(2):
        found.ran_out(error)

    assert (found.is_short, found.is_full, len(changes)) == (True, error is FULL, 1)
    assert found.warning is not None
    for text in (found.warning, caplog.text):
        assert said in text
        assert unsaid not in text
    found.has_again(FREE_BYTES_ENOUGH + 1)
    assert (found.is_short, found.warning, len(changes)) == (False, None, 2)


def test_both_are_said_where_both_are_short():
    found, changes = room()

    found.ran_out(NO_FILES)
    found.ran_out(FULL)

    assert (found.is_full, found.lacks_files, len(changes)) == (True, True, 2)
    assert found.warning is not None
    assert "free some space" in found.warning
    assert "ulimit -n" in found.warning
    found.has_again(FREE_BYTES_ENOUGH)
    assert found.is_short
