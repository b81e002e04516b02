"""The plugin costs nothing where it is not used."""

import subprocess
import sys
from typing import Any

import pytest

from tidelog.testing import plugin

HEAVY = ("asyncio", "kio", "msgspec", "socket", "sqlite3", "tidelog.host", "uvloop")


def imported_by(statement: str) -> set[str]:
    """The modules that a fresh interpreter has after it, beyond those of pytest."""
    code = (
        "import sys, pytest; before = set(sys.modules)\n"
        f"{statement}\n"
        "print('\\n'.join(set(sys.modules) - before))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    return set(done.stdout.split())


def test_the_plugin_imports_nothing_but_itself():
    found = imported_by("import tidelog.testing.plugin")

    assert {name for name in found if name.startswith("tidelog")} == {
        "tidelog",
        "tidelog.testing",
        "tidelog.testing.plugin",
    }
    assert not found & set(HEAVY)


def test_every_name_of_the_room_is_found_when_it_is_wanted():
    import tidelog.testing

    for name in tidelog.testing.__all__:
        assert getattr(tidelog.testing, name) is not None
    assert dir(tidelog.testing) == sorted(tidelog.testing.__all__)


class Config:
    """What pytest was told, by options and in a file."""

    def __init__(self, options: dict[str, Any], file: dict[str, Any]) -> None:
        self.getoption = options.get
        self.getini = file.__getitem__


def scope(option: str | None, file: str) -> str:
    config: Any = Config({"tidelog_cluster_scope": option}, {"tidelog_cluster_scope": file})
    return plugin._cluster_scope("tidelog_cluster", config)


def test_an_option_is_stronger_than_the_file():
    assert scope(None, "function") == "function"
    assert scope("module", "function") == "module"


def test_a_scope_that_pytest_does_not_know_is_refused():
    with pytest.raises(pytest.UsageError, match="tidelog_cluster_scope is 'forever'"):
        scope(None, "forever")


def test_a_setting_has_a_value():
    config: Any = Config({}, {"tidelog_settings": ["log.retention.ms = 1000", "num.partitions"]})

    with pytest.raises(pytest.UsageError, match=r"'num\.partitions' is not KEY=VALUE"):
        plugin._settings(config)
