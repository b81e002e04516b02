import json

import httpx
import pytest

from tests.unit.client.http.fleet import Asked, Fleet, Gone, events, ok, problem
from tidelog.client import (
    ABSENT,
    Change,
    Conflict,
    Delete,
    Entry,
    NotFound,
    OutcomeUnknown,
    Put,
    TidelogHTTPError,
    TooLarge,
    Unavailable,
)
from tidelog.client.http.tokens import Tokens

KEY = "/v1/kv/b/k"
WATCH = "/v1/kv/b:watch"


def entry(value: object = 1, version: int = 3, **more: object) -> dict[str, object]:
    return {"key": "k", "value": value, "version": version, "token": f"0:{version + 1}", **more}


class Counter:
    """One key of a bucket, kept as a node does; `others` write before so many of our writes."""

    def __init__(self, others: int = 0) -> None:
        self.value, self.version, self.others = 0, -1, others

    def __call__(self, asked: Asked) -> httpx.Response:
        if asked.method == "GET":
            if self.version < 0:
                return problem(404, token="0:0")
            return ok(entry(self.value, self.version))
        if self.others:
            self.others -= 1
            self.value, self.version = self.value + 100, self.version + 1
        if asked.body["if_version"] != self.version:
            return problem(409, "it is another", version=self.version)
        self.value, self.version = asked.body["value"], self.version + 1
        return ok(entry(self.value, self.version))


# One key.


def test_a_value_is_put_with_its_time_and_its_condition():
    fleet = Fleet()
    fleet.says(KEY, ok(entry({"a": [1]}, 8)))

    found = fleet.client().kv("b").put("k", {"a": [1]}, ttl=1.5, if_version=7)

    assert found == Entry(key="k", value={"a": [1]}, version=8, token="0:9")
    (asked,) = fleet.asked
    assert asked.method == "PUT"
    assert asked.body == {"value": {"a": [1]}, "ttl_ms": 1500, "if_version": 7}
    assert asked.headers["content-type"] == "application/json"


def test_a_key_is_got_as_it_was_put():
    fleet = Fleet()
    fleet.says(KEY, ok(entry([1, "ü"], expires_at_ms=99)))

    found = fleet.client().kv("b").get("k")

    assert found == Entry(key="k", value=[1, "ü"], version=3, expires_at_ms=99, token="0:4")
    assert fleet.asked[0].query == {"consistency": "strong"}


@pytest.mark.parametrize(
    ("value", "encoding", "expected"), [("plain", "text", "plain"), ("/w==", "base64", b"\xff")]
)
def test_what_a_kafka_producer_wrote_is_text_or_bytes(value, encoding, expected):
    fleet = Fleet()
    fleet.says(KEY, ok(entry(value, encoding=encoding)))

    found = fleet.client().kv("b").get("k")

    assert found is not None and found.value == expected


def test_a_key_that_is_not_there_is_the_default_and_a_bucket_that_is_not_is_an_error():
    fleet = Fleet()
    fleet.says(KEY, problem(404, "no key", token="0:0"))
    fleet.says("/v1/kv/none/k", problem(404, "no topic none; PUT the bucket first"))
    client = fleet.client()

    assert client.kv("b").get("k") is None
    assert client.kv("b").get("k", default="d") == "d"
    with pytest.raises(NotFound, match="PUT the bucket"):
        client.kv("none").get("k")


def test_a_stale_condition_is_a_conflict_that_knows_the_version():
    fleet = Fleet()
    fleet.says(KEY, problem(409, "it is 9", version=9), problem(409, "gone", version=None))
    kv = fleet.client().kv("b")

    with pytest.raises(Conflict) as caught:
        kv.put("k", 1, if_version=7)
    assert caught.value.version == 9
    with pytest.raises(Conflict) as caught:
        kv.delete("k", if_version=7)
    assert caught.value.version is None
    assert fleet.asked[-1].query["if_version"] == "7"


def test_a_delete_tells_whether_there_was_something():
    fleet = Fleet()
    done = {"key": "k", "version": 4, "deleted": True, "token": "0:5"}
    fleet.says(KEY, ok(done), ok({**done, "version": None, "deleted": False}))
    kv = fleet.client().kv("b")

    assert kv.delete("k") is True
    assert kv.delete("k") is False
    assert fleet.asked[0].body is None


@pytest.mark.parametrize("version", [None, 3])
def test_a_conflict_after_a_lost_attempt_is_a_no_since_the_node_remembers_it(version):
    fleet = Fleet()
    fleet.says(KEY, Gone(httpx.ReadError), problem(409, "it is there", version=7))

    assert fleet.client().kv("b").compare_and_set("k", "me", version) is None
    keys = {asked.headers["idempotency-key"] for asked in fleet.asked}
    assert (len(fleet.asked), len(keys)) == (2, 1)


def test_compare_and_set_writes_only_what_was_seen():
    fleet = Fleet()
    fleet.says(KEY, Counter())
    kv = fleet.client().kv("b")

    first = kv.compare_and_set("k", 1, None)
    assert first is not None and first.version == 0
    assert fleet.asked[0].body["if_version"] == ABSENT
    assert kv.compare_and_set("k", 2, 7) is None
    second = kv.compare_and_set("k", 2, first.version)
    assert second is not None and second.value == 2


def test_an_update_reads_changes_and_writes():
    fleet = Fleet()
    fleet.says(KEY, Counter())
    kv = fleet.client().kv("b", consistency="local")

    assert kv.update("k", lambda count: count + 1, default=0).value == 1
    assert kv.update("k", lambda count: count + 1, default=0).value == 2
    reads = [asked for asked in fleet.asked if asked.method == "GET" and asked.path == KEY]
    assert {asked.query["consistency"] for asked in reads} == {"strong"}


def test_an_update_that_others_overtake_is_made_of_what_they_wrote():
    fleet = Fleet()
    fleet.says(KEY, Counter(others=3))

    found = fleet.client().kv("b").update("k", lambda count: count + 1, default=0)

    assert found.value == 301
    assert len(fleet.slept) == 3


def test_an_update_that_is_always_overtaken_gives_up_and_says_so():
    fleet = Fleet()
    fleet.says(KEY, Counter(others=99))

    with pytest.raises(Conflict, match="5 times") as caught:
        fleet.client().kv("b").update("k", lambda count: count + 1, default=0, attempts_max=5)

    assert caught.value.version == 4


def test_an_update_whose_function_fails_writes_nothing():
    fleet = Fleet()
    fleet.says(KEY, Counter())

    with pytest.raises(StopIteration):
        fleet.client().kv("b").update("k", lambda _: next(iter(())))

    assert [asked.method for asked in fleet.asked] == ["GET"]


def test_an_update_of_an_unknown_outcome_is_not_made_twice():
    fleet = Fleet()

    def lose_writes(asked: Asked) -> httpx.Response:
        if asked.method == "GET":
            return ok(entry(1))
        raise httpx.ReadError("reset")

    fleet.says(KEY, lose_writes)

    with pytest.raises(OutcomeUnknown):
        fleet.client(retries=2).kv("b").update("k", lambda count: count + 1)

    assert len({asked.key for asked in fleet.asked if asked.method == "PUT"}) == 1


# Tokens.


def test_a_local_read_sees_what_the_client_has_written():
    fleet = Fleet()
    fleet.leaders = {"b": ["a:1"]}
    fleet.says(KEY, ok(entry(version=41)))
    kv = fleet.client().kv("b", consistency="local")

    kv.get("k")
    kv.put("k", 1)
    kv.get("k")

    first, _, last = fleet.questions(KEY)
    assert first.query == {"consistency": "local"}
    assert last.query == {"consistency": "local", "token": "0:42"}


def test_a_local_read_is_never_older_than_one_before():
    fleet = Fleet()
    fleet.leaders = {"b": ["a:1"]}
    fleet.says(KEY, ok(entry(version=9)), problem(404, token="0:7"), ok(entry(version=9)))
    client = fleet.client()

    for _ in range(3):
        client.kv("b").get("k", consistency="local")

    assert fleet.questions(KEY)[-1].query["token"] == "0:10"


def test_tokens_are_of_the_key_s_own_partition():
    fleet = Fleet()
    fleet.leaders = {"b": ["a:1"] * 3}
    for key, number in {"k0": 2, "k2": 0}.items():
        document = {"key": key, "value": 1, "version": 5, "token": f"{number}:6"}
        fleet.says(f"/v1/kv/b/{key}", ok(document))
    kv = fleet.client().kv("b", consistency="local")

    kv.put("k0", 1)
    kv.get("k2")
    kv.get("k0")

    assert "token" not in fleet.questions("/v1/kv/b/k2")[0].query
    assert fleet.questions("/v1/kv/b/k0")[1].query["token"] == "2:6"


def test_where_the_partition_is_not_known_the_read_is_a_strong_one():
    fleet = Fleet()
    fleet.says("/v1/cluster", Gone())
    fleet.says(KEY, ok(entry()))
    kv = fleet.client().kv("b", consistency="local")

    kv.put("k", 1)
    kv.get("k")

    assert fleet.questions(KEY)[-1].query == {"consistency": "strong"}


def test_a_token_of_another_client_s_is_passed_on():
    fleet = Fleet()
    fleet.says(KEY, ok(entry()))

    fleet.client().kv("b").get("k", consistency="local", token="0:77")

    assert fleet.asked[0].query == {"consistency": "local", "token": "0:77"}


def test_a_bucket_made_anew_is_seen_from_its_beginning():
    fleet = Fleet()
    fleet.leaders = {"b": ["a:1"]}
    fleet.says(KEY, ok(entry(version=41)))
    fleet.says("/v1/kv/b", ok({"name": "b", "deleted": True}))
    kv = fleet.client().kv("b", consistency="local")
    kv.put("k", 1)

    assert kv.drop() is True
    kv.get("k")

    assert "token" not in fleet.questions(KEY)[-1].query


def test_local_reads_go_to_the_node_that_was_given():
    fleet = Fleet("a:1", "b:2")
    fleet.leaders = {"b": ["b:2"]}
    fleet.says(KEY, ok(entry()))
    kv = fleet.client("a:1").kv("b", consistency="local")

    for _ in range(3):
        kv.get("k")
    kv.put("k", 1)

    assert [asked.node for asked in fleet.questions(KEY)] == ["a:1", "a:1", "a:1", "b:2"]


# Buckets.


def test_a_bucket_is_made_with_what_was_asked_for():
    fleet = Fleet()
    fleet.says("/v1/kv/b", ok({"name": "b", "partitions": 3}, 201))

    assert fleet.client().kv("b").create(partitions=3)["partitions"] == 3

    assert (fleet.asked[0].method, fleet.asked[0].body) == ("PUT", {"partitions": 3})


def test_dropping_what_is_not_there_is_said():
    fleet = Fleet()
    fleet.says("/v1/kv/b", problem(404))

    assert fleet.client().kv("b").drop() is False


def test_a_drop_whose_answer_was_lost_has_happened():
    fleet = Fleet()
    fleet.says("/v1/kv/b", Gone(httpx.ReadError), problem(404))

    assert fleet.client().kv("b").drop() is True


def test_all_buckets_are_listed_page_by_page():
    fleet = Fleet()
    fleet.says(
        "/v1/kv",
        ok({"buckets": [{"name": "a"}, {"name": "b"}], "next": "b"}),
        ok({"buckets": [{"name": "c"}], "next": None}),
    )

    assert [bucket["name"] for bucket in fleet.client().buckets()] == ["a", "b", "c"]
    assert [asked.query for asked in fleet.questions("/v1/kv")] == [{}, {"after": "b"}]


# Many keys.


def refused(key: str, status: int, **facts: object) -> dict[str, object]:
    return {"key": key, "error": {"status": status, "detail": "no", **facts}}


def test_what_became_of_a_part_of_a_batch_is_known_only_if_no_attempt_was_lost():
    answer = ok(
        {
            "results": [
                refused("a", 409, version=3),
                refused("b", 424),
                refused("c", 503),
                refused("d", 404),
                refused("e", 413),
                refused("f", 504, outcome="unknown"),
                {"key": "g", "version": 7},
            ]
        }
    )
    operations = [Put(key, 1) for key in "abcdefg"]
    fleet = Fleet()
    fleet.says("/v1/kv/b:batch", answer, Gone(httpx.ReadError), answer)
    kv = fleet.client().kv("b")

    first = [type(result.error) for result in kv.batch(operations)]
    after_a_loss = kv.batch(operations)

    assert first[2:] == [Unavailable, NotFound, TooLarge, OutcomeUnknown, type(None)]
    assert [type(result.error) for result in after_a_loss] == [
        Conflict,
        TidelogHTTPError,
        OutcomeUnknown,
        OutcomeUnknown,
        TooLarge,
        OutcomeUnknown,
        type(None),
    ]
    unknown = after_a_loss[2].error
    assert isinstance(unknown, OutcomeUnknown)
    assert unknown.idempotency_key == fleet.asked[-1].key


def test_a_batch_tells_of_each_operation():
    fleet = Fleet()
    stale = {"status": 409, "detail": "it is 9", "version": 9}
    fleet.says(
        "/v1/kv/b:batch",
        ok({"results": [{"key": "x", "version": 5, "token": "0:6"}, {"key": "y", "error": stale}]}),
    )

    first, second = fleet.client().kv("b").batch([Put("x", 1, ttl=2), Delete("y", if_version=8)])

    assert first.ok and first.version == 5
    assert isinstance(second.error, Conflict) and second.error.version == 9 and not second.ok
    (asked,) = fleet.asked
    assert asked.key is not None
    assert asked.body == {
        "operations": [
            {"op": "put", "key": "x", "value": 1, "ttl_ms": 2000},
            {"op": "delete", "key": "y", "if_version": 8},
        ]
    }


def page(*keys: str, following: str | None = None) -> httpx.Response:
    entries = [{"key": key, "value": 1, "version": 0} for key in keys]
    return ok({"entries": entries, "next": following})


def test_a_scan_goes_from_page_to_page_and_asks_for_one_when_it_is_needed():
    fleet = Fleet()
    fleet.says("/v1/kv/b", page("a1", "a2", following="a2"), page("a3"))

    found = fleet.client().kv("b").scan("a", page=2)

    assert next(found).key == "a1"
    assert len(fleet.asked) == 1
    assert [entry.key for entry in found] == ["a2", "a3"]
    first, second = fleet.questions("/v1/kv/b")
    assert first.query == {"prefix": "a", "values": "true", "limit": "2", "consistency": "strong"}
    assert second.query == {**first.query, "after": "a2"}


def test_a_scan_has_a_limit_and_may_leave_values_out():
    fleet = Fleet()
    fleet.says("/v1/kv/b", page("a", "b", following="b"), page("c", following="c"))

    found = list(fleet.client().kv("b").scan(limit=3, page=2, values=False))

    assert [entry.key for entry in found] == ["a", "b", "c"]
    assert [asked.query["limit"] for asked in fleet.questions("/v1/kv/b")] == ["2", "1"]
    assert fleet.asked[0].query["values"] == "false"


# Watching.


def event(key: str, value: str, version: int) -> str:
    return f'id: c{version}\ndata: {{"key":"{key}","value":{value},"version":{version}}}\n\n'


def test_a_token_of_a_bucket_that_was_made_anew_takes_the_place_of_the_old_one():
    tokens = Tokens()
    for token in ("0:9:aa", "1:4:aa", "0:7:aa"):
        tokens.note("b", token)
    assert (tokens.of("b", 0), tokens.of("b", 1)) == ("0:9:aa", "1:4:aa")

    tokens.note("b", "0:2:bb")
    tokens.note("b", "0:3:bb")

    assert tokens.of("b", 0) == "0:3:bb"
    tokens.note("plain", "0:3")
    assert tokens.of("plain", 0) == "0:3"


def test_a_watch_tells_of_changes_and_deletions():
    fleet = Fleet()
    set_to_null, deleted = event("k", "null", 2), event("k", 'null,"deleted":true', 3)
    fleet.says(WATCH, events(event("k", '{"a":1}', 1), ": beat\n\n", set_to_null, deleted))
    watch = fleet.client().kv("b").watch("k")

    assert next(watch) == Change(key="k", value={"a": 1}, version=1, is_deleted=False, cursor="c1")
    assert not next(watch).is_deleted
    assert next(watch).is_deleted
    watch.close()
    (asked,) = fleet.asked
    assert asked.query == {"prefix": "k", "from": "now"}
    assert asked.headers["accept"] == "text/event-stream"


def test_a_watch_that_is_lost_goes_on_after_the_last_change():
    fleet = Fleet("a:1", "b:2")
    fleet.says(WATCH, events(event("k", "1", 1), lost=True), Gone(), events(event("k", "2", 2)))

    watch = fleet.client("a:1", "b:2").kv("b").watch()

    assert [next(watch).version, next(watch).version] == [1, 2]
    watch.close()
    asked = fleet.questions(WATCH)
    assert [one.query["from"] for one in asked] == ["now", "c1", "c1"]
    assert [one.node for one in asked] == ["a:1", "b:2", "a:1"]


def test_a_watch_that_may_have_missed_deletions_says_so_and_begins_anew():
    fleet = Fleet()
    gone = json.dumps({"status": 416, "detail": "deletions below 9 may be missing", "cursor": "c1"})
    fleet.says(
        WATCH,
        problem(416, "deletions below 9 may be missing"),
        events(event("k", "1", 1), f"event: error\ndata: {gone}\n\n"),
        events(event("j", "2", 2)),
    )

    watch = fleet.client().kv("b").watch("k", from_="c0")

    heard = [next(watch) for _ in range(4)]
    watch.close()
    assert [(one.key, one.begins_anew) for one in heard] == [
        ("", True),
        ("k", False),
        ("", True),
        ("j", False),
    ]
    asked = fleet.questions(WATCH)
    assert [one.query["from"] for one in asked] == ["c0", "start", "start"]
    assert {one.query["prefix"] for one in asked} == {"k"}


def test_a_watch_goes_on_where_it_began_though_nothing_has_changed_yet():
    fleet = Fleet()
    fleet.says(WATCH, events("id: c0\n\n", lost=True), events(event("k", "1", 1)))

    watch = fleet.client().kv("b").watch()

    assert next(watch).version == 1
    watch.close()
    assert [one.query["from"] for one in fleet.questions(WATCH)] == ["now", "c0"]


def test_streams_that_end_before_they_begin_are_asked_for_less_and_less():
    fleet = Fleet()
    fleet.says(WATCH, events(), events(), events(event("k", "1", 1)))

    watch = fleet.client(backoff=0.4).kv("b").watch()

    assert next(watch).version == 1
    watch.close()
    assert fleet.slept == pytest.approx([0.3, 0.6])


def test_a_watch_that_is_lost_again_and_again_but_heard_is_sought_at_once():
    fleet = Fleet()
    fleet.says(WATCH, *(events(event("k", "1", version), lost=True) for version in range(4)))

    watch = fleet.client(backoff=0.4, retries=0).kv("b").watch()

    assert [next(watch).version for _ in range(4)] == [0, 1, 2, 3]
    watch.close()
    assert fleet.slept == pytest.approx([0.3, 0.3, 0.3])


def test_a_change_that_was_cut_in_two_is_told_once():
    fleet = Fleet()
    whole = event("k", "1", 1)
    fleet.says(WATCH, events(event("k", "0", 0), whole[:-1], lost=True), events(whole))

    watch = fleet.client().kv("b").watch()

    assert [next(watch).version, next(watch).version] == [0, 1]
    watch.close()


def test_a_watch_ends_with_its_bucket():
    fleet = Fleet()
    fleet.says(WATCH, events(event("k", "1", 1)), problem(404, "there is no topic b"))

    watch = fleet.client().kv("b").watch()

    next(watch)
    with pytest.raises(NotFound, match="no topic b"):
        next(watch)


def test_a_watch_that_finds_nobody_gives_up_as_every_request_does():
    fleet = Fleet()
    fleet.down = {"a:1"}

    with pytest.raises(Unavailable, match="tidelog start"):
        next(fleet.client(retries=2).kv("b").watch())

    assert len(fleet.asked) == 3


def test_a_watch_that_was_heard_is_sought_for_longer():
    fleet = Fleet()
    fleet.says(WATCH, events(event("k", "1", 1)), problem(503, "nobody leads"))
    watch = fleet.client(retries=0, reconnect_seconds=30).kv("b").watch()
    next(watch)

    with pytest.raises(Unavailable, match="nobody leads"):
        next(watch)

    assert 30 < fleet.now < 40


def test_an_event_that_is_too_long_ends_the_watch(monkeypatch):
    monkeypatch.setattr("tidelog.client.http.core.EVENT_BYTES_MAX", 50)
    fleet = Fleet()
    fleet.says(WATCH, events("data: " + "x" * 60))

    with pytest.raises(TidelogHTTPError, match="50 bytes"):
        next(fleet.client().kv("b").watch())


def test_a_watch_that_nobody_reads_any_more_is_closed():
    fleet = Fleet()
    answer = events(event("k", "1", 1), event("k", "2", 2))
    fleet.says(WATCH, answer)

    for change in fleet.client().kv("b").watch():
        assert change.version == 1
        break

    assert answer.is_closed
