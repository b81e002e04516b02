"""The header of a request, read by hand because every request pays for it."""

# header := api_key: int16, version: int16, correlation_id: int32, client_id: string?, tags?
# string? := length: int16 (-1 is null), that many bytes
# tags are there in flexible versions; see `lengths`

import struct
from typing import Final, NamedTuple

from tidelog.wire.apis import APIS, Api, Versions
from tidelog.wire.lengths import MessageDamaged, skip_tags

_HEAD: Final = struct.Struct(">hhih")
_API_KEYS: Final = {api.value: (api, versions) for api, versions in APIS.items()}


class Header(NamedTuple):
    """What every request says before its body, which begins at `body_at`."""

    api_key: int
    version: int
    correlation_id: int
    client_id: str | None
    body_at: int
    api: Api | None
    """None if the API is not one of ours, or its version is not taken."""


def read_header(frame: bytearray) -> Header:
    """The header of `frame`; MessageDamaged if it is cut off.

    Of a request that is not taken only the first four fields are read: nothing else is known.
    """
    if len(frame) < _HEAD.size:
        raise MessageDamaged(f"a request of {len(frame)} bytes has no header")
    api_key, version, correlation_id, client_bytes = _HEAD.unpack_from(frame)
    known = _API_KEYS.get(api_key)
    if known is None or not known[1].takes(version):
        return Header(api_key, version, correlation_id, None, 0, None)
    at = _HEAD.size
    client_id = None
    if client_bytes >= 0:
        end = at + client_bytes
        if end > len(frame):
            raise MessageDamaged("the client id is longer than the request")
        client_id = frame[at:end].decode("utf-8", "replace")
        at = end
    if version >= known[1].flexible_from:
        at = skip_tags(frame, at)
    return Header(api_key, version, correlation_id, client_id, at, known[0])


def versions_of(api_key: int) -> Versions | None:
    known = _API_KEYS.get(api_key)
    return known[1] if known is not None else None
