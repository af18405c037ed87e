"""Preprocessing that is honest about privacy: each step is a mechanism with an event in the same ledger.

Standardising with the data's own mean and scale leaks, because the released predictor contains them. A step
here either uses public constants and the row itself only (``PublicBounds``, ``UnitNorm``, ``NormClip``: no
cost), or releases noisy sums over rows whose size it enforces (``PrivateCentring``, ``PrivateStandardize``:
Gaussian events). Sums are divided by the public ``n_records``, never by the number of rows.
``Preprocessed`` puts steps in front of any mechanism and is itself a mechanism; what its steps learn counts
as training.

Theory: section 1.5; Result B
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol, Self, runtime_checkable

import numpy as np
from dp_accounting.dp_event import DpEvent, NoOpDpEvent
from numpy.typing import ArrayLike, NDArray

from dpscp._checks import check_choice, check_count, check_positive, check_probability
from dpscp.exceptions import BudgetError
from dpscp.guarantees.stability import Stability
from dpscp.persons import Persons
from dpscp.privacy import (
    Accountant,
    compose,
    epsilon_of,
    gaussian_event,
    gdp_epsilon,
    gdp_mu,
    secure_generator,
    smallest_noise,
)
from dpscp.privacy.seeds import PREPROCESSING, stream_seed
from dpscp.privacy.solving import start_below
from dpscp.training.mechanism import (
    HasEvent,
    Mechanism,
    Model,
    Needs,
    Rehearsal,
    Trained,
    Tunable,
    configured,
    load_model,
    paid_event,
    rehearsal,
    require_persons,
    saved_as,
    set_noise,
    shift_bound,
    train_persons,
    trains_persons,
)
from dpscp.training.networks import check_rows, row_width
from dpscp.training.release import SUM_SLACK, gaussian_release, weighted_sum
from dpscp.training.transforms import FeatureTransform, RowTransform, Transform, scaled_rows
from dpscp.training.whitening import WhiteningTransform

__all__ = [
    "NormClip",
    "Preprocessed",
    "PreprocessedModel",
    "PrivateCentring",
    "PrivateStandardize",
    "PublicBounds",
    "Step",
    "UnitNorm",
    "WeightedStep",
    "unwrapped",
]

Array = NDArray[np.float64]


# ---- the steps: frozen public constants


@runtime_checkable
class Step(Protocol):
    """A preprocessing step before it has seen data: public constants, and the event of fitting it."""

    data_independent: ClassVar[bool]

    @property
    def event(self) -> DpEvent | None:
        """What fitting costs, from public constants only; None while the noise is not set."""

    def with_noise(self, noise_multiplier: float) -> "Step":
        """The same step with this noise; a step without a cost stays as it is."""

    def fit(self, X: ArrayLike, *, n_records: int, rng: np.random.Generator) -> Transform:
        """The fitted transform."""


@runtime_checkable
class WeightedStep(Step, Protocol):
    """A step whose private sums take a weight for each row: it can be fitted on persons.

    Theory: Result H
    """

    def fit(self, X: ArrayLike, *, n_records: int, rng: np.random.Generator, weights: Array | None = None) -> Transform:
        """The fitted transform; the weights of one person add up to at most one."""

    def moments(self, X: ArrayLike, weights: Array | None = None) -> Array:
        """The exact weighted sums that ``fit`` adds noise to; never released as they are."""


@dataclass(frozen=True)
class PublicBounds:
    """Clip each feature to public bounds and rescale it to [-1, 1].

    ``low`` and ``high`` are numbers, or one number a feature. They must come from outside the data. No
    privacy cost.

    Theory: section 1.1
    """

    low: Any
    high: Any

    data_independent: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _set_bounds(self)

    @property
    def event(self) -> DpEvent:
        """Nothing: only public constants are used."""
        return NoOpDpEvent()

    def with_noise(self, noise_multiplier: float) -> Self:  # noqa: ARG002
        """Itself: there is nothing to hide."""
        return self

    def fit(self, X: ArrayLike, *, n_records: int, rng: np.random.Generator) -> FeatureTransform:  # noqa: ARG002
        """The transform; of the data only its width is used."""
        low, high = _spread(self.low, self.high, row_width(X))
        return FeatureTransform(low, high, (low + high) / 2, (high - low) / 2)


@dataclass(frozen=True)
class UnitNorm:
    """Scale every row to norm one; no constant and no privacy cost.

    Theory: section 1.1
    """

    data_independent: ClassVar[bool] = True

    @property
    def event(self) -> DpEvent:
        """Nothing: each row is its own business."""
        return NoOpDpEvent()

    def with_noise(self, noise_multiplier: float) -> Self:  # noqa: ARG002
        """Itself: there is nothing to hide."""
        return self

    def fit(self, X: ArrayLike, *, n_records: int, rng: np.random.Generator) -> RowTransform:  # noqa: ARG002
        """The transform; of the data only its width is used."""
        return RowTransform(1.0, unit=True, n_features=row_width(X))


@dataclass(frozen=True)
class NormClip:
    """Shorten every row longer than the public ``bound`` to it; no privacy cost.

    Theory: section 1.1
    """

    bound: float

    data_independent: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_positive("bound", self.bound)

    @property
    def event(self) -> DpEvent:
        """Nothing: each row is its own business."""
        return NoOpDpEvent()

    def with_noise(self, noise_multiplier: float) -> Self:  # noqa: ARG002
        """Itself: there is nothing to hide."""
        return self

    def fit(self, X: ArrayLike, *, n_records: int, rng: np.random.Generator) -> RowTransform:  # noqa: ARG002
        """The transform; of the data only its width is used."""
        return RowTransform(float(self.bound), unit=False, n_features=row_width(X))


@dataclass(frozen=True)
class PrivateCentring:
    """Subtract a private mean from rows of norm at most ``bound`` (longer rows are shortened first).

    One record (or person) changes the weighted sum of the rows by at most ``bound``; the release is the sum
    plus Gaussian noise of standard deviation noise_multiplier * bound in each coordinate (0.01 % more, for
    the rounding of the sum), divided by n_records and brought back to the ball of radius ``bound`` (a mean
    of such rows lies there). Centred rows have norm at most 2 * bound.

    Theory: sections 1.1, 1.5
    """

    bound: float = 1.0
    noise_multiplier: float | None = None

    data_independent: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_positive("bound", self.bound)
        _check_noise(self.noise_multiplier)

    @property
    def event(self) -> DpEvent | None:
        """One Gaussian release; None while the noise is not set."""
        return None if self.noise_multiplier is None else gaussian_event(self.noise_multiplier)

    def with_noise(self, noise_multiplier: float) -> Self:
        """A copy with this noise."""
        return replace(self, noise_multiplier=noise_multiplier)

    def moments(self, X: ArrayLike, weights: Array | None = None) -> Array:
        """The exact weighted sum of the rows that ``fit`` adds noise to; never released as it is."""
        return weighted_sum(scaled_rows(check_rows(X), self.bound, unit=False), weights)

    def fit(
        self, X: ArrayLike, *, n_records: int, rng: np.random.Generator, weights: Array | None = None
    ) -> RowTransform:
        """The transform with the private mean in it."""
        noise = set_noise(self.noise_multiplier) * self.bound * (1 + SUM_SLACK)
        mean = gaussian_release(self.moments(X, weights), noise, rng) / check_count("n_records", n_records)
        mean = scaled_rows(mean[None, :], self.bound, unit=False)[0]
        return RowTransform(float(self.bound), unit=False, shift=mean, n_features=len(mean))


@dataclass(frozen=True)
class PrivateStandardize:
    """Subtract a private mean and divide by a private scale, feature by feature, inside public bounds.

    Features are clipped to [low, high] and mapped to v in [-1, 1]; the released vector is the sum of (v,
    v^2 - 1/2) over the rows plus Gaussian noise. One record (or person) changes that sum by at most sqrt(5/4 *
    features) in norm. The scale is never below ``scale_floor`` (of half the range) nor below what the noise
    can resolve, both public; standardised features are clipped to +-``limit``.

    Theory: sections 1.1, 1.5
    """

    low: Any
    high: Any
    noise_multiplier: float | None = None
    scale_floor: float = 0.01
    limit: float = 5.0

    data_independent: ClassVar[bool] = False

    def __post_init__(self) -> None:
        _set_bounds(self)
        _check_noise(self.noise_multiplier)
        check_positive("scale_floor", self.scale_floor)
        check_positive("limit", self.limit)

    @property
    def event(self) -> DpEvent | None:
        """One Gaussian release of both sums; None while the noise is not set."""
        return None if self.noise_multiplier is None else gaussian_event(self.noise_multiplier)

    def with_noise(self, noise_multiplier: float) -> Self:
        """A copy with this noise."""
        return replace(self, noise_multiplier=noise_multiplier)

    def moments(self, X: ArrayLike, weights: Array | None = None) -> Array:
        """The exact weighted sums, shape (2, features), that ``fit`` adds noise to; never released as they are."""
        rows = check_rows(X)
        unit = self._to_unit(rows.shape[1]).apply(rows)
        return np.stack([weighted_sum(unit, weights), weighted_sum(unit**2 - 0.5, weights)])

    def sensitivity(self, n_features: int) -> float:
        """Largest change of ``moments`` by one record or person, in Euclidean norm."""
        return math.sqrt(1.25 * n_features)

    def fit(
        self, X: ArrayLike, *, n_records: int, rng: np.random.Generator, weights: Array | None = None
    ) -> FeatureTransform:
        """The transform with the private mean and scale in it."""
        n, exact = check_count("n_records", n_records), self.moments(X, weights)
        width = exact.shape[1]
        noise = set_noise(self.noise_multiplier) * self.sensitivity(width) * (1 + SUM_SLACK)
        mean, square = gaussian_release(exact, noise, rng) / n
        mean = np.clip(mean, -1.0, 1.0)
        # below this the variance would be mostly noise
        floor = max(float(self.scale_floor), math.sqrt(2 * noise / n))
        scale = np.sqrt(np.clip(square + 0.5 - mean**2, min(floor, 1.0) ** 2, 1.0))
        public = self._to_unit(width)
        return FeatureTransform(
            public.low,
            public.high,
            public.shift + mean * public.scale,
            scale * public.scale,
            float(self.limit),
        )

    def _to_unit(self, width: int) -> FeatureTransform:
        low, high = _spread(self.low, self.high, width)
        # the limit acts only where rounding does, as with bounds that lie far from zero and close together
        return FeatureTransform(low, high, (low + high) / 2, (high - low) / 2, limit=1.0)


def _set_bounds(step: PublicBounds | PrivateStandardize) -> None:
    try:
        low, high = np.asarray(step.low, dtype=np.float64), np.asarray(step.high, dtype=np.float64)
    except (TypeError, ValueError):
        raise TypeError("low and high must be numbers, or one number a feature") from None
    if low.ndim > 1 or high.ndim > 1:
        raise ValueError("low and high must be numbers, or one number a feature")
    if not (np.all(np.isfinite(low)) and np.all(np.isfinite(high)) and np.all(low < high)):
        raise ValueError("low and high must be finite with low < high for every feature")
    # tuples, so that a frozen step can be compared and hashed
    for name, value in (("low", low), ("high", high)):
        object.__setattr__(step, name, float(value) if value.ndim == 0 else tuple(value.tolist()))


def _spread(low: Any, high: Any, width: int) -> tuple[Array, Array]:
    for name, bound in (("low", low), ("high", high)):
        if np.ndim(bound) == 1 and len(bound) != width:
            raise ValueError(f"{name} must hold one number for each of the {width} features, got {len(bound)}")
    return np.broadcast_to(low, width).astype(np.float64), np.broadcast_to(high, width).astype(np.float64)


def _check_noise(noise_multiplier: float | None) -> None:
    if noise_multiplier is not None:
        check_positive("noise_multiplier", noise_multiplier)


# ---- steps in front of a mechanism


@saved_as("preprocessed")
@dataclass(frozen=True)
class PreprocessedModel:
    """A model behind fitted transforms: parameters and released numbers only.

    Theory: section 1.7
    """

    transforms: tuple[Transform, ...]
    inner: Model
    n_features: int

    @property
    def task(self) -> str:
        """Either "classification" or "regression"."""
        return self.inner.task

    @property
    def classes(self) -> tuple[Any, ...] | None:
        """The public labels in order; None for regression."""
        return self.inner.classes

    def transform(self, X: ArrayLike) -> NDArray[Any]:
        """The rows as the inner model sees them."""
        rows: NDArray[Any] = check_rows(X, self.n_features)
        for step in self.transforms:
            rows = step.apply(rows)
        return rows

    def outputs(self, X: ArrayLike) -> NDArray[Any]:
        """The inner model's outputs on the transformed rows."""
        return self.inner.outputs(self.transform(X))

    def predict_proba(self, X: ArrayLike) -> NDArray[Any]:
        """Class probabilities; TypeError for regression."""
        return self.inner.predict_proba(self.transform(X))

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The parameters, for saving: keys "inner/..." and "step0/...", "step1/..."."""
        parts = {f"inner/{name}": value for name, value in self.inner.arrays().items()}
        for i, step in enumerate(self.transforms):
            parts.update({f"step{i}/{name}": value for name, value in step.arrays().items()})
        return parts

    def config(self) -> dict[str, Any]:
        """The public constants as JSON values."""
        return {
            "model": "preprocessed",
            "n_features": self.n_features,
            "steps": [step.config() for step in self.transforms],
            "inner": self.inner.config(),
        }

    @classmethod
    def from_parts(cls, config: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> Self:
        """Rebuild the model that ``config`` and ``arrays`` came from."""
        check_choice("model", config["model"], ["preprocessed"])

        def part(prefix: str) -> dict[str, NDArray[Any]]:
            return {k.removeprefix(prefix): v for k, v in arrays.items() if k.startswith(prefix)}

        kinds = {known.kind: known for known in (FeatureTransform, RowTransform, WhiteningTransform)}
        transforms = tuple(
            kinds[check_choice("kind", step["kind"], kinds)].from_parts(step, part(f"step{i}/"))
            for i, step in enumerate(config["steps"])
        )
        return cls(transforms, load_model(config["inner"], part("inner/")), int(config["n_features"]))


def unwrapped(model: Model, X: ArrayLike) -> tuple[Model, ArrayLike]:
    """The model behind all preprocessing, and the rows as it sees them."""
    while isinstance(model, PreprocessedModel):
        X = model.transform(X)
        model = model.inner
    return model, X


def _length_after(transforms: list[Transform]) -> float | None:
    """The length that the last transform gives to every row (but one of zeros); None where it gives none."""
    last = transforms[-1] if transforms else None
    if isinstance(last, WhiteningTransform):
        return 1.0
    return last.bound if isinstance(last, RowTransform) and last.unit and last.shift is None else None


@dataclass(frozen=True)
class Preprocessed:
    """Steps in front of a mechanism, as one mechanism with one event.

    ``share`` is the public part of the squared Gaussian-DP budget that ``calibrated`` gives to the private
    steps (equally among them); the mechanism gets what the composition leaves. Steps with public constants
    cost nothing. A stability bound of the mechanism is kept only if every step is data independent.

    Theory: section 1.5; Results B and C
    """

    steps: tuple[Step, ...]
    mechanism: Mechanism
    share: float = 0.1

    def __post_init__(self) -> None:
        object.__setattr__(self, "steps", tuple(self.steps))
        for step in self.steps:
            if not isinstance(step, Step):
                raise TypeError(f"steps must be preprocessing steps, got {type(step).__name__}")
        check_probability("share", self.share)

    @property
    def event(self) -> DpEvent | None:
        """The composition of all steps and the mechanism; None while some noise is not set."""
        parts: tuple[HasEvent, ...] = (*self._private_steps, self.mechanism)
        known = [part.event for part in parts if part.event is not None]
        return compose(*known) if len(known) == len(parts) else None

    @property
    def _private_steps(self) -> tuple[Step, ...]:
        return tuple(step for step in self.steps if not step.data_independent)

    def configured(self, needs: Needs) -> Self:
        """A copy whose mechanism is told."""
        return replace(self, mechanism=configured(self.mechanism, needs))

    @property
    def trains_persons(self) -> bool:
        """Whether the mechanism and every private step take weights."""
        return trains_persons(self.mechanism) and all(isinstance(step, WeightedStep) for step in self._private_steps)

    def rehearse(self, input_shape: tuple[int, ...]) -> Rehearsal | None:
        """The mechanism's own rehearsal; steps keep the width of a row."""
        return rehearsal(self.mechanism, input_shape)

    def stability(self, n_features: int, n_records: int, classes: tuple[Any, ...] | None = None) -> Stability | None:
        """The mechanism's bound if every step is data independent (such steps keep the width), else None."""
        return None if self._private_steps else shift_bound(self.mechanism, n_features, n_records, classes)

    def calibrated(self, epsilon: float, delta: float, *, accountant: str | Accountant = "pld") -> Self:
        """A new mechanism whose whole event is (epsilon, delta)-DP; steps whose noise is set keep it."""
        check_positive("epsilon", epsilon)
        check_probability("delta", delta)
        if not self._private_steps:
            return replace(self, mechanism=self.mechanism.calibrated(epsilon, delta, accountant=accountant))
        if not isinstance(self.mechanism, Tunable):
            raise TypeError(
                f"{type(self.mechanism).__name__} has no noise_multiplier to solve for behind private steps: set its "
                "noise yourself"
            )
        tunable, mu = self.mechanism, gdp_mu(epsilon, delta)
        still_open = sum(step.event is None for step in self.steps)
        each = math.sqrt(max(1, still_open) / self.share) / mu
        steps = tuple(step.with_noise(each) if step.event is None else step for step in self.steps)
        fixed = compose(*(paid_event(step) for step in steps if not step.data_independent))
        if epsilon_of(fixed, delta, accountant) >= epsilon:
            raise BudgetError(
                f"the preprocessing steps alone spend the budget of epsilon = {epsilon:g} at delta = {delta:g}; "
                "raise epsilon or give them more noise"
            )
        left = gdp_epsilon(delta, mu * math.sqrt(1 - self.share))
        noise = smallest_noise(
            lambda z: compose(fixed, paid_event(tunable.with_noise(z))),
            epsilon,
            delta,
            accountant=accountant,
            guess=start_below(set_noise(tunable.calibrated(left, delta, accountant=accountant).noise_multiplier)),
        )
        return replace(self, steps=steps, mechanism=tunable.with_noise(noise))

    def train(
        self,
        X: ArrayLike,
        y: ArrayLike,
        *,
        random_state: int | None = None,
        n_records: int | None = None,
        persons: Persons | None = None,
    ) -> Trained:
        """Fit the steps one after the other, then train on the transformed rows."""
        paid_event(self)  # fails before any data is touched while some noise is not set
        raw = check_rows(X)
        if persons is not None:
            require_persons(self)  # before a step releases anything
        units = Persons.of_rows(persons, len(raw))
        n = check_count(units.count_name, units.count if n_records is None else n_records)
        rows: NDArray[Any] = raw
        rng = secure_generator(stream_seed(random_state, PREPROCESSING))
        transforms: list[Transform] = []
        for step in self.steps:
            if persons is not None and isinstance(step, WeightedStep):
                transforms.append(step.fit(rows, n_records=n, rng=rng, weights=persons.weights))
            else:
                transforms.append(step.fit(rows, n_records=n, rng=rng))
            rows = transforms[-1].apply(rows)
        inner = train_persons(self.mechanism, rows, y, persons=persons, random_state=random_state, n_records=n_records)
        independent = all(step.data_independent for step in self.steps)
        trajectory = inner.trajectory
        if trajectory is not None and not isinstance(inner.model, PreprocessedModel):
            trajectory = replace(trajectory, row_length=_length_after(transforms))
        return Trained(
            PreprocessedModel(tuple(transforms), inner.model, raw.shape[1]),
            compose(*map(paid_event, self._private_steps), inner.event),
            inner.stability if independent else None,
            inner.public_facts,
            trajectory,
        )
