"""Call a caller's function on rows of records.

The function gets copies of the rows, in blocks, and rows come twice: the second time in another order and in blocks of
other sizes, from one row on, so that a row stands among other rows and at another place. Both results must agree. Of a
large table only some blocks come twice, so that a million rows cost less than two plain calls. What no call can show,
that the function keeps nothing and treats each row alone, is an assumption of the release.
"""

import copy
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import _safe_indexing

# Rows of a block: their copies stay in the cache.
_BLOCK_ROWS = 1 << 12
# Of more rows, blocks with about so many rows together come a second time: the same ones for every table of a size.
_ROWS_TWICE = 1 << 13
# The largest relative difference that counts as rounding: of sums in float64, and of models that work in float32.
ROUNDING, FLOAT32_ROUNDING = 1e-9, 1e-4


def call_on_rows(
    name: str,
    function: Callable[..., Any],
    tables: tuple[Any, ...],
    n: int,
    *,
    read: Callable[[Any, int], NDArray[Any]],
    empty: NDArray[Any],
    tolerance: float = 0.0,
) -> NDArray[Any]:
    """Return what a caller's function computes for each row.

    Parameters
    ----------
    name : str
        The name of the parameter, for messages.
    function : function of some rows of each table
        It gets copies.
    tables : tuple of arrays, frames or lists of n rows
    n : int
        The number of rows. Without rows the function is not called.
    read : function of (result, size)
        Returns the result for ``size`` rows as an array; its ``ValueError`` contains nothing from the records.
    empty : array of length 0
        The result without rows.
    tolerance : float
        The largest difference between the two results that counts as rounding, relative to values above one.

    Raises
    ------
    ValueError
        If the function fails, if its result does not fit, or if it depends on the other rows of a block.

    Privacy: no error contains anything from the records. That one occurred may depend on them.
    """

    def call(rows: slice | NDArray[np.int64], size: int) -> NDArray[Any]:
        parts = [copy.deepcopy(_safe_indexing(table, rows)) for table in tables]
        failure = ""
        try:
            found = function(*parts)
        except Exception as error:
            failure = type(error).__name__
        if failure:  # outside the handler, so that the message of the function is not printed
            raise ValueError(
                f"{name} failed on the records with {failure}. Its message is hidden because it may contain values of "
                "records; test it on synthetic rows of the same kind"
            )
        return read(found, size)

    if not n:
        return empty
    size = min(_BLOCK_ROWS, n)
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        first = call(slice(0, size), size)
        values = np.empty((n, *first.shape[1:]), dtype=first.dtype)
        values[:size] = first
        for start in range(size, n, size):
            block = call(slice(start, start + size), min(size, n - start))
            if block.dtype != values.dtype:
                values = values.astype(np.result_type(values, block))
            values[start : start + size] = block
        stride, most, stop, size = max(1, n // _ROWS_TWICE), max(1, 2 * size // 3), n, 1
        while stop > 0:
            start = max(0, stop - size)
            # the odd places before the even ones, and all from the last to the first: no period of a place stays
            places = np.concatenate([np.arange(start, stop, 2), np.arange(start + 1, stop, 2)])[::-1]
            if not _agree(call(places, len(places)), values[places], tolerance):
                raise ValueError(
                    f"{name} must compute the value of each row from that row alone, with the same result each time; "
                    "among other rows, or in another order, its values changed. Replace means, quantiles and other "
                    "statistics of the rows by public numbers"
                )
            stop -= size if size < most else size * stride
            size = min(2 * size, most)
    return values


def _agree(again: NDArray[Any], before: NDArray[Any], tolerance: float) -> bool:
    if again.shape != before.shape:
        return False
    if np.array_equal(again, before):
        return True
    return tolerance > 0 and np.allclose(again, before, rtol=tolerance, atol=tolerance, equal_nan=True)
