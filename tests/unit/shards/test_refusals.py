import pytest

from tidelog.errors import (
    BrokerError,
    InvalidProducerEpoch,
    MessageTooLarge,
    NotEnoughReplicas,
    NotLeader,
    RequestTimedOut,
    StorageError,
    UnknownTopicOrPartition,
)
from tidelog.shards.refusals import as_coordinator

NOT_AVAILABLE, NOT_COORDINATOR, UNKNOWN_SERVER_ERROR, INVALID_EPOCH = 15, 16, -1, 47


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (NotEnoughReplicas(in_sync=1, needed=2), NOT_AVAILABLE),
        (RequestTimedOut("late"), NOT_AVAILABLE),
        (UnknownTopicOrPartition("t-0"), NOT_AVAILABLE),
        (NotLeader(leader=None), NOT_COORDINATOR),
        (StorageError("full"), NOT_COORDINATOR),
        (MessageTooLarge(size=2, size_max=1), UNKNOWN_SERVER_ERROR),
        (InvalidProducerEpoch(producer_id=1, epoch=1, current=2), INVALID_EPOCH),
    ],
)
def test_clients_are_told_of_coordinators_not_of_logs(error: BrokerError, code: int):
    told = as_coordinator(error, "group")

    assert told.code == code
    assert code != UNKNOWN_SERVER_ERROR or str(told).startswith("the group is too large")
