"""Put preprocessing before a mechanism, and transforms before its model.

`Preprocessed` puts steps in front of any mechanism and is itself a mechanism. The cost of its steps counts as training.
`PreprocessedModel` is its released model.

Theory: Fact 5; Result B
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from operator import methodcaller
from typing import Any, Self

import numpy as np
from dp_accounting.dp_event import DpEvent
from numpy.typing import ArrayLike, NDArray

from dpscp._base.checks import (
    check_choice,
    check_positive,
    check_probability,
    check_range,
)
from dpscp._base.progress import announce
from dpscp.data.sources import Block
from dpscp.data.sources.base import Rows
from dpscp.data.sources.places import resize_rows
from dpscp.data.validation import count_numbers
from dpscp.exceptions import BudgetError
from dpscp.guarantees.stability import Stability
from dpscp.privacy import Accountant, compose, epsilon_of, secure_generator
from dpscp.privacy.random_streams import PREPROCESSING, stream_seed
from dpscp.training.base import (
    Around,
    Checked,
    Mechanism,
    Needs,
    Trained,
    TrainingRun,
    require_mechanism,
)
from dpscp.training.engine.rows import check_rows, target_units
from dpscp.training.model import InfluenceForm, Model, load_model, saved_as
from dpscp.training.preprocessing.steps import TRANSFORMS, Step, Transform


@saved_as("preprocessed")
@dataclass(frozen=True)
class PreprocessedModel(Model):
    """A model after fitted transforms, with a scaled target, or both.

    It has parameters and released numbers only.

    Parameters
    ----------
    transforms : tuple of Transform
        Applied to rows in this order.
    inner : Model
    n_features : int
        The width of a row before the transforms.
    y_bounds : (low, high) or None
        The targets that outputs -1 and 1 of the inner model stand for; None where it has the units of the target.

    Theory: Facts 1 and 7
    """

    transforms: tuple[Transform, ...]
    inner: Model
    n_features: int
    y_bounds: tuple[float, float] | None = None

    @property
    def task(self) -> str:
        return self.inner.task

    @property
    def classes(self) -> tuple[Any, ...] | None:
        """Return those of the inner model."""
        return self.inner.classes

    def transform(self, X: ArrayLike) -> NDArray[Any]:
        """Return the rows as the inner model sees them."""
        rows: NDArray[Any] = check_rows(X, self.n_features)
        for step in self.transforms:
            rows = step.apply_to_records(rows)
        return rows

    def outputs(self, X: ArrayLike) -> NDArray[Any]:
        """Return the inner model's outputs on transformed rows, in target units."""
        found = self._in_parts(X, self.inner.outputs) if self.transforms else self.inner.outputs(X)
        return found if self.y_bounds is None else target_units(found, self.y_bounds)

    def predict_proba(self, X: ArrayLike) -> NDArray[Any]:
        return self._in_parts(X, self.inner.predict_proba)

    def _in_parts(self, X: ArrayLike, of_rows: Callable[[NDArray[Any]], NDArray[Any]]) -> NDArray[Any]:
        rows = check_rows(X, self.n_features, finite=False)  # each part is looked at while it is in cache
        block = Block(0, rows, rows[:, 0]).with_steps(self.transform)
        return np.concatenate([of_rows(part) for _, part in block.parts()] or [of_rows(block.read())])

    @property
    def is_row_wise(self) -> bool:
        return self.inner.is_row_wise

    def influence_form(self) -> InfluenceForm:
        form = self.inner.influence_form()
        steps = (*(step.apply_to_records for step in self.transforms), *form.row_steps)
        ranges = form.target_ranges if self.y_bounds is None else (self.y_bounds, *form.target_ranges)
        return replace(form, row_steps=steps, target_ranges=ranges)

    def with_output_scale(self, scale: float, shift: ArrayLike) -> Self:
        if self.y_bounds is not None:
            return super().with_output_scale(scale, shift)
        return replace(self, inner=self.inner.with_output_scale(scale, shift))

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the parameters, for saving.

        The keys are "inner/..." and "step0/...", "step1/...".
        """
        parts = {f"inner/{name}": value for name, value in self.inner.arrays().items()}
        for i, step in enumerate(self.transforms):
            parts |= {f"step{i}/{name}": value for name, value in step.arrays().items()}
        return parts

    def config(self) -> dict[str, Any]:
        return {
            "model": "preprocessed",
            "n_features": self.n_features,
            "steps": [step.config() for step in self.transforms],
            "inner": self.inner.config(),
            "y_bounds": None if self.y_bounds is None else list(self.y_bounds),
        }

    @classmethod
    def from_parts(cls, config: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> Self:
        check_choice("model", config["model"], ["preprocessed"])

        def part(prefix: str) -> dict[str, NDArray[Any]]:
            return {k.removeprefix(prefix): v for k, v in arrays.items() if k.startswith(prefix)}

        transforms = tuple(
            TRANSFORMS[check_choice("kind", step["kind"], TRANSFORMS)].from_parts(step, part(f"step{i}/"))
            for i, step in enumerate(config["steps"])
        )
        y_bounds = None if config["y_bounds"] is None else check_range("y_bounds", config["y_bounds"])
        return cls(transforms, load_model(config["inner"], part("inner/")), int(config["n_features"]), y_bounds)


def unwrap_model(model: Model) -> tuple[Model, tuple[Rows, ...]]:
    """Return the inner model, and the functions that prepare its rows.

    What these functions return is finite.
    """
    steps: tuple[Rows, ...] = ()
    while isinstance(model, PreprocessedModel) and model.y_bounds is None:
        for transform in model.transforms:
            steps += (transform.apply_to_records,)
        model = model.inner
    return model, steps


@dataclass(frozen=True)
class Preprocessed(Around):
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
        them. The mechanism gets what the composition leaves. Steps whose noise is set keep it.

    A stability bound of the mechanism is kept only if every step is public.

    Theory: Fact 5; Results B and C
    """

    steps: tuple[Step, ...]
    mechanism: Mechanism
    share: float = 0.1

    def __post_init__(self) -> None:
        require_mechanism(self.mechanism)
        object.__setattr__(self, "steps", tuple(self.steps))
        for step in self.steps:
            if not isinstance(step, Step):
                raise TypeError(
                    "steps must be instances of subclasses of dp.training.Step, got "
                    f"{step if isinstance(step, type) else type(step).__name__}"
                )
        check_probability("share", self.share)

    @property
    def own_parts(self) -> tuple[tuple[str, DpEvent | None], ...]:
        """Return the private steps with their events."""
        return tuple((step.stage, step.event) for step in self.steps if not step.is_public)

    @property
    def steps_before(self) -> tuple[Step, ...]:
        return self.steps

    def with_own_noise(self, mu: float) -> Self:
        each = math.sqrt(max(1, [event for _, event in self.own_parts].count(None))) / mu
        return replace(self, steps=tuple(s.with_noise(each) if s.event is None else s for s in self.steps))

    def configured(self, needs: Needs) -> Self:
        named = [type(step).__name__ for step in self.steps if step.uses_own_target]
        if named and needs.trajectory:
            raise ValueError(
                f"{named[0]} puts the target of a record into its own row, which guarantee='corrected' does not "
                "correct; use guarantee='split' or 'universal', or remove the step"
            )
        return super().configured(needs)

    def check(self, input_shape: tuple[Any, ...]) -> Checked | None:
        """Check steps and mechanism for records of this shape.

        ValueError for a step that is for rows of another width. ValueError also for a mechanism with the caller's own
        code behind a step that changes the width, because how many columns are added is known only after the release.
        """
        shape = self._shape_after(input_shape)
        adding = [step for step in self.steps if step.width_after(1) is None]
        if not adding:
            return self.mechanism.check(shape)
        try:
            is_own_code = self.mechanism.check(input_shape) is not None
        except ValueError:
            is_own_code = True
        if is_own_code:
            raise ValueError(
                f"{type(adding[0]).__name__} changes the number of columns by what it releases, so a torch module "
                "cannot be checked before the budget is spent; use another step, such as PrivateStandardize, or DPSGD"
            )
        return None

    def _shape_after(self, input_shape: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the shape of a record after the steps.

        Raises ``ValueError`` for a step that is for another width. Behind a step whose release decides the width, this
        is the width without what it adds.
        """
        width = before = count_numbers(input_shape)
        adding: Step | None = None
        parts: tuple[Step | Mechanism, ...] = (*self.steps, self.mechanism)
        for part in parts:
            name, expected = type(part).__name__, part.input_width
            if expected is not None and adding is not None:
                raise ValueError(
                    f"{name} is for rows of {expected} features, but the number of columns that "
                    f"{type(adding).__name__} adds is known only after its release; put {name} first"
                )
            if expected not in (None, width):
                behind = "" if width == before else f", {width} after the steps before it"
                raise ValueError(
                    f"{name} is for rows of {expected} features, but X has {before}{behind}; set the step to the "
                    "number of columns that it receives"
                )
            if isinstance(part, Step):
                after = part.width_after(width)
                adding, width = (part, width) if after is None else (adding, after)
        return input_shape if width == before else (width,)

    def stability(self, n_features: int, n_records: int, classes: tuple[Any, ...] | None = None) -> Stability | None:
        """Return the mechanism's bound if every step is public, else None."""
        if self.own_parts:
            return None
        return self.mechanism.stability(math.prod(self._shape_after((n_features,))), n_records, classes)

    def calibrated(self, epsilon: float, delta: float, *, accountant: str | Accountant = "pld") -> Self:
        events = [event for _, event in self.own_parts if event is not None]
        if events and epsilon_of(compose(*events), delta, accountant) >= check_positive("epsilon", epsilon):
            raise BudgetError(
                f"the preprocessing steps alone spend the budget of epsilon = {epsilon:g} at delta = {delta:g}; "
                "raise epsilon or give them more noise"
            )
        return super().calibrated(epsilon, delta, accountant=accountant)

    def train_on(self, run: TrainingRun) -> Trained:
        """Fit the steps one after the other, then train on the transformed rows."""
        source = run.source
        rng = secure_generator(stream_seed(run.random_state, PREPROCESSING))
        transforms: list[Transform] = []
        for step in self.steps:
            if not step.is_public:
                announce(step.stage)
            fitted = step.fit_source(source, n_records=run.n_records, rng=rng, random_state=run.random_state)
            transforms.append(fitted)
            source = source.map(methodcaller("with_steps", fitted.apply_to_records))
            if fitted.width is not None:
                source = resize_rows(source, fitted.width)
        inner = run.train_inner(self.mechanism, source)
        trajectory = inner.trajectory
        has_steps = isinstance(inner.model, PreprocessedModel) and inner.model.transforms
        if trajectory is not None and transforms and not has_steps:
            trajectory = replace(trajectory, row_length=transforms[-1].row_length)
        found = dict(inner.found_privately)
        used = found.get("features_used", ())
        for fitted in reversed(transforms):
            used = fitted.features or tuple(sorted({fitted.origins[i] for i in used} if fitted.origins else used))
        if used:
            found["features_used"] = used
        return replace(
            inner,
            model=PreprocessedModel(tuple(transforms), inner.model, run.source.width),
            stability=None if self.own_parts else inner.stability,
            trajectory=trajectory,
            public_facts={**inner.public_facts, **found},
            found_privately=found,
        )
