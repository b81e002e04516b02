"""`tidelog brokers`: the nodes of a cluster, and how to let one go.

Rule: any broker may be asked; a broker that is to be stopped is told by it.
"""

import json
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from tidelog.errors import TidelogError
from tidelog.faces.cli import reassign
from tidelog.faces.cli.common import (
    DEFAULT_BOOTSTRAP,
    AsJson,
    Bootstrap,
    UserError,
    note,
    perform,
    print_json,
    print_table,
    run,
)
from tidelog.model import Endpoint, NodeId, TopicPartition

if TYPE_CHECKING:
    from tidelog.client.kafka import KafkaClient

HTTP_SECONDS_MAX: Final = 5.0
PATIENCE_SECONDS: Final = 8.0
POLL_SECONDS: Final = 0.2

app = typer.Typer(help="List, drain, stop and remove the brokers of the cluster.", no_args_is_help=True)

Node = Annotated[int, typer.Argument(metavar="NODE", help="Id of the broker.", min=0)]


class NoAnswer(TidelogError):
    """The HTTP face did not answer; the message says how."""


@app.command("list")
def list_brokers(bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, as_json: AsJson = False) -> None:
    """List all brokers of the cluster, fenced ones too.

    A fenced broker is registered but sends no heartbeats: it leads nothing,
    and clients are not sent to it. One that is shutting down hands over its
    leaderships. A cordoned one gets no new replicas, because it is drained.
    One with a full disk leads only partitions that no other in-sync replica
    can lead.

    \b
    Examples:
      tidelog brokers list
      tidelog brokers list --bootstrap 127.0.0.1:9093 --json
    """
    controller, brokers = run(_list(bootstrap))
    if as_json:
        print_json({"controller": controller, "brokers": brokers})
        return
    print_table(
        ["id#", "state", "kafka", "http", "peer", "rack", "epoch#", "leads#", "holds#"],
        [
            (
                f"{broker['id']}{'*' if broker['id'] == controller else ''}",
                state_of(broker),
                *(_cell(broker[key]) for key in ("kafka", "http", "peer", "rack", "broker_epoch")),
                broker["leads"],
                broker["holds"],
            )
            for broker in brokers
        ],
    )
    print("* the active controller" if controller is not None else "there is no active controller now")


@app.command("drain")
def drain(
    node: Node,
    wait: reassign.Wait = False,
    dry_run: reassign.DryRun = False,
    undo: Annotated[
        bool, typer.Option("--undo", help="Allow new replicas again; moves under way continue.")
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Move all replicas off a broker, and place no new ones there.

    Its replicas are spread evenly over the other brokers, and across racks.
    The drain is refused if too few brokers are left for the replicas of some
    topic. The broker stays in the cluster until `tidelog brokers remove`.

    \b
    Examples:
      tidelog brokers drain 4 --dry-run
      tidelog brokers drain 4 --wait
      tidelog brokers drain 4 --undo
    """
    if not undo:
        reassign.run_start(bootstrap, {"drain": [node]}, wait=wait, dry_run=dry_run, as_json=as_json)
        return
    perform(bootstrap, "brokers.drain", id=node, undo=True)
    if as_json:
        print_json({"node": node, "cordoned": False})
    else:
        print(f"broker {node} gets replicas again; `tidelog reassign cancel` stops moves")


@app.command("stop")
def stop(
    node: Node,
    wait: Annotated[
        bool, typer.Option("--wait", help="Return once the broker has stopped and the others know.")
    ] = False,
    timeout: Annotated[
        float, typer.Option("--timeout", metavar="SECONDS", min=1, help="Timeout of --wait in seconds.")
    ] = 90.0,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Stop a broker cleanly from any machine, as SIGTERM does.

    The broker hands over its leaderships first, except with failover.mode
    manual: for these topics run `tidelog promote --all-from NODE` before.
    Its replicas stay, and catch up when it is started again on its machine.
    The command warns of partitions that need this broker.

    \b
    Examples:
      tidelog brokers stop 2
      tidelog brokers stop 2 --wait && tidelog brokers list
    """
    run(_stop(bootstrap, node, timeout if wait else None))
    if as_json:
        print_json({"node": node, "stopping": not wait, "stopped": wait})
    else:
        print(f"broker {node} {'has stopped' if wait else 'stops'}")


async def _stop(bootstrap: str, node: NodeId, seconds_max: float | None) -> None:
    import asyncio

    from tidelog.client.kafka import KafkaClient
    from tidelog.faces.cli.promote import some_of

    async with KafkaClient(bootstrap, timeout_seconds=PATIENCE_SECONDS) as client:
        brokers = await _brokers(client)
        told = await client.perform("brokers.stop", id=node)
        if missed := [TopicPartition(one["topic"], one["partition"]) for one in told["unavailable"]]:
            note(f"no other replica is in sync of {some_of(missed)}: away while broker {node} is")
        if seconds_max is None:
            return
        at = next(one["http"] or one["kafka"] for one in brokers if one["id"] == node)
        try:
            async with asyncio.timeout(seconds_max):
                await _until_gone(client, Endpoint.parse(at), node, is_alone=len(brokers) == 1)
        except TimeoutError:
            raise UserError(
                f"broker {node} has not ended after {seconds_max:g} s; its log says what it does"
            ) from None


async def _until_gone(client: "KafkaClient", at: Endpoint, node: NodeId, *, is_alone: bool) -> None:
    """Wait until its process has ended, and the others know."""
    import asyncio

    while True:
        if not await asyncio.to_thread(_listens, at):
            known = [] if is_alone else await _brokers(client)
            if all(one["fenced"] for one in known if one["id"] == node):
                return
        await asyncio.sleep(POLL_SECONDS)


def _listens(at: Endpoint) -> bool:
    """Whether the node's process is there; its HTTP face is the last to close."""
    import socket

    try:
        socket.create_connection((at.host, at.port), HTTP_SECONDS_MAX).close()
    except OSError:
        return False
    return True


@app.command("remove")
def remove(node: Node, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, as_json: AsJson = False) -> None:
    """Remove a drained and stopped broker from the cluster.

    This is refused while the broker runs, holds replicas or is a voter; the
    message says what to do. A new broker may use the same id.

    \b
    The whole way:
      tidelog brokers drain 4 --wait
      tidelog quorum remove 4                     # if it votes
      tidelog brokers stop 4 --wait
      tidelog brokers remove 4
    """

    perform(bootstrap, "brokers.remove", id=node)
    if as_json:
        print_json({"node": node, "removed": True})
    else:
        print(f"broker {node} is removed")


async def _list(bootstrap: str) -> tuple[NodeId | None, list[dict[str, Any]]]:
    """The controller and the brokers, as the first node that answers knows them."""
    from tidelog.client.kafka import KafkaClient

    async with KafkaClient(bootstrap, timeout_seconds=PATIENCE_SECONDS) as client:
        found = await client.perform("brokers.list", limit=1000)
        return found["controller"], found["brokers"]


async def _brokers(client: "KafkaClient") -> list[dict[str, Any]]:
    """Every broker, fenced ones too."""
    found: list[dict[str, Any]] = (await client.perform("brokers.list", limit=1000))["brokers"]
    return found


def state_of(broker: dict[str, Any]) -> str:
    """How a broker stands, in a word or two."""
    if broker["fenced"]:
        return "fenced"
    if broker["shutting_down"]:
        return "shutting down"
    if broker.get("disk_full"):
        return "disk full"
    if broker.get("out_of_files"):
        return "out of files"
    return "cordoned" if broker.get("cordoned") else "active"


def _cell(value: object) -> object:
    return "-" if value is None else value


def get_json(at: Endpoint, path: str) -> Any:
    """What a node's HTTP face answers; NoAnswer says why there is none. No proxy is asked."""
    from http.client import HTTPConnection, HTTPException

    connection = HTTPConnection(at.host, at.port, timeout=HTTP_SECONDS_MAX)
    try:
        connection.request("GET", path, headers={"accept": "application/json"})
        response = connection.getresponse()
        document = json.loads(response.read())
    except (OSError, HTTPException, ValueError) as error:
        raise NoAnswer(f"http://{at}{path}: {error}") from None
    finally:
        connection.close()
    if response.status != 200:
        raise NoAnswer(f"http://{at}{path}: {document.get('detail', response.reason)}")
    return document
