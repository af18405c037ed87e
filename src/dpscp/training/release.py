"""Adding Gaussian noise to a statistic so that only grid points leave.

Floating-point noise has a fine structure that depends on the value it was added to (Mironov 2012). The sum
of statistic and noise is therefore rounded to a public grid, far finer than the noise and far coarser than
the floats.

The statistic itself is a rounded sum over records. `summed` keeps the rounding below SUM_SLACK of one record's share,
and callers scale their noise by 1 + SUM_SLACK.
"""

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpscp.exceptions import GuaranteeWarning
from dpscp.training.descent import GRID

__all__ = ["SUM_SLACK", "gaussian_release", "grid_slack", "summed", "warn_large_delta", "weighted_sum"]

# One record changes a computed sum by at most 1 + SUM_SLACK times its bound, rounding included: see `summed`.
SUM_SLACK = 1e-4
_MOST_RECORDS = 1 << 28
_RECORDS_PER_PART = 1 << 10


def weighted_sum(rows: NDArray[Any], weights: NDArray[np.float64] | None) -> NDArray[np.float64]:
    """The sum of the rows, each times its weight, as `summed` computes it; None is a weight of one for all."""
    return summed(_column_sums, rows if weights is None else (rows.T * weights).T)


def _column_sums(rows: NDArray[Any]) -> Any:
    return rows.sum(axis=0)


def summed(part_sum: Callable[..., Any], *arrays: NDArray[Any]) -> NDArray[np.float64]:
    """``part_sum(*arrays)``, a sum over records, with a rounding error that does not grow with them.

    A record inserted in front changes the rounding of all other terms. Here a term goes through at most D = 1100
    float64 additions: 1024 in a part, 28 between the parts, and a few roundings of the result on its way to the grid.
    In whatever order they run, the sum of N terms of norm at most B is off by at most D u N B, u = 2^-53, so that two
    neighbouring sums differ by at most B (1 + 2 D u N) < B (1 + 6.6e-5) for N <= 2^28. Rounding of the terms themselves
    has the rest of SUM_SLACK.
    """
    n = len(arrays[0])
    if n > _MOST_RECORDS:
        raise ValueError(
            f"X holds more than {_MOST_RECORDS} records, the most for which the rounding of a sum is bounded"
        )
    if n <= _RECORDS_PER_PART:
        return np.asarray(part_sum(*arrays), dtype=np.float64)
    half = n // 2
    first = summed(part_sum, *(array[:half] for array in arrays))
    return first + summed(part_sum, *(array[half:] for array in arrays))


def gaussian_release(exact: ArrayLike, noise_std: float, rng: np.random.Generator) -> NDArray[np.float64]:
    """``exact`` plus independent Gaussian noise in every coordinate, rounded to the public grid.

    Rounding is post-processing: the event is the Gaussian mechanism's.

    Theory: section 1.3
    """
    value = np.asarray(exact, dtype=np.float64)
    spacing = GRID * noise_std
    return np.asarray(np.rint((value + rng.normal(0.0, noise_std, value.shape)) / spacing) * spacing)


def grid_slack(noise_std: float, n_parameters: int) -> float:
    """How much farther apart rounding can move two releases that share their noise.

    Theory: Result C
    """
    return float(GRID * noise_std * np.sqrt(n_parameters))


def warn_large_delta(budget: tuple[float, float] | None, n_records: int) -> None:
    """Warn when the budget's delta is so large that publishing one record at random would fit in it."""
    if budget is not None and budget[1] * n_records >= 1:
        warnings.warn(
            f"delta = {budget[1]:g} is not below 1 / n_records = {1 / n_records:g}: such a budget allows to publish "
            "a record at random; choose a smaller delta",
            GuaranteeWarning,
            stacklevel=4,
        )
