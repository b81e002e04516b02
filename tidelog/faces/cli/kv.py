"""`tidelog kv`: buckets of keys, over the HTTP face."""

import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidelog.faces.cli.archive import duration_seconds
from tidelog.faces.cli.common import (
    AsJson,
    UsageError,
    UserError,
    key_values,
    note,
    plain,
    print_json,
    print_table,
)
from tidelog.faces.cli.over_http import (
    DEFAULT_HTTP,
    AsText,
    Http,
    Yes,
    confirm,
    key_text,
    not_empty,
    open_client,
    print_value,
    read_value,
    short,
    shown,
    value_fields,
)

if TYPE_CHECKING:
    from tidelog.client import Change, Client, Entry

app = typer.Typer(
    help="Key-value buckets: put, get and watch keys of compacted topics.", no_args_is_help=True
)

Bucket = Annotated[str, typer.Argument(metavar="BUCKET", callback=not_empty, help="Name of the bucket.")]
Key = Annotated[str, typer.Argument(metavar="KEY", callback=not_empty, help="Key; any text.")]
Prefix = Annotated[str, typer.Option("--prefix", metavar="TEXT", help="Only keys with this prefix.")]
Local = Annotated[
    bool, typer.Option("--local", help="Read the node's own replica: fast, and maybe a moment old.")
]
MinReplicasAck = Annotated[
    int | None,
    typer.Option(
        "--min-replicas-ack",
        metavar="N",
        min=0,
        help="Replicas beside the leader that must have the write (default: as the topic demands).",
    ),
]


@app.command("buckets")
def buckets(http: Http = DEFAULT_HTTP, as_json: AsJson = False) -> None:
    """List the buckets: every topic that is compacted.

    \b
    Examples:
      tidelog kv buckets
      tidelog kv buckets --http 10.0.0.5:8080 --json
    """
    with _client(http) as client:
        found = client.buckets()
    if as_json:
        print_json({"buckets": found})
    elif not found:
        note("there are no buckets yet; make one with `tidelog kv create NAME`")
    else:
        print_table(["bucket", "partitions#"], [(one["name"], one["partitions"]) for one in found])


@app.command("create")
def create(
    bucket: Bucket,
    partitions: Annotated[
        int | None, typer.Option("--partitions", metavar="P", min=1, help="Number of partitions (default 1).")
    ] = None,
    replication: Annotated[
        int | None,
        typer.Option(
            "--replication", metavar="R", min=1, help="Replicas of each partition (default: the cluster's)."
        ),
    ] = None,
    config: Annotated[
        list[str] | None,
        typer.Option("--config", metavar="KEY=VALUE", help="Topic setting as KEY=VALUE; repeatable."),
    ] = None,
    http: Http = DEFAULT_HTTP,
    as_json: AsJson = False,
) -> None:
    """Create a bucket; an existing one stays as it is.

    \b
    Examples:
      tidelog kv create settings
      tidelog kv create sessions --partitions 6 --replication 3
    """
    configs = dict(key_values(config or [], "--config"))
    with _client(http, bucket) as client:
        found = client.kv(bucket).create(
            partitions=partitions, replication=replication, config=configs or None
        )
    if as_json:
        print_json(found)
    else:
        count = found["partitions"]
        print(f"bucket {plain(bucket)} is ready: {count} partition{'s' * (count != 1)}")


@app.command("put")
def put(
    bucket: Bucket,
    key: Key,
    value: Annotated[
        str,
        typer.Argument(metavar="VALUE", help="Value: JSON, otherwise text; - reads it from standard input."),
    ],
    ttl: Annotated[str, typer.Option("--ttl", metavar="T", help="Time to live: 10s, 30m, 24h, 7d.")] = "",
    if_version: Annotated[
        int | None, typer.Option("--if-version", metavar="N", min=0, help="Only if the key has this version.")
    ] = None,
    if_absent: Annotated[bool, typer.Option("--if-absent", help="Only if the key does not exist.")] = False,
    as_text: AsText = False,
    min_replicas_ack: MinReplicasAck = None,
    http: Http = DEFAULT_HTTP,
    as_json: AsJson = False,
) -> None:
    """Set the value of a key, with a time to live if you like.

    \b
    Examples:
      tidelog kv put settings theme '{"dark": true}'
      tidelog kv put sessions ada-7 open --ttl 30m
      tidelog kv put settings theme light --if-version 41
      tidelog kv put locks nightly "$HOSTNAME" --if-absent --ttl 60s
      tidelog kv put settings page - < page.html
      tidelog kv put settings offset -- -5
    """
    if if_absent and if_version is not None:
        raise UsageError("--if-version and --if-absent: keep one of them")
    seconds = duration_seconds(ttl, "--ttl")
    if ttl and not seconds:
        raise UserError(f"--ttl {ttl} is no time at all; give one such as 10s")
    content = read_value(value, as_text=as_text)
    from tidelog.client import ABSENT

    with _client(http, bucket, key) as client:
        entry = client.kv(bucket).put(
            key,
            content,
            ttl=seconds or None,
            if_version=ABSENT if if_absent else if_version,
            min_replicas_ack=min_replicas_ack,
        )
    if as_json:
        print_json({"key": key, "value": content, "version": entry.version})
    else:
        print(f"{plain(key)} written, version {entry.version}")


@app.command("get")
def get(
    bucket: Bucket, key: Key, local: Local = False, http: Http = DEFAULT_HTTP, as_json: AsJson = False
) -> None:
    """Print the value of a key: text as it is, anything else as JSON.

    \b
    Examples:
      tidelog kv get settings theme
      tidelog kv get settings theme --json     # with its version
      tidelog kv get settings theme --local
    """
    with _client(http, bucket) as client:
        entry = client.kv(bucket).get(key, consistency="local" if local else "strong")
    if entry is None:
        raise UserError(f"{bucket!r} has no key {key!r}; `tidelog kv list {bucket}` shows them")
    if as_json:
        print_json(_document(entry))
    else:
        print_value(entry.value)


@app.command("delete")
def delete(
    bucket: Bucket,
    key: Key,
    if_version: Annotated[
        int | None, typer.Option("--if-version", metavar="N", min=0, help="Only if the key has this version.")
    ] = None,
    min_replicas_ack: MinReplicasAck = None,
    http: Http = DEFAULT_HTTP,
    as_json: AsJson = False,
) -> None:
    """Delete a key; a missing key is no error.

    \b
    Examples:
      tidelog kv delete settings theme
      tidelog kv delete settings theme --if-version 41
    """
    with _client(http, bucket, key) as client:
        deleted = client.kv(bucket).delete(key, if_version=if_version, min_replicas_ack=min_replicas_ack)
    if as_json:
        print_json({"key": key, "deleted": deleted})
    else:
        print(f"{plain(key)} {'deleted' if deleted else 'does not exist'}")


@app.command("list")
def list_keys(
    bucket: Bucket,
    prefix: Prefix = "",
    limit: Annotated[
        int | None, typer.Option("--limit", metavar="N", min=1, help="List at most N keys.")
    ] = None,
    keys_only: Annotated[
        bool, typer.Option("--keys-only", help="Print only the keys, one per line.")
    ] = False,
    local: Local = False,
    http: Http = DEFAULT_HTTP,
    as_json: AsJson = False,
) -> None:
    """List the keys of a bucket, in order, with their values.

    \b
    Examples:
      tidelog kv list settings
      tidelog kv list sessions --prefix ada- --keys-only
      tidelog kv list settings --json
    """
    with _client(http, bucket) as client:
        found = list(
            client.kv(bucket).scan(
                prefix, limit=limit, values=not keys_only, consistency="local" if local else "strong"
            )
        )
    if as_json:
        documents = [_document(entry) for entry in found]
        if keys_only:
            documents = [{"key": one["key"], "version": one["version"]} for one in documents]
        print_json({"entries": documents})
    elif not found:
        begins = f" that begin with {prefix!r}" if prefix else ""
        note(f"{bucket} has no keys{begins}")
    elif keys_only:
        for entry in found:
            print(key_text(entry.key))
    else:
        print_table(
            ["key", "version#", "value"],
            [(key_text(one.key), one.version, short(one.value)) for one in found],
        )


@app.command("watch")
def watch(
    bucket: Bucket,
    prefix: Prefix = "",
    start: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="now|start|CURSOR",
            help="Start with the next change, with all present keys, or after a cursor.",
        ),
    ] = "now",
    count_max: Annotated[
        int | None, typer.Option("--max", metavar="N", min=1, help="Stop after N changes.")
    ] = None,
    http: Http = DEFAULT_HTTP,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document per change and line.")] = False,
) -> None:
    """Print each change of a bucket as it happens: version, key, value.

    If its node is lost, the watch continues at another one without a gap.
    Ctrl-C stops it.

    \b
    Examples:
      tidelog kv watch settings
      tidelog kv watch sessions --prefix ada- --json
      tidelog kv watch settings --from start --max 10
    """
    count = 0
    with _client(http, bucket) as client, closing(client.kv(bucket).watch(prefix, from_=start)) as changes:
        for change in changes:
            if change.begins_anew:
                note("changes were missed, deletions maybe: all keys that are there follow")
                continue
            _print_change(change, as_json=as_json)
            count += 1
            if count == count_max:
                return


@app.command("drop")
def drop(bucket: Bucket, yes: Yes = False, http: Http = DEFAULT_HTTP, as_json: AsJson = False) -> None:
    """Delete a bucket and all of its keys.

    \b
    Examples:
      tidelog kv drop settings
      tidelog kv drop settings --yes
    """
    confirm(
        f"Delete {plain(bucket)} and all of its keys?",
        yes=yes,
        refusal=f"dropping {bucket!r} cannot be undone",
    )
    with _client(http, bucket) as client:
        if not client.kv(bucket).drop():
            raise UserError(f"there is no bucket {bucket!r}; `tidelog kv buckets` lists them")
    if as_json:
        print_json({"name": bucket, "deleted": True})
    else:
        print(f"{plain(bucket)} deleted")


@contextmanager
def _client(http: str, bucket: str | None = None, key: str | None = None) -> "Iterator[Client]":
    """A client; what a node says of the bucket, in terms of these commands."""
    from tidelog.client import Conflict

    missing = f"there is no bucket {bucket!r}; make it with `tidelog kv create {bucket}`"
    with open_client(http, missing=None if bucket is None else missing) as client:
        try:
            yield client
        except Conflict as error:
            version = error.version
            now = "does not exist" if version is None else f"is at version {version}"
            raise UserError(f"not written: key {key!r} of {bucket!r} {now}; read it, decide again") from error


def _document(entry: "Entry") -> dict[str, Any]:
    document = {"key": key_text(entry.key), **value_fields(entry.value), "version": entry.version}
    if entry.expires_at_ms is not None:
        document["expires_at_ms"] = entry.expires_at_ms
    return document


def _print_change(change: "Change", *, as_json: bool) -> None:
    if as_json:
        document = {"key": key_text(change.key), **value_fields(change.value), "version": change.version}
        print_json({**document, "deleted": change.is_deleted, "cursor": change.cursor})
    else:
        value = "(deleted)" if change.is_deleted else shown(change.value)
        print(f"{change.version}\t{plain(key_text(change.key))}\t{plain(value)}")
    sys.stdout.flush()
