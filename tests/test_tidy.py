"""The rules of the house that a program can check.

Each rule has a test with a planted offence, so that no rule passes only because it sees nothing.
"""

import ast
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

from tidelog.faces.http.app import all_operations
from tidelog.simulation.situations import EVERY_KIND
from tidelog.simulation.stories import STORIES

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "tidelog"
CODE = ("tidelog", "pyspark_tidelog", "tests", "benchmarks", "fuzz", "examples")

# Rooms that run inside a node. The others are programs of their own, with doors of their own.
OWN_PROGRAMS = (
    "spark",
    "simulation",
    "testing",
    "client",
    "backup",
    "faces/cli",
    "faces/local",
    "faces/compatibility/proxy",
    "copies/embedded",
)

DOORS = {
    "open": "opens a file",
    "os": "asks the operating system",
    "shutil": "changes files",
    "tempfile": "makes files",
    "socket": "opens a socket",
    "sqlite3.connect": "opens a database",
    "time": "reads a clock",
    "datetime.datetime.now": "reads a clock",
    "datetime.datetime.today": "reads a clock",
    "datetime.date.today": "reads a clock",
    "random": "draws a random number",
    "secrets": "draws a random number",
    "uuid.uuid1": "draws a random number",
    "uuid.uuid4": "draws a random number",
    "threading.Thread": "starts a thread",
    "threading.Timer": "starts a thread",
    "concurrent.futures": "starts a thread",
    "asyncio.to_thread": "starts a thread",
    "asyncio.open_connection": "opens a socket",
    "asyncio.start_server": "opens a socket",
    "subprocess": "starts a process",
    "signal": "takes signals",
}
# Only modules with one of these words are parsed.
MAY_HAVE_DOORS = re.compile(
    r"\bopen\(|asyncio\.(to_thread|open_connection|start_server)|^\s*(?:import|from) (?!asyncio)(?:"
    + "|".join({re.escape(name.split(".")[0]) for name in DOORS} - {"open", "asyncio"})
    + r")\b",
    re.MULTILINE,
)
NO_DOORS = {"os.strerror", "os.fspath", "os.defpath", "random.Random"}

# What a node does past `host/`, and why the simulator can do without it.
EXCEPTIONS = {
    "faces/node.py": "the process itself: its signals, and how it ends after a failed sync",
    "faces/notify.py": "tells systemd, if there is one",
    "faces/tls.py": "whether the files of certificates have changed, which operators replace",
    "faces/http/pacing.py": "measures how long a turn of the loop took; decides nothing but when to yield",
    "faces/http/schemas.py": "the registry's password, from the environment",
    "schemas/registry.py": "asks an HTTP service outside of the cluster, in a thread",
    "schemas/protoc.py": "runs the compiler of Protobuf, in a thread",
    "schemas/avro.py": "the marker between blocks of an Avro file, which nobody compares",
}

MODULE_LINES_MAX = 500
# Modules that are longer, with their lengths: they may shrink, and leave the list, and no other joins it.
LONG_MODULES = {
    "tidelog/client/admin.py": 539,
    "tidelog/cluster/quorum.py": 766,
    "tidelog/controller/elections.py": 563,
    "tidelog/errors.py": 627,
    "tidelog/faces/http/kv.py": 561,
    "tidelog/groups/shard.py": 542,
    "tidelog/log/scrub.py": 508,
    "tidelog/partition/driver.py": 595,
    "tidelog/partition/leader.py": 549,
    "tidelog/queues/work_desk.py": 527,
    "tidelog/records.py": 630,
    "tidelog/replication/follower_sessions.py": 622,
    "tidelog/replication/leader_fetchers.py": 558,
    "tidelog/services/records.py": 560,
    "tidelog/simulation/disk.py": 707,
    "tidelog/simulation/history_check.py": 577,
    "tidelog/simulation/keyvalue.py": 707,
    "tidelog/simulation/registers.py": 563,
    "tidelog/simulation/replica_watch.py": 642,
    "tidelog/simulation/replicated.py": 696,
    "tidelog/spark/options.py": 514,
    "tidelog/txn/shard.py": 536,
}

PARAGRAPH_CHARACTERS_MIN = 160
PROMISES_OF_TIME = re.compile(
    r"\b(today|not yet|for now|will be (added|built|decided|checked))\b", re.IGNORECASE
)


def modules(*under: str) -> Iterator[Path]:
    for folder in under:
        yield from sorted((ROOT / folder).rglob("*.py"))


@cache
def text_of(path: Path) -> str:
    return path.read_text()


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(text_of(path))


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


# Doors.


def doors_of(tree: ast.Module) -> list[str]:
    """What a module calls, or takes by name, of the world outside, in dotted names."""
    names: dict[str, str] = {"open": "open"}
    nodes = list(ast.walk(tree))
    for node in nodes:
        if isinstance(node, ast.Import):
            for item in node.names:
                names[item.asname or item.name.split(".")[0]] = (
                    item.name if item.asname else item.name.split(".")[0]
                )
        elif isinstance(node, ast.ImportFrom) and node.module:
            for item in node.names:
                names[item.asname or item.name] = f"{node.module}.{item.name}"
    used = {dotted(node, names) for node in nodes if isinstance(node, ast.Attribute | ast.Name)} - {"open"}
    used |= {"open" for node in nodes if isinstance(node, ast.Call) and dotted(node.func, names) == "open"}
    return sorted(name for name in used if name and is_door(name))


def dotted(node: ast.expr, names: dict[str, str]) -> str | None:
    if isinstance(node, ast.Name):
        return names.get(node.id)
    if isinstance(node, ast.Attribute):
        left = dotted(node.value, names)
        return None if left is None else f"{left}.{node.attr}"
    return None


def is_door(name: str) -> bool:
    parts = name.split(".")
    prefixes = {".".join(parts[: end + 1]) for end in range(len(parts))}
    if not prefixes & DOORS.keys() or prefixes & NO_DOORS:
        return False
    # A module alone is its import. What counts is what is taken from it; constants are harmless.
    return name == "open" or (len(parts) > 1 and not parts[-1].isupper())


def test_a_planted_door_is_found():
    planted = """
import os, time as clock
import random
from sqlite3 import connect
from threading import Lock, Thread
def offend():
    open("x"); os.listdir("."); clock.monotonic(); random.random(); connect("x"); Thread()
def behave(seed):
    return Lock(), random.Random(seed), os.strerror(5)
"""

    assert doors_of(ast.parse(planted)) == [
        "open",
        "os.listdir",
        "random.random",
        "sqlite3.connect",
        "threading.Thread",
        "time.monotonic",
    ]


def test_every_door_of_a_node_is_in_host():
    found = {
        path.relative_to(PACKAGE).as_posix(): doors_of(parsed(path))
        for path in modules("tidelog")
        if MAY_HAVE_DOORS.search(text_of(path))
        and not path.relative_to(PACKAGE).as_posix().startswith(OWN_PROGRAMS)
    }
    inside = [name for name in found if name.startswith("host/")]
    assert len(found) > 20 and sum(len(found.pop(name)) for name in inside) > 20

    outside = {name: doors for name, doors in found.items() if doors}

    assert {name: doors for name, doors in outside.items() if name not in EXCEPTIONS} == {}
    assert EXCEPTIONS.keys() - outside.keys() == set(), "an exception that nobody needs any more"


# Rooms and modules.


def rooms() -> list[Path]:
    return [path for path in modules("tidelog") if path.name == "__init__.py" and path.parent != PACKAGE]


def index_of(text: str) -> set[str]:
    """The modules of its own that a room's docstring names."""
    return set(re.findall(r"(?<![\w/])\w+\.py\b", text))


def test_every_room_says_in_a_paragraph_what_it_is():
    short = {
        name_of(room): len(text)
        for room in rooms()
        if len(text := ast.get_docstring(parsed(room)) or "") < PARAGRAPH_CHARACTERS_MIN
    }

    assert len(rooms()) > 25
    assert short == {}


def test_the_index_of_a_room_lists_its_modules_and_no_others():
    indexes = {name_of(room): index_of(ast.get_docstring(parsed(room)) or "") for room in rooms()}
    del indexes["tidelog/faces/cli/__init__.py"]  # a module for each command, by its name
    there = {
        name: {path.name for path in (ROOT / name).parent.glob("*.py")} - {"__init__.py", "__main__.py"}
        for name in indexes
    }

    wrong = {
        name: {"missing": sorted(there[name] - index), "gone": sorted(index - there[name])}
        for name, index in indexes.items()
        if index != there[name]
    }

    assert index_of("a.py, b.py: as room/c.py and docs/d.md") == {"a.py", "b.py"}
    assert len(indexes) > 25
    assert wrong == {}


def test_modules_are_short():
    lengths = {
        name_of(path): len(text_of(path).splitlines()) for path in modules("tidelog", "pyspark_tidelog")
    }
    long = {name: lines for name, lines in lengths.items() if lines > MODULE_LINES_MAX}

    assert {name: lines for name, lines in long.items() if lines > LONG_MODULES.get(name, 0)} == {}, (
        "split it"
    )
    assert LONG_MODULES.keys() - long.keys() == set(), "short by now: take it off the list"


def test_the_formatter_is_obeyed_everywhere():
    escape = re.compile(r"#\s*fmt:\s*(skip|off)")

    assert escape.search("x = 1  # " + "fmt: skip")
    assert [name_of(path) for path in modules(*CODE) if escape.search(text_of(path))] == []


def docstrings(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield getattr(node, "name", "module"), ast.get_docstring(node) or ""


def test_docstrings_say_what_is_and_promise_nothing():
    assert PROMISES_OF_TIME.search("Today all is allowed; checks will be added later.")

    promising = [
        f"{name_of(path)}: {name}: {found[0]}"
        for path in modules("tidelog", "pyspark_tidelog")
        if PROMISES_OF_TIME.search(text_of(path))
        for name, text in docstrings(parsed(path))
        if (found := PROMISES_OF_TIME.search(text))
    ]

    assert promising == []


# Documents and code. Settings, Kafka's APIs and commands: tests/unit/test_docs.py.


def metrics_in_code() -> set[str]:
    """The names that pages of numbers are made with: the first argument of `family`, or of a tuple."""
    found: set[str] = set()
    for path in modules("tidelog/faces"):
        for node in ast.walk(parsed(path)) if '"gauge"' in text_of(path) else ():
            if isinstance(node, ast.Call):
                called = (
                    node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
                )
                parts = node.args if called == "family" else []
            else:
                parts = node.elts if isinstance(node, ast.Tuple) else []
            texts = [str(part.value) for part in parts[:2] if isinstance(part, ast.Constant)]
            if len(texts) == 2 and texts[1] in ("gauge", "counter"):
                found.add(f"tidelog_{texts[0]}")
    return found


def test_every_metric_is_documented_and_no_other():
    written = set(
        re.findall(r"^\| `(tidelog_\w+)`", (ROOT / "docs" / "metrics.md").read_text(), re.MULTILINE)
    )

    assert len(written) > 30
    assert metrics_in_code() == written


def test_every_story_and_kind_of_fault_of_the_simulator_is_documented():
    page = (ROOT / "docs" / "simulation.md").read_text()
    table = page.split("| story |", 1)[1].split("\n\n", 1)[0]
    stories = set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE))

    assert stories == set(STORIES)
    assert sorted(kind for kind in EVERY_KIND if not re.search(rf"\b{kind}\b", page)) == []


def plain(path: str) -> str:
    """A path without its query and without the names of its parameters."""
    return re.sub(r"\{[^}]*\}", "{}", path.split("?")[0]).rstrip("/") or "/"


def documented_paths(page: str) -> set[str]:
    words = {word for code in re.findall(r"`([^`\n]+)`", page) for word in code.split()}
    words |= set(re.findall(r"^## (?:[A-Z]+ )?(/\S+)$", page, re.MULTILINE))
    return {plain(word) for word in words if word.startswith("/")}


def is_served(path: str, served: Iterable[str]) -> bool:
    """Whether it is an operation, one with a parameter filled in, or the beginning of some."""
    return any(
        re.fullmatch(re.escape(known).replace(r"\{\}", "[^/]+"), path) or known.startswith(f"{path}/")
        for known in served
    )


def test_every_http_operation_is_documented_and_no_other():
    written = documented_paths((ROOT / "docs" / "http.md").read_text())
    served = {plain(operation.path) for operation in all_operations()}
    gone = {path for path in written if path.startswith(("/v1/", "/api/")) and not is_served(path, served)}

    assert len(served) > 60 and not is_served("/v1/planted", served)
    assert served - written == set()
    assert gone == set()
