"""Drop columns that are not related to the target, by private statistics.

On wide tables, noise in the weights of unrelated columns widens intervals. The released statistics detect a column with
a linear or a quadratic relation to the target, and a pair of columns whose product is related to it. A column is
dropped if none of its statistics is clearly above the noise. Everything after the release is post-processing.

Theory: Fact 5
"""

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Self

import numpy as np
from dp_accounting.dp_event import DpEvent
from numpy.typing import NDArray

from dpscp._base.arrays import FloatArray
from dpscp._base.checks import check_count, check_positive, check_probability
from dpscp.data.sources import RecordSource
from dpscp.data.sources.places import one_row_of_each
from dpscp.privacy import IntegerSource, compose, gaussian_event
from dpscp.privacy.random_streams import QUANTILES, SCORED_ROWS, stream_seed
from dpscp.training.base import require_noise
from dpscp.training.engine.noise import gaussian_release, source_sum, sum_slack
from dpscp.training.engine.rows import encode_labels
from dpscp.training.preprocessing.quantiles import QuantileRows, QuantileTransform
from dpscp.training.preprocessing.steps import Step, check_noise

# Targets are cut at so many standard deviations and divided by them. No spread of them counts as less than the second.
_LARGEST_TARGET, _LEAST_TARGET_SPREAD = 2.0, 0.1
# A record adds a vector of at most this squared length for each column. Many records are shortened to it, so
# correlations seem smaller by a fifth or so, and noise is smaller by more.
_SQUARED_LENGTH = 0.15
# The bend of an evenly spread column is then about as long as its rank; no spread counts as less than the second.
_BEND, _LEAST_SPREAD = 1.9, 0.05
# The least correlation with the target for which a column is kept, however clear it is: a weaker one costs more noise.
_LEAST_CORRELATION = 0.08
# All columns are kept where those that would be left out explain more than the first part of the target's variance for
# each of them (and than so much noise), or the others less than the second.
_MOST_LOST, _UNSURE, _LEAST_EXPLAINED = 0.0008, 3.0, 0.18


@dataclass(frozen=True)
class PrivateRelevance(Step):
    """Scale columns, add quantiles, and keep columns related to the target.

    With the ranks u and w in [-1, 1] of two counted columns by the released distribution functions, and the target v,
    of about mean 0 and spread 1, cut at 2 and halved, the statistics are the sums of u v, (u^2 - its mean) v, u w v and
    v^2 over the records. For classes, the indicator of each class takes the place of v, and a class is compared with
    all records. A column is kept where one of its statistics is a correlation of at least .08 that stands out of its
    noise. All are kept where those to be left out seem to explain the target together, or the others too little of it.
    Columns that are not counted, such as indicators, are always kept.

    Privacy: ``event`` composes that of ``quantiles`` and one Gaussian release of all statistics. One record adds a
    vector that is shortened to sqrt(.15 * counted columns), the sensitivity; the weights of a person add up to at most
    one.

    Parameters
    ----------
    quantiles : QuantileTransform
    classes : tuple or None
        The public labels; None for a regression.
    noise_multiplier : float or None
        That of the statistics; None while it is not set.
    share : float
        The part of the squared Gaussian-DP budget of this step that ``with_noise`` gives to the statistics.
    least : float
        A statistic counts where it is so many standard deviations of its noise away from zero.

    Theory: Facts 1 and 5; Result H
    """

    quantiles: QuantileTransform
    classes: tuple[Any, ...] | None = None
    noise_multiplier: float | None = None
    share: float = 0.5
    least: float = 3.5

    stage: ClassVar[str] = "quantiles and relevance of the features"

    def __post_init__(self) -> None:
        check_noise(self)
        check_probability("share", self.share)
        check_positive("least", self.least)

    @property
    def input_width(self) -> int:
        """Return the number of features of a row."""
        return self.quantiles.input_width

    def width_after(self, width: int) -> None:
        """Return None: the release decides which columns are kept."""

    @property
    def event(self) -> DpEvent | None:
        counts = self.quantiles.event
        if counts is None or self.noise_multiplier is None:
            return None
        return compose(counts, gaussian_event(self.noise_multiplier))

    def with_noise(self, noise_multiplier: float) -> Self:
        """Return the step with this noise, in units of the sensitivity.

        It is the sensitivity of all releases together.
        """
        quantiles = self.quantiles.with_noise(noise_multiplier / math.sqrt(1 - self.share))
        return replace(self, quantiles=quantiles, noise_multiplier=noise_multiplier / math.sqrt(self.share))

    def fit_source(
        self, source: RecordSource, *, n_records: int, rng: np.random.Generator, random_state: int | None = None
    ) -> QuantileRows:
        n, counted = check_count("n_records", n_records), self.quantiles.columns
        noise = require_noise(self.noise_multiplier) * math.sqrt(_SQUARED_LENGTH * len(counted)) * (1 + sum_slack(n))
        seed = stream_seed(random_state, QUANTILES)
        counts = one_row_of_each(source, stream_seed(seed, SCORED_ROWS)).sum(self.quantiles.counts)
        found, whole = self.quantiles.release(counts, n_records=n, source=IntegerSource(seed))
        sums = partial(relevance_sums, ranks=whole, classes=self.classes)
        total = source_sum(sums, source, n, with_targets=True)
        relevant = {counted[i] for i in self.relevant(gaussian_release(total, noise, rng, n) / n, noise / n, whole)}
        if len(relevant) == len(counted):
            return found
        return found.keeping(tuple(i for i in range(len(found.shift)) if i in relevant or i not in counted))

    def relevant(self, means: FloatArray, noise: float, ranks: QuantileRows) -> list[int]:
        """Return the counted columns to keep, from noisy means of the statistics."""
        lines, bends = rank_spreads(ranks)
        d = len(lines)
        i, j = np.triu_indices(d, 1)
        spreads = np.concatenate([lines, bends, product_weight(d) * lines[i] * lines[j]])
        if self.classes is None:
            spreads *= math.sqrt(max(float(means[0, 0]), _LEAST_TARGET_SPREAD**2))
            found, noises = np.abs(means[0, 1:]) / spreads, noise / spreads  # as correlations with the target
        else:
            found, noises = class_correlations(means, noise, spreads)
        is_clear = found >= np.maximum(_LEAST_CORRELATION, self.least * noises)
        is_kept = is_clear[:d] | is_clear[d : 2 * d]
        pairs = is_clear[2 * d :]
        is_kept[i[pairs]] = is_kept[j[pairs]] = True
        weak, explained = np.flatnonzero(~is_kept), found**2 - noises**2
        lost, unsure = explained[weak].sum(), math.sqrt(2 * (noises[weak] ** 4).sum())
        if (
            lost > max(_MOST_LOST * (d - is_kept.sum()), _UNSURE * unsure)
            or explained[is_clear].sum() < _LEAST_EXPLAINED
        ):
            return list(range(d))
        return np.flatnonzero(is_kept).tolist()


def class_correlations(means: FloatArray, noise: float, spreads: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return each statistic's largest class correlation, and its noise.

    The class is the one that stands out most.
    """
    sizes = np.maximum(means[:, :1], _LEAST_TARGET_SPREAD**2 * max(float(means[:, 0].sum()), noise))
    shares = sizes / sizes.sum()
    # less the mean over all records, which is not zero where records were shortened
    apart = np.abs(means[:, 1:] - shares * means[:, 1:].sum(axis=0))
    noises = noise * np.sqrt((1 - shares) ** 2 + (len(means) - 1) * shares**2)
    largest = (apart / noises).argmax(axis=0)
    units = np.sqrt(shares * (1 - shares)) * sizes.sum()
    return (apart / units)[largest, np.arange(len(spreads))] / spreads, (noises / units)[largest, 0] / spreads


def rank_spreads(ranks: QuantileRows) -> tuple[FloatArray, FloatArray]:
    """Return the standard deviations of each column's ranks and bends.

    They follow from the released functions.
    """
    masses, squares = np.diff(ranks.levels, axis=1), ranks.cell_ranks**2
    mean = (masses * squares).sum(axis=1)
    bend = (masses * squares**2).sum(axis=1) - mean**2
    line, bend = (np.sqrt(np.maximum(variance, _LEAST_SPREAD**2)) for variance in (mean, bend))
    return line, _BEND * bend


def product_weight(d: int) -> float:
    """Return the weight of products.

    With it all products together are about as long as the other statistics.
    """
    return math.sqrt(9.6 / max(1, d - 1))


def relevance_sums(
    rows: NDArray[Any],
    weights: FloatArray,
    targets: NDArray[Any],
    ranks: QuantileRows,
    classes: tuple[Any, ...] | None = None,
) -> FloatArray:
    """Return the weighted sums of the shortened vectors of records.

    A vector has v^2, lines, bends and products of the columns. The result has one row, or one for each class, to which
    only the records of this class add.
    """
    u, d = ranks.middle_ranks(rows), len(ranks.columns)
    v = np.ones(len(u))
    if classes is None:
        v = np.clip(np.nan_to_num(targets), -_LARGEST_TARGET, _LARGEST_TARGET) / _LARGEST_TARGET
    squares = u**2
    bends = _BEND * (squares - (np.diff(ranks.levels, axis=1) * ranks.cell_ranks**2).sum(axis=1))
    sums, weight = squares.sum(axis=1), product_weight(d)
    products = (sums**2 - (squares**2).sum(axis=1)) / 2
    length = np.abs(v) * np.sqrt(v**2 + sums + (bends**2).sum(axis=1) + weight**2 * products)
    bound = math.sqrt(_SQUARED_LENGTH * d)
    factors = weights * v * (bound / np.maximum(length, bound))
    labels = np.zeros(len(u), dtype=np.int64) if classes is None else encode_labels(targets, classes)
    total = []
    for label in range(len(classes or (0,))):
        own = np.where(labels == label, factors, 0.0)
        together = (u.T @ (own[:, None] * u))[np.triu_indices(d, 1)]
        total.append(np.concatenate([[own @ v], own @ u, own @ bends, weight * together]))
    return np.array(total)
