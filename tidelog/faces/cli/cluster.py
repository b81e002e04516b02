"""`tidelog cluster`: several nodes on this machine, to develop against and to break."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from tidelog.faces.cli.common import AsJson, UserError, note, print_json, print_table, run
from tidelog.faces.cli.restart import restart

if TYPE_CHECKING:
    from tidelog.client.members import View
    from tidelog.faces.local.layout import ClusterFile, NodeEntry
    from tidelog.model import NodeId

STATUS_SECONDS_MAX: Final = 3.0

app = typer.Typer(
    help="Run several nodes on this machine; kill, pause and restart any of them.", no_args_is_help=True
)

Data = Annotated[Path, typer.Option("--data", metavar="DIR", help="Directory of the cluster, as for `up`.")]
Node = Annotated[int, typer.Argument(metavar="N", help="Number of the node, from 1 on.")]


@app.command("up")
def up(
    data: Annotated[Path, typer.Option("--data", metavar="DIR", help="Directory for the data of all nodes.")],
    nodes: Annotated[
        int | None,
        typer.Option(
            "--nodes", metavar="N", min=1, max=100, help="Number of nodes (default 3, or as last time)."
        ),
    ] = None,
    kafka_port: Annotated[
        int | None,
        typer.Option(
            "--kafka-port",
            metavar="PORT",
            min=0,
            max=65535,
            help="Kafka port of node 1 (default 9092, or as last time).",
        ),
    ] = None,
    http_port: Annotated[
        int | None,
        typer.Option(
            "--http-port",
            metavar="PORT",
            min=0,
            max=65535,
            help="HTTP port of node 1 (default 8080, or as last time).",
        ),
    ] = None,
    peer_port: Annotated[
        int | None,
        typer.Option(
            "--peer-port",
            metavar="PORT",
            min=0,
            max=65535,
            help="Peer port of node 1 (default 9192, or as last time).",
        ),
    ] = None,
) -> None:
    """Run a cluster of several nodes until Ctrl-C.

    Node 1 listens on the given ports, node 2 on the next ones, and so on;
    port 0 picks free ones. Prints one line, "ready kafka=HOST:PORT,... http=... nodes=N
    data=DIR", once all of them serve. Each node is a process of its own, with
    its data in DIR/node-N and its log in DIR/node-N.log; DIR/cluster.json has
    ports and pids. The next `up` on DIR takes the same nodes and ports.

    Up to seven nodes, an odd number, are voters; the others follow the
    metadata. A node that dies is reported and not restarted. All nodes end
    with this command, however it ends.

    \b
    Examples:
      tidelog cluster up --nodes 3 --data ./data
      tidelog cluster up --nodes 5 --data /tmp/five --kafka-port 0 --http-port 0 --peer-port 0
      tidelog cluster kill 2 --data ./data       # from a second terminal
    """
    import asyncio

    from tidelog.faces.local import layout
    from tidelog.faces.local.secret import make_secret
    from tidelog.faces.local.supervisor import Supervisor
    from tidelog.host import Path as DiskPath
    from tidelog.host import SystemDisk, keep_files_private

    directory = data.absolute()
    layout.check_directory(directory)
    keep_files_private()
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        lock = SystemDisk().lock(DiskPath(directory / layout.LOCK_NAME))
    except BlockingIOError:
        raise UserError(
            f"a cluster runs in {directory} already; see it with `tidelog cluster status --data "
            f"{directory}`, or choose another --data"
        ) from None
    try:
        content, notes = layout.plan(
            layout.read(directory),
            nodes,
            {"kafka": kafka_port, "http": http_port, "peer": peer_port},
            is_free=layout.is_port_free,
            free_ports=layout.some_free_ports(),
        )
        for text in notes:
            note(text)
        make_secret(directory / layout.SECRET_NAME)
        asyncio.run(Supervisor(directory, content, note).run(lambda line: _announce(line, data)))
    finally:
        lock.close()


def _announce(line: str, data: Path) -> None:
    print(line, flush=True)
    if sys.stdout.isatty():
        fields = dict(part.split("=", 1) for part in line.split() if "=" in part)
        first = fields["kafka"].split(",")[0]
        where = "" if first == "127.0.0.1:9092" else f" --bootstrap {first}"
        note("")
        note("Write and read from a second terminal, then break something:")
        note(f"  echo hello | tidelog produce greetings{where}")
        note(f"  tidelog consume greetings --from-beginning{where}")
        note(f"  tidelog cluster kill 2 --data {data}")
        note(f"  tidelog cluster status --data {data}")
        note("Ctrl-C stops all nodes.")


@app.command("status")
def status(data: Data, as_json: AsJson = False) -> None:
    """Show the nodes: pid, state, active controller, and which are fenced.

    States come from the running `tidelog cluster up`, controller and fencing
    from the nodes themselves.

    \b
    Example:
      tidelog cluster status --data ./data
    """
    from tidelog.faces.local import layout
    from tidelog.faces.local.control import NotRunning, ask

    directory = data.absolute()
    try:
        content, is_up = ask(directory, "status", seconds_max=10), True
    except NotRunning:
        found = layout.read(directory)
        if found is None:
            raise UserError(
                f"{directory} holds no cluster; make one: tidelog cluster up --data {directory}"
            ) from None
        content, is_up = found, False
    described = [describe(entry, content, is_up=is_up) for entry in content.nodes]
    awake = [one["kafka"] for one in described if one["alive"] and not one["paused"]]
    view = newest(run(_views(awake))) if awake else None
    controller = view.leader if view is not None else None
    for one in described:
        broker = view.brokers.get(one["id"]) if view is not None else None
        one["controller"] = one["id"] == controller
        one["fenced"] = broker.fenced if broker is not None else None
    if as_json:
        print_json({"data": str(directory), "running": is_up, "controller": controller, "nodes": described})
        return
    if not is_up:
        note(f"the cluster does not run; start it: tidelog cluster up --data {directory}")
    print_table(
        ["node#", "state", "pid#", "role", "fenced", "kafka", "http", "peer"],
        [
            (
                one["id"],
                one["state"],
                one["pid"] or "-",
                "controller" if one["controller"] else one["role"],
                {True: "yes", False: "no", None: "-"}[one["fenced"]],
                one["kafka"],
                one["http"],
                one["peer"],
            )
            for one in described
        ],
    )
    for one in described:
        if one["waits_for"]:
            note(f"node {one['id']} is {one['waits_for']}")


def describe(entry: "NodeEntry", content: "ClusterFile", *, is_up: bool) -> dict[str, Any]:
    """A node as its process is now, whoever paused or killed it."""
    from tidelog.faces.local.supervisor import process_state

    letter = process_state(entry.pid) if is_up and entry.pid is not None else "X"
    alive, paused = letter not in "XZ", letter in "Tt"
    state = str(entry.state)
    if not is_up:
        state = "stopped"
    elif alive and paused:
        state = "paused"
    return {
        "id": entry.id,
        "state": state,
        "pid": entry.pid if alive else None,
        "alive": alive,
        "paused": paused,
        "exit_code": entry.exit_code,
        "waits_for": entry.waits_for if alive and not paused else None,
        "role": "voter" if entry.id in content.voters else "observer",
        "kafka": entry.kafka,
        "http": entry.http,
        "peer": entry.peer,
    }


async def _views(addresses: list[str]) -> "list[View]":
    """How each of these nodes sees the cluster; those that do not answer are left out."""
    import asyncio

    from tidelog.client.members import MembersClient, View

    async def ask(address: str) -> "View":
        async with (
            asyncio.timeout(STATUS_SECONDS_MAX),
            MembersClient(address, timeout_seconds=STATUS_SECONDS_MAX) as client,
        ):
            return await client.view()

    answers = await asyncio.gather(*map(ask, addresses), return_exceptions=True)
    return [answer for answer in answers if isinstance(answer, View)]


def newest(views: "list[View]") -> "View | None":
    """The view that knows of the latest election: others are about to learn of it."""
    return max(views, key=lambda view: (view.epoch, view.leader is not None), default=None)


@app.command("kill")
def kill(node: Node, data: Data, as_json: AsJson = False) -> None:
    """Kill a node with SIGKILL, as in a crash.

    \b
    Example:
      tidelog cluster kill 2 --data ./data
    """
    _act("kill", node, data, as_json=as_json)


@app.command("stop")
def stop(node: Node, data: Data, as_json: AsJson = False) -> None:
    """Stop a node cleanly with SIGTERM; returns when it has ended.

    \b
    Example:
      tidelog cluster stop 2 --data ./data
    """
    _act("stop", node, data, as_json=as_json)


@app.command("start")
def start(
    node: Node,
    data: Data,
    wait: Annotated[
        bool, typer.Option("--wait", help="Return once the node serves; fail after 60 s.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Start a node that was stopped, was killed or died.

    The running `tidelog cluster up` starts the node, and ends it when it ends
    itself. Returns when the node serves, or when it waits for other voters that
    must be started first, and names them.

    \b
    Examples:
      tidelog cluster start 2 --data ./data
      tidelog cluster start 3 --data ./data --wait
    """
    _act("start", node, data, as_json=as_json, wait=wait)


app.command("restart")(restart)


@app.command("pause")
def pause(node: Node, data: Data, as_json: AsJson = False) -> None:
    """Pause a node with SIGSTOP: its connections stay open, and it does not answer.

    \b
    Example:
      tidelog cluster pause 2 --data ./data
    """
    _act("pause", node, data, as_json=as_json)


@app.command("resume")
def resume(node: Node, data: Data, as_json: AsJson = False) -> None:
    """Resume a paused node with SIGCONT.

    \b
    Example:
      tidelog cluster resume 2 --data ./data
    """
    _act("resume", node, data, as_json=as_json)


def _act(command: str, node: "NodeId", data: Path, *, as_json: bool, wait: bool = False) -> None:
    from tidelog.faces.local.control import ask

    content = ask(data.absolute(), command, node, wait=wait)
    described = describe(content.node(node), content, is_up=True)
    if as_json:
        print_json(described)
    else:
        pid = f", process {described['pid']}" if described["pid"] else ""
        waits_for = f", {described['waits_for']}" if described["waits_for"] else ""
        print(f"node {node}: {described['state']}{pid}{waits_for}")
