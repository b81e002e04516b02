import json

import pytest

from tidelog.client.admin import ConfigInfo, ConfigValue, Source
from tidelog.client.settings import Change, planned
from tidelog.faces.cli.configs import show_changes

COMMANDS = [["configs", "describe"], ["configs", "set"], ["configs", "unset"], ["topics", "alter"]]


def config(name: str, *values: tuple[Source, str], sensitive: bool = False) -> ConfigInfo:
    """A setting with the values that compete for it, the strongest first."""
    return ConfigInfo(
        name=name, value=None if sensitive else values[0][1], source=values[0][0],
        read_only=False, sensitive=sensitive, doc=None,
        values=tuple(ConfigValue(value=value, source=source) for source, value in values),
    )  # fmt: skip


def warnings_of(capfd, name: str, before: str | None, after: str | None) -> list[str]:
    change = Change(name=name, before=before, after=after)
    show_changes({"topic": "t"}, [change], dry_run=True, as_json=True)
    found: list[str] = json.loads(capfd.readouterr().out)["warnings"]
    return found


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_explains_itself_with_examples(tidelog, command):
    result = tidelog(*command, "--help")

    assert result.code == 0
    assert "tidelog " + " ".join(command) in result.out and "Examples:" in result.out


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["configs", "describe"], "--topic"),
        (["configs", "describe", "--topic", "t", "--broker", "1"], "either"),
        (["configs", "set", "--topic", "t"], "KEY=VALUE"),
        (["configs", "set", "--topic", "t", "retention.ms"], "KEY=VALUE"),
        (["configs", "unset", "--broker", "one", "a"], "--broker"),
        (["topics", "alter", "t"], "--partitions"),
        (["topics", "alter", "t", "--config", "x"], "KEY=VALUE"),
    ],
)
def test_a_wrong_command_line_is_one_line_and_asks_nobody(tidelog, arguments, expected):
    result = tidelog(*arguments, "--bootstrap", "127.0.0.1:1")

    assert result.code in (1, 2)
    assert result.err.count("\n") == 1 and expected in result.err
    assert result.out == ""


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("retention.ms", "604800000", "1000"),
        ("retention.bytes", "-1", "5"),
        ("retention.records", "-1", "0"),
        ("log.retention.ms", "2", "1"),
        ("cleanup.policy", "delete", "compact"),
    ],
)
def test_a_change_that_may_delete_records_says_so(capfd, name, before, after):
    (warning,) = warnings_of(capfd, name, before, after)

    assert name in warning and "deleted" in warning


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("retention.ms", "1000", "2000"),
        ("retention.ms", "1000", "1000"),
        ("retention.ms", "1000", "-1"),
        ("retention.ms", None, "1"),
        ("segment.bytes", "100", "50"),
        ("cleanup.policy", "delete", "delete"),
        ("partitions", "3", "3"),
    ],
)
def test_a_harmless_change_warns_of_nothing(capfd, name, before, after):
    assert warnings_of(capfd, name, before, after) == []


def test_growing_says_that_keys_will_move(capfd):
    (warning,) = warnings_of(capfd, "partitions", "3", "6")

    assert "keys will map to other partitions" in warning


def test_unsetting_uncovers_the_next_strongest_value():
    known = config("retention.ms", (Source.TOPIC, "1"), (Source.BROKER, "2"), (Source.DEFAULT, "3"))

    change = planned("retention.ms", None, known, Source.TOPIC)

    assert (change.before, change.after) == ("1", "2")


def test_unsetting_what_was_not_set_changes_nothing():
    known = config("retention.ms", (Source.START, "2"), (Source.DEFAULT, "3"))

    assert planned("retention.ms", None, known, Source.BROKER).is_none


def test_what_all_brokers_have_is_told_without_what_one_of_them_has():
    known = config(
        "num.partitions", (Source.BROKER, "9"), (Source.ALL_BROKERS, "3"), (Source.DEFAULT, "1")
    )

    change = planned("num.partitions", None, known, Source.ALL_BROKERS)

    assert (change.before, change.after) == ("3", "1")


def test_a_secret_is_never_shown():
    known = config("password", (Source.BROKER, "hunter2"), sensitive=True)

    change = planned("password", "hunter3", known, Source.BROKER)

    assert "hunter" not in f"{change.before}{change.after}"


def test_hostile_values_are_shown_and_not_obeyed(capfd):
    change = Change(name="[red]k", before="\x1b[31m", after="[/]\n")

    show_changes({"topic": "t"}, [change], dry_run=False, as_json=False)

    out = capfd.readouterr().out
    assert "[red]k" in out and "\\x1b[31m" in out and "[/]\\n" in out and "\x1b" not in out
