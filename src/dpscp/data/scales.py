"""Define scales of a column or target: linear, log and log1p."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from dpscp._base.arrays import FloatArray
from dpscp._base.checks import check_choice, require_normal

LINEAR = "linear"
SCALES = (LINEAR, "log", "log1p")
# A scale is defined for values above this number.
_ENDS = {LINEAR: -np.inf, "log": 0.0, "log1p": -1.0}
_FLOATS = np.finfo(np.float64)
# Smallest and largest number on each scale. In the units of the column they are floats, with some distance to the
# largest float.
_LIMITS = {
    LINEAR: (-np.inf, np.inf),
    "log": (float(np.log(_FLOATS.tiny)), float(np.log(_FLOATS.max / 4))),
    "log1p": (float(np.log(_FLOATS.eps)), float(np.log1p(_FLOATS.max / 4))),
}
_FUNCTIONS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    LINEAR: (np.asarray, np.asarray),
    "log": (np.log, np.exp),
    "log1p": (np.log1p, np.expm1),
}


def check_scale(name: str, scale: Any, bounds: tuple[float, float] | None) -> str:
    """Return the scale; refuse one that is unknown or not defined in the bounds.

    The bounds are the declared ones.
    """
    chosen: str = check_choice(name, scale, SCALES)
    if bounds is not None and not bounds[0] > _ENDS[chosen]:
        raise ValueError(
            f"{name} = {chosen!r} needs a lower bound above {_ENDS[chosen]:g}, got {bounds[0]:g}; raise the bound, or "
            + ("use 'log1p' for numbers from 0 on" if chosen == "log" else "use 'linear'")
        )
    if bounds is not None and chosen != LINEAR:
        low, high = to_scale(bounds, chosen).tolist()
        require_normal(f"the width of the bounds on the scale {name} = {chosen!r}", high - low)
    return chosen


def bounds_on_scales(bounds: tuple[Any, Any], scales: tuple[str, ...]) -> tuple[FloatArray, FloatArray]:
    """Return (low, high) of the features on their scales."""
    ends = [np.broadcast_to(end, len(scales)) for end in bounds]
    low, high = (np.array([float(to_scale(v, s)) for v, s in zip(end, scales, strict=True)]) for end in ends)
    return low, high


def to_scale(values: ArrayLike, scale: str) -> FloatArray:
    """Return numbers on the scale; minus infinity where it is not defined."""
    numbers = np.asarray(values, dtype=np.float64)
    if scale == LINEAR:
        return numbers
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(numbers > _ENDS[scale], _FUNCTIONS[scale][0](numbers), -np.inf)


def from_scale(values: ArrayLike, scale: str) -> FloatArray:
    """Return numbers in their own units.

    Minus infinity means no lower limit and is kept, so that an interval without ends contains every number.
    """
    numbers = np.asarray(values, dtype=np.float64)
    if scale == LINEAR:
        return numbers
    with np.errstate(over="ignore"):
        return np.where(np.isneginf(numbers), -np.inf, _FUNCTIONS[scale][1](numbers))


def finite_on_scale(values: ArrayLike, scale: str) -> FloatArray:
    """Return finite numbers on the scale.

    Values for which it is not defined become its smallest number.
    """
    return np.asarray(np.maximum(to_scale(values, scale), _LIMITS[scale][0]))


def scale_limits(scale: str) -> tuple[float, float]:
    """Return the smallest and the largest number on the scale.

    Ranges within them have finite, different ends in units. The smallest one also replaces values for which the scale
    is not defined, see ``finite_on_scale``.
    """
    return _LIMITS[scale]
