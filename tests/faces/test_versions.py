"""APIs and versions that the node does not speak."""

import struct

import pytest

from tests.faces.arena import Arena
from tests.faces.raw import framed, header
from tidelog.wire.apis import APIS, Api

UNSUPPORTED_VERSION = 35
KEYS = {api.value for api in APIS}
OTHERS = [api for api in APIS if api is not Api.API_VERSIONS]


def versions_not_taken(api: Api) -> list[int]:
    versions = APIS[api]
    below = range(versions.taken_from)
    return [*below, versions.most + 1, versions.most + 100, 32_767, -1, -32_768]


@pytest.mark.parametrize("version", versions_not_taken(Api.API_VERSIONS))
def test_an_unknown_version_of_api_versions_is_told_which_there_are(arena: Arena, version: int) -> None:
    client = arena.connect()

    # Newer clients put tags and fields behind the header that the node cannot know.
    client.send(framed(header(Api.API_VERSIONS, version, 7) + b"\0\5java\0\0"))

    correlation_id, answer = client.read_answer(Api.API_VERSIONS, 0)
    assert correlation_id == 7
    assert answer.error_code == UNSUPPORTED_VERSION
    assert {(k.api_key, k.min_version, k.max_version) for k in answer.api_keys} == {
        (api, versions.least, versions.most) for api, versions in APIS.items()
    }
    assert client.ask(Api.API_VERSIONS, 3).error_code == 0  # as it will ask next


@pytest.mark.parametrize("api", OTHERS, ids=lambda api: api.title)
def test_an_unknown_version_closes_the_connection(arena: Arena, api: Api) -> None:
    for version in versions_not_taken(api):
        client = arena.connect()

        client.send(framed(header(api, version) + bytes(50)))

        assert client.is_closed(), version


def test_an_unknown_api_closes_the_connection(arena: Arena) -> None:
    keys = [key for key in (*range(4, 100), 1000, 32_767, -1, -32_768) if key not in KEYS]
    for key in keys:
        client = arena.connect()

        client.send(framed(struct.pack(">hhih", key, 0, 1, -1) + bytes(50)))

        assert client.is_closed(), key
