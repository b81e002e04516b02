"""The catalog of an archive: where the tables are, one for each topic.

Rule 1: without another choice the catalog is a file in the warehouse, so that an archive is one
        directory, which can be copied.
Rule 2: a table is of one topic, told by its id, not by its name: who deletes a topic and makes it
        anew begins a new table. So does, if told to, who has a log that was cut.
"""

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import urlparse

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import (
    NamespaceAlreadyExistsError,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
)

from tidelog.errors import ConfigError
from tidelog.spark.archive.storage import SyncedIO
from tidelog.spark.archive.tables import (
    BY_PARTITION,
    PROPERTIES,
    SCHEMA,
    TOPIC,
    TOPIC_ID,
    ArchiveError,
    NotArchived,
    TopicTable,
)
from tidelog.spark.tables.opening import load
from tidelog.spark.tables.waiting import Away, is_away

NAMESPACE: Final = "tidelog"
CATALOG_FILE: Final = "catalog.db"
SHOWN: Final = ("type", "uri", "warehouse")
"""What an error may tell of a catalog: other properties may be secrets."""


class CatalogAway(ArchiveError, Away):
    """The catalog cannot be reached at the moment; try again."""


@contextmanager
def open_catalog(warehouse: str, catalog: str | None = None, *, create: bool = False) -> Iterator[Catalog]:
    """The catalog of a warehouse.

    Without a name it is a file in the warehouse, which then is a directory of this machine.
    `catalog` is the name of one that pyiceberg's configuration knows, or its properties, such as
    `type=rest,uri=http://...`.
    """
    properties: dict[str, str]
    if catalog is None:
        directory = _local_directory(warehouse)
        if create:
            directory.mkdir(parents=True, exist_ok=True)
        elif not (directory / CATALOG_FILE).exists():
            raise NotArchived(
                f"there is no archive in {warehouse}; `tidelog archive run` makes one, or name "
                "another with --warehouse (of a reader: archive.warehouse)"
            )
        name, properties = (NAMESPACE, {"type": "sql", "uri": f"sqlite:///{directory / CATALOG_FILE}"})
        warehouse = directory.as_uri()
    else:
        name, properties = _parse_catalog(catalog)
    properties = {
        "warehouse": warehouse,
        "py-io-impl": f"{SyncedIO.__module__}.{SyncedIO.__qualname__}",
        **properties,
    }
    try:
        opened = load(name, properties)
    except Exception as error:  # each kind of catalog has errors of its own
        told = ",".join(f"{key}={properties[key]}" for key in SHOWN if key in properties)
        kind = CatalogAway if is_away(error) else ArchiveError
        raise kind(f"the catalog {name} ({told}) cannot be opened: {error}") from error
    try:
        yield opened
    finally:
        opened.close()


def _local_directory(warehouse: str) -> Path:
    parsed = urlparse(warehouse)
    if parsed.scheme not in ("", "file"):
        raise ConfigError(
            f"the warehouse {warehouse} is not a directory of this machine, so its catalog must be "
            "named: --catalog type=rest,uri=... (of a reader: archive.catalog)"
        )
    return Path(parsed.path if parsed.scheme else warehouse).expanduser().absolute()


def _parse_catalog(text: str) -> tuple[str, dict[str, str]]:
    if "=" not in text:
        return text, {}
    properties = {}
    for part in text.split(","):
        key, equals, value = part.partition("=")
        if not equals or not key.strip():
            raise ConfigError(
                f"the catalog {text!r} must be a name, or properties such as type=rest,uri=http://..."
            )
        properties[key.strip()] = value.strip()
    return properties.pop("name", NAMESPACE), properties


def topics_in(catalog: Catalog) -> list[str]:
    """The topics that have a table, by name."""
    try:
        return sorted(name for _, name in catalog.list_tables(NAMESPACE))
    except NoSuchNamespaceError:
        return []


def load_topic(catalog: Catalog, topic: str) -> "TopicTable":
    """The table of a topic; NotArchived, if there is none."""
    try:
        return TopicTable(catalog.load_table((NAMESPACE, topic)))
    except (NoSuchTableError, NoSuchNamespaceError):
        known = ", ".join(topics_in(catalog)) or "no topic at all"
        raise NotArchived(f"topic {topic!r} was never archived here; the archive has {known}") from None


def create_topic(catalog: Catalog, topic: str, topic_id: uuid.UUID) -> "TopicTable":
    """The table of a topic, made if need be; OtherTopic, if it is of a deleted one."""
    try:
        catalog.create_namespace(NAMESPACE)
    except NamespaceAlreadyExistsError:
        pass
    properties = {**PROPERTIES, TOPIC: topic, TOPIC_ID: str(topic_id)}
    try:
        table = catalog.create_table(
            (NAMESPACE, topic), SCHEMA, partition_spec=BY_PARTITION, properties=properties
        )
    except TableAlreadyExistsError:
        table = catalog.load_table((NAMESPACE, topic))
    found = TopicTable(table)
    found.check_topic(topic_id)
    return found


def set_aside(catalog: Catalog, topic: str) -> str:
    """Rename the table of a topic that was deleted or cut, so that it gets a new one; its name."""
    table = load_topic(catalog, topic)
    name = f"{topic}@{table.topic_id}"
    if name in topics_in(catalog):  # it was cut more than once
        name += f"-{table.table.metadata.table_uuid}"
    catalog.rename_table((NAMESPACE, topic), (NAMESPACE, name))
    return name
