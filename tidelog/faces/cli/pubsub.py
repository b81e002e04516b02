"""`tidelog pubsub`: messages to whoever listens now, over the HTTP face."""

import sys
from contextlib import closing
from typing import Annotated

import typer

from tidelog.faces.cli.common import AsJson, note, plain, print_json, print_table
from tidelog.faces.cli.over_http import (
    DEFAULT_HTTP,
    AsLines,
    AsText,
    Http,
    not_empty,
    open_client,
    read_value,
    shown,
)

app = typer.Typer(help="Pub/sub: messages for present subscribers; nothing is kept.", no_args_is_help=True)


@app.command("publish")
def publish(
    topic: Annotated[
        str,
        typer.Argument(
            metavar="TOPIC", callback=not_empty, help="Topic: words separated by dots, as news.sport."
        ),
    ],
    data: Annotated[
        str, typer.Argument(metavar="DATA", help="JSON, or else text; - reads it from standard input.")
    ],
    as_text: AsText = False,
    http: Http = DEFAULT_HTTP,
    as_json: AsJson = False,
) -> None:
    """Publish a message to all present subscribers, at any node.

    \b
    Examples:
      tidelog pubsub publish news.sport '{"score": 3}'
      tidelog pubsub publish news.sport "half time"
    """
    content = read_value(data, as_text=as_text)
    with open_client(http) as client:
        heard = client.pubsub.publish(topic, content)
    if as_json:
        print_json({"topic": topic, "receivers": heard})
    else:
        print(f"{heard} heard it")


@app.command("subscribe")
def subscribe(
    topics: Annotated[
        list[str],
        typer.Argument(
            metavar="TOPIC...", help="Topics or patterns: * matches one word, # all words that follow."
        ),
    ],
    count_max: Annotated[
        int | None, typer.Option("--max", metavar="N", min=1, help="Stop after N messages.")
    ] = None,
    http: Http = DEFAULT_HTTP,
    as_json: AsLines = False,
) -> None:
    """Print messages as they come: topic, data. Ctrl-C stops it.

    \b
    Examples:
      tidelog pubsub subscribe news.sport
      tidelog pubsub subscribe 'news.*' 'alerts.#' --json
      tidelog pubsub subscribe 'news.#' --max 1
    """
    count = 0
    with open_client(http) as client, closing(client.pubsub.subscribe(*topics)) as messages:
        for message in messages:
            if as_json:
                print_json({"topic": message.topic, "data": message.data})
            else:
                print(f"{plain(message.topic)}\t{plain(shown(message.data))}")
            sys.stdout.flush()
            count += 1
            if count == count_max:
                return


@app.command("stats")
def stats(http: Http = DEFAULT_HTTP, as_json: AsJson = False) -> None:
    """Show the number of subscribers by topic or pattern, over all nodes.

    \b
    Examples:
      tidelog pubsub stats
      tidelog pubsub stats --json
    """
    with open_client(http) as client:
        found = client.pubsub.stats()
    if as_json:
        print_json(found)
    elif not found["topics"]:
        note("there are no subscribers now")
    else:
        print_table(["topic", "subscribers#"], sorted(found["topics"].items()))
