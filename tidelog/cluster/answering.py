"""Work that ends with an answer to a peer."""

import logging
from collections.abc import Awaitable

from tidelog.peers.listener import Answer

_log = logging.getLogger(__name__)


async def answered(work: Awaitable[None], place: Answer) -> None:
    """Do what a peer asked for. Whatever it sent, a fault of ours harms nobody but it; a failed disk
    (OSError) ends the node as ever.
    """
    try:
        await work
    except OSError:
        raise
    except Exception:
        _log.exception("what a peer asked for failed")
        if not place.is_gone:
            place.fail("the request failed; see the node's log")
