"""What a checkpoint of Spark says, read from its files while its query is stopped."""

import json
from pathlib import Path

from tidelog.model import Offset
from tidelog.spark.proofs import parse_ends


def query_of(checkpoint: Path) -> str:
    """The id of its query."""
    found: str = json.loads((checkpoint / "metadata").read_text())["id"]
    return found


def planned(checkpoint: Path) -> int:
    """The newest batch that was planned."""
    return max(_numbers(checkpoint / "offsets"))


def done(checkpoint: Path, topic: str) -> dict[int, Offset]:
    """Where the newest batch ends that is noted as done; empty if there is none."""
    noted = _numbers(checkpoint / "commits")
    if not noted:
        return {}
    (end,) = parse_ends((checkpoint / "offsets" / str(max(noted))).read_text())
    return by_partition(end, topic)


def by_partition(end: dict[str, dict[str, Offset]], topic: str) -> dict[int, Offset]:
    """The offsets of one source, as its checkpoint and its decisions have them."""
    return {int(partition): offset for partition, offset in end[topic].items()}


def _numbers(directory: Path) -> list[int]:
    return [int(path.name) for path in directory.iterdir() if path.name.isdigit()]
