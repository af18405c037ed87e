"""Define the base classes of preprocessing steps and of what they become when they are fitted.

Standardizing with the data's own mean and scale leaks, because the released predictor contains them. A step either uses
public constants and the row itself only (`PublicStep`: no cost), or it releases something of the records with noise
(`SummedStep`, or `Step` itself). `Preprocessed` puts steps in front of a mechanism and has one event for all.

To add a step, write its class and the class of its `Transform` in one module of this package, and enter the step in
``dpscp.training.__init__``. Outside this package the two classes alone are enough.

Theory: Fact 5
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
from dp_accounting.dp_event import DpEvent, NoOpDpEvent
from numpy.typing import ArrayLike, NDArray

from dpscp._base.arrays import FloatArray
from dpscp._base.callers import ROUNDING, call_on_rows, is_of_caller
from dpscp.data.sources import RecordSource
from dpscp.privacy import gaussian_event
from dpscp.training.base import array_source
from dpscp.training.engine.gaussian_release import source_sum, sum_in_parts
from dpscp.training.engine.networks import check_rows

TRANSFORMS: dict[str, type["Transform"]] = {}
"""The classes of fitted steps by the name that files have for them; a class with ``kind`` enters itself."""


class Transform(ABC):
    """The base class of fitted steps: a fixed function of one row, with nothing in it that was not paid for.

    Assumes: a transformed row is computed from that row alone. So a transform leaves what one record adds to a later
    sum where the later step bounds it.

    Attributes
    ----------
    kind : str
        The name of the class in files; set by every class that files may hold.

    Theory: Fact 5
    """

    kind: ClassVar[str]

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        own = vars(cls).get("kind")
        if own is not None and TRANSFORMS.setdefault(own, cls).__qualname__ != cls.__qualname__:
            raise ValueError(f"another class already saves its transforms as {own!r}; choose another kind")

    @abstractmethod
    def apply(self, X: ArrayLike) -> FloatArray:
        """Return the transformed rows, as a new float64 array.

        The caller of the steps checks that numbers are finite.
        """

    def apply_to_records(self, X: ArrayLike) -> FloatArray:
        """Return the transformed rows; code of the caller gets copies of them, in two different blockings."""
        if not is_of_caller(self):
            return self.apply(X)
        rows = np.asarray(X)

        def read(found: Any, size: int) -> FloatArray:
            values = np.asarray(found, dtype=np.float64)
            if values.ndim != 2 or len(values) != size:
                raise ValueError(f"{type(self).__name__}.apply must return one row for each row")
            return values

        empty = np.empty((0, rows.shape[1] if self.width is None else self.width))
        return call_on_rows(
            type(self).__name__, self.apply, (rows,), len(rows), read=read, empty=empty, tolerance=ROUNDING
        )

    @abstractmethod
    def arrays(self) -> dict[str, FloatArray]:
        """Return the released numbers, for saving."""

    @abstractmethod
    def config(self) -> dict[str, Any]:
        """Return the public constants as JSON values, with ``kind``."""

    @classmethod
    @abstractmethod
    def from_parts(cls, config: Mapping[str, Any], arrays: Mapping[str, FloatArray]) -> Self:
        """Rebuild the transform that `config` and `arrays` came from."""

    @property
    def row_length(self) -> float | None:
        """Return the length that every row has but rows of zeros; None where rows differ in length."""
        return None

    @property
    def width(self) -> int | None:
        """Return the number of columns of a transformed row; None: as many as before."""
        return None


class Step(ABC):
    """The base class of preprocessing steps: frozen dataclasses of public constants, before they have seen data.

    Write `event` and `fit_source`, or inherit `PublicStep` or `SummedStep`, which have them.

    Privacy: ``event`` pays for everything that the transform contains of the records. State in the docstring of the
    class what one record, or one person with all their rows, can change (the sensitivity), and why.

    Assumes: nothing about the rows but their width, unless the docstring of the class says so.

    Attributes
    ----------
    stage : str
        The name of the step's entry in a ledger.

    Theory: Fact 5; Result H
    """

    stage: ClassVar[str] = "preprocessing"

    @property
    @abstractmethod
    def event(self) -> DpEvent | None:
        """Return the cost of fitting, from public constants only; None while the noise is not set."""

    @abstractmethod
    def fit_source(
        self, source: RecordSource, *, n_records: int, rng: np.random.Generator, random_state: int | None = None
    ) -> Transform:
        """Return the fitted transform.

        What is done with a block is a pure function that can be pickled. Noise is drawn here, not where the records
        are: from ``rng``, or as integers by ``random_state`` (None: the system's entropy).
        """

    @property
    def is_public(self) -> bool:
        """Return whether the transform follows from public constants and the width of a row alone."""
        return False

    @property
    def input_width(self) -> int | None:
        """Return the number of columns that this step is for; None for rows of any width."""
        return None

    def width_after(self, width: int) -> int | None:
        """Return the number of columns behind this step; None where the release decides it."""
        return width

    def with_noise(self, noise_multiplier: float) -> Self:
        """Return the same step with this noise, in units of its sensitivity."""
        if not (is_dataclass(self) and any(own.name == "noise_multiplier" for own in fields(self))):
            raise TypeError(f"{type(self).__name__} has no field noise_multiplier; define with_noise")
        return replace(self, noise_multiplier=noise_multiplier)

    def fit(self, X: ArrayLike, *, n_records: int, rng: np.random.Generator) -> Transform:
        """Return the transform fitted to rows in memory, each of a person of its own."""
        rows = check_rows(X)
        return self.fit_source(array_source(rows, np.zeros(len(rows))), n_records=n_records, rng=rng)


class PublicStep(Step):
    """A step of public constants: of the data only their width is used, and nothing is spent.

    Write `transform_of`.
    """

    @property
    def is_public(self) -> bool:
        return True

    @property
    def event(self) -> DpEvent:
        """Return the event of a step without cost."""
        return NoOpDpEvent()

    def with_noise(self, noise_multiplier: float) -> Self:  # noqa: ARG002
        """Return this step unchanged; it needs no noise."""
        return self

    @abstractmethod
    def transform_of(self, width: int) -> Transform:
        """Return the transform of rows of this width."""

    def fit_source(
        self,
        source: RecordSource,
        *,
        n_records: int,  # noqa: ARG002
        rng: np.random.Generator,  # noqa: ARG002
        random_state: int | None = None,  # noqa: ARG002
    ) -> Transform:
        return self.transform_of(source.width)


class SummedStep(Step):
    """A step that releases one sum over the records, in two halves.

    Write ``part_moments``, a pure function of some rows that runs where the records are, ``release``, which adds the
    noise once, and the field ``noise_multiplier``.

    Privacy: one Gaussian release of ``noise_multiplier``. The noise must be the multiplier times what one record can
    change in the sum, in Euclidean norm. A sum is divided by the public ``n_records``, never by the number of rows.

    Theory: Fact 5; Result H
    """

    noise_multiplier: float | None

    @abstractmethod
    def part_moments(self, rows: NDArray[Any], weights: FloatArray | None) -> FloatArray:
        """Return the exact weighted sums over some rows.

        A function of them alone, and so of each row alone. The weights of one person add up to at most one.
        """

    @abstractmethod
    def release(self, total: FloatArray, *, n_records: int, rng: np.random.Generator) -> Transform:
        """Return the transform with the noisy total in it."""

    @property
    def event(self) -> DpEvent | None:
        return None if self.noise_multiplier is None else gaussian_event(self.noise_multiplier)

    def moments(self, X: ArrayLike, weights: FloatArray | None = None) -> FloatArray:
        """Return the exact weighted sums that ``release`` adds noise to; never released as they are."""
        rows = check_rows(X)
        arrays = (rows,) if weights is None else (rows, weights)
        return sum_in_parts(lambda part, weights=None: self.part_moments(part, weights), *arrays)

    def fit_source(
        self,
        source: RecordSource,
        *,
        n_records: int,
        rng: np.random.Generator,
        random_state: int | None = None,  # noqa: ARG002
    ) -> Transform:
        return self.release(source_sum(self.part_moments, source, n_records), n_records=n_records, rng=rng)
