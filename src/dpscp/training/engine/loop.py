"""Run noisy gradient steps: Poisson batches, rounded Gaussian noise, updates.

Floating point. The clipped sum plus noise leaves this module only after rounding to a public grid of 2**-20
noise standard deviations, and everything later is a function of grid points. The noise is drawn in float64,
whose spacing is about 2**-51 standard deviations, so each grid point is the result of roughly 2**31 noise values
whatever the sum is: looking at the low bits of a released parameter (Mironov 2012; Jin et al. 2022) tells
nothing. What remains is stated in docs/floating_point.md: probabilities are Gaussian only up to a relative error
of about 2**-31 a coordinate and step. The sum itself is computed in floating point: its sensitivity is proven to be at
most clip_norm * (1 + CLIP_SLACK), and the noise is scaled for that.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dpscp._base.arrays import Array
from dpscp.data.persons import Persons
from dpscp.data.sources import Block
from dpscp.privacy.normals import NormalNumbers
from dpscp.training.engine.gradients import CLIP_SLACK, MOST_RECORDS, ClippedGradient
from dpscp.training.engine.networks import Loss, Network, squared_norms
from dpscp.training.engine.padding import aligned_empty, is_aligned
from dpscp.training.engine.short_rows import restore_rows

# Spacing of the released grid in noise standard deviations: a power of two, so that scaling by it is exact.
GRID = 2.0**-20
# Small enough to leave the cache to the batch.
_GAPS_PER_BLOCK = 1 << 12
# Below this rate a gap is an exponential number rounded up, as in NumPy, which gives the same gaps.
_LONG_GAPS = 1 / 3
_NOISE_PER_BLOCK = 1 << 13
# Parameters that are updated at once: what a step keeps for so many stays in cache from one operation to the next.
_UPDATED_AT_ONCE = 1 << 14


@dataclass(frozen=True)
class EngineBlock(Block):
    """A block as the engine reads it, bias coordinate included.

    It exists only while training runs and is never stored.
    """

    squared_norms: Array = field(default_factory=lambda: np.empty(0), repr=False)
    """An input of every ghost norm."""
    scales: Array | None = field(default=None, repr=False)
    """Of rows that are integers, without a bias coordinate; see `short_rows`. None: the rows are as they are used."""

    @classmethod
    def build(
        cls,
        rows: Array,
        targets: Array,
        persons: Persons | None = None,
        *,
        block_id: int = 0,
        order: NDArray[np.int64] | None = None,
    ) -> "EngineBlock":
        """Precompute the squared norms of the rows."""
        return cls(block_id, rows, targets, persons, order=order, squared_norms=squared_norms(rows))

    def first(self, n: int) -> "EngineBlock":
        """Return the first n records, each of a person of its own."""
        scales = None if self.scales is None else self.scales[:n]
        return EngineBlock(0, self.rows[:n], self.targets[:n], squared_norms=self.squared_norms[:n], scales=scales)


def poisson_batches(rng: np.random.Generator, n: int, sampling_rate: float) -> Iterator[NDArray[np.int64]]:
    """Yield endless Poisson batches of n persons.

    Each person enters each batch independently with probability `sampling_rate`.

    The masks of all batches laid end to end are one Bernoulli sequence; the gaps between its ones are
    geometric, so drawing gaps is exact and costs as much as the persons drawn, not n. A batch has no maximal
    size: cutting it would break the accounting.
    """
    first = 0  # position of the current batch's first person
    block = np.empty(0, dtype=np.int64)  # positions drawn and not yet handed out
    last = -1
    while True:
        end = first + n
        parts = []
        while last < end:
            parts.append(block)
            block = _draw_gaps(rng, sampling_rate).cumsum()
            block += last
            last = int(block[-1])
        cut = block.searchsorted(end)
        batch = block[:cut]
        block = block[cut:]
        if parts:
            batch = np.concatenate([*parts, batch])
        yield batch - first
        first = end


def _draw_gaps(rng: np.random.Generator, sampling_rate: float) -> NDArray[np.int64]:
    """Draw geometric gaps; one beyond any run is cut short, so that a sum of them cannot overflow."""
    if sampling_rate > _LONG_GAPS:
        return np.minimum(rng.geometric(sampling_rate, _GAPS_PER_BLOCK), 1 << 50)
    # NumPy inverts an exponential in the same way, one number at a time, in twice the time
    gaps = rng.standard_exponential(_GAPS_PER_BLOCK)
    gaps /= -math.log1p(-sampling_rate)
    return np.minimum(np.ceil(gaps, out=gaps), 2.0**50, out=gaps).astype(np.int64)


def full_batches() -> Iterator[None]:
    """Yield endless full batches."""
    while True:
        yield None


class GridNoise:
    """Standard normal vectors in units of the grid, drawn in blocks of bounded size."""

    def __init__(self, rng: np.random.Generator, size: int) -> None:
        self._numbers = NormalNumbers(rng, 1 / GRID)
        shape = max(1, _NOISE_PER_BLOCK // size), size
        self._block, self._before = np.empty(shape), np.empty(shape)
        self._used = len(self._block)

    def next(self) -> Array:
        """Return the next vector.

        Overwritten by a later call, but not by the very next one.
        """
        if self._used == len(self._block):
            self._block, self._before = self._before, self._block
            self._numbers.fill(self._block.reshape(-1))
            self._used = 0
        vector: Array = self._block[self._used]
        self._used += 1
        return vector


def round_to_grid(total: Array, noise: Array, spacing: float) -> None:
    """Add noise in units of the grid to a sum, and replace the sum by the nearest grid point."""
    per_grid = 1 / spacing
    for start in range(0, total.size, _UPDATED_AT_ONCE):
        part = total[start : start + _UPDATED_AT_ONCE]
        part *= per_grid
        part += noise[start : start + _UPDATED_AT_ONCE]
        np.rint(part, out=part)
        part *= spacing


@dataclass(frozen=True)
class UpdateRule:
    """The use of a noisy gradient: post-processing with public constants."""

    optimizer: str
    learning_rates: Array
    momentum: float
    adam: tuple[float, float, float]
    radius: float | None
    averaged: int
    """How many of the last iterates the released parameters average; 1 is the last iterate."""

    def influence_weights(self, curvature: Array | None = None) -> Array | None:
        """Return minus the derivative of the result in each step's gradient.

        None for Adam.

        Later gradients are held fixed, or they respond: along a direction in which the mean loss has second derivative
        ``curvature[t]`` at step t, a gradient's push changes each later gradient by the curvature times what is left
        of the push. For plain SGD that is learning_rates[t] * prod_{s > t} (1 - learning_rates[s] * curvature[s]).

        Theory: Result D
        """
        if self.optimizer != "sgd":
            return None
        steps = len(self.learning_rates)
        answer = np.zeros(steps) if curvature is None else curvature
        weights = np.empty(steps)
        kept = carried = 0.0  # share of the iterate that step t leaves behind, in the release; weight of the step after
        for t in range(steps - 1, -1, -1):
            if t >= steps - self.averaged:
                kept += 1 / self.averaged
            weights[t] = carried = self.learning_rates[t] * kept + self.momentum * carried
            kept -= answer[t] * carried
        return weights


@dataclass(frozen=True)
class RunConstants:
    """The public constants of a run, wherever its records are."""

    network: Network
    loss: Loss
    initial: Array
    rule: UpdateRule
    clip_norm: float
    noise_multiplier: float
    normalizer: float
    dtype: str

    @property
    def grid(self) -> float:
        """Return the spacing to which a noisy sum is rounded.

        `GRID` of the noise, which pays for the rounding of the sum too.
        """
        return GRID * self.noise_multiplier * self.clip_norm * (1 + CLIP_SLACK)


@dataclass(frozen=True)
class StepView:
    """One step as an observer sees it."""

    parameters: Array
    noisy_sum: Array
    constants: tuple[float, float, float]
    """Normalizer, grid and learning rate."""


StepObserver = Callable[[StepView], None]


class BatchSums:
    """Sums of clipped gradients over batches, with the memory they need."""

    def __init__(self, network: Network, loss: Loss, clip_norm: float, dtype: str, batch: float) -> None:
        self.gradient = ClippedGradient(network, loss, clip_norm, dtype, batch=batch)
        chunk = self.gradient.chunk
        # padding is made of zeros or of earlier records: its results are never read
        self._rows = aligned_empty((chunk, network.shapes[0][1]), dtype)
        self._rows.fill(0)
        self._integers = np.empty((0, 0), dtype=np.int16)
        self._norms = np.zeros(chunk)
        self._target = np.zeros(chunk, dtype=np.int64 if loss.name == "cross_entropy" else dtype)

    def clipped(self, layers: Sequence[Array], records: EngineBlock, persons: NDArray[np.int64] | None) -> Array:
        """Return the weighted sum over the batch; the next call overwrites it.

        None stands for all persons.
        """
        gradient = self.gradient
        batch = None if persons is None else records.owners.rows_of(persons)
        size, chunk = len(records.rows) if batch is None else len(batch), gradient.chunk
        check_batch(size)
        aligned = batch is None and records.scales is None and is_aligned(records.rows, chunk)
        for start in range(0, size, chunk):
            m = min(chunk, size - start)
            block = (
                self._slice(records, start, m, aligned=aligned)
                if batch is None
                else self._gather(records, batch[start : start + m])
            )
            gradient.add(layers, *block, first=start == 0, cached=batch is not None)
        if not size:
            gradient.total.fill(0)
            return gradient.total
        return gradient.result()

    def _gather(self, records: EngineBlock, index: NDArray[np.int64]) -> tuple[Array, Array, Array, Array]:
        m, size = len(index), self.gradient.block(len(index))
        # mode="clip" writes straight into `out`; every index is valid by construction
        if records.scales is None:
            records.rows.take(index, axis=0, out=self._rows[:m], mode="clip")
        else:
            if not len(self._integers):
                self._integers = np.empty((self.gradient.chunk, records.rows.shape[1]), dtype=np.int16)
            integers = records.rows.take(index, axis=0, out=self._integers[:m], mode="clip")
            restore_rows(integers, records.scales.take(index), self._rows[:m])
        records.squared_norms.take(index, out=self._norms[:m], mode="clip")
        records.targets.take(index, out=self._target[:m], mode="clip")
        return self._rows[:size], self._norms[:size], self._target[:size], records.owners.weights_of(index)

    def _slice(self, records: EngineBlock, start: int, m: int, *, aligned: bool) -> tuple[Array, Array, Array, Array]:
        size = self.gradient.block(m)
        rows = records.rows[start : start + m]
        norms, target = records.squared_norms[start : start + m], records.targets[start : start + m]
        weights = records.owners.weights[start : start + m]
        if aligned and m == size:
            return rows, norms, target, weights
        self._norms[:m], self._target[:m] = norms, target
        if records.scales is None:
            self._rows[:m] = rows
        else:
            restore_rows(rows, records.scales[start : start + m], self._rows[:m])
        return self._rows[:size], self._norms[:size], self._target[:size], weights


def check_batch(size: int, most: int = MOST_RECORDS) -> None:
    """Refuse a batch for which the rounding of the sum is not bounded."""
    most = min(most, MOST_RECORDS)
    if size > most:
        raise ValueError(
            f"a batch has more than {most} records, the most for which the rounding of a sum is bounded; "
            "lower sampling_rate"
        )


class Totals(Protocol):
    """Sums of clipped gradients over all records of a run."""

    def clipped(self, parameters: Array, persons: NDArray[np.int64] | None, *, last: bool) -> Array:
        """Return the weighted sum over the persons at these places.

        None stands for all persons. Gradients are taken at ``parameters``.
        """


class Descent:
    """The state of one run.

    Two runs with the same batches and noise are coupled.

    `observer`, for tests and audits, is called with each step; what it sees is not private.
    """

    def __init__(self, public: RunConstants, totals: Totals, observer: StepObserver | None = None) -> None:
        network, rule, normalizer, dtype = public.network, public.rule, public.normalizer, public.dtype
        self.network, self.rule = network, rule
        self._totals, self._observer = totals, observer
        self.normalizer, self.grid = normalizer, public.grid
        # as arrays: what is turned into one at every step costs as much as a product
        self._per_grid = np.array(1 / self.grid if self.grid else 0.0)
        self._grid_over_normalizer = np.array(self.grid / normalizer)
        self._momentum = np.array(rule.momentum)
        self.parameters = public.initial.astype(np.float64)  # a float32 sum of thousands of small steps would drift
        self._fast = aligned_empty(self.parameters.shape, dtype)
        np.copyto(self._fast, self.parameters, casting="same_kind")
        # of one part at a time: memory for all of them would leave the cache at every step
        noisy = np.empty(min(network.n_parameters, _UPDATED_AT_ONCE))
        self._velocity = np.zeros(network.n_parameters)
        self._squares = np.zeros(network.n_parameters if rule.optimizer == "adam" else 0)
        self._sum = np.zeros(network.n_parameters)
        kept = self._velocity, self._squares, self.parameters, self._fast
        cuts = [slice(i, i + _UPDATED_AT_ONCE) for i in range(0, network.n_parameters, _UPDATED_AT_ONCE)]
        self._parts = [
            _Part(cut, noisy[: network.n_parameters - cut.start], *(array[cut] for array in kept)) for cut in cuts
        ]
        self.step_count = 0

    def clipped_sum(self, persons: NDArray[np.int64] | None) -> Array:
        """Return the weighted sum of clipped gradients at the current parameters.

        None stands for all persons.
        """
        last = self.step_count == len(self.rule.learning_rates) - 1
        return self._totals.clipped(self._fast, persons, last=last)

    def step(self, batch: NDArray[np.int64] | None, noise: Array | None) -> None:
        """Take one noisy step, also on an empty batch.

        `noise` is in grid units; None adds none (not private).
        """
        total = self.clipped_sum(batch)
        if self._observer is not None:
            noisy = np.concatenate([self._release(part, total, noise).copy() for part in self._parts])
            constants = (self.normalizer, self.grid, float(self.rule.learning_rates[self.step_count]))
            self._observer(StepView(self.current(), noisy * self.normalizer, constants))
        self._update(total, noise)

    def _update(self, total: Array, noise: Array | None) -> None:
        rule, rate = self.rule, self.rule.learning_rates[self.step_count]
        self.step_count += 1
        for part in self._parts:
            self._release(part, total, noise)
            self._move(part, rate)
        if rule.radius is not None:
            norm = math.sqrt(self.parameters @ self.parameters)
            if norm > rule.radius:
                self.parameters *= rule.radius / norm
            np.copyto(self._fast, self.parameters, casting="same_kind")
        if self.step_count > len(rule.learning_rates) - rule.averaged:
            self._sum += self.parameters

    def _release(self, part: "_Part", total: Array, noise: Array | None) -> Array:
        """Return the noisy gradient of some parameters, in memory that all parts share.

        Their sum with its noise, rounded to the grid, divided by the public normalizer.
        """
        noisy = part.noisy
        if noise is None:
            return np.divide(total[part.where], self.normalizer, out=noisy)
        np.multiply(total[part.where], self._per_grid, out=noisy)
        noisy += noise[part.where]
        np.rint(noisy, out=noisy)
        noisy *= self._grid_over_normalizer
        return noisy

    def _move(self, part: "_Part", rate: float) -> None:
        """Update some parameters; their gradient is overwritten."""
        rule, velocity, squares, theta, gradient = self.rule, part.velocity, part.squares, part.parameters, part.noisy
        if rule.optimizer == "adam":
            first, second, tiny = rule.adam
            t = self.step_count
            velocity *= first
            velocity += (1 - first) * gradient
            squares *= second
            np.square(gradient, out=gradient)
            gradient *= 1 - second
            squares += gradient
            np.sqrt(squares, out=gradient)
            gradient *= 1 / math.sqrt(1 - second**t)
            gradient += tiny
            np.divide(velocity, gradient, out=gradient)
            gradient *= rate / (1 - first**t)
        elif rule.momentum:
            velocity *= self._momentum
            velocity += gradient
            np.multiply(velocity, rate, out=gradient)
        else:
            gradient *= rate
        theta -= gradient
        if rule.radius is None:
            np.copyto(part.fast, theta, casting="same_kind")

    def current(self) -> Array:
        """Return the current iterate, in the precision the gradients see."""
        return self._fast.copy()

    def go_to(self, parameters: Array) -> None:
        """Continue from these parameters."""
        self.parameters[:] = parameters
        np.copyto(self._fast, parameters, casting="same_kind")

    def released(self) -> Array:
        """Return the average of the last iterates, after all steps."""
        with np.errstate(over="ignore"):  # a diverged run becomes infinite here and is refused by the caller
            return (self._sum / self.rule.averaged).astype(self._fast.dtype)


@dataclass(frozen=True, slots=True)
class _Part:
    """Views of what a `Descent` keeps for some of its parameters."""

    where: slice
    noisy: Array
    velocity: Array
    squares: Array
    parameters: Array
    fast: Array


Draw = tuple[Any, list[NDArray[np.int64] | None]]


def draw_steps(batches: Sequence[Iterator[NDArray[np.int64] | None]], noise: GridNoise | None) -> Iterator[Draw]:
    """Yield the noise and one batch of each stream, drawn in this order."""
    while True:
        vector = None if noise is None else noise.next()
        yield vector, [next(stream) for stream in batches]


def take_steps(descents: Sequence[Descent], drawn: Iterator[Draw]) -> Iterator[int]:
    """Advance all descents together, one step for each yield.

    Each has its own batches, and all share the noise.

    Overflow at extreme parameters is handled record by record: callers silence NumPy's warnings about it.
    """
    for t, (noise, batches) in zip(range(len(descents[0].rule.learning_rates)), drawn, strict=False):
        for descent, batch in zip(descents, batches, strict=True):
            descent.step(batch, noise)
        yield t
