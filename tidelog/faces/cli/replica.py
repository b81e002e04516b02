"""`tidelog replica`: a copy of a bucket or a queue in a file of this machine.

Rule: `run` keeps it; the other commands read what is there, whether or not it is kept right now.
"""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from tidelog.faces.cli.archive import duration_seconds
from tidelog.faces.cli.common import (
    AsJson,
    UsageError,
    UserError,
    note,
    number,
    plain,
    print_json,
    print_table,
)
from tidelog.faces.cli.over_http import (
    DEFAULT_HTTP,
    AsLines,
    Http,
    key_text,
    open_client,
    print_value,
    short,
    value_fields,
)

if TYPE_CHECKING:
    from tidelog.client import Client, ReplicaStatus
    from tidelog.copies.embedded.files import About, Layout
    from tidelog.copies.embedded.reads import BucketReads, QueueReads

LOOK_SECONDS: Final = 0.1
_COLUMNS: Final = ("partition", "applied_offset", "current_offset", "lag_entries", "bytes")

app = typer.Typer(
    help="Local copies of buckets and queues, in files, read in microseconds.", no_args_is_help=True
)

At = Annotated[
    Path, typer.Option("--path", metavar="PATH", help="Location of the copy: a file NAME.db, or a directory.")
]


@app.command("run")
def run(
    path: At,
    bucket: Annotated[str | None, typer.Option("--bucket", metavar="BUCKET", help="Bucket to copy.")] = None,
    queue: Annotated[
        str | None, typer.Option("--queue", metavar="QUEUE", help="Work queue to copy, instead of a bucket.")
    ] = None,
    replica_id: Annotated[
        str | None,
        typer.Option(
            "--id", metavar="NAME", help="Id of the copy at the nodes (default: a random one, which is kept)."
        ),
    ] = None,
    once: Annotated[
        str,
        typer.Option(
            "--once", metavar="T", help="Stop once the copy is in sync; fail after this time: 30s, 5m."
        ),
    ] = "",
    every: Annotated[
        str, typer.Option("--every", metavar="T", help="Least time between two lines: 1s.")
    ] = "1s",
    http: Http = DEFAULT_HTTP,
    as_json: AsLines = False,
) -> None:
    """Keep a copy of a bucket or a queue up to date, and print its state when that changes.

    The copy continues at another node if its node is lost, and where it was
    after a restart. Ctrl-C stops the command; the copy stays.

    \b
    Examples:
      tidelog replica run --bucket settings --path settings.db
      tidelog replica run --queue jobs --path ./jobs-copy --json
      tidelog replica run --bucket settings --path settings.db --once 30s
    """
    if (bucket is None) == (queue is None):
        raise UserError("say what to copy: --bucket NAME or --queue NAME")
    pause = duration_seconds(every, "--every")
    limit = duration_seconds(once, "--once")
    from tidelog.client import BadAddress, EmbeddedReplica

    try:
        replica = EmbeddedReplica(http, bucket=bucket, queue=queue, path=path, replica_id=replica_id)
    except BadAddress:
        raise UsageError(f"--http {http!r} is not HOST:PORT, for example {DEFAULT_HTTP}") from None
    with replica:
        if limit:
            _print_status(replica.wait(limit), as_json=as_json)
            return
        last: tuple[Any, ...] = ()
        printed_at = float("-inf")
        while True:
            status = replica.status()
            now = (status.state, status.applied_offset, status.errors, _received(status))
            is_another_state = now[:1] != last[:1] or now[2:3] != last[2:3]
            is_due = time.monotonic() - printed_at >= pause
            if now != last and (is_due or is_another_state):
                _print_status(status, as_json=as_json)
                last, printed_at = now, time.monotonic()
            time.sleep(LOOK_SECONDS)


def _received(status: "ReplicaStatus") -> int:
    return sum(one.bytes_received for one in status.partitions)


def _print_status(status: "ReplicaStatus", *, as_json: bool) -> None:
    if as_json:
        print_json(asdict(status))
    else:
        words = [status.state, f"offset={status.applied_offset}"]
        words += [f"lag={status.lag_entries}", f"lag_ms={status.lag_ms}", f"errors={status.errors}"]
        expected = sum(one.bytes_expected for one in status.partitions)
        if expected:
            words.append(f"snapshot={_received(status) * 100 // expected}%")
        if status.last_error is not None and status.state != "in_sync":
            words.append(f"({status.last_error})")
        print(plain("  ".join(words)))
    sys.stdout.flush()


@app.command("status")
def status(path: At, http: Http = DEFAULT_HTTP, as_json: AsJson = False) -> None:
    """Show the position of a copy and, if the cluster answers, how far it is behind.

    \b
    Examples:
      tidelog replica status --path settings.db
      tidelog replica status --path settings.db --json
    """
    layout, about = _layout(path)
    from tidelog.copies.embedded.files import read_meta

    current = _current(http, about)
    rows = []
    for partition in range(max(about.partitions, 1)):
        file = layout.file(partition)
        meta = read_meta(file)
        applied, end = None if meta is None else meta.position.applied, current.get(partition)
        lag = None if applied is None or end is None else max(end - applied, 0)
        size = file.stat().st_size if file.exists() else 0
        rows.append((partition, applied, end, lag, size))
    kind, name = "bucket", about.source.bucket
    if name is None:
        kind, name = "queue", about.source.queue
    if as_json:
        partitions = [dict(zip(_COLUMNS, row, strict=True)) for row in rows]
        print_json({"replica_id": about.replica_id, kind: name, "partitions": partitions})
        return
    print(f"{plain(about.replica_id)} is a copy of {kind} {plain(name)}")
    print_table(
        [f"{column}#" for column in _COLUMNS],
        [["-" if cell is None else number(cell) for cell in row] for row in rows],
    )


def _current(http: str, about: "About") -> dict[int, int]:
    """How far the log goes, by partition of the copy; empty if nobody says so."""
    from tidelog.client import TidelogHTTPError
    from tidelog.model import QUEUES_TOPIC
    from tidelog.wire.names import partition_for

    topic, queue = about.source.bucket or QUEUES_TOPIC, about.source.queue
    try:
        with open_client(http) as client:
            partitions = _partitions(client, topic)
    except (UserError, TidelogHTTPError):
        note(f"no node answers at {http}; how far the cluster is, is not known")
        return {}
    if queue is not None and partitions:
        mine = partition_for(queue, len(partitions))
        partitions = {0: partitions[mine]} if mine in partitions else {}
    return partitions


def _partitions(client: "Client", topic: str) -> dict[int, int]:
    return {
        partition["partition"]: partition["high_watermark"]
        for found in client.cluster(topic)["topics"]
        for partition in found["partitions"]
        if partition["high_watermark"] is not None
    }


@app.command("get")
def get(
    key: Annotated[str, typer.Argument(metavar="KEY", help="Key in the bucket.")],
    path: At,
    as_json: AsJson = False,
) -> None:
    """Print a value from the copy, without a node.

    \b
    Examples:
      tidelog replica get theme --path settings.db
      tidelog replica get theme --path settings.db --json
    """
    with _bucket(path) as reads:
        found, version = reads.get(key), reads.version(key)
    if version is None:
        raise UserError(f"this copy has no key {key!r}; `tidelog replica list` shows them")
    if as_json:
        print_json({"key": key, **value_fields(found), "version": version})
    else:
        print_value(found)


@app.command("list")
def list_all(
    path: At,
    prefix: Annotated[str, typer.Option("--prefix", metavar="TEXT", help="Only keys with this prefix.")] = "",
    as_json: AsJson = False,
) -> None:
    """List the keys in a copy of a bucket, or the messages in a copy of a queue.

    \b
    Examples:
      tidelog replica list --path settings.db --prefix th
      tidelog replica list --path ./jobs-copy --json
    """
    layout, about = _layout(path)
    if about.source.queue is not None:
        with _queue(layout, about) as queue:
            messages = list(queue.scan())
        if as_json:
            print_json({"messages": [asdict(one) for one in messages]})
        else:
            print_table(
                ["id#", "delivery#", "key", "value"],
                [(one.id, one.delivery_count, one.key or "", short(one.value)) for one in messages],
            )
        return
    with _bucket(path) as reads:
        entries = list(reads.scan(prefix))
    if as_json:
        documents = [
            {"key": key_text(one.key), **value_fields(one.value), "version": one.version} for one in entries
        ]
        print_json({"entries": documents})
    else:
        print_table(
            ["key", "version#", "value"],
            [(key_text(one.key), one.version, short(one.value)) for one in entries],
        )


def _layout(path: Path) -> "tuple[Layout, About]":
    from tidelog.copies.embedded.files import Layout

    layout = Layout(path)
    about = layout.read_about()
    if about is None:
        raise UserError(
            f"there is no copy at {path}; make one with `tidelog replica run --bucket NAME --path {path}`"
        )
    return layout, about


@contextmanager
def _bucket(path: Path) -> "Iterator[BucketReads]":
    from tidelog.copies.embedded.reads import BucketReads, File

    layout, about = _layout(path)
    if about.source.bucket is None:
        raise UserError("this is a copy of a queue, which has no keys; `tidelog replica list`")
    files = tuple(File(layout.file(number)) for number in range(max(about.partitions, 1)))
    try:
        yield BucketReads(files)
    finally:
        for file in files:
            file.close()


@contextmanager
def _queue(layout: "Layout", about: "About") -> "Iterator[QueueReads]":
    from tidelog.copies.embedded.reads import File, QueueReads

    file = File(layout.file(0))
    try:
        yield QueueReads(about.source.queue or "", (file,))
    finally:
        file.close()
