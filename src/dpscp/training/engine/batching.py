"""Pass records to mechanisms: arrays as sources, engine blocks, sums over blocks.

An array in memory is a source of one block. The batch of a step is drawn once, as places in the order of all persons
(`dpscp.data.sources.places`). Every block takes its share and returns one vector of clipped gradients. Adding the
vectors by pairs keeps the proof of `CLIP_SLACK`. A term goes through at most 12,290 additions inside a block and 41
between blocks, fewer than the 12,400 that the proof counts.

Assumes: a record's gradient has the same bits wherever it stands. This includes the machine: workers run the same
libraries on the same kind of processor.
"""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from dpscp._base.arrays import Array
from dpscp.data.sources import Block, RecordSource
from dpscp.data.sources.places import Places, blocks_in_memory, innermost, places_of
from dpscp.privacy.random_streams import secure_bytes
from dpscp.training.engine.loop import BatchSums, EngineBlock, RunConstants, check_batch
from dpscp.training.engine.networks import Loss, Network, fill_features, squared_norms
from dpscp.training.engine.padding import aligned_empty, one_blas_thread
from dpscp.training.engine.short_rows import restore_rows, shorten_rows
from dpscp.training.labels import encode_targets, observed_labels

Made = TypeVar("Made")


def observed_source_labels(source: RecordSource) -> list[Any]:
    """Return the labels of the records, which the caller declares public.

    Only of records in this process.
    """
    blocks = blocks_in_memory(source)
    if not blocks:
        raise ValueError("classes must be declared for records outside this process; pass classes=(...)")
    return observed_labels(np.concatenate([block.targets for block in blocks]))


@dataclass(frozen=True)
class EngineBlockBuilder:
    """A function from a block to an `EngineBlock`.

    Rows are converted part by part into one array, of 16 bits a number if they are ``short``.
    """

    loss: str
    classes: tuple[Any, ...] | None
    feature_bound: float | None
    intercept: bool
    dtype: str
    short: bool = False

    def __call__(self, block: Block) -> EngineBlock:
        """Return the block with its engine rows, targets and squared norms."""
        target = encode_targets(block.targets, self.loss, self.classes, self.dtype)
        if self.short:
            return self._shortened(block, target)
        features = aligned_empty((len(block), block.width + self.intercept), self.dtype)
        for part, rows in block.parts():
            self._fill(rows, features[part])
        return EngineBlock.build(features, target, block.persons, block_id=block.id, order=block.order)

    def _fill(self, rows: Array, out: Array) -> None:
        fill_features(rows, self.feature_bound, out[:, : rows.shape[1]])
        out[:, rows.shape[1] :] = 1.0

    def _shortened(self, block: Block, target: Array) -> EngineBlock:
        integers, scales = np.empty((len(block), block.width), dtype=np.int16), np.empty(len(block), dtype=self.dtype)
        norms = np.empty(len(block))
        for part, rows in block.parts():
            features = aligned_empty((len(rows), block.width + self.intercept), self.dtype)
            self._fill(rows, features)
            scales[part] = shorten_rows(features[:, : block.width], integers[part])
            # norms are those of the rows that training multiplies
            restore_rows(integers[part], scales[part], features)
            norms[part] = squared_norms(features)
        return EngineBlock(
            block.id, integers, target, block.persons, order=block.order, squared_norms=norms, scales=scales
        )


class DriverMemory:
    """The memory in which the thread of the driver sums.

    Other threads and processes do not see it and make their own.
    """

    def __init__(self, sums: BatchSums | None = None, network: Network | None = None) -> None:
        self._here = threading.local()
        if sums is not None and network is not None:
            self._here.made = sums, network
        self._parameters: Array = np.empty(0)
        self._layers: Sequence[Array] = ()

    def __reduce__(self) -> Any:
        return DriverMemory, ()

    @property
    def made(self) -> tuple[BatchSums, Network] | None:
        """Return the memory and the network of the run, in the driver's thread."""
        return getattr(self._here, "made", None)

    def layers(self, network: Network, parameters: Array) -> Sequence[Array]:
        """Return the layers of the parameters, which change in place from step to step."""
        if parameters is not self._parameters:
            self._parameters, self._layers = parameters, network.layers(parameters)
        return self._layers


@dataclass(frozen=True)
class GradientConstants:
    """What the gradients of a run need beside parameters and batches.

    ``batch`` is the public expected size.

    ``run`` names the run, for what a thread keeps between its steps.
    """

    network: Network
    loss: Loss
    clip_norm: float
    dtype: str
    batch: float
    run: bytes = b""

    def sums(self) -> BatchSums:
        """Allocate the memory for sums of one thread."""
        return BatchSums(self.network, self.loss, self.clip_norm, self.dtype, self.batch)


@dataclass(slots=True)  # one is made at every step
class BatchGradient:
    """The sum of the clipped gradients of one block's batch, and its size.

    A function of the block and of these values alone. `shares` says which persons of each block are in the batch
    (None: all).

    Theory: Fact 6
    """

    constants: GradientConstants
    parameters: Array
    shares: Mapping[int, NDArray[np.int64]] | None = None
    last: bool = False
    leader: DriverMemory = field(default_factory=DriverMemory)

    def for_block(self, number: int) -> Self:
        """Return the same with the share of one block alone."""
        return self if self.shares is None else replace(self, shares={number: self.shares[number]})

    def __call__(self, block: Block) -> tuple[Array, int]:
        """Return the sum over the block's batch, and the number of its records."""
        assert isinstance(block, EngineBlock)
        drawn = None if self.shares is None else self.shares[block.id]
        size = len(block) if drawn is None else len(block.owners.rows_of(drawn))
        leading = self.leader.made
        if leading is not None:
            sums, network = leading
            return sums.clipped(self.leader.layers(network, self.parameters), block, drawn).copy(), size
        return self._elsewhere(block, drawn), size

    def _elsewhere(self, block: EngineBlock, drawn: NDArray[np.int64] | None) -> Array:
        """Return the sum in a thread other than the driver's."""
        constants = self.constants
        with _SUMS.of(constants, constants.sums, last=self.last) as sums:
            flat = aligned_empty(self.parameters.shape, constants.dtype)
            flat[:] = self.parameters
            with one_blas_thread(), np.errstate(all="ignore"):
                return sums.clipped(constants.network.layers(flat), block, drawn).copy()


class PerThread(Generic[Made]):
    """An object that a thread makes once and uses for all blocks of a run.

    Its memory contains records of the last block.

    So it goes with the run's last step, and with an error.
    """

    def __init__(self) -> None:
        self._here = threading.local()

    @contextmanager
    def of(self, key: Any, make: Callable[[], Made], *, last: bool) -> Iterator[Made]:
        """Return the object of this thread for the key."""
        if getattr(self._here, "key", None) != key:
            self._here.key, self._here.made = key, make()
        kept = False
        try:
            yield self._here.made
            kept = not last
        finally:
            if not kept:
                vars(self._here).clear()


_SUMS: PerThread[BatchSums] = PerThread()


class SourceTotals:
    """The sums of a run over the blocks of a source.

    The caller has state and noise; gradients are computed where the blocks are.
    """

    def __init__(self, public: RunConstants, source: RecordSource, places: Places | None = None) -> None:
        self._source, self._places = innermost(source), places_of(source) if places is None else places
        constants = public.network, public.loss, public.clip_norm, public.dtype, public.normalizer
        self._constants = GradientConstants(*constants, secure_bytes()(16))
        own = BatchSums(*constants)
        self.gradient = own.gradient
        self._leader = DriverMemory(own, public.network)

    def clipped(self, parameters: Array, persons: NDArray[np.int64] | None, *, last: bool) -> Array:
        """Return the sum over the batches of all blocks."""
        shares = None if persons is None else self._places.shares(persons)
        work = BatchGradient(self._constants, parameters, shares, last, self._leader)
        total, size = self._source.sum(work)
        check_batch(size)
        return total
