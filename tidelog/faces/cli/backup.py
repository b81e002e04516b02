"""`tidelog backup`: what a cluster holds, in files, and back."""

import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from tidelog.errors import TidelogError
from tidelog.faces.cli.archive import duration_seconds
from tidelog.faces.cli.common import (
    DEFAULT_BOOTSTRAP,
    AsJson,
    Bootstrap,
    UsageError,
    UserError,
    complain,
    note,
    number,
    plain,
    print_json,
    print_table,
    progress_bar,
    run,
)
from tidelog.faces.cli.replication import size

if TYPE_CHECKING:
    from tidelog.backup import creating, restoring
    from tidelog.backup.manifest import Manifest
    from tidelog.backup.storage import Storage

MIB: Final = 1024 * 1024

app = typer.Typer(no_args_is_help=True, help="Create, check and restore backups.")

Place = Annotated[
    str,
    typer.Argument(
        metavar="DIR",
        help="Location of the backups: a directory, or a URL as s3://bucket/path (with fsspec).",
    ),
]
BackupId = Annotated[
    str | None,
    typer.Option(
        "--backup", metavar="ID", help="Id of the backup, from `backup list` (default: the newest)."
    ),
]
Topics = Annotated[
    list[str] | None, typer.Option("--topic", metavar="T", help="Only this topic; repeatable.")
]


@app.command("create")
def create(
    place: Place,
    topic: Topics = None,
    every: Annotated[
        str,
        typer.Option(
            "--every", metavar="T", help="Repeat, with this time between backups: 90s, 30m, 24h, 7d."
        ),
    ] = "",
    full: Annotated[
        bool, typer.Option("--full", help="Store everything again, whatever earlier backups have.")
    ] = False,
    keep: Annotated[
        int, typer.Option("--keep", metavar="N", min=0, help="Keep only the newest N backups; 0 keeps all.")
    ] = 0,
    chunk_mib: Annotated[
        int, typer.Option("--chunk-mib", metavar="N", min=1, help="Size of files in MiB.")
    ] = 64,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Back up topics, their settings, the queues and the offsets of groups.

    The first backup in a directory has everything that is committed. Each
    further one stores only what is new, and names the files of earlier ones
    that it needs. A backup that is interrupted leaves nothing behind that
    counts as a backup.

    With --every it runs until stopped, and prints a line for each backup.

    \b
    Examples:
      tidelog backup create /backups/shop
      tidelog backup create /backups/shop --every 10m --keep 144
      tidelog backup create /backups/shop --topic orders --topic payments
      tidelog backup create s3://bucket/shop --bootstrap 10.0.0.5:9092
    """
    seconds = duration_seconds(every, "--every")
    if every and not seconds:
        raise UserError(f"--every {every} is no time at all; give one such as 10m")
    storage = _opened(place)
    from tidelog.backup.creating import Wish

    wish = Wish(topics=tuple(topic or ()), full=full, keep=keep, chunk_bytes=chunk_mib * MIB)

    async def once() -> None:
        from tidelog.backup.creating import create as make

        with _offsets_bar("backing up", visible=not as_json) as on_progress:
            made = await make(bootstrap, storage, wish, on_progress=on_progress)
        _show_created(made, as_json=as_json)

    try:
        _run(_keep_on(once, seconds) if seconds else once())
    except KeyboardInterrupt:
        if not seconds:  # else that is how it ends
            raise


async def _keep_on(work: Callable[[], Coroutine[Any, Any, None]], seconds: float) -> None:
    """Do it every so often, and go on though one has failed; the first must not."""
    import asyncio

    is_first = True
    while True:
        began = time.monotonic()
        try:
            await work()
        except (TidelogError, OSError) as error:
            if is_first:
                raise
            complain(f"{error}; the next backup is tried in {seconds:g} s")
        is_first = False
        await asyncio.sleep(max(0.0, seconds - (time.monotonic() - began)))


def _run(work: Coroutine[Any, Any, None]) -> None:
    """Run it to its end, or until a signal asks it to clean up and leave."""
    import asyncio
    import signal

    async def guarded() -> None:
        task = asyncio.current_task()
        assert task is not None
        loop = asyncio.get_running_loop()
        try:
            loop.add_signal_handler(signal.SIGTERM, task.cancel)
        except (ValueError, RuntimeError, NotImplementedError):
            await work  # not in the main thread: nobody sends signals here
            return
        try:
            await work
        finally:
            loop.remove_signal_handler(signal.SIGTERM)

    try:
        run(guarded(), fast=True)
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


def _show_created(made: "creating.Created", *, as_json: bool) -> None:
    one = made.manifest
    if as_json:
        print_json(
            {
                **_document(one),
                "new_records": made.new_records,
                "new_bytes": made.new_bytes,
                "seconds": round(made.seconds, 3),
                "removed": list(made.removed),
            }
        )
        return
    for text in one.notes:
        note(text)
    print(
        f"{one.id}: {number(one.records)} records of {len(one.topics)} topics, "
        f"{size(one.bytes)}; new are {number(made.new_records)} records, {size(made.new_bytes)}, "
        f"in {made.seconds:.1f} s",
        flush=True,
    )


@app.command("list")
def show_list(place: Place, as_json: AsJson = False) -> int:
    """List the backups in a directory, the oldest first."""
    from tidelog.backup.kept import load_manifests

    storage = _opened(place)
    if not storage.exists():
        raise UsageError(f"there is no directory {place}; `tidelog backup create {place}` makes it")
    found, damaged = load_manifests(storage)
    if as_json:
        print_json({"backups": [_document(one) for one in found], "damaged": [str(e) for e in damaged]})
    elif not found and not damaged:
        note(f"there are no backups in {place}; make one with `tidelog backup create {place}`")
    else:
        print_table(
            ["backup", "taken", "topics#", "groups#", "records#", "size#", "files#"],
            [
                (
                    one.id,
                    _time(one.taken_ms),
                    len(one.topics),
                    len(one.groups),
                    number(one.records),
                    size(one.bytes),
                    len(one.files),
                )
                for one in found
            ],
        )
    for error in damaged:
        complain(str(error))
    return int(bool(damaged))


@app.command("verify")
def verify(
    place: Place,
    backup: BackupId = None,
    every_one: Annotated[bool, typer.Option("--all", help="Verify all backups.")] = False,
    deep: Annotated[bool, typer.Option("--deep", help="Also decode every record.")] = False,
    as_json: AsJson = False,
) -> int:
    """Read a whole backup and compare it with its checksums.

    Exits with 1 if something is damaged or missing.

    \b
    Examples:
      tidelog backup verify /backups/shop
      tidelog backup verify /backups/shop --all --deep
    """
    if every_one and backup is not None:
        raise UsageError("--backup and --all: keep one of them")
    from tidelog.backup.checking import bytes_to_verify
    from tidelog.backup.checking import verify as check
    from tidelog.backup.kept import find_manifest, load_manifests

    storage = _opened(place)
    if every_one:
        wanted, damaged = load_manifests(storage)
    else:
        wanted, damaged = [find_manifest(storage, backup)], []
    with progress_bar(visible=not as_json) as progress:
        task = progress.add_task("verifying", total=bytes_to_verify(wanted))
        found = check(storage, wanted, deep=deep, on_progress=lambda done: progress.advance(task, done))
    broken = [str(error) for error in damaged]
    if as_json:
        print_json(
            {
                "backups": [
                    {"backup": one.manifest.id, "files": one.files, "damage": list(one.damage)}
                    for one in found
                ],
                "damaged": broken,
            }
        )
    else:
        print_table(
            ["backup", "files#", "records#", "size#", "damage#"],
            [
                (
                    one.manifest.id,
                    one.files,
                    number(one.manifest.records),
                    size(one.manifest.bytes),
                    len(one.damage),
                )
                for one in found
            ],
        )
        for text in dict.fromkeys([*broken, *(text for one in found for text in one.damage)]):
            print(plain(text))
    return int(bool(broken) or any(one.damage for one in found))


@app.command("restore")
def restore(
    place: Place,
    backup: BackupId = None,
    topic: Topics = None,
    into: Annotated[
        str,
        typer.Option("--into", metavar="PREFIX", help="Prefix for the names of restored topics and groups."),
    ] = "",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be done, and do nothing.")
    ] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Continue an interrupted restore.")] = False,
    no_verify: Annotated[
        bool, typer.Option("--no-verify", help="Do not compare the result with the backup.")
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Restore a backup into a cluster that has no topics of these names.

    Records get their former offsets, timestamps, keys and headers, so
    versions of keys, ids and pointers of queues, and offsets of groups stay
    valid. Then everything is read again and compared with the backup, record
    by record.

    No other client may write to these topics meanwhile: the restore notices
    it and fails.

    \b
    Examples:
      tidelog backup restore /backups/shop --dry-run
      tidelog backup restore /backups/shop
      tidelog backup restore /backups/shop --topic orders --into yesterday. \\
          --backup 20260131T120000Z-1a2b3c
    """
    from tidelog.backup.kept import find_manifest
    from tidelog.backup.restoring import Wish

    storage = _opened(place)
    manifest = find_manifest(storage, backup)
    wish = Wish(topics=tuple(topic or ()), prefix=into, resume=resume, verify=not no_verify)
    if dry_run:
        _show_plan(run(_plan(bootstrap, manifest, wish)), as_json=as_json)
        return

    async def work() -> None:
        from tidelog.backup.restoring import restore as write

        with _bytes_bar(visible=not as_json) as on_progress:
            done = await write(bootstrap, storage, manifest, wish, on_progress=on_progress)
        _show_restored(done, as_json=as_json)

    _run(work())


async def _plan(bootstrap: str, manifest: "Manifest", wish: "restoring.Wish") -> "restoring.RestorePlan":
    from tidelog.backup.cluster_requests import BackupClient
    from tidelog.backup.restoring import plan_restore

    async with BackupClient(bootstrap) as client:
        return await plan_restore(client, manifest, wish)


def _plan_document(plan: "restoring.RestorePlan") -> dict[str, Any]:
    return {
        "backup": plan.manifest.id,
        "topics": [
            {
                "topic": one.source.name,
                "target": one.name,
                "partitions": len(one.source.partitions),
                "replication": one.replication,
                "records": sum(chunk.records for chunk in one.source.chunks),
                "bytes": sum(chunk.bytes for chunk in one.source.chunks),
            }
            for one in plan.targets
        ],
        "groups": [one.group for one in plan.groups],
        "records": plan.records,
        "bytes": plan.bytes,
        "notes": list(plan.notes),
    }


def _show_plan(plan: "restoring.RestorePlan", *, as_json: bool) -> None:
    document = _plan_document(plan)
    if as_json:
        print_json({**document, "dry_run": True})
        return
    print_table(
        ["topic", "becomes", "partitions#", "replicas#", "records#", "size#"],
        [
            (
                one["topic"],
                one["target"],
                one["partitions"],
                one["replication"],
                number(one["records"]),
                size(one["bytes"]),
            )
            for one in document["topics"]
        ],
    )
    for text in plan.notes:
        note(text)
    print(
        f"{plan.manifest.id} would be restored: {number(plan.records)} records, "
        f"{size(plan.bytes)}, {len(plan.groups)} groups; nothing was changed"
    )


def _show_restored(done: "restoring.Restored", *, as_json: bool) -> None:
    plan = done.plan
    if as_json:
        print_json(
            {
                **_plan_document(plan),
                "verified_records": done.verified_records,
                "compacted_records": done.compacted_records,
                "seconds": round(done.seconds, 3),
            }
        )
        return
    for text in plan.notes:
        note(text)
    verified = done.verified_records
    if verified is None:
        compared = "nothing was compared"
    else:
        compared = f"{number(verified)} records compared, all as they were"
    if done.compacted_records:
        compared += f"; {number(done.compacted_records)} older ones of their keys were compacted"
    print(
        f"{plan.manifest.id} restored: {number(plan.records)} records of {len(plan.targets)} "
        f"topics, {len(plan.groups)} groups, in {done.seconds:.1f} s; {compared}"
    )


# What they share.


def _opened(place: str) -> "Storage":
    from tidelog.backup.storage import open_storage

    return open_storage(place)


def _time(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _document(one: "Manifest") -> dict[str, Any]:
    return {
        "backup": one.id,
        "taken_ms": one.taken_ms,
        "cluster_id": one.cluster_id,
        "parent": one.parent,
        "topics": [
            {
                "topic": topic.name,
                "topic_id": topic.id,
                "partitions": [
                    {"partition": part.partition, "start": part.start, "end": part.end}
                    for part in topic.partitions
                ],
                "records": sum(chunk.records for chunk in topic.chunks),
                "bytes": sum(chunk.bytes for chunk in topic.chunks),
            }
            for topic in one.topics
        ],
        "groups": [group.group for group in one.groups],
        "records": one.records,
        "bytes": one.bytes,
        "files": len(one.files),
        "notes": list(one.notes),
    }


@contextmanager
def _offsets_bar(title: str, *, visible: bool) -> "Iterator[Callable[[creating.Progress], None]]":
    """A bar in bytes, of which the total is guessed from the offsets that are left."""
    with progress_bar(visible=visible) as progress:
        task = progress.add_task(title, total=None)

        def show(at: "creating.Progress") -> None:
            total = at.bytes * at.offsets_total / at.offsets if at.offsets else None
            progress.update(task, completed=at.bytes, total=total)

        yield show


@contextmanager
def _bytes_bar(*, visible: bool) -> "Iterator[Callable[[restoring.Progress], None]]":
    with progress_bar(visible=visible) as progress:
        tasks: dict[str, Any] = {}

        def show(at: "restoring.Progress") -> None:
            if at.stage not in tasks:
                tasks[at.stage] = progress.add_task(at.stage, total=at.bytes_total)
            progress.update(tasks[at.stage], completed=at.bytes)

        yield show
