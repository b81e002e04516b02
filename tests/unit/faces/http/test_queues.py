"""Queues over HTTP, with receipts and with pointers."""

import asyncio
import json

import pytest

from tests.unit.broker.node import on_a_node
from tests.unit.faces.http.test_app import ask
from tests.unit.faces.http.test_records import serving
from tidelog.simulation.http_door import Door, Message

JSON = {"content-type": "application/json"}


async def post(app, path, body=None, *, method="POST", key=None):
    headers = JSON | ({} if key is None else {"idempotency-key": key})
    chunks = (json.dumps({} if body is None else body).encode(),)
    return await ask(app, path, method=method, headers=headers, chunks=chunks)


def with_an_app(story, **settings):
    async def on(node):
        await story(serving(node))

    on_a_node(on, **settings)


def test_a_message_is_published_received_and_acknowledged():
    async def story(app):
        made = await post(app, "/v1/queues/jobs", {"visibility_ms": 5000}, method="PUT")
        again = await post(app, "/v1/queues/jobs", {"visibility_ms": 6000}, method="PUT")
        assert (made.status, again.status) == (201, 200)
        message = {"value": {"n": 1}, "attributes": {"a": "b"}, "key": "k"}
        published = await post(app, "/v1/queues/jobs/messages", {"messages": [message]})

        received = (await post(app, "/v1/queues/jobs/receive", {})).json["messages"]

        assert (published.status, published.json) == (201, {"ids": [received[0]["id"]]})
        assert received[0]["value"] == {"n": 1}
        assert (received[0]["attributes"], received[0]["key"]) == ({"a": "b"}, "k")
        shown = (await ask(app, "/v1/queues/jobs")).json
        assert (shown["depth"], shown["in_flight"], shown["visibility_ms"]) == (1, 1, 6000)
        receipts = {"receipts": [received[0]["receipt"]]}
        assert (await post(app, "/v1/queues/jobs/ack", receipts)).json == {
            "results": [{"receipt": received[0]["receipt"], "outcome": "done"}]
        }
        gone = await post(app, "/v1/queues/jobs/ack", receipts)
        assert (gone.status, gone.json["results"][0]["outcome"]) == (404, "unknown")
        assert (await ask(app, "/v1/queues")).json == {"queues": ["jobs"], "next": None}

    with_an_app(story)


def test_a_receiver_who_hangs_up_gets_no_message():
    async def story(app):
        await post(app, "/v1/queues/jobs", method="PUT")
        path = "/v1/queues/jobs/receive"
        heard: asyncio.Queue[Message] = asyncio.Queue()
        door = Door(app, "POST", path, heard.put, headers=JSON, body=[b'{"wait_ms": 20000}'])
        asking = asyncio.create_task(door.run())
        await asyncio.sleep(1)
        assert not asking.done()
        door.hang_up()
        await asking
        await post(app, "/v1/queues/jobs/messages", {"messages": [{"value": 1}]})

        [got] = (await post(app, path, {"wait_ms": 2000})).json["messages"]
        assert (got["value"], got["delivery_count"]) == (1, 1)

    with_an_app(story)


def test_what_is_dead_has_a_name_of_its_own_and_comes_back():
    async def story(app):
        await post(app, "/v1/queues/jobs", {"max_deliveries": 1}, method="PUT")
        await post(app, "/v1/queues/jobs/messages", {"messages": [{"value": 1}, {"value": 2}]})
        for _ in range(2):
            [got] = (await post(app, "/v1/queues/jobs/receive", {})).json["messages"]
            await post(app, "/v1/queues/jobs/nack", {"receipts": [got["receipt"]]})

        assert (await ask(app, "/v1/queues/jobs")).json["dead"] == 2
        [dead] = (await post(app, "/v1/queues/jobs.dead/receive", {})).json["messages"]
        assert dead["value"] == 1
        assert (await post(app, "/v1/queues/jobs/redrive")).json == {"messages": 1}
        [back] = (await post(app, "/v1/queues/jobs/receive", {})).json["messages"]
        assert (back["value"], back["delivery_count"]) == (2, 2)
        purged = await post(app, "/v1/queues/jobs.dead/purge")
        assert purged.json == {"messages": 0}  # somebody has the other one

    with_an_app(story)


@pytest.mark.parametrize(
    ("path", "body", "status", "word"),
    [
        ("/v1/queues/none/receive", {}, 404, "PUT /v1/queues/none"),
        ("/v1/queues/jobs/receive", {"max": 0}, 400, "max is 0"),
        ("/v1/queues/jobs/receive", {"maximum": 1}, 400, "max, wait_ms"),
        ("/v1/queues/jobs/messages", {"messages": []}, 400, "messages is 0"),
        ("/v1/queues/jobs.dead/messages", {"messages": [{"value": 1}]}, 400, "publish to 'jobs'"),
        ("/v1/queues/jobs/messages", {"messages": [{"value": 1, "delay_ms": -1}]}, 400, "delay_ms"),
        ("/v1/queues/jobs/ack", {"receipts": ["x"]}, 404, "unknown"),
        ("/v1/queues/jobs/extend", {"receipts": ["x"]}, 400, "visibility_ms"),
        ("/append", {"queue_id": 99, "value": 1}, 404, "create_queue"),
        ("/append", {"queue_id": 99}, 400, "value"),
        ("/read", {"queue_id": 99, "client_id": ""}, 400, "client_id"),
        ("/apply_append", {}, 410, "POST /append"),
        ("/set_peer_urls", {}, 410, "--quorum"),
    ],
)
def test_bad_input_is_a_problem_that_says_what_to_do(path, body, status, word):
    async def story(app):
        await post(app, "/v1/queues/jobs", {}, method="PUT")
        answer = await post(app, path, body)

        assert (answer.status, word in answer.json["detail"]) == (status, True), answer.body

    with_an_app(story)


def test_queues_with_pointers_work_as_their_users_know_them():
    async def story(app):
        queue = (await post(app, "/create_queue")).json["queue_id"]
        ids = [
            (await post(app, "/append", {"queue_id": queue, "value": value})).json["message_id"]
            for value in (1, "two", {"three": 3})
        ]
        assert ids == sorted(ids)
        me = {"queue_id": queue, "client_id": "me"}

        found = [(await post(app, "/read", me)).json for _ in range(2)]
        assert found == [{"message_id": ids[0], "value": 1}, {"message_id": ids[1], "value": "two"}]
        assert (await post(app, "/get_all_queues")).json["queue_ids"] == [queue]
        assert (await post(app, "/get_all_pointers")).json["pointers"] == [
            {"queue_id": queue, "client_id": "me", "message_id": ids[1]}
        ]
        first = (await post(app, "/get_all_messages", {"limit": 2})).json
        rest = (await post(app, "/get_all_messages", {"after": first["next"]})).json
        values = [one["value"] for one in first["messages"] + rest["messages"]]
        assert (values, rest["next"]) == ([1, "two", {"three": 3}], None)
        assert (await post(app, "/read", me)).json["value"] == {"three": 3}
        assert (await post(app, "/read", me)).json == {"message_id": None, "value": None}
        assert (await post(app, "/broker_info")).json["is_leader"] is True

    with_an_app(story)


def test_a_request_that_is_repeated_with_its_key_has_the_same_answer():
    async def story(app):
        made = [await post(app, "/create_queue", key="c") for _ in range(2)]
        assert made[0].json == made[1].json
        queue = made[0].json["queue_id"]
        body = {"queue_id": queue, "value": 1}
        appended = [(await post(app, "/append", body, key="a")).json for _ in range(2)]
        assert appended[0] == appended[1]
        me = {"queue_id": queue, "client_id": "me"}
        read = [(await post(app, "/read", me, key="r")).json for _ in range(2)]
        assert read[0] == read[1] == {"message_id": appended[0]["message_id"], "value": 1}
        assert (await post(app, "/read", me)).json["message_id"] is None

    with_an_app(story)


def test_a_key_names_one_request_to_one_queue():
    async def story(app):
        names = [f"q{number}" for number in range(20)]  # more than there are partitions
        message = {"messages": [{"value": 1}]}
        for name in names:
            await post(app, f"/v1/queues/{name}", method="PUT")
            await post(app, f"/v1/queues/{name}/messages", message, key="k")
        for name in names:
            got = await post(app, f"/v1/queues/{name}/receive", {}, key="k")
            [one] = got.json["messages"]
            done = await post(app, f"/v1/queues/{name}/ack", {"receipts": [one["receipt"]]}, key="k")
            assert done.json["results"][0]["outcome"] == "done"

        ids = [(await post(app, "/create_queue")).json["queue_id"] for _ in names]
        for queue_id in ids:
            await post(app, "/append", {"queue_id": queue_id, "value": queue_id}, key="k")
            for client in ("a", "b"):
                read = {"queue_id": queue_id, "client_id": client}
                assert (await post(app, "/read", read, key="k")).json["value"] == queue_id

    with_an_app(story)


def test_a_key_that_was_used_for_another_body_is_refused():
    async def story(app):
        await post(app, "/v1/queues/q", method="PUT")
        publish, ack = "/v1/queues/q/messages", "/v1/queues/q/ack"
        await post(app, publish, {"messages": [{"value": 1}, {"value": 2}]}, key="p")
        refused = await post(app, publish, {"messages": [{"value": 3}]}, key="p")
        assert (refused.status, "Idempotency-Key" in refused.json["detail"]) == (422, True)

        got = (await post(app, "/v1/queues/q/receive", {"max": 2})).json["messages"]
        receipts = [one["receipt"] for one in got]
        assert (await post(app, ack, {"receipts": receipts}, key="a")).status == 200
        assert (await post(app, ack, {"receipts": receipts}, key="a")).status == 200
        assert (await post(app, ack, {"receipts": receipts[:1]}, key="a")).status == 422

    with_an_app(story)


def test_a_deletion_and_a_purge_that_are_repeated_leave_what_came_since():
    async def story(app):
        for what, method in (("/purge", "POST"), ("", "DELETE")):
            path = "/v1/queues/q"
            await post(app, path, method="PUT")
            await post(app, f"{path}/messages", {"messages": [{"value": 1}]})
            first = await post(app, path + what, method=method, key="k")
            assert first.status == 200
            await post(app, path, method="PUT")
            await post(app, f"{path}/messages", {"messages": [{"value": "precious"}]})

            assert (await post(app, path + what, method=method, key="k")).json == first.json
            assert (await post(app, path, method="GET")).json["depth"] == 1

    with_an_app(story)


def test_one_answer_holds_so_many_bytes():
    async def story(app):
        await post(app, "/v1/queues/q", method="PUT")
        big = {"messages": [{"value": "x" * 900} for _ in range(5)]}
        await post(app, "/v1/queues/q/messages", big)

        got = (await post(app, "/v1/queues/q/receive", {"max": 10})).json["messages"]

        assert len(got) == 2

    with_an_app(story, queues_receive_max_bytes=2000)


def test_a_queue_with_pointers_is_deleted():
    async def story(app):
        queue = (await post(app, "/create_queue")).json["queue_id"]
        await post(app, "/append", {"queue_id": queue, "value": 1})
        gone = await post(app, "/delete_queue", {"queue_id": queue}, key="d")

        assert gone.json == {"deleted": True}
        assert (await post(app, "/append", {"queue_id": queue, "value": 1})).status == 404
        assert (await post(app, "/get_all_queues")).json["queue_ids"] == []
        assert (await post(app, "/delete_queue", {"queue_id": queue}, key="d")).json == gone.json
        assert (await post(app, "/delete_queue", {"queue_id": queue})).status == 404
        assert (await post(app, "/create_queue")).json["queue_id"] != queue

    with_an_app(story)


def test_names_are_listed_page_by_page_also_while_queues_come_and_go():
    async def story(app):
        names = [f"jobs-{number}" for number in range(7)]
        for name in reversed(names):
            await post(app, f"/v1/queues/{name}", method="PUT")
        found, path = [], "/v1/queues?limit=3"
        while True:
            page = (await ask(app, path)).json
            found += page["queues"]
            if page["next"] is None:
                break
            await post(app, f"/v1/queues/{found[0]}", method="DELETE")
            path = f"/v1/queues?limit=3&after={page['next']}"

        assert found == names

    with_an_app(story, queues_topic_num_partitions=2)


def test_pointers_are_listed_page_by_page():
    async def story(app):
        queues = [(await post(app, "/create_queue")).json["queue_id"] for _ in range(3)]
        expected = []
        for queue in queues:
            await post(app, "/append", {"queue_id": queue, "value": 1})
            for client in ("ada", "bob", "cyd"):
                await post(app, "/read", {"queue_id": queue, "client_id": client})
                expected.append((queue, client))
        found, after = [], None
        while True:
            body = {"limit": 2} if after is None else {"limit": 2, "after": after}
            page = (await post(app, "/get_all_pointers", body)).json
            found += [(one["queue_id"], one["client_id"]) for one in page["pointers"]]
            after = page["next"]
            if after is None:
                break

        assert found == sorted(expected)

    with_an_app(story)
