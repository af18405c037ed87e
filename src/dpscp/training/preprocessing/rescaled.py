"""Rescale targets, and recalibrate class probabilities privately.

The scale of the target is public or private. Recalibration. Clipping shortens the gradients of confident wrong
predictions. So the probabilities of the model are too near 0 and 1. A few noisy Newton steps on the training records
find a common factor of the logits (the inverse temperature) and an intercept for each class. Both are folded into the
last layer, so the released model is an ordinary one. For two classes the new probability is an increasing function of
the old one.

The steps solve the equations sum_i (p_i - e_i) = 0 and sum_i <p_i - e_i, h_i> = 0. Here e_i is the indicator of the
label, and h_i are the logits below the largest one, cut at -2. Wherever the recalibrated probabilities are right, both
sums have mean zero whatever h is. So the cut bounds what one record adds and bends nothing.

Theory: Facts 1 and 5; Result B
"""

import math
import warnings
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Self

import numpy as np
from dp_accounting.dp_event import DpEvent
from numpy.typing import NDArray

from dpscp._base.arrays import FloatArray
from dpscp._base.checks import check_count, check_probability, check_range
from dpscp._base.progress import announce
from dpscp.data.sources import Block, RecordSource
from dpscp.exceptions import HintWarning
from dpscp.guarantees.stability import Stability
from dpscp.privacy import gaussian_event, secure_generator
from dpscp.privacy.random_streams import RECALIBRATION, TARGET_SCALE, stream_seed
from dpscp.training.base import Around, Mechanism, Needs, Trained, TrainingRun, require_mechanism, require_noise
from dpscp.training.engine.noise import gaussian_release, sum_in_parts, sum_slack, total_of_blocks
from dpscp.training.engine.rows import encode_labels, unit_targets
from dpscp.training.model import Model
from dpscp.training.preprocessing.preprocessed import PreprocessedModel
from dpscp.training.preprocessing.steps import MOMENT_SENSITIVITY, check_noise, release_mean_and_scale, unit_moments

# Warn about a released spread that noise hides only below this part of half the range.
_WIDE = 0.2
# Parameters of 24 bits resolve the range if its ends are at most so many half ranges away from zero, and are far from
# overflow if half the range lies between these sizes.
_FARTHEST, _SIZES = 2.0**12, (2.0**-60, 2.0**60)
# The instrument h is cut here. Lower cuts need more noise and gain nothing on the tables of docs/recipe.md.
_CUT = 2.0
# The curvature of one record counts with this weight, and with norm at most one: it only sets the length of a step.
_CURVATURE_WEIGHT = 0.3
# Proven in docs/guarantees.md: where <p - e, h> and p - e are longest, the weighted curvature is short.
RECALIBRATION_SENSITIVITY = math.sqrt(_CUT**2 + 2)
# Intercepts are found up to this many classes: noise would hide those of more.
MOST_INTERCEPTS = 16
# Prior of the factor and of an intercept, by which noise is shrunk: medians and standard deviations, factor in logs.
_FACTOR, _FACTOR_SPREAD, _INTERCEPT_SPREAD = 0.7, 0.5, 0.25
# What earlier steps found counts by this factor beside the next one; the rest is prior again.
_MEMORY = 0.5
_LONGEST_STEP = 1.0


def scale_targets(block: Block, y_bounds: tuple[float, float], mean: float = 0.0, scale: float = 1.0) -> Block:
    """Return the block with scaled targets, less ``mean``, over ``scale``.

    Targets are first scaled from ``y_bounds`` to [-1, 1].
    """
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

    def configured(self, needs: Needs) -> Self:
        return super().configured(replace(needs, y_bounds=None))

    def stability(self, n_features: int, n_records: int, classes: tuple[Any, ...] | None = None) -> Stability | None:
        """Return the inner bound, with the score in the target's own units.

        This concerns the score's Lipschitz constant.
        """
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
    is never below .01 (of half the range) nor below what the noise can resolve, both public. ``share`` is
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

    stage: ClassVar[str] = "scale of the target"

    def __post_init__(self) -> None:
        require_mechanism(self.mechanism)
        object.__setattr__(self, "y_bounds", check_range("y_bounds", self.y_bounds))
        check_probability("share", self.share)
        check_noise(self)

    def configured(self, needs: Needs) -> Self:
        return super().configured(replace(needs, y_bounds=None))

    @property
    def own_parts(self) -> tuple[tuple[str, DpEvent | None], ...]:
        """Return the event of mean and scale."""
        return ((self.stage, None if self.noise_multiplier is None else gaussian_event(self.noise_multiplier)),)

    def with_own_noise(self, mu: float) -> Self:
        return replace(self, noise_multiplier=1 / mu)

    def moments(self, block: Block) -> NDArray[np.float64]:
        """Return a block's exact weighted sums, never released without noise."""
        v = unit_targets(block.targets, self.y_bounds)
        return sum_in_parts(unit_moments, v, block.owners.weights)

    def train_on(self, run: TrainingRun) -> Trained:
        """Release mean and scale, then train on standardized targets.

        The model is returned in the units of the target.
        """
        n, y_bounds = run.n_records, self.y_bounds
        noise = require_noise(self.noise_multiplier) * MOMENT_SENSITIVITY * (1 + sum_slack(n))
        rng = secure_generator(stream_seed(run.random_state, TARGET_SCALE))
        total = total_of_blocks(self.moments, run.source, n)
        released_mean, released_scale, floor = release_mean_and_scale(total, noise, n, rng)
        mean, scale = float(released_mean), float(released_scale)
        if scale <= min(2 * floor, _WIDE):  # noise lifts it above the floor now and then
            warnings.warn(
                "y_bounds is so wide that the noise hides the spread of the target. Pass a tighter range if one is "
                "publicly known, or y_bounds='private', which finds one",
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


@dataclass(frozen=True)
class Recalibrated(Around):
    """Train a classification mechanism, then recalibrate its probabilities privately.

    Parameters
    ----------
    mechanism : Mechanism
        It must train a classifier.
    share : float in (0, 1)
        The part of the squared Gaussian-DP budget that ``calibrated`` spends on the steps.
    steps : int
        The number of noisy sums.
    noise_multiplier : float or None
        Noise scale over sensitivity; None: call ``calibrated`` first.

    Privacy: each step releases one sum over the records with Gaussian noise. A record adds a vector of norm at most
    sqrt(6), see ``record_sums``; the weights of a person add up to at most one. The unit is one record or person.
    ``event`` composes the mechanism and ``steps`` Gaussian events. The cost counts as training.

    Assumes: the wrapped mechanism releases a `DenseModel` with logits and intercept, possibly behind preprocessing.
    There is no stability bound, and no trajectory is passed on, because the released parameters are others.

    Theory: Facts 1 and 5; Result B
    """

    mechanism: Mechanism
    share: float = 0.05
    steps: int = 3
    noise_multiplier: float | None = None

    stage: ClassVar[str] = "recalibration"
    releases_last: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require_mechanism(self.mechanism)
        check_probability("share", self.share)
        check_count("steps", self.steps)
        check_noise(self)

    @property
    def own_parts(self) -> tuple[tuple[str, DpEvent | None], ...]:
        """Return the cost of the steps; None while the noise is not set."""
        noise = self.noise_multiplier
        return ((self.stage, None if noise is None else gaussian_event(noise, self.steps)),)

    def with_own_noise(self, mu: float) -> Self:
        return replace(self, noise_multiplier=math.sqrt(self.steps) / mu)

    def train_on(self, run: TrainingRun) -> Trained:
        """Train, then recalibrate on the same records."""
        trained = run.train_inner(self.mechanism, run.source)
        seed = stream_seed(run.random_state, RECALIBRATION)
        model = self._recalibrate(trained.model, run.source, run.n_records, seed)
        return replace(trained, model=model, stability=None, trajectory=None)

    def _recalibrate(self, model: Model, source: RecordSource, n_records: int, seed: int | None) -> Model:
        """Return the model with the factor and the intercepts in its last layer."""
        classes = model.classes
        model.with_output_scale(1.0, 0.0)  # refuses a model without a last layer before anything is released
        assert classes is not None
        rng = secure_generator(seed)
        noise = require_noise(self.noise_multiplier) * RECALIBRATION_SENSITIVITY * (1 + sum_slack(n_records))
        search = _Search.start(len(classes))
        announce(self.stage)
        outputs = source.map(partial(block_outputs, model=model), keep=True)
        for _ in range(self.steps):
            sums = partial(block_sums, classes=classes, place=search.place)
            total = total_of_blocks(sums, outputs, n_records)
            search = search.after(gaussian_release(total, noise, rng, n_records), noise)
        return model.with_output_scale(math.exp(search.place[0]), search.intercepts)


def block_outputs(block: Block, model: Model) -> Block:
    """Return the block with the outputs of the model in place of its rows."""
    logits = np.empty((len(block), len(model.classes or ())))
    for part, rows in block.parts():
        logits[part] = model.outputs(rows)
    return replace(block, rows=logits, chosen=None, steps=(), n_columns=None)


def block_sums(block: Block, classes: tuple[Any, ...], place: FloatArray) -> FloatArray:
    """Return the exact weighted sums of one step over a block of outputs.

    They are never released without noise.

    ``place`` is the logarithm of the factor, then the intercepts, all released before.
    """
    labels = encode_labels(block.targets, classes)
    return sum_in_parts(lambda z, y, w: w @ record_sums(z, y, place), block.rows, labels, block.owners.weights)


def record_sums(logits: FloatArray, labels: NDArray[np.int64], place: FloatArray) -> FloatArray:
    """Return what each record adds to the sums of a step, one row each.

    Its norm is at most `RECALIBRATION_SENSITIVITY`. With u = factor * logits + intercepts less the largest, p =
    softmax(u), h = max(u, -2) and the label y, these are

    - <p - e_y, h>, of size at most 2 because h lies in [-2, 0] and p adds up to one;
    - p - e_y, of norm at most sqrt(2); it is left out where there are no intercepts;
    - the derivatives of these with respect to ``place``, a symmetric matrix. It is weighted and shortened to norm one;
      entries off the diagonal stand once, times sqrt(2).

    A record adds zeros where its logits, or the distances between them, are not finite.
    """
    n, n_classes = logits.shape
    has_intercepts = len(place) > 1
    with np.errstate(over="ignore", invalid="ignore"):
        u = math.exp(place[0]) * logits + (place[1:] if has_intercepts else 0.0)
        u -= u.max(axis=1, keepdims=True)
    # after the subtraction, which may overflow where the logits themselves do not
    finite = np.isfinite(u).all(axis=1, keepdims=True)
    u = np.where(finite, u, 0.0)
    p = np.exp(u)
    p /= p.sum(axis=1, keepdims=True)
    h = np.maximum(u, -_CUT)
    centered = h - (p * h).sum(axis=1, keepdims=True)
    mixed = p * centered
    rows = np.arange(n)
    pull = np.clip(-centered[rows, labels], -_CUT, _CUT)[:, None]
    steep = (mixed * u).sum(axis=1, keepdims=True)
    if has_intercepts:
        error = p.copy()
        error[rows, labels] -= 1
        upper = np.triu_indices(n_classes)
        curved = np.eye(n_classes)[upper] * p[:, upper[0]] - p[:, upper[0]] * p[:, upper[1]]
        curved *= np.where(upper[0] == upper[1], 1.0, math.sqrt(2))
        pull, curved = np.hstack([pull, error]), np.hstack([steep, math.sqrt(2) * mixed, curved])
    else:
        curved = steep
    curved *= _CURVATURE_WEIGHT
    curved /= np.maximum(1.0, np.linalg.norm(curved, axis=1, keepdims=True))
    return np.where(finite, np.hstack([pull, curved]), 0.0)


@dataclass(frozen=True)
class _Search:
    """The estimate between two steps: a normal distribution of the parameters.

    It follows from released numbers only.
    """

    place: FloatArray
    mean: FloatArray
    precision: FloatArray
    n_classes: int

    @classmethod
    def start(cls, n_classes: int) -> Self:
        """Return the prior."""
        size = 1 + (n_classes if n_classes <= MOST_INTERCEPTS else 0)
        place = np.zeros(size)
        place[0] = math.log(_FACTOR)
        spread = np.full(size, _INTERCEPT_SPREAD)
        spread[0] = _FACTOR_SPREAD
        return cls(place, place, np.diag(spread**-2.0), n_classes)

    @property
    def intercepts(self) -> FloatArray:
        """Return one intercept for each class."""
        return self.place[1:] if len(self.place) > 1 else np.zeros(self.n_classes)

    def after(self, noisy: FloatArray, noise: float) -> "_Search":
        """Return the estimate with the noisy sums of one more step.

        The sums are about curvature @ (place - solution), with the variance of a sum over records (the curvature) and
        of the noise. This is a measurement of the solution, which is combined with what is known.
        """
        size = len(self.place)
        slope = noisy[:size]
        curvature = np.zeros((size, size))
        upper = np.triu_indices(size)
        curvature[upper] = noisy[size:] / _CURVATURE_WEIGHT / np.where(upper[0] == upper[1], 1.0, math.sqrt(2))
        values, vectors = np.linalg.eigh(curvature + np.triu(curvature, 1).T)
        curvature = (vectors * np.maximum(values, 0.0)) @ vectors.T
        gain = curvature @ np.linalg.inv(curvature + (noise**2 + 1) * np.eye(size))
        weight = gain @ curvature
        precision = self.precision + weight
        found = np.linalg.solve(precision, self.precision @ self.mean + weight @ self.place - gain @ slope)
        place = self.place + np.clip(found - self.place, -_LONGEST_STEP, _LONGEST_STEP)
        prior = _Search.start(self.n_classes)
        next_precision = (1 - _MEMORY) * prior.precision + _MEMORY * precision
        known = (1 - _MEMORY) * prior.precision @ prior.mean + _MEMORY * precision @ found
        return replace(self, place=place, mean=np.linalg.solve(next_precision, known), precision=next_precision)
