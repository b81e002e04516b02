"""Options of `consume` and `produce` about schema registries."""

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from tidelog.faces.cli.common import UsageError

if TYPE_CHECKING:
    from tidelog.schemas.formats import PartFormat


class ValueForm(StrEnum):
    """How keys or values are written."""

    BYTES = "bytes"
    AVRO = "avro"


ValueFormat = Annotated[
    ValueForm, typer.Option("--value-format", help="How values are written; avro needs a registry.")
]
KeyFormat = Annotated[
    ValueForm, typer.Option("--key-format", help="How keys are written; avro needs a registry.")
]
SchemaRegistry = Annotated[
    str,
    typer.Option(
        "--schema-registry",
        metavar="URL",
        envvar="TIDELOG_SCHEMA_REGISTRY",
        help="The schema registry, as http://127.0.0.1:8081.",
    ),
]
SchemaRegistryUser = Annotated[
    str,
    typer.Option(
        "--schema-registry-user",
        metavar="USER:PASSWORD",
        envvar="TIDELOG_SCHEMA_REGISTRY_USER",
        help="Who asks the registry.",
    ),
]


def part_format(part: str, form: ValueForm, url: str, user: str) -> "PartFormat | None":
    """How keys or values are written; None for bytes as they are."""
    if form is ValueForm.BYTES:
        return None
    if not url:
        raise UsageError(f"--{part}-format {form.value} needs --schema-registry URL")
    from tidelog.schemas.formats import PartFormat

    return PartFormat(part=part, name=form.value, url=url, user_info=user or None)
