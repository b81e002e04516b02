"""What an election brings each partition."""

import pytest

from tidelog.errors import BrokerError, ElectionNotNeeded, PreferredLeaderNotAvailable, error_of
from tidelog.model import NO_NODE, TopicPartition
from tidelog.operators.elections import elected


@pytest.mark.parametrize(
    ("fate", "word"),
    [
        (None, "elected"),
        (error_of(ElectionNotNeeded.code, "it is led by 1"), "not needed"),
        (error_of(PreferredLeaderNotAvailable.code, "the first is away"), "refused"),
    ],
)
def test_every_partition_has_an_outcome(fate: BrokerError | None, word: str) -> None:
    name = TopicPartition("t", 0)

    found = elected(name, fate, 1)

    assert (found.outcome, found.leader) == (word, 1)
    assert found.error == ("t-0: the first is away" if word == "refused" else None)
    assert elected(name, fate, NO_NODE).leader is None
