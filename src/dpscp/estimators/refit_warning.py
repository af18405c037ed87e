"""Warn about several fits on the same records, each with its own cost.

Two cases can be noticed without keeping anything of the records: the same object, or memory that overlaps with it, was
fitted before in this process; or the fit runs inside a search of scikit-learn, whose folds overlap. Only weak
references and memory addresses are kept, in this process alone. Nothing of it is published.
"""

import sys
import warnings
import weakref
from types import FrameType
from typing import Any

import numpy as np

from dpscp.exceptions import GuaranteeWarning

_ADVICE = (
    "the costs add up, and no ledger has them together. Pass the same dp.BudgetStore to every fit on these records "
    "(budget=store)"
)
# Memory of fitted records: the object that owns it, and the first and last address.
_FITTED: list[tuple[weakref.ref[Any], int, int]] = []


def warn_if_refit(X: Any) -> None:
    """Warn if these records are known to be fitted more than once."""
    if _inside_a_search():
        warnings.warn(
            "this fit runs inside a search or cross-validation of scikit-learn. The folds overlap, each fit spends its "
            f"own epsilon and delta, and the scores on the other folds are not private; {_ADVICE}; in scikit-learn "
            "params={'budget': store} or fit(..., budget=store), with error_score='raise'",
            GuaranteeWarning,
            stacklevel=4,
        )
        return
    owner, first, last = _place(X)
    if any(known() is owner and first < end and start < last for known, start, end in _FITTED):
        warnings.warn(
            f"fit was called with these records before: each fit spends its own epsilon and delta; {_ADVICE}",
            GuaranteeWarning,
            stacklevel=4,
        )


def remember_fit(X: Any) -> None:
    """Note that these records were fitted, if a weak reference is possible."""
    owner, first, last = _place(X)
    _FITTED[:] = [known for known in _FITTED if known[0]() is not None]
    try:
        _FITTED.append((weakref.ref(owner), first, last))
    except TypeError:
        return


def _place(X: Any) -> tuple[Any, int, int]:
    """Return the owner of an array's memory and the first and last address."""
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
