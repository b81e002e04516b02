"""`tidelog topics`: create, list, describe, alter, delete."""

import sys
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from tidelog.faces.cli.common import (
    DEFAULT_BOOTSTRAP,
    AsJson,
    Bootstrap,
    UserError,
    key_values,
    note,
    plain,
    print_json,
    print_table,
    run,
)
from tidelog.faces.cli.completing import topic_names
from tidelog.faces.cli.configs import DryRun, settings_of, show_changes

if TYPE_CHECKING:
    from tidelog.client.cluster import TopicInfo
    from tidelog.client.kafka import OffsetFound

TOPIC_ALREADY_EXISTS = 36
KEYS_MOVE: Final = (
    "keys will map to other partitions: a key's new records may go to another "
    "partition than its old ones, so their order is kept only within each"
)

app = typer.Typer(help="Create, list, describe, alter and delete topics.", no_args_is_help=True)

NewName = Annotated[str, typer.Argument(metavar="NAME", help="Name of the topic.")]
Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the topic.", autocompletion=topic_names)]


@app.command("create")
def create(
    name: NewName,
    partitions: Annotated[
        int | None,
        typer.Option(
            "--partitions", metavar="P", min=1, help="Number of partitions (default: the cluster's)."
        ),
    ] = None,
    replication: Annotated[
        int | None,
        typer.Option(
            "--replication", metavar="R", min=1, help="Replicas of each partition (default: the cluster's)."
        ),
    ] = None,
    config: Annotated[
        list[str] | None,
        typer.Option("--config", metavar="KEY=VALUE", help="Topic setting as KEY=VALUE; repeatable."),
    ] = None,
    if_not_exists: Annotated[
        bool, typer.Option("--if-not-exists", help="Succeed if the topic exists.")
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Create a topic.

    \b
    Examples:
      tidelog topics create orders --partitions 12 --replication 1
      tidelog topics create audit --config retention.ms=-1
    """
    configs = dict(key_values(config or [], "--config"))

    async def work() -> "tuple[TopicInfo, bool]":
        from tidelog.client.cluster import Refused
        from tidelog.client.kafka import KafkaClient

        async with KafkaClient(bootstrap) as client:
            try:
                topic = await client.create_topic(
                    name, partitions=partitions or -1, replication=replication or -1, configs=configs
                )
            except Refused as error:
                if not (if_not_exists and error.code == TOPIC_ALREADY_EXISTS):
                    raise
                return await client.topic(name), False
            return topic, True

    topic, created = run(work())
    if as_json:
        print_json({**_summary(topic), "created": created})
    else:
        count = len(topic.partitions)
        how = "created" if created else "exists already"
        print(f"{plain(topic.name)} {how}: {count} partition{'s' * (count != 1)}, id {_id(topic)}")


@app.command("list")
def list_topics(
    internal: Annotated[bool, typer.Option("--internal", help="Also list internal topics.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """List the topics of the cluster."""

    async def work() -> "list[TopicInfo]":
        from tidelog.client.kafka import KafkaClient

        async with KafkaClient(bootstrap) as client:
            return await client.topics()

    topics = [topic for topic in run(work()) if internal or not topic.internal]
    if as_json:
        print_json({"topics": [_summary(topic) for topic in topics]})
    elif not topics:
        note("there are no topics yet; make one with `tidelog topics create NAME`")
    else:
        print_table(
            ["topic", "partitions#", "replication#", "id"],
            [(topic.name, len(topic.partitions), _replication(topic), _id(topic)) for topic in topics],
        )


@app.command("describe")
def describe(name: Name, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, as_json: AsJson = False) -> None:
    """Show a topic's partitions: leader, epoch, replicas, in-sync set and offsets."""

    async def work() -> "tuple[TopicInfo, dict[int, OffsetFound], dict[int, OffsetFound]]":
        from tidelog.client.kafka import EARLIEST, LATEST, KafkaClient

        async with KafkaClient(bootstrap) as client:
            topic = await client.topic(name)
            numbers = [partition.partition for partition in topic.partitions]
            earliest = await client.list_offsets(name, dict.fromkeys(numbers, EARLIEST))
            latest = await client.list_offsets(name, dict.fromkeys(numbers, LATEST))
            return topic, earliest, latest

    topic, earliest, latest = run(work())
    partitions = [
        {
            "partition": partition.partition,
            "leader": partition.leader,
            "epoch": partition.epoch,
            "replicas": list(partition.replicas),
            "in_sync": list(partition.in_sync),
            "earliest": earliest[partition.partition].offset,
            "latest": latest[partition.partition].offset,
        }
        for partition in topic.partitions
    ]
    if as_json:
        print_json({**_summary(topic), "partitions": partitions})
        return
    print(f"{plain(topic.name)}  id {_id(topic)}  replication {_replication(topic)}")
    print_table(
        ["partition#", "leader#", "epoch#", "replicas", "in sync", "earliest#", "latest#"],
        [[_cell(value) for value in partition.values()] for partition in partitions],
    )


@app.command("alter")
def alter(
    name: Name,
    partitions: Annotated[
        int | None, typer.Option("--partitions", metavar="P", min=1, help="New number of partitions.")
    ] = None,
    config: Annotated[
        list[str] | None,
        typer.Option("--config", metavar="KEY=VALUE", help="Topic setting as KEY=VALUE; repeatable."),
    ] = None,
    delete_config: Annotated[
        list[str] | None,
        typer.Option("--delete-config", metavar="KEY", help="Setting to reset to its default; repeatable."),
    ] = None,
    dry_run: DryRun = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Add partitions to a topic, or change its settings.

    \b
    Examples:
      tidelog topics alter orders --partitions 24 --dry-run
      tidelog topics alter orders --config retention.ms=86400000
      tidelog topics alter orders --delete-config retention.ms
    """
    wanted: list[tuple[str, str | None]] = [
        *key_values(config or [], "--config"),
        *((key, None) for key in delete_config or []),
    ]
    if partitions is None and not wanted:
        raise UserError("say what to change: --partitions, --config or --delete-config")

    async def work() -> tuple[list[dict[str, Any]], list[str]]:
        from tidelog.client.kafka import KafkaClient

        async with KafkaClient(bootstrap) as client:
            before = len((await client.topic(name)).partitions)
            changes, warnings = [], []
            # All is checked before any is done, and what can be undone is done first.
            if partitions is not None:
                await client.create_partitions(name, partitions, validate_only=True)
                changes.append({"name": "partitions", "before": str(before), "after": str(partitions)})
                warnings += [KEYS_MOVE] if before != partitions else []
            if wanted:
                settings = settings_of(wanted)
                asked = {"topic": name, "settings": settings, "dry_run": dry_run}
                found = await client.perform("configs.change_topic", **asked)
                changes += found["changes"]
                warnings += found["warnings"]
            if partitions is not None and not dry_run:
                await client.create_partitions(name, partitions)
            return changes, warnings

    changes, warnings = run(work())
    show_changes({"name": name}, changes, warnings, dry_run=dry_run, as_json=as_json)


@app.command("delete")
def delete(
    name: Name,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Delete a topic and all of its records."""
    if not yes:
        if not sys.stdin.isatty():
            raise UserError(f"deleting {name!r} cannot be undone; add --yes if you mean it")
        question = f"Delete {plain(name)} and all of its records?"
        if not typer.confirm(question, err=True):
            raise UserError("nothing was deleted")

    async def work() -> None:
        from tidelog.client.kafka import KafkaClient

        async with KafkaClient(bootstrap) as client:
            await client.delete_topic(name)

    run(work())
    if as_json:
        print_json({"name": name, "deleted": True})
    else:
        print(f"{plain(name)} deleted")


def _summary(topic: "TopicInfo") -> dict[str, Any]:
    return {
        "name": topic.name,
        "id": _id(topic),
        "internal": topic.internal,
        "partitions": len(topic.partitions),
        "replication": _replication(topic),
    }


def _id(topic: "TopicInfo") -> str | None:
    """The topic's id as Kafka writes it, in its tools and in `partition.metadata`."""
    from tidelog.log.directory import encode_id

    return encode_id(topic.id) if topic.id else None


def _replication(topic: "TopicInfo") -> int:
    return max((len(partition.replicas) for partition in topic.partitions), default=0)


def _cell(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)
