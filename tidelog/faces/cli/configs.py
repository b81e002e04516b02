"""`tidelog configs`: describe, set, unset; and what `topics alter` shares with them."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from tidelog.faces.cli.common import (
    DEFAULT_BOOTSTRAP,
    AsJson,
    Bootstrap,
    UserError,
    key_values,
    note,
    print_json,
    print_table,
    run,
)

if TYPE_CHECKING:
    from tidelog.client.admin import ConfigInfo, Resource
    from tidelog.client.settings import Change

UNSET: Final = "-"

app = typer.Typer(help="Show and change settings while the cluster runs.", no_args_is_help=True)

TopicOption = Annotated[str | None, typer.Option("--topic", metavar="T", help="Of this topic.")]
BrokerOption = Annotated[
    int | None, typer.Option("--broker", metavar="N", min=0, help="Of this broker.")
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Check and show the change; do not make it.")
]


@app.command("describe")
def describe(
    topic: TopicOption = None,
    broker: BrokerOption = None,
    all_: Annotated[
        bool, typer.Option("--all", help="Those at their default, too, and what each means.")
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

    async def work() -> "list[ConfigInfo]":
        from tidelog.client.admin import AdminClient

        async with AdminClient(bootstrap) as client:
            return await client.describe_configs(_resource_type(kind), name)

    configs = [config for config in run(work()) if all_ or not config.is_default]
    if as_json:
        print_json({kind: name, "configs": [_document(config) for config in configs]})
    elif not configs:
        note("everything is at its default; --all shows it")
    elif all_:
        print_table(
            ["setting", "value", "source", "meaning"],
            [
                (config.name, _shown(config), _source(config), _meaning(config))
                for config in configs
            ],
        )
    else:
        print_table(
            ["setting", "value", "source"],
            [(config.name, _shown(config), _source(config)) for config in configs],
        )


@app.command("set")
def set_(
    settings: Annotated[
        list[str], typer.Argument(metavar="KEY=VALUE...", help="What to set, all or nothing.")
    ],
    topic: TopicOption = None,
    broker: BrokerOption = None,
    dry_run: DryRun = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Change settings of a topic or a broker; they take effect at once and stay.

    \b
    Examples:
      tidelog configs set --topic orders retention.ms=86400000 --dry-run
      tidelog configs set --broker 1 log.retention.bytes=1073741824
    """
    kind, name = _resource(topic, broker)
    _alter(kind, name, key_values(settings, "set"), dry_run, bootstrap, as_json)


@app.command("unset")
def unset(
    keys: Annotated[list[str], typer.Argument(metavar="KEY...", help="What to give back.")],
    topic: TopicOption = None,
    broker: BrokerOption = None,
    dry_run: DryRun = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Give settings of a topic or a broker back to what they would be by themselves.

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
    async def work() -> "list[Change]":
        from tidelog.client.admin import AdminClient
        from tidelog.client.settings import config_changes, plan_changes

        async with AdminClient(bootstrap) as client:
            resource = _resource_type(kind)
            changes = await plan_changes(client, resource, name, wanted)
            if not dry_run:
                await client.alter_configs(resource, name, config_changes(wanted))
            return changes

    changes = run(work())
    show_changes({kind: name}, changes, dry_run=dry_run, as_json=as_json)


def show_changes(
    what: dict[str, Any], changes: "Sequence[Change]", *, dry_run: bool, as_json: bool
) -> None:
    """Before -> after, as the result; what could be lost, beside it."""
    warnings = [warning for change in changes for warning in change.warnings()]
    if as_json:
        print_json(
            {
                **what,
                "changes": [
                    {"name": change.name, "before": change.before, "after": change.after}
                    for change in changes
                ],
                "warnings": warnings,
                "dry_run": dry_run,
            }
        )
        return
    print_table(
        ["setting", "before", "", "after"],
        [
            (
                change.name,
                UNSET if change.before is None else change.before,
                "=" if change.is_none else "->",
                UNSET if change.after is None else change.after,
            )
            for change in changes
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


def _resource_type(kind: str) -> "Resource":
    from tidelog.client.admin import Resource

    return Resource[kind.upper()]


def _shown(config: "ConfigInfo") -> str:
    from tidelog.client.settings import HIDDEN

    if config.sensitive:
        return HIDDEN
    return UNSET if config.value is None else config.value


def _source(config: "ConfigInfo") -> str:
    from tidelog.client.settings import source_name

    return source_name(config)


def _meaning(config: "ConfigInfo") -> str:
    return (config.doc or "") + (" Needs a restart." if config.read_only else "")


def _document(config: "ConfigInfo") -> dict[str, Any]:
    return {
        "name": config.name,
        "value": config.value,
        "source": _source(config),
        "default": config.is_default,
        "read_only": config.read_only,
        "doc": config.doc,
    }
