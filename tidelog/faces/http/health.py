"""Whether a node can serve, and if not, why."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidelog.faces.node import Node


def why_not_ready(node: "Node") -> str | None:
    """What keeps the node from serving; None if nothing does."""
    if node.is_stopping:
        return "the node is stopping"
    if waiting := node.broker.waits_for_voters():
        return waiting
    quorum = node.broker.quorum
    if quorum is not None and quorum.leader is None:
        voters = ", ".join(map(str, quorum.voters.ids))
        return f"the quorum has no leader; it takes more than half of the voters {voters}"
    if not node.is_serving:
        if quorum is None:
            return "the node is starting: it opens its directory, or waits for its quorum to form"
        return "the node is starting: it registers and recovers its partitions"
    membership = node.broker.membership
    if membership.broker is None:
        return "the controller does not know this life of the node yet; it registers again"
    if membership.broker.fenced:
        return "the controller has fenced the node, which was silent for too long"
    return None


def warning(node: "Node") -> str | None:
    """What an operator should look after though the node serves; None if there is nothing."""
    if (told := node.broker.room.warning) is not None:
        return told
    if unserved := node.broker.unserved:
        more = f" (and {len(unserved) - 1} more)" if len(unserved) > 1 else ""
        return next(iter(unserved.values())) + more
    return None
