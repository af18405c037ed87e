"""Run noisy gradient steps: Poisson batches, sums, rounded noise, updates.

Floating point. The clipped sum plus noise leaves this module only after rounding to a public grid of 2**-20
noise standard deviations, and everything later is a function of grid points. The noise is drawn in float64,
whose spacing is about 2**-51 standard deviations, so each grid point is the result of roughly 2**31 noise values
whatever the sum is, and the low bits of a released parameter (Mironov 2012; Jin et al. 2022) reveal nothing.
Probabilities are Gaussian up to a relative error of about 2**-31 a coordinate and step (docs/floating_point.md). The
sum itself is computed in floating point: its sensitivity is proven to be at most clip_norm * (1 + CLIP_SLACK), and the
noise is scaled for that.

Sums. An array in memory is a source of one block. The batch of a step is drawn once, as places in the order of all
persons (`dpscp.data.sources.places`). Every block takes its share and returns one vector of clipped gradients. Adding
the vectors by pairs keeps the proof of `CLIP_SLACK`. A term goes through at most 12,290 additions inside a block and 41
between blocks, fewer than the 12,400 that the proof counts.

Assumes: a record's gradient has the same bits wherever it stands. This includes the machine: workers run the same
libraries on the same kind of processor.
"""

import math
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import repeat
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from dpscp._base.arrays import Array
from dpscp.data.sources import Block, RecordSource
from dpscp.data.sources.places import Places, innermost, places_of
from dpscp.privacy.random_streams import secure_bytes
from dpscp.training.base import require_noise
from dpscp.training.engine.gradients import CLIP_SLACK, ClippedGradient, check_batch
from dpscp.training.engine.networks import DenseModel, Loss, Network
from dpscp.training.engine.noise import GRID, GridNoise
from dpscp.training.engine.rows import EngineBlock
from dpscp.training.engine.threads import PerThread, SecondThread, one_blas_thread

if TYPE_CHECKING:
    from dpscp.training.mechanisms.dpsgd import DPSGD

# The two decays of Adam, and the number that is added to its divisor.
_ADAM = 0.9, 0.999, 1e-8
# Small enough to leave the cache to the batch.
_GAPS_PER_BLOCK = 1 << 12


def poisson_batches(rng: np.random.Generator, n: int, sampling_rate: float) -> Iterator[NDArray[np.int64]]:
    """Yield batches of n persons without end, by Poisson sampling.

    Each person is in each batch with probability `sampling_rate`. The masks of all batches laid end to end are one
    Bernoulli sequence. The gaps between its ones are geometric, so drawing gaps is exact, and takes time for the
    persons drawn, not for n. A batch has no maximal size, because cutting it would break the accounting.
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
    """Draw geometric gaps: exponential numbers rounded up, whose sum is finite."""
    gaps = rng.standard_exponential(_GAPS_PER_BLOCK)
    gaps /= -math.log1p(-sampling_rate)
    return np.minimum(np.ceil(gaps, out=gaps), 2.0**50, out=gaps).astype(np.int64)


@dataclass(frozen=True)
class Setup:
    """One run with everything fixed except its randomness.

    It holds the records, so it must not outlive training.
    """

    mechanism: "DPSGD"
    network: Network
    source: RecordSource
    """The records as the engine reads them."""
    n_records: int
    classes: tuple[Any, ...] | None = None

    @cached_property
    def loss(self) -> Loss:
        """Return the loss of a record."""
        return Loss(self.mechanism.loss, self.mechanism.quantiles)

    @property
    def normalizer(self) -> float:
        """Return the public expected batch size."""
        return self.mechanism.sampling_rate * self.n_records

    @property
    def grid(self) -> float:
        """Return the spacing to which a noisy sum is rounded.

        `GRID` of the noise, which pays for the rounding of the sum too.
        """
        return GRID * require_noise(self.mechanism.noise_multiplier) * self.mechanism.clip_norm * (1 + CLIP_SLACK)

    @cached_property
    def places(self) -> Places:
        """Return the places of the persons in the order of all blocks."""
        return places_of(self.source)

    def draw_steps(self, rng: np.random.Generator) -> "Iterator[Step]":
        """Yield the noise of each step, or None, and then its batch of persons.

        A run without noise yields None.
        """
        rate = self.mechanism.sampling_rate
        batches = repeat(None) if rate == 1 else poisson_batches(rng, self.places.count, rate)
        stream = GridNoise(rng, self.network.n_parameters) if self.mechanism.noise_multiplier else None
        while True:
            noise = None if stream is None else stream.next()
            yield noise, next(batches)

    def build_model(self, parameters: Array) -> DenseModel:
        """Return the released model.

        Parameters that are not finite are refused (they are released values: no leak).
        """
        if not np.isfinite(parameters).all():
            rate = float(self.mechanism.learning_rates[0])
            raise ValueError(f"training diverged with learning_rate = {rate:g}; lower it or set radius")
        return DenseModel(self.network, self.loss, parameters, self.classes, self.mechanism.feature_bound)


Step = tuple[Array | None, NDArray[np.int64] | None]


@dataclass(frozen=True)
class StepView:
    """One step as an observer sees it."""

    parameters: Array
    noisy_sum: Array
    constants: tuple[float, float, float]
    """Normalizer, grid and learning rate."""


StepObserver = Callable[[StepView], None]


@dataclass(slots=True)  # one is made at every step
class BatchGradient:
    """The sum of the clipped gradients of one block's batch, and its size.

    A function of the block and of these values alone. `shares` says which persons of each block are in the batch
    (None: all). ``allocate`` makes the memory of a thread, which is kept between the steps of the ``run`` of this name.
    ``own`` is the memory of the driver's thread, with the parameters in it; other threads and processes make their own.

    Theory: Fact 6
    """

    allocate: Callable[[], ClippedGradient]
    run: bytes
    parameters: Array
    shares: Mapping[int, NDArray[np.int64]] | None
    last: bool
    own: ClippedGradient | None = None

    def __reduce__(self) -> Any:
        return BatchGradient, (self.allocate, self.run, self.parameters, self.shares, self.last)

    def for_block(self, number: int) -> Self:
        """Return the same with the share of one block alone."""
        return self if self.shares is None else replace(self, shares={number: self.shares[number]})

    def __call__(self, block: Block) -> tuple[Array, int]:
        """Return the sum over the block's batch, and the number of its records."""
        assert isinstance(block, EngineBlock)
        drawn = None if self.shares is None else self.shares[block.id]
        if self.own is not None and self.own.thread == threading.get_ident():
            total, size = self.own.sum(block, drawn)
            return total.copy(), size
        with _GRADIENTS.of(self.run, self.allocate, last=self.last) as gradient:
            gradient.parameters[:] = self.parameters
            with one_blas_thread(), np.errstate(all="ignore"):
                total, size = gradient.sum(block, drawn)
                return total.copy(), size


_GRADIENTS: PerThread[ClippedGradient] = PerThread()


class Descent:
    """The state of one run over all records, or over those of one block.

    The caller has state and noise; gradients are computed where the blocks are. Two runs with the same batches and
    noise are coupled. `observer`, for tests and audits, is called with each step; what it sees is not private.
    """

    def __init__(self, setup: Setup, observer: StepObserver | None = None, second: SecondThread | None = None) -> None:
        rule, n_parameters = setup.mechanism, setup.network.n_parameters
        self.rule, self.normalizer, self.grid = rule, setup.normalizer, setup.grid
        self._source, self._places, self._observer = innermost(setup.source), setup.places, observer
        self._allocate = partial(
            ClippedGradient, setup.network, setup.loss, rule.clip_norm, rule.dtype, setup.normalizer
        )
        self._run, self.gradient = secure_bytes()(16), self._allocate()
        self.gradient.second = second
        # arrays, because turning a number into an array at every step takes as long as a product
        self._per_grid = np.array(1 / self.grid if self.grid else 0.0)
        self._grid_over_normalizer = np.array(self.grid / self.normalizer)
        self._momentum = np.array(rule.momentum)
        # float64: a float32 sum of thousands of small steps would drift
        self.parameters = setup.network.initial(rule.init_seed, rule.init_scale)
        self._fast = self.gradient.parameters
        np.copyto(self._fast, self.parameters, casting="same_kind")
        self._velocity, self._squares, self._sum, self._noisy = np.zeros((4, n_parameters))
        self.step_count = 0

    def clipped_sum(self, persons: NDArray[np.int64] | None) -> Array:
        """Return the weighted sum of clipped gradients over these persons.

        The gradients are at the current parameters. None stands for all persons.
        """
        last = self.step_count == self.rule.steps - 1
        shares = None if persons is None else self._places.shares(persons)
        total, size = self._source.sum(
            BatchGradient(self._allocate, self._run, self._fast, shares, last, self.gradient)
        )
        check_batch(size)
        return total

    def step(self, batch: NDArray[np.int64] | None, noise: Array | None) -> None:
        """Take one noisy step, also on an empty batch.

        `noise` is in grid units; None adds none (not private).
        """
        total = self.clipped_sum(batch)
        if self._observer is not None:
            constants = (self.normalizer, self.grid, float(self.rule.learning_rates[self.step_count]))
            self._observer(StepView(self.current(), self._release(total, noise) * self.normalizer, constants))
        self._update(total, noise)

    def _update(self, total: Array, noise: Array | None) -> None:
        rule, rate = self.rule, self.rule.learning_rates[self.step_count]
        self.step_count += 1
        gradient = self._release(total, noise)
        if rule.optimizer == "adam":
            self._scale_by_moments(gradient, rate)
        elif rule.momentum:
            self._velocity *= self._momentum
            self._velocity += gradient
            np.multiply(self._velocity, rate, out=gradient)
        else:
            gradient *= rate
        self.parameters -= gradient
        if rule.radius is not None:
            self.parameters *= min(1.0, rule.radius / max(math.sqrt(self.parameters @ self.parameters), 1e-300))
        np.copyto(self._fast, self.parameters, casting="same_kind")
        if self.step_count > rule.steps - rule.averaged_steps:
            self._sum += self.parameters

    def _release(self, total: Array, noise: Array | None) -> Array:
        """Return the noisy sum, rounded to the grid and divided by the normalizer.

        The normalizer is public. The next call overwrites it.
        """
        noisy = self._noisy
        if noise is None:
            return np.divide(total, self.normalizer, out=noisy)
        np.multiply(total, self._per_grid, out=noisy)
        noisy += noise
        np.rint(noisy, out=noisy)
        noisy *= self._grid_over_normalizer
        return noisy

    def _scale_by_moments(self, gradient: Array, rate: float) -> None:
        """Replace the gradient by Adam's change."""
        (first, second, tiny), velocity, squares = _ADAM, self._velocity, self._squares
        velocity *= first
        velocity += (1 - first) * gradient
        squares *= second
        np.square(gradient, out=gradient)
        gradient *= 1 - second
        squares += gradient
        np.sqrt(squares, out=gradient)
        gradient *= 1 / math.sqrt(1 - second**self.step_count)
        gradient += tiny
        np.divide(velocity, gradient, out=gradient)
        gradient *= rate / (1 - first**self.step_count)

    def current(self) -> Array:
        """Return the current iterate, in the precision of the gradients."""
        return self._fast.copy()

    def released(self) -> Array:
        """Return the average of the last iterates, after all steps."""
        with np.errstate(over="ignore"):  # a diverged run becomes infinite here and is refused by the caller
            return (self._sum / self.rule.averaged_steps).astype(self.rule.dtype)
