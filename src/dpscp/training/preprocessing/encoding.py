"""Replace columns of many categories by noisy means of the target, from counts and sums of each category.

As indicators, a column of 700 categories is 700 inputs, and the noise of their weights hides what they tell. Here it
becomes one number: the mean target of the record's category. Counts and sums of all categories are released once, with
integer noise. Means that the noise hides are shrunk towards the overall one. All after the release is post-processing.

Theory: Fact 5
"""

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
from dp_accounting.dp_event import DpEvent
from numpy.typing import ArrayLike, NDArray

from dpscp._base.arrays import FloatArray
from dpscp._base.checks import check_count, check_positive
from dpscp.data.sources import Block, RecordSource
from dpscp.privacy import IntegerSource, LatticeNoise, compose, lattice_noise
from dpscp.privacy.random_streams import ENCODINGS, stream_seed
from dpscp.training.engine.noise import Counts, one_row_each
from dpscp.training.engine.rows import check_rows, encode_labels
from dpscp.training.preprocessing.steps import Step, Transform, check_columns

# Targets are cut at so many standard deviations and divided by them.
_LARGEST_TARGET = 1.0
# The noise of the count of a category in units of that of its sum, which matters more.
_COUNT_NOISE = 2
# Sums of targets are integers in units of at most 1 over this.
_TARGET_UNITS = 64
# Encoded numbers are cut here, in units of their spread over the records.
_LIMIT = 5.0


@dataclass(frozen=True)
class EncodedRows(Transform):
    """Rows without their columns of category codes, and behind them the encoded numbers.

    Code j of the column ``columns[i]``, which has ``sizes[i]`` categories, becomes a row of ``values``: all categories
    of the first column come first. Other codes, and numbers that are no codes, become zeros, which stand for the
    overall mean.

    Theory: Fact 5
    """

    values: FloatArray
    columns: tuple[int, ...]
    sizes: tuple[int, ...]
    n_features: int

    kind: ClassVar[str] = "target_encoding"

    @property
    def width(self) -> int:
        return self.n_features + len(self.columns) * (int(self.values.shape[1]) - 1)

    @property
    def origins(self) -> tuple[int, ...]:
        """Return the column before this transform of each column behind it."""
        others = tuple(column for column in range(self.n_features) if column not in self.columns)
        return others + tuple(column for column in self.columns for _ in range(self.values.shape[1]))

    def apply(self, X: ArrayLike) -> FloatArray:
        rows = check_rows(X, self.n_features, finite=False)
        places = category_places(rows, self.columns, self.sizes)
        table = np.vstack([self.values, np.zeros(self.values.shape[1])])  # the last place is that of other numbers
        encoded = table[places].reshape(len(rows), -1)
        return np.hstack([np.delete(rows, self.columns, axis=1), encoded], dtype=np.float64)


@dataclass(frozen=True)
class PrivateTargetEncoding(Step):
    """Replace columns of category codes by private means of the target.

    A column with k categories has the codes 0 to k - 1. Released are for each category the count of its records and the
    sum of their targets, or for classes the count of each class. A regression target is cut at one standard deviation
    (it has about mean 0 and spread 1, as behind `PrivateTarget`) and rounded to the lattice of the noise. The mean of a
    category is shrunk towards the overall one by what noise and the spread of the targets make of it, and by how far
    the means of all categories lie apart. Encoded numbers have mean 0 and spread 1. A category that is not declared has
    the overall mean, 0. A regression gets one number a column, so do two classes, and more classes get one each.

    Parameters
    ----------
    categories : tuple of (column, number of categories)
        Public facts about the columns.
    n_features : int
        The number of features of a row.
    classes : tuple or None
        The public labels; None for a regression.
    noise : LatticeNoise or None
        The noise of a sum, or of the count of a class; None while it is not set. The count of all records of a category
        has twice as much.

    Privacy: ``event`` is one discrete Gaussian event of sensitivity 1 for each number that a record changes. One
    record, or one random record of each person, lies in at most one category of each column. It changes one count
    there, by one, and in a regression also one sum, by at most one.

    Assumes: a record's own target is in the mean that replaces its category, so `corrected` refuses this step.

    Theory: Facts 1 and 5; Result H; What preprocessing and recalibration release
    """

    categories: tuple[tuple[int, int], ...]
    n_features: int
    classes: tuple[Any, ...] | None = None
    noise: LatticeNoise | None = None

    stage: ClassVar[str] = "means of the target by category"
    uses_own_target: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_count("n_features", self.n_features)
        pairs = tuple((column, check_count("number of categories", size)) for column, size in self.categories)
        if not pairs:
            raise ValueError("categories must contain (column, number of categories) of at least one column")
        check_columns(tuple(column for column, _ in pairs), self.n_features)
        object.__setattr__(self, "categories", pairs)
        if self.classes is not None and len(self.classes) < 2:
            raise ValueError("classes must contain at least two labels, or be None for a regression")

    @property
    def _columns(self) -> tuple[int, ...]:
        return tuple(column for column, _ in self.categories)

    @property
    def _sizes(self) -> tuple[int, ...]:
        return tuple(size for _, size in self.categories)

    @property
    def input_width(self) -> int:
        """Return the number of features of a row."""
        return self.n_features

    def width_after(self, width: int) -> int:
        return width + len(self.categories) * (encoded_numbers(self.classes) - 1)

    @property
    def noises(self) -> tuple[LatticeNoise, ...]:
        """Return the noise of each kind of number of which a record changes one in each column."""
        assert self.noise is not None
        counts = replace(self.noise, sigma=_COUNT_NOISE * self.noise.sigma)
        return (counts, self.noise) if self.classes is None else (self.noise,)

    @property
    def event(self) -> DpEvent | None:
        return None if self.noise is None else compose(*(n.event(len(self.categories)) for n in self.noises))

    def with_noise(self, noise_multiplier: float) -> Self:
        """Return the same step with this noise, in units of the sensitivity of all numbers together."""
        length = len(self.categories) * (1 + _COUNT_NOISE**-2 if self.classes is None else 1)
        noise = check_positive("noise_multiplier", noise_multiplier) * math.sqrt(length)
        return replace(self, noise=lattice_noise(noise, 1, _TARGET_UNITS))

    def sums(self, block: Block) -> Counts:
        """Return what is counted of each category, one row each, in units of the lattice.

        For classes the count of each, else the number of records and the sum of their targets. Never released as they
        are.
        """
        assert self.noise is not None
        scale, n_places = self.noise.scale, sum(self._sizes) + 1
        total = np.zeros((n_places, 2 if self.classes is None else len(self.classes)), dtype=np.int64)
        for part, rows in block.parts():
            targets = block.targets[part]
            for places in category_places(rows, self._columns, self._sizes).T:
                if self.classes is None:
                    cut = np.clip(np.nan_to_num(targets), -_LARGEST_TARGET, _LARGEST_TARGET) / _LARGEST_TARGET
                    total[:, 0] += scale * np.bincount(places, minlength=n_places)
                    np.add.at(total[:, 1], places, np.rint(cut * scale).astype(np.int64))
                else:
                    np.add.at(total, (places, encode_labels(targets, self.classes)), scale)
        return total[:-1]  # without the place of numbers that are no codes

    def release(self, sums: Counts, source: IntegerSource) -> EncodedRows:
        """Return the transform, from noisy sums."""
        noise = self.noise
        assert noise is not None
        kinds = self.noises if self.classes is None else self.noises * len(self.classes)
        drawn = np.array([kind.sample(len(sums), source) for kind in kinds], dtype=np.int64)
        noisy = (sums + drawn.T) / noise.scale
        starts = np.cumsum(self._sizes)[:-1]
        values = np.concatenate([encode(own, noise.count_noise, self.classes) for own in np.split(noisy, starts)])
        return EncodedRows(values, self._columns, self._sizes, self.n_features)

    def fit_source(
        self, source: RecordSource, *, n_records: int, random_state: int | None = None, **_: Any
    ) -> EncodedRows:
        if self.noise is None:  # before any record is used
            raise ValueError("PrivateTargetEncoding: noise is not set; call with_noise, or calibrate its mechanism")
        check_count("n_records", n_records)
        seed = stream_seed(random_state, ENCODINGS)
        return self.release(one_row_each(source, seed).sum(self.sums), IntegerSource(seed))


def encoded_numbers(classes: tuple[Any, ...] | None) -> int:
    """Return how many numbers a column becomes.

    >>> encoded_numbers(None), encoded_numbers((0, 1)), encoded_numbers((0, 1, 2))
    (1, 1, 3)
    """
    return 1 if classes is None or len(classes) == 2 else len(classes)


def category_places(rows: NDArray[Any], columns: tuple[int, ...], sizes: tuple[int, ...]) -> NDArray[np.int64]:
    """Return the place of each number of these columns among the categories of all of them, the last one for others.

    >>> category_places(np.array([[1.0, 0.0], [0.5, 7.0]]), (0, 1), (2, 3)).tolist()
    [[1, 2], [5, 5]]
    """
    codes = rows[:, columns]
    starts = np.cumsum([0, *sizes])
    is_code = (codes >= 0) & (codes < np.array(sizes)) & (codes == np.floor(codes))
    places = np.where(is_code, codes, 0).astype(np.int64) + starts[:-1]
    return np.asarray(np.where(is_code, places, starts[-1]))


def encode(noisy: FloatArray, noise: float, classes: tuple[Any, ...] | None) -> FloatArray:
    """Return the encoded numbers of the categories of one column, from their noisy sums.

    The means of categories are taken as normal around the overall mean. Their variance is estimated from how far the
    sums lie apart beyond what noise and the targets of single records explain.
    """
    if classes is None:
        counts, sums, count_variance = noisy[:, 0], noisy[:, 1:], (_COUNT_NOISE * noise) ** 2
    else:
        counts, count_variance = noisy.sum(axis=1), len(classes) * noise**2
        sums = noisy[:, 1:] if len(classes) == 2 else noisy
    counts = np.maximum(counts, 0.0)[:, None]
    total = max(float(counts.sum()), 1.0)
    overall = np.clip(sums.sum(axis=0) / total, -1, 1)
    deviations = sums - overall * counts
    if classes is None:
        variances, own = noise**2 + count_variance * overall**2, 1 / _LARGEST_TARGET**2 - np.zeros(1)
    else:
        variances = noise**2 * ((1 - overall) ** 2 + (len(classes) - 1) * overall**2)
        own = np.clip(overall * (1 - overall), 0, 0.25)
    explained = (deviations**2 - variances - counts * own).sum(axis=0)
    apart = np.maximum(explained, 0.0) / max(float((counts**2 - count_variance).sum()), 1.0)
    means = apart * counts * deviations / (apart * counts**2 + variances + counts * own)
    spread = np.sqrt((counts * means**2).sum(axis=0) / total)
    scaled = np.divide(means, spread, out=np.zeros_like(means), where=spread > 0)
    return np.asarray(np.clip(scaled, -_LIMIT, _LIMIT))
