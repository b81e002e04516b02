"""`tidelog proxy`: queues spread over independent clusters."""

import logging
from typing import Annotated, Final

import typer

from tidelog.faces.cli.common import UserError

DEFAULT_LISTEN: Final = "127.0.0.1:8000"


def proxy(
    cluster: Annotated[
        list[str],
        typer.Option(
            "--cluster",
            metavar="URL,URL,...",
            help="Some nodes of a cluster, by their http addresses; repeat it for each cluster.",
        ),
    ],
    listen: Annotated[
        str,
        typer.Option("--listen", metavar="HOST:PORT", help="Where to listen; port 0 picks one."),
    ] = DEFAULT_LISTEN,
    slots: Annotated[
        int,
        typer.Option(
            "--slots",
            metavar="N",
            min=0,
            help="For how many clusters there are ids; as many as there are, if not said.",
        ),
    ] = 0,
    discover: Annotated[
        bool,
        typer.Option(
            "--discover/--no-discover", help="Whether to ask the nodes for the others of theirs."
        ),
    ] = True,
) -> int:
    """Spread queues over clusters that know nothing of each other, and follow their leaders.

    Queues with pointers (/create_queue, /append, /read, ...) and work queues
    (/v1/queues/...) are asked for here as at a node. Which cluster has a queue
    follows from its id, or from its name; so give every proxy the same
    clusters, in the same order, and as many --slots. To be able to add clusters
    later without changing the ids of queues, begin with more slots.

    Prints one line `ready http=HOST:PORT ...` on standard output when it can be
    asked. /health/ready tells how each cluster is.

    \b
    Examples:
      tidelog proxy --cluster http://a1:8080,http://a2:8080 --cluster http://b1:8080
      tidelog proxy --cluster http://a1:8080 --cluster http://b1:8080 --slots 16 \\
          --listen 0.0.0.0:8000
    """  # fmt: skip
    from tidelog.client.http.routes import origins_of
    from tidelog.model import Endpoint

    for addresses in cluster:
        origins_of(addresses)
    if slots and slots < len(cluster):
        raise UserError(f"--slots {slots} are too few for {len(cluster)} clusters")
    try:
        at = Endpoint.parse(listen)
    except ValueError as error:
        raise UserError(f"--listen: {error}") from None
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    logging.getLogger("httpx").setLevel(logging.WARNING)
    from tidelog.faces.proxy.server import run

    return run(
        cluster, at, slots=slots or len(cluster), discover=discover,
        announce=lambda line: print(line, flush=True),
    )  # fmt: skip
