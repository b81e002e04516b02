import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidelog.wire.frames import FrameBuffer, FrameRefused

MIB = 1024 * 1024
SHARED_BYTES = 64 * 1024
# Sizes around every border: of the shared buffer, of a growth, of what is given at once.
BORDERS = [
    SHARED_BYTES - 5,
    SHARED_BYTES - 4,
    SHARED_BYTES - 3,
    SHARED_BYTES,
    SHARED_BYTES + 1,
    2 * SHARED_BYTES,
    2 * SHARED_BYTES + 1,
    2 * MIB - 1,
    2 * MIB,
    2 * MIB + 1,
]


def framed(*payloads):
    return b"".join(len(p).to_bytes(4, "big") + p for p in payloads)


def payload(number, size):
    return bytes([number % 251 + 1]) * (size - 1) + b"\xff"


def feed(frames, data, chunk):
    """Give `data` to `frames` as a socket would: at most `chunk` and what fits at once."""
    found = []
    view = memoryview(data)
    while view:
        space = frames.space()
        count = min(chunk, len(space), len(view))
        assert count > 0, "there is always room for more"
        space[:count] = view[:count]
        found += frames.received(count)
        view = view[count:]
    return found


@settings(max_examples=60)
@given(
    sizes=st.lists(st.integers(4, 200), max_size=12),
    chunks=st.lists(st.integers(1, 300), min_size=1, max_size=10),
)
def test_small_frames_are_the_same_however_the_stream_is_split(sizes, chunks):
    payloads = [payload(n, size) for n, size in enumerate(sizes)]
    data, at, found = framed(*payloads), 0, []
    frames = FrameBuffer(1000)

    while at < len(data):
        chunk = chunks[at % len(chunks)]
        found += feed(frames, data[at : at + chunk], chunk)
        at += chunk

    assert found == payloads
    assert not frames.is_partial


@pytest.mark.parametrize("chunk", [30_011, 65_537, MIB])
@pytest.mark.parametrize("size", BORDERS)
def test_large_frames_are_the_same_however_the_stream_is_split(size, chunk):
    payloads = [payload(1, 100), payload(2, size), payload(3, size), payload(4, 100)]

    found = feed(FrameBuffer(8 * MIB), framed(*payloads), chunk)

    assert len(found) == len(payloads)
    assert all(a == b for a, b in zip(found, payloads, strict=True))


def test_a_stream_in_single_bytes_gives_its_frames_as_soon_as_they_are_whole():
    frames = FrameBuffer(1000)

    stream = framed(b"four", b"fives")
    ends = [n for n, byte in enumerate(stream) if feed(frames, bytes([byte]), 1)]

    assert ends == [7, 16]


@pytest.mark.parametrize("size", [-1, -(2**31), 0, 3, 1001, 2**31 - 1])
def test_a_length_that_lies_is_refused_by_its_four_bytes(size):
    frames = FrameBuffer(1000)
    data = size.to_bytes(4, "big", signed=True)

    assert feed(frames, data[:3], 3) == []
    with pytest.raises(FrameRefused, match=f"a frame of {size} bytes; sizes from 4 to 1000"):
        feed(frames, data[3:], 1)


@pytest.mark.parametrize(
    ("beginning", "protocol"),
    [(b"HTTP/1.1 400 Bad Request", "HTTP"), (b"GET / HTTP/1.1", "HTTP"), (b"\x16\x03\x01\x02\x00", "TLS")],
)
def test_another_protocol_is_named_and_not_told_as_a_size(beginning, protocol):
    with pytest.raises(FrameRefused, match=f"^{protocol} and not Kafka's protocol"):
        feed(FrameBuffer(1000), beginning, 100)


def test_the_largest_and_the_smallest_frame_are_taken():
    assert feed(FrameBuffer(1000), framed(bytes(1000), bytes(4)), 10_000) == [bytes(1000), bytes(4)]


def test_memory_grows_only_as_bytes_arrive():
    frames = FrameBuffer(2**31 - 1)
    feed(frames, (2**31 - 1).to_bytes(4, "big"), 4)
    received = 0

    while received < 8 * MIB:
        space = len(frames.space())
        assert space <= max(SHARED_BYTES, received)
        frames.received(space)
        received += space

    assert frames.is_partial


def test_who_has_sent_large_frames_gets_at_most_two_mebibytes_at_once():
    frames = FrameBuffer(2**31 - 1)
    feed(frames, framed(bytes(4 * MIB)), MIB)

    feed(frames, (2**31 - 1).to_bytes(4, "big"), 4)

    assert len(frames.space()) <= 2 * MIB


def test_a_frame_is_its_receivers_own():
    frames = FrameBuffer(MIB)
    first, second = feed(frames, framed(b"aaaa", b"bbbb"), 100)
    large = feed(frames, framed(bytes(100_000)), MIB)[0]

    first[:] = b"xxxx"
    feed(frames, framed(b"cccc" * 30_000), MIB)

    assert (first, second) == (b"xxxx", b"bbbb")
    assert large == bytes(100_000)


def test_an_idle_connection_holds_no_memory_and_a_partial_frame_is_kept():
    frames = FrameBuffer(1000)
    feed(frames, framed(b"whole") + b"\0\0\0\4re", 100)
    partial = [frames.is_partial]
    frames.release_idle()

    assert feed(frames, b"st", 100) == [b"rest"]
    partial.append(frames.is_partial)
    frames.release_idle()

    assert partial == [True, False]

    assert feed(frames, framed(b"again"), 100) == [b"again"]
