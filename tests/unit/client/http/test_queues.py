import asyncio
from contextlib import aclosing, closing
from datetime import timedelta

import httpx
import pytest

from tests.unit.client.http.fleet import Asked, Fleet, Gone, ok, problem
from tidelog.client import (
    BadRequest,
    Conflict,
    Message,
    NotFound,
    OutcomeUnknown,
    QueueFull,
    ToPublish,
    Unavailable,
)

QUEUE = "/v1/queues/jobs"
RECEIVE = f"{QUEUE}/receive"
ACK, NACK, EXTEND = f"{QUEUE}/ack", f"{QUEUE}/nack", f"{QUEUE}/extend"
SHOWN = {"name": "jobs", "depth": 0}


def message(number: int, value: object = None, count: int = 1, **more: object) -> dict[str, object]:
    return {
        "id": number,
        "receipt": f"{number}-{count}",
        "value": value,
        "delivery_count": count,
        "attributes": {},
        "key": None,
        "published_at_ms": 1000,
        **more,
    }


def given(*messages: dict[str, object]) -> httpx.Response:
    return ok({"messages": list(messages)})


def settled(asked: Asked) -> httpx.Response:
    return ok({"results": [{"receipt": one, "outcome": "done"} for one in asked.body["receipts"]]})


def fleet_with(*answers: object) -> Fleet:
    fleet = Fleet()
    fleet.says(RECEIVE, *answers)  # type: ignore[arg-type]
    for path in (ACK, NACK, EXTEND):
        fleet.says(path, settled)
    return fleet


# The queue itself.


def test_a_queue_is_declared_with_what_was_said_and_nothing_else():
    fleet = Fleet()
    fleet.says(QUEUE, ok(SHOWN, 201))
    queue = fleet.client().queue("jobs")

    assert queue.declare() == SHOWN
    queue.declare(visibility=1.5, max_deliveries=0, ordered=True, messages_max=9)

    first, second = fleet.questions(QUEUE)
    assert (first.method, first.body) == ("PUT", {})
    assert second.body == {"visibility_ms": 1500, "max_deliveries": 0, "ordered": True, "messages_max": 9}
    assert first.key != second.key


def test_a_queue_is_described_and_deleted():
    fleet = Fleet()
    fleet.says(QUEUE, ok(SHOWN), ok({"name": "jobs", "deleted": True}), problem(404))
    queue = fleet.client().queue("jobs")

    assert queue.describe() == SHOWN
    assert queue.delete() is True
    assert queue.delete() is False


def test_a_queue_that_is_not_there_after_a_lost_deletion_was_not_deleted_by_it():
    fleet = Fleet()
    fleet.says(QUEUE, Gone(httpx.ReadError), problem(404))

    assert fleet.client().queue("jobs").delete() is False  # or the answer would be the first one


def test_all_queues_are_listed_page_by_page():
    fleet = Fleet()
    fleet.says("/v1/queues", ok({"queues": ["a"], "next": "a"}), ok({"queues": ["b"], "next": None}))

    assert fleet.client().queues() == ["a", "b"]


def test_a_queue_has_a_name_and_any_name_is_no_more_than_that():
    fleet = Fleet()
    fleet.says("/v1/queues/a%2Fb", ok(SHOWN))

    assert fleet.client().queue("a/b").describe() == SHOWN
    with pytest.raises(ValueError, match="name"):
        fleet.client().queue("")


def test_the_leader_of_the_queue_is_asked():
    fleet = Fleet("a:1", "b:1")
    fleet.leaders["__queues"] = ["b:1", "a:1"]
    fleet.says(QUEUE, ok(SHOWN))
    client = fleet.client()

    for name in ("jobs", "jobs", "jobs.dead"):
        fleet.says(f"/v1/queues/{name}", ok(SHOWN))
        client.queue(name).describe()

    # Java's hash of "jobs" is even, and what is dead of it is kept where it is.
    assert [one.node for one in fleet.asked if one.path != "/v1/cluster"] == ["a:1", "b:1", "b:1"]


# Sending.


def test_a_message_is_published_with_what_belongs_to_it():
    fleet = Fleet()
    fleet.says(f"{QUEUE}/messages", ok({"ids": [7]}, 201))

    found = (
        fleet.client()
        .queue("jobs")
        .publish({"a": [1]}, attributes={"kind": "mail"}, key="ada", delay=timedelta(seconds=2))
    )

    assert found == 7
    (asked,) = fleet.asked
    assert asked.body == {
        "messages": [{"value": {"a": [1]}, "attributes": {"kind": "mail"}, "key": "ada", "delay_ms": 2000}]
    }
    assert asked.query == {"sync_timeout_ms": "10000"} and asked.key


def test_many_messages_are_one_request_that_is_repeated_under_one_key():
    fleet = Fleet()
    fleet.says(f"{QUEUE}/messages", Gone(httpx.ReadError), problem(503), ok({"ids": [1, 2]}, 201))

    found = (
        fleet.client()
        .queue("jobs")
        .publish_many([ToPublish(value=1), ToPublish(value=None, deliver_at_ms=5)])
    )

    assert found == [1, 2]
    asked = fleet.questions(f"{QUEUE}/messages")
    assert len({one.key for one in asked}) == 1 and len(asked) == 3
    assert asked[0].body["messages"] == [{"value": 1}, {"value": None, "deliver_at_ms": 5}]


@pytest.mark.parametrize(("status", "error"), [(429, QueueFull), (404, NotFound), (400, BadRequest)])
def test_a_refusal_has_its_name(status, error):
    fleet = Fleet()
    fleet.says(f"{QUEUE}/messages", problem(status, "jobs holds 9 messages"))

    with pytest.raises(error, match="holds 9"):
        fleet.client().queue("jobs").publish(1)


@pytest.mark.parametrize("status", [429, 404])
def test_a_refusal_that_passes_says_nothing_of_an_attempt_that_was_lost(status):
    """The queue may have room, or be known there, when the first attempt arrives at last."""
    fleet = Fleet()
    fleet.says(f"{QUEUE}/messages", Gone(httpx.ReadError), problem(status, "jobs is full"))

    with pytest.raises(OutcomeUnknown, match="jobs is full"):
        fleet.client().queue("jobs").publish(1)


def test_a_message_of_which_nobody_knows_says_how_to_repeat_it():
    fleet = Fleet()
    fleet.says(f"{QUEUE}/messages", Gone(httpx.ReadError))

    with pytest.raises(OutcomeUnknown) as caught:
        fleet.client().queue("jobs").publish(1, idempotency_key="it")

    assert caught.value.idempotency_key == "it"


# Receiving.


def test_messages_are_received_with_all_that_is_known_of_them():
    fleet = fleet_with(given(message(4, {"x": 1}, 2, attributes={"k": "v"}, key="ada", of_tomorrow=True)))

    (found,) = fleet.client().queue("jobs").receive(10, wait=1.5, visibility=3)

    assert isinstance(found, Message)
    assert (found.id, found.receipt, found.value, found.delivery_count) == (4, "4-2", {"x": 1}, 2)
    assert (found.attributes, found.key, found.published_at_ms) == ({"k": "v"}, "ada", 1000)
    assert "4" in repr(found) and not found.is_settled
    (asked,) = fleet.asked
    assert asked.body == {"max": 10, "wait_ms": 1500, "visibility_ms": 3000}


def test_a_receive_that_is_repeated_has_one_key_so_that_nothing_is_given_out_twice():
    fleet = fleet_with(Gone(httpx.ReadError), given(message(1)))

    (found,) = fleet.client().queue("jobs").receive()

    assert found.id == 1
    assert len({asked.key for asked in fleet.questions(RECEIVE)}) == 1


def test_a_message_is_acknowledged_put_back_or_kept():
    fleet = fleet_with(given(message(1), message(2), message(3)))
    first, second, third = fleet.client().queue("jobs").receive(3)

    first.ack()
    second.nack(delay=1)
    third.extend(60)

    assert fleet.questions(ACK)[0].body == {"receipts": ["1-1"]}
    assert fleet.questions(NACK)[0].body == {"receipts": ["2-1"], "delay_ms": 1000}
    assert fleet.questions(EXTEND)[0].body == {"receipts": ["3-1"], "visibility_ms": 60_000}
    assert (first.is_settled, second.is_settled, third.is_settled) == (True, True, False)


def test_receipts_can_be_settled_by_whoever_has_them():
    fleet = fleet_with(given())
    queue = fleet.client().queue("jobs")

    queue.ack("1-1", "2-1")
    queue.nack("3-1")
    queue.extend("4-1", visibility=2)

    assert fleet.questions(ACK)[0].body == {"receipts": ["1-1", "2-1"]}
    assert fleet.questions(NACK)[0].body["delay_ms"] == 0
    assert fleet.questions(EXTEND)[0].body["visibility_ms"] == 2000


@pytest.mark.parametrize(("status", "error"), [(409, Conflict), (404, NotFound)])
def test_a_receipt_that_is_none_any_more_is_an_error_that_says_which(status, error):
    fleet = Fleet()
    results = [{"receipt": "1-1", "outcome": "expired"}]
    fleet.says(RECEIVE, given(message(1)))
    fleet.says(ACK, problem(status, "receipt '1-1' is expired", results=results))
    (found,) = fleet.client().queue("jobs").receive()

    with pytest.raises(error) as caught:
        found.ack()

    assert caught.value.problem["results"] == results
    assert not found.is_settled


def test_a_queue_is_purged_and_what_is_dead_brought_back():
    fleet = Fleet()
    fleet.says(f"{QUEUE}/purge", ok({"messages": 3}))
    fleet.says(f"{QUEUE}/redrive", ok({"messages": 2}))
    queue = fleet.client().queue("jobs")

    assert (queue.purge(), queue.redrive()) == (3, 2)


# Consuming.


def test_a_consumer_acknowledges_a_message_when_it_wants_the_next():
    fleet = fleet_with(given(message(1, "a")), given(message(2, "b")), given())
    consumer = fleet.client().queue("jobs").consume(idle=0.5)
    seen = [(found.value, len(fleet.questions(ACK))) for found in consumer]

    assert seen == [("a", 0), ("b", 1)]
    assert [one.body["receipts"] for one in fleet.questions(ACK)] == [["1-1"], ["2-1"]]
    assert fleet.questions(NACK) == []
    assert fleet.questions(RECEIVE)[-1].body == {"max": 1, "wait_ms": 500}


def test_a_consumer_settles_nothing_twice():
    fleet = fleet_with(given(message(1), message(2)), given())

    for found in fleet.client().queue("jobs").consume(max=2, idle=0):
        if found.id == 1:
            found.nack(delay=5)
        else:
            found.ack()

    assert len(fleet.questions(ACK)) == len(fleet.questions(NACK)) == 1


def test_a_consumer_that_leaves_puts_back_all_that_it_has():
    fleet = fleet_with(given(message(1), message(2), message(3)))

    with closing(fleet.client().queue("jobs").consume(max=3)) as messages:
        next(messages)
        next(messages)

    assert [one.body["receipts"] for one in fleet.questions(ACK)] == [["1-1"]]
    assert [one.body["receipts"] for one in fleet.questions(NACK)] == [["2-1", "3-1"]]


def test_a_consumer_whose_work_fails_puts_the_message_back():
    fleet = fleet_with(given(message(1)))

    def work() -> None:
        with closing(fleet.client().queue("jobs").consume()) as messages:
            for _ in messages:
                raise LookupError

    with pytest.raises(LookupError):
        work()

    assert fleet.questions(ACK) == []
    assert fleet.questions(NACK)[0].body["receipts"] == ["1-1"]


def test_a_consumer_that_cannot_put_back_leaves_all_the_same():
    fleet = Fleet()
    fleet.says(RECEIVE, given(message(1)))
    fleet.says(NACK, problem(404))

    with closing(fleet.client().queue("jobs").consume()) as messages:
        assert next(messages).id == 1


def test_a_consumer_is_told_that_it_was_too_slow():
    fleet = Fleet()
    fleet.says(RECEIVE, given(message(1), message(2)))
    fleet.says(ACK, problem(409, "receipt '1-1' is expired"))
    fleet.says(NACK, settled)

    with pytest.raises(Conflict, match="expired"):
        for _ in fleet.client().queue("jobs").consume(max=2):
            pass

    assert fleet.questions(NACK)[0].body["receipts"] == ["2-1"]


def test_a_consumer_outlives_a_failover_and_gets_again_what_an_answer_that_was_lost_had():
    fleet = fleet_with(
        given(message(1)), *[Gone(httpx.ReadError)] * 6, *[problem(503)] * 4, given(message(2))
    )

    with closing(fleet.client().queue("jobs").consume()) as messages:
        assert [next(messages).id, next(messages).id] == [1, 2]

    first, *others = fleet.questions(RECEIVE)
    assert len({asked.key for asked in others}) == 1 and others[0].key != first.key


def test_a_consumer_seeks_a_cluster_no_longer_than_it_was_told_to():
    fleet = fleet_with(given(message(1)), problem(503))

    with (
        pytest.raises(Unavailable),
        closing(fleet.client(reconnect_seconds=30).queue("jobs").consume()) as messages,
    ):
        for _ in messages:
            pass

    assert 30 < fleet.now < 60


def test_a_consumer_that_never_found_a_queue_says_so_at_once():
    fleet = fleet_with(problem(404, "there is no queue 'jobs'"))

    with pytest.raises(NotFound, match="no queue"):
        next(fleet.client().queue("jobs").consume())


def test_coroutines_consume_the_same_way():
    fleet = fleet_with(given(message(1), message(2)), given(message(3)))

    async def story() -> list[int]:
        seen = []
        async with fleet.async_client() as client, aclosing(client.queue("jobs").consume(max=2)) as messages:
            async for found in messages:
                seen.append(found.id)
                if found.id == 1:
                    await found.ack()
                if found.id == 3:
                    break
        return seen

    assert asyncio.run(story()) == [1, 2, 3]
    assert [one.body["receipts"] for one in fleet.questions(ACK)] == [["1-1"], ["2-1"]]
    assert fleet.questions(NACK)[0].body["receipts"] == ["3-1"]


# Queues with pointers.


def test_a_queue_with_pointers_is_made_filled_and_read():
    fleet = Fleet()
    fleet.says("/create_queue", ok({"queue_id": 9}))
    fleet.says("/append", ok({"message_id": 40}))
    fleet.says("/read", ok({"message_id": 40, "value": None}), ok({"message_id": None, "value": None}))
    queues = fleet.client().pointer_queues

    assert queues.create() == 9
    assert queues.append(9, None) == 40
    found = queues.read(9, "ada")
    assert found is not None and (found.id, found.queue_id, found.value) == (40, 9, None)
    assert queues.read(9, "ada") is None
    assert fleet.questions("/append")[0].body == {"queue_id": 9, "value": None}
    assert fleet.questions("/read")[0].body == {"queue_id": 9, "client_id": "ada"}


def test_a_read_whose_answer_was_lost_is_repeated_under_one_key():
    fleet = Fleet()
    fleet.says("/read", Gone(httpx.ReadError), ok({"message_id": 1, "value": 2}))

    fleet.client().pointer_queues.read(1, "ada")

    assert len({asked.key for asked in fleet.questions("/read")}) == 1


def test_all_queues_messages_and_pointers_are_listed_page_by_page():
    fleet = Fleet()
    one = {"message_id": 5, "queue_id": 1, "value": "x"}
    pointer = {"queue_id": 1, "client_id": "ada", "message_id": 5}
    fleet.says("/get_all_queues", ok({"queue_ids": [1], "next": [1]}), ok({"queue_ids": [2], "next": None}))
    fleet.says("/get_all_messages", ok({"messages": [one], "next": [1, 5]}), ok({"messages": []}))
    fleet.says("/get_all_pointers", ok({"pointers": [pointer], "next": None}))
    queues = fleet.client().pointer_queues

    assert queues.list() == [1, 2]
    assert [(found.id, found.value) for found in queues.messages()] == [(5, "x")]
    assert [found.client_id for found in queues.pointers()] == ["ada"]
    assert fleet.questions("/get_all_messages")[1].body["after"] == [1, 5]


def test_a_node_tells_which_one_it_is():
    fleet = Fleet()
    fleet.says("/broker_info", ok({"broker_id": 1}))

    assert fleet.client().pointer_queues.broker_info() == {"broker_id": 1}
