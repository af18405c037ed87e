"""Replace columns of many categories by private shares of the target.

As indicators, a column of 700 categories becomes 700 inputs, and the noise of their weights hides their effect. Here it
becomes a few numbers: the shares of the classes, or of ranges of a numeric target, in the record's category. Counts of
all categories are released once, with integer noise. Shares that the noise hides are shrunk towards the overall ones.
Everything after the release is post-processing.

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
from dpscp.data.sources.places import one_row_of_each
from dpscp.privacy import IntegerSource, LatticeNoise, lattice_noise
from dpscp.privacy.random_streams import ENCODINGS, SCORED_ROWS, stream_seed
from dpscp.training.engine.noise import Counts, release_counts
from dpscp.training.engine.rows import check_rows, encode_labels
from dpscp.training.preprocessing.steps import Step, Transform, check_columns

# Targets of a regression, of about mean 0 and spread 1, are counted in the ranges between these numbers.
_TARGET_CUTS = (-0.67, 0.0, 0.67)
# Encoded numbers are cut here, in units of their spread over the records.
_LIMIT = 5.0


@dataclass(frozen=True)
class EncodedRows(Transform):
    """Rows with encoded numbers, last, in place of columns of category codes.

    Code j of the column ``columns[i]``, which has ``sizes[i]`` categories, becomes a row of ``values``: all categories
    of the first column come first. Other codes, and numbers that are no codes, become zeros, which stand for the
    overall shares.

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
    """Replace category codes by private shares of the target in each category.

    A column with k categories has the codes 0 to k - 1. The release contains, for each category, the count of each
    class. A regression target, which has about mean 0 and spread 1 as behind `PrivateTarget`, has four classes: the
    ranges between -.67, 0 and .67. The shares of a category are shrunk towards the overall shares. How much depends on
    the noise, on the number of records, and on the spread of the shares of all categories. Encoded numbers have mean 0
    and spread 1. A category that is not declared has the overall shares, 0. A column becomes one number for each class,
    one for two classes.

    Parameters
    ----------
    categories : tuple of (column, number of categories)
        Public facts about the columns.
    n_features : int
        The number of features of a row.
    classes : tuple or None
        The public labels; None for a regression.
    noise : LatticeNoise or None
        The noise of a count; None while it is not set.

    Privacy: ``event`` is one unit discrete Gaussian event for each column. One record, or one random record of each
    person, lies in at most one category of each column and has one class there, so it changes one count by one.

    Assumes: a record's own target is in the shares that replace its category, so `corrected` refuses this step.

    Theory: Facts 1 and 5; Result H; What preprocessing and recalibration release
    """

    categories: tuple[tuple[int, int], ...]
    n_features: int
    classes: tuple[Any, ...] | None = None
    noise: LatticeNoise | None = None

    stage: ClassVar[str] = "targets by category"
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
    def event(self) -> DpEvent | None:
        return None if self.noise is None else self.noise.event(len(self.categories))

    def with_noise(self, noise_multiplier: float) -> Self:
        """Return the step with this noise, in units of the sensitivity.

        It is the sensitivity of all counts together.
        """
        check_positive("noise_multiplier", noise_multiplier)
        return replace(self, noise=lattice_noise(noise_multiplier * math.sqrt(len(self.categories))))

    def counts(self, block: Block) -> Counts:
        """Return the counts of each class in each category.

        The shape is (categories, classes). Never released as they are.
        """
        n_classes = len(_TARGET_CUTS) + 1 if self.classes is None else len(self.classes)
        total = np.zeros((sum(self._sizes) + 1, n_classes), dtype=np.int64)
        for part, rows in block.parts():
            targets = block.targets[part]
            own = np.digitize(targets, _TARGET_CUTS) if self.classes is None else encode_labels(targets, self.classes)
            for places in category_places(rows, self._columns, self._sizes).T:
                total += np.bincount(places * n_classes + own, minlength=total.size).reshape(total.shape)
        return total[:-1]  # without the place of numbers that are no codes

    def release(self, counts: Counts, source: IntegerSource) -> EncodedRows:
        """Return the transform, from noisy counts."""
        released, noise = release_counts(counts, self.noise, source), self.noise
        assert noise is not None
        parts = np.split(released / noise.scale, np.cumsum(self._sizes)[:-1])
        values = np.concatenate([encode(own, noise.count_noise) for own in parts])
        return EncodedRows(values, self._columns, self._sizes, self.n_features)

    def fit_source(
        self, source: RecordSource, *, n_records: int, random_state: int | None = None, **_: Any
    ) -> EncodedRows:
        if self.noise is None:  # before any record is used
            raise ValueError("PrivateTargetEncoding: noise is not set; call with_noise, or calibrate its mechanism")
        check_count("n_records", n_records)
        seed = stream_seed(random_state, ENCODINGS)
        return self.release(
            one_row_of_each(source, stream_seed(seed, SCORED_ROWS)).sum(self.counts), IntegerSource(seed)
        )


def encoded_numbers(classes: tuple[Any, ...] | None) -> int:
    """Return how many numbers a column becomes.

    >>> encoded_numbers(None), encoded_numbers((0, 1)), encoded_numbers((0, 1, 2))
    (4, 1, 3)
    """
    n_classes = len(_TARGET_CUTS) + 1 if classes is None else len(classes)
    return 1 if n_classes == 2 else n_classes


def category_places(rows: NDArray[Any], columns: tuple[int, ...], sizes: tuple[int, ...]) -> NDArray[np.int64]:
    """Return each number's place among the categories of all these columns.

    The last category of a column is for others.

    >>> category_places(np.array([[1.0, 0.0], [0.5, 7.0]]), (0, 1), (2, 3)).tolist()
    [[1, 2], [5, 5]]
    """
    codes = rows[:, columns]
    starts = np.cumsum([0, *sizes])
    is_code = (codes >= 0) & (codes < np.array(sizes)) & (codes == np.floor(codes))
    places = np.where(is_code, codes, 0).astype(np.int64) + starts[:-1]
    return np.asarray(np.where(is_code, places, starts[-1]))


def encode(noisy: FloatArray, noise: float) -> FloatArray:
    """Return the encoded numbers of the categories of one column.

    They follow from noisy counts of each class. The shares of categories are taken as normal around the overall ones.
    Their variance is estimated from how far the counts lie apart beyond what noise and the classes of single records
    explain.
    """
    n_classes = noisy.shape[1]
    counts = np.maximum(noisy.sum(axis=1, keepdims=True), 0.0)
    own = noisy[:, 1:] if n_classes == 2 else noisy
    total = max(float(counts.sum()), 1.0)
    overall = np.clip(own.sum(axis=0) / total, 0, 1)
    deviations = own - overall * counts
    variances = noise**2 * ((1 - overall) ** 2 + (n_classes - 1) * overall**2) + counts * overall * (1 - overall)
    explained = np.maximum((deviations**2 - variances).sum(axis=0), 0.0)
    apart = explained / max(float((counts**2 - n_classes * noise**2).sum()), 1.0)
    shares = apart * counts * deviations / (apart * counts**2 + variances)
    spread = np.sqrt((counts * shares**2).sum(axis=0) / total)
    scaled = np.divide(shares, spread, out=np.zeros_like(shares), where=spread > 0)
    return np.asarray(np.clip(scaled, -_LIMIT, _LIMIT))
