"""Adding Gaussian noise to a statistic so that only grid points leave.

Floating-point noise has a fine structure that depends on the value it was added to (Mironov 2012). The sum
of statistic and noise is therefore rounded to a public grid, far finer than the noise and far coarser than
the floats.
"""

import warnings

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpscp.exceptions import GuaranteeWarning
from dpscp.training.descent import GRID

__all__ = ["gaussian_release", "grid_slack", "warn_large_delta"]


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
