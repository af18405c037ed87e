"""Notice scikit-learn code around a fit that uses the records outside the ledger.

A ``Pipeline`` calls ``fit`` with rows that its earlier steps have transformed. If such a step learned from the records
(a mean, a component, the most frequent value), no entry of the ledger pays for it, and the scores of the records
depend on it. The same holds for searches that choose parameters by scores, and for estimators that fit others. All of
them are found among the callers of ``fit``. Whether a step learns is decided by its class and parameters alone, so a
mark tells nothing about the records.
"""

import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import FrameType
from typing import Any

import numpy as np
from sklearn.utils import get_tags

from dpscp._base.sklearn_compat import BaseEstimator
from dpscp._base.trust import OUTER_STEPS
from dpscp.core.release import Release
from dpscp.data.validation import check_row_by_row
from dpscp.exceptions import BudgetError, GuaranteeWarning
from dpscp.guarantees import Certificate
from dpscp.privacy import Ledger, non_private_event
from dpscp.privacy.store import BudgetStore

STAGE = "outside the ledger"
_RIGHT_WAY = (
    "Use private steps (estimator=[dp.training.PrivateStandardize(low, high), dp.training.PrivatePCA(4)]), steps that "
    "learn nothing, and parameters that are chosen without these records (dp.plan); see docs/pitfalls.md"
)
# Code that calls fit and uses the records for nothing else, or whose use is decided by its class.
_NEUTRAL = ("sklearn.base", "sklearn.callback", "sklearn.utils", "sklearn.pipeline", "sklearn.model_selection._search")
_FOLDS = "sklearn.model_selection._validation"
# Steps of scikit-learn that need a fit, and learn only the number of columns under these parameters.
_LEARN_NOTHING: Mapping[str, Callable[[Any], bool]] = {
    "PolynomialFeatures": lambda _: True,
    "FrozenEstimator": lambda _: True,
    "SimpleImputer": lambda step: step.strategy == "constant" and not step.add_indicator,
    "OneHotEncoder": lambda step: _has_declared_categories(step) and step.max_categories is None,
    "OrdinalEncoder": lambda step: _has_declared_categories(step) and step.max_categories is None,
}


@dataclass(frozen=True)
class OuterUse:
    """How the callers of a fit use its records.

    Attributes
    ----------
    reasons : tuple of str
        Why the release is not private, with class names only.
    has_steps : bool
        Whether steps that learn nothing transform the rows.
    is_searched : bool
        Whether a search will choose among fits like this one and fit the best again.
    """

    reasons: tuple[str, ...] = ()
    has_steps: bool = False
    is_searched: bool = False

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What the proof assumes about these steps."""
        return (OUTER_STEPS,) if self.has_steps else ()

    def warn(self, store: BudgetStore | None) -> None:
        """Warn about a use that no ledger pays for; refuse it where a store keeps account.

        Raises
        ------
        BudgetError
            With a store, before anything is spent.
        """
        if store is not None and (self.reasons or self.is_searched):
            found = self._reason or "a search chooses the parameters by scores of the records"
            raise BudgetError(f"budget=store cannot pay for what happens outside this fit: {found}. {_RIGHT_WAY}")
        if self.reasons:
            warnings.warn(
                f"NOT private, and no coverage is proven: {self._reason}. {_RIGHT_WAY}",
                GuaranteeWarning,
                stacklevel=3,
            )

    def mark_ledger(self, ledger: Ledger) -> Ledger:
        """Return the ledger with an entry without privacy, if no other entry pays for this use."""
        return ledger.add(STAGE, non_private_event(), self._reason, unit=ledger.unit) if self.reasons else ledger

    @property
    def _reason(self) -> str:
        return "; ".join(self.reasons)

    def mark_promises(
        self, ledger: Ledger, certificates: tuple[Certificate, ...]
    ) -> tuple[Ledger, tuple[Certificate, ...]]:
        """Return ledger and certificates with every promise marked that this use voids."""
        if not self.reasons:
            return ledger, certificates
        return self.mark_ledger(ledger), tuple(certificate.voided(self._reason) for certificate in certificates)

    def mark(self, released: Release) -> Release:
        """Return the release with every promise marked that this use voids."""
        ledger, certificates = self.mark_promises(released.ledger, released.certificates)
        measured = None if released.evaluation is None else replace(released.evaluation, ledger=ledger)
        return replace(released, ledger=ledger, certificates=certificates, evaluation=measured)


def find_outer_use() -> OuterUse:
    """Look for scikit-learn code among the callers that uses the records of a fit.

    Raises
    ------
    ValueError
        If a step of the caller's own code transforms a row by using other rows.
    """
    found = OuterUse()
    others: dict[str, str] = {}
    in_fold = False
    for frame in _callers():
        module, owner = frame.f_globals.get("__name__", ""), _owner(frame)
        in_fold = in_fold or module == _FOLDS
        if _is_a(owner, "sklearn.pipeline", "Pipeline"):
            found = _add_pipeline(found, owner, frame.f_locals.get("X"))
        elif _is_a(owner, "sklearn.compose._target", "TransformedTargetRegressor"):
            found = _add_steps(found, [vars(owner).get("transformer_")], owner)
        elif _is_a(owner, "sklearn.model_selection._search", "BaseSearchCV"):
            found = _add_search(found, owner, in_fold=in_fold)
        elif module.startswith("sklearn.") and module != _FOLDS and not module.startswith(_NEUTRAL):
            package = ".".join(module.split(".")[:2])
            others[package] = type(owner).__name__ if owner is not None else others.get(package, package)
    named = (f"{name} fits this estimator and uses the records itself" for name in others.values())
    return replace(found, reasons=tuple(dict.fromkeys((*found.reasons, *named))))


def _callers() -> Iterator[FrameType]:
    """Yield the frames of the callers, the nearest first."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back


def _owner(frame: FrameType) -> Any:
    """Return the scikit-learn estimator whose method runs in a frame; None for a function."""
    if frame.f_code.co_varnames[:1] != ("self",):
        return None
    owner = frame.f_locals.get("self")
    return owner if isinstance(owner, BaseEstimator) else None


def _is_a(value: Any, module: str, name: str) -> bool:
    """Whether a value is of a class or a subclass, without importing its module."""
    return any((kind.__module__, kind.__name__) == (module, name) for kind in type(value).__mro__)


def _add_pipeline(found: OuterUse, pipeline: Any, X: Any) -> OuterUse:
    steps = [step for _, step in pipeline.steps[:-1]]
    added = _add_steps(found, steps, pipeline)
    if added.reasons == found.reasons and any(map(_runs_own_code, _leaves(steps))) and X is not None:
        transform = pipeline[:-1].transform

        def values(rows: Any, _: int) -> Any:
            return np.asarray(transform(rows))

        check_row_by_row("each step before the estimator", values, X, values(X, 0), thorough=True)
    return added


def _add_steps(found: OuterUse, steps: Iterable[Any], owner: Any) -> OuterUse:
    leaves = list(_leaves(steps))
    learned = [type(step).__name__ for step in leaves if not _learns_nothing(step)]
    if not learned:
        return replace(found, has_steps=found.has_steps or bool(leaves))
    reason = f"{', '.join(dict.fromkeys(learned))} in a {type(owner).__name__} learned from the records"
    return replace(found, reasons=(*found.reasons, reason))


def _add_search(found: OuterUse, search: Any, *, in_fold: bool) -> OuterUse:
    if in_fold:
        return replace(found, is_searched=bool(search.refit))
    reason = f"{type(search).__name__} chose the parameters by scores of the records"
    return replace(found, reasons=(*found.reasons, reason))


def _leaves(steps: Iterable[Any]) -> Iterator[Any]:
    """Yield the steps that transform rows; those within others in place of these."""
    for step in steps:
        if step is None or isinstance(step, str):
            continue
        if _is_a(step, "sklearn.pipeline", "Pipeline"):
            yield from _leaves(part for _, part in step.steps)
        elif _is_a(step, "sklearn.pipeline", "FeatureUnion"):
            yield from _leaves(part for _, part in step.transformer_list)
        elif _is_a(step, "sklearn.compose._column_transformer", "ColumnTransformer") and not _chooses_columns(step):
            yield from _leaves([*(part for _, part, _ in step.transformers), step.remainder])
        else:
            yield step


def _chooses_columns(step: Any) -> bool:
    """Whether a function of the records chooses columns; one of their types does not count."""
    selector = ("sklearn.compose._column_transformer", "make_column_selector")
    return any(callable(columns) and not _is_a(columns, *selector) for _, _, columns in step.transformers)


def _learns_nothing(step: Any) -> bool:
    """Whether fitting a step uses nothing but the number of columns, by its class and parameters."""
    if type(step).__module__.startswith("sklearn.") and type(step).__name__ in _LEARN_NOTHING:
        return _LEARN_NOTHING[type(step).__name__](step)
    if not isinstance(step, BaseEstimator) or get_tags(step).requires_fit:
        return False
    return not any(name.endswith("_") and not name.endswith("_in_") for name in vars(step))


def _has_declared_categories(step: Any) -> bool:
    return not isinstance(step.categories, str) and step.min_frequency is None


def _runs_own_code(step: Any) -> bool:
    """Whether a step runs a function or class of the caller."""
    return not type(step).__module__.startswith("sklearn.") or type(step).__name__ == "FunctionTransformer"
