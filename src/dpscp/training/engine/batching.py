"""Pass records to mechanisms: arrays as sources, engine blocks, sums over blocks.

An array in memory is a source of one block. The batch of a step is drawn once, as places in the order of all persons
(`dpscp.data.sources.places`). Every block takes its share and returns one vector of clipped gradients. Adding the
vectors by pairs keeps the proof of `CLIP_SLACK`. A term goes through at most 12,290 additions inside a block and 41
between blocks, fewer than the 12,400 that the proof counts.

Assumes: a record's gradient has the same bits wherever it stands. This includes the machine: workers run the same
libraries on the same kind of processor.
"""

import threading
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Generic, Self, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpscp._base.arrays import Array
from dpscp._base.checks import check_count
from dpscp.data.persons import Persons
from dpscp.data.sources import ArraySource, Block, RecordSource
from dpscp.data.sources.places import (
    Places,
    UnitSource,
    as_one_block,
    blocks_in_memory,
    innermost,
    is_in_memory,
    places_of,
    unit_of_blocks,
)
from dpscp.privacy.random_streams import secure_bytes
from dpscp.privacy.units import Unit
from dpscp.training.engine.loop import BatchSums, EngineBlock, RunConstants, StepObserver, check_batch
from dpscp.training.engine.networks import Loss, Network, check_rows, fill_features, squared_norms
from dpscp.training.engine.padding import aligned_empty, one_blas_thread
from dpscp.training.engine.short_rows import restore_rows, shorten_rows
from dpscp.training.labels import encode_targets, observed_labels
from dpscp.training.mechanism import (
    DryRun,
    Mechanism,
    Needs,
    Trained,
    configured,
    find_dry_run,
    require_persons,
    require_sources,
    train_on,
    trains_persons,
    trains_sources,
)

Made = TypeVar("Made")


def array_source(X: ArrayLike, y: ArrayLike, persons: Persons | None = None) -> UnitSource:
    """Return rows and targets in memory as a source of one block, checked."""
    rows, targets = check_rows(X), np.asarray(y)
    Persons.of_rows(persons, len(rows))
    if targets.ndim == 0 or len(targets) != len(rows):
        raise ValueError("X and y must hold the same number of records")
    block = Block(0, rows, targets, persons)
    return UnitSource(ArraySource.of_blocks([block]), block.owners.unit)


def nominal_count(source: RecordSource, n_records: int | None) -> tuple[int, Unit]:
    """Return the public nominal number of records or persons, and which of the two.

    None declares the true number public.
    """
    unit = unit_of_blocks(source)
    return check_count(unit.count_name, source.sum(unit_count) if n_records is None else n_records), unit


def unit_count(block: Block) -> int:
    """Return the number of persons, or of records without ids, in a block.

    Private.
    """
    return block.owners.count


def observed_source_labels(source: RecordSource) -> list[Any]:
    """Return the labels of the records, which the caller declares public.

    Only of records in this process.
    """
    blocks = blocks_in_memory(source)
    if not blocks:
        raise ValueError("classes must be declared for records outside this process; pass classes=(...)")
    return observed_labels(np.concatenate([block.targets for block in blocks]))


@dataclass(frozen=True)
class TrainingRun:
    """The records of one training and what is fixed before it: see the parameters of `train`."""

    source: RecordSource
    random_state: int | None = None
    n_records: int | None = None
    observer: StepObserver | None = None

    @property
    def block(self) -> Block:
        """Return all records in one block, for a mechanism that needs arrays."""
        block = as_one_block(self.source)
        assert block is not None  # `train_source` refused other sources
        return block

    def train_inner(self, mechanism: Mechanism, source: RecordSource) -> Trained:
        """Train a mechanism inside this one on records that were made from these."""
        return train_on(mechanism, source, random_state=self.random_state, n_records=self.n_records)


class SourceTraining:
    """The way into every mechanism of this package: it implements `_train` only."""

    takes_observer: ClassVar[bool] = False

    @property
    @abstractmethod
    def trains_persons(self) -> bool:
        """Return whether a person may have several rows."""

    @property
    @abstractmethod
    def trains_sources(self) -> bool:
        """Return whether records may be in several blocks."""

    @abstractmethod
    def _train(self, run: TrainingRun) -> Trained:
        """Train; the records were checked against the two abilities."""

    def train(
        self,
        X: ArrayLike,
        y: ArrayLike,
        *,
        random_state: int | None = None,
        n_records: int | None = None,
        persons: Persons | None = None,
        observer: StepObserver | None = None,
    ) -> Trained:
        """Train privately on arrays; the cost is `event`, whatever the records are.

        Parameters
        ----------
        X : array of shape (n_rows, n_features)
        y : array of shape (n_rows,)
        random_state : int or None
            None uses the operating system's entropy. An int makes the run repeatable and therefore not private.
        n_records : int or None
            The public nominal number of records, or of persons; None declares the true number public.
        persons : Persons or None
            The persons to whom the rows belong, where one may have several.
        observer : callable or None
            For tests and audits of `DPSGD`: called with a `StepView` of each step. What it sees is not private.

        Returns
        -------
        Trained
        """
        source = array_source(X, y, persons)
        return self.train_source(source, random_state=random_state, n_records=n_records, observer=observer)

    def train_source(
        self,
        source: RecordSource,
        *,
        random_state: int | None = None,
        n_records: int | None = None,
        observer: StepObserver | None = None,
    ) -> Trained:
        """Train on the records of a source; see `train`.

        The division into blocks changes the order of sums only.
        """
        if observer is not None and not self.takes_observer:
            raise TypeError(f"{type(self).__name__} shows no steps; an observer needs DPSGD itself")
        # both before anything is released
        if unit_of_blocks(source).by_person:
            require_persons(self)
        if not is_in_memory(source):
            require_sources(self)
        return self._train(TrainingRun(source, random_state, n_records, observer))


@dataclass(frozen=True)
class WrappedMechanism(SourceTraining):
    """A mechanism around another one, with the abilities of the inner one."""

    mechanism: Mechanism

    def configured(self, needs: Needs) -> Self:
        """Return a copy whose inner mechanism is configured for these needs."""
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

    Theory: section 1.6
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
        constants = public.network, public.loss, public.clip_norm, public.dtype, public.normaliser
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
