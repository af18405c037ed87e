"""Jackknife+ and CV+: each record is scored by a model that did not see it."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import check_random_state

from dpscp._base.checks import check_count
from dpscp.paper.base import Method, Predictor, find_kind, ranks, require_two_classes, slices
from dpscp.scores import lac_of_labels


class _Cross(Method):
    """Base class of methods with held-out scores and the model of each record."""

    _held_out_scores: NDArray[Any]
    _fold: NDArray[np.int64]
    _models: list[Predictor]

    def _learn_folds(self, rows: NDArray[Any], y: NDArray[Any], fold: NDArray[np.int64]) -> None:
        """Train without each fold; ``fold`` has the fold number of each record."""
        self._set_predictor(Predictor.train(self.estimator, rows, y, self._seed()), y)
        self._fold, self._models = fold, []
        scores = np.empty(len(rows))
        for k in range(int(fold.max()) + 1):
            out = fold == k
            if find_kind(self.estimator) == "classifier":
                require_two_classes(y[~out])
            model = Predictor.train(self.estimator, rows[~out], y[~out], self._seed())
            scores[out] = self._scores(model, rows[out], y[out])
            self._models.append(model)
        self._held_out_scores = scores

    def _label_sets(self, rows: NDArray[Any]) -> NDArray[Any]:
        # a label is in the set if fewer than ceil((1 - alpha)(n + 1)) records have a score below the label's own,
        # under the model without that record; records of a fold share a model, so sorted scores give the count
        below = np.zeros((len(rows), len(self.classes_)), dtype=np.int64)
        for k, model in enumerate(self._models):
            scores = np.sort(self._held_out_scores[self._fold == k])
            below += np.searchsorted(scores, lac_of_labels(model.probabilities(rows, self.classes_)), side="left")
        return np.asarray(below[..., None] < ranks(self._alphas, len(self._fold)))

    def _intervals(self, rows: NDArray[Any]) -> NDArray[Any]:
        n = len(self._held_out_scores)
        upper = ranks(self._alphas, n)
        usable = upper <= n
        intervals = np.empty((len(rows), 2, len(upper)))
        intervals[:, 0], intervals[:, 1] = -np.inf, np.inf
        if not usable.any():
            return intervals
        high = upper[usable] - 1
        low = n - upper[usable]  # the floor(alpha (n + 1))-th smallest
        for part in slices(len(rows), n):
            center = np.stack([model.predict(rows[part]) for model in self._models], axis=1)[:, self._fold]
            ends = np.partition(center - self._held_out_scores, np.unique(low), axis=1)
            intervals[part, 0, usable] = ends[:, low]
            ends = np.partition(center + self._held_out_scores, np.unique(high), axis=1)
            intervals[part, 1, usable] = ends[:, high]
        return intervals


class JackknifePlus(_Cross):
    """Jackknife+ of Barber, Candes, Ramdas and Tibshirani (2021).

    It trains n models, each without one record. Regression: from the floor(alpha (n + 1))-th smallest of mu_{-i}(x) -
    R_i to the ceil((1 - alpha)(n + 1))-th smallest of mu_{-i}(x) + R_i. Classification: the labels y for which fewer
    than (1 - alpha)(n + 1) records have a left-out score below the score of (x, y) under the model without that record
    (Romano, Sesia and Candes 2020).

    Promise: coverage of at least 1 - 2 alpha for exchangeable records and training that ignores their order; in
    practice near 1 - alpha. Not private: the fitted object holds models and scores of single records.

    Parameters
    ----------
    estimator, confidence_level, random_state : see ``SplitConformal``.

    Attributes
    ----------
    classes_, ledger_ : see ``SplitConformal``.

    Paper: Supplement S1 [sec:extended_cp_intro]
    """

    def _fit_records(self, rows: NDArray[Any], y: NDArray[Any]) -> None:
        if len(rows) < 2:
            raise ValueError("X must have at least 2 records, because one is left out at a time")
        self._learn_folds(rows, y, np.arange(len(rows)))
        self._write_non_private_ledger(
            training="JackknifePlus keeps a model for each record left out",
            calibration="JackknifePlus keeps the left-out score of every record",
        )


@dataclass(eq=False, repr=False, kw_only=True)
class CVPlus(_Cross):
    """CV+ of Barber, Candes, Ramdas and Tibshirani (2021).

    The sets are those of ``JackknifePlus``, with the model without record i's whole fold in place of the one without i.
    Promise, for exchangeable records in K equal folds of m: coverage of at least
    1 - 2 alpha - min(2 (1 - 1/K) / (m + 1), (1 - 1/m) / (K + 1)). Folds are random; their sizes differ by one at most.
    Not private: the fitted object holds the held-out score of every record.

    Parameters
    ----------
    estimator, confidence_level, random_state : see ``SplitConformal``.
    n_folds : int
        The number of folds and of models.

    Attributes
    ----------
    classes_, ledger_ : see ``SplitConformal``.

    Paper: Supplement S1 [sec:extended_cp_intro]
    """

    n_folds: int = 10

    def _fit_records(self, rows: NDArray[Any], y: NDArray[Any]) -> None:
        folds = check_count("n_folds", self.n_folds, minimum=2)
        if folds > len(rows):
            raise ValueError(f"n_folds must not exceed the number of records, got {folds}")
        self._learn_folds(rows, y, check_random_state(self.random_state).permutation(np.arange(len(rows)) % folds))
        self._write_non_private_ledger(
            training="CVPlus keeps an exactly trained model for each fold left out",
            calibration="CVPlus keeps the held-out score of every record",
        )
