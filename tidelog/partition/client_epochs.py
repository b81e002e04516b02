"""The epoch that a client believes a partition to be in, held against the one that it is in.

Rule: a client that does not say is not refused.
"""

from tidelog.errors import FencedLeaderEpoch, UnknownLeaderEpoch
from tidelog.model import NO_EPOCH, Epoch


def check_epoch(epoch: Epoch, current: Epoch) -> None:
    """Refuse a client that knows of another epoch; NO_EPOCH if it does not say."""
    if epoch not in (NO_EPOCH, current):
        if epoch < current:
            raise FencedLeaderEpoch(f"epoch {epoch} has passed; it is {current}")
        raise UnknownLeaderEpoch(f"epoch {epoch} has not come yet; it is {current}")
