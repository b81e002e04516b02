import pytest

from tests.unit.broker.node import Refused, on_a_node
from tests.unit.wire.messages import read_response
from tidelog.wire.apis import APIS, Api

BY_ENTITY = [api for api in APIS if api not in (Api.PRODUCE, Api.FETCH)]
ADVERTISED = {(api.value, versions.least, versions.most) for api, versions in APIS.items()}


def advertised_by(answer):
    return {(key.api_key, key.min_version, key.max_version) for key in answer.api_keys}


@pytest.mark.parametrize("version", range(5))
def test_the_versions_are_told_in_every_version(version):
    async def story(node):
        answer = await node.ask(Api.API_VERSIONS, version)

        assert answer.error_code == 0
        assert advertised_by(answer) == ADVERTISED

    on_a_node(story)


@pytest.mark.parametrize("version", [5, 99, 32767])
def test_versions_asked_for_in_an_unknown_version_are_told_in_version_0(version):
    async def story(node):
        frame = bytearray(b"\0\x12" + version.to_bytes(2, "big") + b"\0\0\0\x01" + b"\xff\xffrest")

        answer = read_response(Api.API_VERSIONS, 0, await node.send_frame(frame).body)

        assert answer.error_code == 35
        assert advertised_by(answer) == ADVERTISED

    on_a_node(story)


@pytest.mark.parametrize("api", BY_ENTITY)
def test_whatever_is_advertised_is_answered(api):
    async def story(node):
        for version in range(APIS[api].taken_from, APIS[api].most + 1):
            await node.ask(api, version)

    on_a_node(story)


@pytest.mark.parametrize(("key", "version"), [(0, 2), (1, 18), (3, 14), (67, 0), (999, 0)])
def test_another_api_or_version_closes_the_connection(key, version):
    async def story(node):
        frame = bytearray(key.to_bytes(2, "big") + version.to_bytes(2, "big") + bytes(20))

        with pytest.raises(Refused, match=f"API {key} is not known in version {version}"):
            await node.send_frame(frame).body

    on_a_node(story)


@pytest.mark.parametrize(
    ("api", "version", "body"),
    [
        (Api.PRODUCE, 9, b"\0"),
        (Api.FETCH, 11, b"\0" * 10),
        (Api.METADATA, 12, b"\xff\xff\xff\xff\x07"),
        (Api.CREATE_TOPICS, 4, b"\x7f\xff\xff\xff"),
    ],
)
def test_a_damaged_request_closes_its_connection_and_others_go_on(api, version, body):
    async def story(node):
        with pytest.raises(Refused):
            await node.send(api, version, {}, body=body).body

        assert (await node.ask(Api.API_VERSIONS, 3)).error_code == 0

    on_a_node(story)


def test_what_a_handler_refuses_as_a_whole_is_answered_without_content():
    async def story(node):
        listed = await node.ask(Api.LIST_OFFSETS, 7, replica_id=2, topics=[])
        epochs = await node.ask(Api.OFFSET_FOR_LEADER_EPOCH, 4, replica_id=2, topics=[])

        assert listed.topics == epochs.topics == ()

    on_a_node(story)


def test_a_bug_in_a_handler_closes_one_connection_and_is_logged(caplog):
    async def story(node):
        def broken(*_):
            raise RuntimeError("a bug")

        node.requests._handlers[Api.METADATA] = broken

        with pytest.raises(Refused, match="an internal error"):
            await node.send(Api.METADATA, 12, {}).body
        assert (await node.ask(Api.DESCRIBE_CLUSTER, 0)).error_code == 0

    on_a_node(story)

    assert "Metadata from test failed; its connection is closed" in caplog.text


def test_a_client_says_with_api_versions_what_software_it_is():
    async def story(node):
        await node.ask(
            Api.API_VERSIONS, 3, client_software_name="tide", client_software_version="1-rdkafka-2"
        )

        assert node.client.software == "tide 1-rdkafka-2"

    on_a_node(story)
