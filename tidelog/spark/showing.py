"""How far a query is, shown as the offsets of a consumer group: for people, and for nobody else.

Rule 1: nothing waits for it but a query that has nothing to do. So whoever looks at a query that is
        idle, or at its end, finds what is true; a busy one is shown a moment later.
Rule 2: one request at a time, and always the newest offsets: an older one never comes last.
Rule 3: no failure stops a query.
"""

import logging
from concurrent.futures import Future
from typing import Final

from tidelog.spark import client_loop
from tidelog.spark.ranges import Offsets

logger = logging.getLogger(__name__)

TIMEOUT_SECONDS: Final = 5.0


class Shown:
    """What a group shows. One thread tells it; its requests run on the process's loop."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._newest: tuple[str, Offsets] | None = None
        self._told: tuple[str, Offsets] | None = None
        self._telling: Future[None] | None = None

    def tell(self, group: str, done: Offsets) -> None:
        """Everything below these offsets is done."""
        self._newest = group, done
        if self._newest != self._told and (self._telling is None or self._telling.done()):
            self._telling = client_loop.start(self._tell())

    def wait(self) -> None:
        """Return when the group shows what was told last, or cannot be told."""
        while self._newest != self._told:
            self.tell(*self._newest or ("", {}))
            assert self._telling is not None, "it was just begun"
            client_loop.wait(self._telling)

    async def _tell(self) -> None:
        while (newest := self._newest) is not None and newest != self._told:
            group, done = newest
            try:
                client = client_loop.client(self._bootstrap, timeout_seconds=TIMEOUT_SECONDS)
                await client.commit_offsets(group, done)
            except Exception as error:  # whatever it is, the query goes on
                logger.warning("the offsets of group %r are not shown: %s", group, error)
            self._told = newest
