"""Keys over HTTP."""

import asyncio
import json
from copy import deepcopy
from functools import partial
from urllib.parse import quote

import pytest

from tests.unit.broker.node import on_a_node
from tests.unit.faces.http.test_app import ask
from tests.unit.faces.http.test_records import serving
from tests.unit.faces.http.test_streams import Listener, let_lag
from tidelog.records import Record, encode_batch
from tidelog.wire.partitioner import partition_for

JSON = {"content-type": "application/json"}
VALUES = ("text", 7, None, {"n": [1, 2]}, True)


async def change(app, *operations):
    body = (json.dumps({"operations": operations}).encode(),)
    return await ask(app, "/v1/kv/b:batch", method="POST", headers=JSON, chunks=body)


def test_a_batch_takes_values_of_any_json_and_deletes():
    async def story(node):
        app = serving(node)
        puts = [{"op": "put", "key": f"k{n}", "value": value} for n, value in enumerate(VALUES)]

        done = await change(app, *puts)
        gone = await change(app, {"op": "delete", "key": "k0"})

        assert [one["version"] for one in done.json["results"]] == [0, 1, 2, 3, 4]
        assert gone.json["results"][0]["version"] == 5
        assert (await ask(app, "/v1/kv/b/k0")).status == 404
        for n, value in enumerate(VALUES[1:], 1):
            assert (await ask(app, f"/v1/kv/b/k{n}")).json["value"] == value

    on_a_node(story)


def test_a_batch_is_refused_where_a_put_has_no_value_or_a_deletion_has_one():
    async def story(node):
        app = serving(node)

        for operation in ({"op": "put", "key": "k"}, {"op": "delete", "key": "k", "value": 1}):
            assert (await change(app, operation)).status == 400

    on_a_node(story)


def test_a_batch_goes_to_the_partitions_where_its_keys_are_looked_for():
    async def story(node):
        app = serving(node)
        await node.create("b", partitions=3, cleanup_policy="compact", kv_view="true")
        keys = [f"k{n}" for n in range(10)]

        await change(app, *({"op": "put", "key": key, "value": key} for key in keys))

        assert [(await ask(app, f"/v1/kv/b/{key}")).json["value"] for key in keys] == keys

    on_a_node(story)


def test_of_a_batch_each_partition_tells_for_itself_what_became_of_its_keys():
    async def story(node):
        app = serving(node)
        await node.create("b", partitions=2, cleanup_policy="compact", kv_view="true")
        await change(app, {"op": "put", "key": "k0", "value": 1})
        keys = [f"k{n}" for n in range(8)]
        places = [place_of(node, key) for key in keys]
        assert set(places) == {0, 1}
        node.broker.partition("b", 0).log.refusal = "the disk is full"

        done = await change(app, *({"op": "put", "key": key, "value": 1} for key in keys))

        assert done.status == 200
        for place, one in zip(places, done.json["results"], strict=True):
            assert ("version" in one) == (place == 1)
            assert place == 1 or one["error"]["status"] == 503
        node.broker.partition("b", 0).log.refusal = None

    on_a_node(story)


def place_of(node, key):
    return partition_for(key.encode(), len(node.broker.image.topics["b"].partitions))


def test_an_idempotency_key_names_what_is_done_to_one_key():
    async def story(node):
        app = serving(node)

        async def put(key, value):
            body = (json.dumps({"value": value}).encode(),)
            headers = {**JSON, "idempotency-key": "same"}
            return (await ask(app, f"/v1/kv/b/{key}", method="PUT", headers=headers, chunks=body)).json

        first, other, again = await put("a", 1), await put("b", 2), await put("a", 1)

        assert (first["version"], other["version"], again["version"]) == (0, 1, 0)
        assert (await ask(app, "/v1/kv/b/b")).json["value"] == 2

    on_a_node(story)


@pytest.mark.parametrize("body", [{"value": 2}, {"value": 1, "ttl_ms": 1000}, {"value": 1, "if_version": 0}])
def test_an_idempotency_key_with_another_body_is_refused(body):
    async def story(node):
        app = serving(node)

        async def put(body):
            headers = {**JSON, "idempotency-key": "same"}
            chunks = (json.dumps(body).encode(),)
            return await ask(app, "/v1/kv/b/a", method="PUT", headers=headers, chunks=chunks)

        assert (await put({"value": 1})).json["version"] == 0
        refused, again = await put(body), await put({"value": 1})

        assert refused.status == 422
        assert "another request" in refused.json["detail"]
        assert (again.status, again.json["version"]) == (200, 0)
        assert (await ask(app, "/v1/kv/b/a")).json["value"] == 1

    on_a_node(story)


def test_a_late_copy_of_a_request_that_changed_nothing_changes_nothing():
    async def story(node):
        app = serving(node)
        headers = {**JSON, "idempotency-key": "one"}
        wanted = (b'{"value": 2, "if_version": -1}',)

        async def put_new():
            return await ask(app, "/v1/kv/b/new", method="PUT", headers=headers, chunks=wanted)

        async def delete():
            return await ask(app, "/v1/kv/b/k", method="DELETE", headers=headers)

        await change(app, {"op": "put", "key": "new", "value": 1})
        first, refused = await delete(), await put_new()
        await change(app, {"op": "put", "key": "k", "value": "precious"})
        await change(app, {"op": "delete", "key": "new"})
        again, still = await delete(), await put_new()

        assert first.json == again.json
        assert (first.json["deleted"], first.json["version"]) == (False, None)
        assert (await ask(app, "/v1/kv/b/k")).json["value"] == "precious"
        assert (refused.status, refused.json["version"]) == (409, 0)
        assert (still.status, still.json["version"], still.json["repeated"]) == (409, None, True)
        assert "first came" in still.json["detail"]
        assert (await ask(app, "/v1/kv/b/new")).status == 404

    on_a_node(story)


def test_a_key_lives_as_long_as_it_shall_by_the_clock_of_its_leader():
    async def story(node):
        app = serving(node)
        body = (b'{"value": 1, "ttl_ms": 1000}',)
        await ask(app, "/v1/kv/b/k", method="PUT", headers=JSON, chunks=body)

        found = (await ask(app, "/v1/kv/b/k")).json
        assert 0 < found["expires_at_ms"] - node.clock.wall_ms() <= 1000
        await asyncio.sleep(1.5)
        assert (await ask(app, "/v1/kv/b/k")).status == 404

    on_a_node(story)


def test_pages_go_on_behind_keys_that_are_no_text():
    async def story(node):
        app = serving(node)
        await node.create("b", cleanup_policy="compact", kv_view="true")
        keys = [b"\0zero", b"a", b"\xfe", b"\xff\xff"]
        await node.produce("b", encode_batch([Record(key=key, value=b"1") for key in keys]))
        found: list[int] = []
        after: str | None = ""
        while after is not None and len(found) < 9:
            page = (await ask(app, f"/v1/kv/b?limit=1&after={quote(after)}")).json
            found += [one["version"] for one in page["entries"]]
            after = page["next"]

        assert found == [0, 1, 2, 3]
        assert (await ask(app, "/v1/kv/b?after=%00!")).status == 400

    on_a_node(story)


def test_keys_that_are_no_text_are_keys_of_their_own():
    async def story(node):
        app = serving(node)
        for number, key in enumerate(("%FF", "%FE", "%EF%BF%BD", "a%2F%FF", "a%25", "a%0Ab")):
            put = await ask(
                app, f"/v1/kv/b/{key}", method="PUT", headers=JSON, chunks=(b'{"value":%d}' % number,)
            )
            assert put.status == 200

        found = [
            (await ask(app, f"/v1/kv/b/{key}")).json["value"]
            for key in ("%FF", "%FE", "%EF%BF%BD", "a/%FF", "a%25", "a%0Ab")
        ]
        assert found == [0, 1, 2, 3, 4, 5]
        assert (await ask(app, "/v1/kv/b/%FF", method="DELETE")).status == 200
        assert (await ask(app, "/v1/kv/b/%FF")).status == 404
        assert (await ask(app, "/v1/kv/b/%FE")).status == 200

    on_a_node(story)


def test_an_idempotency_key_tells_keys_apart_that_are_no_text():
    async def story(node):
        app = serving(node)
        for number, key in enumerate(("%FF", "%FE", "%EF%BF%BD")):
            put = await ask(
                app,
                f"/v1/kv/b/{key}",
                method="PUT",
                headers={**JSON, "idempotency-key": "same"},
                chunks=(b'{"value":%d}' % number,),
            )
            assert (put.status, put.json["version"]) == (200, number)

    on_a_node(story)


@pytest.mark.parametrize("version", [-2, 2**63, 2**64, 10**30])
def test_a_version_that_no_key_can_have_is_refused(version):
    async def story(node):
        app = serving(node)
        put = {"value": 1, "if_version": version}
        answers = (
            await change(app, {"op": "put", "key": "k", **put}),
            await ask(app, "/v1/kv/b/k", method="PUT", headers=JSON, chunks=(json.dumps(put).encode(),)),
            await ask(app, f"/v1/kv/b/k?if_version={version}", method="DELETE"),
        )

        assert [answer.status for answer in answers] == [400] * 3
        assert all("if_version" in answer.json["detail"] for answer in answers)

    on_a_node(story)


def test_a_token_of_a_bucket_that_was_made_anew_holds_up_no_local_read():
    async def story(node):
        app = serving(node)
        for number in range(5):
            await change(app, {"op": "put", "key": "k", "value": number})
        token = (await ask(app, "/v1/kv/b/k")).json["token"]
        assert (await ask(app, "/v1/kv/b", method="DELETE")).status == 200
        await change(app, {"op": "put", "key": "k", "value": "new"})
        began_at = asyncio.get_running_loop().time()

        found = await ask(app, f"/v1/kv/b/k?consistency=local&token={token}")

        assert found.json["value"] == "new"
        assert found.json["token"] != token
        assert asyncio.get_running_loop().time() - began_at < 0.4
        # One that is of this bucket, and ahead of it, waits at the replicas first.
        number, _, bucket = found.json["token"].split(":")
        ahead = f"{number}:99:{bucket}"
        assert (await ask(app, f"/v1/kv/b/k?consistency=local&token={ahead}")).status == 200
        assert asyncio.get_running_loop().time() - began_at >= 0.4

    on_a_node(story)


def test_versions_begin_again_in_a_bucket_that_was_made_anew():
    async def story(node):
        app = serving(node)
        old = (await change(app, {"op": "put", "key": "k", "value": 1})).json["results"][0]
        await ask(app, "/v1/kv/b", method="DELETE")
        new = (await change(app, {"op": "put", "key": "k", "value": 2})).json["results"][0]

        assert old["version"] == new["version"] == 0  # a limit that is documented

    on_a_node(story)


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/v1/kv/b/k?token=" + "1" * 5000 + ":1", 400),
        ("/v1/kv/b/k?token=1:" + "1" * 5000, 400),
        ("/v1/kv/b?after=%00%C3%A9", 400),
        ("/v1/topics/b/partitions/" + "1" * 5000 + "/records", 404),
    ],
)
def test_numbers_without_end_and_pages_that_are_none_are_refused(path, status):
    async def story(node):
        app = serving(node)
        await change(app, {"op": "put", "key": "k", "value": 1})

        assert (await ask(app, path)).status == status

    on_a_node(story)


def test_a_value_that_is_no_text_is_refused():
    async def story(node):
        app = serving(node)

        refused = await ask(app, "/v1/kv/b/k", method="PUT", headers=JSON, chunks=(b'{"value":"\xff"}',))

        assert refused.status == 400
        assert (await ask(app, "/v1/kv/b/k")).status == 404

    on_a_node(story)


@pytest.mark.parametrize("path", ["/v1/kv/b/k", "/v1/kv/b", "/v1/kv/b:watch?from=start"])
def test_a_node_that_lags_behind_does_not_deny_a_bucket_that_another_has_made(path):
    async def story(node):
        before = deepcopy(node.broker.image)
        app = serving(node)
        await change(app, {"op": "put", "key": "k", "value": 1})
        let_lag(node, before)

        if "watch" in path:
            listener = Listener(app, path)
            assert await listener.hear(1) == [1]
            await listener.hang_up()
        else:
            assert (await ask(app, path)).status == 200

    on_a_node(story)


def test_a_node_that_lags_behind_takes_no_deleted_bucket_for_one_that_is_there():
    async def story(node):
        app = serving(node)
        make = partial(ask, app, "/v1/kv/b", method="PUT", headers=JSON, chunks=(b"{}",))
        assert (await make()).status == 201
        assert (await make()).status == 200
        before = deepcopy(node.broker.image)
        assert (await ask(app, "/v1/kv/b", method="DELETE")).status == 200
        let_lag(node, before)

        assert (await make()).status == 201
        assert "b" in node.broker.image.topics

    on_a_node(story)
