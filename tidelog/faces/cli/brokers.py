"""`tidelog brokers`: the nodes of a cluster, and how to let one go.

What clients may know comes from the Kafka listener. Kafka's protocol has no words for the rest
(broker epoch, shutting down, peer and HTTP addresses); that comes from `GET /v1/cluster` of any
broker, and is left out, with a word why, where no HTTP face answers.
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
    print_json,
    print_table,
    run,
)
from tidelog.model import Endpoint, NodeId, TopicPartition

if TYPE_CHECKING:
    from tidelog.client.cluster import TopicInfo
    from tidelog.client.members import BrokerInfo, MembersClient
    from tidelog.controller.moves import Layout

HTTP_SECONDS_MAX: Final = 5.0
PATIENCE_SECONDS: Final = 8.0
POLL_SECONDS: Final = 0.2

app = typer.Typer(
    help="List, drain, stop and remove the brokers of the cluster.", no_args_is_help=True
)

Node = Annotated[int, typer.Argument(metavar="NODE", help="The broker's id.", min=0)]


class NoAnswer(TidelogError):
    """The HTTP face did not answer; the message says how."""


@app.command("list")
def list_brokers(bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, as_json: AsJson = False) -> None:
    """List every broker that the cluster knows, those that are fenced too.

    A fenced broker is registered but silent: it leads nothing and clients are
    not sent to it. One that is shutting down hands over what it leads. One
    that is cordoned gets no new replicas, since it was drained. One whose disk
    is full leads only what no other in-sync replica can lead.

    \b
    Examples:
      tidelog brokers list
      tidelog brokers list --bootstrap 127.0.0.1:9093 --json
    """
    controller, brokers, problem = run(_ask(bootstrap))
    if as_json:
        print_json({"controller": controller, "brokers": brokers})
        return
    if problem is not None:
        note(f"epochs, peer and HTTP addresses are not known: {problem}")
    print_table(
        ["id#", "state", "kafka", "http", "peer", "rack", "epoch#", "leads#", "holds#"],
        [
            (
                f"{broker['id']}{'*' if broker['id'] == controller else ''}", state_of(broker),
                *(_cell(broker[key]) for key in ("kafka", "http", "peer", "rack", "broker_epoch")),
                broker["leads"], broker["holds"],
            )
            for broker in brokers
        ],
    )  # fmt: skip
    print("* the active controller" if controller is not None else "nobody is the controller now")


@app.command("drain")
def drain(
    node: Node,
    wait: reassign.Wait = False,
    dry_run: reassign.DryRun = False,
    undo: Annotated[
        bool, typer.Option("--undo", help="Let it get replicas again; what moves goes on.")
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Let other brokers hold all that this one holds, and give it nothing new.

    The others get its replicas evenly, across racks where there are racks. It
    is refused if they are too few for the replicas of some topic. The broker
    stays one of the cluster: `tidelog brokers remove` lets it go.

    \b
    Examples:
      tidelog brokers drain 4 --dry-run
      tidelog brokers drain 4 --wait
      tidelog brokers drain 4 --undo
    """
    if undo:
        run(_uncordon(bootstrap, node))
        if as_json:
            print_json({"node": node, "cordoned": False})
        else:
            print(f"broker {node} gets replicas again; `tidelog reassign cancel` stops moves")
        return

    def make(layout: "Layout") -> reassign.Targets:
        from tidelog.controller import moves

        return moves.drain(layout, [node])

    reassign.run_start(bootstrap, make, drain=[node], wait=wait, dry_run=dry_run, as_json=as_json)


async def _uncordon(bootstrap: str, node: NodeId) -> None:
    from tidelog.client.members import MembersClient
    from tidelog.client.moves import cordon

    async with MembersClient(bootstrap) as client:
        if not await cordon(client, node, is_cordoned=False):
            note(f"broker {node} is not running, and cannot be told")


@app.command("stop")
def stop(
    node: Node,
    wait: Annotated[
        bool, typer.Option("--wait", help="Return when it has ended, and others know.")
    ] = False,
    timeout: Annotated[
        float, typer.Option("--timeout", metavar="SECONDS", min=1, help="Of --wait.")
    ] = 90.0,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Stop a broker in order, wherever it runs, as SIGTERM on its machine does.

    Others lead what it led before it is gone; where failover.mode is manual
    nobody does, so hand over first: `tidelog promote --all-from NODE`. Its
    replicas stay, and catch up when it is started again, there and by hand.
    What goes without it and should not is told before.

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

    from tidelog.client.members import MembersClient
    from tidelog.faces.cli.asking import post_json
    from tidelog.faces.cli.promote import some_of

    async with MembersClient(bootstrap, timeout_seconds=PATIENCE_SECONDS) as client:
        brokers = await client.brokers()
        if node not in brokers:
            raise UserError(f"there is no broker {node}; see `tidelog brokers list`")
        if brokers[node].fenced:
            raise UserError(f"broker {node} is fenced: it does not run, or nobody can reach it")
        endpoint = await client.http_endpoint(brokers[node])
        if endpoint is None:
            raise UserError(f"broker {node} has no HTTP face; send SIGTERM to it on its machine")
        if missed := sole_in_sync(await client.topics(), node):
            note(f"no other replica is in sync of {some_of(missed)}: away while broker {node} is")
        await asyncio.to_thread(post_json, endpoint, "/v1/broker/stop", {"node": node})
        if seconds_max is None:
            return
        try:
            async with asyncio.timeout(seconds_max):
                await _until_gone(client, endpoint, node, is_alone=len(brokers) == 1)
        except TimeoutError:
            raise UserError(
                f"broker {node} has not ended after {seconds_max:g} s; its log says what it does"
            ) from None


async def _until_gone(
    client: "MembersClient", at: Endpoint, node: NodeId, *, is_alone: bool
) -> None:
    """Wait until its process has ended, and the others know."""
    import asyncio

    while True:
        if not await asyncio.to_thread(_listens, at):
            known = {} if is_alone else await client.brokers()
            if node not in known or known[node].fenced:
                return
        await asyncio.sleep(POLL_SECONDS)


def sole_in_sync(topics: "list[TopicInfo]", node: NodeId) -> list[TopicPartition]:
    """The partitions that nobody can lead without the node."""
    return [
        TopicPartition(topic.name, one.partition)
        for topic in topics
        for one in topic.partitions
        if one.in_sync == (node,)
    ]


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
    """Let the cluster forget a broker that is drained and stopped.

    It is refused while the broker runs, holds replicas or votes in the quorum;
    the message says what to do. With the same id it may come back as a new one.

    \b
    The whole way:
      tidelog brokers drain 4 --wait
      tidelog quorum remove 4                     # if it votes
      tidelog brokers stop 4 --wait
      tidelog brokers remove 4
    """

    async def work() -> None:
        from tidelog.client.members import MembersClient

        async with MembersClient(bootstrap, timeout_seconds=PATIENCE_SECONDS) as client:
            await client.unregister_broker(node)

    run(work())
    if as_json:
        print_json({"node": node, "removed": True})
    else:
        print(f"broker {node} is removed")


async def _ask(bootstrap: str) -> tuple[NodeId | None, list[dict[str, Any]], str | None]:
    """The controller, the brokers, and why some of it is missing."""
    from tidelog.client.members import MembersClient

    async with MembersClient(bootstrap, timeout_seconds=PATIENCE_SECONDS) as client:
        view = await client.view()
        problem = "no broker has an HTTP face"
        for broker in view.brokers.values():
            endpoint = None if broker.fenced else await client.http_endpoint(broker)
            if endpoint is None:
                continue
            try:
                found = get_json(endpoint, "/v1/cluster?topics=")
                return found["controller"], found["brokers"], None
            except NoAnswer as error:
                problem = str(error)
        topics = await client.topics()
    return view.leader, [_from_kafka(broker, topics) for broker in view.brokers.values()], problem


def _from_kafka(broker: "BrokerInfo", topics: "list[TopicInfo]") -> dict[str, Any]:
    partitions = [partition for topic in topics for partition in topic.partitions]
    return {
        "id": broker.node, "kafka": str(broker.kafka), "http": None, "peer": None,
        "rack": broker.rack, "fenced": broker.fenced, "shutting_down": None, "cordoned": None,
        "broker_epoch": None,
        "leads": sum(partition.leader == broker.node for partition in partitions),
        "holds": sum(broker.node in partition.replicas for partition in partitions),
    }  # fmt: skip


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
