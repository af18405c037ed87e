"""Keep the rows of a large table in 16 bits a number.

Training reads the transformed rows at every step, and transforming them again takes as long as the step or longer. So
they are kept, and of a large table they are most of a fit's memory. A row becomes integers times a float32 scale of its
own. This is a function of that row alone, applied before any gradient: clipping, sums and noise do not see it. Integers
are rounded towards zero, so no row becomes longer than its bound (up to a few float32 roundings, which `ROW_SLACK`
covers).
"""

import numpy as np
from numpy.typing import NDArray

from dpscp._base.arrays import Array
from dpscp.training.engine.networks import largest_entries

# Of fewer numbers (64 MB in float32) the memory does not matter, and their bits stay those of earlier versions.
_LARGE_TABLE = 1 << 24
_LARGEST = np.iinfo(np.int16).max
# Numbers below this in a row that has no larger one become zero: their scale would not be a normal number.
_SMALLEST = 2.0**-100


def is_large_table(n_rows: int, width: int) -> bool:
    """Return whether the rows of a table of this public size are kept in 16 bits."""
    return n_rows * width >= _LARGE_TABLE


def shorten_rows(values: Array, integers: NDArray[np.int16]) -> Array:
    """Write float32 rows as integers; return the float32 scale of each row."""
    scales = np.maximum(largest_entries(values), np.float32(_SMALLEST))
    scales /= np.float32(_LARGEST)
    # the cast cuts towards zero
    np.divide(values, scales[:, None], out=integers, casting="unsafe")
    return scales


def restore_rows(integers: NDArray[np.int16], scales: Array, out: Array) -> None:
    """Write integers times scales into ``out``, and 1 into the bias coordinate behind them, if it has one."""
    width = integers.shape[1]
    np.multiply(integers, scales[:, None], out=out[:, :width])
    out[:, width:] = 1
