"""The recipe: every choice of private training from public numbers, so that nothing is tuned on the user's records.

Tuning on the records costs privacy and voids the guarantees, so model and hyperparameters are fixed functions
of the nominal number of records, the width of a row, the number of classes and the budget. One number governs
most of them: the signal s = n * mu, records times the Gaussian-DP parameter of the training budget. Noise in
the released parameters is about clip_norm * (sum of step sizes) / s in every coordinate, whatever the number
of steps, so the recipe fixes that ratio.

How the constants were found (on synthetic data, Adult, Bank Marketing and scikit-learn's own sets), what they
give and where they are weak: docs/recipe.md.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dpscp._base.checks import check_choice, check_count, check_fraction, check_positive, check_probability
from dpscp.guarantees.base import Guarantee
from dpscp.guarantees.registry import guarantee_of
from dpscp.privacy import Accountant, gdp_epsilon, gdp_mu
from dpscp.training.base import Mechanism
from dpscp.training.mechanisms.dpsgd import DPSGD
from dpscp.training.preprocessing.preprocess import Preprocessed
from dpscp.training.preprocessing.private_target import PrivateTarget
from dpscp.training.preprocessing.random_features import RandomFeatures
from dpscp.training.preprocessing.step import Step
from dpscp.training.recalibration import Recalibrated
from dpscp.training.recipe_rows import EMBEDDING_SHARE, TABLE_SHARE, WEAK_SIGNAL, TableRows, pays_as_quantiles

__all__ = [
    "Recipe",
    "calibration_fraction",
    "pair_levels",
    "pays_as_pair",
    "pays_as_quantiles",
    "pays_as_recalibration",
    "recipe",
    "train_share",
]

TASKS = ("classification", "regression")
FEATURES = ("unit", "clipped", "bounded", "standardized")

# Rows wider than this are treated as embeddings (a linear head behind whitening), narrower ones as tables. A
# classifier on one-hot tables gains more from whitening than from hidden layers; a regression needs the
# lengths that unit rows lose.
WIDEST_TABLE = {"classification": 32, "regression": 256}
# From this many columns on a regression has smaller hidden layers: noise in the weights of its columns adds up.
_WIDE_REGRESSION = 20
# A d x d second moment and its eigenvectors are affordable up to here.
WIDEST_WHITENING = 2048
# Full batches up to this many records, Poisson batches of so many beyond: sampling costs no privacy worth naming while
# the noise multiplier is far above 1, and batches far longer than the noise is wide tell no more (docs/recipe.md).
LARGEST_BATCH = 20_000
# A weak regression: the signal for each weight above which its steps shorten, the signal for each product of two inputs
# at which random features have half of their largest weight, and the whole signal below which there are none.
_LEARNED_SIGNAL, _BENT_SIGNAL, _LEAST_BENT_SIGNAL = 4.0, 1.8, 60
# For each class: below the first a classifier is linear, below the second it has random features, because a hidden
# layer learns less than its noise hides: docs/recipe.md.
_LEAST_CLASS_SIGNAL, _CLEAR_CLASS_SIGNAL = 30, 60
# What a search costs against what training gains, in units of records times mu: docs/recipe.md.
SEARCH_COST = 20.0
LEAST_HELD_OUT = 0.125
# Below it the noise of a private temperature is as large as what it corrects.
LEAST_RECALIBRATION_SIGNAL = 150
# Records times mu of the whole budget: below it noise hides more of a pair of quantiles than of a forecast.
LEAST_PAIR_SIGNAL = 300
# From here on a pair is learned at the levels of the interval; the levels move inwards below.
CLEAR_PAIR_SIGNAL = 7_500


@dataclass(frozen=True)
class Recipe:
    """What the recipe chose, with a reason for every number; all of it follows from public numbers.

    `mechanism` has no noise yet: `calibrated` solves it from the training budget (`train_epsilon`, `delta`).
    `n_training` is the nominal number of records that training sees: pass it to `train` as n_records.

    Theory: Fact 1; Result E; Which one to use
    """

    mechanism: Mechanism
    train_epsilon: float
    delta: float
    train_share: float
    calibration_fraction: float | None
    n_training: int
    reasons: Mapping[str, tuple[object, str]] = field(default_factory=dict)

    def calibrated(self, *, accountant: str | Accountant = "pld") -> Mechanism:
        """The mechanism with its noise solved from the training budget."""
        return self.mechanism.calibrated(self.train_epsilon, self.delta, accountant=accountant)

    def public_facts(self) -> dict[str, object]:
        """Every chosen number by name, for the ledger."""
        return {name: value for name, (value, _) in self.reasons.items()}

    def __str__(self) -> str:
        return "\n".join(f"{name} = {value}: {reason}" for name, (value, reason) in self.reasons.items())


def train_share(guarantee: str | Guarantee, epsilon: float, delta: float, n_records: int | None = None) -> float:
    """The share of the squared Gaussian-DP budget (mu^2) for training on the full data.

    `universal` certifies a wider level the more training may learn about one record, so its share falls with
    the budget; the other guarantees pay no coverage for training. The search keeps what one threshold needs: with
    s = n_records * mu, a share of (20 / s)^(2/3), because its overshoot is about 1.5 / (s * sqrt(share)) and training
    gains a few percent for each doubling of its own. `split` gives each part the whole budget: 1.

    >>> round(train_share("universal", 2.0, 1e-5), 2), round(train_share("corrected", 1.0, 1e-5, 4_000), 2)
    (0.42, 0.9)

    Theory: Results B, E and F
    """
    mu = gdp_mu(check_positive("epsilon", epsilon), check_probability("delta", delta))
    chosen = guarantee_of(guarantee)
    share = chosen.training_share(mu)
    if n_records is None or chosen.held_out:
        return share
    signal = check_count("n_records", n_records) * mu
    return min(share, 1 - min(0.7, math.pow(SEARCH_COST / signal, 2 / 3)))


def calibration_fraction(n_records: int, epsilon: float, delta: float) -> float:
    """The part of the records held out under `split`: sqrt(20 / (n * mu)), from an eighth to one half.

    The search overshoots by 1.1 to 2 / (fraction * n * mu) in coverage (released size, minimax offset), which costs
    about three times as much in size; training loses a few percent for each doubling of the records that are taken
    from it. The sum of the two is least at a fraction that falls with the root of n * mu.

    >>> round(calibration_fraction(4_000, 0.5, 1e-5), 2), calibration_fraction(20_000, 1.0, 1e-5)
    (0.19, 0.125)

    Theory: Results E, F and G
    """
    signal = check_count("n_records", n_records) * gdp_mu(epsilon, delta)
    return min(0.5, max(LEAST_HELD_OUT, math.sqrt(SEARCH_COST / signal)))


def pays_as_pair(signal: float, n_features: int) -> bool:
    """Whether intervals from a privately learned pair of quantiles are expected to be narrower than those of one width.

    ``signal`` is records times mu of the whole budget. Measured for dense nets on tables: docs/recipe.md.
    """
    return signal >= LEAST_PAIR_SIGNAL and n_features <= WIDEST_TABLE["regression"]


def pays_as_recalibration(signal: float) -> bool:
    """Whether a private temperature is expected to be nearer to the truth than none.

    ``signal`` is records times mu of the training budget. Measured on tables: docs/recipe.md.
    """
    return signal >= LEAST_RECALIBRATION_SIGNAL


def pair_levels(alpha: float, signal: float) -> tuple[float, float]:
    """The two levels of a quantile pair for intervals that miss ``alpha``.

    Few records lie beyond an outer quantile, so noise moves it most; the search widens an inner pair just as well. So
    levels start at a quarter and reach alpha / 2 (or .05) as ``signal``, records times mu of the whole budget, grows.

    >>> pair_levels(0.1, 20_000), pair_levels(0.1, 300)
    ((0.05, 0.95), (0.25, 0.75))
    """
    outer = max(0.05, alpha / 2)
    lower = min(max(0.25, outer), outer * max(1.0, (CLEAR_PAIR_SIGNAL / signal) ** 0.6))
    return lower, 1 - lower


def recipe(  # noqa: PLR0913 (public: one argument a choice)
    task: str,
    *,
    n_records: int,
    n_features: int,
    classes: tuple[Any, ...] | None = None,
    epsilon: float,
    delta: float,
    guarantee: str | Guarantee = "split",
    features: str = "unit",
    feature_bound: float | None = None,
    feature_bounds: tuple[Any, Any] | None = None,
    indicators: tuple[int, ...] = (),
    y_bounds: tuple[float, float] | None = None,
    quantiles: tuple[float, ...] | None = None,
    train_epsilon: float | None = None,
    held_out_fraction: float | None = None,
) -> Recipe:
    """Model and hyperparameters of private training, from public numbers only.

    Parameters
    ----------
    task : "classification" or "regression".
    n_records, n_features, classes : the nominal number of records, the width of a row, the public labels in
        order (None: the labels found in y are declared public when training runs).
    epsilon, delta : the whole budget, training and calibration.
    guarantee : which guarantee the model is for; it decides the training share, and `stability` and
        `corrected` restrict training.
    features : how rows are bounded. "unit": every row is scaled to norm one; "clipped": rows are shortened to
        `feature_bound`; "bounded": public `feature_bounds` (low, high) for each feature; "standardized": the
        caller has already brought features to about mean 0 and spread 1 (and answers for the privacy of
        that).
    indicators : the columns that are declared to be 0 or 1, such as those of categories. They cost nothing.
    y_bounds : public bounds of the target: its mean and scale are then released privately inside them. None:
        the target already has about mean 0 and spread 1. Not used under `stability`, whose target must come on
        a public scale: put `ScaledTarget` in front.
    quantiles : levels of a pinball model instead of a model of the mean (regression).
    train_epsilon : the training budget at the same delta, where the caller has decided it; None: from
        `train_share`.
    held_out_fraction : the part held out under `split`; None: `calibration_fraction`.

    >>> plan = recipe("regression", n_records=16_512, n_features=8, epsilon=1.0, delta=1e-5,
    ...               guarantee="corrected", features="standardized")
    >>> plan.mechanism.hidden, plan.train_share
    ((32, 16), 0.9)
    >>> plan = recipe("classification", n_records=13_671, n_features=512, epsilon=1.0, delta=1e-5)
    >>> [type(step).__name__ for step in plan.mechanism.mechanism.steps]
    ['UnitNorm', 'PrivateCentering', 'UnitNorm', 'PrivateWhitening']

    Theory: Fact 1; Results A to E; Which one to use
    """
    check_choice("task", task, TASKS)
    chosen = guarantee_of(guarantee)
    check_choice("features", features, FEATURES)
    n, d = check_count("n_records", n_records), check_count("n_features", n_features)
    check_positive("epsilon", epsilon)
    check_probability("delta", delta)
    bounds = TableRows(d, features, feature_bound, feature_bounds, indicators)

    fraction = None
    share = train_share(chosen, epsilon, delta, n)
    if chosen.held_out:
        fraction = calibration_fraction(n, epsilon, delta) if held_out_fraction is None else held_out_fraction
        n = max(1, round((1 - check_fraction("held_out_fraction", fraction)) * n))
    mu = math.sqrt(share) * gdp_mu(epsilon, delta)
    if train_epsilon is not None:
        mu = gdp_mu(check_positive("train_epsilon", train_epsilon), delta)
        share = min(1.0, (mu / gdp_mu(epsilon, delta)) ** 2)
    problem = _Problem(task, n, mu, classes, quantiles)

    why: dict[str, tuple[object, str]] = {
        "train_share": (share, "share of mu^2 for training; the search for the threshold gets the rest"),
        "signal": (n * mu, "nominal records in training times mu of the training budget: what noise is compared with"),
    }
    if fraction is not None:
        why["calibration_fraction"] = (
            fraction,
            "held out: the noise of its search and the records that training misses cost least together",
        )
    mechanism = _training(problem, bounds, chosen, y_bounds, why)
    epsilon_of_training = float(epsilon) if chosen.held_out else gdp_epsilon(delta, mu)
    return Recipe(
        mechanism,
        epsilon_of_training if train_epsilon is None else float(train_epsilon),
        float(delta),
        share,
        fraction,
        n,
        reasons=why,
    )


def _training(
    problem: "_Problem",
    bounds: "TableRows",
    guarantee: Guarantee,
    y_bounds: tuple[float, float] | None,
    why: dict[str, tuple[object, str]],
) -> Mechanism:
    """The mechanism for this problem; the reasons are written to ``why``."""
    weak = problem.task == "classification" and problem.signal < WEAK_SIGNAL
    if guarantee.needs_stability:
        # a private scale of the target would depend on the records and void the shift bound
        return _stable(problem, bounds, why)
    fits_table = bounds.width <= WIDEST_TABLE[problem.task] and not weak
    mechanism = (_table if fits_table else _embedding)(problem, bounds, guarantee, why)
    if problem.task == "classification" and pays_as_recalibration(problem.signal) and not guarantee.needs_trajectory:
        mechanism = Recalibrated(mechanism)
        why["recalibration_share"] = (mechanism.share, "part of the training mu^2 that makes probabilities honest")
    if problem.task == "regression" and y_bounds is not None:
        mechanism = PrivateTarget(mechanism, y_bounds)
        why["target_share"] = (mechanism.share, "part of the training mu^2 that releases the target's mean and scale")
    return mechanism


@dataclass(frozen=True)
class _Problem:
    task: str
    n: int
    mu: float
    classes: tuple[Any, ...] | None
    quantiles: tuple[float, ...] | None

    @property
    def signal(self) -> float:
        return self.n * self.mu

    @property
    def sampling_rate(self) -> float:
        return min(1.0, LARGEST_BATCH / self.n)

    def engine(self, **constants: Any) -> DPSGD:
        """DP-SGD with the loss of the task."""
        if self.task == "classification":
            return DPSGD(classes=self.classes, loss="cross_entropy", **constants)
        if self.quantiles is not None:
            return DPSGD(loss="pinball", quantiles=self.quantiles, **constants)
        return DPSGD(loss="huber", huber_delta=1.0, **constants)


def _table(problem: _Problem, rows: TableRows, guarantee: Guarantee, why: dict[str, tuple[object, str]]) -> Mechanism:
    """A small dense net (a linear head where the signal is too weak) on standardized features."""
    s = problem.signal
    n_classes = len(problem.classes or ())
    if problem.task == "regression" and s < WEAK_SIGNAL:
        return _weak_regression(problem, rows, guarantee, why)
    if _LEAST_CLASS_SIGNAL * n_classes <= s < _CLEAR_CLASS_SIGNAL * n_classes:
        return _linear_model(problem, rows, guarantee, (1.8 * s, "1.8 * signal"), 0.25, why)
    if problem.task == "classification":
        weakest = _LEAST_CLASS_SIGNAL * n_classes
        hidden = _by_signal(s, ((weakest, ()), (10_000, (64,)), (math.inf, (128,))))
    elif rows.width >= _WIDE_REGRESSION:
        hidden = _by_signal(s, ((4_000, (16,)), (10_000, (32, 16)), (math.inf, (32, 16, 16))))
    elif problem.quantiles is not None:
        hidden = _by_signal(s, ((1_500, (16,)), (2_500, (32,)), (5_000, (32, 16)), (math.inf, (32, 16, 16))))
    else:
        hidden = _by_signal(s, ((1_500, (16,)), (5_000, (32, 16)), (math.inf, (32, 16, 16))))
    why["hidden"] = (hidden, "widths grow with the signal; none where noise would hide what a hidden layer learns")
    # linear decay halves the sum of the step sizes; the parameters end up with noise of about .2 a coordinate
    total = 0.45 * s, "0.45 * signal / steps, times 1 - momentum: the noise in the parameters is then fixed"
    # a row this long has an outlier in it; standardized features are already within +-5 each
    engine = _table_engine(problem, guarantee, hidden, total, 4 * math.sqrt(rows.width), why)
    return _behind(rows.standardizing_steps(s), engine, TABLE_SHARE, why)


def _weak_regression(
    problem: _Problem, rows: TableRows, guarantee: Guarantee, why: dict[str, tuple[object, str]]
) -> Mechanism:
    """A linear model whose steps and random features follow from the signal for each of its weights."""
    inputs = rows.width + 1
    signal = problem.signal / inputs
    # beside the signal steps are longest at twice the learned one, there 0.9: below it noise is more than what is
    # learned, above it the linear part is learned and steps add noise to the random features
    shorter = (2 * _LEARNED_SIGNAL / signal) * ((1 + signal / _LEARNED_SIGNAL) / 3) ** 1.5
    ratio = 0.9 / shorter
    clarity = (signal / inputs / _BENT_SIGNAL) ** 3 if problem.signal >= _LEAST_BENT_SIGNAL else 0.0
    # rounded, so that features that noise would hide are left out
    weight = round(0.5 * clarity / (1 + clarity), 2)
    return _linear_model(problem, rows, guarantee, (ratio * problem.signal, f"{ratio:.2g} * signal"), weight, why)


def _linear_model(
    problem: _Problem,
    rows: TableRows,
    guarantee: Guarantee,
    step_sum: tuple[float, str],
    weight: float,
    why: dict[str, tuple[object, str]],
) -> Mechanism:
    """A linear model on standardized features and, with a positive weight, random features.

    ``step_sum`` is the sum of the step sizes times the length of a row, with its formula: the noise in an output is
    that of a parameter times this length.
    """
    outlier = 4 * math.sqrt(rows.width)
    length = math.sqrt(rows.width * (1 + weight) + 1)
    total = step_sum[0] / length, f"{step_sum[1]} / length of a row / steps, times 1 - momentum"
    why["hidden"] = ((), "noise would hide what a hidden layer learns; random features with a weight follow curves")
    why["random_features_weight"] = (weight, "squared length of the random features, in parts of that of a row")
    features = (RandomFeatures(outlier, weight=weight),) if weight else ()
    engine = _table_engine(problem, guarantee, (), total, outlier * math.sqrt(1 + weight), why)
    return _behind((*rows.standardizing_steps(problem.signal), *features), engine, TABLE_SHARE, why)


def _table_engine(
    problem: _Problem,
    guarantee: Guarantee,
    hidden: tuple[int, ...],
    total: tuple[float, str],
    bound: float,
    why: dict[str, tuple[object, str]],
) -> DPSGD:
    """DP-SGD on rows of standardized features; ``total`` is the sum of the step sizes before decay, and its reason."""
    momentum, largest = 0.9, 8.0
    steps = max(500, min(1500, math.ceil(total[0] / largest)))
    rate = min(total[0] / steps, largest) * (1 - momentum)
    sampling = problem.sampling_rate
    why |= {
        "clip_norm": (1.0, "for targets and features of spread 1; .5 to 2 measured alike"),
        "learning_rate": (rate, total[1]),
        "steps": (steps, "more change little at the same sum of step sizes"),
        "sampling_rate": (
            sampling,
            "full batches while they are cheap: the least noise for a budget, and exact accounting",
        ),
        "momentum": (momentum, "smooth steps at a learning rate that would diverge without"),
        "schedule": ("linear", "the last steps shed the noise of the first"),
        "averaging": (0.25, "average of the last quarter of the iterates; costs nothing"),
    }
    return problem.engine(
        hidden=hidden,
        steps=steps,
        learning_rate=rate,
        sampling_rate=sampling,
        momentum=momentum,
        schedule="linear",
        averaging=0.25,
        clip_norm=1.0,
        feature_bound=bound,
        keep_trajectory=guarantee.needs_trajectory and not hidden,
    )


def _embedding(
    problem: _Problem, rows: TableRows, guarantee: Guarantee, why: dict[str, tuple[object, str]]
) -> Mechanism:
    """A linear head on privately centered and whitened rows of norm one, by full-batch private gradient descent."""
    s = problem.signal
    whiten = rows.width <= WIDEST_WHITENING
    clip = 0.5
    noise = 0.9
    if guarantee.needs_trajectory:
        # a record's own pull on its logits grows with clip_norm * sum(step sizes) / n; longer training does not
        # make the corrected sets smaller
        noise = min(noise, 0.15 / problem.mu)
    total = noise * s / clip
    # the step that momentum adds up to; the squared-like loss is steeper along the intercept
    momentum, largest = 0.9, 40.0 if problem.task == "classification" else 20.0
    steps = min(400, max(75, math.ceil(total / largest)))
    rate = min(total / steps, largest) * (1 - momentum)
    sampling = 1.0 if guarantee.needs_trajectory else problem.sampling_rate
    why |= {
        "hidden": ((), "wide rows: a linear head, whose noise does not grow with the width"),
        "clip_norm": (clip, "a quarter of the largest gradient norm: lets confident errors pull no harder than others"),
        "learning_rate": (
            rate,
            f"{noise:.2g} * signal / clip_norm / steps, times 1 - momentum: that much noise in an output",
        ),
        "steps": (steps, "as few as the largest stable learning rate allows; at the same sum more change little"),
        "sampling_rate": (sampling, "full batches while they are cheap, and where influence must be known"),
        "momentum": (momentum, "the same sum in few steps: without it a learning rate this large is unstable"),
        "whitening": (whiten, "evens out directions; rows wider than 2048 go without"),
    }
    engine = problem.engine(
        steps=steps,
        learning_rate=rate,
        sampling_rate=sampling,
        momentum=momentum,
        clip_norm=clip,
        feature_bound=1.0,
        keep_trajectory=guarantee.needs_trajectory,
    )
    return _behind(rows.direction_steps(s, whiten=whiten), engine, EMBEDDING_SHARE, why)


def _stable(problem: _Problem, rows: TableRows, why: dict[str, tuple[object, str]]) -> Mechanism:
    """A linear model with a proven shift bound: full batches, plain SGD, no data-dependent preprocessing."""
    bound = rows.norm if rows.kind != "standardized" else 2 * math.sqrt(rows.width)
    reach2 = bound**2 + 1
    if problem.task == "classification":
        # buffer 2 h = reach^2 * sum(step sizes) / n for the score 1 - p_y; slightly above the largest gradient
        # norm
        clip, largest, total = math.sqrt(2 * reach2) * (1 + 1e-9), 4 / reach2, 0.06 * problem.n / reach2
    else:
        clip, largest, total = math.sqrt(reach2), 1.9 / reach2, 0.05 * problem.n / reach2
    total = min(total, 0.9 * problem.signal / clip)
    steps = min(1000, max(1, math.ceil(total / (0.99 * largest))))
    rate = min(total / steps, 0.99 * largest)
    why |= {
        "hidden": ((), "only convex training has a useful shift bound"),
        "clip_norm": (clip, "no gradient is longer, so clipping never bends the loss"),
        "learning_rate": (rate, "below 2 / smoothness, so that steps bring two runs no farther apart"),
        "steps": (
            steps,
            "their sum of step sizes sets the buffer: about .06 in units of the score, or what noise allows",
        ),
        "sampling_rate": (1.0, "full batches make the bound deterministic"),
    }
    engine = problem.engine(steps=steps, learning_rate=rate, clip_norm=clip, feature_bound=bound)
    return _behind(rows.public_steps(), engine, 0.1, why)


def _by_signal(signal: float, ladder: tuple[tuple[float, tuple[int, ...]], ...]) -> tuple[int, ...]:
    return next(widths for limit, widths in ladder if signal < limit)


def _behind(steps: tuple[Step, ...], engine: DPSGD, share: float, why: dict[str, tuple[object, str]]) -> Mechanism:
    if not steps:
        return engine
    if any(not step.is_public for step in steps):
        why["preprocessing_share"] = (share, "part of the training mu^2 for the private preprocessing steps, equally")
    why["preprocessing"] = (
        tuple(type(step).__name__ for step in steps),
        "bounds every row, then evens out the features",
    )
    return Preprocessed(steps, engine, share)
