"""What a follower of the quorum takes from its leader, and what it refuses."""

import asyncio

import pytest

from tidelog.cluster.quorum import _checked
from tidelog.controller.records import LeaderChanged, MetadataRecord, ProducerIdsGranted, encode
from tidelog.errors import CorruptMessage
from tidelog.model import Epoch, Offset
from tidelog.raft.messages import FetchAnswer
from tidelog.records import Record, encode_batch, stamp


def batch(start: Offset, epoch: Epoch, *records: MetadataRecord) -> bytes:
    content = encode_batch([Record(value=encode(r), timestamp_ms=0) for r in records])
    stamp(content, start, epoch)
    return bytes(content)


def led(epoch: Epoch) -> LeaderChanged:
    return LeaderChanged(epoch=epoch, leader=1, voters=[])


GRANTED = ProducerIdsGranted(node=1, end=5)


def answer(*batches: bytes, epoch: Epoch = 3, offset: Offset = 7) -> FetchAnswer:
    return FetchAnswer(epoch=epoch, leader=1, offset=offset, data=b"".join(batches))


def test_entries_up_to_the_epoch_of_the_answer_are_taken():
    found = answer(batch(7, 2, GRANTED), batch(8, 3, led(3)), batch(9, 3, GRANTED))

    assert [f.entry.start for f in asyncio.run(_checked(found))] == [7, 8, 9]


@pytest.mark.parametrize(
    "batches",
    [
        pytest.param([batch(7, 4, led(4))], id="an epoch above the answer's"),
        pytest.param([batch(7, 2, led(3))], id="a leader's record of another epoch"),
        pytest.param([batch(7, 2, led(2)), batch(8, 3, GRANTED)], id="an epoch that nobody has begun"),
        pytest.param([batch(8, 3, GRANTED)], id="a gap before the first entry"),
        pytest.param([batch(7, 3, GRANTED), batch(9, 3, GRANTED)], id="a gap in between"),
    ],
)
def test_what_a_leader_of_that_epoch_cannot_hold_is_refused(batches):
    with pytest.raises(CorruptMessage):
        asyncio.run(_checked(answer(*batches)))
