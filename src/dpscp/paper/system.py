"""Algorithm 1 (DP-SCP-F and DP-SCP-A), and the private split (DP-Split)."""

import math
import warnings
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from dp_accounting.dp_event import DpEvent
from numpy.typing import NDArray

from dpscp._base.checks import check_choice, check_count, check_nonnegative, check_probability, check_range
from dpscp.core.fit import declare_all, quiet_steps
from dpscp.estimators.outer_steps import find_outer_use
from dpscp.exceptions import GuaranteeWarning
from dpscp.paper.base import Predictor, find_kind
from dpscp.paper.search import buffered_quantile, noisy_midpoint_quantile
from dpscp.paper.split import ThresholdMethod
from dpscp.privacy import (
    Accountant,
    Budget,
    LatticeNoise,
    Ledger,
    as_accountant,
    compose,
    counts_secrecy,
    secret_shares,
    secure_generator,
    sized_lattice_noise,
)
from dpscp.privacy.random_streams import child_seeds, seed_of
from dpscp.threshold import PrivateQuantile
from dpscp.training import Mechanism, Trained
from dpscp.training.base import Needs, array_source, paid_event
from dpscp.training.engine.rows import encode_labels, observed_labels

SPLITS = ("independent", "exact")
VARIANTS = ("F", "A")
_OWN_LABELS = (
    "estimator {} has no attribute classes, and its own list of labels would reveal the secret part that it trains on. "
    "Give it an attribute classes with all labels, or a method configured(needs); for regression pass y as floats"
)


@dataclass(eq=False, repr=False, kw_only=True)
class PrivateMethod(ThresholdMethod):
    """Base class of methods with private training and a private quantile."""

    epsilon: float = 1.0
    delta: float = 1e-5
    score_range: tuple[float, float] | None = None
    n_records: int | None = None
    accountant: str | Accountant = "pld"
    steps: int = 20

    @abstractmethod
    def _draw_parts(self, n: int, rng: np.random.Generator) -> tuple[Any, Any]:
        """Return the indices of the training records and of the calibration records."""

    @abstractmethod
    def _calibrate_training(self, budget: Budget, nominal: int) -> tuple[Mechanism, int]:
        """Set the mechanism's noise; also return the nominal number of its records."""

    @abstractmethod
    def _search(self, scores: NDArray[Any], noise: LatticeNoise, nominal: int, **options: Any) -> PrivateQuantile:
        """Search the threshold with this noise on each count.

        ``options`` are alpha, score_range and random_state.
        """

    @abstractmethod
    def _cost_beside_search(self, mechanism: Mechanism) -> tuple[DpEvent | None, float | None]:
        """Return what training costs the calibration records, and their secret share."""

    @abstractmethod
    def _write_ledger(self, trained: Trained, quantiles: Sequence[PrivateQuantile]) -> Ledger:
        """Return the ledger, from public numbers: no sizes of parts, no exact ranks."""

    def _fit_records(self, rows: NDArray[Any], y: NDArray[Any]) -> None:
        if find_kind(self.estimator) != "mechanism":
            raise TypeError(
                f"estimator must be a private training mechanism such as dpscp.training.DPSGD, got "
                f"{type(self.estimator).__name__}; for a scikit-learn estimator use SplitConformal"
            )
        outer = find_outer_use()
        outer.warn(None)
        budget = Budget(self.epsilon, self.delta)
        as_accountant(self.accountant)
        nominal = check_count("n_records", len(rows) if self.n_records is None else self.n_records, minimum=2)
        # fail before training where the mechanism's task is known
        self._find_score_range(getattr(self.estimator, "task", None))
        mechanism, n_training = self._calibrate_training(budget, nominal)
        mechanism, found = _declare_labels(mechanism, y)
        noise = self._plan_noise(budget, mechanism)
        # public numbers only so far: what does not fit is refused before a record is used
        split_seed, training_seed, *search_seeds = child_seeds(seed_of(self.random_state), 2 + len(self._alphas))
        with quiet_steps():
            trains, calibrates = self._draw_parts(len(rows), secure_generator(split_seed))
            records = array_source(rows[trains], y[trains])
            trained = mechanism.train_source(records, random_state=training_seed, n_records=n_training)
            score_range = self._find_score_range(trained.model.task)
            self._set_predictor(Predictor.of(trained), y)
            scores = self._scores(self._predictor, rows[calibrates], y[calibrates])
            quantiles = [
                self._search(scores, noise, nominal, alpha=float(alpha), score_range=score_range, random_state=seed)
                for alpha, seed in zip(self._alphas, search_seeds, strict=True)
            ]
        self.threshold_ = np.array([q.threshold if q.is_finite else math.inf for q in quantiles])
        ledger = self._write_ledger(trained, quantiles)
        own = {
            **ledger.public_facts,
            "n_records": nominal,
            "n_records_training": n_training,
            "score_range": list(score_range),
            "alpha": [float(alpha) for alpha in self._alphas],
        }
        taken = [*["n_records"] * (self.n_records is None), *["classes"] * found]
        ledger = declare_all(ledger, trained, own).mark_taken(*taken)
        budget.require(ledger, self.accountant)
        self.ledger_ = outer.mark_ledger(ledger if self.random_state is None else ledger.mark_seeded())
        if not np.isfinite(self.threshold_).all():
            warnings.warn(
                f"a search ended at the end of score_range ({score_range[1]:g}), so the prediction sets of its level "
                "are full. Use more records, a larger budget or a wider score_range",
                GuaranteeWarning,
                stacklevel=3,
            )

    def _plan_noise(self, budget: Budget, mechanism: Mechanism) -> LatticeNoise:
        """Return the noise of each count that the budget leaves after training."""
        spent, secret = self._cost_beside_search(mechanism)
        (noise, *_), _ = sized_lattice_noise(
            budget.epsilon,
            budget.delta,
            check_count("steps", self.steps),
            [1.0] * len(self._alphas),
            spent,
            self.accountant,
            secret_part=secret,
        )
        return noise

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
class DPSCP(PrivateMethod):
    """DP-SCP as printed: all records train, all records calibrate by Algorithm 2.

    ``PrivateConformalClassifier`` and ``PrivateConformalRegressor`` are the estimators for use: their search has the
    same shape, less noise and proven coverage. This class has the paper's own rank, buffers and order of spending, for
    comparison.

    Privacy: (epsilon, delta) for training and search together. Training spends (train_share epsilon, delta), the search
    what the composition leaves.

    Coverage: variant "F" (finite-sample) is at least ``coverage_lower_bound`` under the assumptions of Theorem 3, if
    ``rank_buffer`` is at least its m_n. Variant "A" (asymptotic) has no finite-sample promise but the floor of
    Corollary 1. The fitted object holds the model, the thresholds and public facts only.

    Parameters
    ----------
    estimator, confidence_level, epsilon, delta, score_range, n_records, accountant, steps, random_state : see \
``DPSplit``.
    variant : ``"F"`` or ``"A"``
        ``"F"`` uses the rank r + m_n + tau, ``"A"`` sets m_n = tau = 0.
    train_share : float
        The paper's p, the share of epsilon that training spends.
    rank_buffer : float
        The paper's m_n, used by variant "F".
    failure_probability : float, optional
        The paper's beta, used by variant "F". Default: 1 / n_records.

    Attributes
    ----------
    threshold_, classes_, ledger_ : see ``DPSplit``.

    Examples
    --------
    >>> from dpscp.training import DPSGD
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(2000, 3)); y = (X[:, 0] > 0).astype(int)
    >>> model = DPSCP(DPSGD(classes=(0, 1), steps=30), epsilon=1.0, delta=1e-5, variant="A").fit(X, y)
    >>> model.ledger_.epsilon(1e-5) <= 1.0, model.predict_set(X[:4])[1].shape
    (True, (4, 2, 1))

    Paper: Algorithm 1 [alg: dp-scp]; Section 4.2, DP-SCP-F and DP-SCP-A
    """

    variant: str = "F"
    train_share: float = 0.5
    rank_buffer: float = 10
    failure_probability: float | None = None

    def _draw_parts(self, n: int, rng: np.random.Generator) -> tuple[Any, Any]:  # noqa: ARG002 (nothing is drawn)
        return slice(n), slice(n)

    def _calibrate_training(self, budget: Budget, nominal: int) -> tuple[Mechanism, int]:
        check_choice("variant", self.variant, VARIANTS)
        share = check_probability("train_share", self.train_share)
        check_nonnegative("rank_buffer", self.rank_buffer)
        return self.estimator.calibrated(share * budget.epsilon, budget.delta, accountant=self.accountant), nominal

    def _cost_beside_search(self, mechanism: Mechanism) -> tuple[DpEvent | None, float | None]:
        return paid_event(mechanism), None

    def _search(self, scores: NDArray[Any], noise: LatticeNoise, nominal: int, **options: Any) -> PrivateQuantile:
        failure = 1 / nominal if self.failure_probability is None else self.failure_probability
        finite: dict[str, Any] = (
            {"rank_buffer": self.rank_buffer, "failure_probability": failure} if self.variant == "F" else {}
        )
        return buffered_quantile(scores, count_noise=noise, steps=self.steps, n_records=nominal, **finite, **options)

    def _write_ledger(self, trained: Trained, quantiles: Sequence[PrivateQuantile]) -> Ledger:
        ledger = Ledger().add("training", trained.event, str(trained.public_facts.get("mechanism", "")))
        how = f"{len(quantiles)} x {_describe_search(quantiles[0])}, DP-SCP-{self.variant}"
        search = compose(*(q.event for q in quantiles))
        return ledger.add("calibration", search, how).declare(variant=self.variant, steps=quantiles[0].steps)


@dataclass(eq=False, repr=False, kw_only=True)
class DPSplit(PrivateMethod):
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

    split: str = "independent"

    @property
    def _secret_part(self) -> float | None:
        """The share that calibrates, where the secrecy of the split counts."""
        return 0.5 if self.split == "independent" and counts_secrecy(self.epsilon, self.accountant) else None

    def _draw_parts(self, n: int, rng: np.random.Generator) -> tuple[Any, Any]:
        if self.split == "independent":
            trains = np.asarray(rng.integers(0, 2, size=n) == 1)
        else:
            trains = rng.permutation(n) < n // 2
        return trains, ~trains

    def _calibrate_training(self, budget: Budget, nominal: int) -> tuple[Mechanism, int]:
        check_choice("split", self.split, SPLITS)
        epsilon = budget.epsilon
        if self._secret_part is not None:
            epsilon, _ = secret_shares(epsilon, budget.delta, self._secret_part, nominal, self.accountant)
        mechanism = self.estimator.calibrated(epsilon, budget.delta, accountant=self.accountant)
        return mechanism, max(nominal // 2, 1)

    def _cost_beside_search(self, mechanism: Mechanism) -> tuple[DpEvent | None, float | None]:
        return (None, None) if self._secret_part is None else (paid_event(mechanism), self._secret_part)

    def _search(self, scores: NDArray[Any], noise: LatticeNoise, nominal: int, **options: Any) -> PrivateQuantile:
        half = nominal - nominal // 2
        return noisy_midpoint_quantile(scores, count_noise=noise, steps=self.steps, n_records=half, **options)

    def _write_ledger(self, trained: Trained, quantiles: Sequence[PrivateQuantile]) -> Ledger:
        halves = {
            "independent": "each record is assigned to a half by its own fair coin",
            "exact": "halves of fixed size, so neighbors differ in one record being present or blank",
        }[self.split]
        secret = self._secret_part is not None
        cost = "secret split, the cost accounts for it" if secret else "disjoint halves, the more expensive one counts"
        stages = {"training": trained.event, "calibration": compose(*(q.event for q in quantiles))}
        note = f"{cost}; {halves}; {len(quantiles)} x {_describe_search(quantiles[0])}, midpoint rule"
        return (
            Ledger()
            .add_disjoint(stages, note, secret_part=self._secret_part)
            .declare(split=self.split, steps=quantiles[0].steps)
        )


def _describe_search(quantile: PrivateQuantile) -> str:
    return f"{quantile.steps} noisy counts, noise {quantile.count_noise:.4g}"
