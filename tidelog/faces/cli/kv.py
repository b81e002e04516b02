"""`tidelog kv`: buckets of keys, over the HTTP face.

Rule: a value is JSON if it reads as JSON, and text otherwise; a text is printed as it is.
"""

import json
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from tidelog.faces.cli.archive import duration_seconds
from tidelog.faces.cli.common import (
    AsJson,
    UserError,
    key_values,
    note,
    plain,
    print_json,
    print_table,
)

if TYPE_CHECKING:
    from tidelog.client import Change, Client, Entry

DEFAULT_HTTP: Final = "127.0.0.1:8080"
RETRIES: Final = 2
BACKOFF_SECONDS: Final = 0.1
"""A person waits: somebody who answers is found fast, and that nobody does is said fast."""
CELL_MAX: Final = 100
"""Characters of a value in a table."""

app = typer.Typer(
    help="Keys and values: put, get, watch; in buckets, which are compacted topics.",
    no_args_is_help=True,
)

Http = Annotated[
    str,
    typer.Option(
        "--http",
        envvar="TIDELOG_HTTP",
        metavar="HOST:PORT",
        help="Where a node serves HTTP (http= of its ready line); several between commas.",
    ),
]


def _not_empty(text: str) -> str:
    if not text:
        raise typer.BadParameter("it has at least one character")
    return text


Bucket = Annotated[str, typer.Argument(metavar="BUCKET", callback=_not_empty, help="The bucket.")]
Key = Annotated[str, typer.Argument(metavar="KEY", callback=_not_empty, help="The key; any text.")]
Prefix = Annotated[
    str, typer.Option("--prefix", metavar="TEXT", help="Only keys that begin with it.")
]
Local = Annotated[
    bool,
    typer.Option("--local", help="What the node's own replica has: fast, and maybe a moment old."),
]
MinReplicasAck = Annotated[
    int | None,
    typer.Option(
        "--min-replicas-ack", metavar="N", min=0,
        help="How many replicas beside the leader must hold it; what the topic demands.",
    ),
]  # fmt: skip


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
        int | None,
        typer.Option("--partitions", metavar="P", min=1, help="Over how many keys are spread; 1."),
    ] = None,
    replication: Annotated[
        int | None,
        typer.Option("--replication", metavar="R", min=1, help="Copies; the cluster's default."),
    ] = None,
    config: Annotated[
        list[str] | None,
        typer.Option("--config", metavar="KEY=VALUE", help="A topic's setting; repeatable."),
    ] = None,
    http: Http = DEFAULT_HTTP,
    as_json: AsJson = False,
) -> None:
    """Make a bucket; one that is there stays as it is.

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
        print(f"{plain(bucket)} is there: {count} partition{'s' * (count != 1)}")


@app.command("put")
def put(
    bucket: Bucket,
    key: Key,
    value: Annotated[
        str,
        typer.Argument(metavar="VALUE", help="JSON, or else text; - reads it from standard input."),
    ],
    ttl: Annotated[
        str, typer.Option("--ttl", metavar="T", help="Forget it after: 10s, 30m, 24h, 7d.")
    ] = "",
    if_version: Annotated[
        int | None,
        typer.Option("--if-version", metavar="N", min=0, help="Only if that is its version."),
    ] = None,
    if_absent: Annotated[
        bool, typer.Option("--if-absent", help="Only if there is no such key.")
    ] = False,
    as_text: Annotated[
        bool, typer.Option("--text", help="The value is text, though it reads as JSON.")
    ] = False,
    min_replicas_ack: MinReplicasAck = None,
    http: Http = DEFAULT_HTTP,
    as_json: AsJson = False,
) -> None:
    """Set a key, for a time or for good.

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
        raise UserError("--if-version and --if-absent: keep one of them")
    seconds = duration_seconds(ttl, "--ttl")
    if ttl and not seconds:
        raise UserError(f"--ttl {ttl} is no time at all; give one such as 10s")
    content = _read_value(value, as_text=as_text)
    from tidelog.client import ABSENT

    with _client(http, bucket) as client:
        entry = client.kv(bucket).put(
            key, content, ttl=seconds or None,
            if_version=ABSENT if if_absent else if_version, min_replicas_ack=min_replicas_ack,
        )  # fmt: skip
    if as_json:
        print_json({"key": key, "value": content, "version": entry.version})
    else:
        print(f"{plain(key)} is at version {entry.version}")


@app.command("get")
def get(
    bucket: Bucket,
    key: Key,
    local: Local = False,
    http: Http = DEFAULT_HTTP,
    as_json: AsJson = False,
) -> None:
    """Print the value of a key: a text as it is, anything else as JSON.

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
        _print_value(entry.value)


@app.command("delete")
def delete(
    bucket: Bucket,
    key: Key,
    if_version: Annotated[
        int | None,
        typer.Option("--if-version", metavar="N", min=0, help="Only if that is its version."),
    ] = None,
    min_replicas_ack: MinReplicasAck = None,
    http: Http = DEFAULT_HTTP,
    as_json: AsJson = False,
) -> None:
    """Delete a key; one that is not there need not be.

    \b
    Examples:
      tidelog kv delete settings theme
      tidelog kv delete settings theme --if-version 41
    """
    with _client(http, bucket) as client:
        deleted = client.kv(bucket).delete(
            key, if_version=if_version, min_replicas_ack=min_replicas_ack
        )
    if as_json:
        print_json({"key": key, "deleted": deleted})
    else:
        print(f"{plain(key)} {'deleted' if deleted else 'was not there'}")


@app.command("list")
def list_keys(
    bucket: Bucket,
    prefix: Prefix = "",
    limit: Annotated[
        int | None, typer.Option("--limit", metavar="N", min=1, help="Stop after N keys.")
    ] = None,
    keys_only: Annotated[
        bool, typer.Option("--keys-only", help="One key per line, and nothing else.")
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
                prefix, limit=limit, values=not keys_only,
                consistency="local" if local else "strong",
            )
        )  # fmt: skip
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
            print(_text(entry.key))
    else:
        print_table(
            ["key", "version#", "value"],
            [(_text(one.key), one.version, _short(one.value)) for one in found],
        )


@app.command("watch")
def watch(
    bucket: Bucket,
    prefix: Prefix = "",
    start: Annotated[
        str,
        typer.Option(
            "--from", metavar="now|start|CURSOR",
            help="From what comes next, from all that is there, or after a change.",
        ),
    ] = "now",
    count_max: Annotated[
        int | None, typer.Option("--max", metavar="N", min=1, help="Stop after N changes.")
    ] = None,
    http: Http = DEFAULT_HTTP,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON document per change and line.")
    ] = False,
) -> None:  # fmt: skip
    """Print every change of a bucket as it happens: version, key, value.

    A node that goes away is no end: it goes on at another, where it was.
    Ctrl-C stops it.

    \b
    Examples:
      tidelog kv watch settings
      tidelog kv watch sessions --prefix ada- --json
      tidelog kv watch settings --from start --max 10
    """
    count = 0
    with (
        _client(http, bucket) as client,
        closing(client.kv(bucket).watch(prefix, from_=start)) as changes,
    ):
        for change in changes:
            _print_change(change, as_json=as_json)
            count += 1
            if count == count_max:
                return


@app.command("drop")
def drop(
    bucket: Bucket,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    http: Http = DEFAULT_HTTP,
    as_json: AsJson = False,
) -> None:
    """Delete a bucket and all of its keys.

    \b
    Examples:
      tidelog kv drop settings
      tidelog kv drop settings --yes
    """
    if not yes:
        if not sys.stdin.isatty():
            raise UserError(f"dropping {bucket!r} cannot be undone; add --yes if you mean it")
        if not typer.confirm(f"Delete {plain(bucket)} and all of its keys?", err=True):
            raise UserError("nothing was deleted")
    with _client(http, bucket) as client:
        if not client.kv(bucket).drop():
            raise UserError(f"there is no bucket {bucket!r}; `tidelog kv buckets` lists them")
    if as_json:
        print_json({"name": bucket, "deleted": True})
    else:
        print(f"{plain(bucket)} deleted")


@contextmanager
def _client(http: str, bucket: str | None = None) -> "Iterator[Client]":
    """A client; what a node says of the bucket, in terms of these commands."""
    from tidelog.client import BadAddress, Client, Conflict, NotFound, TidelogHTTPError

    try:
        with Client(http, retries=RETRIES, backoff=BACKOFF_SECONDS) as client:
            yield client
    except BadAddress:
        raise UserError(f"--http {http!r} is not HOST:PORT, for example {DEFAULT_HTTP}") from None
    except NotFound as error:
        if bucket is None:
            raise
        raise UserError(
            f"there is no bucket {bucket!r}; make it with `tidelog kv create {bucket}`"
        ) from error
    except Conflict as error:
        now = "it is not there" if error.version is None else f"it is at version {error.version}"
        raise UserError(f"{bucket}: not written, for {now}; get it and decide anew") from error
    except TidelogHTTPError as error:
        if not error.problem or error.status == 504:
            raise  # what is known of it is in its own words
        raise UserError(error.detail) from error


def _read_value(text: str, *, as_text: bool) -> Any:
    if text == "-":
        with open(0, "rb", closefd=False) as standard_input:
            data = standard_input.read()
        try:
            text = data.decode()
        except UnicodeDecodeError:
            raise UserError("standard input is no text in UTF-8; give it as base64") from None
    if as_text:
        return text
    try:
        return json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return text


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def _document(entry: "Entry") -> dict[str, Any]:
    document = {"key": _text(entry.key), **_value(entry.value), "version": entry.version}
    if entry.expires_at_ms is not None:
        document["expires_at_ms"] = entry.expires_at_ms
    return document


def _value(value: Any) -> dict[str, Any]:
    if isinstance(value, bytes):
        from base64 import b64encode

        return {"value": b64encode(value).decode(), "encoding": "base64"}
    return {"value": value}


def _text(key: str) -> str:
    """A key that can be printed; bytes that are no UTF-8 are shown as what they are."""
    return key.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _shown(value: Any) -> str:
    """A value as text: a str as it is, bytes as they read, anything else as JSON."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _short(value: Any) -> str:
    shown = _shown(value)
    return shown if len(shown) <= CELL_MAX else shown[: CELL_MAX - 1] + "…"


def _print_value(value: Any) -> None:
    if isinstance(value, bytes) and not sys.stdout.isatty():
        sys.stdout.buffer.write(value + b"\n")
        return
    shown = _shown(value)
    print("\n".join(map(plain, shown.split("\n"))) if sys.stdout.isatty() else shown)


def _print_change(change: "Change", *, as_json: bool) -> None:
    if as_json:
        document = {"key": _text(change.key), **_value(change.value), "version": change.version}
        print_json({**document, "deleted": change.is_deleted, "cursor": change.cursor})
    else:
        shown = "(deleted)" if change.is_deleted else _shown(change.value)
        print(f"{change.version}\t{plain(_text(change.key))}\t{plain(shown)}")
    sys.stdout.flush()
