"""The private regressor with prediction intervals."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpscp._base.checks import check_choice, check_range
from dpscp._base.sklearn_compat import RegressorMixin
from dpscp.core.fit_plan import choose_score
from dpscp.core.problem import FitProblem
from dpscp.core.tasks import Regression
from dpscp.data.feature_bounds import PRIVATE, check_private
from dpscp.data.scales import LINEAR, check_scale
from dpscp.data.validation import validate_targets
from dpscp.estimators.base import PrivateCoverage
from dpscp.estimators.fitted import reads_files
from dpscp.estimators.ingest import FitInput, FitRecords
from dpscp.estimators.other_names import refuse_parameters
from dpscp.guarantees.registry import AUTO
from dpscp.scores import INTERVAL_SCORES, SIDES, IntervalScore, interval_score, sided_score
from dpscp.torch.records import inputs_of


@dataclass(eq=False, repr=False, kw_only=True)
class PrivateConformalRegressor(RegressorMixin, PrivateCoverage):
    """Differentially private regressor with prediction intervals of proven coverage.

    It is the counterpart of ``PrivateConformalClassifier`` for real targets. Targets are clipped to ``y_bounds`` for
    training, and predictions lie within them. Scores use the targets unclipped, so the promise also holds for targets
    outside the bounds.

    Parameters
    ----------
    estimator : None, mechanism, torch.nn.Module, PrivateModel or Prefit
        See ``PrivateConformalClassifier``.
    conformity_score : str or IntervalScore, default "auto"
        ``"absolute"`` is |y - prediction|. ``"cqr"`` is the distance from a privately trained pair of quantiles.
        ``"normalized"`` is |y - center| / half-width of that pair. Or pass your own ``dpscp.scores.IntervalScore``.
        ``"auto"`` chooses ``"cqr"`` if public numbers (records, budget, guarantee) predict that a pair can be learned,
        otherwise ``"absolute"``. With your own ``estimator`` it is always ``"absolute"``. ``conformity_score_``, ledger
        and certificate name the choice.
    y_bounds : (low, high) or "private", optional
        The public range of the target. If it is left out, or ``"private"``, a range is found by noisy counts on a
        public grid of powers of two, for 5 % of the squared training budget. A publicly known range is better.
    y_scale : "linear", "log" or "log1p", optional
        The scale on which the target is trained and scored. ``"log"`` is for positive targets of many sizes, such as
        costs, and ``"log1p"``, the logarithm of 1 + y, for targets from 0 on. ``y_bounds``, predictions and intervals
        are in the units of the target. None is ``"linear"``, or the scale that the schema declares.
    clip_to_bounds : bool, default False
        Declares that no target can lie outside ``y_bounds`` and cuts the intervals there. The certificate then states
        this assumption: a target outside is in no interval.
    side : {"both", "upper", "lower"}, default "both"
        ``"upper"`` gives intervals (-inf, u] for promises such as "at most u", ``"lower"`` gives [l, inf). The whole
        miscoverage is spent on that end. It needs ``conformity_score`` ``"auto"``, ``"absolute"`` or ``"cqr"``.
    epsilon, delta, train_share, accountant, confidence_level, guarantee, calibration_fraction, evaluation_fraction, \
    release_confidence, groups, population, feature_bounds, n_records, rows_per_person, n_persons, random_state, verbose
        See ``PrivateConformalClassifier``; ``groups`` cannot be ``"label"``.

    Attributes
    ----------
    y_bounds_ : (low, high)
        The public range of the target, or the range that was found privately.
    conformity_score_ : str or None
        The name of the score; None for your own.
    model_, threshold_, group_values_, ledger_, certificate_, certificates_, evaluation_, schema_, n_features_in_, \
    feature_names_in_
        See ``PrivateConformalClassifier``.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(-1, 1, size=(6000, 4)); y = X.sum(axis=1) + rng.normal(scale=0.3, size=6000)
    >>> reg = PrivateConformalRegressor(epsilon=2.0, y_bounds=(-6, 6), feature_bounds=(-1, 1), random_state=0)
    >>> prediction, intervals = reg.fit(X[:5000], y[:5000]).predict_interval(X[5000:])
    >>> prediction.shape, intervals.shape
    ((1000,), (1000, 2, 1))

    Paper: Algorithm 1 [alg: dp-scp]; Theory: Which one to use
    """

    conformity_score: str | IntervalScore = "auto"
    y_bounds: tuple[float, float] | str | None = None
    clip_to_bounds: bool = False
    y_scale: str | None = None
    side: str = "both"

    task_: Regression = field(init=False)
    _name = "regression"

    def _check_score(self) -> None:
        if isinstance(self.conformity_score, str):
            check_choice("conformity_score", self.conformity_score, (AUTO, *INTERVAL_SCORES))
        check_choice("side", self.side, SIDES)

    _validate_y = staticmethod(validate_targets)

    def _make_problem(self, fit_input: FitInput) -> tuple[FitProblem, FitRecords]:
        declared = self._declared("y_bounds")
        if declared is None:
            declared = PRIVATE
        private = isinstance(declared, str) and bool(check_private("y_bounds", declared))
        if private and self.clip_to_bounds:
            raise ValueError(
                "clip_to_bounds=True declares that no target lies outside y_bounds, which cannot be declared of a "
                "range that is found privately. Pass y_bounds=(low, high), or remove clip_to_bounds"
            )
        bounds = (-1.0, 1.0) if private else check_range("y_bounds", declared)
        scale = check_scale("y_scale", self._declared("y_scale") or LINEAR, None if private else bounds)
        records = self._read_records(fit_input, fit_input.y, validate_targets, None)
        task = Regression(bounds, hard_bounds=self.clip_to_bounds, private_range=private, y_scale=scale)
        problem = self._problem(task, records)
        auto = isinstance(self.conformity_score, str) and self.conformity_score == AUTO
        score = sided_score(choose_score(problem) if auto else self.conformity_score, self.side)
        task = replace(task, score=interval_score(score))
        return replace(problem, task=task), records

    @property
    def y_bounds_(self) -> tuple[float, float]:
        """The public range of the target, or the range that was found privately."""
        return self.task_.y_bounds

    @property
    def conformity_score_(self) -> str | None:
        """The name of the score; None for your own."""
        return self.task_.score_name

    def _restore_task(self, header: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:  # noqa: ARG002
        self.task_ = Regression.from_dict(header["task"])

    @reads_files
    def predict(self, X: Any) -> NDArray[np.float64]:
        """Predict the target of each row, within ``y_bounds_``.

        Parameters
        ----------
        X : array or frame with n rows, or the path of a table
            A file (CSV, Parquet) needs a fit with a schema. It is read block by block.

        Returns
        -------
        array of shape (n,)
            NaN for a row of a frame that does not fit the schema.
        """
        new = self._read_new_rows(X)
        task: Regression = self._task()
        center = task.predictions(task.pair(np.asarray(self.model_.outputs(new.rows))))
        return center if new.unreadable is None else np.where(new.unreadable, np.nan, center)

    def _name_answers(self, predictions: NDArray[Any], answers: NDArray[Any], mark: str) -> dict[str, NDArray[Any]]:
        return {"prediction": predictions, f"lower{mark}": answers[:, 0], f"upper{mark}": answers[:, 1]}

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return R^2 of ``predict`` on labeled records; an exact number, NOT private.

        Parameters
        ----------
        X : array or frame with n rows
        y : array of shape (n,), or the name of the target column of a frame
        sample_weight : array of shape (n,), optional

        Returns
        -------
        float
        """
        return float(super().score(X, self._read_labeled(X, y), sample_weight))

    def predict_interval(self, X: Any, **others: Any) -> Any:
        """Predict targets and prediction intervals.

        Parameters
        ----------
        X : array or frame with n rows, or the path of a table
            A file (CSV, Parquet) needs a fit with a schema. It is read block by block.

        Returns
        -------
        predictions : array of shape (n,)
        intervals : array of shape (n, 2, n_levels)
            The lower and upper ends, infinite where no finite threshold exists. A row of a frame that does not fit
            the schema has the widest interval and the prediction NaN; ``schema_.rows(frame)`` says why.

        After ``set_output(transform="pandas")``, a frame with the columns of ``predict_columns`` instead.
        """
        refuse_parameters("predict_interval", others, ())
        return self._frame_answers(X)

    @reads_files
    def predict_answers(self, X: Any) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return predictions and intervals as arrays."""
        X = inputs_of(X)
        new = self._read_new_rows(X)
        task: Regression = self._task()
        pair = task.pair(np.asarray(self.model_.outputs(new.rows)))
        center, thresholds = task.predictions(pair), self._select_thresholds(X, len(new.rows))
        if new.unreadable is None:
            return center, task.intervals(pair, thresholds)
        thresholds = np.where(new.unreadable[:, None], np.inf, thresholds)
        return np.where(new.unreadable, np.nan, center), task.intervals(pair, thresholds)
