"""An estimator that was trained elsewhere, without these records: its outputs are all that a release needs of it."""

import warnings
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.validation import check_is_fitted, validate_data

from dpscp._base.object_state import refuse_memory, throwaway
from dpscp._base.sklearn_compat import BaseEstimator
from dpscp.data.model_files import plain
from dpscp.data.validation import check_row_by_row
from dpscp.exceptions import NotFittedError
from dpscp.privacy import Ledger
from dpscp.training.private_model import PrivateModel, Unsaved

# Outputs of one row may differ by so much when other rows are asked about with it: float32 sums do.
_ROUNDING = 1e-4


@dataclass(frozen=True)
class PrecomputedOutputs(Unsaved):
    """The model of a release whose rows are outputs already: probabilities, or real outputs.

    Theory: Result E
    """

    task: str
    n_features: int
    classes: tuple[Any, ...] | None = None

    unsaved: ClassVar[str] = (
        "a prefit estimator cannot be saved here: its code is not data; keep it as you do, and fit again to load"
    )

    def outputs(self, X: ArrayLike) -> NDArray[Any]:
        return np.asarray(X, dtype=np.float64)

    def predict_proba(self, X: ArrayLike) -> NDArray[Any]:
        return self.outputs(X)


@dataclass(frozen=True)
class Prefit:
    """What a fitted scikit-learn estimator answers; ``classes`` are those of the columns, None for regression.

    Assumed and told in every certificate: it was trained without the records that it is calibrated on.

    Theory: Result E
    """

    answer: Callable[[Any], Any]
    classes: tuple[Any, ...] | None

    @classmethod
    def of(cls, estimator: Any, *, task: str) -> Self:
        """The estimator, or an error that says what it lacks."""
        kind = type(estimator).__name__
        if isinstance(estimator, BaseEstimator):
            try:
                check_is_fitted(estimator)
            except NotFittedError:
                raise NotFittedError(
                    f"prefit=True needs an estimator that is fitted, and this {kind} is not; clone() and searches "
                    "forget a fit: wrap it in sklearn.frozen.FrozenEstimator"
                ) from None
        try:  # asked for and not looked up: what passes questions on to another estimator has them too
            if task == "regression":
                return cls(estimator.predict, None)
            return cls(estimator.predict_proba, tuple(plain(label) for label in np.asarray(estimator.classes_)))
        except AttributeError:
            needed = "regressor with predict" if task == "regression" else "classifier with predict_proba and classes_"
            raise TypeError(f"prefit=True needs a fitted {needed}, got {kind}") from None

    def outputs(self, X: Any) -> NDArray[np.float64]:
        """Probabilities (n, classes) or real outputs (n, k)."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about names of features, say, or with numbers of the records in them
            values = np.asarray(self.answer(X), dtype=np.float64)
        values = values[:, None] if values.ndim == 1 else values
        if values.ndim != 2 or (self.classes is not None and values.shape[1] != len(self.classes)):
            raise ValueError("estimator must give a row of outputs for each record, a column for each of its classes_")
        # what is no probability counts as none: the label of such a record fits as badly as can be
        return values if self.classes is None else np.clip(np.nan_to_num(values, nan=0.0), 0.0, 1.0)

    def outputs_of_records(self, owner: Any, X: Any) -> NDArray[np.float64]:
        """The outputs for the records of a fit; nothing that goes wrong tells of them.

        Sets ``n_features_in_`` and ``feature_names_in_`` on ``owner``. An estimator that looks at other rows than the
        one it is asked about is refused. Records meet a copy of the estimator: what it keeps of them is thrown away.
        """
        validate_data(owner, X, reset=True, skip_check_array=True)
        apart = replace(self, answer=throwaway(self.answer))
        is_shared = apart.answer is self.answer  # a function, or an object that cannot be copied
        with refuse_memory("estimator", self.answer) if is_shared else nullcontext():
            apart._run_dry_on_synthetic_rows(vars(owner).get("n_features_in_"))
            return apart._outputs_of_records(X)

    def _outputs_of_records(self, X: Any) -> NDArray[np.float64]:
        failure = ""
        try:
            values = self.outputs(X)
        except Exception as error:
            failure = type(error).__name__
        if failure:
            raise ValueError(
                f"estimator failed on the records ({failure}); the message is withheld because it may carry something "
                "of them: try made-up records of the same kind"
            )
        check_row_by_row("estimator", lambda part, _: self.outputs(part), X, values, thorough=True, tolerance=_ROUNDING)
        return values

    def _run_dry_on_synthetic_rows(self, n_features: int | None) -> None:
        """Ask about made-up rows, where the estimator takes rows of numbers: what is wrong shows before a record."""
        rows = np.sin(np.arange(1.0, 4 * (n_features or 1) + 1)).reshape(4, -1)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found = np.asarray(self.answer(rows))
        except Exception:  # it reads columns by name, or texts: the records will show
            return
        fits = found.ndim in (1, 2) and len(found) == len(rows)
        if self.classes is not None:
            fits = found.shape == (len(rows), len(self.classes)) and np.allclose(found.sum(axis=1), 1, atol=1e-3)
        if not fits:
            raise ValueError(
                "on made-up rows estimator does not give one row of outputs a record, with a probability for each of "
                "its classes_ that add up to one"
            )

    def model(self, n_outputs: int) -> PrivateModel:
        """What a release takes: a model of outputs, and a ledger in which nothing was spent on these records."""
        task = "regression" if self.classes is None else "classification"
        return PrivateModel(PrecomputedOutputs(task, n_outputs, self.classes), Ledger())
