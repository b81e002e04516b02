"""What can be wrong with backups, for people."""

from tidelog.errors import TidelogError


class BackupError(TidelogError):
    """A backup cannot be made, read or restored; the message says what to do."""


class Damaged(BackupError):
    """A file of a backup is not what was written; restore an earlier backup, or make a new one."""


class Differs(BackupError):
    """What was restored is not what the backup holds; do not use it."""
