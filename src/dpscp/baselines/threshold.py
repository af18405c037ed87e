"""Baselines with one threshold for all rows: split, naive and private split."""

import math
import warnings
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import check_random_state

from dpscp._base.checks import check_choice, check_count, check_probability, check_range
from dpscp.baselines.base import Baseline, Predictor, find_kind, ranks, require_two_classes
from dpscp.core.release import declare_all, quiet_steps
from dpscp.estimators.outer_steps import OuterUse, find_outer_use
from dpscp.exceptions import GuaranteeWarning
from dpscp.privacy import (
    Accountant,
    Budget,
    Ledger,
    compose,
    counts_secrecy,
    release_accountant,
    secret_shares,
    secure_generator,
    sized_lattice_noise,
)
from dpscp.privacy.random_streams import child_seeds, seed_of
from dpscp.scores import lac_of_labels
from dpscp.scores.sets import label_set, residual_interval
from dpscp.threshold import PrivateQuantile, noisy_midpoint_quantile
from dpscp.threshold.exponential import ExponentialQuantile
from dpscp.training import Mechanism, Trained
from dpscp.training.base import Needs, array_source, paid_event
from dpscp.training.labels import encode_labels, observed_labels

SPLITS = ("independent", "exact")
QuantileResult = PrivateQuantile | ExponentialQuantile
_OWN_LABELS = (
    "estimator {} has no attribute classes, and its own list of labels would reveal the secret part that it trains on. "
    "Give it an attribute classes with all labels, or a method configured(needs); for regression pass y as floats"
)


class _Threshold(Baseline):
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
class SplitConformal(_Threshold):
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


class NaiveFull(_Threshold):
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


@dataclass(frozen=True)
class _ThresholdPlan:
    """The public side of one fit: training with its noise, and the search that the budget leaves."""

    budget: Budget
    mechanism: Mechanism
    n_training: int
    n_records: int
    search: Callable[..., QuantileResult]
    taken_from_data: Sequence[str]
    outer_use: OuterUse


@dataclass(eq=False, repr=False, kw_only=True)
class PrivateThreshold(_Threshold):
    """Base class of baselines with private training and a private quantile."""

    epsilon: float = 1.0
    delta: float = 1e-5
    score_range: tuple[float, float] | None = None
    n_records: int | None = None
    accountant: str | Accountant = "pld"

    @abstractmethod
    def _draw_parts(self, n: int, rng: np.random.Generator) -> tuple[Any, Any]:
        """Return the indices of the training records and of the calibration records."""

    @abstractmethod
    def _calibrate_training(self, budget: Budget, nominal: int) -> tuple[Mechanism, int]:
        """Set the mechanism's noise; also return the nominal number of its records."""

    @abstractmethod
    def _plan_search(self, budget: Budget, mechanism: Mechanism, nominal: int) -> Callable[..., QuantileResult]:
        """Return the threshold search that the budget leaves.

        It is called as search(scores, alpha=, score_range=, random_state=).
        """

    @abstractmethod
    def _write_ledger(self, trained: Trained, quantiles: Sequence[QuantileResult]) -> Ledger:
        """Return the ledger, from public numbers: no sizes of parts, no exact ranks."""

    def _fit_records(self, rows: NDArray[Any], y: NDArray[Any]) -> None:
        planned = self._plan(rows, y)
        self._keep(planned, *self._release(planned, rows, y))

    def _plan(self, rows: NDArray[Any], y: NDArray[Any]) -> "_ThresholdPlan":
        """Decide on training and search from public numbers; refuse before a record is used."""
        if find_kind(self.estimator) != "mechanism":
            raise TypeError(
                f"estimator must be a private training mechanism such as dpscp.training.DPSGD, got "
                f"{type(self.estimator).__name__}; for a scikit-learn estimator use SplitConformal"
            )
        outer = find_outer_use()
        outer.warn(None)
        budget = Budget(self.epsilon, self.delta)
        release_accountant(self.accountant)
        nominal = check_count("n_records", len(rows) if self.n_records is None else self.n_records, minimum=2)
        # fail before training where the mechanism's task is known
        self._find_score_range(getattr(self.estimator, "task", None))
        mechanism, n_training = self._calibrate_training(budget, nominal)
        mechanism, found = _declare_labels(mechanism, y)
        taken = ["n_records"] * (self.n_records is None) + ["classes"] * found
        search = self._plan_search(budget, mechanism, nominal)
        return _ThresholdPlan(budget, mechanism, n_training, nominal, search, taken, outer)

    def _release(
        self, planned: "_ThresholdPlan", rows: NDArray[Any], y: NDArray[Any]
    ) -> tuple[Trained, list[QuantileResult]]:
        """Train on one part of the records and search the scores of the other, or of the same."""
        split_seed, training_seed, *search_seeds = child_seeds(seed_of(self.random_state), 2 + len(self._alphas))
        with quiet_steps():
            trains, calibrates = self._draw_parts(len(rows), secure_generator(split_seed))
            records = array_source(rows[trains], y[trains])
            trained = planned.mechanism.train_source(records, random_state=training_seed, n_records=planned.n_training)
            score_range = self._find_score_range(trained.model.task)
            self._set_predictor(Predictor.of(trained), y)
            scores = self._scores(self._predictor, rows[calibrates], y[calibrates])
            return trained, [
                planned.search(scores, alpha=float(alpha), score_range=score_range, random_state=seed)
                for alpha, seed in zip(self._alphas, search_seeds, strict=True)
            ]

    def _keep(self, planned: "_ThresholdPlan", trained: Trained, quantiles: Sequence[QuantileResult]) -> None:
        """Set thresholds and ledger, and warn about full sets."""
        self.threshold_ = np.array([q.threshold if q.is_finite else math.inf for q in quantiles])
        score_range, ledger = self._find_score_range(trained.model.task), self._write_ledger(trained, quantiles)
        own = {
            **ledger.public_facts,
            "n_records": planned.n_records,
            "n_records_training": planned.n_training,
            "score_range": list(score_range),
            "alpha": [float(alpha) for alpha in self._alphas],
        }
        ledger = declare_all(ledger, trained, own).take(*planned.taken_from_data)
        planned.budget.require(ledger, self.accountant)
        self.ledger_ = planned.outer_use.mark_ledger(ledger if self.random_state is None else ledger.mark_seeded())
        if not np.isfinite(self.threshold_).all():
            warnings.warn(
                f"a search ended at the end of score_range ({score_range[1]:g}), so the prediction sets of its level "
                "are full. Use more records, a larger budget or a wider score_range",
                GuaranteeWarning,
                stacklevel=4,
            )

    def _find_score_range(self, task: str | None) -> tuple[float, float]:
        if self.score_range is not None:
            return check_range("score_range", self.score_range)
        if task == "regression":
            raise ValueError(
                "score_range is required for regression: pass a public (0, largest residual), not taken from y"
            )
        return 0.0, 1.0


def _declare_labels(mechanism: Mechanism, y: NDArray[Any]) -> tuple[Mechanism, bool]:
    """Declare the labels of ``y`` where the mechanism has none.

    Returns the mechanism and whether its labels come from the data. A mechanism that lists the labels of its own part,
    or that refuses an unknown one, would reveal which records are in that part.
    """
    inner: Any = mechanism
    while isinstance(getattr(inner, "mechanism", None), Mechanism):
        inner = inner.mechanism
    declared = getattr(inner, "classes", None)
    if declared is not None:
        encode_labels(y, tuple(declared))
    if declared is not None or y.dtype.kind == "f" or getattr(inner, "task", None) == "regression":
        return mechanism, False
    known = mechanism.configured(Needs(classes=tuple(observed_labels(y))))
    if known is mechanism:
        raise ValueError(_OWN_LABELS.format(type(mechanism).__name__))
    return known, True


@dataclass(eq=False, repr=False, kw_only=True)
class PrivateSplit(PrivateThreshold):
    """Base class of methods in which one half trains and the other half calibrates.

    Each half spends at least the whole budget. With ``split="independent"`` the split is secret, and the cost accounts
    for that.
    """

    split: str = "independent"

    @property
    def _secret_part(self) -> float | None:
        """The share that calibrates, where the secrecy of the split counts."""
        return 0.5 if self.split == "independent" and counts_secrecy(self.epsilon, self.accountant) else None

    def _draw_parts(self, n: int, rng: np.random.Generator) -> tuple[Any, Any]:
        trains = self._training_half(n, rng)
        return trains, ~trains

    def _calibrate_training(self, budget: Budget, nominal: int) -> tuple[Mechanism, int]:
        check_choice("split", self.split, SPLITS)
        epsilon = budget.epsilon
        if self._secret_part is not None:
            shared = secret_shares(epsilon, budget.delta, self._secret_part, nominal, self.accountant)
            epsilon = shared.train_epsilon
        mechanism = self.estimator.calibrated(epsilon, budget.delta, accountant=self.accountant)
        return mechanism, max(nominal // 2, 1)

    def _training_half(self, n: int, rng: np.random.Generator) -> NDArray[np.bool_]:
        if self.split == "independent":
            return np.asarray(rng.integers(0, 2, size=n) == 1)
        trains = np.zeros(n, dtype=bool)
        trains[rng.permutation(n)[: n // 2]] = True
        return trains

    def _write_split_ledger(self, trained: Trained, quantiles: Sequence[QuantileResult], how: str) -> Ledger:
        """Return the ledger of two disjoint halves; ``how`` describes the quantiles."""
        halves = {
            "independent": "each record is assigned to a half by its own fair coin",
            "exact": "halves of fixed size, so neighbors differ in one record being present or blank",
        }[self.split]
        secret = self._secret_part is not None
        cost = "secret split, the cost accounts for it" if secret else "disjoint halves, the more expensive one counts"
        stages = {"training": trained.event, "calibration": compose(*(q.event for q in quantiles))}
        note = f"{cost}; {halves}; {len(quantiles)} x {how}"
        return Ledger().add_disjoint(stages, note, secret_part=self._secret_part).declare(split=self.split)


@dataclass(eq=False, repr=False, kw_only=True)
class DPSplit(PrivateSplit):
    """The private split of earlier work, calibrated by the noisy-midpoint rule.

    Privacy: (epsilon, delta) for the whole release. A record is in one half only, so each half spends at least the
    whole budget. The ledger charges the secret split, or the more expensive half for halves of fixed size.

    Coverage is near 1 - alpha but not promised: the midpoint rule can end below the wanted order statistic. The fitted
    object holds the model, the thresholds and public facts only.

    Parameters
    ----------
    estimator : dpscp training mechanism
        Its noise is set so that training spends at most its share. Its ``sampling_rate`` refers to the training half.
        Without ``classes`` the labels of all of ``y`` are declared public.
    confidence_level : float, or list of floats
        The wanted coverage; several levels share the calibration budget.
    epsilon, delta : float
        The privacy budget of the release.
    score_range : (low, high), optional
        The public range of the scores: (0, 1) for classification by default, required for regression. Larger residuals
        are clipped to it. A threshold at its end becomes infinite.
    n_records : int, optional
        The public nominal number of records in both halves. None declares len(X) public.
    accountant : str or Accountant
        ``"pld"`` (tight) or ``"rdp"``, or your own.
    split : ``"independent"`` or ``"exact"``
        ``"independent"`` assigns each record to a half by its own fair coin. An added record moves no other one, and
        the halves and their sizes stay secret. ``"exact"`` is the paper's: halves of fixed size, drawn without use of
        the records. An added record would move another one, so epsilon holds for neighbors that differ in one record
        being present or blank, with a fixed public number of records. The ledger says so.
    steps : int
        The number of halvings of the range.
    random_state : int, optional
        None uses the operating system's entropy. A seed is repeatable and therefore not private.

    Attributes
    ----------
    threshold_ : array of shape (n_levels,)
    classes_ : array of shape (n_classes,), for classification
    ledger_ : Ledger

    Examples
    --------
    >>> from dpscp.training import DPSGD
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(2000, 3)); y = (X[:, 0] > 0).astype(int)
    >>> model = DPSplit(DPSGD(classes=(0, 1), steps=30), epsilon=1.0, delta=1e-5).fit(X, y)
    >>> model.ledger_.epsilon(1e-5) <= 1.0, model.predict_set(X[:4])[1].shape
    (True, (4, 2, 1))

    Paper: Section 6.1, "DP-Split"; Algorithm 4 [alg:noisy-midpoint]; Supplement S6.1 [supp:privacy_accounting]
    """

    steps: int = 20

    def _plan_search(self, budget: Budget, mechanism: Mechanism, nominal: int) -> Callable[..., QuantileResult]:
        steps, levels, secret = check_count("steps", self.steps), len(self._alphas), self._secret_part
        (noise, *_), _ = sized_lattice_noise(
            budget.epsilon,
            budget.delta,
            steps,
            [1.0] * levels,
            None if secret is None else paid_event(mechanism),
            self.accountant,
            secret_part=secret,
        )

        def search(scores: NDArray[Any], **options: Any) -> PrivateQuantile:
            half = nominal - nominal // 2
            return noisy_midpoint_quantile(scores, count_noise=noise, steps=steps, n_records=half, **options)

        return search

    def _write_ledger(self, trained: Trained, quantiles: Sequence[Any]) -> Ledger:
        first = quantiles[0]
        how = f"{first.steps} noisy counts, noise {first.count_noise:.4g}, midpoint rule"
        return self._write_split_ledger(trained, quantiles, how).declare(steps=first.steps)
