"""Use an estimator that was trained elsewhere, without the records of this fit."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.validation import check_is_fitted

from dpscp._base.sklearn_compat import BaseEstimator
from dpscp.data.validation import plain
from dpscp.exceptions import NotFittedError
from dpscp.privacy import Ledger
from dpscp.training.model import Model, PrivateModel, call_model


@dataclass(frozen=True)
class PrecomputedOutputs(Model):
    """The model of a release whose rows are the outputs of a prefit estimator.

    Theory: Result E
    """

    task: str
    n_features: int
    classes: tuple[Any, ...] | None = None

    def outputs(self, X: ArrayLike) -> NDArray[Any]:
        return np.asarray(X, dtype=np.float64)

    def predict_proba(self, X: ArrayLike) -> NDArray[Any]:
        return self.outputs(X)

    @classmethod
    def _not_saved(cls) -> TypeError:
        return TypeError(
            "a prefit estimator cannot be saved by dpscp; save the estimator itself, and fit again after loading it"
        )


@dataclass(frozen=True)
class Prefit:
    """A fitted scikit-learn estimator that was trained on other records.

    Training must not have used the records of the fit that it is passed to. Pass it as ``estimator`` of
    `PrivateConformalClassifier` or `PrivateConformalRegressor`. All records then calibrate (guarantee ``"split"``), and
    the ledger contains the search only. X goes to the estimator unchanged, and ``classes_`` are the public labels. The
    release cannot be saved.

    Assumes: the estimator was trained without these records, and computes the outputs of each row from that row alone.
    Every certificate states it. The records that trained the estimator are not protected.

    Parameters
    ----------
    estimator : fitted estimator
        A classifier with ``predict_proba`` and ``classes_``, or a regressor with ``predict``. Any other object with
        these methods is accepted.

    Raises: NotFittedError for an estimator of scikit-learn that is not fitted, TypeError for an object that cannot
    predict.

    >>> from sklearn.linear_model import LogisticRegression
    >>> dp_estimator = Prefit(LogisticRegression().fit([[0.0], [1.0]], [0, 1]))

    Theory: Result E
    """

    estimator: Any

    def __post_init__(self) -> None:
        is_class = isinstance(self.estimator, type)
        kind = f"the class {self.estimator.__name__}" if is_class else type(self.estimator).__name__
        if is_class or not (hasattr(self.estimator, "predict") or hasattr(self.estimator, "predict_proba")):
            raise TypeError(f"dp.Prefit needs a fitted estimator with predict or predict_proba, got {kind}")
        if isinstance(self.estimator, BaseEstimator):
            try:
                check_is_fitted(self.estimator)
            except NotFittedError:
                raise NotFittedError(
                    f"dp.Prefit needs a fitted estimator, but this {kind} is not fitted; fit it on other records first"
                ) from None

    def predictor(self, task: str) -> "Predictor":
        """Return the prediction function for a task; TypeError if it is missing.

        The message names what the estimator lacks.
        """
        try:  # attribute access also finds methods that a wrapper delegates to another estimator
            if task == "regression":
                return Predictor(self.estimator.predict, None)
            labels = tuple(plain(label) for label in np.asarray(self.estimator.classes_))
            return Predictor(self.estimator.predict_proba, labels)
        except AttributeError:
            needed = "regressor with predict" if task == "regression" else "classifier with predict_proba and classes_"
            raise TypeError(f"dp.Prefit needs a {needed} here, got {type(self.estimator).__name__}") from None


@dataclass(frozen=True)
class Predictor:
    """The prediction function of a fitted estimator.

    Attributes
    ----------
    answer : function of X
        ``predict_proba`` or ``predict``.
    classes : tuple or None
        The labels of the columns; None for regression.
    """

    answer: Callable[[Any], Any]
    classes: tuple[Any, ...] | None

    def outputs(self, X: Any) -> NDArray[np.float64]:
        """Return probabilities (n, n_classes) or real outputs (n, k).

        They are computed from copies of the rows.
        """
        found = call_model(self.answer, X, self.classes)
        # an invalid probability counts as 0, which gives its label the worst score
        return found if self.classes is None else np.clip(np.nan_to_num(found, nan=0.0), 0.0, 1.0)

    def model(self, n_outputs: int) -> PrivateModel:
        """Return a model of precomputed outputs with an empty ledger."""
        task = "regression" if self.classes is None else "classification"
        return PrivateModel(PrecomputedOutputs(task, n_outputs, self.classes), Ledger())
