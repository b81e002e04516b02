"""Rows changed on their way into a topic, by SQL or by Python.

Rule: what comes out is what a topic can be written from: a column `value`, and if wanted `key`,
`headers`, `timestamp`, `partition`.
"""

import hashlib
import runpy
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tidelog.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

VIEW: Final = "records"
FUNCTION: Final = "transform"
WRITTEN: Final = ("key", "value", "headers", "timestamp", "partition")


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What to do with rows; without anything they stay as they are."""

    sql: str = ""
    """A query over the view `records`."""
    python: Path | None = None
    """A file with a function `transform(records)` that takes a DataFrame and returns one."""

    def __post_init__(self) -> None:
        if self.sql and self.python is not None:
            raise ConfigError("--sql and --python exclude each other; one can call the other")
        if self.python is not None and not self.python.is_file():
            raise ConfigError(f"--python {self.python}: there is no such file")

    def __bool__(self) -> bool:
        return bool(self.sql or self.python)

    @property
    def identity(self) -> str:
        """The same for the same change, so that a job is not resumed with another one."""
        code = self.sql if self.python is None else self.python.read_text(encoding="utf-8")
        return hashlib.sha256(code.encode()).hexdigest()[:16] if self else ""

    def apply(self, rows: "DataFrame") -> "DataFrame":
        """The rows that shall be written."""
        changed = self._changed(rows)
        if "value" not in changed.columns:
            raise ConfigError(
                f"the changed rows need a column `value`; they have {', '.join(changed.columns)}"
            )
        known = [name for name in changed.columns if name in WRITTEN]
        return changed.select(*known)

    def _changed(self, rows: "DataFrame") -> "DataFrame":
        if self.sql:
            rows.createOrReplaceTempView(VIEW)
            return rows.sparkSession.sql(self.sql)
        if self.python is None:
            return rows
        function = runpy.run_path(str(self.python)).get(FUNCTION)
        if not callable(function):
            raise ConfigError(f"--python {self.python} has no function {FUNCTION}(records)")
        try:
            changed: DataFrame = function(rows)
        except Exception as error:  # whatever the user's code does
            raise ConfigError(
                f"{FUNCTION}() in {self.python} failed: {type(error).__name__}: {error}"
            ) from error
        if not hasattr(changed, "columns"):
            raise ConfigError(f"{FUNCTION}() in {self.python} returned no DataFrame: {changed!r}")
        return changed


NO_CHANGE: Final = Change()


def read_sql(text: str) -> str:
    """A query as it was given: a file that exists, or the text itself."""
    if not text:
        return ""
    try:
        path = Path(text)
        if path.is_file():
            text = path.read_text(encoding="utf-8")
        elif text.endswith(".sql"):
            raise ConfigError(f"--sql {text}: there is no such file")
    except OSError:
        pass  # a query is no name of a file: it may be too long for one
    if VIEW not in text:
        raise ConfigError(f"--sql must read from `{VIEW}`, as in: SELECT value FROM {VIEW}")
    return text.strip().rstrip(";")
