"""What those who asked a coordinator are told when its log refused a write."""

from tidelog.errors import (
    BrokerError,
    CoordinatorNotAvailable,
    MessageTooLarge,
    NotCoordinator,
    NotEnoughReplicas,
    NotLeader,
    RequestTimedOut,
    StorageError,
    UnknownTopicOrPartition,
)


def as_coordinator(error: BrokerError, what: str) -> BrokerError:
    """The log's refusal, in the words that clients know; `what` was to be stored."""
    match error:
        case NotEnoughReplicas() | RequestTimedOut() | UnknownTopicOrPartition():
            return CoordinatorNotAvailable(str(error))
        case NotLeader() | StorageError():
            return NotCoordinator(str(error))
        case MessageTooLarge():
            return BrokerError(f"the {what} is too large to be stored: {error}")
        case _:
            return error
