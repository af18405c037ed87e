"""Standardize regression targets with a private center and scale.

Public bounds are often many times wider than the spread of the targets. Learning rate and clip norm are chosen for
targets of mean 0 and spread 1. Both numbers are released once, through one Gaussian mechanism. They are folded into the
last layer of the trained model, so the released model is an ordinary one in the units of the target. Where the
parameters are too short for those units, public bounds around the model turn its outputs into them.
"""

import math
import warnings
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np
from dp_accounting.dp_event import DpEvent
from numpy.typing import ArrayLike, NDArray

from dpscp._base.checks import check_positive, check_probability, check_range
from dpscp.data.sources import Block
from dpscp.exceptions import BudgetError, HintWarning
from dpscp.privacy import Accountant, compose, epsilon_of, gaussian_event, gdp_epsilon, gdp_mu, secure_generator
from dpscp.privacy.random_streams import TARGET_SCALE, stream_seed
from dpscp.training.engine.batching import TrainingRun, WrappedMechanism, nominal_count
from dpscp.training.engine.gaussian_release import (
    gaussian_release,
    sum_in_parts,
    sum_slack,
    total_of_blocks,
    weighted_rows,
)
from dpscp.training.mechanism import (
    Mechanism,
    Stages,
    Trained,
    paid_event,
    require_noise,
    stages_of,
    stages_of_trained,
)
from dpscp.training.model import Model, scale_outputs
from dpscp.training.preprocessing.scaling import ScaledTargetModel
from dpscp.training.targets import unit_targets

# One record, or one person with weights that add up to one, changes the sum of (v, v^2 - 1/2), v in [-1, 1], by at most
# this in norm.
SENSITIVITY = math.sqrt(1.25)
# Warn about a released spread that noise hides only below this part of half the range.
_WIDE = 0.2
# Parameters of 24 bits resolve the range if its ends are at most so many half ranges away from zero, and are far from
# overflow if half the range lies between these sizes.
_FARTHEST, _SIZES = 2.0**12, (2.0**-60, 2.0**60)


@dataclass(frozen=True)
class PrivateTarget(WrappedMechanism):
    """Train a regression mechanism on privately standardized targets.

    Targets are clipped to the public ``y_bounds`` and mapped to v in [-1, 1]. The scale is never below ``scale_floor``
    (of half the range) nor below what the noise can resolve, both public. ``share`` is the part of the squared
    Gaussian-DP budget that ``calibrated`` spends on mean and scale.

    Privacy: ``event`` is one Gaussian release of the sum of (v, v^2 - 1/2) over the records, composed with the
    mechanism. The unit is one record or person; the sensitivity of the sum is sqrt(5/4). The sum is divided by the
    public n_records. The cost counts as training.

    Assumes: the wrapped mechanism releases a `DenseModel`, possibly behind preprocessing. The two numbers go into its
    last layer, in the units of the target or, where its parameters are too short for them, in those of ``y_bounds``.
    There is no stability bound, and no trajectory is passed on (it would be in the standardized units).

    Theory: sections 1.1, 1.5; Result B
    """

    y_bounds: tuple[float, float] = (-1.0, 1.0)
    share: float = 0.05
    noise_multiplier: float | None = None
    scale_floor: float = 0.01

    stage: ClassVar[str] = "scale of the target"

    def __post_init__(self) -> None:
        object.__setattr__(self, "y_bounds", check_range("y_bounds", self.y_bounds))
        check_probability("share", self.share)
        check_positive("scale_floor", self.scale_floor)
        if self.noise_multiplier is not None:
            check_positive("noise_multiplier", self.noise_multiplier)

    @property
    def event(self) -> DpEvent | None:
        """Return the event of mean and scale, composed with the mechanism.

        None while some noise is not set.
        """
        inner = self.mechanism.event
        if self.noise_multiplier is None or inner is None:
            return None
        return compose(gaussian_event(self.noise_multiplier), inner)

    @property
    def stages(self) -> Stages:
        """Return the entries of a ledger: mean and scale, then those of the mechanism."""
        return ((self.stage, gaussian_event(require_noise(self.noise_multiplier))), *stages_of(self.mechanism))

    def calibrated(self, epsilon: float, delta: float, *, accountant: str | Accountant = "pld") -> Self:
        """Return a new mechanism whose whole event is (epsilon, delta)-DP.

        The mechanism gets what Gaussian DP leaves; where the accountant finds the composition above the
        budget, a little less.
        """
        check_positive("epsilon", epsilon)
        mu = gdp_mu(epsilon, check_probability("delta", delta))
        noise = 1 / (mu * math.sqrt(self.share))
        inner = calibrate_beside(self.mechanism, gaussian_event(noise), self.share, epsilon, delta, accountant)
        return replace(self, noise_multiplier=noise, mechanism=inner)

    def moments(self, y: ArrayLike, weights: NDArray[np.float64] | None = None) -> NDArray[np.float64]:
        """Return the exact weighted sums that `train` adds noise to.

        Never released as they are.
        """
        v = unit_targets(y, self.y_bounds)
        return np.array([sum_in_parts(np.sum, weighted_rows(part, weights)) for part in (v, v**2 - 0.5)])

    def _block_moments(self, block: Block) -> NDArray[np.float64]:
        return self.moments(block.targets, block.weights)

    def _train(self, run: TrainingRun) -> Trained:
        """Release mean and scale, then train on standardized targets.

        The model is returned in the units of the target.
        """
        paid_event(self)  # fails before any record is used while some noise is not set
        source = run.source
        n, _ = nominal_count(source, run.n_records)
        noise = require_noise(self.noise_multiplier) * SENSITIVITY * (1 + sum_slack(n))
        rng = secure_generator(stream_seed(run.random_state, TARGET_SCALE))
        total = total_of_blocks(self._block_moments, source, n)
        mean, square = gaussian_release(total, noise, rng, n) / n
        mean = float(np.clip(mean, -1.0, 1.0))
        # below this the variance would be mostly noise
        floor = min(1.0, max(self.scale_floor, math.sqrt(2 * noise / n)))
        scale = math.sqrt(min(1.0, max(floor**2, float(square) + 0.5 - mean**2)))
        if scale <= min(2 * floor, _WIDE):  # noise lifts it above the floor now and then
            warnings.warn(
                f"y_bounds=({self.y_bounds[0]:g}, {self.y_bounds[1]:g}) is so wide that the noise hides the spread of "
                "the target. Give a tighter range if one is publicly known, or y_bounds='private', which finds one",
                HintWarning,
                stacklevel=2,
            )
        standardized = source.map(_StandardizeTargets(self.y_bounds, mean, scale))
        inner = run.train_inner(self.mechanism, standardized)
        if inner.model.task != "regression":
            raise TypeError("PrivateTarget needs a mechanism for regression")
        model = _in_units(inner.model, mean, scale, self.y_bounds)
        # what the mechanism did spend: one that is not ours may say more than it planned
        own = gaussian_event(require_noise(self.noise_multiplier))
        stages = ((self.stage, own), *stages_of_trained(inner))
        facts = {**inner.public_facts, "y_bounds": self.y_bounds}
        event = compose(own, inner.event)
        return replace(
            inner, model=model, event=event, stability=None, public_facts=facts, trajectory=None, stages=stages
        )


def _in_units(model: Model, mean: float, scale: float, y_bounds: tuple[float, float]) -> Model:
    """Return the model of standardized targets in the units of the target."""
    low, high = y_bounds
    half, middle = (high - low) / 2, (low + high) / 2
    if _SIZES[0] <= half <= _SIZES[1] and max(-low, high) <= _FARTHEST * half:
        return scale_outputs(model, scale * half, middle + mean * half)
    return ScaledTargetModel(scale_outputs(model, scale, mean), y_bounds)


@dataclass(frozen=True)
class _StandardizeTargets:
    """Standardize the targets of a block with the released mean and scale."""

    y_bounds: tuple[float, float]
    mean: float
    scale: float

    def __call__(self, block: Block) -> Block:
        return block.with_targets((unit_targets(block.targets, self.y_bounds) - self.mean) / self.scale)


def calibrate_beside(
    mechanism: Mechanism, beside: DpEvent, share: float, epsilon: float, delta: float, accountant: str | Accountant
) -> Mechanism:
    """Return the mechanism within the budget that ``beside`` leaves.

    ``beside`` is a release of ``share`` of the squared budget.

    It gets what Gaussian DP leaves; where the accountant finds the composition above the budget, a little less.
    """
    rest = gdp_epsilon(delta, gdp_mu(epsilon, delta) * math.sqrt(1 - share))
    for _ in range(12):
        found = mechanism.calibrated(rest, delta, accountant=accountant)
        spent = epsilon_of(compose(beside, paid_event(found)), delta, accountant)
        if spent <= epsilon:
            return found
        rest *= 0.999 * epsilon / spent
    raise BudgetError(f"no noise found for epsilon = {epsilon:g} at delta = {delta:g}; raise epsilon or delta")
