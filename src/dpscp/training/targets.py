"""Labels and targets as the mechanisms read them; messages carry nothing from the data."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpscp.training.dpsgd import _check_classes as check_classes
from dpscp.training.dpsgd import _labels as found_labels
from dpscp.training.dpsgd import _real_targets as real_targets
from dpscp.training.dpsgd import encode_labels

__all__ = ["bounded_targets", "check_classes", "encode_labels", "found_labels", "real_targets"]


def bounded_targets(y: ArrayLike, y_bounds: tuple[float, float]) -> NDArray[np.float64]:
    """Real targets clipped to the public bounds.

    Theory: section 1.1
    """
    return np.clip(real_targets(y, "float64"), *y_bounds)
