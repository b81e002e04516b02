"""The topics of a pipeline, made where they are missing.

Rule: what exists is never changed. A bucket that is not compacted would grow for ever, so it is
refused.
"""

from collections.abc import Mapping
from typing import Final

from tidelog.client.admin import Resource
from tidelog.client.cluster import Refused
from tidelog.spark.client_loop import SparkClient
from tidelog.spark.pipelines.spec import Pipeline, SpecError, Topic, options_of

EXISTS: Final = 36
"""Kafka's code: somebody else has made it meanwhile."""
POLICY: Final = "cleanup.policy"


def wanted(pipeline: Pipeline) -> dict[str, Topic]:
    """Every topic that the pipeline has made for it, and how."""
    found = dict(pipeline.topics)
    if pipeline.traffic is not None:
        found.setdefault(pipeline.traffic.topic, Topic())
    for topic in pipeline.dead_letters.values():
        found.setdefault(topic, Topic())
    for sink in pipeline.sinks.values():
        if sink.topic:
            found.setdefault(sink.topic, Topic())
    for sink in pipeline.sinks.values():
        if sink.bucket:
            said = found.get(sink.bucket, Topic())
            found[sink.bucket] = Topic(
                partitions=said.partitions,
                replication=said.replication,
                config={POLICY: "compact", **said.config},
            )
    return found


def check_bucket(topic: str, settings: Mapping[str, str | None]) -> None:
    policy = settings.get(POLICY) or ""
    if "compact" not in policy.split(","):
        raise SpecError(
            f"bucket {topic}: the topic has {POLICY}={policy}; a bucket is compacted: `tidelog "
            f"configs set --topic {topic} {POLICY}=compact`, or name another one"
        )


async def prepare(client: SparkClient, pipeline: Pipeline) -> list[str]:
    """Make what is missing; the names of what was made."""
    existing = {topic.name for topic in await client.topics()}
    made = []
    for name, topic in wanted(pipeline).items():
        if name in existing:
            continue
        try:
            await client.create_topic(
                name,
                partitions=topic.partitions,
                replication=topic.replication,
                configs=options_of(topic.config),
            )
        except Refused as refused:
            if refused.code != EXISTS:
                raise
        else:
            made.append(name)
    for sink in pipeline.sinks.values():
        if sink.bucket:
            settings = await client.describe_configs(Resource.TOPIC, sink.bucket)
            check_bucket(sink.bucket, {setting.name: setting.value for setting in settings})
    return made
