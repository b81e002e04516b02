"""Work that ends with an answer to a peer."""

import logging
from collections.abc import Awaitable, Callable
from typing import ParamSpec

from tidelog.peers.listener import Answer

P = ParamSpec("P")

_log = logging.getLogger(__name__)


async def answered(
    place: Answer, work: Callable[P, Awaitable[None]], *args: P.args, **kwargs: P.kwargs
) -> None:
    """Do what a peer asked for. Whatever it sent, a fault of ours harms nobody but it; a failed disk
    (OSError) ends the node as ever.
    """
    try:
        await work(*args, **kwargs)
    except OSError:
        raise
    except Exception:
        _log.exception("what a peer asked for failed")
        if not place.is_gone:
            place.fail("the request failed; see the node's log")
