"""The heaviest keys, in bounded memory, whatever their number.

The summary of Misra and Gries: counters for some keys; when there are too many, all are lowered by
the same amount and those at zero go. A key that is counted `n` times came at least `n` times, and
at most `n + lowered`. Summaries are merged by adding their counters, and what they lowered.

Rule: keys are counted and merged by Arrow, never one by one.
"""

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

COUNTERS_MAX: Final = 20_000
SLACK: Final = 4
"""How many times that many are gathered before they are lowered."""

_NONE: Final = pa.table({"key": pa.array([], pa.binary()), "count": pa.array([], pa.int64())})


class HeavyKeys:
    """Counters for the keys of one range. Owned by one task."""

    def __init__(self, counters_max: int = COUNTERS_MAX) -> None:
        self._counters_max = counters_max
        self._counted = _NONE
        self._waiting: list[pa.Table] = []
        self._waiting_rows = 0
        self.lowered = 0
        """By how much any count may be too low."""
        self.nulls = 0
        """Records without a key."""

    def add(self, keys: pa.Array) -> None:
        """Count these."""
        self.nulls += keys.null_count
        found = pc.value_counts(keys.drop_null())
        table = pa.table({"key": found.field("values"), "count": found.field("counts")})
        self._waiting.append(table)
        self._waiting_rows += table.num_rows
        if self._waiting_rows > SLACK * self._counters_max:
            self._settle()

    def counts(self) -> pa.Table:
        """Keys and how often they came, at least."""
        self._settle()
        return self._counted

    def _settle(self) -> None:
        merged = pa.concat_tables([self._counted, *self._waiting])
        counted = merged.group_by("key").aggregate([("count", "sum")])
        counted = counted.rename_columns(["key", "count"])
        self._waiting, self._waiting_rows = [], 0
        if counted.num_rows > self._counters_max:
            numbers = counted.column("count").to_numpy()
            place = len(numbers) - self._counters_max - 1
            lowered = int(np.partition(numbers, place)[place])
            self.lowered += lowered
            counts = pc.subtract(counted.column("count"), lowered)
            counted = counted.set_column(1, "count", counts).filter(pc.greater(counts, 0))
        self._counted = counted
