"""Keys and values of a pipeline that a schema registry knows, as options of `format("tidelog")`.

Rule: what a source or a sink has in its own `options` wins over what is made here.
"""

import os
from typing import TYPE_CHECKING, Final

from tidelog.spark.pipelines.expressions import CORRUPT, RAW
from tidelog.spark.pipelines.spec import Pipeline, Sink, Source, options_of

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

USER: Final = "TIDELOG_SCHEMA_REGISTRY_USER"
"""The environment's USER:PASSWORD, so that no file needs to have it."""


def format_options(pipeline: Pipeline, entry: Source | Sink) -> dict[str, str]:
    """The options of a source or a sink of topics."""
    made = {}
    if entry.format or entry.key_format:
        made = {"valueFormat": entry.format, "keyFormat": entry.key_format}
        made |= {"schema.registry.url": pipeline.registry}
        made |= {"schema.registry.basic.auth.user.info": os.environ.get(USER, "")}
    given = options_of(entry.options)
    named = {name.lower() for name in given}
    kept = {name: text for name, text in made.items() if text and name.lower() not in named}
    return kept | given


def keeps_broken(source: Source) -> bool:
    """Whether records that cannot be read are told apart, not failed on."""
    return bool(source.format and (source.dead_letter or source.broken == "skip"))


def with_broken(schema: "StructType") -> "StructType":
    """The columns of a source, with why a record cannot be read, and the bytes that it is."""
    from pyspark.sql.types import BinaryType, StringType, StructField, StructType

    raw = [StructField(name, BinaryType()) for name in RAW.values()]
    return StructType([*schema.fields, StructField(CORRUPT, StringType()), *raw])
