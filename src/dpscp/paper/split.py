"""Split conformal prediction and naive reuse of all records; not private."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import check_random_state

from dpscp._base.checks import check_probability
from dpscp.paper.base import Method, Predictor, find_kind, ranks, require_two_classes
from dpscp.scores import lac_of_labels
from dpscp.scores.sets import label_set, residual_interval


class ThresholdMethod(Method):
    """Base class of methods with the sets {y : score <= threshold_}."""

    threshold_: NDArray[Any]

    def _label_sets(self, rows: NDArray[Any]) -> NDArray[Any]:
        return label_set(lac_of_labels(self._predictor.probabilities(rows, self.classes_)), self.threshold_)

    def _intervals(self, rows: NDArray[Any]) -> NDArray[Any]:
        return residual_interval(self._predictor.predict(rows), self.threshold_)

    def _exact_threshold(self, scores: NDArray[Any]) -> NDArray[Any]:
        """Return the ceil((1 - alpha)(n + 1))-th smallest score for each level.

        It is infinite where the rank exceeds n.
        """
        wanted = ranks(self._alphas, len(scores))
        ordered = np.append(np.sort(scores).astype(float), math.inf)
        return np.asarray(ordered[np.minimum(wanted, len(scores) + 1) - 1])


@dataclass(eq=False, repr=False, kw_only=True)
class SplitConformal(ThresholdMethod):
    """Split conformal prediction: one part trains, the other one calibrates.

    Promise: coverage of at least 1 - alpha for exchangeable records, for any model. Not private: the model and the
    threshold are exact functions of the records.

    Parameters
    ----------
    estimator : scikit-learn classifier with ``predict_proba``, or regressor, or dpscp mechanism
        A scikit-learn estimator is cloned. ``DPSGD`` with ``noise_multiplier=0`` is the network of a private run
        without its noise.
    confidence_level : float, or list of floats
        The wanted coverage.
    calibration_fraction : float
        The share of the records that training does not use.
    random_state : int, optional
        The seed of the split and of a mechanism's training.

    Attributes
    ----------
    threshold_ : array of shape (n_levels,)
    classes_ : array of shape (n_classes,), for classification
    ledger_ : Ledger

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.linear_model import LogisticRegression
    >>> X, y = load_iris(return_X_y=True)
    >>> model = SplitConformal(LogisticRegression(max_iter=500), random_state=0).fit(X, y)
    >>> labels, sets = model.predict_set(X)
    >>> sets.shape, model.ledger_.epsilon(1e-5)
    ((150, 3, 1), inf)

    Paper: Supplement S1 [sec:extended_cp_intro]
    """

    calibration_fraction: float = 0.5

    def _fit_records(self, rows: NDArray[Any], y: NDArray[Any]) -> None:
        fraction = check_probability("calibration_fraction", self.calibration_fraction)
        if len(rows) < 2:
            raise ValueError("X must have at least 2 records, one for training and one for calibration")
        size = min(max(round(fraction * len(rows)), 1), len(rows) - 1)
        order = check_random_state(self.random_state).permutation(len(rows))
        held_out, rest = order[:size], order[size:]
        if find_kind(self.estimator) == "classifier":
            require_two_classes(y[rest])
        self._set_predictor(Predictor.train(self.estimator, rows[rest], y[rest], self._seed()), y)
        self.threshold_ = self._exact_threshold(self._scores(self._predictor, rows[held_out], y[held_out]))
        self._write_non_private_ledger(
            training="SplitConformal trains without a privacy mechanism of its own",
            calibration="SplitConformal releases an exact order statistic of the scores",
        )


class NaiveFull(ThresholdMethod):
    """Train and calibrate on all records, as if the model had not seen them.

    The threshold is the exact conformal quantile of the in-sample scores. There is no promise: a model that overfits
    gives its own records low scores, and the sets cover too little. Not private.

    Parameters
    ----------
    estimator, confidence_level, random_state : see ``SplitConformal``.

    Attributes
    ----------
    threshold_, classes_, ledger_ : see ``SplitConformal``.

    Paper: Section 6.1, "Naive Full"
    """

    def _fit_records(self, rows: NDArray[Any], y: NDArray[Any]) -> None:
        self._set_predictor(Predictor.train(self.estimator, rows, y, self._seed()), y)
        self.threshold_ = self._exact_threshold(self._scores(self._predictor, rows, y))
        self._write_non_private_ledger(
            training="NaiveFull trains without a privacy mechanism of its own",
            calibration="NaiveFull releases an exact order statistic of the in-sample scores",
        )
