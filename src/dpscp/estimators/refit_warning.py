"""Fits on the same records: each spends its own budget, and without a store nobody adds them up.

What can be noticed without keeping anything of the records is told: that the same object, or memory that overlaps with
it, was fitted before in this process, and that a fit runs inside a search of scikit-learn, whose folds overlap. Only
weak references to objects and places in memory are kept, in this process alone; nothing of it is published.
"""

import sys
import warnings
import weakref
from types import FrameType
from typing import Any

import numpy as np

from dpscp.exceptions import GuaranteeWarning

_ADVICE = (
    "the costs add up, and nothing here counts them together: give every fit on these records the same dp.BudgetStore "
    "(budget=store)"
)
# Where fitted records lie: the object that owns the memory, and the first and last place in it.
_FITTED: list[tuple[weakref.ref[Any], int, int]] = []


def warn_if_refit(X: Any) -> None:
    """Warn where these records are known to be fitted more than once."""
    if _inside_a_search():
        warnings.warn(
            "this fit runs inside a search or cross-validation of scikit-learn: the folds overlap, each fit spends its "
            f"own epsilon and delta, the scores on the other folds are not private at all; {_ADVICE}, in scikit-learn "
            "params={'budget': store} or fit(..., budget=store), with error_score='raise'",
            GuaranteeWarning,
            stacklevel=5,
        )
        return
    owner, first, last = _place(X)
    if any(known() is owner and first < end and start < last for known, start, end in _FITTED):
        warnings.warn(
            f"fit was called with these records before: each fit spends its own epsilon and delta; {_ADVICE}",
            GuaranteeWarning,
            stacklevel=5,
        )


def remember_fit(X: Any) -> None:
    """Note that these records were fitted; what cannot be referred to weakly (a list) is not noted."""
    owner, first, last = _place(X)
    _FITTED[:] = [known for known in _FITTED if known[0]() is not None]
    try:
        _FITTED.append((weakref.ref(owner), first, last))
    except TypeError:
        return


def _place(X: Any) -> tuple[Any, int, int]:
    """Who owns the memory of an array and where it lies; another object stands for itself."""
    if not isinstance(X, np.ndarray):
        return X, 0, 1
    owner = X
    while isinstance(owner.base, np.ndarray):
        owner = owner.base
    reach = [(size - 1) * stride for size, stride in zip(X.shape, X.strides, strict=True)]
    first, last = sum(min(r, 0) for r in reach), sum(max(r, 0) for r in reach)
    return owner, X.ctypes.data + first, X.ctypes.data + last + X.itemsize


def _inside_a_search() -> bool:
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_globals.get("__name__", "").startswith("sklearn.model_selection."):
            return True
        frame = frame.f_back
    return False
