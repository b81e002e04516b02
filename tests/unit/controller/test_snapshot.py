from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.controller.histories import cluster, histories, image_after
from tests.unit.controller.test_image import indexes_of
from tidelog.controller.image import ClusterImage
from tidelog.controller.records import (
    BrokerUnregistered,
    NodeRegistered,
    SnapshotBegan,
    TopicCreated,
    TopicDeleted,
    encode,
)
from tidelog.controller.snapshot import VERSION, decode_snapshot, encode_snapshot


def framed(*records):
    return b"".join(len(data).to_bytes(4, "big") + data for data in map(encode, records))


@settings(max_examples=50, deadline=None)
@given(records=histories(), data=st.data())
def test_a_snapshot_and_the_rest_of_the_log_give_the_image_of_the_whole_log(records, data):
    cut = data.draw(st.integers(0, len(records)))
    prefix = image_after(*records[:cut])

    image = decode_snapshot(encode_snapshot(prefix))

    assert image == prefix
    assert indexes_of(image) == indexes_of(prefix)
    for record in records[cut:]:
        image.apply(record)
    whole = image_after(*records)
    assert image == whole
    assert indexes_of(image) == indexes_of(whole)


@settings(max_examples=50, deadline=None)
@given(records=histories())
def test_the_snapshot_of_a_snapshot_is_the_same_bytes(records):
    data = encode_snapshot(image_after(*records))

    assert encode_snapshot(decode_snapshot(data)) == data


def test_the_snapshot_of_nothing_is_nothing():
    assert decode_snapshot(encode_snapshot(ClusterImage())) == ClusterImage()


def test_a_broker_epoch_is_remembered_when_its_broker_is_gone():
    image = image_after(*cluster(1, 2), BrokerUnregistered(node=2, broker_epoch=2))

    assert decode_snapshot(encode_snapshot(image)).broker_epoch_last == 2


def test_the_snapshot_of_a_node_that_is_alone_opens_no_epochs():
    image = image_after(
        NodeRegistered(node=1, incarnation="a"),
        TopicCreated(name="t", id=str(UUID(int=1)), replicas=[[1]]),
        NodeRegistered(node=1, incarnation="b"),
    )

    assert decode_snapshot(encode_snapshot(image)).topics["t"].partitions[0].epoch == 1


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0\0",
        framed(TopicDeleted(name="t")),
        framed(SnapshotBegan(version=VERSION), SnapshotBegan(version=VERSION)),
        framed(SnapshotBegan(version=VERSION + 1)),
        framed(SnapshotBegan(version=VERSION))[:-1],
        framed(SnapshotBegan(version=VERSION)) + b"\0\0\0",
    ],
)
def test_what_is_damaged_or_of_a_later_version_is_refused(data):
    with pytest.raises(ValueError):
        decode_snapshot(data)


@given(histories())
def test_a_snapshot_has_every_change_though_topics_were_encoded_before(history):
    image, never_encoded = ClusterImage(), ClusterImage()
    for record in history:
        image.apply(record)
        never_encoded.apply(record)
        encode_snapshot(image)

    assert encode_snapshot(image) == encode_snapshot(never_encoded)
