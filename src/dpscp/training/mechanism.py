"""Define the protocols of private training mechanisms and their results.

A mechanism is a frozen set of public constants. Its privacy cost (`event`) is a function of these constants alone and
is known before any record is used. The records and the randomness are arguments of `train`.

`Mechanism` is all that your own mechanism must have. The other protocols are abilities that some mechanisms have:
`Configurable` (accepts the needs of a release), `Tunable` (one noise multiplier, so that its noise can be solved after
private preprocessing), `Bounded` (a shift bound before training), `PersonWise` (a person may have several rows),
`SourceWise` (reads its records block by block). A mechanism around another one has the abilities of the inner one.
"""

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar, runtime_checkable

from numpy.typing import ArrayLike, NDArray

from dpscp._base.checks import check_choice
from dpscp.data.sources import RecordSource
from dpscp.data.sources.places import as_one_block
from dpscp.privacy import RECORDS, Unit, dpsgd_event, noise_multiplier, non_private_event
from dpscp.training.model import Model as Model  # an earlier place of the three
from dpscp.training.model import Shaped as Shaped
from dpscp.training.model import Trajectory as Trajectory
from dpscp.training.widths import check_width

if TYPE_CHECKING:
    from dp_accounting.dp_event import DpEvent

    from dpscp.data.persons import Persons
    from dpscp.guarantees.stability import Stability
    from dpscp.privacy import Accountant
    from dpscp.training.engine.loop import StepObserver


@dataclass(frozen=True)
class Trained:
    """Hold the outcome of private training: everything here may be published.

    Parameters
    ----------
    model : Model
    event : DpEvent
        The cost of training.
    stability : Stability or None
        The proven shift bound; None where none is known.
    public_facts : mapping
        What was declared public in training.
    trajectory : Trajectory or None
        Kept on request only.
    stages : tuple of (name, DpEvent)
        The parts of `event` that are entries of their own in a ledger; empty: it is one entry.
    unit : Unit
        The unit of privacy of `event`.
    taken_from_data : tuple of str
        The names of the public facts that were read from the records.
    found_privately : tuple of str
        The names of the public facts that a private step of `event` found.
    is_seeded : bool
        Whether the noise came from a seed.

    Theory: section 1 (public facts), Result C (stability)
    """

    model: Model
    event: "DpEvent"
    stability: "Stability | None"
    public_facts: Mapping[str, object] = field(default_factory=dict)
    trajectory: Trajectory | None = None
    stages: "tuple[tuple[str, DpEvent], ...]" = ()
    unit: Unit = RECORDS
    taken_from_data: tuple[str, ...] = ()
    found_privately: tuple[str, ...] = ()
    is_seeded: bool = False


Stages = tuple[tuple[str, "DpEvent"], ...]
"""The entries of a ledger for one training: names and events, in order."""


@runtime_checkable
class Staged(Protocol):
    """A mechanism whose parts are entries of their own in a ledger."""

    @property
    def stages(self) -> Stages:
        """Return the entries; ValueError while some noise is not set."""


class HasEvent(Protocol):
    """Something private: a mechanism, or one of its steps."""

    @property
    def event(self) -> "DpEvent | None":
        """Return the cost of one run; None while the noise is not set."""


@runtime_checkable
class Mechanism(Protocol):
    """A private training algorithm with its public constants."""

    @property
    def event(self) -> "DpEvent | None":
        """Return the cost of one run, from public constants only.

        None while the noise is not set.
        """

    def calibrated(self, epsilon: float, delta: float, *, accountant: "str | Accountant" = "pld") -> "Mechanism":
        """Return a new mechanism whose noise keeps it within the budget.

        Raises BudgetError when no finite noise meets the budget.
        """

    def train(
        self, X: ArrayLike, y: ArrayLike, *, random_state: int | None = None, n_records: int | None = None
    ) -> Trained:
        """Train on the records.

        Parameters
        ----------
        X : array of shape (n_records, n_features)
        y : array of shape (n_records,)
        random_state : int or None
            None uses the system's entropy.
        n_records : int or None
            The public nominal number of records; None declares len(X) public.

        Returns
        -------
        Trained
        """


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
        The shape of a record that is not a row of a table (an image). Rows hold its numbers one after the other.
    n_records : int or None
        The public nominal number of records, or persons, that training reads.
    labels : tuple or None
        The labels that ``classes`` stand for, in the same order; None where they are not known.
    """

    classes: tuple[Any, ...] | None = None
    trajectory: bool = False
    input_shape: tuple[int, ...] | None = None
    n_records: int | None = None
    labels: tuple[Any, ...] | None = None


@runtime_checkable
class Configurable(Protocol):
    """A mechanism that accepts the needs of a release."""

    def configured(self, needs: Needs) -> Mechanism:
        """Return the same mechanism for these needs."""


@runtime_checkable
class Tunable(Mechanism, Protocol):
    """A mechanism whose cost falls as one noise multiplier grows."""

    @property
    def noise_multiplier(self) -> float | None:
        """Return the noise scale over the sensitivity; None while it is not set."""

    def calibrated(self, epsilon: float, delta: float, *, accountant: "str | Accountant" = "pld") -> "Tunable":
        """Return a mechanism within the budget; see `Mechanism`."""

    def with_noise(self, noise_multiplier: float) -> "Tunable":
        """Return the same mechanism with this noise."""


@runtime_checkable
class Bounded(Protocol):
    """A mechanism with a bound on the shift by one record before training."""

    def stability(self, n_features: int, n_records: int, classes: tuple[Any, ...] | None = None) -> "Stability | None":
        """Return the shift bound under shared noise; None where none is proven."""


@runtime_checkable
class PersonWise(Mechanism, Protocol):
    """A mechanism that can train on persons with several rows each.

    Its private sums are taken with the weights of `Persons`, its batches draw persons, and its cost is then that of
    adding or removing one person with all their rows.

    Theory: Result H
    """

    @property
    def trains_persons(self) -> bool:
        """Return whether this mechanism and all its parts can."""

    def train(
        self,
        X: ArrayLike,
        y: ArrayLike,
        *,
        random_state: int | None = None,
        n_records: int | None = None,
        persons: "Persons | None" = None,
    ) -> Trained:
        """Train on records of persons.

        With `persons`, `n_records` is the nominal number of persons.
        """


@runtime_checkable
class SourceWise(Mechanism, Protocol):
    """A mechanism whose work on records is sums over blocks.

    It can train on any source of records.

    What is done with a block is a pure function that can be pickled; noise is drawn once, by the caller of `sum`.
    """

    @property
    def trains_sources(self) -> bool:
        """Return whether this mechanism and all its parts can."""

    def train_source(
        self, source: RecordSource, *, random_state: int | None = None, n_records: int | None = None
    ) -> Trained:
        """Train on a source with finite numbers and known labels; see `train`."""


@dataclass(frozen=True)
class DryRun:
    """The result of a run on synthetic records: the task and number of outputs.

    ``looks_up_rows``: numbers of a row are indices (token ids, categories), so no step may scale them.
    """

    task: str
    n_outputs: int
    looks_up_rows: bool = False


@runtime_checkable
class HasDryRun(Protocol):
    """A mechanism with the caller's own code, tried on synthetic records first."""

    def run_dry(self, input_shape: tuple[int, ...]) -> DryRun | None:
        """Run on synthetic records of this shape.

        ValueError says what is wrong. None means that there was nothing to try.
        """


@runtime_checkable
class HasRowSteps(Protocol):
    """A mechanism with preprocessing steps, which may be a caller's own."""

    @property
    def row_steps(self) -> tuple[Any, ...]:
        """Return the steps, the first one first."""


@runtime_checkable
class HasPlaceForSteps(Protocol):
    """A mechanism around another one that puts preprocessing steps in front of the inner one."""

    def with_steps(self, steps: tuple[Any, ...]) -> Mechanism:
        """Return the mechanism with these steps inside it."""


@runtime_checkable
class Observable(Protocol):
    """A mechanism that can show each noisy step to an observer, for tests and audits."""

    @property
    def takes_observer(self) -> bool:
        """Return whether it does."""

    def train_source(
        self,
        source: RecordSource,
        *,
        random_state: int | None = None,
        n_records: int | None = None,
        observer: "StepObserver | None" = None,
    ) -> Trained:
        """Train on a source; what the observer sees is not private."""


def find_dry_run(mechanism: Mechanism, input_shape: tuple[int, ...]) -> DryRun | None:
    """Run the mechanism on synthetic records.

    None where it runs only the code of this package. ValueError for a mechanism for rows of another width.
    """
    check_width(mechanism, math.prod(input_shape))
    return mechanism.run_dry(input_shape) if isinstance(mechanism, HasDryRun) else None


def configured(mechanism: Mechanism, needs: Needs) -> Mechanism:
    """Return the mechanism configured for these needs, if it accepts them."""
    return mechanism.configured(needs) if isinstance(mechanism, Configurable) else mechanism


def shift_bound(
    mechanism: Mechanism, n_features: int, n_records: int, classes: tuple[Any, ...] | None
) -> "Stability | None":
    """Return the mechanism's shift bound; None where none is known."""
    return mechanism.stability(n_features, n_records, classes) if isinstance(mechanism, Bounded) else None


def trains_persons(mechanism: Mechanism) -> bool:
    """Return whether a mechanism can train on persons with several rows."""
    return isinstance(mechanism, PersonWise) and mechanism.trains_persons


def require_persons(mechanism: object) -> PersonWise:
    """Return the mechanism, or raise TypeError if it cannot train on persons."""
    if isinstance(mechanism, PersonWise) and mechanism.trains_persons:
        return mechanism
    raise TypeError(
        f"{type(mechanism).__name__} cannot train on persons with several rows; use DPSGD, OutputPerturbation, "
        "SufficientStatistics or OpacusTraining, or leave persons out and set rows_per_person, which protects persons "
        "with more noise"
    )


def train_persons(
    mechanism: Mechanism,
    X: ArrayLike,
    y: ArrayLike,
    *,
    persons: "Persons | None",
    random_state: int | None,
    n_records: int | None,
) -> Trained:
    """Train on persons where there are any; TypeError for a mechanism that cannot."""
    if persons is None:
        return mechanism.train(X, y, random_state=random_state, n_records=n_records)
    able = require_persons(mechanism)
    trained = able.train(X, y, random_state=random_state, n_records=n_records, persons=persons)
    return replace(trained, unit=persons.unit)  # a mechanism of the caller's own may leave the default


def trains_sources(mechanism: object) -> bool:
    """Return whether a mechanism can train on records in several blocks."""
    # a class of mechanisms has the names of one, and is none
    able = isinstance(mechanism, SourceWise) and not isinstance(mechanism, type) and mechanism.trains_sources
    return able and not _changes_train_alone(type(mechanism))


def _changes_train_alone(kind: type) -> bool:
    """Return whether a class overrides `train` but inherits `train_source`.

    Training on a source would bypass such a `train`.
    """
    names = ("train", "train_source")
    definers = [next((base for base in kind.__mro__ if name in vars(base)), object) for name in names]
    return definers[0] is not definers[1] and issubclass(definers[0], definers[1])


def require_sources(mechanism: object) -> None:
    """Raise TypeError for a mechanism that needs all records in one array."""
    if not trains_sources(mechanism):
        raise TypeError(
            f"{type(mechanism).__name__} needs all records in one array; fit it on X and y, or use the recipe's model "
            "(estimator=None), DPSGD or OpacusTraining, which train block by block"
        )


def train_on(mechanism: Mechanism, source: RecordSource, *, random_state: int | None, n_records: int | None) -> Trained:
    """Train on a source.

    A mechanism that knows arrays only gets the rows of a source in memory.
    """
    if isinstance(mechanism, SourceWise) and not _changes_train_alone(type(mechanism)):
        return mechanism.train_source(source, random_state=random_state, n_records=n_records)
    block = as_one_block(source)
    if block is None:
        require_sources(mechanism)
        raise TypeError("the records of this source are not in the memory of this process; fit on X and y")
    return train_persons(
        mechanism, block.read(), block.targets, persons=block.persons, random_state=random_state, n_records=n_records
    )


@dataclass(frozen=True)
class GaussianSums:
    """The base of mechanisms that release sums with Gaussian noise.

    The noise of each sum is `noise_multiplier` times its sensitivity.
    """

    @property
    @abstractmethod
    def noise_multiplier(self) -> float | None:
        """Return the noise scale over the sensitivity.

        None while it is not set, 0 for no noise and no privacy.
        """

    @property
    @abstractmethod
    def releases(self) -> tuple[float, int]:
        """Return the sampling rate of each sum and the number of sums."""

    @property
    def event(self) -> "DpEvent | None":
        """Return the cost of one run, from public constants only.

        None while the noise is not set.
        """
        if self.noise_multiplier is None:
            return None
        return dpsgd_event(self.noise_multiplier, *self.releases) if self.noise_multiplier else non_private_event()

    def with_noise(self, noise_multiplier: float) -> Self:
        """Return a copy with this noise."""
        return self._with(noise_multiplier=noise_multiplier)

    def calibrated(self, epsilon: float, delta: float, *, accountant: "str | Accountant" = "pld") -> Self:
        """Return a copy with the smallest noise within (epsilon, delta).

        BudgetError if no noise is enough.
        """
        noise = noise_multiplier(epsilon, delta, *self.releases, accountant=accountant)
        return self._with(noise_multiplier=noise, budget=(float(epsilon), float(delta)))

    def _with(self, **changed: Any) -> Self:
        return replace(self, **changed)


def require_noise(noise_multiplier: float | None) -> float:
    """Return the noise multiplier, or raise ValueError while it is not set.

    Nothing is released without noise by accident.
    """
    if noise_multiplier is None:
        raise ValueError("noise_multiplier is not set; pass it, or call calibrated(epsilon, delta) first")
    return float(noise_multiplier)


def paid_event(part: "HasEvent") -> "DpEvent":
    """Return the event of a part, or raise ValueError if its noise is not set."""
    event = part.event
    if event is None:
        raise ValueError(
            f"{type(part).__name__}: noise_multiplier is not set; pass it, or call calibrated(epsilon, delta) first"
        )
    return event


def stages_of(mechanism: Mechanism) -> Stages:
    """Return the entries of a ledger for one run of the mechanism, from public constants."""
    return mechanism.stages if isinstance(mechanism, Staged) else (("training", paid_event(mechanism)),)


def stages_of_trained(trained: Trained) -> Stages:
    """Return the entries of a ledger for what was spent."""
    return trained.stages or (("training", trained.event),)


_SAVED: dict[str, type[Model]] = {}
AnyModel = TypeVar("AnyModel", bound=type[Any])


def saved_as(kind: str) -> Callable[[AnyModel], AnyModel]:
    """Return a class decorator that saves models under this name.

    Files with this name are loaded into the decorated class.
    """

    def remember(model: AnyModel) -> AnyModel:
        if _SAVED.setdefault(kind, model) is not model:
            raise ValueError(f"another class already saves its models as {kind!r}; choose another name")
        return model

    return remember


def load_model(config: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]], module: Any = None) -> Model:
    """Rebuild a saved model of a class decorated with ``saved_as``.

    ``module`` is the architecture of a torch model; ValueError for a model that needs none.
    """
    kind = _SAVED[check_choice("model", config["model"], _SAVED)]
    return kind.from_parts(config if module is None else _with_module(config, module), arrays)


def _with_module(config: Mapping[str, Any], module: Any) -> dict[str, Any]:
    """Return the config with the module in its innermost part.

    Files contain no module: code does not come from them.
    """
    if "inner" in config:
        return {**config, "inner": _with_module(config["inner"], module)}
    if config["model"] != "torch":
        raise ValueError("module was given, but this file holds its whole model: leave module out")
    return {**config, "module": module}


def require_loadable(config: Mapping[str, Any]) -> None:
    """Refuse to save a model that ``load_model`` could not rebuild."""
    if config.get("model") not in _SAVED:
        raise TypeError(
            f"a model of kind {config.get('model')!r} cannot be saved; decorate its class with "
            "dpscp.training.mechanism.saved_as(name)"
        )
    if "inner" in config:
        require_loadable(config["inner"])
