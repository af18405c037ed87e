"""Checks of numbers with their messages, and searches for the last number at which a condition holds.

A message about a parameter names the argument, its value, the bound and what to do. A message about the records
(scores, features, labels) never contains a value, a label, a row or a count.
"""

import contextlib
import math
import numbers
import sys
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

SMALLEST_NORMAL = sys.float_info.min


def real_number(name: str, value: object) -> float:
    """Return ``value`` as a finite float, or raise an error that names the argument."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name} must be a number, got {type(value).__name__}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ValueError(f"{name} must be finite, got {number}")
    return number


def check_positive(name: str, value: object) -> float:
    """Return a finite number above zero whose inverse is finite too."""
    number = real_number(name, value)
    if number <= 0:
        raise ValueError(f"{name} must be greater than 0, got {number:g}")
    require_normal(name, number)
    return number


def require_normal(name: str, values: Any) -> None:
    """Refuse a size or width (or array) below the smallest normal float.

    Dividing by it gives infinity, and 0 * infinity is NaN: a sum would be NaN because of one record.
    """
    if np.any(np.asarray(values) < SMALLEST_NORMAL):
        raise ValueError(f"{name} must be at least {SMALLEST_NORMAL:.3g}, the smallest normal number; use another unit")


def check_nonnegative(name: str, value: object) -> float:
    """Return a finite number of at least zero."""
    number = real_number(name, value)
    if number < 0:
        raise ValueError(f"{name} must be at least 0, got {number:g}")
    return number


def check_probability(name: str, value: object) -> float:
    """Return a number strictly between 0 and 1."""
    number = real_number(name, value)
    if not 0 < number < 1:
        hint = f"; did you mean {number / 100:g}?" if 1 < number < 100 else ""
        raise ValueError(f"{name} must lie strictly between 0 and 1, got {number:g}{hint}")
    return number


def check_fraction(name: str, value: object) -> float:
    """Return a number in (0, 1]."""
    number = real_number(name, value)
    if not 0 < number <= 1:
        raise ValueError(f"{name} must lie in (0, 1], got {number:g}")
    return number


def check_count(name: str, value: object, *, minimum: int = 1) -> int:
    """Return an integer of at least ``minimum``."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, numbers.Integral):
        raise TypeError(f"{name} must be an integer, got {type(value).__name__}")
    if value < minimum:
        raise ValueError(f"{name} must be at least {minimum}, got {int(value)}")
    return int(value)


def check_range(name: str, value: object) -> tuple[float, float]:
    """Return a public range (low, high) of finite numbers with low < high."""
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise TypeError(f"{name} must be a pair (low, high), got {type(value).__name__}")
    ends = tuple(value)
    if len(ends) != 2:
        raise ValueError(f"{name} must be a pair (low, high), got {len(ends)} values")
    low, high = real_number(f"{name}[0]", ends[0]), real_number(f"{name}[1]", ends[1])
    if not low < high:
        raise ValueError(f"{name} must satisfy low < high, got ({low:g}, {high:g})")
    require_normal(f"the width of {name}", high - low)
    # the search computes (low + high) / 2 of every bracket inside
    if not (math.isfinite(high - low) and math.isfinite(2 * max(abs(low), abs(high)))):
        raise ValueError(f"{name} is too wide for a float, got ({low:g}, {high:g}); narrow the range")
    return low, high


def check_choice(name: str, value: object, choices: Iterable[str]) -> str:
    """Return ``value`` if it is one of the names in ``choices``."""
    known = list(choices)
    if not isinstance(value, str) or value not in known:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, known))}, got {value!r}")
    return value


def check_scores(scores: Any, *, name: str = "scores") -> NDArray[Any]:
    """Return a one-dimensional array of real numbers.

    The messages contain nothing from the array itself.
    """
    array = None
    # the message of NumPy may contain a number of rows
    with contextlib.suppress(ValueError, TypeError, OverflowError):
        array = np.asarray(scores)
    if array is None or array.dtype.kind not in "fiu":
        kind = "a ragged sequence" if array is None else f"dtype kind {array.dtype.kind!r}"
        raise TypeError(f"{name} must be real numbers (float or integer dtype), got {kind}")
    if array.ndim != 1:
        raise ValueError(f"{name} must be one-dimensional, got {array.ndim} dimensions")
    return array


def is_of_caller(value: Any) -> bool:
    """Return whether an object's class is the caller's and not of this package."""
    return type(value).__module__.partition(".")[0] != "dpscp"


def last_where(holds: Callable[[float], bool], good: float, bad: float, *, within: float = 0.0) -> float:
    """Bisect from ``good``, where ``holds`` is true, to ``bad``, where it is false.

    Returns a point where it is true that lies at most ``within`` from one where it is false. With 0 they are adjacent
    floats.
    """
    while abs(good - bad) > within:
        middle = 0.5 * (bad + good)
        if middle in (bad, good):
            return good
        bad, good = (bad, middle) if holds(middle) else (middle, good)
    return good


def smallest_where(holds: Callable[[int], bool]) -> int:
    """Return the smallest positive integer from which on ``holds`` is true."""
    high = 1
    while not holds(high):
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high
