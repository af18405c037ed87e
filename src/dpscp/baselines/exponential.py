"""Published methods that calibrate by the exponential mechanism."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from dpscp._base.checks import check_choice, check_probability
from dpscp.baselines.threshold import PrivateSplit, PrivateThreshold, QuantileResult
from dpscp.privacy import (
    Accountant,
    Budget,
    Ledger,
    as_event,
    bounded_range_event,
    compose,
    secret_split,
    smallest_noise,
)
from dpscp.privacy.events import DpEvent
from dpscp.threshold.exponential import LEVELS, exponential_quantile
from dpscp.training import Mechanism, Trained
from dpscp.training.base import paid_event

# Share of alpha that is charged for a calibration half that is far too small.
_TAIL_SHARE = 1e-3


def exponential_rate(
    budget: Budget,
    spent: DpEvent | Ledger | None,
    levels: int,
    accountant: str | Accountant = "pld",
    secret_part: float | None = None,
) -> float:
    """Return the largest rate of the exponential mechanism that fits the budget.

    Parameters
    ----------
    budget : Budget
        The budget of training and calibration together.
    spent : event or Ledger, optional
        What training spends.
    levels : int
        The number of draws, one for each level.
    accountant : str or Accountant
    secret_part : float, optional
        The share of the records that calibrate, where a secret split assigns them and ``spent`` is about the others.
    """
    before = as_event(spent)

    def event_at(noise: float) -> DpEvent:
        draws = bounded_range_event(1 / noise, levels)
        return compose(before, draws) if secret_part is None else secret_split(before, draws, secret_part)

    guess, flat = levels / budget.epsilon, secret_part is not None
    return 1 / smallest_noise(event_at, budget.epsilon, budget.delta, accountant=accountant, guess=guess, flat=flat)


@dataclass(eq=False, repr=False, kw_only=True)
class PrivatePredictionSets(PrivateSplit):
    """Private prediction sets of Angelopoulos, Bates, Zrnic and Jordan (2022).

    Half the records train a private model. The other half calibrates by the exponential mechanism on a grid, at a level
    raised so that coverage is at least 1 - alpha for exchangeable records, ties included. Privacy: (epsilon, delta) for
    the whole release. The accounting is tighter than the published one: the split is secret (see ``DPSplit``), and an
    added record can only raise the mechanism's cost of a grid end. So its loss range is half of the published one
    (``dpscp.threshold.exponential``), and the level is raised by half as much.

    Parameters
    ----------
    estimator, confidence_level, epsilon, delta, score_range, n_records, accountant, random_state : see ``DPSplit``.
    split : ``"independent"`` or ``"exact"``
        See ``DPSplit``. With ``"independent"`` the size of the calibration half is random. The level is raised for the
        smallest size that occurs with probability 1 - alpha / 1000; the rest is charged to alpha.
    bins : int, optional
        The number of grid cells. None chooses it from public numbers.

    Attributes
    ----------
    threshold_, classes_, ledger_ : see ``DPSplit``.

    Examples
    --------
    >>> from dpscp.training import DPSGD
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(2000, 3)); y = (X[:, 0] > 0).astype(int)
    >>> model = PrivatePredictionSets(DPSGD(classes=(0, 1), steps=30), epsilon=1.0, delta=1e-5).fit(X, y)
    >>> model.ledger_.epsilon(1e-5) <= 1.0, model.predict_set(X[:4])[1].shape
    (True, (4, 2, 1))

    Paper: Angelopoulos, Bates, Zrnic and Jordan (2022), Private Prediction Sets
    """

    bins: int | None = None

    def _plan_search(self, budget: Budget, mechanism: Mechanism, nominal: int) -> Callable[..., QuantileResult]:
        half, secret = nominal - nominal // 2, self._secret_part
        spent = None if secret is None else paid_event(mechanism)
        rate = exponential_rate(budget, spent, len(self._alphas), self.accountant, secret)
        draw = partial(exponential_quantile, rate=rate, bins=self.bins, n_records=half)

        def search(scores: Any, *, alpha: float, **options: Any) -> QuantileResult:
            least = half
            if self.split == "independent":
                # Hoeffding: the half is smaller than this with probability tail at most
                tail = _TAIL_SHARE * alpha
                alpha, least = alpha - tail, max(1, math.floor(half - math.sqrt(nominal * math.log(1 / tail) / 2)))
            return draw(scores, alpha=alpha, n_min=least, **options)

        return search

    def _write_ledger(self, trained: Trained, quantiles: Sequence[Any]) -> Ledger:
        return self._write_split_ledger(trained, quantiles, _describe_draw(quantiles[0])).declare(
            bins=quantiles[0].bins
        )


@dataclass(eq=False, repr=False, kw_only=True)
class DPCP(PrivateThreshold):
    """Differentially private conformal prediction of Wu et al. (2026).

    All records train and all of them calibrate. Training spends ``train_share`` of epsilon; the exponential mechanism
    on the scores of the training records spends the rest. Privacy: (epsilon, delta) for the whole release, composed by
    privacy loss distributions where the paper adds epsilons.

    Coverage is near 1 - alpha but not promised: a model gives its own records low scores. The privacy of training alone
    proves the floor of Result B.

    This implementation follows the abstract of the paper and descriptions by others. So the quantile is that of
    ``PrivatePredictionSets``.

    Parameters
    ----------
    estimator, confidence_level, epsilon, delta, score_range, n_records, accountant, random_state : see ``DPSplit``.
    train_share : float
        The share of epsilon that training spends.
    level : ``"plain"`` or ``"corrected"``
        ``"plain"`` aims at the conformal rank. ``"corrected"`` aims at the level that would keep the promise if the
        model had not seen the records.
    bins : int, optional
        The number of grid cells. None chooses it from public numbers.

    Attributes
    ----------
    threshold_, classes_, ledger_ : see ``DPSplit``.

    Paper: Wu, Zhang, Cai, Kong, Jiang, Kong and Kong (2026), arXiv 2604.14621; Theory: Result B
    """

    train_share: float = 0.5
    level: str = "plain"
    bins: int | None = None

    def _draw_parts(self, n: int, rng: np.random.Generator) -> tuple[Any, Any]:  # noqa: ARG002 (nothing is drawn)
        return slice(n), slice(n)

    def _calibrate_training(self, budget: Budget, nominal: int) -> tuple[Mechanism, int]:
        share = check_probability("train_share", self.train_share)
        check_choice("level", self.level, LEVELS)
        return self.estimator.calibrated(share * budget.epsilon, budget.delta, accountant=self.accountant), nominal

    def _plan_search(self, budget: Budget, mechanism: Mechanism, nominal: int) -> Callable[..., QuantileResult]:
        rate = exponential_rate(budget, paid_event(mechanism), len(self._alphas), self.accountant)
        return partial(exponential_quantile, rate=rate, bins=self.bins, level=self.level, n_records=nominal)

    def _write_ledger(self, trained: Trained, quantiles: Sequence[Any]) -> Ledger:
        ledger = Ledger().add("training", trained.event, str(trained.public_facts.get("mechanism", "")))
        how = f"{len(quantiles)} x {_describe_draw(quantiles[0])}"
        return ledger.add("calibration", compose(*(q.event for q in quantiles)), how).declare(bins=quantiles[0].bins)


def _describe_draw(quantile: Any) -> str:
    return f"one draw from {quantile.bins} ends of a grid, rate {quantile.rate:.4g}"
