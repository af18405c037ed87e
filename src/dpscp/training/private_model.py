"""Combine a model trained elsewhere with the ledger of its training.

Nothing here imports torch; ``PrivateModel.from_opacus`` imports it when it is called.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Self

import numpy as np
from dp_accounting.dp_event import DpEvent
from numpy.typing import ArrayLike, NDArray

from dpscp._base.callers import FLOAT32_ROUNDING, call_on_rows, is_of_caller
from dpscp._base.checks import check_choice, check_count
from dpscp.privacy import Ledger, Relation
from dpscp.training.base import Trained
from dpscp.training.engine.networks import check_rows
from dpscp.training.model import InfluenceForm, Model

__all__ = ["FunctionModel", "PrivateModel"]


@dataclass(frozen=True)
class FunctionModel(Model):
    """A model known only by the function that computes its outputs.

    It cannot be saved.

    Parameters
    ----------
    function : callable
        From rows (n, n_features) to logits (n, n_classes) or real outputs (n, k).
    task : "classification" or "regression"
    n_features : int
    classes : tuple or None

    Theory: Fact 7
    """

    function: Callable[[NDArray[Any]], ArrayLike]
    task: str
    n_features: int
    classes: tuple[Any, ...] | None = None

    def __post_init__(self) -> None:
        check_choice("task", self.task, ("classification", "regression"))
        check_count("n_features", self.n_features)
        if (self.classes is None) == (self.task == "classification"):
            raise ValueError("classes must be given for classification, and only then")

    def outputs(self, X: ArrayLike) -> NDArray[Any]:
        """Return the checked result of the function.

        (n, classes) logits, or (n, k) real outputs.
        """
        rows = check_rows(X, self.n_features)
        return _call_model(self.function, rows, self.classes)

    @classmethod
    def _not_saved(cls) -> TypeError:
        return TypeError("a model given as a function cannot be saved; save the model that the function calls")


@dataclass(frozen=True)
class CallersModel(Model):
    """A model of the caller's class, as records reach it: it gets copies of the rows."""

    inner: Model

    @property
    def task(self) -> str:
        return self.inner.task

    @property
    def n_features(self) -> int:
        """Return the width of a row."""
        return self.inner.n_features

    @property
    def classes(self) -> tuple[Any, ...] | None:
        """Return the labels of the caller's model; None for regression."""
        return self.inner.classes

    def outputs(self, X: ArrayLike) -> NDArray[Any]:
        return _call_model(self.inner.outputs, np.asarray(X), self.classes)

    def predict_proba(self, X: ArrayLike) -> NDArray[Any]:
        return _call_model(self.inner.predict_proba, np.asarray(X), self.classes)

    def influence_form(self) -> InfluenceForm:
        return self.inner.influence_form()


def model_for_records(model: Model) -> Model:
    """Return a model as records reach it: code of the caller gets copies of them, in two different blockings."""
    inner: Any = model
    while inner is not None:
        if is_of_caller(inner):
            return CallersModel(model)
        inner = getattr(inner, "inner", None)
    return model


def _call_model(
    function: Callable[[NDArray[Any]], ArrayLike], rows: NDArray[Any], classes: tuple[Any, ...] | None
) -> NDArray[Any]:
    """Return the outputs of a caller's function for each row, one column for each class."""

    def read(found: Any, size: int) -> NDArray[Any]:
        values = np.asarray(found, dtype=np.float64)
        values = values[:, None] if values.ndim == 1 else values
        if values.ndim != 2 or len(values) != size or (classes is not None and values.shape[1] != len(classes)):
            raise ValueError("outputs must have one row per record and, for classification, one column per class")
        return values

    empty = np.empty((0, len(classes or (0,))))
    return call_on_rows("estimator", function, (rows,), len(rows), read=read, empty=empty, tolerance=FLOAT32_ROUNDING)


@dataclass(frozen=True)
class PrivateModel:
    """Combine a trained model with the ledger of its training, for calibration.

    Assumes: the ledger is complete. Nothing can check afterwards how a model was trained. Everything that used the same
    records (tuning, early stopping, feature scaling) belongs in it.

    Parameters
    ----------
    model : Model
        The released model.
    ledger : Ledger
        What its training spent.

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
                f"model must be an instance of a subclass of dp.training.Model, got {type(self.model).__name__}"
            )
        if not isinstance(self.ledger, Ledger):
            raise TypeError(f"ledger must be a Ledger, got {type(self.ledger).__name__}")

    @classmethod
    def from_trained(cls, trained: Trained, note: str = "") -> Self:
        """Build it from the result of a mechanism of this package."""
        ledger = Ledger().add("train", trained.event, note, unit=trained.unit)
        ledger = ledger.take(*trained.taken_from_data)
        return cls(trained.model, ledger.mark_seeded() if trained.is_seeded else ledger)

    @classmethod
    def from_outputs(
        cls,
        outputs: Callable[[NDArray[Any]], ArrayLike],
        *,
        spent: DpEvent | Ledger,
        task: str,
        n_features: int,
        classes: tuple[Any, ...] | None = None,
        relation: Relation = Relation.ADD_OR_REMOVE,
    ) -> Self:
        """Wrap a model of any kind, given by its output function and its cost.

        Parameters
        ----------
        outputs : callable
            From rows (n, n_features) to logits (n, n_classes) or real outputs (n, k).
        spent : DpEvent or Ledger
            The cost of training. An event is about one record; a ledger states its unit of privacy itself.
        task : "classification" or "regression"
        n_features : int
        classes : tuple or None
            The public labels in the order of the outputs; None for regression.
        relation : Relation
            Of an event: ``dpscp.privacy.Relation.REPLACE_ONE`` if it holds at a fixed number of records only, as where
            an engine divides by the true number. A ledger states the relation of each entry itself.

        Returns
        -------
        PrivateModel
        """
        if not isinstance(spent, Ledger):
            spent = Ledger().add("train", spent, "declared by the caller", relation=relation)
        elif relation is not Relation.ADD_OR_REMOVE:
            raise ValueError("relation is for an event; a ledger states the relation of each entry itself")
        ledger = spent
        return cls(FunctionModel(outputs, task, n_features, None if classes is None else tuple(classes)), ledger)

    @classmethod
    def from_opacus(
        cls,
        module: Any,
        privacy_engine: Any,
        *,
        classes: tuple[Any, ...] | None = None,
        input_shape: tuple[Any, ...] | None = None,
        start_buffers: Mapping[str, Any] | None = None,
    ) -> Self:
        """Wrap a module that Opacus' PrivacyEngine trained.

        The ledger is the engine's own history of noise, rate and steps. It is about records, because the engine samples
        rows, and about replacing one record, because Opacus divides by ``int(n * rate)``: at n and n + 1 its noise may
        differ in scale. A release with this model states the same relation, and charges two records for each step.

        Parameters
        ----------
        module : torch.nn.Module
            The trained module, with or without the wrapper of Opacus.
        privacy_engine : opacus.PrivacyEngine
            The engine that trained it.
        classes : tuple or None
            The names of the columns of the outputs; None: a regression module.
        input_shape : tuple or None
            The shape of one record, as in `TorchDPSGD`; needed if the first layer is not Linear.
        start_buffers : mapping or None
            Copies of the buffers, made before training. The engine does not account for buffers such as running
            statistics, so a module with buffers is refused unless these copies are equal to them.

        Returns
        -------
        PrivateModel

        Raises: ValueError for a module that cannot be traced in evaluation mode.

        Assumes: the engine used Poisson sampling (its default).

        Paper: Supplement S6.1 [supp:privacy_accounting]
        """
        opacus = import_module("dpscp.torch.opacus")  # a layer above; torch is an optional extra
        model = opacus.torch_model(module, classes=classes, input_shape=input_shape, start_buffers=start_buffers)
        return cls(model, opacus.ledger_of_engine(privacy_engine))

    @property
    def event(self) -> DpEvent:
        """Return the whole cost of training as one event."""
        return self.ledger.event

    @property
    def task(self) -> str:
        """Return "classification" or "regression"."""
        return self.model.task

    @property
    def n_features(self) -> int:
        """Return the width of a row."""
        return self.model.n_features

    @property
    def classes(self) -> tuple[Any, ...] | None:
        """Return the public labels in order; None for regression."""
        return self.model.classes

    def outputs(self, X: ArrayLike) -> NDArray[Any]:
        """Return the model's outputs."""
        return self.model.outputs(X)

    def predict_proba(self, X: ArrayLike) -> NDArray[Any]:
        """Return class probabilities; TypeError for regression."""
        return self.model.predict_proba(X)


def find_private_model(value: Any) -> PrivateModel | None:
    """Return the value if it is a PrivateModel; None for anything else."""
    return value if isinstance(value, PrivateModel) else None
