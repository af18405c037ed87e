"""Scale regression targets: by public bounds alone, or by a private center and scale inside them."""

import math
import warnings
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Self

import numpy as np
from dp_accounting.dp_event import DpEvent
from numpy.typing import NDArray

from dpscp._base.checks import check_positive, check_probability, check_range
from dpscp.data.sources import Block
from dpscp.exceptions import HintWarning
from dpscp.guarantees.stability import Stability
from dpscp.privacy import gaussian_event, secure_generator
from dpscp.privacy.random_streams import TARGET_SCALE, stream_seed
from dpscp.training.base import Around, Mechanism, Trained, TrainingRun, require_mechanism, require_noise
from dpscp.training.engine.gaussian_release import (
    gaussian_release,
    sum_in_parts,
    sum_slack,
    total_of_blocks,
    weighted_rows,
)
from dpscp.training.engine.rows import unit_targets
from dpscp.training.model import Model
from dpscp.training.preprocessing.features import check_noise
from dpscp.training.preprocessing.preprocess import PreprocessedModel

# One record, or one person with weights that add up to one, changes the sum of (v, v^2 - 1/2), v in [-1, 1], by at most
# this in norm.
SENSITIVITY = math.sqrt(1.25)
# Warn about a released spread that noise hides only below this part of half the range.
_WIDE = 0.2
# Parameters of 24 bits resolve the range if its ends are at most so many half ranges away from zero, and are far from
# overflow if half the range lies between these sizes.
_FARTHEST, _SIZES = 2.0**12, (2.0**-60, 2.0**60)


def scale_targets(block: Block, y_bounds: tuple[float, float], mean: float = 0.0, scale: float = 1.0) -> Block:
    """Return the block with targets scaled from ``y_bounds`` to [-1, 1], less ``mean``, over ``scale``."""
    return block.with_targets((unit_targets(block.targets, y_bounds) - mean) / scale)


def in_target_units(model: Model, y_bounds: tuple[float, float]) -> PreprocessedModel:
    """Return the model of scaled targets with outputs in the units of the target."""
    return PreprocessedModel((), model, model.n_features, y_bounds)


@dataclass(frozen=True)
class ScaledTarget(Around):
    """Train on targets clipped to public bounds and scaled to [-1, 1].

    Privacy: no cost of its own; ``event`` is that of the inner mechanism.

    A stability bound is about the inner parameters; the Lipschitz constant of the score grows with the target's range.

    Parameters
    ----------
    mechanism : Mechanism
        It trains on the scaled targets. The outputs of its model are scaled back.
    y_bounds : (low, high)
        The public range of the target.

    Theory: Fact 1
    """

    mechanism: Mechanism
    y_bounds: tuple[float, float]

    def __post_init__(self) -> None:
        require_mechanism(self.mechanism)
        check_range("y_bounds", self.y_bounds)

    def stability(self, n_features: int, n_records: int, classes: tuple[Any, ...] | None = None) -> Stability | None:
        """Return the inner bound; the score's Lipschitz constant is in the target's own units."""
        return self._in_target_units(self.mechanism.stability(n_features, n_records, classes))

    def _in_target_units(self, bound: Stability | None) -> Stability | None:
        if bound is None or bound.score_lipschitz is None:
            return bound
        half_width = (self.y_bounds[1] - self.y_bounds[0]) / 2
        return replace(bound, score_lipschitz=bound.score_lipschitz * half_width)

    def train_on(self, run: TrainingRun) -> Trained:
        trained = run.train_inner(self.mechanism, run.source.map(partial(scale_targets, y_bounds=self.y_bounds)))
        model = in_target_units(trained.model, self.y_bounds)
        return replace(trained, model=model, stability=self._in_target_units(trained.stability))


@dataclass(frozen=True)
class PrivateTarget(Around):
    """Train a regression mechanism on privately standardized targets.

    Public bounds are often many times wider than the spread of the targets. Learning rate and clip norm are chosen for
    targets of mean 0 and spread 1. Targets are clipped to the public ``y_bounds`` and mapped to v in [-1, 1]. The scale
    is never below ``scale_floor`` (of half the range) nor below what the noise can resolve, both public. ``share`` is
    the part of the squared Gaussian-DP budget that ``calibrated`` spends on mean and scale.

    Privacy: ``event`` is one Gaussian release of the sum of (v, v^2 - 1/2) over the records, composed with the
    mechanism. The unit is one record or person; the sensitivity of the sum is sqrt(5/4). The sum is divided by the
    public n_records. The cost counts as training.

    Assumes: the wrapped mechanism releases a `DenseModel`, possibly behind preprocessing. The two numbers go into its
    last layer, in the units of the target or, where its parameters are too short for them, in those of ``y_bounds``.
    There is no stability bound, and no trajectory is passed on (it would be in the standardized units).

    Theory: Facts 1 and 5; Result B
    """

    mechanism: Mechanism
    y_bounds: tuple[float, float] = (-1.0, 1.0)
    share: float = 0.05
    noise_multiplier: float | None = None
    scale_floor: float = 0.01

    stage: ClassVar[str] = "scale of the target"

    def __post_init__(self) -> None:
        require_mechanism(self.mechanism)
        object.__setattr__(self, "y_bounds", check_range("y_bounds", self.y_bounds))
        check_probability("share", self.share)
        check_positive("scale_floor", self.scale_floor)
        check_noise(self)

    @property
    def own_parts(self) -> tuple[tuple[str, DpEvent | None], ...]:
        """Return the event of mean and scale."""
        return ((self.stage, None if self.noise_multiplier is None else gaussian_event(self.noise_multiplier)),)

    def with_own_noise(self, mu: float) -> Self:
        return replace(self, noise_multiplier=1 / mu)

    def moments(self, block: Block) -> NDArray[np.float64]:
        """Return the exact weighted sums over a block, which are never released as they are."""
        v = unit_targets(block.targets, self.y_bounds)
        return np.array([sum_in_parts(np.sum, weighted_rows(part, block.weights)) for part in (v, v**2 - 0.5)])

    def train_on(self, run: TrainingRun) -> Trained:
        """Release mean and scale, then train on standardized targets.

        The model is returned in the units of the target.
        """
        n, y_bounds = run.n_records, self.y_bounds
        noise = require_noise(self.noise_multiplier) * SENSITIVITY * (1 + sum_slack(n))
        rng = secure_generator(stream_seed(run.random_state, TARGET_SCALE))
        mean, square = gaussian_release(total_of_blocks(self.moments, run.source, n), noise, rng, n) / n
        mean = float(np.clip(mean, -1.0, 1.0))
        # below this the variance would be mostly noise
        floor = min(1.0, max(self.scale_floor, math.sqrt(2 * noise / n)))
        scale = math.sqrt(min(1.0, max(floor**2, float(square) + 0.5 - mean**2)))
        if scale <= min(2 * floor, _WIDE):  # noise lifts it above the floor now and then
            warnings.warn(
                f"y_bounds=({y_bounds[0]:g}, {y_bounds[1]:g}) is so wide that the noise hides the spread of the "
                "target. Give a tighter range if one is publicly known, or y_bounds='private', which finds one",
                HintWarning,
                stacklevel=2,
            )
        standardized = run.source.map(partial(scale_targets, y_bounds=y_bounds, mean=mean, scale=scale))
        inner = run.train_inner(self.mechanism, standardized)
        if inner.model.task != "regression":
            raise TypeError("PrivateTarget needs a mechanism for regression")
        facts = {**inner.public_facts, "y_bounds": y_bounds}
        model = self._in_units(inner.model, mean, scale)
        return replace(inner, model=model, stability=None, public_facts=facts, trajectory=None)

    def _in_units(self, model: Model, mean: float, scale: float) -> Model:
        """Return the model of standardized targets in the units of the target."""
        low, high = self.y_bounds
        half, middle = (high - low) / 2, (low + high) / 2
        if _SIZES[0] <= half <= _SIZES[1] and max(-low, high) <= _FARTHEST * half:
            return model.with_output_scale(scale * half, middle + mean * half)
        return in_target_units(model.with_output_scale(scale, mean), self.y_bounds)
