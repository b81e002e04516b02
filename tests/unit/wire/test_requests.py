import pytest

from tests.unit.wire.messages import frame_of
from tidelog.wire.apis import APIS, Api
from tidelog.wire.lengths import MessageDamaged
from tidelog.wire.requests import read_header, versions_of

TAKEN = [(a, v) for a, known in APIS.items() for v in range(known.taken_from, known.most + 1)]


@pytest.mark.parametrize("client_id", ["", "consumer-ä", None])
def test_the_header_of_every_api_and_version_is_read_up_to_its_body(client_id):
    for api, version in TAKEN:
        frame = frame_of(api, version, {}, client_id=client_id, body=b"BODY", correlation_id=2**30)

        header = read_header(frame)

        assert (header.api, header.api_key, header.version) == (api, api, version)
        assert (header.correlation_id, header.client_id) == (2**30, client_id)
        assert frame[header.body_at :] == b"BODY"


def test_tags_of_a_flexible_header_are_passed_over():
    frame = frame_of(Api.METADATA, 9, {}, client_id="c", body=b"")
    frame = frame[:-1] + b"\x02" + b"\x00\x03abc" + b"\x85\x01\x00" + b"BODY"

    assert frame[read_header(frame).body_at :] == b"BODY"


@pytest.mark.parametrize(
    ("api_key", "version"), [(0, 2), (0, 14), (1, 3), (18, 5), (3, -1), (999, 0), (-1, 0)]
)
def test_of_what_is_not_taken_only_the_first_fields_are_read(api_key, version):
    frame = bytearray(api_key.to_bytes(2, "big", signed=True))
    frame += version.to_bytes(2, "big", signed=True) + b"\0\0\0\x09" + b"\x7f\xff"

    header = read_header(frame)

    assert header.api is None
    assert (header.api_key, header.version, header.correlation_id) == (api_key, version, 9)


@pytest.mark.parametrize("size", range(10))
def test_a_header_that_is_cut_off_is_damaged(size):
    with pytest.raises(MessageDamaged):
        read_header(frame_of(Api.METADATA, 9, {}, client_id="")[:size])


@pytest.mark.parametrize("tail", [b"", b"\x01", b"\x01\x00\x05ab", b"\xff\xff\xff\xff\x0f"])
def test_tags_that_are_cut_off_or_lie_are_damaged(tail):
    frame = frame_of(Api.METADATA, 9, {}, client_id="c", body=b"")[:-1] + tail

    with pytest.raises(MessageDamaged):
        read_header(frame)


def test_a_client_id_longer_than_the_request_is_damaged():
    frame = frame_of(Api.METADATA, 1, {}, client_id="abc", body=b"")[:-1]

    with pytest.raises(MessageDamaged, match="client id"):
        read_header(frame)


def test_versions_are_known_by_key():
    assert versions_of(18) is APIS[Api.API_VERSIONS]
    assert versions_of(999) is None
