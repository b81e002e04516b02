"""What went wrong, topic by topic: one that fails does not stop the others."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TypeAlias

from tidelog.errors import TidelogError
from tidelog.spark.archive.tables import ArchiveError
from tidelog.spark.tables.waiting import is_away

Problems: TypeAlias = dict[str, Exception]
"""By topic; of each the first."""


class SeveralFailed(ArchiveError):
    """Several topics failed, each for a reason of its own; the others are done."""


@contextmanager
def collecting(problems: Problems, topic: str) -> Iterator[None]:
    """Note what goes wrong with a topic, and go on."""
    try:
        yield
    except Exception as error:
        if not isinstance(error, (TidelogError, OSError)) and not is_away(error):
            raise
        problems.setdefault(topic, error)


def raise_all(problems: Mapping[str, Exception]) -> None:
    """Say what went wrong, if anything has."""
    match list(problems.items()):
        case []:
            return
        case [(_, error)]:
            raise error
        case several:
            raise SeveralFailed("; ".join(f"{topic}: {error}" for topic, error in several))
