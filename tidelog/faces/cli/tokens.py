"""`tidelog tokens`: what programs show over HTTP to say for which user they ask."""

import datetime
from typing import Annotated

import typer

from tidelog.faces.cli.common import (
    DEFAULT_BOOTSTRAP,
    AsJson,
    Bootstrap,
    note,
    pages,
    perform,
    print_json,
    print_table,
)

app = typer.Typer(help="Make, list and revoke tokens for HTTP.", no_args_is_help=True)


@app.command("create")
def create(
    user: Annotated[str, typer.Argument(help="For whom whoever shows the token asks.")],
    days: Annotated[int, typer.Option(help="How long it holds.", min=1, max=3650)] = 90,
    for_: Annotated[str, typer.Option("--note", help="What it is for.")] = "",
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Make a token and print it, once: the cluster stores a digest of it.

    \b
    Examples:
      tidelog tokens create alice --note dashboard > token
      curl -H "Authorization: Bearer $(cat token)" https://localhost:8080/v1/topics
    """
    found = perform(bootstrap, "tokens.create", user=user, days=days, note=for_)
    if as_json:
        print_json(found)
        return
    note(f"token {found['id']} of {user}, until {_day(found['expires_ms'])}; it is not shown again")
    print(found["token"])


@app.command("list")
def list_tokens(bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, as_json: AsJson = False) -> None:
    """List the tokens: whose they are and until when, never the tokens themselves.

    \b
    Examples:
      tidelog tokens list
    """
    found = pages(bootstrap, "tokens.list", "tokens")["tokens"]
    if as_json:
        print_json(found)
        return
    rows = [(one["id"], one["user"], _day(one["expires_ms"]), one["note"]) for one in found]
    print_table(["id", "user", "until", "note"], rows)


@app.command("revoke")
def revoke(
    token_id: Annotated[str, typer.Argument(metavar="ID", help="The token's id, as `list` shows it.")],
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Revoke a token: requests that show it are refused from now on.

    \b
    Examples:
      tidelog tokens revoke 0123456789abcdef
    """
    found = perform(bootstrap, "tokens.revoke", id=token_id)
    if as_json:
        print_json(found)
    else:
        print(f"revoked {token_id}")


def _day(at_ms: int | None) -> str:
    if at_ms is None:
        return "revoked by hand"
    return datetime.datetime.fromtimestamp(at_ms / 1000, datetime.UTC).strftime("%Y-%m-%d")
