"""What a node did, seen from outside: its files and its log."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.node import NodeProcess
from tidelog.records import BatchHeader, iterate_batches


def stored_batches(data: Path, topic: str, partition: int = 0) -> list[BatchHeader]:
    """The headers of all batches of a partition, in order."""
    files = sorted((data / f"{topic}-{partition}").glob("*.log"))
    assert files, f"{topic}-{partition} is not in {data}"
    return [header for file in files for header, _ in iterate_batches(file.read_bytes())]


@contextmanager
def no_complaints(node: NodeProcess) -> Iterator[None]:
    """Whatever clients do meanwhile, the node finds no fault of its own."""
    before = node.log.stat().st_size
    yield
    with node.log.open("rb") as log:
        log.seek(before)
        written = log.read().decode()
    assert not re.search(r" (ERROR|CRITICAL) |Traceback", written), written
