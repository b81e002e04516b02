"""`tidelog stream`: rooms whose events are remembered, over the HTTP face."""

import sys
from contextlib import closing
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidelog.faces.cli.archive import duration_seconds
from tidelog.faces.cli.common import AsJson, UserError, note, number, plain, print_json, print_table
from tidelog.faces.cli.over_http import (
    DEFAULT_HTTP,
    AsLines,
    AsText,
    Http,
    Yes,
    confirm,
    not_empty,
    open_client,
    read_value,
    short,
    shown,
)

if TYPE_CHECKING:
    from tidelog.client import RoomEvent

app = typer.Typer(
    help="Rooms: streams of events with a history, read from any point on.", no_args_is_help=True
)

Room = Annotated[str, typer.Argument(metavar="ROOM", callback=not_empty, help="Name of the room.")]


@app.command("list")
def list_rooms(http: Http = DEFAULT_HTTP, as_json: AsJson = False) -> None:
    """List the rooms.

    \b
    Examples:
      tidelog stream list
      tidelog stream list --json
    """
    with open_client(http) as client:
        found = client.rooms()
    if as_json:
        print_json({"rooms": found})
    elif not found:
        note("there are no rooms yet; one comes with its first event: `tidelog stream publish`")
    else:
        for name in found:
            print(plain(name))


@app.command("create")
def create(
    room: Room,
    retention: Annotated[
        str, typer.Option("--retention", metavar="T", help="Keep events for: 30m, 24h, 7d.")
    ] = "",
    retention_events: Annotated[
        int | None, typer.Option("--retention-events", metavar="N", min=1, help="Keep the last N events.")
    ] = None,
    http: Http = DEFAULT_HTTP,
    as_json: AsJson = False,
) -> None:
    """Create a room; an existing one stays as it is. The first event creates it, too.

    \b
    Examples:
      tidelog stream create lobby
      tidelog stream create lobby --retention 7d --retention-events 10000
    """
    seconds = duration_seconds(retention, "--retention") or None
    with open_client(http) as client:
        found = client.room(room).create(retention=seconds, retention_events=retention_events)
    if as_json:
        print_json(found)
    else:
        print(f"room {plain(room)} is ready")


@app.command("describe")
def describe(room: Room, http: Http = DEFAULT_HTTP, as_json: AsJson = False) -> None:
    """Show the length of a room's history, and its number of listeners.

    \b
    Examples:
      tidelog stream describe lobby
    """
    with open_client(http, missing=_missing(room)) as client:
        found = client.room(room).describe()
    if as_json:
        print_json(found)
    else:
        rows = [(name, number(found[name])) for name in ("first", "next", "subscribers")]
        print_table([plain(room), "#"], rows)


@app.command("publish")
def publish(
    room: Room,
    data: Annotated[
        str, typer.Argument(metavar="DATA", help="JSON, or else text; - reads it from standard input.")
    ],
    event: Annotated[
        str, typer.Option("--event", metavar="NAME", help="Type of the event (default: message).")
    ] = "message",
    as_text: AsText = False,
    http: Http = DEFAULT_HTTP,
    as_json: AsJson = False,
) -> None:
    """Publish an event in a room.

    \b
    Examples:
      tidelog stream publish lobby "hello"
      tidelog stream publish lobby '{"who": "ada"}' --event joined
    """
    content = read_value(data, as_text=as_text)
    with open_client(http, missing=_missing(room)) as client:
        made = client.room(room).publish(content, event=event)
    if as_json:
        print_json({"id": made})
    else:
        print(f"event {made} appended to {plain(room)}")


@app.command("history")
def history(
    room: Room,
    start: Annotated[
        str, typer.Option("--from", metavar="earliest|ID", help="First event to print.")
    ] = "earliest",
    limit: Annotated[
        int, typer.Option("--limit", metavar="N", min=1, max=1000, help="Print up to N events (default 100).")
    ] = 100,
    http: Http = DEFAULT_HTTP,
    as_json: AsJson = False,
) -> None:
    """Print past events of a room.

    \b
    Examples:
      tidelog stream history lobby
      tidelog stream history lobby --from 120 --limit 10
      tidelog stream history lobby --json
    """
    if start != "earliest" and not (start.isascii() and start.isdecimal()):
        raise UserError(f"--from is {start!r}; it must be earliest, or the id of an event")
    with open_client(http, missing=_missing(room)) as client:
        found = client.room(room).history("earliest" if start == "earliest" else int(start), limit=limit)
    if as_json:
        print_json({"events": [_document(one) for one in found.events], "next": found.next})
    elif not found.events:
        note(f"{room} has no events from there on; the next one is {found.next}")
    else:
        print_table(["id#", "event", "data"], [(one.id, one.event, short(one.data)) for one in found.events])


@app.command("subscribe")
def subscribe(
    room: Room,
    start: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="latest|earliest|ID|CURSOR",
            help="Start with the next event, with the oldest, or at or after a given one.",
        ),
    ] = "latest",
    count_max: Annotated[
        int | None, typer.Option("--max", metavar="N", min=1, help="Stop after N events.")
    ] = None,
    http: Http = DEFAULT_HTTP,
    as_json: AsLines = False,
) -> None:
    """Print the events of a room as they happen: id, event, data.

    If its node is lost, the command continues at another one without a gap.
    Ctrl-C stops it.

    \b
    Examples:
      tidelog stream subscribe lobby
      tidelog stream subscribe lobby --from earliest --max 10
      tidelog stream subscribe lobby --from 120 --json
    """
    count = 0
    with (
        open_client(http, missing=_missing(room)) as client,
        closing(client.room(room).subscribe(from_=start)) as events,
    ):
        for event in events:
            _print_event(event, as_json=as_json)
            count += 1
            if count == count_max:
                return


@app.command("delete")
def delete(room: Room, yes: Yes = False, http: Http = DEFAULT_HTTP, as_json: AsJson = False) -> None:
    """Delete a room with its history.

    \b
    Examples:
      tidelog stream delete lobby
      tidelog stream delete lobby --yes
    """
    confirm(f"Delete {plain(room)} and its history?", yes=yes, refusal=f"deleting {room!r} cannot be undone")
    with open_client(http) as client:
        if not client.room(room).delete():
            raise UserError(f"there is no room {room!r}; `tidelog stream list` shows them")
    if as_json:
        print_json({"name": room, "deleted": True})
    else:
        print(f"{plain(room)} deleted")


def _document(one: "RoomEvent") -> dict[str, Any]:
    return {"id": one.id, "event": one.event, "data": one.data, "at_ms": one.at_ms}


def _print_event(event: "RoomEvent", *, as_json: bool) -> None:
    if as_json:
        print_json({**_document(event), "cursor": event.cursor})
    else:
        print(f"{event.id}\t{plain(event.event)}\t{plain(shown(event.data))}")
    sys.stdout.flush()


def _missing(room: str) -> str:
    return f"there is no room {room!r}; make it with `tidelog stream create {room}`"
