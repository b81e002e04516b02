"""`tidelog configs`: describe, set, unset; and what `topics alter` shares with them."""

from collections.abc import Sequence
from typing import Annotated, Any, Final

import typer

from tidelog.faces.cli.common import (
    DEFAULT_BOOTSTRAP,
    AsJson,
    Bootstrap,
    UserError,
    key_values,
    note,
    perform,
    print_json,
    print_table,
)
from tidelog.faces.cli.completing import topic_names

UNSET: Final = "-"
ALL_AT_ONCE: Final = 1000
"""More settings than there are."""

app = typer.Typer(help="Show and change settings while the cluster runs.", no_args_is_help=True)

TopicOption = Annotated[
    str | None,
    typer.Option("--topic", metavar="T", help="Topic of the settings.", autocompletion=topic_names),
]
BrokerOption = Annotated[
    int | None, typer.Option("--broker", metavar="N", min=0, help="Broker of the settings.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Check and show the change without making it.")]


@app.command("describe")
def describe(
    topic: TopicOption = None,
    broker: BrokerOption = None,
    all_: Annotated[
        bool, typer.Option("--all", help="Also show settings at their default, and what each means.")
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Show the settings of a topic or a broker that are not at their default.

    \b
    Examples:
      tidelog configs describe --topic orders
      tidelog configs describe --broker 1 --all
    """
    kind, name = _resource(topic, broker)
    asked = {kind: name, "changed": not all_, "limit": ALL_AT_ONCE}
    configs = perform(bootstrap, f"configs.describe_{kind}", **asked)["configs"]
    if as_json:
        print_json({kind: name, "configs": configs})
    elif not configs:
        note("everything is at its default; --all shows it")
    elif all_:
        print_table(
            ["setting", "value", "source", "meaning"],
            [(one["name"], _cell(one["value"]), one["source"], _meaning(one)) for one in configs],
        )
    else:
        print_table(
            ["setting", "value", "source"],
            [(one["name"], _cell(one["value"]), one["source"]) for one in configs],
        )


@app.command("set")
def set_(
    settings: Annotated[
        list[str], typer.Argument(metavar="KEY=VALUE...", help="Settings; all are changed or none.")
    ],
    topic: TopicOption = None,
    broker: BrokerOption = None,
    dry_run: DryRun = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Change settings of a topic or a broker, at once and durably.

    \b
    Examples:
      tidelog configs set --topic orders retention.ms=86400000 --dry-run
      tidelog configs set --broker 1 log.retention.bytes=1073741824
    """
    kind, name = _resource(topic, broker)
    _alter(kind, name, key_values(settings, "set"), dry_run, bootstrap, as_json)


@app.command("unset")
def unset(
    keys: Annotated[list[str], typer.Argument(metavar="KEY...", help="Settings to reset.")],
    topic: TopicOption = None,
    broker: BrokerOption = None,
    dry_run: DryRun = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Reset settings of a topic or a broker to their defaults.

    \b
    Examples:
      tidelog configs unset --topic orders retention.ms --dry-run
      tidelog configs unset --broker 1 log.retention.bytes
    """
    kind, name = _resource(topic, broker)
    _alter(kind, name, [(key, None) for key in keys], dry_run, bootstrap, as_json)


def _alter(
    kind: str,
    name: str,
    wanted: Sequence[tuple[str, str | None]],
    dry_run: bool,
    bootstrap: str,
    as_json: bool,
) -> None:
    found = perform(
        bootstrap, f"configs.change_{kind}", **{kind: name}, settings=settings_of(wanted), dry_run=dry_run
    )
    show_changes({kind: name}, found["changes"], found["warnings"], dry_run=dry_run, as_json=as_json)


def settings_of(wanted: Sequence[tuple[str, str | None]]) -> dict[str, str | None]:
    """What shall become of each setting."""
    found = dict(wanted)
    if len(found) < len(wanted):
        twice = next(key for key in found if sum(key == other for other, _ in wanted) > 1)
        raise UserError(f"{twice} is changed twice")
    return found


def show_changes(
    what: dict[str, Any],
    changes: Sequence[dict[str, Any]],
    warnings: Sequence[str],
    *,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Before -> after, as the result; what could be lost, beside it."""
    if as_json:
        print_json({**what, "changes": changes, "warnings": warnings, "dry_run": dry_run})
        return
    print_table(
        ["setting", "before", "", "after"],
        [
            (
                one["name"],
                _cell(one["before"]),
                "=" if one["before"] == one["after"] else "->",
                _cell(one["after"]),
            )
            for one in changes
        ],
    )
    for warning in warnings:
        note(f"warning: {warning}")
    if dry_run:
        note("a dry run: nothing was changed; leave --dry-run out to change it")


def _resource(topic: str | None, broker: int | None) -> tuple[str, str]:
    if (topic is None) == (broker is None):
        raise UserError("say whose settings: either --topic T or --broker N")
    return ("broker", str(broker)) if topic is None else ("topic", topic)


def _cell(value: str | None) -> str:
    return UNSET if value is None else value


def _meaning(config: dict[str, Any]) -> str:
    return (config["doc"] or "") + (" Needs a restart." if config["read_only"] else "")
