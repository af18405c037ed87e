"""List the assumptions that a fit makes about the caller's objects."""

from collections.abc import Iterator
from typing import Any

from dpscp._base.assumptions import (
    DASK,
    OWN_DATASET,
    OWN_MECHANISM,
    OWN_SOURCE,
    OWN_STEP,
    PREFIT,
    PRIVATE_MODEL,
    TORCH_MODULE,
    Assumption,
)
from dpscp._base.callers import is_of_caller
from dpscp.data.sources import is_dask
from dpscp.data.sources.base import is_source
from dpscp.estimators.prefit import Prefit
from dpscp.torch.records import comes_from_torch, has_own_items
from dpscp.training.base import Mechanism
from dpscp.training.preprocessing.preprocess import Step
from dpscp.training.private_model import find_private_model


def list_training_assumptions(estimator: Any) -> Iterator[Assumption]:
    """List the assumptions about the estimator of a fit and those that it wraps."""
    if isinstance(estimator, Prefit):
        yield PREFIT
        return
    if find_private_model(estimator) is not None:
        yield PRIVATE_MODEL
        return
    if isinstance(estimator, list | tuple):
        *steps, last = estimator or (None,)
        if any(map(is_of_caller, steps)) or (isinstance(last, Step) and is_of_caller(last)):
            yield OWN_STEP
        yield from list_training_assumptions(last)
        return
    if isinstance(estimator, Mechanism) and any(map(is_of_caller, estimator.steps_before)):
        yield OWN_STEP
    if comes_from_torch(estimator) or comes_from_torch(getattr(estimator, "module", None)):
        yield TORCH_MODULE
    elif isinstance(estimator, Mechanism) and is_of_caller(estimator):
        yield OWN_MECHANISM
    inner = getattr(estimator, "mechanism", None)
    if inner is not None:
        yield from list_training_assumptions(inner)


def list_record_assumptions(original: Any) -> Iterator[Assumption]:
    """List the assumptions about the records that the caller passed."""
    if has_own_items(original):
        yield OWN_DATASET
    if is_dask(original):
        yield DASK
    elif is_source(original):
        assumption = getattr(original, "assumption", None)
        if isinstance(assumption, Assumption):
            yield assumption
        if is_of_caller(original):
            yield OWN_SOURCE
