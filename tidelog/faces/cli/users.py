"""`tidelog users`: who may prove by a password who they are."""

import os
from typing import Annotated, Any, Final

import typer

from tidelog.faces.cli.common import (
    DEFAULT_BOOTSTRAP,
    AsJson,
    Bootstrap,
    UsageError,
    UserError,
    pages,
    perform,
    print_json,
    print_table,
)

STDIN: Final = 0

app = typer.Typer(help="Add, list and remove users that log in with a password.", no_args_is_help=True)

User = Annotated[str, typer.Argument(help="Name of the user.")]
PasswordFile = Annotated[
    str | None,
    typer.Option(
        "--password-file",
        metavar="FILE",
        help="File whose first line is the password; - for standard input. Without it the command asks.",
    ),
]
Mechanisms = Annotated[
    list[str] | None,
    typer.Option("--mechanism", help="SCRAM-SHA-256 or SCRAM-SHA-512; both by default. May be repeated."),
]


@app.command("list")
def list_users(bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, as_json: AsJson = False) -> None:
    """List the users, and by which mechanisms each can log in.

    \b
    Examples:
      tidelog users list
    """
    found = pages(bootstrap, "users.list", "users")
    if as_json:
        print_json(found["users"])
        return
    rows = [
        (one["user"], ", ".join(each["mechanism"] for each in one["passwords"])) for one in found["users"]
    ]
    print_table(["user", "mechanisms"], rows)


@app.command("add")
def add(
    user: User,
    password_file: PasswordFile = None,
    mechanism: Mechanisms = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Add a user. The cluster stores only what proves the password, never the password.

    \b
    Examples:
      tidelog users add alice
      tidelog users add loader --password-file /run/secrets/loader
    """
    _set(user, password_file, mechanism, bootstrap, new=True, as_json=as_json)


@app.command("password")
def password(
    user: User,
    password_file: PasswordFile = None,
    mechanism: Mechanisms = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Change a user's password. Connections that are open stay open.

    \b
    Examples:
      tidelog users password alice
    """
    _set(user, password_file, mechanism, bootstrap, new=False, as_json=as_json)


@app.command("remove")
def remove(user: User, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, as_json: AsJson = False) -> None:
    """Remove a user and its passwords. Connections that are open stay open.

    \b
    Examples:
      tidelog users remove alice
    """
    found = perform(bootstrap, "users.remove", user=user)
    if as_json:
        print_json(found)
    else:
        print(f"removed {user}")


def _set(
    user: str,
    password_file: str | None,
    mechanisms: list[str] | None,
    bootstrap: str,
    *,
    new: bool,
    as_json: bool,
) -> None:
    asked: dict[str, Any] = {"user": user, "password": read_password(password_file), "new": new}
    if mechanisms:
        asked["mechanisms"] = list(dict.fromkeys(one.upper() for one in mechanisms))
    found = perform(bootstrap, "users.set", **asked)
    if as_json:
        print_json(found)
    else:
        print(f"{'added' if new else 'changed'} {user}")


def read_password(path: str | None) -> str:
    """The password in a file, or as somebody types it; never from the command line, which all can read."""
    if path is None:
        if not os.isatty(STDIN):
            raise UsageError("give --password-file FILE; - reads the password from standard input")
        found: str = typer.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
        return found
    try:
        with open(STDIN if path == "-" else path, encoding="utf-8", closefd=path != "-") as file:
            line = file.readline()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read the password: {error}") from None
    line = line.rstrip("\r\n")
    if not line:
        raise UserError(f"there is no password in the first line of {path}")
    return line
