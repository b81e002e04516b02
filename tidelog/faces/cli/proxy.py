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
            help="HTTP addresses of some nodes of one cluster; repeat the option for each cluster.",
        ),
    ],
    listen: Annotated[
        str,
        typer.Option("--listen", metavar="HOST:PORT", help="Address to listen on; port 0 picks a free one."),
    ] = DEFAULT_LISTEN,
    slots: Annotated[
        int,
        typer.Option(
            "--slots",
            metavar="N",
            min=0,
            help="Number of clusters that ids allow for (default: the clusters given).",
        ),
    ] = 0,
    discover: Annotated[
        bool,
        typer.Option(
            "--discover/--no-discover",
            help="Whether to ask these nodes for the other nodes of their cluster.",
        ),
    ] = True,
) -> int:
    """Spread queues over independent clusters, and send each request to the right leader.

    The proxy serves pointer queues (/create_queue, /append, /read, ...) and
    work queues (/v1/queues/...) as a node does. A queue's id or name decides
    which cluster has it, so give every proxy the same clusters in the same
    order, and the same --slots. Begin with more slots than clusters if you may
    add clusters: the ids of queues then stay.

    Prints one line `ready http=HOST:PORT ...` once it serves. /health/ready
    reports the state of each cluster.

    \b
    Examples:
      tidelog proxy --cluster http://a1:8080,http://a2:8080 --cluster http://b1:8080
      tidelog proxy --cluster http://a1:8080 --cluster http://b1:8080 --slots 16 \\
          --listen 0.0.0.0:8000
    """
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
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    from tidelog.faces.compatibility.proxy.server import run

    return run(
        cluster,
        at,
        slots=slots or len(cluster),
        discover=discover,
        announce=lambda line: print(line, flush=True),
    )
