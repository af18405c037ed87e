"""Define the base class of mechanisms, with input and outcome of a training.

A mechanism is a frozen set of public constants. Its privacy cost (`event`) is a function of these constants alone and
is known before any record is used. Records in memory are a source of one block. Only the base class defines `train` and
`train_source`, which contain the checks of all mechanisms; a subclass defines `train_on`.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Self, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpscp._base.checks import check_positive, check_probability
from dpscp.data.persons import Persons
from dpscp.data.sources import ArraySource, Block, RecordSource
from dpscp.data.sources.places import (
    UnitSource,
    as_one_block,
    blocks_in_memory,
    is_in_memory,
    nominal_count,
    unit_of_blocks,
)
from dpscp.data.validation import count_numbers
from dpscp.privacy import (
    RECORDS,
    Unit,
    compose,
    dpsgd_event,
    gdp_mu,
    non_private_event,
    secure_generator,
    smallest_noise,
)
from dpscp.training.engine.rows import check_rows
from dpscp.training.model import Model, Trajectory

if TYPE_CHECKING:
    from dp_accounting.dp_event import DpEvent

    from dpscp.guarantees.stability import Stability
    from dpscp.privacy import Accountant
    from dpscp.training.engine.loop import StepObserver

Stages = tuple[tuple[str, "DpEvent"], ...]
"""The entries of a ledger for one training: names and events, in order."""


@dataclass(frozen=True)
class Trained:
    """Hold the outcome of private training: everything here may be published.

    Parameters
    ----------
    model : Model
    event : DpEvent
        The cost of training.
    stability : Stability or None
        The proven shift bound; None if none is known.
    public_facts : mapping
        The facts that training declared public.
    trajectory : Trajectory or None
        The iterates; None unless requested.
    stages : tuple of (name, DpEvent)
        The parts of `event`, each a separate entry in a ledger.
    unit : Unit
        The unit of privacy of `event`.
    taken_from_data : tuple of str
        The names of the public facts that were read from the records.
    found_privately : mapping
        The public facts that a private step of `event` found.
    is_seeded : bool
        Whether the noise came from a seed.

    Theory: Fact 1 and Result C
    """

    model: Model
    event: "DpEvent"
    stability: "Stability | None"
    public_facts: Mapping[str, object] = field(default_factory=dict)
    trajectory: Trajectory | None = None
    stages: Stages = ()
    unit: Unit = RECORDS
    taken_from_data: tuple[str, ...] = ()
    found_privately: Mapping[str, Any] = field(default_factory=dict)
    is_seeded: bool = False


@dataclass(frozen=True)
class Needs:
    """Describe what a release needs of the mechanism that trains its model.

    Parameters
    ----------
    classes : tuple or None
        The labels as training sees them (indices); None for regression.
    trajectory : bool
        Whether the self-influence correction needs the iterates.
    input_shape : tuple of int or None
        The shape of a record that is not a row of a table (an image), or (name, shape, kind) of each of its inputs.
        Rows hold its numbers one after the other.
    n_records : int or None
        The public nominal number of records, or persons, that training reads.
    labels : tuple or None
        The labels of ``classes``, in the same order; None if unknown.
    y_bounds : (low, high) or None
        The public range of the targets as this mechanism sees them; None if there is none, or if it is scaled.
    """

    classes: tuple[Any, ...] | None = None
    trajectory: bool = False
    input_shape: tuple[Any, ...] | None = None
    n_records: int | None = None
    labels: tuple[Any, ...] | None = None
    y_bounds: tuple[float, float] | None = None


@dataclass(frozen=True)
class Checked:
    """Facts about a caller's own module before training: its number of outputs."""

    n_outputs: int
    looks_up_rows: bool = False
    """Whether numbers of a row are indices (token ids, categories), so that no step may scale them."""


@dataclass(frozen=True)
class TrainingRun:
    """The records of one training, and the constants that are fixed before it.

    Parameters
    ----------
    mechanism : Mechanism
        The mechanism that trains; its event is the cost of this run.
    source : RecordSource
    unit : Unit
        The unit of privacy of the event: one record, or one person with all rows.
    n_records : int
        Their nominal number, a public number.
    random_state : int or None
    observer : callable or None
    """

    mechanism: "Mechanism"
    source: RecordSource
    unit: Unit
    n_records: int
    random_state: int | None = None
    observer: "StepObserver | None" = None

    @cached_property
    def block(self) -> Block:
        """Return all records in one block."""
        block = as_one_block(self.source)
        if block is None:
            raise TypeError("the records of this source are not in the memory of this process; fit on X and y")
        return block

    @cached_property
    def rows(self) -> NDArray[Any]:
        """Return all rows, of shape (n, n_features)."""
        return self.block.read()

    @property
    def targets(self) -> NDArray[Any]:
        """Return the targets of all rows, of shape (n,)."""
        return self.block.targets

    @property
    def weights(self) -> NDArray[np.float64]:
        """Return the weight of each row, (n,); those of one person add up to <= 1."""
        return self.block.owners.weights

    def generator(self) -> np.random.Generator:
        """Return this run's random generator: repeatable only with ``random_state``."""
        return secure_generator(self.random_state)

    def train_inner(self, mechanism: "Mechanism", source: RecordSource) -> Trained:
        """Train the inner mechanism on transformed records."""
        return mechanism.train_source(source, random_state=self.random_state, n_records=self.n_records)

    def result(
        self,
        model: Model,
        facts: Mapping[str, object] | None = None,
        *,
        stability: "Stability | None" = None,
        trajectory: Trajectory | None = None,
        taken_from_data: tuple[str, ...] = (),
    ) -> Trained:
        """Return the outcome of this run: ``model`` with the cost stated before training.

        The mechanism stated the cost.

        ``facts`` are further public facts of the training, for the ledger. ``taken_from_data`` names the facts that
        were read from the records. A mechanism around another one changes the inner outcome instead.
        """
        known = {"mechanism": type(self.mechanism).__name__, **self.unit.facts(self.n_records)}
        known |= {"n_features": self.source.width, **(facts or {})}
        event = paid_event(self.mechanism)
        return Trained(model, event, stability, known, trajectory, taken_from_data=taken_from_data)


class Mechanism(ABC):
    """Base class of private training algorithms: frozen public constants.

    A subclass is a frozen dataclass. Define `event` and `train_on`. Everything else has a default:

    - ``with_noise`` replaces the field ``noise_multiplier``, and ``calibrated`` searches the noise for a budget by it.
    - ``configured`` gets the labels of a release, ``check`` the shape of a record, both before any budget is reserved.
    - ``trains_persons`` states whether a person may have several rows, ``trains_sources`` whether records may be in
      several blocks.
    - ``stability`` is a proven bound on the shift by one record. The guarantee ``"stability"`` needs one.

    Privacy: ``event`` pays for everything that the model, its trajectory and the public facts contain of the records.
    ``train`` returns the event that was stated before training, whatever the records are.

    Assumes: the event of a caller's own mechanism is correct; the certificate lists that assumption.

    Theory: Facts 1 to 8
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if {"train", "train_source"} & vars(cls).keys():
            raise TypeError(
                f"{cls.__name__} must not define train or train_source, because they contain the checks of all "
                "mechanisms; define train_on(run), where run.rows and run.targets are the records"
            )

    @property
    @abstractmethod
    def event(self) -> "DpEvent | None":
        """Return the cost of one run, from public constants; None without noise."""

    @abstractmethod
    def train_on(self, run: TrainingRun) -> Trained:
        """Train on the records of a run, and return ``run.result(model)``."""

    takes_observer: ClassVar[bool] = False
    """Whether each noisy step can be shown to an observer, for tests and audits."""

    @property
    def trains_persons(self) -> bool:
        """Return whether a person may have several rows, by weights or batches.

        Sums then use ``run.weights``, and batches draw persons.
        """
        return False

    @property
    def trains_sources(self) -> bool:
        """Return whether training needs only sums over blocks, which may be elsewhere."""
        return False

    @property
    def task(self) -> str | None:
        """Return "classification" or "regression"; None if training decides it."""
        return None

    @property
    def input_width(self) -> int | None:
        """Return the required number of features; None for rows of any width."""
        return None

    @property
    def steps_before(self) -> tuple[Any, ...]:
        """Return the preprocessing steps of this mechanism."""
        return ()

    @property
    def stages(self) -> Stages:
        """Return the entries of a ledger for one run; ValueError without noise."""
        return (("training", paid_event(self)),)

    def configured(self, needs: Needs) -> Self:  # noqa: ARG002
        """Return a copy of the mechanism for the needs of a release."""
        return self

    def with_records(self, n_records: int) -> Self:  # noqa: ARG002
        """Return a copy of the mechanism for this nominal number of records."""
        return self

    def check(self, input_shape: tuple[Any, ...]) -> Checked | None:
        """Check the mechanism for records of this shape, at no cost.

        This happens before any budget is reserved or any record is used. The result has facts about the caller's own
        code; None without such code. A ValueError states what is wrong.
        """
        check_width(self, count_numbers(input_shape))
        return None

    def stability(
        self,
        n_features: int,  # noqa: ARG002
        n_records: int,  # noqa: ARG002
        classes: tuple[Any, ...] | None = None,  # noqa: ARG002
    ) -> "Stability | None":
        """Return the proven bound on the shift by one record at equal noise, or None."""
        return None

    def with_noise(self, noise_multiplier: float) -> Self:
        """Return a copy with this noise / sensitivity; more noise must cost less."""
        if "noise_multiplier" not in getattr(self, "__dataclass_fields__", ()):
            raise TypeError(
                f"{type(self).__name__} has no field noise_multiplier, so its noise cannot be found for a budget; set "
                "its noise yourself, or define with_noise(noise_multiplier)"
            )
        return replace(self, noise_multiplier=noise_multiplier)  # type: ignore[type-var]  # a dataclass

    def calibrated(self, epsilon: float, delta: float, *, accountant: "str | Accountant" = "pld") -> Self:
        """Return a mechanism whose event is (epsilon, delta)-DP at little noise.

        The noise is nearly the smallest.

        Raises: BudgetError if no finite noise meets the budget.
        """
        mu = gdp_mu(check_positive("epsilon", epsilon), check_probability("delta", delta))
        ready = self.with_shares(mu)
        noise = smallest_noise(
            lambda tried: paid_event(ready.with_noise(tried)),
            epsilon,
            delta,
            accountant=accountant,
            guess=ready.guess_noise(mu),
        )
        return ready.with_noise(noise)

    def with_shares(self, mu: float) -> Self:  # noqa: ARG002
        """Return the mechanism with the noise that fixed shares of ``mu`` determine."""
        return self

    def guess_noise(self, mu: float) -> float:
        """Return an approximate noise for the cost ``mu``, from which the search starts."""
        return 1 / mu

    def source_of_arrays(self, X: ArrayLike, y: ArrayLike, persons: Persons | None) -> UnitSource:
        """Return rows and targets in memory as a source of one block, checked."""
        return array_source(X, y, persons)

    @final
    def train(
        self,
        X: ArrayLike,
        y: ArrayLike,
        *,
        random_state: int | None = None,
        n_records: int | None = None,
        persons: Persons | None = None,
        observer: "StepObserver | None" = None,
    ) -> Trained:
        """Train privately on arrays; the cost is `event`, whatever the records are.

        Parameters
        ----------
        X, y : arrays of shape (n_rows, n_features) and (n_rows,)
        random_state : int or None
            None uses the operating system's entropy. An int makes the run repeatable and therefore not private.
        n_records : int or None
            The public nominal number of records, or of persons; None declares the true number public.
        persons : Persons or None
            The persons to whom the rows belong, if a person may have several.
        observer : callable or None
            For tests and audits of `DPSGD`: called with a `StepView` of each step. What it sees is not private.

        Returns
        -------
        Trained
        """
        source = self.source_of_arrays(X, y, persons)
        self.check(blocks_in_memory(source)[0].rows.shape[1:])
        return self.train_source(source, random_state=random_state, n_records=n_records, observer=observer)

    @final
    def train_source(
        self,
        source: RecordSource,
        *,
        random_state: int | None = None,
        n_records: int | None = None,
        observer: "StepObserver | None" = None,
    ) -> Trained:
        """Train on a source; its division into blocks changes the order of sums only."""
        # all refusals come before the first release
        if observer is not None and not self.takes_observer:
            raise TypeError(f"observer needs DPSGD, the only mechanism that shows its steps, not {type(self).__name__}")
        unit = unit_of_blocks(source)
        if unit.by_person:
            require_persons(self)
        if not is_in_memory(source):
            require_sources(self)
        n = nominal_count(source, n_records)
        ready = self.with_records(n)
        event, stages = paid_event(ready), ready.stages
        trained = ready.train_on(TrainingRun(ready, source, unit, n, random_state, observer))
        taken = ((unit.count_name,) if n_records is None else ()) + trained.taken_from_data
        seeded = random_state is not None
        return replace(trained, event=event, stages=stages, unit=unit, taken_from_data=taken, is_seeded=seeded)


class Around(Mechanism):
    """The base class of mechanisms around another one, the field ``mechanism``.

    A search for noise changes that of the inner mechanism.

    Privacy: the event composes the own releases (``own_parts``) with the event of the inner mechanism.

    Theory: Fact 5; Result B
    """

    releases_last: ClassVar[bool] = False
    """Whether its own releases come after the training of the inner mechanism."""

    if TYPE_CHECKING:

        @property
        def mechanism(self) -> Mechanism:
            """Return the inner mechanism."""

    @property
    def own_parts(self) -> "tuple[tuple[str, DpEvent | None], ...]":
        """Return the names and events of the own releases of this mechanism."""
        return ()

    @property
    def event(self) -> "DpEvent | None":
        """Return the event of its own releases and the inner ones; None without noise."""
        own, inner = [event for _, event in self.own_parts], self.mechanism.event
        parts = [inner, *own] if self.releases_last else [*own, inner]
        known = [event for event in parts if event is not None]
        return None if len(known) < len(parts) else known[0] if len(known) == 1 else compose(*known)

    @property
    def stages(self) -> Stages:
        """Return the ledger entries, its own and the inner ones, in order of release."""
        paid_event(self)
        own = tuple((name, event) for name, event in self.own_parts if event is not None)
        inner = self.mechanism.stages
        return (*inner, *own) if self.releases_last else (*own, *inner)

    @property
    def own_share(self) -> float:
        """Return the share of mu^2 for its own releases: the field ``share``, if any."""
        return float(getattr(self, "share", 0.0)) if self.own_parts else 0.0

    def with_own_noise(self, mu: float) -> Self:  # noqa: ARG002
        """Return the mechanism with noise that keeps its own releases within ``mu``."""
        return self

    def with_shares(self, mu: float) -> Self:
        own, rest = math.sqrt(self.own_share) * mu, math.sqrt(1 - self.own_share) * mu
        found = self.with_own_noise(own) if self.own_share else self
        return found._with_inner(self.mechanism.with_shares(rest))

    def with_noise(self, noise_multiplier: float) -> Self:
        """Return a copy with this noise of the inner mechanism."""
        return self._with_inner(self.mechanism.with_noise(noise_multiplier))

    def guess_noise(self, mu: float) -> float:
        return self.mechanism.guess_noise(math.sqrt(1 - self.own_share) * mu)

    def configured(self, needs: Needs) -> Self:
        return self._with_inner(self.mechanism.configured(needs))

    def with_records(self, n_records: int) -> Self:
        return self._with_inner(self.mechanism.with_records(n_records))

    def check(self, input_shape: tuple[Any, ...]) -> Checked | None:
        check_width(self, count_numbers(input_shape))
        return self.mechanism.check(input_shape)

    def _with_inner(self, mechanism: Mechanism) -> Self:
        return replace(self, mechanism=mechanism)  # type: ignore[type-var]  # every subclass is a dataclass

    @property
    def task(self) -> str | None:
        return self.mechanism.task

    @property
    def trains_persons(self) -> bool:
        return self.mechanism.trains_persons

    @property
    def trains_sources(self) -> bool:
        return self.mechanism.trains_sources


class GaussianSums(Mechanism):
    """Base class of mechanisms that release sums with Gaussian noise.

    One multiplier sets the noise of all sums. Define ``releases``, the field ``noise_multiplier`` and ``train_on``.

    Privacy: ``event`` is a DP-SGD event of the releases. The noise of each sum must be ``noise_multiplier`` times its
    sensitivity. 0 means no noise and no privacy, and the event states that.
    """

    if TYPE_CHECKING:

        @property
        def noise_multiplier(self) -> float | None:
            """Return the noise scale over the sensitivity; None while it is not set."""

    @property
    def releases(self) -> tuple[float, int]:
        """Return the sampling rate and the number of sums; by default (1.0, 1)."""
        return 1.0, 1

    @property
    def event(self) -> "DpEvent | None":
        if self.noise_multiplier is None:
            return None
        return dpsgd_event(self.noise_multiplier, *self.releases) if self.noise_multiplier else non_private_event()

    def guess_noise(self, mu: float) -> float:
        rate, steps = self.releases
        # the central limit of sampled Gaussian steps: mu^2 = rate^2 * steps * (exp(1 / noise^2) - 1)
        return 1 / math.sqrt(math.log1p((mu / rate) ** 2 / steps))


def array_source(X: ArrayLike, y: ArrayLike, persons: Persons | None = None) -> UnitSource:
    """Return rows and targets in memory as a source of one block, checked."""
    return one_block(check_rows(X), np.asarray(y), persons)


def one_block(rows: NDArray[Any], targets: NDArray[Any], persons: Persons | None) -> UnitSource:
    """Return a source of one block of checked rows."""
    Persons.of_rows(persons, len(rows))
    if targets.ndim == 0 or len(targets) != len(rows):
        raise ValueError("X and y must hold the same number of records")
    block = Block(0, rows, targets, persons)
    return UnitSource(ArraySource.of_blocks([block]), block.owners.unit)


def check_width(part: Any, width: int) -> None:
    """Refuse a mechanism for rows of another width."""
    if part.input_width not in (None, width):
        raise ValueError(
            f"{type(part).__name__} is for rows of {part.input_width} features, but X has {width}; pass "
            f"n_features={width}"
        )


def require_mechanism(value: Any, name: str = "mechanism") -> Mechanism:
    """Return the value, or raise TypeError if it is not a mechanism."""
    if isinstance(value, Mechanism):
        return value
    kind = f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__
    raise TypeError(f"{name} must be an instance of a subclass of dp.training.Mechanism, got {kind}")


def require_persons(mechanism: Mechanism) -> None:
    """Raise TypeError for a mechanism that cannot train on persons."""
    if not mechanism.trains_persons:
        raise TypeError(
            f"{type(mechanism).__name__} cannot train on persons with several rows; use DPSGD, OutputPerturbation, "
            "SufficientStatistics or TorchDPSGD, or omit persons and set rows_per_person, which protects persons with "
            "more noise"
        )


def require_sources(mechanism: Mechanism) -> None:
    """Raise TypeError for a mechanism that needs all records in one array."""
    if not mechanism.trains_sources:
        raise TypeError(
            f"{type(mechanism).__name__} needs all records in one array; fit it on X and y, or use the recipe's model "
            "(estimator=None), DPSGD or TorchDPSGD, which train block by block"
        )


def require_noise(noise_multiplier: float | None) -> float:
    """Return the noise multiplier, or raise ValueError while it is not set."""
    if noise_multiplier is None:
        raise ValueError("noise_multiplier is not set; pass it, or call calibrated(epsilon, delta) first")
    return float(noise_multiplier)


def paid_event(part: Any) -> "DpEvent":
    """Return the event of a mechanism or step; ValueError without its noise."""
    event: DpEvent | None = part.event
    if event is None:
        raise ValueError(
            f"{type(part).__name__}: noise_multiplier is not set; pass it, or call calibrated(epsilon, delta) first"
        )
    return event
