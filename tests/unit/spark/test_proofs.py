import json
from pathlib import Path
from typing import Any

import pytest

from tidelog.spark.content import Content
from tidelog.spark.proofs import Proof, difference, parse_ends, source_ends
from tidelog.txn.records import PROOF_BYTES_MAX

FILE = """v1
{"batchWatermarkMs":0,"batchTimestampMs":1763452800000,"conf":{}}
{"orders":{"1":4,"0":7}}
-
not json
"""
ENDS: list[Any] = [{"orders": {"0": 7, "1": 4}}, None, "not json"]
THREE = Content(3, 1, 2, 3, 2**64 - 1)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    (tmp_path / "offsets").mkdir()
    (tmp_path / "metadata").write_text('{"id":"q"}')
    (tmp_path / "offsets" / "5").write_text(FILE)
    return tmp_path


def test_a_proof_is_read_as_it_was_written():
    for proof in (Proof.of(THREE), Proof.of(THREE, ENDS), Proof.of_rows(3, ENDS)):
        assert Proof.decode(proof.encode()) == proof


@pytest.mark.parametrize("text", [None, b"", b"\xff", b"[]", b"{}", b'{"v":2,"rows":1}', b'{"v":1}'])
def test_what_is_no_proof_of_ours_proves_nothing(text: bytes | None):
    assert Proof.decode(text) is None


def test_ends_that_are_too_long_to_be_kept_are_compared_all_the_same():
    ends = [{"orders": {str(partition): 10**9 for partition in range(1000)}}]
    kept = Proof.of(THREE, ends).encode()
    found = Proof.decode(kept)
    assert len(kept) <= PROOF_BYTES_MAX

    assert difference(found, Proof.of(THREE, ends)) is None
    ends[0]["orders"]["999"] += 1
    assert "with the digest" in str(difference(found, Proof.of(THREE, ends)))


def test_where_both_know_their_sources_ends_these_decide_and_else_the_rows():
    known, other = Proof.of(THREE, ENDS), Proof.of(Content(3, 1, 2, 3, 5), ENDS)

    assert difference(known, other) is None
    assert "sources' ends" in str(difference(known, Proof.of(THREE, [1])))
    assert "as many, but others" in str(difference(known, Proof.of(Content(3, 1, 2, 3, 5))))
    assert "3 rows, and this run's has 0" in str(difference(Proof.of(THREE), Proof.of(Content())))
    assert difference(Proof.of(THREE), known) is None
    assert difference(Proof.of_rows(3), known) is None, "sums that one side lacks say nothing"
    assert difference(None, known) is None


@pytest.mark.parametrize("form", ["{}", "file:{}", "file://{}", "{}/"])
def test_sources_ends_are_read_from_the_checkpoint_whatever_order_they_have(checkpoint: Path, form: str):
    assert source_ends(form.format(checkpoint), 5, query="q") == ENDS == parse_ends(FILE)
    turned = FILE.replace('"1":4,"0":7', '"0":7,"1":4')
    assert Proof.of(THREE, parse_ends(turned)).digest == Proof.of(THREE, ENDS).digest


def test_a_relative_checkpoint_is_found_from_where_the_driver_is(checkpoint: Path, monkeypatch):
    monkeypatch.chdir(checkpoint.parent)

    assert source_ends(checkpoint.name, 5) == ENDS


def test_a_relative_checkpoint_is_found_where_the_server_of_a_session_was_started(
    checkpoint: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PWD", str(checkpoint.parent))
    monkeypatch.chdir(tmp_path_factory.mktemp("session"))

    assert source_ends(checkpoint.name, 5) == ENDS


@pytest.mark.parametrize("location", [None, "", "/nowhere", "nofs://here/there", "wasb:x"])
def test_a_checkpoint_that_cannot_be_read_tells_nothing(location: str | None):
    assert source_ends(location, 5) is None


def test_a_checkpoint_of_another_query_or_without_the_batch_tells_nothing(checkpoint: Path):
    assert source_ends(str(checkpoint), 5, query="other") is None
    assert source_ends(str(checkpoint), 6, query="q") is None


def test_a_source_of_files_is_known_by_the_files_that_it_counted(checkpoint: Path):
    log = checkpoint / "sources" / "1"
    log.mkdir(parents=True)
    (checkpoint / "offsets" / "6").write_text('v1\n{}\n{"orders":{"0":7}}\n{"logOffset":9}')
    one, other = (f'{{"path":"file:///in/{name}","timestamp":1,"batchId":9}}\n' for name in "ab")
    older = '{"path":"file:///in/c","timestamp":1,"batchId":8}\n'

    assert source_ends(str(checkpoint), 6) is None, "a number alone says nothing of the files"
    (log / "9.compact").write_text("v1\n" + older + one)
    first = source_ends(str(checkpoint), 6)
    (log / "9").write_text("v1\n" + one)
    again = source_ends(str(checkpoint), 6)
    (log / "9").write_text("v1\n" + one + other)
    more = source_ends(str(checkpoint), 6)

    assert first == again and first[1]["logOffset"] == 9
    assert difference(Proof.of_rows(1, first), Proof.of_rows(1, again)) is None
    assert difference(Proof.of_rows(1, first), Proof.of_rows(1, more)) is not None


def test_a_source_of_files_that_has_seen_none_has_no_log(checkpoint: Path):
    (checkpoint / "offsets" / "6").write_text('v1\n{}\n{"logOffset":-1}')

    assert source_ends(str(checkpoint), 6) == [{"logOffset": -1}]


def test_what_is_shown_is_short():
    ends = [{"orders": {str(partition): 1 for partition in range(300)}}]

    assert Proof.of(THREE, ENDS).shown() == f"3 rows, sources' ends {_shown(ENDS)}"
    assert len(Proof.of(THREE, ends).shown()) < 500
    assert Proof.of_rows(1).shown() == "1 row"


def _shown(ends: list[Any]) -> str:
    return ", ".join(json.dumps(one, separators=(",", ":")) for one in ends)
