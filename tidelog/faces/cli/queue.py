"""`tidelog queue`: work queues, over the HTTP face."""

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidelog.faces.cli.archive import duration_seconds
from tidelog.faces.cli.common import (
    AsJson,
    UserError,
    key_values,
    note,
    number,
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
    count_of,
    not_empty,
    open_client,
    read_value,
    short,
)

if TYPE_CHECKING:
    from tidelog.client import Message

app = typer.Typer(
    help="Work queues: each message has one receiver at a time, until it is acknowledged.",
    no_args_is_help=True,
)

Name = Annotated[
    str,
    typer.Argument(
        metavar="QUEUE", callback=not_empty, help="Name of the queue; QUEUE.dead has its dead letters."
    ),
]
Receipts = Annotated[
    list[str], typer.Argument(metavar="RECEIPT...", help="Receipts, as `receive` prints them.")
]
Visibility = Annotated[
    str,
    typer.Option(
        "--visibility", metavar="T", help="How long a received message is hidden from others: 30s, 5m, 2h."
    ),
]


@app.command("list")
def list_queues(http: Http = DEFAULT_HTTP, as_json: AsJson = False) -> None:
    """List the work queues.

    \b
    Examples:
      tidelog queue list
      tidelog queue list --json
    """
    with open_client(http) as client:
        found = client.queues()
    if as_json:
        print_json({"queues": found})
    elif not found:
        note("there are no queues yet; make one with `tidelog queue create NAME`")
    else:
        for name in found:
            print(plain(name))


@app.command("create")
def create(
    queue: Name,
    visibility: Visibility = "",
    max_deliveries: Annotated[
        int | None,
        typer.Option(
            "--max-deliveries",
            metavar="N",
            min=0,
            help="Deliveries before dead-lettering (default 10; 0 = unlimited).",
        ),
    ] = None,
    ordered: Annotated[
        bool, typer.Option("--ordered", help="Deliver messages of one key one after the other.")
    ] = False,
    messages_max: Annotated[
        int | None,
        typer.Option(
            "--messages-max", metavar="N", min=1, help="Messages that the queue can hold (default 1,000,000)."
        ),
    ] = None,
    http: Http = DEFAULT_HTTP,
    as_json: AsJson = False,
) -> None:
    """Create a work queue, or change its settings.

    \b
    Examples:
      tidelog queue create jobs
      tidelog queue create mails --visibility 5m --max-deliveries 3
      tidelog queue create payments --ordered
    """
    seconds = _seconds(visibility, "--visibility")
    with open_client(http) as client:
        found = client.queue(queue).declare(
            visibility=seconds,
            max_deliveries=max_deliveries,
            ordered=ordered or None,
            messages_max=messages_max,
        )
    if as_json:
        print_json(found)
    else:
        print(f"queue {plain(queue)} is ready; a receiver holds a message for {_visible(found)} s")


def _visible(found: dict[str, Any]) -> str:
    return f"{found['visibility_ms'] / 1000:g}"


@app.command("describe")
def describe(queue: Name, http: Http = DEFAULT_HTTP, as_json: AsJson = False) -> None:
    """Show a queue's depth, age, messages in flight and settings.

    \b
    Examples:
      tidelog queue describe jobs
      tidelog queue describe jobs --json
    """
    with open_client(http, missing=_missing(queue)) as client:
        found = client.queue(queue).describe()
    if as_json:
        print_json(found)
        return
    names = ("depth", "in_flight", "delayed", "dead", "oldest_ms", "visibility_ms")
    rows = [(name, number(found[name])) for name in names]
    rows.append(("max_deliveries", number(found["max_deliveries"])))
    rows.append(("ordered", "yes" if found["ordered"] else "no"))
    print_table([plain(found["name"]), "#"], rows)


@app.command("publish")
def publish(
    queue: Name,
    value: Annotated[
        str,
        typer.Argument(metavar="VALUE", help="Value: JSON, otherwise text; - reads it from standard input."),
    ],
    key: Annotated[
        str | None, typer.Option("--key", metavar="KEY", help="Key that an ordered queue orders by.")
    ] = None,
    attributes: Annotated[
        list[str] | None,
        typer.Option(
            "--attribute", metavar="NAME=TEXT", help="Attribute of the message, as NAME=VALUE; repeatable."
        ),
    ] = None,
    delay: Annotated[
        str, typer.Option("--delay", metavar="T", help="Deliver after this time: 10s, 30m, 24h, 7d.")
    ] = "",
    as_text: AsText = False,
    http: Http = DEFAULT_HTTP,
    as_json: AsJson = False,
) -> None:
    """Publish a message.

    \b
    Examples:
      tidelog queue publish jobs '{"resize": "cat.png"}'
      tidelog queue publish mails hello --attribute to=ada --delay 10m
      tidelog queue publish payments '{"pay": 5}' --key ada
      tidelog queue publish jobs - < job.json
    """
    told = dict(key_values(attributes or [], "--attribute"))
    seconds = _seconds(delay, "--delay")
    content = read_value(value, as_text=as_text)
    with open_client(http, missing=_missing(queue)) as client:
        made = client.queue(queue).publish(content, key=key, attributes=told, delay=seconds)
    if as_json:
        print_json({"id": made})
    else:
        print(f"message {made} published to {plain(queue)}")


@app.command("receive")
def receive(
    queue: Name,
    count_max: Annotated[
        int, typer.Option("--max", metavar="N", min=1, max=100, help="Receive up to N messages (default 1).")
    ] = 1,
    wait: Annotated[
        str, typer.Option("--wait", metavar="T", help="Wait for a message for up to: 10s, 30s.")
    ] = "",
    visibility: Visibility = "",
    ack: Annotated[bool, typer.Option("--ack", help="Acknowledge messages once they are printed.")] = False,
    http: Http = DEFAULT_HTTP,
    as_json: AsJson = False,
) -> None:
    """Receive messages, and hide them from other receivers for a while.

    Acknowledge each by its receipt when it is done; otherwise it is
    delivered again when its visibility ends.

    \b
    Examples:
      tidelog queue receive jobs
      tidelog queue receive jobs --max 10 --wait 20s --json
      tidelog queue receive jobs.dead --max 100 --ack
    """
    seconds = _seconds(wait, "--wait") or 0.0
    if seconds > 30:
        raise UserError("--wait is at most 30s; ask again to wait for longer")
    visible = _seconds(visibility, "--visibility")
    with open_client(http, missing=_missing(queue)) as client:
        found = client.queue(queue).receive(count_max, wait=seconds, visibility=visible)
        _print_messages(found, queue, as_json=as_json)
        if ack and found:
            client.queue(queue).ack(*(one.receipt for one in found))


def _print_messages(found: "list[Message]", queue: str, *, as_json: bool) -> None:
    if as_json:
        print_json({"messages": [_document(one) for one in found]})
    elif not found:
        note(f"{queue} has no message to give out now")
    else:
        now_ms = time.time_ns() // 1_000_000
        print_table(
            ["receipt", "delivery#", "age s#", "key", "value"],
            [
                (
                    one.receipt,
                    one.delivery_count,
                    (now_ms - one.published_at_ms) // 1000,
                    one.key or "",
                    short(one.value),
                )
                for one in found
            ],
        )


def _document(one: "Message") -> dict[str, Any]:
    return {
        "id": one.id,
        "receipt": one.receipt,
        "value": one.value,
        "delivery_count": one.delivery_count,
        "attributes": dict(one.attributes),
        "key": one.key,
        "published_at_ms": one.published_at_ms,
    }


@app.command("ack")
def ack(queue: Name, receipts: Receipts, http: Http = DEFAULT_HTTP, as_json: AsJson = False) -> None:
    """Acknowledge messages: they are done and deleted.

    \b
    Examples:
      tidelog queue ack jobs 41-1
      tidelog queue ack jobs 41-1 42-1
    """
    with open_client(http) as client:
        client.queue(queue).ack(*receipts)
    _print_settled(receipts, "done", as_json=as_json)


@app.command("nack")
def nack(
    queue: Name,
    receipts: Receipts,
    delay: Annotated[
        str, typer.Option("--delay", metavar="T", help="Deliver after this time: 10s, 30m, 24h, 7d.")
    ] = "",
    http: Http = DEFAULT_HTTP,
    as_json: AsJson = False,
) -> None:
    """Put messages back for another delivery, at once or after a delay.

    \b
    Examples:
      tidelog queue nack jobs 41-1
      tidelog queue nack jobs 41-1 --delay 10m
    """
    seconds = _seconds(delay, "--delay") or 0.0
    with open_client(http) as client:
        client.queue(queue).nack(*receipts, delay=seconds)
    _print_settled(receipts, "put back", as_json=as_json)


@app.command("extend")
def extend(
    queue: Name,
    receipts: Receipts,
    visibility: Visibility = "5m",
    http: Http = DEFAULT_HTTP,
    as_json: AsJson = False,
) -> None:
    """Extend the visibility of messages, counted from now.

    \b
    Examples:
      tidelog queue extend jobs 41-1 --visibility 10m
    """
    seconds = _seconds(visibility, "--visibility")
    if seconds is None:
        raise UserError("--visibility says for how long, such as 5m")
    with open_client(http) as client:
        client.queue(queue).extend(*receipts, visibility=seconds)
    _print_settled(receipts, "kept", as_json=as_json)


def _print_settled(receipts: list[str], what: str, *, as_json: bool) -> None:
    if as_json:
        print_json({"receipts": receipts, "outcome": what})
    else:
        print(f"{count_of(len(receipts), 'message')} {what}")


@app.command("purge")
def purge(queue: Name, yes: Yes = False, http: Http = DEFAULT_HTTP, as_json: AsJson = False) -> None:
    """Delete all messages that no receiver has.

    \b
    Examples:
      tidelog queue purge jobs
      tidelog queue purge jobs.dead --yes
    """
    confirm(f"Delete all messages of {plain(queue)}?", yes=yes, refusal=f"purging {queue!r} cannot be undone")
    with open_client(http, missing=_missing(queue)) as client:
        count = client.queue(queue).purge()
    _print_moved(count, "deleted", as_json=as_json)


@app.command("redrive")
def redrive(queue: Name, http: Http = DEFAULT_HTTP, as_json: AsJson = False) -> None:
    """Move dead letters back into the queue.

    \b
    Examples:
      tidelog queue redrive jobs
    """
    with open_client(http, missing=_missing(queue)) as client:
        count = client.queue(queue).redrive()
    _print_moved(count, "brought back", as_json=as_json)


def _print_moved(count: int, what: str, *, as_json: bool) -> None:
    if as_json:
        print_json({"messages": count})
    else:
        print(f"{count_of(count, 'message')} {what}")


@app.command("delete")
def delete(queue: Name, yes: Yes = False, http: Http = DEFAULT_HTTP, as_json: AsJson = False) -> None:
    """Delete a queue with all its messages.

    \b
    Examples:
      tidelog queue delete jobs
      tidelog queue delete jobs --yes
    """
    confirm(
        f"Delete {plain(queue)} and all of its messages?",
        yes=yes,
        refusal=f"deleting {queue!r} cannot be undone",
    )
    with open_client(http) as client:
        if not client.queue(queue).delete():
            raise UserError(f"there is no queue {queue!r}; `tidelog queue list` shows them")
    if as_json:
        print_json({"name": queue, "deleted": True})
    else:
        print(f"{plain(queue)} deleted")


@app.command("delete-numbered")
def delete_numbered(
    queue_id: Annotated[int, typer.Argument(metavar="ID", min=0, help="Id of the pointer queue.")],
    yes: Yes = False,
    http: Http = DEFAULT_HTTP,
    as_json: AsJson = False,
) -> None:
    """Delete a pointer queue with its messages and pointers.

    \b
    Examples:
      tidelog queue delete-numbered 12
      tidelog queue delete-numbered 12 --yes
    """
    confirm(
        f"Delete queue {queue_id} and all of its messages?",
        yes=yes,
        refusal=f"deleting queue {queue_id} cannot be undone",
    )
    with open_client(http) as client:
        if not client.pointer_queues.delete(queue_id):
            raise UserError(f"there is no queue {queue_id}")
    if as_json:
        print_json({"queue_id": queue_id, "deleted": True})
    else:
        print(f"queue {queue_id} deleted")


def _missing(queue: str) -> str:
    name = queue.removesuffix(".dead")
    return f"there is no queue {name!r}; make it with `tidelog queue create {name}`"


def _seconds(text: str, option: str) -> float | None:
    return duration_seconds(text, option) if text else None
