"""Pieces of a stretch of bytes, gathered into a binary column by one call of Arrow."""

import numpy as np
import pyarrow as pa

from tidelog.spark.varints import Numbers


def gather(pool: pa.Buffer, at: Numbers, size: Numbers) -> pa.Array:
    """The pieces of `pool` that begin `at`, in ascending order; none may overlap another.

    Arrow sees an array of pieces and the gaps between them, in turn, and takes every other one.
    """
    rows = len(at)
    if not rows:
        return pa.array([], pa.binary())
    edges = np.empty(2 * rows + 1, np.int32)
    edges[0:-1:2] = at
    edges[1::2] = at + size
    edges[-1] = edges[-2]
    with_gaps = pa.Array.from_buffers(pa.binary(), 2 * rows, [None, pa.py_buffer(edges), pool])
    return with_gaps.take(pa.array(np.arange(0, 2 * rows, 2, dtype=np.int32)))
