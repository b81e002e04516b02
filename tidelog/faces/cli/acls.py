"""`tidelog acls`: who is allowed and denied what."""

from typing import Annotated, Any

import typer

from tidelog.faces.cli.common import (
    DEFAULT_BOOTSTRAP,
    AsJson,
    Bootstrap,
    UserError,
    pages,
    perform,
    print_json,
    print_table,
)

app = typer.Typer(help="Show and change who is allowed and denied what.", no_args_is_help=True)

Who = Annotated[str, typer.Argument(metavar="PRINCIPAL", help="As User:alice; User:* is everybody.")]
SomeWho = Annotated[str | None, typer.Option("--principal", help="Of this principal, as User:alice.")]
Does = Annotated[str, typer.Argument(metavar="OPERATION", help="Read, Write, Describe, ...; All is every.")]
SomeDoes = Annotated[str | None, typer.Option("--operation", help="For this operation.")]
Topic = Annotated[str | None, typer.Option("--topic", help="Topic; * is all. A queue is queue:NAME.")]
Group = Annotated[str | None, typer.Option("--group", help="Consumer group; * is all.")]
TransactionalId = Annotated[
    str | None, typer.Option("--transactional-id", help="Transactional id; * is all.")
]
Cluster = Annotated[bool, typer.Option("--cluster", help="The cluster itself.")]
Prefixed = Annotated[bool, typer.Option("--prefixed", help="All resources whose names begin so.")]
Deny = Annotated[bool, typer.Option("--deny", help="A denial, which counts before every permission.")]
Host = Annotated[str | None, typer.Option("--host", help="Only from this address.")]


@app.command("list")
def list_acls(
    principal: SomeWho = None,
    operation: SomeDoes = None,
    topic: Topic = None,
    group: Group = None,
    transactional_id: TransactionalId = None,
    cluster: Cluster = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """List permissions and denials: all, or those that concern a principal or cover a resource.

    \b
    Examples:
      tidelog acls list
      tidelog acls list --topic orders
    """
    named = _resource(topic, group, transactional_id, cluster=cluster)
    asked = {"principal": principal, "operation": operation and _word(operation), "covering": True, **named}
    found = pages(bootstrap, "acls.list", "acls", **_said(asked))
    _print(found["acls"], as_json=as_json)


@app.command("add")
def add(
    principal: Who,
    operations: Annotated[
        list[str], typer.Argument(metavar="OPERATION...", help="Read, Write, Describe, ...; All is every.")
    ],
    topic: Topic = None,
    group: Group = None,
    transactional_id: TransactionalId = None,
    cluster: Cluster = False,
    prefixed: Prefixed = False,
    deny: Deny = False,
    host: Host = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Allow operations on one resource, or deny them.

    \b
    Examples:
      tidelog acls add User:alice Read Describe --topic orders
      tidelog acls add User:alice Read --group billing- --prefixed
      tidelog acls add User:bob Write --topic orders --deny
    """
    named = _one_resource(topic, group, transactional_id, cluster=cluster)
    acls = [
        {
            "principal": principal,
            "operation": _word(operation),
            "pattern": "Prefixed" if prefixed else "Literal",
            "effect": "Deny" if deny else "Allow",
            **_said({"host": host}),
            **named,
        }
        for operation in operations
    ]
    found = perform(bootstrap, "acls.add", acls=acls)
    if as_json:
        print_json(found)
    else:
        there = len(acls) - found["added"]
        print(f"added {found['added']}" + (f"; {there} were there already" if there else ""))


@app.command("remove")
def remove(
    principal: SomeWho = None,
    operation: SomeDoes = None,
    topic: Topic = None,
    group: Group = None,
    transactional_id: TransactionalId = None,
    cluster: Cluster = False,
    prefixed: Prefixed = False,
    allow: Annotated[bool, typer.Option("--allow", help="Only permissions.")] = False,
    deny: Annotated[bool, typer.Option("--deny", help="Only denials.")] = False,
    host: Host = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be removed.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Remove permissions and denials: all that say what the options say.

    Removing a permission leaves every denial, and the other way round, unless
    the options say neither.

    \b
    Examples:
      tidelog acls remove --principal User:alice --topic orders --allow
      tidelog acls remove --principal User:bob --dry-run
    """
    if allow and deny:
        raise UserError("say --allow or --deny, or neither for both")
    asked = {
        "principal": principal,
        "operation": operation and _word(operation),
        "effect": "Allow" if allow else "Deny" if deny else None,
        "pattern": "Prefixed" if prefixed else None,
        "host": host,
        **_resource(topic, group, transactional_id, cluster=cluster),
    }
    found = perform(bootstrap, "acls.remove", dry_run=dry_run, **_said(asked))
    if as_json:
        print_json(found)
        return
    _print(found["acls"], as_json=False)
    print(f"{'would remove' if dry_run else 'removed'} {found['removed']}")


@app.command("explain")
def explain(
    principal: Who,
    operation: Does,
    topic: Topic = None,
    group: Group = None,
    transactional_id: TransactionalId = None,
    cluster: Cluster = False,
    host: Host = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Tell whether a principal may do something, and which permissions or denials decide it.

    \b
    Examples:
      tidelog acls explain User:alice Write --topic orders
    """
    named = _one_resource(topic, group, transactional_id, cluster=cluster)
    asked = {"principal": principal, "operation": _word(operation), **_said({"host": host}), **named}
    found = perform(bootstrap, "acls.explain", **asked)
    if as_json:
        print_json(found)
        return
    print(f"{'allowed' if found['allowed'] else 'denied'}: {found['reason']}")
    if found["acls"]:
        _print(found["acls"], as_json=False)


def _word(operation: str) -> str:
    """The operation as Kafka writes it: `read` is Read, `describe-configs` DescribeConfigs."""
    words = operation.replace("_", "-").split("-")
    return "".join(word[:1].upper() + word[1:] for word in words)


def _said(asked: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in asked.items() if value is not None}


def _resource(
    topic: str | None, group: str | None, transactional_id: str | None, *, cluster: bool
) -> dict[str, str]:
    """The resource that is meant; nothing for any."""
    named = _said({"Topic": topic, "Group": group, "TransactionalId": transactional_id})
    if len(named) + cluster > 1:
        raise UserError("say one of --topic, --group, --transactional-id and --cluster")
    if cluster:
        return {"kind": "Cluster"}
    return next(({"kind": kind, "name": name} for kind, name in named.items()), {})


def _one_resource(
    topic: str | None, group: str | None, transactional_id: str | None, *, cluster: bool
) -> dict[str, str]:
    found = _resource(topic, group, transactional_id, cluster=cluster)
    if not found:
        raise UserError("say of what: --topic, --group, --transactional-id or --cluster")
    return found


def _print(acls: list[dict[str, Any]], *, as_json: bool) -> None:
    if as_json:
        print_json(acls)
        return
    rows = [
        (
            one["principal"],
            one["effect"].lower(),
            one["operation"],
            one["kind"],
            one["name"] + ("..." if one["pattern"] == "Prefixed" else ""),
            one["host"],
        )
        for one in acls
    ]
    print_table(["principal", "effect", "operation", "kind", "name", "host"], rows)
