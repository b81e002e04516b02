"""Sample rows for a pipeline, and what must come out of them: FOLDER/tests/NAME/*.jsonl.

    SOURCE.jsonl              what a source has, a line each
    SOURCE.records.jsonl      the same as whole records, with keys and times
    TABLE.jsonl               the rows that a step must give
    SINK.sink.jsonl           the records that a topic or bucket must get
    SOURCE.dead_letter.jsonl  those that must go to the source's dead letters

Rule 1: nothing here needs Spark or a cluster; every function but those that name files is pure.
Rule 2: rows have no order. A field that a row leaves out is null. Columns that begin with `_` are
        compared only if a row names them: they tell where a row came from.
Rule 3: numbers with a fraction are the same if they differ in rounding only, times if they are
        the same moment, and a text is the same as the JSON that it is.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, TypeAlias

from tidelog.config.setting import similar
from tidelog.spark.pipelines.spec import Pipeline, Source, SpecError
from tidelog.spark.pipelines.tables import DEAD_LETTER

DIRECTORY: Final = "tests"
SUFFIX: Final = ".jsonl"
RECORDS: Final = ".records"
SINK: Final = ".sink"
FIRST_TIME: Final = datetime(2026, 1, 1, tzinfo=UTC)
"""Of records that name none: these are a second after each other."""
OF_RECORD: Final = ("key", "value", "headers", "topic", "partition", "offset", "timestamp")
CLOSE: Final = 1e-9

Row: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One test: files by what they are of."""

    name: str
    given: Mapping[str, Path]
    """By source."""
    expected: Mapping[str, Path]
    """By what comes out: a table, SINK.sink or SOURCE.dead_letter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """What came out of one part, beside what should have."""

    what: str
    rows: int
    missing: Sequence[Row] = ()
    unexpected: Sequence[Row] = ()

    @property
    def is_same(self) -> bool:
        return not self.missing and not self.unexpected


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """How one test went."""

    name: str
    compared: Sequence[Compared] = field(default_factory=list)
    problem: str = ""
    """Why it could not be run to its end."""

    @property
    def passed(self) -> bool:
        return not self.problem and all(one.is_same for one in self.compared)


# Files.


def cases(pipeline: Pipeline, wanted: Sequence[str] = ()) -> list[Case]:
    """The tests of a pipeline, all of them or those that are named."""
    directory = pipeline.folder / DIRECTORY
    found = sorted(entry.name for entry in directory.iterdir()) if directory.is_dir() else []
    names = [name for name in found if (directory / name).is_dir() and not name.startswith(".")]
    if not names:
        raise SpecError(
            f"{pipeline.folder} has no tests: put rows for a source in {DIRECTORY}/NAME/SOURCE"
            f"{SUFFIX}, and what must come of them in {DIRECTORY}/NAME/TABLE{SUFFIX}"
        )
    for name in wanted:
        if name not in names:
            raise SpecError(f"there is no test {name!r}{similar(name, names)}; see {directory}")
    return [_case(pipeline, directory / name) for name in wanted or names]


def _case(pipeline: Pipeline, directory: Path) -> Case:
    given: dict[str, Path] = {}
    expected: dict[str, Path] = {}
    outcomes = [
        *(step.table for step in pipeline.steps),
        *(name + SINK for name in pipeline.sinks),
        *(name + DEAD_LETTER for name in pipeline.dead_letters),
    ]
    inputs = {name: name for name in pipeline.sources} | {
        name + RECORDS: name for name, source in pipeline.sources.items() if source.is_topics
    }
    for file in sorted(directory.iterdir()):
        if file.suffix != SUFFIX:
            continue
        stem = file.name.removesuffix(SUFFIX)
        if stem in outcomes:
            expected[stem] = file
        elif stem not in inputs:
            known = [*inputs, *outcomes]
            raise SpecError(f"{file}: nothing is called {stem}{similar(stem, known)}; {known}")
        elif inputs[stem] in given:
            raise SpecError(f"{file}: {given[inputs[stem]].name} has the rows of {inputs[stem]}")
        else:
            given[inputs[stem]] = file
    if not expected:
        raise SpecError(
            f"{directory}: nothing says what must come out; make one of "
            f"{', '.join(name + SUFFIX for name in outcomes)}"
        )
    return Case(name=directory.name, given=given, expected=expected)


def lines_of(file: Path) -> list[str]:
    return [line for line in _lines(file) if line.strip()]


def _lines(file: Path) -> list[str]:
    """Lines as Spark and JSON have them: a text may hold U+2028 and its like."""
    try:
        return file.read_text(encoding="utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise SpecError(f"{file} is no UTF-8: {error}") from None


def rows_of(file: Path) -> list[Row]:
    """A file of JSON objects; SpecError names the line that is none."""
    rows = []
    for number, line in enumerate(_lines(file), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise SpecError(f"{file}, line {number} is no JSON: {error}") from None
        if not isinstance(row, dict):
            raise SpecError(f"{file}, line {number} must be an object, as {{...}}, not {line}")
        rows.append(row)
    return rows


def write_rows(file: Path, rows: Iterable[Row]) -> None:
    lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    file.write_text("".join(lines), encoding="utf-8")


# Records.


def records_of(file: Path, source: Source) -> list[Row]:
    """A topic's records, with all of OF_RECORD."""
    if (source.json or source.format) and not file.name.endswith(RECORDS + SUFFIX):
        lines = enumerate(lines_of(file))
        return [_record({"value": line}, number, source) for number, line in lines]
    records = []
    for number, row in enumerate(rows_of(file)):
        for name in row:
            if name not in OF_RECORD:
                raise SpecError(
                    f"{file}: a record has no {name!r}{similar(name, OF_RECORD)}; it has "
                    f"{', '.join(OF_RECORD)}"
                )
        try:
            records.append(_record(row, number, source))
        except (ValueError, TypeError, AttributeError) as error:
            raise SpecError(f"{file}: {json.dumps(row)} is no record: {error}") from None
    return records


def _record(row: Row, number: int, source: Source) -> Row:
    time = row.get("timestamp")
    headers = (row.get("headers") or {}).items()
    return {
        "key": _bytes(row.get("key")),
        "value": _bytes(row.get("value")),
        "headers": [{"key": name, "value": _bytes(value)} for name, value in headers] or None,
        "topic": row.get("topic") or source.topic or next(iter(source.topics), source.pattern),
        "partition": int(row.get("partition", 0)),
        "offset": int(row.get("offset", number)),
        "timestamp": FIRST_TIME + timedelta(seconds=number) if time is None else _moment(time),
    }


def _bytes(value: Any) -> bytes | None:
    """Text as it is, anything else as the JSON that it is."""
    if value is None:
        return None
    return (value if isinstance(value, str) else json.dumps(value)).encode()


# Comparing.


def compare(what: str, expected: Sequence[Row], got: Sequence[Row]) -> Compared:
    """Which rows are missing, and which should not be there."""
    named = {name for row in expected for name in row}
    left = [
        {name: value for name, value in row.items() if name in named or not name.startswith("_")}
        for row in got
    ]
    missing = []
    for row in expected:
        at = next((n for n, other in enumerate(left) if is_same(row, other)), None)
        if at is None:
            missing.append(row)
        else:
            del left[at]
    return Compared(what=what, rows=len(got), missing=missing, unexpected=left)


def is_same(expected: Any, got: Any) -> bool:
    match expected, got:
        case dict(), dict():
            return all(is_same(expected.get(n), got.get(n)) for n in expected.keys() | got.keys())
        case list(), list():
            return len(expected) == len(got) and all(map(is_same, expected, got))
        case (bool(), _) | (_, bool()):
            return expected is got
        case int(), int():
            return expected == got  # an id is not rounded
        case ((int() | float()), (int() | float())):
            return math.isclose(expected, got, rel_tol=CLOSE, abs_tol=CLOSE)
        case str(), str():
            return expected == got or _is_same_moment(expected, got)
        case ((dict() | list() | int() | float()), str()):
            try:
                return is_same(expected, json.loads(got))
            except (ValueError, RecursionError):
                return False
        case _:
            return bool(expected == got)


def _is_same_moment(one: str, other: str) -> bool:
    try:
        return _moment(one) == _moment(other)
    except ValueError:
        return False


def _moment(text: str) -> datetime:
    at = datetime.fromisoformat(text)
    return at if at.tzinfo else at.replace(tzinfo=UTC)
