"""Private calibration of anybody's scores: one call from scores to threshold, ledger and certificate."""

import math
import warnings
from dataclasses import dataclass
from typing import Any

from dp_accounting.dp_event import DpEvent

from dpscp._checks import check_choice, check_count, check_probability
from dpscp.exceptions import GuaranteeWarning
from dpscp.guarantees import (
    CERTIFIED,
    Certificate,
    Stability,
    marginal_miss_bound,
    universal_alpha,
    universal_floor,
    value_buffer,
)
from dpscp.privacy import Budget, Ledger, as_event, count_noise, parallel
from dpscp.quantile import PrivateQuantile, default_steps, private_quantile, rank_sensitivity

__all__ = ["Calibration", "calibrate"]

GUARANTEES = ("universal", "stability", "split", "finite", "asymptotic")
# The paper's rank buffer m_n in all its experiments.
_PAPER_RANK_BUFFER = 10

EXCHANGEABLE = "new records are exchangeable with the ones used"
NOMINAL_N = "n_records is the true number of records"
INVARIANT = "training does not depend on the order of the records, and everything it learned from them is in its event"
HELD_OUT = "the scored records were not used in training"


@dataclass(frozen=True)
class Calibration:
    """A released threshold with its two promises."""

    threshold: float
    ledger: Ledger
    certificate: Certificate
    quantile: PrivateQuantile | None


def calibrate(
    scores: Any,
    *,
    training: DpEvent | Ledger | None = None,
    epsilon: float,
    delta: float,
    alpha: float = 0.1,
    score_range: tuple[float, float],
    guarantee: str = "universal",
    held_out: bool = False,
    stability: Stability | None = None,
    score_lipschitz: float | None = None,
    rank_buffer: int | None = None,
    failure_probability: float | None = None,
    steps: int | None = None,
    n_records: int | None = None,
    accountant: str = "pld",
    random_state: int | None = None,
) -> Calibration:
    """Find a private threshold for your own scores, so that the whole release is (epsilon, delta)-DP.

    ``scores`` are s(x_i, y_i; theta) of the records, by a model whose training spent ``training`` (an event or a
    ledger). With guarantee ``"universal"``, ``"stability"``, ``"finite"`` or ``"asymptotic"`` the scored records are
    the training records; calibration gets what training left of the budget. With ``held_out=True`` (guarantee ``"split"``)
    they are others, and each part may spend the whole budget. A score may depend on its record, the model and
    independent noise only.

    Returns a ``Calibration``: threshold (infinite where no finite one exists), ledger, certificate.

    >>> import numpy as np
    >>> from dpscp.privacy import dpsgd_event
    >>> scores = np.random.default_rng(0).uniform(size=20_000)
    >>> spent = dpsgd_event(40.0, 1.0, 50)
    >>> c = calibrate(scores, training=spent, epsilon=1, delta=1e-6, score_range=(0, 1), random_state=0)
    >>> c.ledger.epsilon(1e-6) <= 1, c.certificate.coverage
    (True, 0.9)

    Theory: Results A, B, C and E
    """
    budget = Budget(epsilon, delta)
    alpha = check_probability("alpha", alpha)
    guarantee = "split" if held_out and guarantee == "universal" else guarantee
    check_choice("guarantee", guarantee, GUARANTEES)
    if held_out != (guarantee == "split"):
        raise ValueError(
            "guarantee='split' is for scores of records that training did not see: set held_out=True as well"
        )
    spent = training if isinstance(training, Ledger) else Ledger()
    if training is not None and not isinstance(training, Ledger):
        spent = spent.add("training", as_event(training))
    if guarantee == "universal" and training is None:
        raise ValueError(
            "guarantee='universal' needs training=, the event or ledger of everything the model learned from"
        )

    nominal = check_count("n_records", n_records if n_records is not None else _length(scores))
    inner, shift = _inner_level(alpha, guarantee, spent, stability, score_lipschitz)
    if inner < 1e-6:
        return _nothing_certified(alpha, guarantee, spent, nominal)
    rank = {"split": "linear", "finite": "ceil", "asymptotic": "ceil"}.get(guarantee, "centred")
    correction = {"finite": "union", "asymptotic": "none"}.get(guarantee, "marginal")
    buffer = _PAPER_RANK_BUFFER if rank_buffer is None else rank_buffer
    sensitivity = float(rank_sensitivity(rank, inner))
    before = None if held_out else spent
    if steps is None:
        unit_noise = count_noise(epsilon, delta, 1, before, sensitivity, accountant)
        steps = default_steps(nominal, unit_noise=unit_noise)
    noise = count_noise(epsilon, delta, steps, before, sensitivity, accountant)
    budget.require(spent, accountant)
    with warnings.catch_warnings():
        # the end of the range is told once, by this function's own warning
        warnings.filterwarnings("ignore", message="no finite threshold", category=GuaranteeWarning)
        quantile = private_quantile(
            scores,
            alpha=inner,
            score_range=score_range,
            count_noise=noise,
            steps=steps,
            correction=correction,
            rank=rank,
            rank_buffer=buffer if guarantee == "finite" else 0,
            failure_probability=failure_probability,
            n_records=nominal,
            random_state=random_state,
        )
    ledger = _ledger(spent, quantile, held_out=held_out)
    budget.require(ledger, accountant)
    certificate = _certificate(alpha, guarantee, spent, quantile, shift)
    if certificate.is_vacuous or not quantile.is_finite:
        warnings.warn(str(certificate), GuaranteeWarning, stacklevel=2)
    threshold = quantile.threshold + shift if quantile.is_finite else math.inf
    return Calibration(threshold, ledger, certificate, quantile)


def _length(scores: Any) -> int:
    """The number of scores, for callers who declare it public by leaving n_records out."""
    if hasattr(scores, "size") and not callable(scores.size):
        return int(scores.size)
    if hasattr(scores, "__len__"):
        return len(scores)
    raise ValueError("n_records is needed for scores whose number is not known before they are read")


def _inner_level(
    alpha: float, guarantee: str, spent: Ledger, stability: Stability | None, score_lipschitz: float | None
) -> tuple[float, float]:
    """The level to calibrate at, and what to add to the threshold."""
    if guarantee == "universal":
        return universal_alpha(alpha, spent.tradeoff_function("add")), 0.0
    if guarantee == "stability":
        lipschitz = score_lipschitz
        if stability is not None and lipschitz is None:
            lipschitz = stability.score_lipschitz
        if stability is None or lipschitz is None:
            raise ValueError(
                "guarantee='stability' needs stability= (shift_bound, delta_n) of the training mechanism and "
                "score_lipschitz=; without them use 'universal' or a held-out part"
            )
        return alpha - stability.delta_n, value_buffer(lipschitz, stability.shift_bound)
    return alpha, 0.0


def _ledger(spent: Ledger, quantile: PrivateQuantile, *, held_out: bool) -> Ledger:
    note = f"{quantile.steps} noisy counts, noise {quantile.count_noise:.4g}, rank statistic {quantile.rank!r}"
    if held_out and spent.entries:
        both = parallel(spent.event, quantile.event)
        ledger = Ledger((), spent.public_facts, spent.seeded).add(
            "training | calibration", both, f"disjoint records, the worse of the two counts; {note}"
        )
    else:
        ledger = spent.add("calibration", quantile.event, note)
    ledger = ledger.declare(
        n_records=quantile.n_records, score_range=list(quantile.score_range), alpha=quantile.alpha, steps=quantile.steps
    )
    return ledger.mark_seeded() if quantile.seeded else ledger


def _certificate(alpha: float, guarantee: str, spent: Ledger, quantile: PrivateQuantile, shift: float) -> Certificate:
    n = quantile.n_records
    terms: dict[str, Any] = {
        "n_records": n,
        "inner_level": 1 - quantile.alpha,
        "count_noise": quantile.count_noise,
        "steps": quantile.steps,
        "rank_target": quantile.rank_target,
        "noise_offset": quantile.offset,
        "finite_threshold_expected": quantile.rank_target <= n,
    }
    if shift:
        terms["value_buffer"] = shift
    assumptions = (EXCHANGEABLE, NOMINAL_N, HELD_OUT if guarantee == "split" else INVARIANT)
    advice = ""
    if not terms["finite_threshold_expected"] or not quantile.is_finite:
        advice = "More records, a larger budget, a larger alpha or a wider score range would give smaller sets."
    if guarantee in CERTIFIED:
        return Certificate(guarantee, 1 - alpha, 1 - alpha, assumptions, terms, advice)
    miss = marginal_miss_bound(n, quantile.rank_target, quantile.count_noise, quantile.steps)
    terms["ideal_miss_bound"] = miss
    floor = universal_floor(miss, spent.tradeoff_function("add"))
    return Certificate(guarantee, 1 - alpha, floor, assumptions, terms, advice)


def _nothing_certified(alpha: float, guarantee: str, spent: Ledger, nominal: int) -> Calibration:
    """No inner level exists: nothing is asked of the scores, nothing more is spent, and the sets are full."""
    terms = {"n_records": nominal, "inner_level": 1.0, "finite_threshold_expected": False}
    advice = (
        "Training spends too much privacy for this guarantee: train with more noise, raise alpha, or hold out a part."
    )
    certificate = Certificate(guarantee, 1 - alpha, 1 - alpha, (EXCHANGEABLE, INVARIANT), terms, advice)
    warnings.warn(str(certificate), GuaranteeWarning, stacklevel=3)
    return Calibration(math.inf, spent.declare(n_records=nominal), certificate, None)
