import pytest

from tidelog.faces.cli.configs import show_changes

COMMANDS = [["configs", "describe"], ["configs", "set"], ["configs", "unset"], ["topics", "alter"]]


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
        (["configs", "set", "--topic", "t", "a=1", "a=2"], "a is changed twice"),
        (["topics", "alter", "t"], "--partitions"),
        (["topics", "alter", "t", "--config", "x"], "KEY=VALUE"),
    ],
)
def test_a_wrong_command_line_is_one_line_and_asks_nobody(tidelog, arguments, expected):
    result = tidelog(*arguments, "--bootstrap", "127.0.0.1:1")

    assert result.code in (1, 2)
    assert result.err.count("\n") == 1 and expected in result.err
    assert result.out == ""


def test_hostile_values_are_shown_and_not_obeyed(capfd):
    change = {"name": "[red]k", "before": "\x1b[31m", "after": "[/]\n"}

    show_changes({"topic": "t"}, [change], [], dry_run=False, as_json=False)

    out = capfd.readouterr().out
    assert "[red]k" in out and "\\x1b[31m" in out and "[/]\\n" in out and "\x1b" not in out
