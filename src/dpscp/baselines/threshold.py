"""Baselines with one threshold for all rows: split conformal, the naive reuse of all records, and the private split."""

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
from dpscp.baselines.base import Array, Baseline, Predictor, kind_of, ranks, require_two_classes
from dpscp.data.validation import suppress_float_warnings
from dpscp.exceptions import GuaranteeWarning, SeededWarning
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
from dpscp.quantile import PrivateQuantile, noisy_midpoint_quantile
from dpscp.quantile.exponential import ExponentialQuantile
from dpscp.scores import lac_of_labels
from dpscp.scores.sets import label_set, residual_interval
from dpscp.training import Mechanism, Trained
from dpscp.training.labels import encode_labels, observed_labels
from dpscp.training.mechanism import Configurable, Needs, paid_event

SPLITS = ("independent", "exact")
Found = PrivateQuantile | ExponentialQuantile
_OWN_LABELS = (
    "{} may look for labels in the records that it trains on, which are a secret part of all: give it an attribute "
    "classes with all labels, or a method configured(needs) that takes them; for regression y must hold floats"
)


class _Threshold(Baseline):
    """Sets {y : score <= threshold_}."""

    threshold_: Array

    def _label_sets(self, rows: Array) -> Array:
        return label_set(lac_of_labels(self._predictor.probabilities(rows, self.classes_)), self.threshold_)

    def _intervals(self, rows: Array) -> Array:
        return residual_interval(self._predictor.predict(rows), self.threshold_)

    def _exact_threshold(self, scores: Array) -> Array:
        """The ceil((1 - alpha)(n + 1))-th smallest score for each level, infinite beyond the largest."""
        wanted = ranks(self._alphas, len(scores))
        ordered = np.append(np.sort(scores).astype(float), math.inf)
        return np.asarray(ordered[np.minimum(wanted, len(scores) + 1) - 1])


@dataclass(eq=False, repr=False, kw_only=True)
class SplitConformal(_Threshold):
    """Split conformal prediction: train on one part of the records, take the exact conformal quantile on the other.

    Promise: coverage of at least 1 - alpha for exchangeable records, whatever the model. Not private: the model and
    the threshold are exact functions of the records.

    Parameters
    ----------
    estimator : a scikit-learn classifier with ``predict_proba`` or regressor (cloned), or a dpscp mechanism (such as
        ``DPSGD`` with ``noise_multiplier=0``: the network of a private run without its noise).
    confidence_level : a level, or a list of levels.
    calibration_fraction : the share of the records that training does not see.
    random_state : seed of the split (and of a mechanism's training).

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

    def _learn(self, rows: Array, y: Array) -> None:
        fraction = check_probability("calibration_fraction", self.calibration_fraction)
        if len(rows) < 2:
            raise ValueError("X must hold at least 2 records, one to train on and one to calibrate with")
        size = min(max(round(fraction * len(rows)), 1), len(rows) - 1)
        order = check_random_state(self.random_state).permutation(len(rows))
        held_out, rest = order[:size], order[size:]
        if kind_of(self.estimator) == "classifier":
            require_two_classes(y[rest])
        self._use(Predictor.train(self.estimator, rows[rest], y[rest], self._seed()), y)
        self.threshold_ = self._exact_threshold(self._scores(self._predictor, rows[held_out], y[held_out]))
        self._not_private(
            training="SplitConformal trains without a privacy mechanism of its own",
            calibration="SplitConformal releases an exact order statistic of the scores",
        )


class NaiveFull(_Threshold):
    """All records train and all records calibrate, as if the model had not seen them: what reuse costs.

    The threshold is the exact conformal quantile of the in-sample scores. No promise: a model that overfits scores its
    own records too well and the sets under-cover. Not private.

    Parameters are those of ``SplitConformal``, without the split.

    Paper: Section 6.1, "Naive Full"
    """

    def _learn(self, rows: Array, y: Array) -> None:
        self._use(Predictor.train(self.estimator, rows, y, self._seed()), y)
        self.threshold_ = self._exact_threshold(self._scores(self._predictor, rows, y))
        self._not_private(
            training="NaiveFull trains without a privacy mechanism of its own",
            calibration="NaiveFull releases an exact order statistic of the in-sample scores",
        )


@dataclass(eq=False, repr=False, kw_only=True)
class PrivateThreshold(_Threshold):
    """A mechanism trains, a private quantile of the scores is the threshold: what the private baselines share."""

    epsilon: float = 1.0
    delta: float = 1e-5
    score_range: tuple[float, float] | None = None
    n_records: int | None = None
    accountant: str | Accountant = "pld"

    @abstractmethod
    def _parts(self, n: int, rng: np.random.Generator) -> tuple[Any, Any]:
        """The places of the records that train, and of those that calibrate."""

    @abstractmethod
    def _training(self, budget: Budget, nominal: int) -> tuple[Mechanism, int]:
        """The mechanism with its noise set, and the nominal number of records that it sees."""

    @abstractmethod
    def _search(self, budget: Budget, mechanism: Mechanism, nominal: int) -> Callable[..., Found]:
        """Finds a threshold (scores, alpha=, score_range=, random_state=) with what the budget leaves it."""

    @abstractmethod
    def _spent(self, trained: Trained, quantiles: Sequence[Found]) -> Ledger:
        """Public numbers only: the sizes of parts and the exact ranks stay out."""

    def _learn(self, rows: Array, y: Array) -> None:
        if kind_of(self.estimator) != "mechanism":
            raise TypeError(
                f"estimator must be a private training mechanism such as dpscp.training.DPSGD, got "
                f"{type(self.estimator).__name__}; SplitConformal takes scikit-learn estimators"
            )
        budget = Budget(self.epsilon, self.delta)
        release_accountant(self.accountant)
        nominal = check_count("n_records", len(rows) if self.n_records is None else self.n_records, minimum=2)
        # a mechanism that knows its task fails before training, not after
        self._range(getattr(self.estimator, "task", None))
        mechanism, n_training = self._training(budget, nominal)
        mechanism, found = _with_labels(mechanism, y)
        search = self._search(budget, mechanism, nominal)

        seed = seed_of(self.random_state)
        seeds = child_seeds(seed, 2 + len(self._alphas))
        with suppress_float_warnings(), warnings.catch_warnings():
            warnings.simplefilter("ignore", SeededWarning)  # told above, once
            trains, calibrates = self._parts(len(rows), secure_generator(seeds[0]))
            trained = mechanism.train(rows[trains], y[trains], random_state=seeds[1], n_records=n_training)
            score_range = self._range(trained.model.task)
            self._use(Predictor.of(trained), y)
            scores = self._scores(self._predictor, rows[calibrates], y[calibrates])
            quantiles = [
                search(scores, alpha=float(alpha), score_range=score_range, random_state=quantile_seed)
                for alpha, quantile_seed in zip(self._alphas, seeds[2:], strict=True)
            ]
        self.threshold_ = np.array([q.threshold if q.is_finite else math.inf for q in quantiles])
        ledger = self._spent(trained, quantiles)
        facts: dict[str, Any] = {
            **trained.public_facts,
            **ledger.public_facts,
            "n_records": nominal,
            "n_records_training": n_training,
            "score_range": list(score_range),
            "alpha": [float(alpha) for alpha in self._alphas],
        }
        taken = ["n_records"] * (self.n_records is None) + ["classes"] * found
        if taken:
            facts["taken_from_data"] = list(dict.fromkeys([*taken, *facts.get("taken_from_data", ())]))
        ledger = ledger.declare(**facts)
        budget.require(ledger, self.accountant)
        self.ledger_ = ledger if seed is None else ledger.mark_seeded()
        if not np.isfinite(self.threshold_).all():
            warnings.warn(
                f"no finite threshold: a search ended at the end of its range ({score_range[1]:g}), so its sets are "
                "full; more records, a larger budget or a wider score_range would help",
                GuaranteeWarning,
                stacklevel=3,
            )

    def _range(self, task: str | None) -> tuple[float, float]:
        if self.score_range is not None:
            return check_range("score_range", self.score_range)
        if task == "regression":
            raise ValueError(
                "score_range must be given for regression: a public (0, largest residual) that does not come from y"
            )
        return 0.0, 1.0


def _with_labels(mechanism: Mechanism, y: Array) -> tuple[Mechanism, bool]:
    """The mechanism with all labels of ``y`` where none are declared, and whether they were found there.

    A mechanism that looks for them itself, or that refuses an unknown one, would tell of the records in one half only.
    """
    inner: Any = mechanism
    while isinstance(getattr(inner, "mechanism", None), Mechanism):
        inner = inner.mechanism
    declared = getattr(inner, "classes", None)
    if declared is not None:
        encode_labels(y, tuple(declared))
    if declared is not None or y.dtype.kind == "f" or getattr(inner, "task", None) == "regression":
        return mechanism, False
    if not isinstance(mechanism, Configurable):
        raise ValueError(_OWN_LABELS.format(type(mechanism).__name__))
    return mechanism.configured(Needs(classes=tuple(observed_labels(y)))), True


@dataclass(eq=False, repr=False, kw_only=True)
class PrivateSplit(PrivateThreshold):
    """Half the records train, the other half calibrates, and each half spends the whole budget or more.

    Coins that nobody sees (``split="independent"``) are a secret split: the mixture of the two halves counts.
    """

    split: str = "independent"

    @property
    def _secret_part(self) -> float | None:
        """The share of the records that calibrates, where secret coins draw it and that counts."""
        return 0.5 if self.split == "independent" and counts_secrecy(self.epsilon, self.accountant) else None

    def _parts(self, n: int, rng: np.random.Generator) -> tuple[Any, Any]:
        trains = self._training_half(n, rng)
        return trains, ~trains

    def _training(self, budget: Budget, nominal: int) -> tuple[Mechanism, int]:
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

    def _disjoint(self, trained: Trained, quantiles: Sequence[Found], how: str) -> Ledger:
        """The ledger of two halves, of which one record meets one; ``how`` tells of the quantiles."""
        halves = {
            "independent": "each record's half is its own fair coin",
            "exact": "halves of fixed size, so neighbours differ in one record being present or blank",
        }[self.split]
        counted = "disjoint halves, the worse of the two counts" if self._secret_part is None else "the mixture counts"
        stages = {"training": trained.event, "calibration": compose(*(q.event for q in quantiles))}
        note = f"{counted}; {halves}; {len(quantiles)} x {how}"
        return Ledger().add_disjoint(stages, note, secret_part=self._secret_part).declare(split=self.split)


@dataclass(eq=False, repr=False, kw_only=True)
class DPSplit(PrivateSplit):
    """The private split of earlier work: half the records train, the other half calibrates by the noisy-midpoint rule.

    Privacy: (epsilon, delta) for the whole release. One record lies in one half only, so each half spends at least the
    whole budget: the ledger counts the mixture of the two, or the worse of them for halves of fixed size. Coverage is
    near 1 - alpha but not promised: the midpoint rule can end below the wanted order statistic. The fitted object holds
    the model, the thresholds and public facts only.

    Parameters
    ----------
    estimator : a dpscp training mechanism; its noise is solved anew so that training spends at most (epsilon, delta).
        Its ``sampling_rate`` refers to the training half. Without ``classes`` the labels are found in all of ``y``,
        never in one half, and declared public.
    score_range : the public range of the scores; None is (0, 1) for classification, regression must give it. Larger
        residuals are clipped to it; a threshold at its end becomes infinite.
    steps : halvings of the range; several confidence levels share the calibration budget.
    split : ``"independent"`` sends each record to a half by its own fair coin: adding a record moves no other, which is
        what add/remove-one-record neighbours need, and the halves and their sizes stay secret. ``"exact"`` is the
        paper's: halves of fixed size, drawn without looking at the records. There an added record would move another
        one, so the epsilon holds for neighbours that differ in one record being present or blank, with the number of
        records fixed and public; the ledger says so.
    n_records : the public nominal number of records in both halves; None declares len(X) public.
    random_state : None takes the operating system's entropy; an int is repeatable and therefore not private.

    >>> from dpscp.training import DPSGD
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(2000, 3)); y = (X[:, 0] > 0).astype(int)
    >>> model = DPSplit(DPSGD(classes=(0, 1), steps=30), epsilon=1.0, delta=1e-5).fit(X, y)
    >>> model.ledger_.epsilon(1e-5) <= 1.0, model.predict_set(X[:4])[1].shape
    (True, (4, 2, 1))

    Paper: Section 6.1, "DP-Split"; Algorithm 4 [alg:noisy-midpoint]; Supplement S6.1 [supp:privacy_accounting]
    """

    steps: int = 20

    def _search(self, budget: Budget, mechanism: Mechanism, nominal: int) -> Callable[..., Found]:
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

        def search(scores: Array, **options: Any) -> PrivateQuantile:
            half = nominal - nominal // 2
            return noisy_midpoint_quantile(scores, count_noise=noise, steps=steps, n_records=half, **options)

        return search

    def _spent(self, trained: Trained, quantiles: Sequence[Any]) -> Ledger:
        first = quantiles[0]
        how = f"{first.steps} noisy counts, noise {first.count_noise:.4g}, midpoint rule"
        return self._disjoint(trained, quantiles, how).declare(steps=first.steps)
