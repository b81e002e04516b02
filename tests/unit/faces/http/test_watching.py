"""Changes of keys as a client hears of them."""

import json

from tests.unit.broker.node import on_a_node
from tests.unit.faces.http.test_app import ask
from tests.unit.faces.http.test_records import serving
from tests.unit.faces.http.test_streams import Listener

JSON = {"content-type": "application/json"}


async def put(app, key, value):
    body = (json.dumps({"value": value}).encode(),)
    answer = await ask(app, f"/v1/kv/b/{key}", method="PUT", headers=JSON, chunks=body)
    assert answer.status == 200, answer.body


async def delete(app, key):
    assert (await ask(app, f"/v1/kv/b/{key}", method="DELETE")).status == 200


def test_who_watches_hears_of_every_change_and_goes_on_from_a_cursor():
    async def story(node):
        app = serving(node)
        await put(app, "a/1", {"n": 1})
        listener = Listener(app, "/v1/kv/b:watch?from=start&prefix=a/")

        assert await listener.hear(1) == [{"n": 1}]
        await put(app, "other", 0)
        await put(app, "a/2", None)
        await delete(app, "a/1")
        assert await listener.hear(3) == [{"n": 1}, None, None]
        heard = listener.events()
        assert [(one["key"], one["version"], one.get("deleted", False)) for one in heard] == [
            ("a/1", 0, False),
            ("a/2", 2, False),  # it is null, but it is there
            ("a/1", 3, True),
        ]
        await listener.hang_up()

        again = Listener(app, f"/v1/kv/b:watch?prefix=a/&from={heard[1]['cursor']}")
        await again.hear(1)
        assert again.events()[0]["version"] == 3
        await again.hang_up()

    on_a_node(story)


def test_what_is_no_bucket_cannot_be_watched():
    async def story(node):
        app = serving(node)
        await node.create("plain")

        assert (await ask(app, "/v1/kv/none:watch")).status == 404
        assert (await ask(app, "/v1/kv/plain:watch")).status == 400

    on_a_node(story)


def test_who_may_have_missed_a_deletion_for_good_is_told_to_begin_anew():
    async def story(node):
        app = serving(node)
        for key in ("a", "b"):
            await put(app, key, 1)
        listener = Listener(app, "/v1/kv/b:watch?from=start")
        await listener.hear(2)
        cursors = [one["cursor"] for one in listener.events()]
        await listener.hang_up()
        await delete(app, "a")
        await put(app, "c", 1)
        node.broker.partition("b", 0).purges.add(3)  # as when the deletion is compacted

        refused = [await ask(app, f"/v1/kv/b:watch?from={cursor}") for cursor in cursors]
        anew = Listener(app, "/v1/kv/b:watch?from=start")
        await anew.hear(3)
        cursor = anew.events()[-1]["cursor"]
        await anew.hang_up()
        on = Listener(app, f"/v1/kv/b:watch?from={cursor}")
        await put(app, "d", 4)

        assert [(one.status, one.json["log_start"]) for one in refused] == [(416, 0)] * 2
        assert "start over" in refused[0].json["detail"]
        assert await on.hear(1) == [4]
        await on.hang_up()

    on_a_node(story)


def test_a_watch_ends_where_a_deletion_goes_that_it_has_not_told_of():
    async def story(node):
        app = serving(node)
        await put(app, "a", 1)
        listener = Listener(app, "/v1/kv/b:watch?from=start")
        await listener.hear(1)
        read = app.node.services.records.read

        async def read_late(*asked, **options):
            node.broker.partition("b", 0).purges.add(9)
            return await read(*asked, **options)

        app.node.services.records.read = read_late
        await put(app, "b", 2)
        await listener.end()

        error = listener.events()[-1]
        assert (error["kind"], error["status"]) == ("error", 416)

    on_a_node(story)


def test_a_watch_that_is_under_way_ends_though_others_were_purged_further_on_before():
    async def story(node):
        app = serving(node)
        await put(app, "a", 1)
        purges = node.broker.partition("b", 0).purges
        purges.add(99)  # long ago; it concerns nobody who begins now
        listener = Listener(app, "/v1/kv/b:watch?from=start")
        await listener.hear(1)
        purges.add(9)
        await put(app, "b", 2)
        await listener.end()

        error = listener.events()[-1]
        assert (error["kind"], error["status"]) == ("error", 416)

    on_a_node(story)


def test_a_cursor_at_the_start_of_a_log_that_was_cut_has_heard_of_what_is_gone():
    async def story(node):
        app = serving(node)
        await put(app, "a", 1)
        listener = Listener(app, "/v1/kv/b:watch?from=start")
        await listener.hear(1)
        cursor = listener.events()[0]["cursor"]
        await listener.hang_up()
        await put(app, "b", 1)
        partition = node.broker.partition("b", 0)
        partition.log.start = 1
        partition.purges.add(2)

        assert (await ask(app, f"/v1/kv/b:watch?from={cursor}")).status == 416

    on_a_node(story)
