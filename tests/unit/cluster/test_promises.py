import pytest

from tidelog.cluster.promises import decode_promise, encode_promise
from tidelog.raft.messages import ElectionState
from tidelog.raft.voters import ReplicaKey

STATES = [
    ElectionState(),
    ElectionState(epoch=7, voted=ReplicaKey(2, "disk"), leader=2),
    ElectionState(epoch=8, leader=3),
]


@pytest.mark.parametrize("state", STATES)
def test_a_promise_is_read_as_it_was_written(state):
    assert decode_promise(encode_promise(state), ElectionState) == state


@pytest.mark.parametrize("state", STATES)
def test_a_rotten_promise_is_not_believed(state):
    content = encode_promise(state)
    for position in range(len(content)):
        for bit in range(8):
            rotten = bytearray(content)
            rotten[position] ^= 1 << bit
            with pytest.raises(ValueError):
                decode_promise(bytes(rotten), ElectionState)


def test_a_promise_that_was_cut_off_is_not_believed():
    content = encode_promise(STATES[1])
    for size in range(len(content)):
        with pytest.raises(ValueError):
            decode_promise(content[:size], ElectionState)
