"""What can be wrong with backups, for people."""

from tidelog.errors import TidelogError


class BackupError(TidelogError):
    """A backup cannot be made, read or restored; the message says what to do."""


class Damaged(BackupError):
    """A file of a backup is not what was written; restore an earlier backup, or make a new one."""

    def __init__(self, message: str, *, backup: str = "") -> None:
        super().__init__(message)
        self.backup = backup
        """Whose manifest it is, by the name of the file."""


class Differs(BackupError):
    """What was restored is not what the backup holds; do not use it."""
