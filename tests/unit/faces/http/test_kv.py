"""Keys over HTTP."""

import json

from tests.unit.broker.node import on_a_node
from tests.unit.faces.http.test_app import ask
from tests.unit.faces.http.test_records import serving

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
