import subprocess
import sys

import pytest
from typer.main import get_command

import tidelog as package
from tests.unit.client.fake_broker import in_thread
from tidelog.faces.cli import app

COMMANDS = [
    ["start"],
    ["cluster"],
    ["cluster", "up"],
    ["cluster", "status"],
    ["cluster", "kill"],
    ["cluster", "stop"],
    ["cluster", "start"],
    ["cluster", "pause"],
    ["cluster", "resume"],
    ["cluster", "restart"],
    ["topics"],
    ["topics", "create"],
    ["topics", "list"],
    ["topics", "describe"],
    ["topics", "alter"],
    ["topics", "delete"],
    ["produce"],
    ["consume"],
    ["kv"],
    ["kv", "buckets"],
    ["kv", "create"],
    ["kv", "put"],
    ["kv", "get"],
    ["kv", "delete"],
    ["kv", "list"],
    ["kv", "watch"],
    ["kv", "drop"],
    ["queue"],
    ["queue", "list"],
    ["queue", "create"],
    ["queue", "describe"],
    ["queue", "publish"],
    ["queue", "receive"],
    ["queue", "ack"],
    ["queue", "nack"],
    ["queue", "extend"],
    ["queue", "purge"],
    ["queue", "redrive"],
    ["queue", "delete"],
    ["queue", "delete-numbered"],
    ["stream"],
    ["stream", "list"],
    ["stream", "create"],
    ["stream", "describe"],
    ["stream", "publish"],
    ["stream", "history"],
    ["stream", "subscribe"],
    ["stream", "delete"],
    ["pubsub"],
    ["pubsub", "publish"],
    ["pubsub", "subscribe"],
    ["pubsub", "stats"],
    ["replica"],
    ["replica", "run"],
    ["replica", "status"],
    ["replica", "get"],
    ["replica", "list"],
    ["groups"],
    ["groups", "list"],
    ["groups", "describe"],
    ["groups", "reset"],
    ["groups", "delete"],
    ["groups", "delete-offsets"],
    ["transactions"],
    ["transactions", "list"],
    ["transactions", "describe"],
    ["transactions", "abort"],
    ["transactions", "abort-orphans"],
    ["configs"],
    ["configs", "describe"],
    ["configs", "set"],
    ["configs", "unset"],
    ["brokers"],
    ["brokers", "list"],
    ["brokers", "drain"],
    ["brokers", "remove"],
    ["brokers", "stop"],
    ["reassign"],
    ["reassign", "start"],
    ["reassign", "status"],
    ["reassign", "throttle"],
    ["reassign", "cancel"],
    ["promote"],
    ["proxy"],
    ["elect"],
    ["elect", "preferred"],
    ["elect", "unclean"],
    ["quorum"],
    ["quorum", "add"],
    ["quorum", "describe"],
    ["quorum", "remove"],
    ["acls"],
    ["acls", "add"],
    ["acls", "explain"],
    ["acls", "list"],
    ["acls", "remove"],
    ["tokens"],
    ["tokens", "create"],
    ["tokens", "list"],
    ["tokens", "revoke"],
    ["users"],
    ["users", "add"],
    ["users", "list"],
    ["users", "password"],
    ["users", "remove"],
    ["certs"],
    ["certs", "ca"],
    ["certs", "client"],
    ["certs", "node"],
    ["log"],
    ["log", "dump"],
    ["log", "verify"],
    ["backup"],
    ["backup", "create"],
    ["backup", "list"],
    ["backup", "restore"],
    ["backup", "verify"],
    ["archive"],
    ["archive", "run"],
    ["archive", "status"],
    ["archive", "trim"],
    ["archive", "verify"],
    ["restore"],
    ["replay"],
    ["analyze"],
    ["audit"],
    ["pipeline"],
    ["pipeline", "new"],
    ["pipeline", "run"],
    ["pipeline", "pack"],
    ["pipeline", "list"],
    ["pipeline", "describe"],
    ["pipeline", "stop"],
    ["pipeline", "test"],
    ["pipeline", "decisions"],
    ["pipeline", "decisions", "list"],
    ["pipeline", "decisions", "show"],
    ["pipeline", "decisions", "reset"],
    ["bench"],
    ["replication"],
    ["replication", "status"],
    ["simulate"],
]


def commands_of(command, path=()):
    """The paths of all commands below `command`."""
    for name, one in getattr(command, "commands", {}).items():
        yield [*path, name]
        yield from commands_of(one, (*path, name))


def test_every_command_is_in_the_list():
    assert sorted(commands_of(get_command(app))) == sorted(COMMANDS)


def test_the_version_is_printed(tidelog):
    result = tidelog("--version")

    assert (result.code, result.out) == (0, f"tidelog {package.__version__}\n")


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_explains_itself(tidelog, command):
    result = tidelog(*command, "--help")

    assert result.code == 0
    assert "Usage: tidelog " + " ".join(command) in result.out


def test_without_a_command_the_help_is_shown(tidelog):
    result = tidelog()

    assert result.code == 0
    assert "tidelog start --data ./data" in result.out


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["nonsense"], "nonsense"),
        (["topics", "creat", "x"], "creat"),
        (["topics", "create"], "NAME"),
        (["topics", "create", "x", "--partitions", "none"], "--partitions"),
        (["topics", "create", "x", "--partitions", "0"], "--partitions"),
        (["consume", "x", "--format", "xml"], "--format"),
    ],
)
def test_a_wrong_command_line_is_one_line_that_points_to_the_help(tidelog, arguments, expected):
    result = tidelog(*arguments)

    assert result.code == 2
    assert result.out == ""
    assert result.err.count("\n") == 1
    assert expected in result.err and "--help" in result.err


@pytest.mark.parametrize(
    "arguments",
    [
        ["topics", "list"],
        ["topics", "describe", "x"],
        ["produce", "x", "--value", "v"],
        ["consume", "x"],
        ["bench"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_without_a_node_the_error_says_where_and_what_to_do(tidelog, arguments):
    with in_thread() as gone:
        address = gone.address

    result = tidelog(*arguments, "--bootstrap", address)

    assert result.code == 1
    assert result.out == ""
    assert result.err.count("\n") == 1
    assert address in result.err and "tidelog start" in result.err


def test_a_wrong_bootstrap_is_one_line(tidelog):
    result = tidelog("topics", "list", "--bootstrap", "nowhere:port")

    assert result.code == 2
    assert "HOST:PORT" in result.err and "Traceback" not in result.err


def test_a_name_that_is_no_text_is_one_line(tidelog, broker):
    result = tidelog("topics", "describe", "\udcff")

    assert result.code == 2 and "UTF-8" in result.err and "bug" not in result.err


def test_a_bug_of_ours_is_said_to_be_one(tidelog, monkeypatch):
    monkeypatch.setattr("tidelog.faces.cli.topics.run", lambda work: work.close() or 1 / 0)

    result = tidelog("topics", "list")

    assert result.code == 1
    assert "bug" in result.err and "TIDELOG_DEBUG" in result.err and "Traceback" not in result.err


def test_the_help_imports_nothing_heavy():
    heavy = {"kio", "asyncio", "yaml", "uvloop", "cramjam", "httpx", "rich.table", "rich.progress"}
    script = "import sys, tidelog.faces.cli; print(*(set(sys.argv[1:]) & set(sys.modules)))"

    loaded = subprocess.run(
        [sys.executable, "-c", script, *heavy], capture_output=True, text=True, check=True
    )

    assert loaded.stdout.split() == []


def test_the_module_runs_as_the_command():
    result = subprocess.run(
        [sys.executable, "-m", "tidelog.faces.cli", "--version"], capture_output=True, text=True
    )

    assert result.stdout == f"tidelog {package.__version__}\n"
