"""Transcripts of one partition's replicas: `replication/*.txt`, as those of the quorum are.

`tests/support/replication_stage.py` explains the commands. `REWRITE=1` writes what happens now;
commit that only if you can explain the difference.
"""

import os
from pathlib import Path

import pytest

from tests.support.replication_stage import Stage

TRANSCRIPTS = sorted((Path(__file__).parent / "replication").glob("*.txt"))


def performed(script: str) -> str:
    """The transcript of `script`, with what happens now in the place of what it says."""
    stage = Stage()
    told = []
    for block in script.strip().split("\n\n"):
        commands, _, _ = block.partition("\n----")
        lines = commands.split("\n")
        results = [stage.command(line) for line in lines if not line.startswith("#")]
        result = "\n".join(result for result in results if result)
        told.append(f"{commands}\n----\n{result}".rstrip() if results else commands)
    return "\n\n".join(told) + "\n"


@pytest.mark.parametrize("path", TRANSCRIPTS, ids=lambda path: path.stem)
def test_the_transcript_is_what_happens(path: Path):
    script = path.read_text()

    result = performed(script)

    if os.environ.get("REWRITE"):
        path.write_text(result)
    assert result == script or os.environ.get("REWRITE")


def test_there_are_transcripts():
    assert len(TRANSCRIPTS) >= 8
