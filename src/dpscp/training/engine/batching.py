"""How records reach a mechanism: arrays as a source, blocks as the gradient engine reads them, sums of many blocks.

An array in memory is one block: its batches come from the stream of the run. The blocks of any other source draw their
own batches where they lie, from a key, the number of the step and their id (`BlockStreams`), and send back one vector
of clipped gradients each. Adding the vectors by pairs keeps the proof of `CLIP_SLACK`: a term goes through at most
12,290 additions inside a block and 41 between blocks, fewer than the 12,400 that it counts; where a block's batch
visits a device, 9,280 and 41. The proof's assumption, that a record's gradient has the same bits wherever it stands,
includes the machine: workers run the same libraries on the same kind of processor, and of device.
"""

import threading
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Generic, Self, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpscp._base.checks import check_count
from dpscp.data.persons import Persons
from dpscp.data.sources import ArraySource, Block, RecordSource
from dpscp.data.sources.persons import unit_of_blocks
from dpscp.privacy.random_streams import BlockStreams
from dpscp.privacy.units import Unit
from dpscp.training.engine.cuda import VisitingSums
from dpscp.training.engine.loop import BatchSums, Descent, Records, RunConstants, check_batch, poisson_batches
from dpscp.training.engine.networks import Loss, Network, check_rows, fill_features
from dpscp.training.engine.padding import aligned_empty, one_blas_thread
from dpscp.training.labels import encode_targets
from dpscp.training.mechanism import (
    DryRun,
    Mechanism,
    Needs,
    Trained,
    configured,
    find_dry_run,
    trains_persons,
    trains_sources,
)

Array = NDArray[Any]
Made = TypeVar("Made")


def array_source(X: ArrayLike, y: ArrayLike, persons: Persons | None = None) -> ArraySource:
    """Rows and targets in memory as a source of one block, checked."""
    rows, targets = check_rows(X), np.asarray(y)
    Persons.of_rows(persons, len(rows))
    if targets.ndim == 0 or len(targets) != len(rows):
        raise ValueError("X and y must hold the same number of records")
    return ArraySource.of_blocks([Block(0, rows, targets, persons)])


def nominal_count(source: RecordSource, n_records: int | None) -> tuple[int, Unit]:
    """The public nominal number of records or persons, and which of the two; None declares the true number public."""
    unit = unit_of_blocks(source)
    return check_count(unit.count_name, source.sum(unit_count) if n_records is None else n_records), unit


def unit_count(block: Block) -> int:
    """How many persons, or records where nobody gave ids, a block holds: private."""
    return block.owners.count


class ArrayFed:
    """The `train` of a mechanism that reads its records from a source, for arrays in memory."""

    @abstractmethod
    def train_source(
        self, source: RecordSource, *, random_state: int | None = None, n_records: int | None = None
    ) -> Trained:
        """Train on the records of a source."""

    def train(
        self,
        X: ArrayLike,
        y: ArrayLike,
        *,
        random_state: int | None = None,
        n_records: int | None = None,
        persons: Persons | None = None,
    ) -> Trained:
        """Train on arrays; `n_records=None` declares the number of records (or of `persons`) public."""
        return self.train_source(array_source(X, y, persons), random_state=random_state, n_records=n_records)


@dataclass(frozen=True)
class WrappedMechanism(ArrayFed):
    """A mechanism around another one, which has the abilities of what it wraps."""

    mechanism: Mechanism

    def configured(self, needs: Needs) -> Self:
        """A copy whose mechanism is told."""
        return replace(self, mechanism=configured(self.mechanism, needs))

    @property
    def trains_persons(self) -> bool:
        return trains_persons(self.mechanism)

    @property
    def trains_sources(self) -> bool:
        return trains_sources(self.mechanism)

    def run_dry(self, input_shape: tuple[int, ...]) -> DryRun | None:
        return find_dry_run(self.mechanism, input_shape)


@dataclass(frozen=True)
class EngineBlock:
    """From a block to `Records`, the block as the gradient engine reads it; part by part, into one array."""

    loss: str
    classes: tuple[Any, ...] | None
    feature_bound: float | None
    intercept: bool
    dtype: str

    def __call__(self, block: Block) -> Records:
        """The block with its engine rows, targets and squared norms."""
        target = encode_targets(block.targets, self.loss, self.classes, self.dtype)
        features = aligned_empty((len(block), block.width + self.intercept), self.dtype)
        if self.intercept:
            features[:, block.width] = 1.0
        for part, rows in block.parts():
            fill_features(rows, self.feature_bound, features[part, : block.width])
        return Records.build(features, target, block.persons, block_id=block.id)


@dataclass(frozen=True)
class BatchGradient:
    """The clipped gradients of one block's batch, summed, and how many records that were.

    A function of the block and of these constants alone; the batch is drawn here (`streams` None: everybody), and
    visits the `device`, if any, of the process that has the block.

    Theory: section 1.6
    """

    network: Network
    loss: Loss
    clip_norm: float
    batch: float
    sampling_rate: float
    streams: BlockStreams | None
    parameters: Array
    step: int
    device: str | None = None
    last: bool = False

    def __call__(self, block: Block) -> tuple[Array, int]:
        """The sum over the block's batch, and the number of its records."""
        assert isinstance(block, Records)
        drawn = None
        if self.streams is not None:
            generator = self.streams.generator(block.id, self.step)
            drawn = next(poisson_batches(generator, block.owners.count, self.sampling_rate))
        constants = self.network, self.loss, self.clip_norm, str(self.parameters.dtype), self.batch
        make = partial(BatchSums, *constants) if self.device is None else partial(VisitingSums, *constants, self.device)
        with _SUMS.of((*constants, self.device), make, last=self.last) as sums:
            if isinstance(sums, VisitingSums):
                total = sums.clipped(self.parameters, block, drawn)
            else:
                flat = aligned_empty(self.parameters.shape, str(self.parameters.dtype))
                flat[:] = self.parameters
                with one_blas_thread(), np.errstate(all="ignore"):
                    total = sums.clipped(self.network.layers(flat), block, drawn).copy()
        return total, len(block) if drawn is None else len(block.owners.rows_of(drawn))


class PerThread(Generic[Made]):
    """What a thread makes once to work on the blocks of a run; its memory holds records of the block before.

    So it goes with the run's last step, and with an error.
    """

    def __init__(self) -> None:
        self._here = threading.local()

    @contextmanager
    def of(self, key: Any, make: Callable[[], Made], *, last: bool) -> Iterator[Made]:
        """This thread's own for the key."""
        if getattr(self._here, "key", None) != key:
            self._here.key, self._here.made = key, make()
        kept = False
        try:
            yield self._here.made
            kept = not last
        finally:
            if not kept:
                vars(self._here).clear()


_SUMS: PerThread[BatchSums | VisitingSums] = PerThread()


class SpreadDescent(Descent):
    """A run whose records lie in the blocks of a source: state and noise are here, the gradients there."""

    def __init__(
        self,
        public: RunConstants,
        source: RecordSource,
        sampling_rate: float,
        streams: BlockStreams | None,
        device: str | None,
    ) -> None:
        super().__init__(public, Records.build(np.empty((0, public.network.shapes[0][1])), np.empty(0)))
        self._source = source
        constants = public.network, public.loss, public.clip_norm, public.normaliser, sampling_rate
        self._gradient = BatchGradient(*constants, streams, self.current(), 0, device)

    def clipped_sum(self, persons: NDArray[np.int64] | None) -> Array:  # noqa: ARG002 (blocks draw their own)
        """The sum over the batches of all blocks at the current parameters."""
        last = self.step_count == len(self.rule.learning_rates) - 1
        here = replace(self._gradient, parameters=self.current(), step=self.step_count, last=last)
        total, size = self._source.sum(here)
        check_batch(size)
        return total
