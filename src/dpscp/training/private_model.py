"""A model that somebody already trained, together with the ledger of what its training cost.

Nothing here imports torch; ``PrivateModel.from_opacus`` reaches for it only when it is called.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from dp_accounting.dp_event import DpEvent
from numpy.typing import ArrayLike, NDArray

from dpscp._base.checks import check_choice, check_count
from dpscp.privacy import Ledger
from dpscp.training.engine.networks import check_rows, softmax
from dpscp.training.mechanism import Model, Trained

__all__ = ["FunctionModel", "PrivateModel"]


class Unsaved:
    """A model that is code and not data, and cannot be written to a file."""

    unsaved: ClassVar[str]

    def arrays(self) -> dict[str, NDArray[Any]]:
        raise TypeError(self.unsaved)

    def config(self) -> dict[str, Any]:
        raise TypeError(self.unsaved)

    @classmethod
    def from_parts(cls, config: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> Self:  # noqa: ARG003
        raise TypeError(cls.unsaved)


@dataclass(frozen=True)
class FunctionModel(Unsaved):
    """A model known only by the function that computes its outputs; it cannot be saved.

    Theory: section 1.7
    """

    function: Callable[[NDArray[Any]], ArrayLike]
    task: str
    n_features: int
    classes: tuple[Any, ...] | None = None

    unsaved: ClassVar[str] = "a model given as a function cannot be saved; save the model that the function calls"

    def __post_init__(self) -> None:
        check_choice("task", self.task, ("classification", "regression"))
        check_count("n_features", self.n_features)
        if (self.classes is None) == (self.task == "classification"):
            raise ValueError("classes must be given for classification, and only then")

    def outputs(self, X: ArrayLike) -> NDArray[Any]:
        """Whatever the function returns, checked: (n, classes) logits, or (n, k) real outputs."""
        rows = check_rows(X, self.n_features)
        values = np.asarray(self.function(rows), dtype=np.float64)
        values = values[:, None] if values.ndim == 1 else values
        width = None if self.classes is None else len(self.classes)
        if values.ndim != 2 or len(values) != len(rows) or (width is not None and values.shape[1] != width):
            raise ValueError("outputs must have one row per record and, for classification, one column per class")
        return values

    def predict_proba(self, X: ArrayLike) -> NDArray[Any]:
        """Softmax of the outputs; TypeError for regression."""
        if self.task != "classification":
            raise TypeError("predict_proba needs a classification model")
        return softmax(self.outputs(X).astype(np.float64))


@dataclass(frozen=True)
class PrivateModel:
    """A trained model and the ledger of its training: ready to be calibrated, its cost already on the books.

    The ledger is taken at its word; nothing can check afterwards how a model was trained. Everything that
    looked at the same records (tuning, early stopping, feature scaling) belongs in it.

    >>> from dpscp.privacy import gaussian_event
    >>> model = PrivateModel.from_outputs(
    ...     lambda X: X[:, :1] * 2.0, spent=gaussian_event(4.0), task="regression", n_features=3)
    >>> model.outputs(np.ones((1, 3))).tolist(), model.ledger.is_private
    ([[2.0]], True)

    Paper: Theorem 1 [thm:overall_privacy]
    """

    model: Model
    ledger: Ledger

    def __post_init__(self) -> None:
        if not isinstance(self.model, Model):
            raise TypeError(
                f"model must have outputs(X) and the other members of a Model, got {type(self.model).__name__}"
            )
        if not isinstance(self.ledger, Ledger):
            raise TypeError(f"ledger must be a Ledger, got {type(self.ledger).__name__}")

    @classmethod
    def from_trained(cls, trained: Trained, note: str = "") -> Self:
        """The outcome of one of this package's mechanisms."""
        ledger = Ledger().add("train", trained.event, note, unit=trained.unit)
        if trained.public_facts.get("taken_from_data"):
            ledger = ledger.declare(taken_from_data=trained.public_facts["taken_from_data"])
        return cls(trained.model, ledger.mark_seeded() if trained.public_facts.get("seeded") else ledger)

    @classmethod
    def from_outputs(
        cls,
        outputs: Callable[[NDArray[Any]], ArrayLike],
        *,
        spent: DpEvent | Ledger,
        task: str,
        n_features: int,
        classes: tuple[Any, ...] | None = None,
    ) -> Self:
        """A model of any kind, given by its output function and what its training spent.

        An event is what one record meets; a ledger says itself whether it is about records or persons.
        """
        ledger = spent if isinstance(spent, Ledger) else Ledger().add("train", spent, "declared by the caller")
        return cls(FunctionModel(outputs, task, n_features, None if classes is None else tuple(classes)), ledger)

    @classmethod
    def from_opacus(
        cls,
        module: Any,
        privacy_engine: Any,
        *,
        classes: tuple[Any, ...] | None = None,
        input_shape: tuple[int, ...] | None = None,
        device: str = "cpu",
        start_buffers: Mapping[str, Any] | None = None,
    ) -> Self:
        """A module trained with Opacus' PrivacyEngine; the engine's own record of noise, rate and steps is the ledger.

        The engine samples rows, so the ledger is about records. ``classes`` names the columns of the module's
        outputs (None: a regression module). ``input_shape``
        is the shape of one record, needed when the first layer does not tell. The ledger trusts that the
        engine sampled by Poisson (its default), and notes that Opacus divides by a number of records it
        takes from the data.

        Refused, by kind and on made-up rows: a module whose layers mix records, or whose per-record gradients
        were not those of a record. Buffers (running statistics, for instance) are not in the engine's account:
        a module that has any is refused unless ``start_buffers``, copies taken before training, are equal to them.

        Paper: Supplement S6.1 [supp:privacy_accounting]
        """
        from dpscp.training.torch.trainer import ledger_of_engine, torch_model  # torch is an optional extra

        model = torch_model(
            module, classes=classes, input_shape=input_shape, device=device, start_buffers=start_buffers
        )
        return cls(model, ledger_of_engine(privacy_engine))

    @property
    def event(self) -> DpEvent:
        """All that training spent, as one event."""
        return self.ledger.event

    @property
    def task(self) -> str:
        """Either "classification" or "regression"."""
        return self.model.task

    @property
    def n_features(self) -> int:
        """Width of a row."""
        return self.model.n_features

    @property
    def classes(self) -> tuple[Any, ...] | None:
        """The public labels in order; None for regression."""
        return self.model.classes

    def outputs(self, X: ArrayLike) -> NDArray[Any]:
        """The model's outputs."""
        return self.model.outputs(X)

    def predict_proba(self, X: ArrayLike) -> NDArray[Any]:
        """Class probabilities; TypeError for regression."""
        return self.model.predict_proba(X)
