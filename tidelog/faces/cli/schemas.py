"""Options of `consume` and `produce` about schema registries."""

from typing import TYPE_CHECKING, Annotated, Final

import typer

from tidelog.faces.cli.common import UsageError
from tidelog.schemas.table import FORMATS

if TYPE_CHECKING:
    from tidelog.schemas.formats import PartFormat

BYTES: Final = "bytes"
_CHOICES: Final = (BYTES, *FORMATS)
_METAVAR: Final = f"[{'|'.join(_CHOICES)}]"


def _known(form: str) -> str:
    if form not in _CHOICES:
        raise typer.BadParameter(f"{form!r} is not one of {', '.join(_CHOICES)}")
    return form


ValueFormat = Annotated[
    str,
    typer.Option(
        "--value-format",
        metavar=_METAVAR,
        callback=_known,
        help="Encoding of values; every one but bytes needs a schema registry.",
    ),
]
KeyFormat = Annotated[
    str,
    typer.Option(
        "--key-format",
        metavar=_METAVAR,
        callback=_known,
        help="Encoding of keys; every one but bytes needs a schema registry.",
    ),
]
SchemaRegistry = Annotated[
    str,
    typer.Option(
        "--schema-registry",
        metavar="URL",
        envvar="TIDELOG_SCHEMA_REGISTRY",
        help="URL of the schema registry, as http://127.0.0.1:8081.",
    ),
]
SchemaRegistryUser = Annotated[
    str,
    typer.Option(
        "--schema-registry-user",
        metavar="USER:PASSWORD",
        envvar="TIDELOG_SCHEMA_REGISTRY_USER",
        help="Credentials for the registry, as USER:PASSWORD.",
    ),
]


def part_format(part: str, form: str, url: str, user: str, message: str | None = None) -> "PartFormat | None":
    """How keys or values are written; None for bytes as they are."""
    if form == BYTES:
        if message is not None:
            raise UsageError(f"--{part}-message needs --{part}-format protobuf")
        return None
    if not url:
        raise UsageError(f"--{part}-format {form} needs --schema-registry URL")
    from tidelog.schemas.formats import PartFormat

    return PartFormat(part=part, name=form, url=url, user_info=user or None, message=message)
