"""Seeds of transactions, and what must come of each."""

import pytest

from tidelog.errors import CorruptMessage
from tidelog.records import CONTROL, CRC_FROM, TRANSACTIONAL, Record, encode_batch
from tidelog.simulation.swarm import make_plan, play
from tidelog.simulation.transactions import _checked_header


@pytest.mark.parametrize("seed", [3])
def test_the_same_seed_gives_the_same_history(seed):
    plan = make_plan(seed, story="transactions", chaos_seconds=3)

    first, second = play(plan), play(plan)

    assert first.violation is None
    assert first.trace_hash == second.trace_hash
    assert first.acknowledged == second.acknowledged > 0


def test_readers_believe_no_batch_whose_checksum_does_not_match():
    """Rot that turns records into a marker must not make a reader pass over them."""
    sound = bytes(encode_batch([Record(value=b"committed")], producer_id=1, attributes=TRANSACTIONAL))
    rotten = bytearray(sound)
    rotten[CRC_FROM + 1] ^= CONTROL  # the checksum begins with the attributes

    assert not _checked_header(sound).is_control
    with pytest.raises(CorruptMessage, match="checksum"):
        _checked_header(bytes(rotten))
