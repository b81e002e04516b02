"""Files with secrets: read for a node; that of a cluster made for a local one."""

import os
import secrets
import stat
from pathlib import Path
from typing import Final

from tidelog.errors import ConfigError
from tidelog.security.secrets import FILE_BYTES_MAX, Secret

OTHERS: Final = stat.S_IRWXO | stat.S_IWGRP | stat.S_IXGRP
"""What a file with a secret may not let anybody do; its group may read it, as where it is mounted."""


def read_secret(path: Path) -> bytes:
    """What the file holds; ConfigError says what is wrong with it, and shows nothing of it."""
    content = read_private(path, "cluster.secret.file")
    try:
        Secret.parse(content)
    except ValueError as error:
        raise ConfigError(f"cluster.secret.file {path}: {error}") from None
    return content


def read_private(path: Path, setting: str) -> bytes:
    """What a file holds that nobody but its owner and group may read."""
    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            content = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigError(f"{setting} {path}: {error.strerror}") from None
    if mode & OTHERS:
        raise ConfigError(f"{setting} {path}: others may use it (mode {mode:04o}); chmod 600 {path}")
    return content


def make_secret(path: Path) -> bool:
    """Make a secret that nobody can guess, unless the file is there; whether it was made."""
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return False
    with os.fdopen(fd, "wb") as file:
        file.write(secrets.token_hex(32).encode() + b"\n")
        file.flush()
        os.fsync(fd)
    return True
