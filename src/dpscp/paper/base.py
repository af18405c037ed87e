"""The interface of every method of the paper.

The scores are the paper's: 1 - p_y for classification, the absolute residual for regression.
"""

import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass
from fractions import Fraction
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import clone, is_classifier, is_regressor
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from dpscp._base.sklearn_compat import BaseEstimator
from dpscp.data.validation import check_levels, validate_labels, validate_rows, validate_targets
from dpscp.exceptions import SeededWarning
from dpscp.privacy import Ledger, non_private_event
from dpscp.scores import absolute_residual, infinite_without_probabilities, lac_of_labels
from dpscp.threshold.offsets import conformal_rank, round_level
from dpscp.training import Mechanism, Trained

# Entries of the largest temporary matrix (test rows times records): 32 MB of floats.
_ENTRIES = 2**22


@dataclass(frozen=True)
class Predictor:
    """Hold one trained model.

    Attributes
    ----------
    model : a scikit-learn estimator, or the model that a mechanism released
    classes : array of shape (n_classes,), or None for regression
        The labels in the order of the model's columns.
    released : bool
        Whether a mechanism released the model.
    """

    model: Any
    classes: NDArray[Any] | None
    released: bool

    @classmethod
    def train(cls, estimator: Any, rows: NDArray[Any], y: NDArray[Any], seed: int | None = None) -> "Predictor":
        """Train a clone of an estimator, or run a ``Mechanism`` with ``seed``."""
        if find_kind(estimator) == "mechanism":
            with warnings.catch_warnings():
                # a private method warns once, before it trains; the others promise no privacy
                warnings.simplefilter("ignore", SeededWarning)
                return cls.of(estimator.train(rows, y, random_state=seed))
        model = clone(estimator).fit(rows, y)
        if find_kind(estimator) == "regressor":
            return cls(model, None, released=False)
        # in scikit-learn this method may depend on the parameters, so no type declares it
        if not hasattr(model, "predict_proba"):
            raise TypeError(f"estimator must have predict_proba for classification; {type(model).__name__} does not")
        return cls(model, np.asarray(model.classes_), released=False)

    @classmethod
    def of(cls, trained: Trained) -> "Predictor":
        """Wrap the model that a mechanism released."""
        classes = trained.model.classes
        return cls(trained.model, None if classes is None else np.asarray(classes), released=True)

    def predict(self, rows: NDArray[Any]) -> NDArray[Any]:
        """Predict numbers of shape (n,), for regression."""
        if not self.released:
            return np.asarray(self.model.predict(rows), float).reshape(len(rows))
        outputs = np.asarray(self.model.outputs(rows), float)
        if outputs.shape[1] != 1:
            raise ValueError("estimator must have one output for regression; a pair of quantiles is not one prediction")
        return outputs[:, 0]

    def probabilities(self, rows: NDArray[Any], classes: NDArray[Any]) -> NDArray[Any]:
        """Predict probabilities, (n, len(classes)); labels unknown to the model get 0."""
        p = np.asarray(self.model.predict_proba(rows))
        assert self.classes is not None  # regression has no probabilities
        if np.array_equal(self.classes, classes):
            return p
        known = np.zeros((len(p), len(classes)), dtype=p.dtype)
        place = find_positions(self.classes, classes)
        known[:, place[place >= 0]] = p[:, place >= 0]
        return known


@dataclass(eq=False, repr=False)
class _Parameters(BaseEstimator):
    estimator: Any
    _: KW_ONLY
    confidence_level: Any = 0.9
    random_state: Any = None


class Method(_Parameters, ABC):
    """Base class of the methods, with the interface of the estimators.

    A subclass defines how it learns from the records and how it makes its sets.

    Attributes
    ----------
    classes_ : array of shape (n_classes,), for classification
    ledger_ : Ledger
        What the method publishes. Its epsilon is infinite for a method that is not private.
    """

    classes_: NDArray[Any]
    ledger_: Ledger
    _predictor: Predictor
    _alphas: tuple[Fraction, ...]

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Fit the model and the thresholds to the records.

        Parameters
        ----------
        X : array of shape (n, n_features)
            Finite numbers.
        y : array of shape (n,)
            Labels for classification, finite numbers for regression.

        Returns
        -------
        self
        """
        self._alphas = miscoverage_levels(self.confidence_level)
        kind = find_kind(self.estimator)
        rows = validate_rows(self, X, reset=True)
        # a mechanism's task may be unknown before training; it refuses labels where it needs numbers
        numbers = kind == "regressor" or (kind == "mechanism" and _are_floats(y))
        target = validate_targets(y, len(rows)) if numbers else validate_labels(y, len(rows))
        if kind == "classifier":
            require_two_classes(target)
        self._fit_records(rows, target)
        return self

    @abstractmethod
    def _fit_records(self, rows: NDArray[Any], y: NDArray[Any]) -> None:
        """Set the model, the ledger and everything that the sets need."""

    @abstractmethod
    def _label_sets(self, rows: NDArray[Any]) -> NDArray[Any]:
        """Return label sets, bool (n, n_classes, n_levels)."""

    @abstractmethod
    def _intervals(self, rows: NDArray[Any]) -> NDArray[Any]:
        """Return intervals, (n, 2, n_levels)."""

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Predict the most probable label, or the number, of each row.

        Parameters
        ----------
        X : array of shape (n, n_features)

        Returns
        -------
        array of shape (n,)
        """
        return self._predict_points(self._validate_new_rows(X))

    def _predict_points(self, rows: NDArray[Any]) -> NDArray[Any]:
        if self._predictor.classes is None:
            return self._predictor.predict(rows)
        best = self._predictor.probabilities(rows, self.classes_).argmax(axis=1)
        return np.asarray(self.classes_[best])

    def predict_set(self, X: ArrayLike) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """Predict labels and prediction sets; classification only.

        Parameters
        ----------
        X : array of shape (n, n_features)

        Returns
        -------
        labels : array of shape (n,)
        sets : bool array of shape (n, n_classes, n_levels)
        """
        rows = self._validate_new_rows(X)
        if self._predictor.classes is None:
            raise TypeError("predict_set is for classification; this model predicts numbers, so use predict_interval")
        return self._predict_points(rows), self._label_sets(rows)

    def predict_interval(self, X: ArrayLike) -> tuple[NDArray[Any], NDArray[Any]]:
        """Predict numbers and prediction intervals; regression only.

        Parameters
        ----------
        X : array of shape (n, n_features)

        Returns
        -------
        predictions : array of shape (n,)
        intervals : array of shape (n, 2, n_levels)
            Infinite where no finite end exists.
        """
        rows = self._validate_new_rows(X)
        if self._predictor.classes is not None:
            raise TypeError("predict_interval is for regression; this model predicts labels, so use predict_set")
        return self._predict_points(rows), self._intervals(rows)

    def _validate_new_rows(self, X: ArrayLike) -> NDArray[Any]:
        check_is_fitted(self, "ledger_")
        return validate_rows(self, X, reset=False)

    def _set_predictor(self, predictor: Predictor, y: NDArray[Any]) -> None:
        """Use ``predictor`` in ``predict``; undeclared classes are the labels in ``y``."""
        self._predictor = predictor
        if predictor.classes is not None:
            self.classes_ = predictor.classes if predictor.released else np.unique(y)

    def _scores(self, predictor: Predictor, rows: NDArray[Any], y: NDArray[Any]) -> NDArray[Any]:
        """Compute the score of each record; a label outside the classes scores 1."""
        if predictor.classes is None:
            return absolute_residual(y, predictor.predict(rows))
        place = find_positions(y, self.classes_)
        scores = infinite_without_probabilities(lac_of_labels, predictor.probabilities(rows, self.classes_))
        return np.where(place < 0, 1.0, scores[np.arange(len(place)), np.maximum(place, 0)])

    def _seed(self) -> int | None:
        """Derive a seed for the mechanism's training; None without ``random_state``."""
        return None if self.random_state is None else int(check_random_state(self.random_state).randint(2**31 - 1))

    def _write_non_private_ledger(self, **steps: str) -> None:
        """Set a ledger with one non-private entry for each exact use of the records."""
        ledger = Ledger()
        for stage, note in steps.items():
            ledger = ledger.add(stage, non_private_event(), note)
        self.ledger_ = ledger


def miscoverage_levels(confidence_level: Any) -> tuple[Fraction, ...]:
    """Return alpha = 1 - level for each level, as exact fractions.

    >>> miscoverage_levels([0.9, 0.95])
    (Fraction(1, 10), Fraction(1, 20))
    """
    return tuple(round_level(alpha) for alpha in check_levels(confidence_level)[0])


def ranks(alphas: tuple[Fraction, ...], n: int) -> NDArray[np.int64]:
    """Return the conformal rank ceil((1 - alpha)(n + 1)) for each level.

    A rank above n means that no score is large enough.
    """
    return np.array([conformal_rank(alpha, n) for alpha in alphas])


def find_positions(labels: ArrayLike, classes: NDArray[Any]) -> NDArray[np.int64]:
    """Return each label's index in ``classes``; -1 for a label that is not there."""
    known = {label: i for i, label in enumerate(classes.tolist())}
    values = np.asarray(labels).tolist()
    return np.fromiter((known.get(label, -1) for label in values), np.int64, len(values))


def slices(n_rows: int, width: int) -> Iterator[slice]:
    """Cut test rows into parts so that a (rows, width) matrix stays small."""
    step = max(1, _ENTRIES // max(width, 1))
    return (slice(start, start + step) for start in range(0, n_rows, step))


def find_kind(estimator: Any) -> str:
    """Return "mechanism", "classifier" or "regressor"; refuse anything else."""
    if not isinstance(estimator, type):
        if isinstance(estimator, Mechanism):
            return "mechanism"
        # scikit-learn looks for tags, not for a base class, and raises for an object without them
        if hasattr(estimator, "__sklearn_tags__"):
            if is_classifier(estimator):
                return "classifier"
            if is_regressor(estimator):
                return "regressor"
    description = f"the class {estimator.__name__}" if isinstance(estimator, type) else type(estimator).__name__
    raise TypeError(
        f"estimator must be a scikit-learn classifier or regressor, or a dpscp training mechanism, got {description}"
    )


def _are_floats(y: ArrayLike) -> bool:
    try:
        return np.asarray(y).dtype.kind == "f"
    except (TypeError, ValueError):
        return False  # the check of labels reports the error, without NumPy's count of the records


def require_two_classes(labels: NDArray[Any]) -> None:
    """Refuse a single class; a classifier's own message would print the label."""
    if not np.any(labels[1:] != labels[:1]):
        raise ValueError("y must have at least 2 classes in every part that trains a model")
