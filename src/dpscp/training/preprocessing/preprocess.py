"""Combine preprocessing steps and a mechanism into one mechanism.

``Preprocessed`` puts steps (``sums``) in front of any mechanism and is itself a mechanism with one event in the ledger.
What its steps learn counts as training. ``PreprocessedModel`` is its released model.

Theory: section 1.5; Result B
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from operator import methodcaller
from typing import Any, Self

import numpy as np
from dp_accounting.dp_event import DpEvent
from numpy.typing import ArrayLike, NDArray

from dpscp._base.checks import check_choice, check_positive, check_probability
from dpscp.data.sources import Block, RecordSource
from dpscp.data.sources.base import Rows
from dpscp.data.sources.places import as_one_block, resize_rows
from dpscp.exceptions import BudgetError
from dpscp.guarantees.stability import Stability
from dpscp.privacy import Accountant, compose, epsilon_of, gdp_epsilon, gdp_mu, secure_generator, smallest_noise
from dpscp.privacy.noise_search import start_below
from dpscp.privacy.random_streams import PREPROCESSING, stream_seed
from dpscp.training.engine.batching import SourceTraining, TrainingRun, nominal_count
from dpscp.training.engine.gaussian_release import source_sum
from dpscp.training.engine.networks import check_rows
from dpscp.training.mechanism import (
    DryRun,
    HasEvent,
    HasPlaceForSteps,
    Mechanism,
    Needs,
    Stages,
    Trained,
    Tunable,
    configured,
    find_dry_run,
    load_model,
    paid_event,
    require_noise,
    saved_as,
    shift_bound,
    stages_of,
    stages_of_trained,
    trains_persons,
    trains_sources,
)
from dpscp.training.model import InfluenceForm, Model, find_influence_form, is_row_wise, scale_outputs
from dpscp.training.preprocessing.components import ComponentTransform
from dpscp.training.preprocessing.quantile_transform import QuantileRows
from dpscp.training.preprocessing.random_features import RandomFeatureRows
from dpscp.training.preprocessing.sums import (
    ResizingStep,
    SourceStep,
    Step,
    SummedStep,
    WeightedStep,
    stage_of_step,
)
from dpscp.training.preprocessing.transforms import (
    FeatureTransform,
    HasRowLength,
    HasWidth,
    RowTransform,
    ScaleTransform,
    Transform,
)
from dpscp.training.preprocessing.whitening import WhiteningTransform
from dpscp.training.widths import FixedWidth

_TRANSFORMS = (
    ComponentTransform,
    FeatureTransform,
    QuantileRows,
    RandomFeatureRows,
    RowTransform,
    ScaleTransform,
    WhiteningTransform,
)


@saved_as("preprocessed")
@dataclass(frozen=True)
class PreprocessedModel:
    """A model behind fitted transforms: parameters and released numbers only.

    Parameters
    ----------
    transforms : tuple of Transform
        Applied to rows in this order.
    inner : Model
    n_features : int
        The width of a row before the transforms.

    Theory: section 1.7
    """

    transforms: tuple[Transform, ...]
    inner: Model
    n_features: int

    @property
    def task(self) -> str:
        return self.inner.task

    @property
    def classes(self) -> tuple[Any, ...] | None:
        return self.inner.classes

    def transform(self, X: ArrayLike) -> NDArray[Any]:
        """Return the rows as the inner model sees them."""
        rows: NDArray[Any] = check_rows(X, self.n_features)
        for step in self.transforms:
            rows = step.apply(rows)
        return rows

    def outputs(self, X: ArrayLike) -> NDArray[Any]:
        """Return the inner model's outputs on the transformed rows."""
        return self._in_parts(X, self.inner.outputs)

    def predict_proba(self, X: ArrayLike) -> NDArray[Any]:
        return self._in_parts(X, self.inner.predict_proba)

    def _in_parts(self, X: ArrayLike, of_rows: Callable[[NDArray[Any]], NDArray[Any]]) -> NDArray[Any]:
        rows = check_rows(X, self.n_features, finite=False)  # each part is looked at while it is in cache
        block = Block(0, rows, rows[:, 0]).with_steps(self.transform)
        return np.concatenate([of_rows(part) for _, part in block.parts()] or [of_rows(block.read())])

    @property
    def is_row_wise(self) -> bool:
        return is_row_wise(self.inner)

    @property
    def checks_rows(self) -> bool:
        return True

    def influence_form(self) -> InfluenceForm:
        form = find_influence_form(self.inner)
        steps = (step.apply for step in self.transforms)
        return replace(form, row_steps=(*steps, *form.row_steps))

    def with_output_scale(self, scale: float, shift: ArrayLike) -> Self:
        return replace(self, inner=scale_outputs(self.inner, scale, shift))

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the parameters, for saving.

        Keys "inner/..." and "step0/...", "step1/...".
        """
        parts = {f"inner/{name}": value for name, value in self.inner.arrays().items()}
        for i, step in enumerate(self.transforms):
            parts.update({f"step{i}/{name}": value for name, value in step.arrays().items()})
        return parts

    def config(self) -> dict[str, Any]:
        return {
            "model": "preprocessed",
            "n_features": self.n_features,
            "steps": [step.config() for step in self.transforms],
            "inner": self.inner.config(),
        }

    @classmethod
    def from_parts(cls, config: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> Self:
        check_choice("model", config["model"], ["preprocessed"])

        def part(prefix: str) -> dict[str, NDArray[Any]]:
            return {k.removeprefix(prefix): v for k, v in arrays.items() if k.startswith(prefix)}

        kinds = {known.kind: known for known in _TRANSFORMS}
        transforms = tuple(
            kinds[check_choice("kind", step["kind"], kinds)].from_parts(step, part(f"step{i}/"))
            for i, step in enumerate(config["steps"])
        )
        return cls(transforms, load_model(config["inner"], part("inner/")), int(config["n_features"]))


def unwrap_model(model: Model) -> tuple[Model, tuple[Rows, ...]]:
    """Return the model behind all preprocessing, and the functions of its rows.

    The rows are known to be finite.
    """
    steps: tuple[Rows, ...] = ()
    while isinstance(model, PreprocessedModel):
        steps = (*steps, *(transform.apply for transform in model.transforms))
        model = model.inner
    return model, steps


def _length_after(transforms: list[Transform]) -> float | None:
    """Return the length that the last transform gives to rows, or None.

    Rows of zeros stay zero.
    """
    last = transforms[-1] if transforms else None
    return last.row_length if isinstance(last, HasRowLength) else None


def put_steps_before(steps: tuple[Step, ...], mechanism: Mechanism) -> Mechanism:
    """Return the mechanism behind these steps, which are inside it where it has a place for them."""
    if not steps:
        return mechanism
    return mechanism.with_steps(steps) if isinstance(mechanism, HasPlaceForSteps) else Preprocessed(steps, mechanism)


@dataclass(frozen=True)
class Preprocessed(SourceTraining):
    """Put preprocessing steps in front of a mechanism, as one mechanism.

    Privacy: ``event`` is the composition of the private steps and the mechanism; the unit is that of the mechanism.
    Steps with public constants cost nothing.

    Parameters
    ----------
    steps : tuple of Step
        Applied in this order.
    mechanism : Mechanism
        It trains on the transformed rows.
    share : float in (0, 1)
        The public part of the squared Gaussian-DP budget that ``calibrated`` gives to the private steps, equally among
        them. The mechanism gets what the composition leaves.

    A stability bound of the mechanism is kept only if every step is data independent.

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
        """Return the composition of all steps and the mechanism.

        None while some noise is not set.
        """
        parts: tuple[HasEvent, ...] = (*self._private_steps, self.mechanism)
        known = [part.event for part in parts if part.event is not None]
        return compose(*known) if len(known) == len(parts) else None

    @property
    def row_steps(self) -> tuple[Step, ...]:
        return self.steps

    @property
    def _private_steps(self) -> tuple[Step, ...]:
        return tuple(step for step in self.steps if not step.data_independent)

    @property
    def stages(self) -> Stages:
        """Return the entries of a ledger: the private steps, then those of the mechanism."""
        return (*self._step_stages, *stages_of(self.mechanism))

    @property
    def _step_stages(self) -> Stages:
        return tuple((stage_of_step(step), paid_event(step)) for step in self._private_steps)

    def configured(self, needs: Needs) -> Self:
        return replace(self, mechanism=configured(self.mechanism, needs))

    @property
    def trains_persons(self) -> bool:
        """Return whether the mechanism and every private step take persons."""
        able = all(isinstance(step, WeightedStep | SourceStep) for step in self._private_steps)
        return trains_persons(self.mechanism) and able

    @property
    def trains_sources(self) -> bool:
        """Return whether the mechanism and every private step can."""
        able = all(isinstance(step, SummedStep | SourceStep) for step in self._private_steps)
        return trains_sources(self.mechanism) and able

    def run_dry(self, input_shape: tuple[int, ...]) -> DryRun | None:
        """Run the mechanism's dry run on rows of the width behind the steps.

        ValueError for a step that is for rows of another width. ValueError also for a mechanism with the caller's own
        code behind a step that changes the width, because how many columns are added is known only after the release.
        """
        resizing, shape = [step for step in self.steps if isinstance(step, SourceStep)], self._shape_after(input_shape)
        if not resizing:
            return find_dry_run(self.mechanism, shape)
        try:
            is_own_code = find_dry_run(self.mechanism, input_shape) is not None
        except ValueError:
            is_own_code = True
        if is_own_code:
            raise ValueError(
                f"{type(resizing[0]).__name__} changes the number of columns by what it releases, so a torch module "
                "cannot be checked before the budget is spent; use another step, such as PrivateStandardize, or DPSGD"
            )
        return None

    def _shape_after(self, input_shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of a record behind the steps; ValueError for a step that is for another width.

        Behind a step whose release decides the width, this is the width without what it adds.
        """
        width = before = math.prod(input_shape)
        adding: Step | None = None
        for step in (*self.steps, self.mechanism):
            if isinstance(step, FixedWidth) and step.input_width is not None:
                _check_width(step, step.input_width, width, before, adding)
            if isinstance(step, ResizingStep):
                adding = None if step.width_after(width) == step.width_after(width + 1) else adding
                width = step.width_after(width)
            elif isinstance(step, SourceStep):
                adding = step
        return input_shape if width == before else (width,)

    def stability(self, n_features: int, n_records: int, classes: tuple[Any, ...] | None = None) -> Stability | None:
        """Return the mechanism's bound if every step is data independent, else None."""
        if self._private_steps:
            return None
        return shift_bound(self.mechanism, math.prod(self._shape_after((n_features,))), n_records, classes)

    def calibrated(self, epsilon: float, delta: float, *, accountant: str | Accountant = "pld") -> Self:
        """Return a new mechanism whose whole event is (epsilon, delta)-DP.

        Steps whose noise is set keep it.
        """
        check_positive("epsilon", epsilon)
        check_probability("delta", delta)
        if not self._private_steps:
            return replace(self, mechanism=self.mechanism.calibrated(epsilon, delta, accountant=accountant))
        if not isinstance(self.mechanism, Tunable):
            raise TypeError(
                f"{type(self.mechanism).__name__} has no noise_multiplier to solve for after private steps; set its "
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
        # only where the search starts; near delta a smaller level costs no epsilon at all
        left = gdp_epsilon(delta, mu * math.sqrt(1 - self.share)) or epsilon
        noise = smallest_noise(
            lambda z: compose(fixed, paid_event(tunable.with_noise(z))),
            epsilon,
            delta,
            accountant=accountant,
            guess=start_below(require_noise(tunable.calibrated(left, delta, accountant=accountant).noise_multiplier)),
        )
        return replace(self, steps=steps, mechanism=tunable.with_noise(noise))

    def _train(self, run: TrainingRun) -> Trained:
        """Fit the steps one after the other, then train on the transformed rows."""
        paid_event(self)  # fails before any data is touched while some noise is not set
        source, width = run.source, run.source.width
        if any(isinstance(step, SourceStep) for step in self.steps):
            self.run_dry((width,))  # refuses a module whose width would be known too late
        n, _ = nominal_count(source, run.n_records)
        rng = secure_generator(stream_seed(run.random_state, PREPROCESSING))
        transforms: list[Transform] = []
        for step in self.steps:
            transforms.append(_fit_step(step, source, n, rng, run.random_state))
            source = source.map(methodcaller("with_steps", transforms[-1].apply))
            if isinstance(transforms[-1], HasWidth):
                source = resize_rows(source, transforms[-1].width)
        inner = run.train_inner(self.mechanism, source)
        independent = all(step.data_independent for step in self.steps)
        trajectory = inner.trajectory
        if trajectory is not None and not isinstance(inner.model, PreprocessedModel):
            trajectory = replace(trajectory, row_length=_length_after(transforms))
        return replace(
            inner,
            model=PreprocessedModel(tuple(transforms), inner.model, width),
            event=compose(*map(paid_event, self._private_steps), inner.event),
            stability=inner.stability if independent else None,
            trajectory=trajectory,
            stages=(*self._step_stages, *stages_of_trained(inner)),
        )


def _check_width(step: FixedWidth, expected: int, width: int, before: int, adding: Step | None) -> None:
    """Refuse a step that is for rows of another width than they have, or whose width is known too late."""
    name = type(step).__name__
    if adding is not None:
        raise ValueError(
            f"{name} is for rows of {expected} features, but how many columns {type(adding).__name__} adds before it "
            f"is known only after the release; put {name} first"
        )
    if expected != width:
        behind = "" if width == before else f", {width} behind the steps before it"
        raise ValueError(
            f"{name} is for rows of {expected} features, but X has {before}{behind}; write the step for the columns "
            "that it gets"
        )


def _fit_step(
    step: Step, source: RecordSource, n_records: int, rng: np.random.Generator, random_state: int | None
) -> Transform:
    """Return the step's transform.

    From the source or its sums, or, for one that knows arrays only, from the rows.
    """
    if isinstance(step, SourceStep):
        return step.fit_source(source, n_records=n_records, random_state=random_state)
    if isinstance(step, SummedStep):
        return step.release(source_sum(step.part_moments, source, n_records), n_records=n_records, rng=rng)
    block = None if step.data_independent else as_one_block(source)
    if block is None:
        # of the records only their width may be used
        return step.fit(np.empty((0, source.width)), n_records=n_records, rng=rng)
    if block.persons is not None and isinstance(step, WeightedStep):
        return step.fit(block.read(), n_records=n_records, rng=rng, weights=block.weights)
    return step.fit(block.read(), n_records=n_records, rng=rng)
