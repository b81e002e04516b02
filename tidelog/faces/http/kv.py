"""Key-value over HTTP: buckets, keys with versions, conditions and times to live.

Rule 1: a value is JSON. What a Kafka client wrote that is none is shown as text or base64.
Rule 2: a token names what a client has seen, of one partition. Given to a local read it is never
        answered with less. One of another bucket of the name makes the read a strong one: this node
        may know of neither that bucket's end nor this one's beginning.
"""

from base64 import b64decode, b64encode
from heapq import merge
from itertools import islice
from typing import Any, Final
from urllib.parse import unquote_to_bytes

import msgspec

from tidelog.broker.serving import side_by_side
from tidelog.broker.topic_deletion import missing_everywhere
from tidelog.broker.topics import create_topic, delete_topic
from tidelog.controller.decisions import NewTopic
from tidelog.copies.views.kv import Change, Entry
from tidelog.errors import BrokerError, TopicAlreadyExists, UnknownTopicOrPartition
from tidelog.faces.http.api import Call, Operation, Param, json_answer, tagged
from tidelog.faces.http.paging import AFTER, LIMIT, shown_page
from tidelog.faces.http.permissions import DESCRIBES_EACH, on_bucket
from tidelog.faces.http.problems import Problem, problem_of
from tidelog.faces.http.values import show_key, show_stored
from tidelog.faces.http.writes import WRITE_PARAMS, Wanted, wanted_of
from tidelog.model import INTERNAL_TOPICS, Offset, TopicPartition
from tidelog.security.authorizer import require_create
from tidelog.security.permissions import Operation as Right
from tidelog.services.kv import Kv
from tidelog.services.kv_work import KvScanned, KvWritten
from tidelog.wire.partitioner import partition_for

KEY_BYTES_MAX: Final = 4096
VERSION_MAX: Final = 2**63 - 1
CHANGES_MAX: Final = 1000
READ_SECONDS: Final = 30.0
BUCKET_CONFIG: Final = {"cleanup.policy": "compact", "kv.view": "true"}

CONSISTENCY: Final = Param(
    name="consistency",
    choices=("strong", "local"),
    default="strong",
    doc="strong: as new as any acknowledged write. local: what a replica has, which may be a "
    "moment old and never goes back.",
)
TOKEN: Final = Param(
    name="token", doc="What an earlier answer gave: a local read is at least as new as that."
)
IF_VERSION: Final = Param(
    name="if_version",
    kind=int,
    least=-1,
    most=VERSION_MAX,
    doc="Only if the key has this version; -1 if it must not be there.",
)


class BucketWanted(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A bucket to be made."""

    partitions: int | None = None
    replication: int | None = None
    config: dict[str, str] = msgspec.field(default_factory=dict)


class Bucket(msgspec.Struct, kw_only=True):
    name: str
    partitions: int


class Buckets(msgspec.Struct, kw_only=True):
    buckets: list[Bucket]
    next: str | None


class PutWanted(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What a key shall be."""

    value: msgspec.Raw
    ttl_ms: int | None = None
    if_version: int | None = None


class Put(msgspec.Struct, kw_only=True):
    key: str
    value: Any
    version: int
    token: str


class Found(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A key as it is."""

    key: str
    value: Any
    version: int
    token: str = ""
    expires_at_ms: int | None = None
    encoding: str = "json"
    key_encoding: str = "text"


class Deleted(msgspec.Struct, kw_only=True):
    key: str
    version: int | None
    deleted: bool
    token: str


class Entries(msgspec.Struct, kw_only=True):
    entries: list[Found]
    next: str | None


class ChangeWanted(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """One of many changes."""

    op: str
    key: str
    value: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)
    """Empty if it has none; msgspec takes no Raw that may be None."""
    ttl_ms: int | None = None
    if_version: int | None = None


class BatchWanted(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    operations: list[ChangeWanted]


class Results(msgspec.Struct, kw_only=True):
    results: list[dict[str, Any]]


# Buckets.


async def list_buckets(call: Call) -> Buckets:
    broker = call.broker
    names = [
        topic.name
        for topic in broker.image.topics.values()
        if topic.name not in INTERNAL_TOPICS and broker.topic_config(topic).compacts
    ]
    found, following = await shown_page(call, names, DESCRIBES_EACH)
    topics = broker.image.topics
    return Buckets(
        buckets=[Bucket(name=name, partitions=len(topics[name].partitions)) for name in found], next=following
    )


async def make_bucket(call: Call) -> Any:
    wanted: BucketWanted = call.body
    name: str = call.path["bucket"]
    made = await _make(call, name, wanted)
    places = await call.node.services.kv.places(name)
    return json_answer(Bucket(name=name, partitions=len(places)), 201 if made else 200)


async def _make(call: Call, name: str, wanted: BucketWanted) -> bool:
    """Whether there was none. Who is told that there was one has it from the newest metadata: what
    this node knows of it may be deleted by now."""
    require_create(call.access, name)
    new = NewTopic(
        name=name,
        partitions=1 if wanted.partitions is None else wanted.partitions,
        replication=-1 if wanted.replication is None else wanted.replication,
        config={**BUCKET_CONFIG, **wanted.config},
    )
    try:
        await create_topic(call.broker, new)
    except TopicAlreadyExists:
        return False  # another was quicker
    return True


async def drop_bucket(call: Call) -> dict[str, Any]:
    name: str = call.path["bucket"]
    try:
        await call.node.services.kv.places(name)  # it must be one
    except UnknownTopicOrPartition:
        await missing_everywhere(call.broker, name)
        raise
    await delete_topic(call.broker, name, None)
    return {"name": name, "deleted": True}


# Keys.


async def get_key(call: Call) -> Found:
    key = _key_of(call)
    kv = call.node.services.kv
    place = await kv.place_of(call.path["bucket"], key)
    after = _after(call, place)
    found = await kv.get(
        place,
        key,
        is_strong=call["consistency"] == "strong" or after is None,
        after=after or 0,
        seconds=READ_SECONDS,
    )
    token = _token(call, place, found.applied)
    if found.entry is None or found.entry.value is None:
        raise Problem(
            404,
            f"{place.topic} has no key {call.path['key']!r}",
            token=token,
            headers={"x-tidelog-token": token},
        )
    return _shown(found.entry, token)


async def put_key(call: Call) -> Put:
    wanted: PutWanted = call.body
    key, value = _key_of(call), bytes(wanted.value)
    change = _change(key, value, wanted.ttl_ms, wanted.if_version)
    place, written = await _write_one(call, change, makes_bucket=True)
    return Put(
        key=call.path["key"],
        value=msgspec.Raw(value),
        version=written.offset,
        token=_token(call, place, written.offset + 1),
    )


async def delete_key(call: Call) -> Deleted:
    change = Change(_key_of(call), None, None, call["if_version"])
    place, written = await _write_one(call, change)
    is_done = written.offset >= 0
    return Deleted(
        key=call.path["key"],
        version=written.offset if is_done else None,
        deleted=is_done,
        token=_token(call, place, written.offset + 1),
    )


async def _write_one(
    call: Call, change: Change, *, makes_bucket: bool = False
) -> tuple[TopicPartition, KvWritten]:
    kv, bucket = call.node.services.kv, call.path["bucket"]
    if makes_bucket:
        await _find_or_make(call, bucket)
    place = await kv.place_of(bucket, change.key)
    # What is done to another key is another request, though it bears the same Idempotency-Key.
    what = "put" if change.value is not None else "delete"
    key = change.key.decode("utf-8", "surrogateescape")
    wanted = wanted_of(call, f"kv\0{what}\0{key}")
    written = await kv.write(place, [change], once=wanted.once, copies=wanted.copies, seconds=wanted.seconds)
    for _, version in written.refused:
        raise Problem(409, **_stale(change, version, written))
    return place, written


async def _find_or_make(call: Call, bucket: str) -> None:
    broker = call.broker
    if bucket not in broker.image.topics:
        await broker.metadata.caught_up()
    if bucket in broker.image.topics:
        return
    if not broker.config.auto_create_topics_enable:
        raise UnknownTopicOrPartition(f"{bucket}; make the bucket with PUT /v1/kv/{bucket}")
    await _make(call, bucket, BucketWanted())


async def write_batch(call: Call) -> Results:
    wanted: BatchWanted = call.body
    changes = _checked(wanted.operations)
    kv, bucket = call.node.services.kv, call.path["bucket"]
    if any(change.value is not None for change in changes):
        await _find_or_make(call, bucket)
    how = wanted_of(call, "kv")
    places = await kv.places(bucket)
    by_place: dict[TopicPartition, list[int]] = {}
    for at, change in enumerate(changes):
        place = places[partition_for(change.key, len(places))]
        by_place.setdefault(place, []).append(at)
    written = await side_by_side(
        *(_write_some(kv, place, [changes[at] for at in numbers], how) for place, numbers in by_place.items())
    )
    failed = [one for one in written if isinstance(one, BrokerError)]
    if len(failed) == len(written):
        raise failed[0]
    results: list[dict[str, Any]] = [{} for _ in changes]
    for (place, numbers), done in zip(by_place.items(), written, strict=True):
        refused = {} if isinstance(done, BrokerError) else dict(done.refused)
        for i, at in enumerate(numbers):
            key = wanted.operations[at].key
            if isinstance(done, BrokerError):
                why = problem_of(done)
                error = {"status": why.status, "detail": why.detail, **why.facts}
                results[at] = {"key": key, "error": error}
            elif refused:
                results[at] = {"key": key, "error": _refusal(changes[at], refused, i, done)}
            else:
                version = done.offset + i if done.offset >= 0 else None
                results[at] = {"key": key, "version": version}
                if version is not None:
                    results[at]["token"] = _token(call, place, version + 1)
    return Results(results=results)


async def _write_some(
    kv: Kv, place: TopicPartition, changes: list[Change], how: Wanted
) -> KvWritten | BrokerError:
    """Change keys of one partition; what became of the others' is told beside it."""
    try:
        return await kv.write(place, changes, once=how.once, copies=how.copies, seconds=how.seconds)
    except BrokerError as error:
        return error


def _checked(operations: list[ChangeWanted]) -> list[Change]:
    if not 0 < len(operations) <= CHANGES_MAX:
        raise Problem(400, f"a batch has 1 to {CHANGES_MAX} operations; this has {len(operations)}")
    changes = []
    for at, one in enumerate(operations):
        if one.op not in ("put", "delete"):
            raise Problem(400, f"operations[{at}].op is {one.op!r}; it must be put or delete")
        if one.op == "put" and not one.value:
            raise Problem(400, f"operations[{at}] puts no value")
        if one.op == "delete" and (one.value or one.ttl_ms is not None):
            raise Problem(400, f"operations[{at}] deletes, and has a value or a time to live")
        value = bytes(one.value) or None
        changes.append(_change(_key(one.key.encode()), value, one.ttl_ms, one.if_version))
    if len({change.key for change in changes}) < len(changes):
        raise Problem(400, "a batch changes a key once; one of these is there twice")
    return changes


async def list_keys(call: Call) -> Entries:
    kv = call.node.services.kv
    prefix, limit = (call["prefix"] or "").encode(), call["limit"]
    beyond = None if call["after"] is None else _from_page(call["after"])
    scanned: list[KvScanned] = await side_by_side(
        *(
            kv.scan(
                place,
                prefix=prefix,
                beyond=beyond,
                limit=limit,
                is_strong=call["consistency"] == "strong",
                after=0,
                seconds=READ_SECONDS,
            )
            for place in await kv.places(call.path["bucket"])
        )
    )
    # Beyond the last key of a partition that was cut short, its others may come.
    known_to = min((one.entries[-1].key for one in scanned if one.is_cut), default=None)
    merged = merge(*(one.entries for one in scanned), key=lambda entry: entry.key)
    found = list(islice(merged, limit))
    if known_to is not None:
        found = [entry for entry in found if entry.key <= known_to]
    is_all = sum(len(one.entries) for one in scanned) == len(found) and known_to is None
    if not call["values"]:
        found = [entry._replace(value=b"null") for entry in found]
    return Entries(
        entries=[_shown(entry) for entry in found],
        next=None if is_all or not found else _to_page(found[-1].key),
    )


# Values, versions and tokens.


def _key_of(call: Call) -> bytes:
    """The key that a path names, byte by byte: it need not be text."""
    path = unquote_to_bytes(call.request.raw_path)
    return _key(path.split(b"/", _KEY.count("/"))[-1])


def _key(key: bytes) -> bytes:
    if not 0 < len(key) <= KEY_BYTES_MAX:
        raise Problem(400, f"a key has 1 to {KEY_BYTES_MAX} bytes; this has {len(key)}")
    return key


def _change(key: bytes, value: bytes | None, ttl_ms: int | None, if_version: int | None) -> Change:
    if ttl_ms is not None and not 0 < ttl_ms < 2**50:
        raise Problem(400, f"ttl_ms is {ttl_ms}; it must be a number of milliseconds above 0")
    if if_version is not None and not -1 <= if_version <= VERSION_MAX:
        raise Problem(400, f"if_version is {if_version}; it is a version, or -1 for a new key")
    return Change(key, value, None, if_version, ttl_ms)


def _stale(change: Change, version: Offset | None, written: KvWritten) -> dict[str, Any]:
    """Why a condition was refused; the version is that of now, also for a repeat."""
    now = "it is not there" if version is None else f"it is {version}"
    wanted = (
        "the key must not be there"
        if change.if_version == -1
        else (f"the version must be {change.if_version}")
    )
    if not written.is_repeat:
        detail = f"{wanted}, but {now}; read it again and decide again"
        return {"detail": detail, "version": version}
    detail = f"{wanted}, which did not hold when this request first came; now {now}. Read it and decide again"
    detail += ", with another Idempotency-Key"
    return {"detail": detail, "version": version, "repeated": True}


def _refusal(
    change: Change, refused: dict[int, Offset | None], at: int, written: KvWritten
) -> dict[str, Any]:
    if at in refused:
        return {"status": 409, **_stale(change, refused[at], written)}
    return {"status": 424, "detail": "not done: another change of its partition was refused"}


def _to_page(key: bytes) -> str:
    """A key as text that `_from_page` takes for it: as it is, unless it is no text."""
    try:
        if not key.startswith(b"\0"):
            return key.decode()
    except UnicodeDecodeError:
        pass
    return "\0" + b64encode(key).decode()


def _from_page(text: str) -> bytes:
    if not text.startswith("\0"):
        return text.encode()
    try:
        return b64decode(text[1:], validate=True)
    except ValueError:
        raise Problem(400, f"{text[:100]!r} is no key; send what an answer gave as `next`") from None


def _token(call: Call, place: TopicPartition, offset: Offset) -> str:
    return f"{place.partition}:{offset}:{_id_of(call, place)}"


def _id_of(call: Call, place: TopicPartition) -> str:
    """What tells a bucket from others of its name; empty if it was just deleted."""
    topic = call.broker.image.topics.get(place.topic)
    return "" if topic is None else topic.id.hex[:8]


def _after(call: Call, place: TopicPartition) -> Offset | None:
    """What a token asks of this partition; one of another asks nothing of it.

    None for what was seen of another bucket of this name.
    """
    token: str | None = call["token"]
    if token is None:
        return 0
    number, _, rest = token.partition(":")
    offset, _, bucket = rest.partition(":")
    is_one = number.isdecimal() and offset.isdecimal()
    if not is_one or len(number) > 9 or len(offset) > 18:
        raise Problem(400, f"{token[:100]!r} is no token; send what an answer gave, or none")
    if int(number) != place.partition:
        return 0
    return int(offset) if bucket in ("", _id_of(call, place)) else None


def _shown(entry: Entry, token: str = "") -> Found:
    value, encoding = show_stored(entry.value or b"")
    key, key_encoding = show_key(entry.key)
    return Found(
        key=key,
        value=value,
        version=entry.version,
        token=token,
        encoding=encoding,
        expires_at_ms=entry.expires_at_ms,
        key_encoding=key_encoding,
    )


_KEY: Final = "/v1/kv/{bucket}/{key:path}"
_STALE: Final = {404: "There is no such bucket.", 409: "The key has another version."}

OPERATIONS: Final = tagged(
    "key-value",
    Operation(
        "GET",
        _KEY,
        get_key,
        "Get a key.",
        params=(CONSISTENCY, TOKEN),
        errors={404: "There is no such bucket or key."},
        needs=on_bucket(Right.READ),
    ),
    Operation(
        "PUT",
        _KEY,
        put_key,
        "Set a key, with an optional time to live, and optionally only at a given version.",
        body=PutWanted,
        params=WRITE_PARAMS,
        errors=_STALE,
        needs=on_bucket(Right.WRITE),
    ),
    Operation(
        "DELETE",
        _KEY,
        delete_key,
        "Delete a key.",
        params=(IF_VERSION, *WRITE_PARAMS),
        errors=_STALE,
        needs=on_bucket(Right.WRITE),
    ),
    Operation(
        "POST",
        "/v1/kv/{bucket}:batch",
        write_batch,
        "Change many keys; those of one partition atomically.",
        body=BatchWanted,
        params=WRITE_PARAMS,
        errors={404: "There is no such bucket."},
        needs=on_bucket(Right.WRITE),
    ),
    Operation(
        "GET",
        "/v1/kv",
        list_buckets,
        "List the buckets: every compacted topic.",
        params=(LIMIT, AFTER),
        needs=(DESCRIBES_EACH,),
    ),
    Operation(
        "PUT",
        "/v1/kv/{bucket}",
        make_bucket,
        "Create a bucket if it does not exist.",
        body=BucketWanted,
        answer=Bucket,
        status=201,
        errors={200: "It was there."},
        needs=on_bucket(Right.CREATE),
    ),
    Operation(
        "DELETE",
        "/v1/kv/{bucket}",
        drop_bucket,
        "Delete a bucket and all its keys.",
        errors={404: "There is no such bucket."},
        needs=on_bucket(Right.DELETE),
    ),
    Operation(
        "GET",
        "/v1/kv/{bucket}",
        list_keys,
        "List the keys of a bucket, in order.",
        params=(
            Param(name="prefix", doc="Only keys that begin with it."),
            Param(name="values", kind=bool, default=True, doc="Whether values are wanted, too."),
            LIMIT,
            AFTER,
            CONSISTENCY,
        ),
        errors={404: "There is no such bucket."},
        needs=on_bucket(Right.READ),
    ),
)
