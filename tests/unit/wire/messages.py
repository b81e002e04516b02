"""Messages as kio, the library, writes and reads them: what our own codecs are held to."""

from kio.serial import entity_reader

from tidelog.wire.apis import APIS
from tidelog.wire.entities import encode, request_entity, response_type
from tidelog.wire.requests import Header, read_header


def frame_of(api, version, fields, *, client_id="test", correlation_id=7, body=None):
    """A whole request as a client sends it, without its size."""
    flexible = version >= APIS[api].flexible_from
    frame = bytearray(int(api).to_bytes(2, "big") + version.to_bytes(2, "big"))
    frame += correlation_id.to_bytes(4, "big")
    if client_id is None:
        frame += b"\xff\xff"
    else:
        frame += len(client_id.encode()).to_bytes(2, "big") + client_id.encode()
    if flexible:
        frame.append(0)
    return frame + (encode(request_entity(api, version, fields)) if body is None else body)


def produce_fields(topics, *, acks=-1, timeout_ms=1000, transactional_id=None):
    """`topics` is a list of (name or id, [(partition, records)])."""
    return {
        "transactional_id": transactional_id,
        "acks": acks,
        "timeout": timeout_ms,
        "topic_data": [
            {
                "name": topic,
                "topic_id": topic,
                "partition_data": [{"index": i, "records": records} for i, records in partitions],
            }
            for topic, partitions in topics
        ],
    }


def read_response(api, version, body):
    """The response that `body` is, all of it, as kio reads it."""
    entity, size = entity_reader(response_type(api, version))(memoryview(bytes(body)), 0)
    assert size == len(body), "bytes follow the response"
    return entity


def header_of(frame) -> Header:
    header = read_header(frame)
    assert header.api is not None
    return header
