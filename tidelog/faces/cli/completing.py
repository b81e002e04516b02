"""Names that the shell completes.

Rule: whatever goes wrong, the shell is offered nothing, soon and in silence: somebody is typing.
"""

import os
from typing import Final

import typer

from tidelog.faces.cli.common import DEFAULT_BOOTSTRAP, run

SECONDS_MAX: Final = 1.0


def topic_names(context: typer.Context, incomplete: str) -> list[str]:
    """The topics of the cluster that begin with what was typed; internal ones only if it names them."""
    bootstrap = context.params.get("bootstrap") or os.environ.get("TIDELOG_BOOTSTRAP") or DEFAULT_BOOTSTRAP

    async def ask() -> list[str]:
        import asyncio

        from tidelog.client.kafka import KafkaClient

        async with asyncio.timeout(SECONDS_MAX), KafkaClient(bootstrap) as client:
            topics = await client.topics()
        return [topic.name for topic in topics if incomplete or not topic.internal]

    try:
        names = run(ask())
    except Exception:
        return []
    return sorted(name for name in names if name.startswith(incomplete))
