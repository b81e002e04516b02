"""What one client compresses, every client reads; the node passes it through unopened."""

import functools
import itertools
import random
from collections.abc import Callable, Iterator
from typing import Final

import pytest

from tests.clients.adapters import EARLIEST, Consumer
from tests.clients.libraries import CLIENTS
from tests.clients.nodes import stored_batches
from tests.support.node import NodeProcess
from tidelog.records import Codec

CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
VALUES: Final = [
    b"the same again " * 5000,  # larger than one block of snappy's framing, and it shrinks well
    random.Random(1).randbytes(3000),  # shrinks not at all
    b"",
    *[b"value %d" % number for number in range(50)],
]
HEADERS: Final = (("codec", b"any"), ("größe", b""))


@pytest.fixture(scope="module")
def write_once(shared_node: NodeProcess) -> Callable[[str, str], str]:
    """Has a client write a topic with a codec, the first time it is asked; the topic's name."""

    @functools.cache
    def write(writer: str, codec: str) -> str:
        topic = f"written-by-{writer}-{codec}"
        with CLIENTS[writer](shared_node.bootstrap) as client:
            producer = client.producer(codec=codec, linger_ms=20)
            for number, value in enumerate(VALUES):
                producer.send(topic, value, key=b"%d" % number, headers=HEADERS)
            producer.flush()
        return topic

    return write


@pytest.fixture(params=itertools.product(CLIENTS, CODECS), ids="-".join)
def written(request: pytest.FixtureRequest, write_once: Callable[[str, str], str]) -> tuple[str, str]:
    """A topic that one client has written with one codec, and the codec's name."""
    writer, codec = request.param
    return write_once(writer, codec), codec


@pytest.fixture(scope="module", params=CLIENTS)
def reader(request: pytest.FixtureRequest, shared_node: NodeProcess) -> Iterator[Consumer]:
    with CLIENTS[request.param](shared_node.bootstrap) as client:
        yield client.consumer()


def test_every_client_reads_what_any_client_wrote_with_any_codec(written, reader):
    topic, _ = written

    messages = reader.assign(topic, {0: EARLIEST}).take(len(VALUES))

    assert [m.value for m in messages] == VALUES
    assert [m.key for m in messages] == [b"%d" % number for number in range(len(VALUES))]
    assert {m.headers for m in messages} == {HEADERS}


def test_batches_are_stored_in_the_codec_in_which_they_came(written, shared_node):
    topic, codec = written

    batches = stored_batches(shared_node.data, topic)

    plain_bytes = sum(map(len, VALUES))
    stored_bytes = sum(batch.size for batch in batches)
    if codec == "none":
        assert {batch.codec for batch in batches} == {Codec.NONE}
        assert stored_bytes > plain_bytes
    else:
        # A client may leave alone a batch that does not shrink.
        assert Codec[codec.upper()] in {batch.codec for batch in batches}
        assert stored_bytes < plain_bytes / 2
