"""Full conformal prediction: the model is retrained with each candidate answer."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpscp.paper.base import Method, Predictor, ranks

_EXACT_SOLVERS = ("auto", "svd", "cholesky")


class FullConformal(Method):
    """Full (transductive) conformal prediction, without a held-out part.

    A candidate y is in the set if, after training on all records and (x, y), fewer than ceil((1 - alpha)(n + 1))
    records have a score strictly below that of (x, y). Promise: coverage of at least 1 - alpha for exchangeable records
    and training that ignores their order. Not private: the fitted object holds the records.

    Classification trains one model for each new row and label, so it is for small data. Regression needs
    ``LinearRegression`` or ``Ridge``: every residual is affine in the candidate y, so one refit for each new row shows
    all candidates (Vovk, Gammerman and Shafer 2005). ``predict_interval`` returns the convex hull of that set. The hull
    differs from it only where a record has a weight above 1 in the prediction at x (far extrapolation), and it only
    adds coverage.

    Parameters
    ----------
    estimator, confidence_level, random_state : see ``SplitConformal``.

    Attributes
    ----------
    classes_, ledger_ : see ``SplitConformal``.

    Paper: Supplement S1 [sec:extended_cp_intro]
    """

    _records: tuple[NDArray[Any], NDArray[Any]]

    def _fit_records(self, rows: NDArray[Any], y: NDArray[Any]) -> None:
        predictor = Predictor.train(self.estimator, rows, y, self._seed())
        if predictor.classes is None:
            _require_affine(self.estimator, rows)
        self._set_predictor(predictor, y)
        self._records = rows, y
        self._write_non_private_ledger(
            training="FullConformal keeps the records and trains on them anew for each new row",
            calibration="FullConformal compares a new row with the exact score of every record",
        )

    def _label_sets(self, rows: NDArray[Any]) -> NDArray[Any]:
        known, y = self._records
        below = np.empty((len(rows), len(self.classes_)), dtype=np.int64)
        for j, row in enumerate(rows):
            grown = np.vstack([known, row])
            for c, label in enumerate(self.classes_):
                labels = np.append(y, np.array([label], dtype=self.classes_.dtype))
                model = Predictor.train(self.estimator, grown, labels, self._seed())
                # one call for all scores: equal records tie
                scores = self._scores(model, grown, labels)
                below[j, c] = np.count_nonzero(scores[:-1] < scores[-1])
        return np.asarray(below[..., None] < ranks(self._alphas, len(y)))

    def _intervals(self, rows: NDArray[Any]) -> NDArray[Any]:
        known, y = self._records
        residuals, wanted = y - self._predictor.predict(known), ranks(self._alphas, len(y))
        intervals, far = np.empty((len(rows), 2, len(wanted))), 1 + np.abs(residuals).max()
        for j, (row, center) in enumerate(zip(rows, self._predictor.predict(rows), strict=True)):
            grown, target = np.vstack([known, row]), np.append(y, center + far)
            *moved, own = target - Predictor.train(self.estimator, grown, target).predict(grown)
            weights = (residuals - moved) / own
            for side, end in ((-1.0, 0), (1.0, 1)):
                intervals[j, end] = center + side * far / own * acceptance_ends(residuals, side * weights, wanted)
        return intervals


def _require_affine(estimator: Any, rows: NDArray[Any]) -> None:
    """Refuse regressors whose residuals are not affine in a candidate."""
    from sklearn.linear_model import LinearRegression, Ridge  # slow to import, and few callers need it

    is_ridge = type(estimator) is Ridge and estimator.solver in _EXACT_SOLVERS and np.ndim(estimator.alpha) == 0
    if not (is_ridge or type(estimator) is LinearRegression) or estimator.positive:
        raise TypeError(
            "estimator must be scikit-learn's LinearRegression or Ridge (one penalty, an exact solver, "
            f"positive=False) for full conformal regression, got {type(estimator).__name__}; JackknifePlus and CVPlus "
            "take any regressor"
        )
    center = rows.mean(axis=0) if estimator.fit_intercept else 0.0
    if not (is_ridge and estimator.alpha > 0) and np.linalg.matrix_rank(rows - center) < rows.shape[1]:
        raise ValueError("least squares has no unique solution on these rows; use Ridge with alpha > 0")


def acceptance_ends(residuals: NDArray[Any], weights: NDArray[Any], wanted: NDArray[np.int64]) -> NDArray[np.float64]:
    """Find the largest t >= 0 with few records below it, (n_wanted,).

    "Few" is fewer than ``wanted`` records with |residual - weight t| < t. Adding (x, y) to a ridge fit gives it the
    residual t = (y - mu(x)) / (1 + x' A^-1 x) and subtracts ``weight`` times t from the records' residuals. A record is
    below t on an open interval: from |residual| / (1 + w) to |residual| / (w - 1), with w the weight times the
    residual's sign (no start for w <= -1, no end for w <= 1).
    """
    size = np.abs(residuals)
    signed = np.where(residuals < 0, -weights, weights)
    # a residual of zero stays below t exactly if its weight is below 1 in size
    starts = (signed > -1) & ((size > 0) | (signed < 1))
    stops = starts & (signed > 1)
    start, stop = size[starts] / (1 + signed[starts]), size[stops] / (signed[stops] - 1)
    points = np.concatenate([stop, start])
    change = np.repeat([-1, 1], [len(stop), len(start)])
    # stops come first among equals (a stable sort of stops before starts): open intervals leave their ends free
    order = np.argsort(points, kind="stable")
    points, change = points[order], change[order]
    before = np.cumsum(change) - change
    ends = np.full(len(wanted), np.inf)
    for level, rank in enumerate(wanted):
        if len(start) - len(stop) >= rank:
            ends[level] = points[(change == 1) & (before < rank)].max()
    return ends
