"""`tidelog replication`: how replicas stand, and who catches up with what.

A leader knows its followers and nobody else does, so every broker is asked (`GET /v1/replication`).
One that cannot be asked is named: what it leads is not told of.
"""

import sys
import time
from typing import TYPE_CHECKING, Annotated, Any, Final
from urllib.parse import quote

import typer

from tidelog.faces.cli.brokers import HTTP_SECONDS_MAX, PATIENCE_SECONDS, NoAnswer, get_json
from tidelog.faces.cli.common import (
    DEFAULT_BOOTSTRAP,
    AsJson,
    Bootstrap,
    UserError,
    note,
    number,
    plain,
    print_json,
    print_table,
    run,
)
from tidelog.model import NO_NODE, NodeId

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import RenderableType

    from tidelog.client.cluster import TopicInfo
    from tidelog.client.members import MembersClient

WATCH_SECONDS: Final = 1.0
LISTED_MAX: Final = 20

app = typer.Typer(help="Show the state of replicas and of catch-ups.", no_args_is_help=True)

Replica = Annotated[
    int | None, typer.Argument(metavar="[REPLICA]", help="Only this broker's replicas.", min=0)
]
Topics = Annotated[
    list[str] | None, typer.Option("--topic", metavar="T", help="Only this topic; repeatable.")
]
Watch = Annotated[bool, typer.Option("--watch", help="Keep showing it until Ctrl-C.")]
Wait = Annotated[bool, typer.Option("--wait", help="Return once all replicas are in sync.")]
Timeout = Annotated[
    float,
    typer.Option("--timeout", metavar="SECONDS", min=0, help="Timeout of --wait in seconds; 0 = unlimited."),
]


@app.command("status")
def status(
    replica: Replica = None,
    topic: Topics = None,
    watch: Watch = False,
    wait: Wait = False,
    timeout: Timeout = 0.0,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Show which replicas are in sync, which are behind, and the progress of catch-ups.

    Partitions without a leader are shown, too: --wait also waits for their leaders.

    \b
    A catch-up is
      running       getting the missing records
      waiting       queued behind others (catchup.concurrent.max)
      stalled       making no progress; the line says why
      interrupted   its broker is down; it will continue where it was
    `tidelog configs set --broker N catchup.bytes.per.second=...` changes the rate of running
    catch-ups. Exits with 1 if --wait timed out.

    Also shows the scrubber of each broker, which reads sealed segments again to
    find rot: its progress, and what it found and healed.

    \b
    Examples:
      tidelog replication status
      tidelog replication status 3 --watch
      tidelog replication status --wait --timeout 600
      tidelog replication status --json
    """
    if watch and as_json:
        raise UserError("--watch is for people; ask again for another JSON document")
    is_whole = run(_show(bootstrap, replica, topic, watch=watch, wait=wait, timeout=timeout, as_json=as_json))
    if wait and not is_whole:
        note(f"not all replicas are in sync after {timeout:g} s")
        raise typer.Exit(1)


async def _show(
    bootstrap: str,
    replica: NodeId | None,
    topics: list[str] | None,
    *,
    watch: bool,
    wait: bool,
    timeout: float,
    as_json: bool,
) -> bool:
    """Print it, once or until it is done; whether all replicas are in sync."""
    import asyncio

    from tidelog.client.members import MembersClient

    began_at = time.monotonic()
    async with MembersClient(bootstrap, timeout_seconds=PATIENCE_SECONDS) as client:
        if not (watch or wait):
            found = await gather(client, replica, topics)
            _print(found, as_json=as_json)
            return is_whole(found)
        with _Screen() as screen:
            while True:
                found = await gather(client, replica, topics)
                screen.update(found)
                late = timeout and time.monotonic() - began_at > timeout
                if wait and (is_whole(found) or late):
                    break
                await asyncio.sleep(WATCH_SECONDS)
    if as_json or not screen.is_live:
        _print(found, as_json=as_json)
    return is_whole(found)


# Asking.


async def gather(client: "MembersClient", replica: NodeId | None, topics: list[str] | None) -> dict[str, Any]:
    """What all brokers say of their followers, in one document."""
    import asyncio

    view = await client.view()
    parts: list[dict[str, Any]] = []
    silent: dict[NodeId, str] = {}
    for node, broker in view.brokers.items():
        if broker.fenced:
            silent[node] = "down or cut off"
            continue
        endpoint = await client.http_endpoint(broker)
        if endpoint is None:
            silent[node] = "it has no HTTP address: the partitions that it leads are not shown"
            continue
        try:
            path = "/v1/replication" + (f"?topics={quote(','.join(topics))}" if topics else "")
            async with asyncio.timeout(2 * HTTP_SECONDS_MAX):
                parts.append(await asyncio.to_thread(get_json, endpoint, path))
        except (NoAnswer, TimeoutError) as error:
            silent[node] = f"the partitions that it leads are not shown: {str(error) or 'it does not answer'}"
    found = _merge(parts, silent, replica, topics)
    known = [one for one in await client.topics() if not topics or one.name in topics]
    for node in silent:
        if view.brokers[node].fenced:
            away = away_for(found["behind"], node)
            silent[node] = f"down or cut off{away}; {copies_without(known, node)}"
    return found | {"unled": unled_of(known, replica)}


def copies_without(known: "Iterable[TopicInfo]", node: NodeId) -> str:
    """How many copies the partitions have that a broker should hold and is not in sync with."""
    short: dict[tuple[int, int], int] = {}
    for topic in known:
        for one in topic.partitions:
            if node in one.replicas and node not in one.in_sync:
                copies = (len(one.in_sync), len(one.replicas))
                short[copies] = short.get(copies, 0) + 1
    if not short:
        return "it is still in sync with all that it holds, or holds nothing"
    told = [
        f"{number(count)} partition{'s' * (count != 1)} with {left} of {all_} copies"
        for (left, all_), count in sorted(short.items())
    ]
    return f"this leaves {', '.join(told)}"


def away_for(behind: "Iterable[dict[str, Any]]", node: NodeId) -> str:
    """For how long a broker has lacked what its leaders have; empty if no leader says.

    A partition may be younger than that, or have lagged before: so the median counts.
    """
    ages = sorted(one["level_ms_ago"] for one in behind if one["node"] == node and "level_ms_ago" in one)
    return f" for about {seconds(ages[len(ages) // 2] / 1000)}" if ages else ""


def unled_of(known: "Iterable[TopicInfo]", replica: NodeId | None) -> list[dict[str, Any]]:
    """The partitions that nobody leads, and so nobody tells of."""
    return [
        {"topic": topic.name, "partition": one.partition, "replicas": one.replicas}
        for topic in known
        for one in topic.partitions
        if one.leader == NO_NODE and (replica is None or replica in one.replicas)
    ]


def _merge(
    parts: list[dict[str, Any]], silent: dict[NodeId, str], replica: NodeId | None, topics: list[str] | None
) -> dict[str, Any]:
    def is_wanted(one: dict[str, Any]) -> bool:
        return (replica is None or one["node"] == replica) and (
            not topics or one.get("topic") is None or one["topic"] in topics
        )

    listed = [
        {"topic": led["topic"], "partition": led["partition"], **one}
        for part in parts
        for led in part["leading"]
        for one in led["followers"]
        if is_wanted(one)
    ]
    behind = [one for part in parts for one in part["behind"] if is_wanted(one)]
    return {
        "replicas": _counted(listed) if topics else _summed(parts, replica),
        "behind": behind + [one for one in listed if one["state"] != "in_sync"],
        "catch_ups": [
            {"leader": part["node"], **one}
            for part in parts
            for one in part["catch_up"]["running"]
            if is_wanted(one)
        ],
        "ended": [
            {"leader": part["node"], **one}
            for part in parts
            for one in part["catch_up"]["ended"]
            if is_wanted(one)
        ],
        "scrubs": [
            {"node": part["node"], **part["scrub"]}
            for part in parts
            if "scrub" in part and (replica is None or part["node"] == replica)
        ],
        "silent": silent,
        "unled": [],
    }


def _summed(parts: list[dict[str, Any]], replica: NodeId | None) -> list[dict[str, Any]]:
    """The followers of all leaders, by their broker."""
    totals: dict[NodeId, dict[str, Any]] = {}
    for part in parts:
        for one in part["followers"]:
            if replica is None or one["node"] == replica:
                mine = totals.setdefault(one["node"], dict.fromkeys(one, 0) | {"node": one["node"]})
                for name, value in one.items():
                    mine[name] += value if name != "node" else 0
    return [totals[node] for node in sorted(totals)]


def _counted(listed: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same, from followers one by one."""
    totals: dict[NodeId, dict[str, Any]] = {}
    for one in listed:
        mine = totals.setdefault(
            one["node"],
            {"node": one["node"]}
            | dict.fromkeys(("replicas", "in_sync", "catching_up", "behind", "lag_records", "lag_bytes"), 0),
        )
        mine["replicas"] += 1
        mine["in_sync"] += one["in_sync"]
        mine["catching_up"] += one["state"] == "catching_up"
        mine["behind"] += one["state"] != "in_sync"
        mine["lag_records"] += one["lag_records"] or 0
        mine["lag_bytes"] += one["lag_bytes"] or 0
    return [totals[node] for node in sorted(totals)]


def is_whole(found: dict[str, Any]) -> bool:
    """Whether every partition is led and every replica in sync, as far as all brokers say."""
    is_told = not any("are not shown" in why for why in found["silent"].values())
    is_level = not any(one["behind"] for one in found["replicas"])  # not all are listed
    return is_told and is_level and not (found["behind"] or found["catch_ups"] or found["unled"])


# Showing.


def _print(found: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(found)
        return
    print_table(*_totals(found))
    if found["catch_ups"]:
        print_table(*_catch_ups(found))
    if found["scrubs"]:
        print_table(*_scrubs(found))
    for line in _notes(found):
        print(plain(line))


def _totals(found: dict[str, Any]) -> tuple[list[str], list[list[object]]]:
    columns = ["broker#", "replicas#", "in sync#", "behind#", "records behind#", "bytes behind#"]
    rows: list[list[object]] = [
        [
            one["node"],
            one["replicas"],
            one["in_sync"],
            one["behind"],
            number(one["lag_records"]),
            size(one["lag_bytes"]),
        ]
        for one in found["replicas"]
    ]
    return columns, rows


def _catch_ups(found: dict[str, Any]) -> tuple[list[str], list[list[object]]]:
    columns = ["catch-up", "state", "done", "records left#", "bytes left#", "rate#", "left#", "why"]
    rows: list[list[object]] = [
        [
            one["id"],
            one["state"],
            bar(one["done"]),
            number(one["records_left"]),
            size(one["bytes_left"]),
            "-" if one["bytes_per_second"] is None else f"{size(one['bytes_per_second'])}/s",
            "-" if one["eta_ms"] is None else seconds(one["eta_ms"] / 1000),
            _why(one),
        ]
        for one in found["catch_ups"][:LISTED_MAX]
    ]
    return columns, rows


def _scrubs(found: dict[str, Any]) -> tuple[list[str], list[list[object]]]:
    columns = ["broker#", "scrub", "cycle#", "read#", "last ended", "found#", "healed#", "rotten#"]
    rows: list[list[object]] = [
        [
            one["node"],
            one["state"],
            one["cycle"],
            size(one["bytes_read"]),
            "-" if one["ended_ms_ago"] is None else f"{seconds(one['ended_ms_ago'] / 1000)} ago",
            one["found"],
            one["healed"],
            one["rotten"],
        ]
        for one in found["scrubs"]
    ]
    return columns, rows


def _rot(found: dict[str, Any]) -> list[str]:
    """A line for each place that is rotten."""
    return [
        f"broker {scrub['node']}: {one['topic']}-{one['partition']} is rotten at offset "
        f"{one['offset']}: {one['what']}; not healed yet: {one['why'] or 'it is being looked at'}"
        for scrub in found["scrubs"]
        for one in scrub["rot"]
    ]


def _why(one: dict[str, Any]) -> str:
    parts = [one["why"] or ""]
    if one["began_anew"]:
        parts.append("the records it lacked are deleted: it starts over")
    if one["attempts"] > 1:
        parts.append(f"attempt {one['attempts']}")
    return "; ".join(filter(None, parts))


def _notes(found: dict[str, Any]) -> list[str]:
    lines = []
    if len(found["catch_ups"]) > LISTED_MAX:
        lines.append(f"and {len(found['catch_ups']) - LISTED_MAX} more")
    lines += [f"broker {node}: {why}" for node, why in sorted(found["silent"].items())]
    lines += _rot(found)[:LISTED_MAX]
    for one in found["unled"][:LISTED_MAX]:
        lines.append(
            f"nobody leads {one['topic']}-{one['partition']}: start a replica in sync of "
            f"{', '.join(map(str, one['replicas']))}, or `tidelog promote {one['topic']}`"
        )
    if is_whole(found):
        lines.append("all replicas are in sync")
    return lines


def bar(done: float, width: int = 20) -> str:
    filled = int(done * width)
    return f"{'█' * filled}{'░' * (width - filled)} {done:4.0%}"


def size(value: float) -> str:
    """1234567 as 1.2 MB."""
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"


def seconds(value: float) -> str:
    """3725 as 1:02:05."""
    minutes, rest = divmod(round(value), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


class _Screen:
    """What is shown while it changes: on a terminal in place, else nothing until the end."""

    def __init__(self) -> None:
        self.is_live = sys.stdout.isatty()

    def __enter__(self) -> "_Screen":
        from rich.live import Live

        self._live = Live(auto_refresh=False) if self.is_live else None
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._live is not None:
            self._live.stop()

    def update(self, found: dict[str, Any]) -> None:
        if self._live is not None:
            self._live.update(_rendered(found), refresh=True)


def _rendered(found: dict[str, Any]) -> "RenderableType":
    from rich.box import SIMPLE_HEAD
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    parts: list[RenderableType] = []
    for columns, rows in (_totals(found), _catch_ups(found), _scrubs(found)):
        if rows:
            table = Table(box=SIMPLE_HEAD, pad_edge=False)
            for column in columns:
                justify: Any = "right" if column.endswith("#") else "left"
                table.add_column(column.removesuffix("#"), justify=justify)
            for row in rows:
                table.add_row(*(Text(plain(cell)) for cell in row))
            parts.append(table)
    parts += [Text(plain(line)) for line in _notes(found)]
    return Group(*parts)
