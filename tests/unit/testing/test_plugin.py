"""The plugin costs nothing where it is not used."""

import subprocess
import sys

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
        "tidelog", "tidelog.testing", "tidelog.testing.plugin",
    }  # fmt: skip
    assert not found & set(HEAVY)


def test_every_name_of_the_room_is_found_when_it_is_wanted():
    import tidelog.testing

    for name in tidelog.testing.__all__:
        assert getattr(tidelog.testing, name) is not None
    assert dir(tidelog.testing) == sorted(tidelog.testing.__all__)
