"""A bounded run of every fuzzer, and proof that each would find something."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

from fuzz.__main__ import FUZZERS
from fuzz.files import FilesFuzzer
from fuzz.runner import run
from tidelog.log.epochs import FILE_NAME as EPOCHS_FILE
from tidelog.log.epochs import EpochHistory
from tidelog.model import METADATA_TOPIC

SEED = 1
CASES = {
    "records": 2500,
    "requests": 80,
    "connections": 180,
    "peers": 1500,
    "proofs": 500,
    "recovery": 2500,
    "files": 3000,
    "columns": 500,
    "schemas": 500,
}
"""About three seconds of each; counted, so that the same are tried on every machine."""


@pytest.mark.slow
@pytest.mark.parametrize("name", FUZZERS)
def test_a_bounded_run_finds_nothing(name: str, tmp_path: Path) -> None:
    """In a process of its own: what a fuzzer finds may end it."""
    ended = subprocess.run(
        [
            sys.executable,
            "-m",
            "fuzz",
            name,
            "--cases",
            str(CASES[name]),
            "--seed",
            str(SEED),
            "--keep",
            str(tmp_path),
        ],
        capture_output=True,
        text=True,
        check=False,
    )

    kept = sorted(tmp_path.iterdir())
    assert ended.returncode == 0, f"{ended.stdout}\n{ended.stderr}\nthe bytes: {kept}"
    assert kept == []
    assert f"seed {SEED}" in ended.stdout


def test_a_node_starts_whose_metadata_log_is_said_to_be_ahead_of_its_promises() -> None:
    fuzzer = FilesFuzzer()
    files = dict(fuzzer.directory)
    (epochs,) = [name for name in files if name.endswith(f"{METADATA_TOPIC}-0/{EPOCHS_FILE}")]
    files[epochs] = EpochHistory([(32767, 0)]).encode()

    assert fuzzer.check(b"d" + msgspec.msgpack.encode(files)) == 1


@pytest.mark.parametrize("name", FUZZERS)
def test_the_same_seed_makes_the_same_cases(name: str) -> None:
    one, other = FUZZERS[name](), FUZZERS[name]()

    for number in range(5):
        assert one.make(Random(number)) == other.make(Random(number))


class Toy:
    """Breaks at the first case that begins with a small byte."""

    name = "toy"

    def make(self, random: Random) -> bytes:
        return random.randbytes(10)

    def check(self, case: bytes) -> int:
        if case[0] < 20:
            raise ValueError("too small")
        return 3


def test_a_failing_case_is_kept_in_a_file(tmp_path: Path) -> None:
    outcome = run(Toy(), seed=7, cases=1000, directory=tmp_path)

    assert outcome.failure is not None
    assert "too small" in outcome.failure
    (kept,) = tmp_path.iterdir()
    assert kept.name == f"fuzz-toy-7-{outcome.cases - 1}.case"
    assert str(kept) in outcome.failure
    with pytest.raises(ValueError, match="too small"):
        Toy().check(kept.read_bytes())


def test_a_run_ends_with_its_time_and_counts_its_inputs(tmp_path: Path) -> None:
    class Harmless(Toy):
        def check(self, case: bytes) -> int:
            return 3

    clock = iter(range(100))
    timed = run(Harmless(), seed=7, seconds=10, directory=tmp_path, now=lambda: float(next(clock)))
    counted = run(Harmless(), seed=7, cases=5, directory=tmp_path)

    assert timed.failure is None
    assert 1 < timed.cases < 15
    assert (counted.cases, counted.inputs, counted.failure) == (5, 15, None)
    assert list(tmp_path.iterdir()) == []


def _unpack_without_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    from tidelog import records

    grow: Callable[..., Any] = records._grow
    monkeypatch.setattr(
        records, "_grow", lambda into, codec, data, size_max: grow(into, codec, data, 1 << 24)
    )


def _believe_any_stranger(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidelog.security.secrets.Secret.key_of", lambda self, *proof: self.newest)


def _believe_any_checksum(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidelog.log.segment.crc_matches", lambda batch, header: True)


def _expect_no_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    class Unheard(Exception):
        pass

    monkeypatch.setattr("tidelog.kafka.requests.MessageDamaged", Unheard)


def _never_give_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidelog.faces.kafka.Intake.give", lambda self, size: None)


def _believe_any_offset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidelog.log.epochs.OFFSET_MAX", 1 << 200)


def _believe_any_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidelog.spark.decode._Rows.expect", lambda self, good, what: None)


def _read_past_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidelog.schemas.framing._read_varint", lambda data, at: (data[at] >> 1, at + 1))


def _believe_any_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidelog.security.scram.hmac.compare_digest", lambda one, other: True)


PLANTED = {
    "proofs": _believe_any_proof,
    "peers": _believe_any_stranger,
    "connections": _never_give_back,
    "requests": _expect_no_damage,
    "records": _unpack_without_limit,
    "recovery": _believe_any_checksum,
    "files": _believe_any_offset,
    "columns": _believe_any_length,
    "schemas": _read_past_the_end,
}
CASES_MAX = 3000
SOON_SEED = 4
"""Any seed finds them all; this one, soon."""


@pytest.mark.slow
@pytest.mark.parametrize("name", FUZZERS)
def test_a_planted_bug_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fuzzer = FUZZERS[name]()
    PLANTED[name](monkeypatch)

    with pytest.raises(Exception):  # noqa: B017, PT012 - whatever the bug leads to
        for number in range(CASES_MAX):
            fuzzer.check(fuzzer.make(Random(f"{name}/{SOON_SEED}/{number}")))
