"""The private regressor with prediction intervals."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpscp._base.checks import check_choice, check_range
from dpscp._base.sklearn_compat import RegressorMixin
from dpscp.data.validation import validate_targets
from dpscp.estimators.base import PrivateConformal
from dpscp.estimators.ingest import FitInput
from dpscp.guarantees.registry import AUTO
from dpscp.pipeline.plan import chosen_score
from dpscp.pipeline.tasks import HARD_BOUNDS, Regression
from dpscp.privacy.store import BudgetStore
from dpscp.scores import IntervalScore, interval_score
from dpscp.scores.intervals import INTERVAL_SCORES, score_name
from dpscp.training.preprocessing.private_bounds import PRIVATE
from dpscp.training.torch.records import inputs_of


@dataclass(eq=False, repr=False, kw_only=True)
class PrivateConformalRegressor(RegressorMixin, PrivateConformal):
    """A differentially private regressor whose prediction intervals hold the true value at a promised rate.

    As ``PrivateConformalClassifier``, for real targets. ``y_bounds`` is the public range of the target and is required:
    targets are clipped to it for training and predictions lie in it; scores use the targets as they are, so the promise
    holds for targets outside as well. ``y_bounds="private"`` finds a range by noisy counts on a public grid of powers
    of two, for 5 % of the squared training budget (``y_bounds_`` holds it); a range that is publicly known is better.

    ``conformity_score``: ``"absolute"`` |y - prediction|; ``"cqr"`` distance outside a privately trained pair of
    quantiles; ``"normalized"`` |y - centre| / half-width of that pair; or a ``dpscp.scores.IntervalScore`` of your own.
    ``"auto"`` takes ``"cqr"`` where public numbers (records, budget, guarantee) say that a pair can be learnt, else
    ``"absolute"``; with an ``estimator`` of your own always ``"absolute"``. ``conformity_score_``, ledger and
    certificate say which.

    ``clip_to_bounds=True`` declares that no target can lie outside ``y_bounds`` and cuts the intervals there. This is
    an assumption of the certificate then: a target outside is in no interval.

    ``prefit=True`` declares that ``estimator`` is a fitted regressor (anything with ``predict``) that was trained
    without these records, as for the classifier, and ``device`` says where training runs, as there.
    ``evaluation_fraction`` and ``verbose`` are those of the classifier.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(-1, 1, size=(6000, 4)); y = X.sum(axis=1) + rng.normal(scale=0.3, size=6000)
    >>> reg = PrivateConformalRegressor(epsilon=2.0, y_bounds=(-6, 6), feature_bounds=(-1, 1), random_state=0)
    >>> prediction, intervals = reg.fit(X[:5000], y[:5000]).predict_interval(X[5000:])
    >>> prediction.shape, intervals.shape
    ((1000,), (1000, 2, 1))

    Paper: Algorithm 1 [alg: dp-scp]; Theory: section 6
    """

    conformity_score: str | IntervalScore = "auto"
    y_bounds: tuple[float, float] | str | None = None
    clip_to_bounds: bool = False

    y_bounds_: tuple[float, float] = field(init=False)
    conformity_score_: str | None = field(init=False)
    _name = "regression"

    def _check_score(self) -> None:
        if isinstance(self.conformity_score, str):
            check_choice("conformity_score", self.conformity_score, (AUTO, *INTERVAL_SCORES))

    _checked_y = staticmethod(validate_targets)

    def _fit(self, given: FitInput, store: BudgetStore | None) -> None:
        declared = self._public("y_bounds")
        if declared is None:
            raise ValueError(
                "y_bounds=(low, high) is required: the public range of the target, never taken from the data. If "
                "nobody knows it, y_bounds='private' finds one for a few percent of the budget"
            )
        private = isinstance(declared, str) and bool(check_choice("y_bounds", declared, (PRIVATE,)))
        if private and self.clip_to_bounds:
            raise ValueError(
                "clip_to_bounds=True says that no target lies outside y_bounds, and nobody can say that of bounds that "
                "are found: give y_bounds=(low, high), or leave clip_to_bounds out"
            )
        bounds = (-1.0, 1.0) if private else check_range("y_bounds", declared)
        taken = self._taken(given, given.y, validate_targets, None)
        task = Regression(bounds, hard_bounds=self.clip_to_bounds, private_range=private)
        request = self._request(task, taken)
        auto = isinstance(self.conformity_score, str) and self.conformity_score == AUTO
        task = replace(task, score=interval_score(chosen_score(request) if auto else self.conformity_score))
        found = self._release(replace(request, task=task), taken.records, store, given.brought)
        self.y_bounds_ = check_range("y_bounds", found.y_bounds)
        self.conformity_score_ = score_name(task.score)

    def _restore(self, header: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]], module: Any = None) -> None:
        super()._restore(header, arrays, module)
        self.y_bounds_ = check_range("y_bounds", self.ledger_.public_facts.get("y_bounds", self._public("y_bounds")))
        # files of before 0.3 name the score among the parameters only
        given = header["parameters"].get("conformity_score")
        self.conformity_score_ = self.ledger_.public_facts.get("conformity_score", given)

    def _task(self) -> Regression:
        score = self.conformity_score if self.conformity_score_ is None else self.conformity_score_
        if score == AUTO:  # a score of one's own that was not set again: predictions of one output can still be made
            score = "absolute"
        return Regression(self.y_bounds_, interval_score(score), HARD_BOUNDS in self.certificate_.assumptions)

    def predict(self, X: Any) -> NDArray[np.float64]:
        """The prediction for each row, within ``y_bounds``."""
        rows = self._rows(X)
        return self._task().pair(np.asarray(self.model_.outputs(rows))).centre

    def predict_interval(self, X: Any) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Predictions (n,) and intervals (n, 2, n_levels); an infinite interval where no finite threshold was found."""
        X = inputs_of(X)
        rows = self._rows(X)
        self._require_score_of_the_fit()
        task = self._task()
        pair = task.pair(np.asarray(self.model_.outputs(rows)))
        return pair.centre, task.intervals(pair, self._row_thresholds(X, len(rows)))
