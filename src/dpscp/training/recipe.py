"""Choose everything about private training from public numbers.

So nothing is tuned on the user's records. Tuning on the records costs privacy and voids the guarantees, so model and
hyperparameters are fixed functions of the nominal number of records, the width of a row, the number of classes and the
budget. One number governs most of them: the signal s = n * mu, records times the Gaussian-DP parameter of the training
budget. Noise in the released parameters is about clip_norm * (sum of step sizes) / s in every coordinate, whatever the
number of steps, so the recipe fixes that ratio. How the constants were found, what they give and where they are weak:
docs/recipe.md.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from dpscp._base.checks import check_choice, check_count, check_fraction, check_positive, check_probability
from dpscp.data.feature_bounds import RowNorm
from dpscp.guarantees.registry import Guarantee, guarantee_of
from dpscp.privacy import Accountant, gdp_epsilon, gdp_mu
from dpscp.training.base import Mechanism
from dpscp.training.mechanisms.by_width import Layers, LayersByWidth
from dpscp.training.mechanisms.dpsgd import DPSGD
from dpscp.training.preprocessing.encoding import PrivateTargetEncoding
from dpscp.training.preprocessing.preprocessed import Preprocessed
from dpscp.training.preprocessing.projections import PrivateWhitening, RandomFeatures
from dpscp.training.preprocessing.quantiles import QuantileTransform
from dpscp.training.preprocessing.relevance import PrivateRelevance
from dpscp.training.preprocessing.rescaled import PrivateTarget, Recalibrated
from dpscp.training.preprocessing.steps import (
    NormClip,
    PrivateCentering,
    PrivateStandardize,
    PublicBounds,
    Step,
    UnitNorm,
)

TASKS = ("classification", "regression")

# Rows wider than this are treated as embeddings (a linear head behind whitening), narrower ones as tables. A
# classifier on one-hot tables gains more from whitening than from hidden layers; a regression needs the
# lengths that unit rows lose.
WIDEST_TABLE = {"classification": 32, "regression": 256}
# Rows without declared bounds that are wider than this are taken as embeddings, and scaled to norm one.
WIDEST_UNBOUNDED = {"classification": 127, "regression": 256}
# Below it hidden layers do not pay. A classifier does better with centering and whitening than with private feature
# scales, a regression with random features and a linear model: docs/recipe.md.
WEAK_SIGNAL = 300
# The value of an indicator in a weak regression, where it has one of its own: a longer number is learned sooner.
_WEAK_INDICATOR = 2.0
# The part of the training mu^2 for the scales, and the quantiles, of a table's features, and for all private steps
# before a linear head.
TABLE_SHARE, EMBEDDING_SHARE = 0.1, 0.2
# From so many categories on a column is encoded, for this part of the training mu^2.
_MANY_CATEGORIES = 50
# The sum of the step sizes over the signal for encoded tables: their rows are longer, so noise in an output is more.
_ENCODED_RATIO = 0.225
ENCODING_SHARE = 0.15
# A linear head on a table of at most so many counted columns also gets indicators of so many ranges of each quantile:
# with them it follows bends. More columns would add more inputs than bends pay for.
_MOST_IN_PARTS, _QUANTILE_PARTS = 12, 8
# Above this noise of one count, as a share of the records, a quantile tells less than its noise hides.
LARGEST_QUANTILE_NOISE = 0.08
# From this many columns on a regression has smaller hidden layers: noise in the weights of its columns adds up.
_WIDE_REGRESSION = 20
# Two layers of a quantile pair bend less under noise with it than with ReLU: docs/recipe.md.
_PAIR_ACTIVATION = "tanh"
# A quantile pair of medium signal has a second hidden layer where rows have at most so many inputs: it adds noise too.
_FEW_INPUTS = 12
# From this many counted columns on, a table finds out which of them matter, for so much of the training mu^2.
_MANY_COLUMNS, _RELEVANCE_SHARE = 10, 0.1
# A d x d second moment and its eigenvectors are affordable up to here.
WIDEST_WHITENING = 2048
# Full batches up to this many records, Poisson batches of so many beyond: sampling costs no privacy worth naming while
# the noise multiplier is far above 1, and batches far longer than the noise is wide tell no more (docs/recipe.md).
LARGEST_BATCH = 20_000
# A weak regression: the signal for each weight above which its steps shorten, the signal for each product of two inputs
# at which random features have half of their largest weight, and the whole signal below which there are none.
_LEARNED_SIGNAL, _BENT_SIGNAL, _LEAST_BENT_SIGNAL = 4.0, 1.8, 60
# For each class: below the first a classifier is linear, below the second it has random features, because a hidden
# layer learns less than its noise hides. From the third on it finds out which columns matter: docs/recipe.md.
_LEAST_CLASS_SIGNAL, _CLEAR_CLASS_SIGNAL, _RELEVANT_SIGNAL = 30, 60, 200
# What a search costs against what training gains, in units of records times mu: docs/recipe.md.
SEARCH_COST, LEAST_HELD_OUT = 20.0, 0.125
# Below it the noise of a private temperature is as large as what it corrects.
LEAST_RECALIBRATION_SIGNAL = 150
# Records times mu of the whole budget: below it noise hides more of a pair of quantiles than of a forecast.
LEAST_PAIR_SIGNAL = 300
# From here on a pair is learned at the levels of the interval; the levels move inwards below.
CLEAR_PAIR_SIGNAL = 7_500


@dataclass(frozen=True)
class Recipe:
    """The choices of the recipe, each with a reason, from public numbers only.

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
        """Return the mechanism with its noise solved from the training budget."""
        return self.mechanism.calibrated(self.train_epsilon, self.delta, accountant=accountant)

    def public_facts(self) -> dict[str, object]:
        """Return every chosen number by name, for the ledger."""
        return {name: value for name, (value, _) in self.reasons.items()}

    def __str__(self) -> str:
        return "\n".join(f"{name} = {value}: {reason}" for name, (value, reason) in self.reasons.items())


def train_share(guarantee: str | Guarantee, epsilon: float, delta: float, n_records: int | None = None) -> float:
    """Return the share of mu^2 (Gaussian DP) for training on the full data.

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
    """Return the held-out fraction under `split`: sqrt(20 / (n * mu)).

    It is between one eighth and one half. The search overshoots by 1.1 to 2 / (fraction * n * mu) in coverage (released
    size, minimax offset), which costs about three times as much in size; training loses a few percent for each doubling
    of the records that are taken from it. The sum of the two is least at a fraction that falls with the root of n * mu.

    >>> round(calibration_fraction(4_000, 0.5, 1e-5), 2), calibration_fraction(20_000, 1.0, 1e-5)
    (0.19, 0.125)

    Theory: Results E, F and G
    """
    signal = check_count("n_records", n_records) * gdp_mu(epsilon, delta)
    return min(0.5, max(LEAST_HELD_OUT, math.sqrt(SEARCH_COST / signal)))


def pays_as_pair(signal: float, n_features: int) -> bool:
    """Return whether two private quantiles are likely to beat intervals of one width.

    ``signal`` is records times mu of the whole budget. Measured for dense nets on tables: docs/recipe.md.
    """
    return signal >= LEAST_PAIR_SIGNAL and n_features <= WIDEST_TABLE["regression"]


def pays_as_quantiles(signal: float, n_features: int, share: float = TABLE_SHARE) -> bool:
    """Return whether feature quantiles are likely to be worth the noise in them.

    ``signal`` is records times mu of the training budget, ``share`` the part of its mu^2 for the counts.

    >>> pays_as_quantiles(250, 8), pays_as_quantiles(100, 8), pays_as_quantiles(1_000, 500)
    (True, False, False)
    """
    counts = n_features * len(QuantileTransform.branching)
    return math.sqrt(counts / share) / signal <= LARGEST_QUANTILE_NOISE


def encoded_columns(task: str, sizes: Mapping[str, int], width: int, signal: float) -> list[str]:
    """Return the columns that likely do better as target shares than as indicators.

    ``sizes`` are the numbers of their categories, ``width`` is the width of a row of indicators, ``signal`` records
    times mu of the whole budget.

    >>> encoded_columns("regression", {"country": 98, "meal": 4, "agent": 300}, 420, 3_000)
    ['country', 'agent']
    """
    if signal < WEAK_SIGNAL or width <= WIDEST_TABLE[task]:
        return []
    return [name for name, size in sizes.items() if size >= _MANY_CATEGORIES]


def pair_levels(alpha: float, signal: float) -> tuple[float, float]:
    """Return the two levels of a quantile pair for intervals that miss ``alpha``.

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
    feature_bounds: tuple[Any, Any] | RowNorm | str | None = None,
    indicators: tuple[int, ...] = (),
    categories: tuple[tuple[int, int], ...] = (),
    y_bounds: tuple[float, float] | None = None,
    quantiles: tuple[float, ...] | None = None,
    train_epsilon: float | None = None,
    held_out_fraction: float | None = None,
) -> Recipe:
    """Choose model and hyperparameters of private training from public numbers only.

    Parameters
    ----------
    task : "classification" or "regression"
    n_records, n_features : the nominal number of records, and the width of a row
    classes : the public labels in order; None: the labels found in y are declared public when training runs
    epsilon, delta : the whole budget, training and calibration
    guarantee : it decides the training share, and `stability` and `corrected` restrict training
    feature_bounds : how rows are bounded. None: they are scaled to norm one; `RowNorm`: longer ones are shortened;
        (low, high): public bounds of each feature; "standardized": features have about mean 0 and spread 1, and the
        caller answers for the privacy of that
    indicators : the columns that are declared to be 0 or 1, such as those of categories; they cost nothing
    categories : (column, number of categories) of the columns of category codes, for `PrivateTargetEncoding`
    y_bounds : public bounds of the target, inside which its mean and scale are released privately; None: the target
        has about mean 0 and spread 1. Not used under `stability`: put `ScaledTarget` in front
    quantiles : levels of a pinball model instead of a model of the mean (regression)
    train_epsilon : the training budget at the same delta; None: from `train_share`
    held_out_fraction : the part held out under `split`; None: `calibration_fraction`

    >>> plan = recipe("regression", n_records=16_512, n_features=8, epsilon=1.0, delta=1e-5,
    ...               guarantee="corrected", feature_bounds="standardized")
    >>> plan.mechanism.hidden, plan.train_share
    ((32, 16), 0.9)
    >>> plan = recipe("classification", n_records=13_671, n_features=512, epsilon=1.0, delta=1e-5)
    >>> [type(step).__name__ for step in plan.mechanism.mechanism.steps]
    ['UnitNorm', 'PrivateCentering', 'UnitNorm', 'PrivateWhitening']

    Theory: Fact 1; Results A to E; Which one to use
    """
    check_choice("task", task, TASKS)
    chosen = guarantee_of(guarantee)
    n, d = check_count("n_records", n_records), check_count("n_features", n_features)
    if not (isinstance(feature_bounds, (tuple, RowNorm)) or feature_bounds in (None, "standardized")):
        raise ValueError("feature_bounds must be None, (low, high), dp.RowNorm(bound) or 'standardized'")
    share, whole = train_share(chosen, epsilon, delta, n), gdp_mu(epsilon, delta)
    why: dict[str, tuple[object, str]] = {}
    fraction = None
    if chosen.held_out:
        fraction = calibration_fraction(n, epsilon, delta) if held_out_fraction is None else held_out_fraction
        n = max(1, round((1 - check_fraction("held_out_fraction", fraction)) * n))
        why["calibration_fraction"] = (fraction, "balances search noise and lost training records")
    mu = math.sqrt(share) * whole
    if train_epsilon is not None:
        mu = gdp_mu(check_positive("train_epsilon", train_epsilon), delta)
        share = min(1.0, (mu / whole) ** 2)
    why |= {
        "train_share": (share, "share of mu^2 for training; the search for the threshold gets the rest"),
        "signal": (n * mu, "nominal records in training times mu of the training budget, compared with noise"),
    }
    numeric = numeric_columns(d, indicators)
    problem = _Problem(task, n, mu, classes, quantiles, chosen, d, feature_bounds, numeric, why)
    if categories:
        problem = problem.encoded(PrivateTargetEncoding(categories, d, classes))
    if train_epsilon is None:
        train_epsilon = epsilon if chosen.held_out else gdp_epsilon(delta, mu)
    return Recipe(problem.mechanism(y_bounds), float(train_epsilon), float(delta), share, fraction, n, why)


def numeric_columns(n_features: int, indicators: tuple[int, ...]) -> tuple[int, ...]:
    """Return the columns that are not declared to be indicators."""
    return tuple(column for column in range(n_features) if column not in set(indicators))


@dataclass(frozen=True)
class _Problem:
    """The public numbers that decide, and ``why``, where each choice is noted."""

    task: str
    n: int
    mu: float
    classes: tuple[Any, ...] | None
    quantiles: tuple[float, ...] | None
    guarantee: Guarantee
    width: int
    bounds: tuple[Any, Any] | RowNorm | str | None
    numeric_columns: tuple[int, ...]
    why: dict[str, tuple[object, str]]
    encoding: PrivateTargetEncoding | None = None
    standardized: tuple[int, ...] = ()

    def encoded(self, encoding: PrivateTargetEncoding) -> "_Problem":
        """Return the problem of the rows after an encoding, whose columns come last."""
        if self.guarantee.needs_stability or self.guarantee.needs_trajectory or not isinstance(self.bounds, tuple):
            raise ValueError(
                f"columns of category codes need public or found bounds of the other columns, and guarantee='split' or "
                f"'universal', not {self.guarantee.name!r}; declare their categories as indicators"
            )
        self.why["encoding_share"] = (ENCODING_SHARE, "part of the training mu^2 for the counts of the categories")
        columns = [column for column, _ in encoding.categories]
        others, width = self.width - len(columns), encoding.width_after(self.width)
        ends = [np.delete(np.broadcast_to(end, self.width), columns) for end in self.bounds]
        low, high = (np.r_[end, np.full(width - others, to)] for end, to in zip(ends, (-5.0, 5.0), strict=True))
        numeric = np.isin(np.delete(np.arange(self.width), columns), self.numeric_columns)
        return replace(
            self,
            mu=math.sqrt(1 - ENCODING_SHARE) * self.mu,
            width=width,
            bounds=(low, high),
            numeric_columns=tuple(np.flatnonzero(numeric).tolist()),
            encoding=encoding,
            standardized=tuple(range(others, width)),
        )

    @property
    def signal(self) -> float:
        return self.n * self.mu

    @property
    def norm(self) -> float:
        """Return the bound on a row's norm after `public_steps`."""
        if isinstance(self.bounds, RowNorm):
            return self.bounds.bound
        if self.bounds is None:
            return 1.0
        return math.sqrt(self.width) * (2 if self.bounds == "standardized" else 1)

    def mechanism(self, y_bounds: tuple[float, float] | None) -> Mechanism:
        """Return the mechanism without its noise."""
        if self.guarantee.needs_stability:
            # a private scale of the target would depend on the records and void the shift bound
            return self.stable()
        weak = self.task == "classification" and self.signal < WEAK_SIGNAL
        found = self.embedding() if weak or self.width > WIDEST_TABLE[self.task] else self.table()
        if self.encoding is not None:
            found = Preprocessed((self.encoding,), found, ENCODING_SHARE)
        is_clear = self.signal >= LEAST_RECALIBRATION_SIGNAL
        if self.task == "classification" and is_clear and not self.guarantee.needs_trajectory:
            found = Recalibrated(found)
            self.why["recalibration_share"] = (found.share, "part of the training mu^2 for the recalibration")
        if self.task == "regression" and y_bounds is not None:
            found = PrivateTarget(found, y_bounds)
            self.why["target_share"] = (found.share, "part of the training mu^2 for the target's mean and scale")
        return found

    def engine(self, **constants: Any) -> DPSGD:
        """Return DP-SGD with the loss of the task."""
        if self.task == "classification":
            return DPSGD(classes=self.classes, loss="cross_entropy", **constants)
        if self.quantiles is not None:
            return DPSGD(loss="pinball", quantiles=self.quantiles, **constants)
        return DPSGD(loss="huber", **constants)

    def behind(self, steps: tuple[Step, ...], engine: Mechanism, share: float) -> Mechanism:
        """Return the engine behind the steps."""
        if not steps:
            return engine
        if not all(step.is_public for step in steps):
            self.why["preprocessing_share"] = (share, "part of the training mu^2 for the private steps, equally")
        names = tuple(type(step).__name__ for step in steps)
        self.why["preprocessing"] = (names, "bounds every row, then gives all features a similar scale")
        return Preprocessed(steps, engine, share)

    def table(self) -> Mechanism:
        """Return a small net, or a linear head for a weak signal, for tables."""
        s, n_classes = self.signal, len(self.classes or ())
        weakest = _LEAST_CLASS_SIGNAL * n_classes
        if self.task == "regression" and s < WEAK_SIGNAL:
            return self.weak_regression()
        if weakest <= s < _CLEAR_CLASS_SIGNAL * n_classes:
            return self.linear_model(1.8, 0.25)
        # linear decay halves the sum of the step sizes; the parameters end up with noise of about .2 a coordinate
        ratio = 0.45 if self.encoding is None else _ENCODED_RATIO
        reason = f"{ratio:g} * signal / steps, times 1 - momentum: the noise in the parameters is then fixed"
        # a row this long has an outlier in it; standardized features are already within +-5 each
        engine = partial(self.table_engine, total=ratio * s, reason=reason, bound=4 * math.sqrt(self.width))
        steps, share, fewest, most = self.standardizing_steps(), TABLE_SHARE, self.width, self.width
        if steps and isinstance(quantiles := steps[0], QuantileTransform):
            n_numbers = len(self.numeric_columns)
            most += n_numbers
            if n_numbers >= _MANY_COLUMNS and (self.task == "regression" or s >= _RELEVANT_SIGNAL * n_classes > 0):
                share, fewest = TABLE_SHARE + _RELEVANCE_SHARE, 1
                relevance = PrivateRelevance(quantiles, self.classes, share=_RELEVANCE_SHARE / share)
                self.why["relevance"] = (relevance.least, "standard deviations of noise that a kept statistic exceeds")
                steps = (relevance,)
        if self.task == "regression":
            return self.behind(steps, self.by_inputs(engine, fewest, most), share)
        hidden = () if s < weakest else (64,) if s < 10_000 else (128,)
        self.why["hidden"] = (hidden, "widths grow with the signal; no layer whose result noise would hide")
        return self.behind(steps, engine((hidden, "relu")), share)

    def by_inputs(self, engine: Callable[[Layers], DPSGD], fewest: int, most: int) -> Mechanism:
        """Return a regression engine whose layers follow from the released width."""
        possible = [(widest, layers) for widest, layers in self.regression_layers() if widest >= fewest]
        last = next(place for place, (widest, _) in enumerate(possible) if widest >= most)
        possible, layers = possible[: last + 1], possible[last][1]
        ladder = tuple((int(widest), own) for (widest, own), (_, after) in pairwise(possible) if own != after)
        if not ladder:
            self.why["hidden"] = (layers[0], "widths grow with the signal; no layer whose result noise would hide")
            self.why["activation"] = (layers[1], "tanh for layers of 32 and 16 in a quantile pair")
            return engine(layers)
        parts = [f"{hidden} {activation} up to {widest} inputs" for widest, (hidden, activation) in ladder]
        reason = "the released quantiles decide how many inputs there are; more of them add more noise"
        self.why["hidden_by_inputs"] = (f"{', '.join(parts)}, then {layers[0]} {layers[1]}", reason)
        return LayersByWidth(engine(layers), ladder)

    def regression_layers(self) -> tuple[tuple[float, Layers], ...]:
        """Return hidden layers for rows of at most so many inputs, narrow rows first."""
        s, is_pair = self.signal, self.quantiles is not None
        one, three = ((16,), "relu"), ((32, 16, 16), "relu")
        two: Layers = ((32, 16), _PAIR_ACTIVATION if is_pair else "relu")
        few = narrow = wide = one if s < 1_500 else two if s < (10_000 if is_pair else 5_000) else three
        if is_pair and 1_500 <= s < 2_500:
            few, narrow, wide = ((20, 16), "relu"), ((32,), "relu"), ((32,), "relu")
        if self.width >= _WIDE_REGRESSION:
            wide = one if s < 4_000 else two if s < 10_000 else three
        return (_FEW_INPUTS, few), (_WIDE_REGRESSION - 1, narrow), (math.inf, wide)

    def weak_regression(self) -> Mechanism:
        """Return a linear model with steps and features for the signal per weight."""
        inputs = self.width + 1
        signal = self.signal / inputs
        # beside the signal steps are longest at twice the learned one, there 0.9: below it noise is more than what is
        # learned, above it the linear part is learned and steps add noise to the random features
        shorter = (2 * _LEARNED_SIGNAL / signal) * ((1 + signal / _LEARNED_SIGNAL) / 3) ** 1.5
        clarity = (signal / inputs / _BENT_SIGNAL) ** 3 if self.signal >= _LEAST_BENT_SIGNAL else 0.0
        # rounded, so that features that noise would hide are left out
        return self.linear_model(0.9 / shorter, round(0.5 * clarity / (1 + clarity), 2))

    def linear_model(self, ratio: float, weight: float) -> Mechanism:
        """Return a linear model on standardized and, if weighted, random features.

        ``ratio`` times the signal is the sum of the step sizes times the length of a row: the noise in an output is
        that of a parameter times this length.
        """
        outlier = 4 * math.sqrt(self.width)
        total = ratio * self.signal / math.sqrt(self.width * (1 + weight) + 1)
        reason = f"{ratio:.2g} * signal / length of a row / steps, times 1 - momentum"
        self.why.update(
            hidden=(
                (),
                "noise would hide what a hidden layer learns; random features can fit curves",
            ),
            random_features_weight=(weight, "squared length of the random features, divided by that of a row"),
        )
        features = (RandomFeatures(outlier, weight=weight),) if weight else ()
        engine = self.table_engine(((), "relu"), total, reason, outlier * math.sqrt(1 + weight))
        return self.behind((*self.standardizing_steps(), *features), engine, TABLE_SHARE)

    def table_engine(self, layers: Layers, total: float, reason: str, bound: float) -> DPSGD:
        """Return DP-SGD on a table; ``total`` adds up its step sizes before decay."""
        momentum, largest = 0.9, 8.0
        steps = max(500, min(1500, math.ceil(total / largest)))
        noted = {
            "clip_norm": (1.0, "for targets and features of spread 1; values from .5 to 2 gave equal results"),
            "learning_rate": (min(total / steps, largest) * (1 - momentum), reason),
            "steps": (steps, "with the same sum of step sizes, more steps change little"),
            "sampling_rate": (min(1.0, LARGEST_BATCH / self.n), "full batches while they are cheap: the least noise"),
            "momentum": (momentum, "keeps a learning rate stable that would diverge without momentum"),
            "schedule": ("linear", "the last steps reduce the noise of the first ones"),
            "averaging": (0.25, "average of the last quarter of the iterates; costs no privacy"),
        }
        self.why.update(noted)
        return self.engine(
            hidden=layers[0],
            activation=layers[1],
            feature_bound=bound,
            keep_trajectory=self.guarantee.needs_trajectory and not layers[0],
            **{name: value for name, (value, _) in noted.items()},
        )

    def standardizing_steps(self) -> tuple[Step, ...]:
        """Return steps that give numbers about mean 0 and spread 1.

        They add quantiles where these pay. Indicators stay 0 or 1 where the other columns get quantiles: standardized,
        an indicator of a rare category would be the longest number of its rows.
        """
        if self.bounds == "standardized":
            return ()
        weak = self.signal < WEAK_SIGNAL
        if not isinstance(self.bounds, tuple):
            # inside a ball every feature lies within the radius; a typical one within radius / sqrt(width) times a few
            reach = min(self.norm, 5 * self.norm / math.sqrt(self.width))
            return (*self.public_steps(), PrivateStandardize(-reach, reach))
        if self.numeric_columns and pays_as_quantiles(self.signal, len(self.numeric_columns)):
            columns, others = self.numeric_columns, _WEAK_INDICATOR if weak else 1.0
            return (
                QuantileTransform(
                    *self.bounds, self.width, columns=columns, others=others, standardized=self.standardized
                ),
            )
        if not self.numeric_columns and self.standardized:
            return ()
        if not self.numeric_columns and not weak:
            return (PublicBounds(-1.0, 1.0),)  # leaves 0 and 1 as they are
        return (PrivateStandardize(*self.bounds),)

    def public_steps(self) -> tuple[Step, ...]:
        """Return steps that bound a row with public constants only."""
        if isinstance(self.bounds, tuple):
            return (PublicBounds(*self.bounds),)
        return (UnitNorm(),) if self.bounds is None else (NormClip(self.norm),)

    def embedding(self) -> Mechanism:
        """Return a linear head on centered and whitened rows of norm one."""
        whiten, clip, noise = self.width <= WIDEST_WHITENING, 0.5, 0.9
        if self.guarantee.needs_trajectory:
            # a record's own pull on its logits grows with clip_norm * sum(step sizes) / n; longer training does not
            # make the corrected sets smaller
            noise = min(noise, 0.15 / self.mu)
        total = noise * self.signal / clip
        # the step that momentum adds up to; the squared-like loss is steeper along the intercept
        momentum, largest = 0.9, 40.0 if self.task == "classification" else 20.0
        steps = min(400, max(75, math.ceil(total / largest)))
        noted = {
            "clip_norm": (clip, "a quarter of the largest gradient norm: limits the effect of confident errors"),
            "learning_rate": (
                min(total / steps, largest) * (1 - momentum),
                f"{noise:.2g} * signal / clip_norm / steps, times 1 - momentum: that much noise in an output",
            ),
            "steps": (steps, "as few as the largest stable learning rate allows; more steps change little"),
            "sampling_rate": (
                1.0 if self.guarantee.needs_trajectory else min(1.0, LARGEST_BATCH / self.n),
                "full batches while they are cheap, and where influence must be known",
            ),
            "momentum": (momentum, "allows few large steps: without momentum, a learning rate this large is unstable"),
        }
        self.why.update(noted)
        self.why.update(
            hidden=((), "wide rows: a linear head, whose noise does not grow with the width"),
            whitening=(whiten, "gives all directions one scale; not used for rows wider than 2048"),
        )
        constants: dict[str, Any] = {name: value for name, (value, _) in noted.items()}
        engine = self.engine(feature_bound=1.0, keep_trajectory=self.guarantee.needs_trajectory, **constants)
        return self.behind(self.direction_steps(whiten), engine, EMBEDDING_SHARE)

    def direction_steps(self, whiten: bool) -> tuple[Step, ...]:
        """Return steps that give rows norm one and no common direction.

        The length of a wide row says little. Numeric columns beside indicators are scaled and get their quantiles
        first, where these pay.
        """
        private = [] if self.bounds == "standardized" else [PrivateCentering(), UnitNorm()]
        last: list[Step] = [UnitNorm(), *private, *([PrivateWhitening()] if whiten else [])]
        if not isinstance(self.bounds, tuple):
            return tuple(last)
        share = EMBEDDING_SHARE / (1 + sum(not step.is_public for step in last))
        columns = self.numeric_columns
        is_clear = self.task == "classification" and self.signal >= WEAK_SIGNAL
        parts = _QUANTILE_PARTS if is_clear and len(columns) <= _MOST_IN_PARTS else 0
        if columns and pays_as_quantiles(self.signal, len(columns), share):
            return (
                QuantileTransform(
                    *self.bounds, self.width, columns=columns, standardized=self.standardized, parts=parts
                ),
                *last,
            )
        return (*self.public_steps(), *last)

    def stable(self) -> Mechanism:
        """Return a linear model with a proven shift bound, by full-batch SGD."""
        bound = self.norm
        reach2 = bound**2 + 1
        if self.task == "classification":
            # buffer 2 h = reach^2 * sum(step sizes) / n for the score 1 - p_y; slightly above the largest gradient
            # norm
            clip, largest, total = math.sqrt(2 * reach2) * (1 + 1e-9), 4 / reach2, 0.06 * self.n / reach2
        else:
            clip, largest, total = math.sqrt(reach2), 1.9 / reach2, 0.05 * self.n / reach2
        total = min(total, 0.9 * self.signal / clip)
        steps = min(1000, max(1, math.ceil(total / (0.99 * largest))))
        rate = min(total / steps, 0.99 * largest)
        self.why.update(
            hidden=((), "only convex training has a useful shift bound"),
            clip_norm=(clip, "no gradient is longer, so clipping changes nothing"),
            learning_rate=(rate, "below 2 / smoothness, so that a step never increases the distance of two runs"),
            steps=(steps, "the step sizes set the buffer: .06 in units of the score, or less"),
            sampling_rate=(1.0, "full batches make the bound deterministic"),
        )
        engine = self.engine(steps=steps, learning_rate=rate, clip_norm=clip, feature_bound=bound)
        return self.behind(self.public_steps(), engine, 0.1)
