"""The page of all commands, made of the commands themselves: `python -m tests.support.commands`."""

import inspect
from typing import Any

import typer
from typer.core import TyperGroup

from tidelog.faces.cli import app

INTRODUCTION = """# Commands

`python -m tests.support.commands > docs/commands.md` writes this page from the commands' own `--help`,
which also has examples and every option.

Commands that need a node connect to `--bootstrap HOST:PORT`, else `TIDELOG_BOOTSTRAP`, else 127.0.0.1:9092;
`kv`, `queue`, `stream`, `pubsub` and `replica` connect to `--http`, else `TIDELOG_HTTP_BOOTSTRAP`. With
`--json` a command prints one document for programs. Exit codes: 0 done, 1 failed, 2 wrong command line
or setting, 130 after Ctrl-C.
"""


def page() -> str:
    root = typer.main.get_command(app)
    assert isinstance(root, TyperGroup)
    single = [item for item in root.commands.items() if not isinstance(item[1], TyperGroup)]
    groups = [item for item in root.commands.items() if isinstance(item[1], TyperGroup)]
    sections = [INTRODUCTION, table(single, "tidelog")]
    for name, group in groups:
        assert isinstance(group, TyperGroup)
        sections += [f"## {name}\n\n{summary(group)}\n", table(leaves(group), f"tidelog {name}")]
    return "\n".join(sections)


def leaves(group: TyperGroup, prefix: str = "") -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for name, command in group.commands.items():
        if isinstance(command, TyperGroup):
            found += leaves(command, f"{prefix}{name} ")
        else:
            found.append((f"{prefix}{name}", command))
    return found


def table(commands: list[tuple[str, Any]], prefix: str) -> str:
    rows = [f"| `{prefix} {usage(name, command)}` | {summary(command)} |" for name, command in commands]
    return "\n".join(["| command | does |", "|---|---|", *rows, ""])


def usage(name: str, command: Any) -> str:
    arguments = [
        parameter.make_metavar(typer.Context(command))
        for parameter in command.params
        if parameter.param_type_name == "argument"
    ]
    return " ".join([name, *arguments]).replace("|", "\\|")


def summary(command: Any) -> str:
    """The first paragraph of the help, without its examples."""
    paragraphs = inspect.cleandoc(command.help or "").split("\n\n")
    return " ".join(paragraphs[0].split()).replace("|", "\\|")


if __name__ == "__main__":
    print(page(), end="")
