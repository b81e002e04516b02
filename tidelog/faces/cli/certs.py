"""`tidelog certs`: a certificate authority for development, and certificates that it signs."""

import re
from pathlib import Path
from types import ModuleType
from typing import Annotated, Final

import typer

from tidelog.faces.cli.common import UsageError, UserError

app = typer.Typer(
    help="Make a certificate authority for development, and certificates of nodes and clients.",
    no_args_is_help=True,
)

DAYS: Final = 365
LOCAL: Final = ("localhost", "127.0.0.1", "::1")
_CLIENT: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")

Directory = Annotated[Path, typer.Option("--directory", metavar="DIR", help="Where the files are.")]
Days = Annotated[
    int, typer.Option("--days", metavar="N", min=1, max=3650, help="Days for which the certificate is valid.")
]


@app.command("ca")
def authority(directory: Directory = Path("certs"), days: Days = DAYS) -> int:
    """Make a certificate authority: ca.pem and ca-key.pem.

    It is for development and tests. In production, let your own authority
    sign the nodes' certificates.

    \b
    Example:
      tidelog certs ca --directory certs
    """
    return _say(_certificates().make_authority(directory, days))


@app.command("node")
def node(
    number: Annotated[int, typer.Argument(metavar="N", min=0, help="The node's id.")],
    hosts: Annotated[
        list[str] | None,
        typer.Option("--host", metavar="HOST", help="A host name or address of the node; repeatable."),
    ] = None,
    directory: Directory = Path("certs"),
    days: Days = DAYS,
) -> int:
    """Make a node's certificate: node-N.pem and node-N-key.pem.

    It names the node's hosts (localhost, 127.0.0.1 and ::1 without --host) and
    its id, as the URI tidelog:node:N.

    \b
    Example:
      tidelog certs node 1 --host node-1.example --host 10.0.0.1
    """
    return _say(_certificates().make_node(directory, number, hosts or LOCAL, days))


@app.command("client")
def client(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The client's name.")],
    directory: Directory = Path("certs"),
    days: Days = DAYS,
) -> int:
    """Make a client's certificate: NAME.pem and NAME-key.pem, with CN=NAME.

    \b
    Example:
      tidelog certs client alice --directory certs
    """
    if not _CLIENT.fullmatch(name):
        raise UsageError(f"{name!r} cannot name a file; use up to 64 letters, digits, '.', '_' and '-'")
    return _say(_certificates().make_client(directory, name, days))


def _certificates() -> ModuleType:
    try:
        from tidelog.faces.cli import certificates
    except ImportError:
        raise UserError("certificates need cryptography: pip install 'tidelog[certs]'") from None
    return certificates


def _say(files: list[Path]) -> int:
    for file in files:
        print(file)
    return 0
