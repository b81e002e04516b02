"""What Spark does with the Python processes that it keeps, and what that costs.

Spark's daemon collects garbage after every task and every call of a planner, in a process that has
our modules loaded: some hundred thousand objects that live as long as it does. A collection walks
over all of them, which takes 50 to 100 ms of a core, and four processes do it in every micro-batch.

Rule 1: what a kept process holds by its second call is set apart from collections (`gc.freeze`).
        The first one has loaded the modules, and Spark has collected its garbage since.
Rule 2: only processes that Spark keeps are touched, never one of a user.
"""

import gc
import os
from typing import Final

KEPT: Final = "SPARK_REUSE_WORKER"
"""What Spark's daemon has in the environment of processes that it uses again."""

_calls = 0


def called() -> None:
    """To be told at the beginning of whatever Spark calls in a process."""
    global _calls
    _calls += 1
    if _calls == 2 and KEPT in os.environ:
        gc.freeze()
