"""The private regressor with prediction intervals."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpscp._base.checks import check_choice, check_range
from dpscp._base.sklearn_compat import RegressorMixin
from dpscp.core.fit_plan import choose_score
from dpscp.core.problem import FitProblem
from dpscp.core.tasks import JointRegression, Regression
from dpscp.data.feature_bounds import PRIVATE, check_private
from dpscp.data.scales import LINEAR, check_scale
from dpscp.data.torch_records import inputs_of
from dpscp.data.validation import validate_targets
from dpscp.estimators.base import PrivateCoverage
from dpscp.estimators.fitted import reads_files
from dpscp.estimators.ingest import FitInput, FitRecords
from dpscp.guarantees.registry import AUTO
from dpscp.scores import INTERVAL_SCORES, SIDES, IntervalScore, interval_score, sided_score


@dataclass(eq=False, repr=False, kw_only=True)
class PrivateConformalRegressor(RegressorMixin, PrivateCoverage):
    """Differentially private regressor with prediction intervals of proven coverage.

    It is the counterpart of ``PrivateConformalClassifier`` for real targets. Targets are clipped to ``y_bounds`` for
    training, and predictions lie within them. Scores use the targets unclipped, so the promise also holds for targets
    outside the bounds.

    With several targets, y of shape (n, n_targets), the promise is that a record's intervals contain all of them at
    once. Each target has a model with its part of the budget. A record's score is the largest of its scores, each
    divided by a privately released spread of its residuals. Such a fit needs the name of a score, and no
    ``guarantee="stability"``.

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
    y_bounds : (low, high), array of shape (n_targets, 2), or "private", optional
        The public range of the target, or of each of several. If it is left out, or ``"private"``, a range is found by
        noisy counts on a public grid of powers of two, for 5 % of the squared training budget. A publicly known range
        is better.
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
        See ``PrivateConformalClassifier``; ``groups="label"`` is refused.

    Attributes
    ----------
    y_bounds_ : (low, high)
        The public range of the target, or the range that was found privately; of several targets, one for each.
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
    y_bounds: Any = None
    clip_to_bounds: bool = False
    y_scale: str | None = None
    side: str = "both"

    task_: Regression | JointRegression = field(init=False)
    _name = "regression"

    def _check_score(self) -> None:
        if isinstance(self.conformity_score, str):
            check_choice("conformity_score", self.conformity_score, (AUTO, *INTERVAL_SCORES))
        check_choice("side", self.side, SIDES)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    @staticmethod
    def _validate_y(y: Any, n: int) -> NDArray[Any]:
        return validate_targets(y, n, None)

    def _make_problem(self, fit_input: FitInput) -> tuple[FitProblem, FitRecords]:
        declared = self._declared("y_bounds")
        if declared is None:
            declared = PRIVATE
        private = isinstance(declared, str) and bool(check_private("y_bounds", declared))
        if private and self.clip_to_bounds:
            raise ValueError(
                "clip_to_bounds=True declares that no target lies outside y_bounds, but here the range is found "
                "privately. Pass y_bounds=(low, high), or remove clip_to_bounds"
            )
        if fit_input.rows is not None:
            n_targets = 1 if fit_input.y.ndim == 1 else fit_input.y.shape[1]
        elif self.schema_ is not None:
            n_targets = len(self.schema_.target_names)
        else:
            n_targets = 1 if private else len(np.reshape(declared, (-1, 2)))
        each = [declared] * n_targets if private or np.ndim(declared) < 2 else list(declared)
        if len(each) != n_targets:
            raise ValueError(f"y_bounds must be one pair (low, high), or one for each of {n_targets} targets")
        ranges = [(-1.0, 1.0) if private else check_range("y_bounds", own) for own in each]
        scales = [check_scale("y_scale", self._declared("y_scale") or LINEAR, None if private else r) for r in ranges]
        if n_targets > 1 and private and self._find_pretrained_model() is not None:
            raise ValueError("several targets of a model that was trained elsewhere need y_bounds, one pair for each")
        records = self._read_records(fit_input, fit_input.y, partial(validate_targets, n_targets=n_targets), None)

        def task(score: str | IntervalScore) -> Regression | JointRegression:
            own = [
                Regression(r, interval_score(score), self.clip_to_bounds, private, scale)
                for r, scale in zip(ranges, scales, strict=True)
            ]
            return own[0] if n_targets == 1 else JointRegression(tuple(own))

        problem = self._problem(task("absolute"), records)
        auto = isinstance(self.conformity_score, str) and self.conformity_score == AUTO
        score = sided_score(choose_score(problem) if auto else self.conformity_score, self.side)
        return replace(problem, task=task(score)), records

    @property
    def y_bounds_(self) -> Any:
        """The public or privately found range of the target, or of each target."""
        return self.task_.y_bounds

    @property
    def conformity_score_(self) -> str | None:
        """The name of the score; None for your own."""
        return self.task_.score_name

    def _restore_task(self, header: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:  # noqa: ARG002
        kind = JointRegression if "each" in header["task"] else Regression
        self.task_ = kind.from_dict(header["task"])

    @reads_files
    def predict(self, X: Any) -> NDArray[np.float64]:
        """Predict the target of each row, within ``y_bounds_``.

        Parameters
        ----------
        X : array or frame with n rows, or the path of a table
            A file (CSV, Parquet) needs a fit with a schema. It is read block by block.

        Returns
        -------
        array of shape (n,), or (n, n_targets) for several targets
            NaN for a row of a frame that does not fit the schema.
        """
        rows, unreadable = self._read_new_rows(X)
        found: NDArray[np.float64] = self._task().predictions(np.asarray(self.model_.outputs(rows)))
        return _without(found, unreadable)

    def _name_answers(self, predictions: NDArray[Any], answers: NDArray[Any], mark: str) -> dict[str, NDArray[Any]]:
        if predictions.ndim == 1:
            return {"prediction": predictions, f"lower{mark}": answers[:, 0], f"upper{mark}": answers[:, 1]}
        names = range(predictions.shape[1]) if self.schema_ is None else self.schema_.target_names
        columns: dict[str, NDArray[Any]] = {}
        for place, name in enumerate(names):
            columns |= {f"prediction {name}": predictions[:, place]}
            columns |= {f"lower{mark} {name}": answers[:, place, 0], f"upper{mark} {name}": answers[:, place, 1]}
        return columns

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return R^2 of ``predict`` on labeled records; an exact number, NOT private.

        Parameters
        ----------
        X : array or frame with n rows
        y : array of shape (n,) or (n, n_targets), or the name of the target column of a frame
        sample_weight : array of shape (n,), optional

        Returns
        -------
        float
        """
        return float(super().score(X, self._read_labeled(X, y), sample_weight))

    def predict_interval(self, X: Any) -> Any:
        """Predict targets and prediction intervals.

        Parameters
        ----------
        X : array or frame with n rows, or the path of a table
            A file (CSV, Parquet) needs a fit with a schema. It is read block by block.

        Returns
        -------
        predictions : array of shape (n,), or (n, n_targets) for several targets
        intervals : array of shape (n, 2, n_levels), or (n, n_targets, 2, n_levels)
            The lower and upper ends, infinite where no finite threshold exists. A row of a frame that does not fit
            the schema has the widest interval and the prediction NaN; ``schema_.rows(frame)`` says why.

        After ``set_output(transform="pandas")``, a frame with the columns of ``predict_columns`` instead.
        """
        return self._frame_answers(X)

    def predict_quantiles(self, X: Any) -> NDArray[np.float64]:
        """Predict one quantile of the target for each level of a fit with one side.

        With ``side="upper"``, a new target is at most the quantile of level c with probability at least c, as the
        certificate of that level promises. With ``"lower"`` it is at least the quantile. The quantiles of one row are
        ordered by level, whatever the noise of the searches was.

        Parameters
        ----------
        X : array or frame with n rows, or the path of a table

        Returns
        -------
        array of shape (n, n_levels), or (n, n_targets, n_levels) for several targets
            In the order of ``confidence_level``; infinite where no finite threshold exists.
        """
        if self.side == "both":
            raise ValueError("predict_quantiles needs a fit with side='upper' or side='lower'; set side and fit again")
        _, intervals = self.predict_answers(X)
        ends = intervals[..., int(self.side == "upper"), :]
        order = np.argsort([certificate.target for certificate in self.certificates_])
        furthest = np.maximum if self.side == "upper" else np.minimum
        ends[..., order] = furthest.accumulate(ends[..., order], axis=-1)
        return np.asarray(ends)

    @reads_files
    def predict_answers(self, X: Any) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return predictions and intervals as arrays."""
        X = inputs_of(X)
        rows, unreadable = self._read_new_rows(X)
        thresholds = self._select_thresholds(X, len(rows))
        if unreadable is not None:
            thresholds = np.where(unreadable[:, None], np.inf, thresholds)
        center, intervals = self._task().answers(np.asarray(self.model_.outputs(rows)), thresholds)
        return _without(center, unreadable), intervals


def _without(predictions: NDArray[np.float64], unreadable: NDArray[np.bool_] | None) -> NDArray[np.float64]:
    """Return predictions with NaN for the rows that could not be read."""
    if unreadable is None:
        return predictions
    found = np.array(predictions)
    found[unreadable] = np.nan
    return found
