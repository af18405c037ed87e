"""Detect code around a fit that uses the records, and list its assumptions.

A ``Pipeline`` calls ``fit`` with rows that its earlier steps have transformed. If such a step learned from the records
(a mean, a component, the most frequent value), no entry of the ledger pays for it, and the scores of the records depend
on it. The same holds for searches that choose parameters by scores, and for estimators that fit other estimators. This
module finds all of them among the callers of ``fit``.

Whether a step of scikit-learn learns is decided by its class and parameters alone, so a mark reveals nothing about the
records. ``_learns_nothing`` is the list, which the tests compare with what ``fit`` stores; every other step counts as
one that learned. Code of the caller is not tested: that its functions, frozen steps and outer estimators learn nothing
from the records is an assumption.
"""

import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from operator import attrgetter
from traceback import walk_stack
from types import FrameType
from typing import Any

import numpy as np

from dpscp._base.assumptions import (
    DASK,
    OUTER_STEPS,
    OWN_DATASET,
    OWN_MECHANISM,
    OWN_SOURCE,
    OWN_STEP,
    PREFIT,
    PRIVATE_MODEL,
    TORCH_MODULE,
    Assumption,
)
from dpscp._base.checks import is_of_caller
from dpscp._base.sklearn_compat import BaseEstimator
from dpscp.core.fit import Fit
from dpscp.data.sources import RecordSource, is_dask
from dpscp.data.torch_records import comes_from_torch, has_own_items
from dpscp.exceptions import BudgetError, GuaranteeWarning
from dpscp.privacy import Ledger, non_private_event
from dpscp.privacy.store import BudgetStore
from dpscp.training.base import Mechanism
from dpscp.training.model import PrivateModel
from dpscp.training.prefit import Prefit
from dpscp.training.preprocessing.steps import Step

STAGE = "outside the ledger"
_RIGHT_WAY = (
    "Use private steps (estimator=[dp.training.PrivateStandardize(low, high), dp.training.PrivateWhitening()]), steps "
    "that learn nothing (a function of one row in FunctionTransformer), and parameters that are chosen without these "
    "records (dp.plan); see docs/pitfalls.md"
)
# Code that calls fit and does not use the records otherwise, or whose use is decided by its class.
_NEUTRAL = ("sklearn.base", "sklearn.callback", "sklearn.utils", "sklearn.pipeline", "sklearn.model_selection._search")
_FOLDS = "sklearn.model_selection._validation"


@dataclass(frozen=True)
class OuterUse:
    """How the callers of a fit use its records.

    Attributes
    ----------
    reason : str
        Why the release is not private, with class names only; empty if nothing outside the fit voids the promise.
    is_trusted : bool
        Whether functions, frozen steps or estimators of the caller are assumed to learn nothing.
    is_searched : bool
        Whether a search will choose among fits like this one and fit the best again.
    """

    reason: str = ""
    is_trusted: bool = False
    is_searched: bool = False

    @property
    def assumptions(self) -> tuple[Assumption, ...]:
        """The assumptions of the proof about code of the caller."""
        return (OUTER_STEPS,) if self.is_trusted else ()

    def warn(self, store: BudgetStore | None) -> None:
        """Warn about a use that no ledger pays for; with a budget store, refuse it.

        Raises
        ------
        BudgetError
            With a store, before anything is spent.
        """
        if store is not None and (self.reason or self.is_searched):
            found = self.reason or "a search chooses the parameters by scores of the records"
            raise BudgetError(f"budget=store cannot pay for what happens outside this fit: {found}. {_RIGHT_WAY}")
        if self.reason:
            warnings.warn(
                f"NOT private, and no coverage is proven: {self.reason}. {_RIGHT_WAY}", GuaranteeWarning, stacklevel=3
            )

    def mark_ledger(self, ledger: Ledger) -> Ledger:
        """Return the ledger with the assumptions about code around the fit.

        It gets an entry without privacy if no other entry pays for this use.
        """
        ledger = ledger.assume(*self.assumptions)
        return ledger.add(STAGE, non_private_event(), self.reason, unit=ledger.unit) if self.reason else ledger

    def mark(self, released: Fit) -> Fit:
        """Return the release, with a mark on every promise that this use voids."""
        if not self.reason:
            return released
        ledger = self.mark_ledger(released.ledger)
        certificates = tuple(certificate.voided(self.reason) for certificate in released.certificates)
        measured = None if released.evaluation is None else replace(released.evaluation, ledger=ledger)
        return replace(released, ledger=ledger, certificates=certificates, evaluation=measured)


def find_outer_use() -> OuterUse:
    """Find scikit-learn code among the callers that uses the records of a fit."""
    reasons: list[str] = []
    others: dict[str, str] = {}
    in_fold = is_trusted = is_searched = False
    for frame, _ in walk_stack(sys._getframe(1)):
        module, owner, steps = frame.f_globals.get("__name__", ""), _owner(frame), []
        if module.partition(".")[0] == "dpscp" or (owner is None and not module.startswith("sklearn.")):
            continue
        in_fold = in_fold or module == _FOLDS
        if not module.startswith("sklearn."):
            is_trusted = True
        if _is_a(owner, "sklearn.pipeline", "Pipeline"):
            steps = [step for _, step in owner.steps[:-1]]
        elif _is_a(owner, "sklearn.compose._target", "TransformedTargetRegressor"):
            steps = [vars(owner).get("transformer_")]
        elif _is_a(owner, "sklearn.model_selection._search", "BaseSearchCV"):
            if in_fold:
                is_searched = bool(owner.refit)
            else:
                reasons.append(f"{type(owner).__name__} chose the parameters by scores of the records")
        elif module.startswith("sklearn.") and module != _FOLDS and not module.startswith(_NEUTRAL):
            package = ".".join(module.split(".")[:2])
            others[package] = type(owner).__name__ if owner is not None else others.get(package, package)
        leaves = list(_leaves(steps)) if steps else []  # a plain fit imports no transformer
        is_trusted = is_trusted or any(map(_is_taken_at_word, leaves))
        if learned := dict.fromkeys(type(step).__name__ for step in leaves if not _learns_nothing(step)):
            reasons.append(f"{', '.join(learned)} in a {type(owner).__name__} learned from the records")
    reasons += [f"{name} fits this estimator and uses the records itself" for name in others.values()]
    return OuterUse("; ".join(dict.fromkeys(reasons)), is_trusted, is_searched)


def _owner(frame: FrameType) -> Any:
    """Return the scikit-learn estimator whose method runs in a frame, or None."""
    if frame.f_code.co_varnames[:1] != ("self",):
        return None
    owner = frame.f_locals.get("self")
    return owner if isinstance(owner, BaseEstimator) else None


def _is_a(value: Any, module: str, name: str) -> bool:
    """Whether a value is of a class or a subclass, without importing its module."""
    return (module, name) in map(attrgetter("__module__", "__name__"), type(value).__mro__)


def _leaves(steps: Iterable[Any]) -> Iterator[Any]:
    """Yield the steps that transform rows; a composite step is replaced by its parts."""
    from sklearn.compose import ColumnTransformer
    from sklearn.pipeline import FeatureUnion, Pipeline

    for step in steps:
        if step is None or isinstance(step, str):
            continue
        if type(step) is Pipeline:
            yield from _leaves(part for _, part in step.steps)
        elif type(step) is FeatureUnion:
            yield from _leaves(part for _, part in step.transformer_list)
        elif type(step) is ColumnTransformer and all(_are_public(columns) for _, _, columns in step.transformers):
            parts = [*_leaves([*(part for _, part, _ in step.transformers), step.remainder])]
            # the share of zeros in the records decides whether sparse rows stay sparse
            yield from [step] if step.sparse_threshold and any(map(_gives_sparse_rows, parts)) else parts
        else:
            yield step


def _gives_sparse_rows(step: Any) -> bool:
    """Return whether a step returns sparse rows.

    Text hashers always do, other steps if ``sparse_output`` is set.
    """
    from sklearn.feature_extraction import FeatureHasher
    from sklearn.feature_extraction.text import HashingVectorizer

    return bool(getattr(step, "sparse_output", isinstance(step, FeatureHasher | HashingVectorizer)))


def _are_public(columns: Any) -> bool:
    """Return whether columns are declared or chosen by name, not by type.

    A missing value changes the type of a column.
    """
    from sklearn.compose import make_column_selector

    if type(columns) is make_column_selector:
        return columns.dtype_include is None and columns.dtype_exclude is None
    return not callable(columns)


def _learns_nothing(step: Any) -> bool:
    """Return whether fitting a step stores nothing of the records.

    This follows from its class and parameters.
    """
    condition = _steps_that_learn_nothing().get(type(step))
    return condition is not None and condition(step)


def _is_taken_at_word(step: Any) -> bool:
    """Return whether a step runs a caller's function or a fitted estimator."""
    from sklearn.frozen import FrozenEstimator
    from sklearn.preprocessing import FunctionTransformer

    return type(step) is FrozenEstimator or (type(step) is FunctionTransformer and step.func is not None)


@cache
def _steps_that_learn_nothing() -> dict[type, Callable[[Any], bool]]:
    """Return the classes whose ``fit`` stores at most the number of columns.

    Each comes with the condition on its parameters.
    """
    from sklearn.feature_extraction import FeatureHasher
    from sklearn.feature_extraction.text import HashingVectorizer
    from sklearn.frozen import FrozenEstimator
    from sklearn.impute import SimpleImputer
    from sklearn.preprocessing import (
        Binarizer,
        FunctionTransformer,
        Normalizer,
        OneHotEncoder,
        OrdinalEncoder,
        PolynomialFeatures,
    )

    return {
        FrozenEstimator: lambda _: True,
        FunctionTransformer: lambda _: True,
        Binarizer: lambda _: True,
        Normalizer: lambda _: True,
        PolynomialFeatures: lambda _: True,
        # without keep_empty_features a column that is all missing is dropped
        SimpleImputer: lambda s: s.strategy == "constant" and s.keep_empty_features and not s.add_indicator,
        OneHotEncoder: _has_declared_categories,
        OrdinalEncoder: _has_declared_categories,
        FeatureHasher: lambda _: True,
        HashingVectorizer: lambda s: not any(map(callable, (s.analyzer, s.preprocessor, s.tokenizer))),
    }


def _has_declared_categories(step: Any) -> bool:
    """Whether an encoder has declared text categories and counts nothing."""
    if isinstance(step.categories, str) or step.min_frequency is not None or step.max_categories is not None:
        return False
    return all(_is_text(c) or isinstance(c, int | np.integer) for column in step.categories for c in column)


def _is_text(category: Any) -> bool:
    """Whether a category is a text that no column of numbers could contain."""
    try:
        float(category)
    except (TypeError, ValueError):
        return isinstance(category, str)
    return False


def list_training_assumptions(estimator: Any) -> Iterator[Assumption]:
    """List the assumptions about the estimator of a fit and those that it wraps."""
    if estimator is None:
        return
    if isinstance(estimator, Prefit):
        yield PREFIT
        return
    if isinstance(estimator, PrivateModel):
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
    if type(original) is np.ndarray:
        return
    if has_own_items(original):
        yield OWN_DATASET
    if is_dask(original):
        yield DASK
    elif isinstance(original, RecordSource):
        assumption = original.assumption
        if isinstance(assumption, Assumption):
            yield assumption
        if is_of_caller(original):
            yield OWN_SOURCE
